"""The product of slices by several columns on a CPU: rows of X, and of sums, in vector registers.

In C order an entry meets a run of neighbouring numbers, a row of X. So a few lanes of a slice walk its steps
together, for a panel of columns whose sums stay in registers; what they pass of the plan lies in the nearest
cache for the lanes that follow. Each width of a panel is a function of its own, compiled when it is first
needed. What a panel leaves of the columns is a smaller panel, which ends where the columns end and may begin
among those that are done: those it does not store.

A row of complex numbers is one vector in which real and imaginary parts take turns.

Sums are added in the order of the product by a vector, so that a column's bits are those of that product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.slices import FIRST_LEVEL, WORD_LANES, Emitter, of_plan
from dasp.formats.sell.pattern import shape_fields
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import I32, I64, bytes_of, is_null, prefetch_run
from dasp.runtime.cpu.job import SharedFunction

intrinsic: Any = _intrinsic
Vector = np.ndarray[Any, Any]
_shape_fields = jit()(shape_fields)

WIDEST = 32
"""Columns of the widest panel; the others are its halves, down to 2."""

ROW_BYTES = 256
"""Of sums that a lane keeps in registers, at most: eight registers of AVX2."""

SUMS_BYTES = 1024
"""Of sums in registers at a time: half of those of AVX-512."""

PLAN_AHEAD = 64
"""Steps by which a group of lanes asks for what it will read of the plan: it reads less than a line of every
step, and hardware prefetchers follow no such steps."""

NEAR_BITS = 8
"""Bits of a delta up to which neighbouring lanes are taken to read neighbouring rows of X."""

WIDTHS = 0, 8, 16, 32
"""Bits of a delta, by the `Width` of a slice."""


class Panel(NamedTuple):
    """Columns that are multiplied at once.

    Attributes
    ----------
    begin, columns : int
        The first one, and how many: a power of two.
    done : int
        How many of them, the leading ones, are done before.
    """

    begin: int
    columns: int
    done: int


@functools.cache
def panels_of(columns: int, item: int) -> tuple[Panel, ...]:
    """Cut 2 columns and more, of numbers of `item` bytes, into panels.

    Examples
    --------
    >>> [tuple(panel) for panel in panels_of(37, 8)]
    [(0, 32, 0), (32, 4, 0), (35, 2, 1)]
    """
    panels, start = [], 0
    while start < columns:
        width = min(WIDEST, ROW_BYTES // item)
        while width > columns - start and width > 2:
            width //= 2
        begin = min(start, columns - width)
        panels.append(Panel(begin, width, start - begin))
        start = begin + width
    return tuple(panels)


def span_of(array: Vector) -> Vector:
    """Return the memory from the first to the last element of a matrix whose rows lie in one run each."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    rows, columns = array.shape
    size = (rows - 1) * (array.strides[0] // array.itemsize) + columns if rows else 0
    writable = array.flags.writeable
    return np.lib.stride_tricks.as_strided(array, (size,), (array.itemsize,), writeable=writable)


class _RowEmitter(Emitter):
    """Emits what some of a group's lanes add up over a slice in a panel of columns.

    Parameters
    ----------
    bits, coded, real, parts, *pointers
        See `Emitter`.
    panel : int
        Columns.
    mine : range
        Lanes of the group of `WORD_LANES`.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        bits: int,
        coded: Any,
        real: ir.Type,
        parts: int,
        panel: int,
        mine: Iterable[int],
        *pointers: ir.Value,
    ) -> None:
        super().__init__(builder, bits, coded, real, parts, *pointers)
        self.mine, self.panel = list(mine), ir.VectorType(real, panel * parts)
        self.size = bytes_of_real(real)
        self.rows = Rows(builder, real if parts == 1 else ir.LiteralStructType([real] * 2), panel)
        # Numbers of a real X stand for two parts of a complex sum each.
        whole = parts == 1 or isinstance(self.data["x"].type.pointee, ir.BaseStructType)
        self.of_x = self.panel if whole else ir.VectorType(real, panel)

    def zeros(self) -> list[ir.Value]:
        """The lanes' sums at the start."""
        return [ir.Constant(self.panel, [0.0] * self.panel.count)] * len(self.mine)

    def add_step(
        self, k: ir.Value, sums: list[ir.Value], places: tuple[ir.Value, ...], masked: bool
    ) -> list[ir.Value]:
        """Add step k of the slice to the lanes' sums; `masked` if it may hold pads."""
        builder, (step, first_delta, group, row) = self.builder, places
        current = builder.add(step, k)
        base = builder.load(builder.gep(self.data["bases"], [current]))
        base = base if base.type == I64 else builder.zext(base, I64)
        slot = builder.add(builder.mul(current, ir.Constant(I64, WARP)), group)
        delta = builder.add(first_delta, builder.add(builder.mul(k, ir.Constant(I64, WARP)), group))
        if self.bits:
            columns = self.columns(base, delta, masked)
        else:
            columns = [self.plus(builder.add(base, group), lane) for lane in range(WORD_LANES)]
        kept = self.is_entry(delta, WORD_LANES) if masked else None
        if self.mine[0] == 0:
            self.prefetch_plan(slot, delta)
        totals = []
        for lane, before in zip(self.mine, sums, strict=True):
            if lane % self.lanes == 0 or lane == self.mine[0]:
                values = self.values(self.plus(slot, lane // self.lanes * self.lanes))
            x = builder.gep(self.data["x"], [builder.mul(columns[lane], row)])
            numbers = builder.load(builder.bitcast(x, self.of_x.as_pointer()), align=self.size)
            mask = [lane % self.lanes] * self.panel.count
            factors = [self.shuffled(part, part, mask) for part in values]
            total = self.rows.multiply_add(factors, numbers, before)
            if kept is not None:
                entry = builder.extract_element(kept, ir.Constant(I32, lane))
                total = builder.select(entry, total, before)
            totals.append(total)
            if self.bits <= NEAR_BITS:
                self.prefetch_row(x, row)
        return totals

    def prefetch_plan(self, slot: ir.Value, delta: ir.Value) -> None:
        """Ask for the values and deltas that the same group will need `PLAN_AHEAD` steps further."""
        sizes = {"deltas": self.bits // 8}
        if self.coded != types.none:
            sizes["values"] = bytes_of(self.coded)
        for name, place in (("values", slot), ("deltas", delta)):
            size = sizes.get(name, 0)
            ahead = PLAN_AHEAD * WARP * size
            prefetch_run(self.builder, self.address(name, place), ahead, WORD_LANES * size, FIRST_LEVEL)

    def prefetch_row(self, x: ir.Value, row: ir.Value) -> None:
        """Ask for the numbers that the same lane of the next group will need, if its columns follow on."""
        ahead = self.builder.gep(x, [self.builder.mul(row, ir.Constant(I64, WORD_LANES))])
        prefetch_run(self.builder, ahead, 0, self.of_x.count * self.size, FIRST_LEVEL)


class Rows:
    """Emits loads and stores of whole rows of sums, at pointers to numbers of their type."""

    def __init__(self, builder: ir.IRBuilder, number: ir.Type, panel: int) -> None:
        self.builder = builder
        self.parts = 2 if isinstance(number, ir.BaseStructType) else 1
        self.real = number.elements[0] if self.parts == 2 else number
        self.kind = ir.VectorType(self.real, panel * self.parts)

    def at(self, pointer: ir.Value) -> ir.Value:
        """A pointer to a row."""
        return self.builder.bitcast(pointer, self.kind.as_pointer())

    def load(self, pointer: ir.Value) -> ir.Value:
        """The row that begins at a pointer."""
        return self.builder.load(self.at(pointer), align=bytes_of_real(self.real))

    def store(self, row: ir.Value, pointer: ir.Value) -> None:
        """Write a row from a pointer on."""
        self.builder.store(row, self.at(pointer), align=bytes_of_real(self.real))

    def spread(self, number: ir.Value) -> ir.Value:
        """A real number, once for each item of a row."""
        once = self.builder.insert_element(ir.Constant(self.kind, ir.Undefined), number, ir.Constant(I32, 0))
        return self.shuffled(once, [0] * self.kind.count)

    def shuffled(self, row: ir.Value, mask: list[int]) -> ir.Value:
        """The items of a row that a mask names."""
        return self.builder.shuffle_vector(row, row, ir.Constant(ir.VectorType(I32, len(mask)), mask))

    def multiply_add(self, factors: list[ir.Value], x: ir.Value, before: ir.Value) -> ir.Value:
        """The sums with an entry's products added, each part in the order of `emitter.multiply_add`.

        Parameters
        ----------
        factors : list of rows
            The entry's value, or its two parts, once for each item.
        x : row
            Of X; real numbers stand for both parts of a complex sum.
        before : row
        """
        builder, count = self.builder, self.kind.count
        if self.parts == 1:
            return self.fma(factors[0], x, before)
        is_real = ir.Constant(ir.VectorType(ir.IntType(1), count), [1, 0] * (count // 2))
        if x.type.count < count:
            twice = self.shuffled(x, [number // 2 for number in range(count)])
            total = self.fma(builder.select(is_real, factors[0], factors[-1]), twice, before)
            # A complex matrix whose values are all real adds nothing to the imaginary parts of a real x.
            return total if len(factors) == 2 else builder.select(is_real, total, before)
        if len(factors) == 2:
            across = self.shuffled(x, [number ^ 1 for number in range(count)])
            before = self.fma(self.minus_first(factors[1]), across, before)
        return self.fma(factors[0], x, before)

    def fma(self, *terms: ir.Value) -> ir.Value:
        """The product of two rows and the sum with a third."""
        name = f"llvm.fmuladd.v{self.kind.count}f{8 * bytes_of_real(self.real)}"
        function = ir.FunctionType(self.kind, [self.kind] * 3)
        return self.builder.call(self.builder.module.declare_intrinsic(name, (), function), terms)

    def minus_first(self, numbers: ir.Value) -> ir.Value:
        """A row of numbers, the first part of each with the other sign."""
        size = 8 * bytes_of_real(self.real)
        words = ir.VectorType(ir.IntType(size), numbers.type.count)
        signs = ir.Constant(words, [1 << size - 1, 0] * (words.count // 2))
        return self.builder.bitcast(
            self.builder.xor(self.builder.bitcast(numbers, words), signs), numbers.type
        )

    def scaled(self, factor: ir.Value, row: ir.Value) -> ir.Value:
        """A factor times a row, by the rule of `emitter.scaled`."""
        builder, count = self.builder, self.kind.count
        if self.parts == 1:
            return builder.fmul(self.spread(factor), row)
        real, imaginary = cgutils.unpack_tuple(builder, factor, 2)
        plain = builder.fmul(self.spread(real), row)
        crossed = builder.fmul(
            self.spread(imaginary), self.shuffled(row, [item ^ 1 for item in range(count)])
        )
        is_real = ir.Constant(ir.VectorType(ir.IntType(1), count), [1, 0] * (count // 2))
        whole = builder.fadd(plain, builder.select(is_real, builder.fneg(crossed), crossed))
        none = builder.fcmp_ordered("==", imaginary, ir.Constant(self.real, 0.0))
        return builder.select(none, plain, whole)

    def is_zero(self, number: ir.Value) -> ir.Value:
        """Whether a number is 0."""
        parts = [number] if self.parts == 1 else cgutils.unpack_tuple(self.builder, number, 2)
        zeros = [self.builder.fcmp_ordered("==", part, ir.Constant(self.real, 0.0)) for part in parts]
        return functools.reduce(self.builder.and_, zeros)

    def is_below(self, column: ir.Value) -> ir.Value:
        """Which items of a row belong to columns below this one."""
        builder, places = self.builder, ir.VectorType(I64, self.kind.count)
        once = builder.insert_element(ir.Constant(places, ir.Undefined), column, ir.Constant(I32, 0))
        own = ir.Constant(places, [item // self.parts for item in range(places.count)])
        return builder.icmp_signed("<", own, self.shuffled(once, [0] * places.count))


def bytes_of_real(real: ir.Type) -> int:
    """Return the bytes of a float or a double."""
    return 8 if real == ir.DoubleType() else 4


@intrinsic(prefer_literal=True)
def place_for_sums(typing_context, scale, panel):
    """Return a pointer to a panel's sums for 32 lanes, on the stack."""
    count = WARP * int(panel.literal_value)

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, arguments[0].type.pointee, size=count)
        place.align = 64
        return place

    return scale(scale, panel), generate


@intrinsic
def at(typing_context, pointer, place):
    """Return a pointer so many items further."""

    def generate(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


@intrinsic(prefer_literal=True)
def _sum_lanes(
    typing_context, panel, sums, width, groups, step, steps, full, block, row, deltas, bases, values, table, x
):
    """Set `sums` to what each lane of the first `groups` of a slice adds up in a panel of columns.

    Parameters
    ----------
    panel : constant
        Its columns.
    sums : pointer to `panel` numbers for each lane
    width : int64
        The `Width` of the slice.
    groups : int64
        Of `WORD_LANES` lanes each.
    step, steps, full : int64
        Of the slice: its first step, how many, and how many leading ones without pads.
    block : int64
        Bytes before the slice's deltas.
    row : int64
        Numbers from a row of X to the next.
    deltas, bases, values, table, x : pointers
        x: of the panel's first column.
    """
    count = int(panel.literal_value)
    coded = types.none if values == types.voidptr else values.dtype

    def generate(context, builder, signature, arguments):
        _, sums, width, groups, step, steps, full, block, row, *pointers = arguments
        rows = Rows(builder, sums.type.pointee, count)
        together = min(WORD_LANES, SUMS_BYTES // (rows.kind.count * bytes_of_real(rows.real)))

        def of_width(number: int) -> None:
            bits = WIDTHS[number]
            delta = builder.udiv(block, ir.Constant(I64, max(bits // 8, 1)))
            with cgutils.for_range(builder, groups) as loop:
                group = builder.mul(loop.index, ir.Constant(I64, WORD_LANES))
                for first in range(0, WORD_LANES, together):
                    mine = range(first, first + together)
                    kinds = bits, coded, rows.real, rows.parts, count, mine
                    emitter = _RowEmitter(builder, *kinds, *pointers)
                    places = step, delta, group, row
                    end = full if bits else steps
                    totals = emitter.loop(ir.Constant(I64, 0), end, emitter.zeros(), places, False)
                    if bits:
                        totals = emitter.loop(full, steps, totals, places, True)
                    for lane, total in zip(mine, totals, strict=True):
                        place = builder.mul(emitter.plus(group, lane), ir.Constant(I64, count))
                        rows.store(total, builder.gep(sums, [place]))

        _switch(builder, width, range(len(WIDTHS)), of_width)
        return context.get_dummy_value()

    whole = [types.int64] * 7
    return types.void(panel, sums, *whole, deltas, bases, values, table, x), generate


def _switch(
    builder: ir.IRBuilder, selector: ir.Value, cases: Iterable[int], emit: Callable[[int], None]
) -> None:
    """Emit `emit(case)` for each number that the selector may be, and go on behind them."""
    cases = list(cases)
    blocks = [builder.append_basic_block(f"case.{case}") for case in cases]
    after = builder.append_basic_block("cases.after")
    switch = builder.switch(selector, after)
    for case, block in zip(cases, blocks, strict=True):
        switch.add_case(ir.Constant(selector.type, case), block)
        builder.position_at_end(block)
        emit(case)
        builder.branch(after)
    builder.position_at_end(after)


@intrinsic(prefer_literal=True)
def add_neighbours(typing_context, panel, sums, lanes):
    """Add every two neighbours of twice so many lanes."""

    def generate(context, builder, signature, arguments):
        _, sums, lanes = arguments
        count = int(panel.literal_value)
        rows = Rows(builder, sums.type.pointee, count)
        with cgutils.for_range(builder, lanes) as loop:
            to = builder.mul(loop.index, ir.Constant(I64, count))
            one = builder.gep(sums, [builder.mul(to, ir.Constant(I64, 2))])
            other = builder.gep(one, [ir.Constant(I64, count)])
            rows.store(builder.fadd(rows.load(one), rows.load(other)), builder.gep(sums, [to]))
        return context.get_dummy_value()

    return types.void(panel, sums, types.int64), generate


@intrinsic(prefer_literal=True)
def copy_row(typing_context, panel, sums, to):
    """Write a row of sums somewhere else."""

    def generate(context, builder, signature, arguments):
        _, sums, to = arguments
        rows = Rows(builder, sums.type.pointee, int(panel.literal_value))
        rows.store(rows.load(sums), to)
        return context.get_dummy_value()

    return types.void(panel, sums, to), generate


@intrinsic(prefer_literal=True)
def scale_row(typing_context, panel, sums, alpha, y):
    """Write alpha times a row of sums to y."""

    def generate(context, builder, signature, arguments):
        _, sums, alpha, y = arguments
        rows = Rows(builder, sums.type.pointee, int(panel.literal_value))
        rows.store(rows.scaled(alpha, rows.load(sums)), y)
        return context.get_dummy_value()

    return types.void(panel, sums, alpha, y), generate


@intrinsic(prefer_literal=True)
def _expect_row(typing_context, panel, y):
    """Ask for a row of y that is written soon: a row that lies in no cache would be waited for."""

    def generate(context, builder, signature, arguments):
        rows = Rows(builder, arguments[1].type.pointee, int(panel.literal_value))
        prefetch_run(
            builder, arguments[1], 0, rows.kind.count * bytes_of_real(rows.real), FIRST_LEVEL, writes=True
        )
        return context.get_dummy_value()

    return types.void(panel, y), generate


@intrinsic(prefer_literal=True)
def update_row(typing_context, panel, sums, alpha, beta, done, y):
    """Write alpha times a row of sums, plus beta times y unless beta is 0, to y but for `done` columns."""

    def generate(context, builder, signature, arguments):
        _, sums, alpha, beta, done, y = arguments
        rows = Rows(builder, sums.type.pointee, int(panel.literal_value))
        before, total = rows.load(y), rows.scaled(alpha, rows.load(sums))
        both = builder.fadd(total, rows.scaled(beta, before))
        total = builder.select(rows.is_zero(beta), total, both)
        rows.store(builder.select(rows.is_below(done), before, total), y)
        return context.get_dummy_value()

    return types.void(panel, sums, alpha, beta, types.int64, y), generate


def _function_of(panel: int) -> Callable[..., None]:
    """Return the product by a panel of so many columns, to be compiled."""

    def _multiply_panel(
        first, last, headers, bases, deltas, values, table, rows, counts, done, partials, x, y, scale
    ):
        """Multiply slices `first` to `last`.

        Every array comes as a pointer. `rows` is null if position p is row p; `counts` holds positions,
        segments, and the numbers from one row to the next of X and of Y, which begin at the panel's first
        column; `scale` alpha and beta.
        """
        sums = place_for_sums(scale, panel)
        positions, segments, x_row, y_row = counts[0], counts[1], counts[2], counts[3]
        alpha, beta = scale[0], scale[1]
        for s in range(first, last):
            step = np.int64(headers[4 * s])
            steps, full, shift, width = _shape_fields(np.int64(headers[4 * s + 3]))
            block = WARP * np.int64(headers[4 * s + 2])
            position = np.int64(headers[4 * s + 1])
            count = 1 if s < segments else min(WARP >> shift, positions - position)
            lanes = count << shift
            groups = (lanes + WORD_LANES - 1) // WORD_LANES
            _sum_lanes(
                panel, sums, width, groups, step, steps, full, block, x_row, deltas, bases, values, table, x
            )
            for _ in range(shift):
                lanes >>= 1
                add_neighbours(panel, sums, lanes)
            if s < segments:
                copy_row(panel, sums, at(partials, position * panel))
            elif beta == 0 and done == 0:
                for row in range(count):
                    mine = position + row if is_null(rows) else np.int64(rows[position + row])
                    scale_row(panel, at(sums, row * panel), alpha, at(y, mine * y_row))
                    later = position + count + row
                    if later < positions:
                        mine = later if is_null(rows) else np.int64(rows[later])
                        _expect_row(panel, at(y, mine * y_row))
            else:
                for row in range(count):
                    mine = position + row if is_null(rows) else np.int64(rows[position + row])
                    update_row(panel, at(sums, row * panel), alpha, beta, done, at(y, mine * y_row))

    return _multiply_panel


@functools.cache
def product_of_panel(panel: int, values: Any, table: Any, index: Any, x: Any, total: Any) -> SharedFunction:
    """Compile the product by a panel for these types, as `product_of_slices` does that by a vector."""
    arguments = of_plan(values, table, index) | {"counts": np.int64, "done": int}
    return SharedFunction(_function_of(panel), arguments, total, x)
