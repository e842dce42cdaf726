"""The product of slices by several columns on a CPU: rows of X, and of sums, in vector registers.

In C order an entry meets a run of neighbouring numbers, a row of X. So a few lanes of a slice walk its steps
together, for a panel of columns at a time, whose sums stay in registers; what they pass of the plan lies in
the nearest cache for the lanes that follow. What a panel leaves of the columns is a smaller panel, which ends
where the columns end and may begin among those that are done: those it does not store.

Sums are added in the order of the product by a vector, so that a column's bits are those of that product.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from dasp._compile import jit
from dasp.backends.cpu.emitter import I32, I64, LINE, WORD_LANES, Emitter, is_null
from dasp.backends.cpu.team import SharedFunction
from dasp.formats.array import WARP
from dasp.formats.sliced.pattern import shape_fields

intrinsic: Any = _intrinsic
_shape_fields = jit()(shape_fields)

PANELS = 2, 4, 8, 16, 32
"""Columns that code is compiled for; 32 float64 are eight registers of AVX2."""

MOST = PANELS[-1]

SUMS = 128
"""float64 in vector registers at a time: half of those of AVX-512."""

NEAR_BITS = 8
"""Bits of a delta up to which neighbouring slices are taken to read neighbouring rows of X."""

WIDTHS = 0, 8, 16, 32
"""Bits of a delta, by the `Width` of a slice."""


class _RowEmitter(Emitter):
    """Emits what some of a group's lanes add up over a slice in a panel of columns.

    Parameters
    ----------
    panel : int
        Columns.
    mine : range
        Lanes of the group of `WORD_LANES`.
    """

    def __init__(
        self, builder: ir.IRBuilder, bits: int, coded: Any, panel: int, mine: range, *pointers: ir.Value
    ) -> None:
        super().__init__(builder, bits, coded, pointers[-1].type.pointee, 1, *pointers)
        self.mine, self.panel = mine, ir.VectorType(self.real, panel)
        self.size = 8 if self.real == ir.DoubleType() else 4
        function = ir.FunctionType(self.panel, [self.panel] * 3)
        name = f"llvm.fmuladd.v{panel}f{8 * self.size}"
        self.add = builder.module.declare_intrinsic(name, (), function)

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
        totals = []
        for lane, before in zip(self.mine, sums, strict=True):
            if lane % self.lanes == 0 or lane == self.mine[0]:
                (values,) = self.values(self.plus(slot, lane // self.lanes * self.lanes))
            weight = self.spread(values, lane % self.lanes)
            x = builder.gep(self.data["x"], [builder.mul(columns[lane], row)])
            numbers = builder.load(builder.bitcast(x, self.panel.as_pointer()), align=self.size)
            total = builder.call(self.add, [weight, numbers, before])
            if kept is not None:
                entry = builder.extract_element(kept, ir.Constant(I32, lane))
                total = builder.select(entry, total, before)
            totals.append(total)
            if self.bits <= NEAR_BITS:
                self.prefetch_row(x, row)
        return totals

    def prefetch_row(self, x: ir.Value, row: ir.Value) -> None:
        """Ask for the numbers that the same lane of the next slice will need, if its columns follow on."""
        ahead = self.builder.gep(x, [self.builder.mul(row, ir.Constant(I64, WARP))])
        for line in range(0, self.panel.count * self.size, LINE):
            self.prefetch_at(self.builder.gep(ahead, [ir.Constant(I64, line // self.size)]))

    def prefetch_at(self, address: ir.Value) -> None:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        address = self.builder.bitcast(address, byte)
        self.builder.call(function, [address, *(ir.Constant(I32, flag) for flag in (0, 3, 1))])

    def spread(self, values: ir.Value, lane: int) -> ir.Value:
        """One item of a vector, once for each column."""
        mask = ir.Constant(ir.VectorType(I32, self.panel.count), [lane] * self.panel.count)
        return self.builder.shuffle_vector(values, values, mask)


def _switch(builder: ir.IRBuilder, selector: ir.Value, cases: Any, emit: Any) -> None:
    """Emit `emit(case)` for each number that the selector may be, and go on behind them."""
    blocks = [builder.append_basic_block(f"case.{case}") for case in cases]
    after = builder.append_basic_block("cases.after")
    switch = builder.switch(selector, after)
    for case, block in zip(cases, blocks, strict=True):
        switch.add_case(ir.Constant(selector.type, case), block)
        builder.position_at_end(block)
        emit(case)
        builder.branch(after)
    builder.position_at_end(after)


def _size(pointer: ir.Value) -> int:
    return 8 if pointer.type.pointee == ir.DoubleType() else 4


def _panel_at(builder: ir.IRBuilder, place: ir.Value, count: int) -> ir.Value:
    return builder.bitcast(place, ir.VectorType(place.type.pointee, count).as_pointer())


@intrinsic
def _place_for_sums(typing_context, x):  # type: ignore[no-untyped-def]
    """Return a pointer to a panel's sums for 32 lanes, on the stack."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = cgutils.alloca_once(builder, arguments[0].type.pointee, size=WARP * MOST)
        place.align = 64
        return place

    return types.CPointer(x.dtype)(x), generate


@intrinsic
def _at(typing_context, pointer, place):  # type: ignore[no-untyped-def]
    """Return a pointer so many items further."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


@intrinsic
def _sum_lanes(  # type: ignore[no-untyped-def]
    typing_context, sums, panel, width, groups, step, steps, full, block, row, deltas, bases, values, table, x
):
    """Set `sums` to what each lane of the first `groups` of a slice adds up in a panel of columns.

    Parameters
    ----------
    sums : pointer to `panel` numbers for each lane
    panel, width : int64
        One of `PANELS`; the `Width` of the slice.
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
    coded = types.none if values == types.voidptr else values.dtype

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        sums, panel, width, groups, step, steps, full, block, row, *pointers = arguments

        def of_panel(count: int) -> None:
            together = min(WORD_LANES, SUMS * 8 // (count * _size(sums)))

            def of_width(number: int) -> None:
                bits = WIDTHS[number]
                delta = builder.udiv(block, ir.Constant(I64, max(bits // 8, 1)))
                with cgutils.for_range(builder, groups) as loop:
                    group = builder.mul(loop.index, ir.Constant(I64, WORD_LANES))
                    for first in range(0, WORD_LANES, together):
                        mine = range(first, first + together)
                        emitter = _RowEmitter(builder, bits, coded, count, mine, *pointers)
                        places = step, delta, group, row
                        end = full if bits else steps
                        totals = emitter.loop(ir.Constant(I64, 0), end, emitter.zeros(), places, False)
                        if bits:
                            totals = emitter.loop(full, steps, totals, places, True)
                        for lane, total in zip(mine, totals, strict=True):
                            place = builder.mul(emitter.plus(group, lane), ir.Constant(I64, count))
                            to = _panel_at(builder, builder.gep(sums, [place]), count)
                            builder.store(total, to, align=emitter.size)

            _switch(builder, width, range(len(WIDTHS)), of_width)

        _switch(builder, panel, PANELS, of_panel)
        return context.get_dummy_value()

    whole = [types.int64] * 8
    return types.void(sums, *whole, deltas, bases, values, table, x), generate


@intrinsic
def _scale_row(typing_context, sums, panel, alpha, y):  # type: ignore[no-untyped-def]
    """Write alpha times a row's sums to y."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        sums, panel, alpha, y = arguments
        size = _size(sums)

        def emit(count: int) -> None:
            vector = ir.VectorType(alpha.type, count)
            once = builder.insert_element(ir.Constant(vector, ir.Undefined), alpha, ir.Constant(I32, 0))
            factors = builder.shuffle_vector(once, once, ir.Constant(ir.VectorType(I32, count), [0] * count))
            total = builder.load(_panel_at(builder, sums, count), align=size)
            builder.store(builder.fmul(factors, total), _panel_at(builder, y, count), align=size)

        _switch(builder, panel, PANELS, emit)
        return context.get_dummy_value()

    return types.void(sums, types.int64, sums.dtype, y), generate


def _multiply_columns(  # type: ignore[no-untyped-def]
    first, last, headers, bases, deltas, values, table, rows, counts, columns, partials, x, y, scale
):
    """Multiply slices `first` to `last`.

    Every array comes as a pointer. `rows` is null if position p is row p; `counts` holds positions, segments,
    and the numbers from one row to the next of X and of Y; `scale` alpha and beta.
    """
    sums = _place_for_sums(x)
    positions, segments, x_row, y_row = counts[0], counts[1], counts[2], counts[3]
    alpha, beta = scale[0], scale[1]
    for s in range(first, last):
        step = np.int64(headers[4 * s])
        steps, full, shift, width = _shape_fields(np.int64(headers[4 * s + 3]))
        block = WARP * np.int64(headers[4 * s + 2])
        position = np.int64(headers[4 * s + 1])
        count = 1 if s < segments else min(WARP >> shift, positions - position)
        start = 0
        while start < columns:
            panel = 2
            while panel < min(columns - start, MOST):
                panel *= 2
            if panel > columns:
                panel //= 2
            begin = min(start, columns - panel)
            done = start - begin
            start = begin + panel
            at = _at(x, begin)
            lanes = count << shift
            groups = (lanes + WORD_LANES - 1) // WORD_LANES
            _sum_lanes(
                sums, panel, width, groups, step, steps, full, block, x_row, deltas, bases, values, table, at
            )
            for _ in range(shift):
                lanes >>= 1
                for row in range(lanes):
                    for j in range(panel):
                        sums[row * panel + j] = sums[2 * row * panel + j] + sums[(2 * row + 1) * panel + j]
            for row in range(count):
                if s < segments:
                    for j in range(done, panel):
                        partials[position * columns + begin + j] = sums[j]
                    continue
                mine = position + row if is_null(rows) else np.int64(rows[position + row])
                if beta == 0 and done == 0:
                    _scale_row(_at(sums, row * panel), panel, alpha, _at(y, mine * y_row + begin))
                    continue
                for j in range(done, panel):
                    total = alpha * sums[row * panel + j]
                    place = mine * y_row + begin + j
                    y[place] = total if beta == 0 else total + beta * y[place]


@functools.cache
def product_of_columns(values: Any, table: Any, index: Any, real: Any) -> SharedFunction:
    """Compile the product for these types, as `product_of_slices` does that by a vector."""
    arguments = {
        "headers": np.uint32,
        "bases": index,
        "deltas": np.uint8,
        "values": values,
        "table": table,
        "rows": index,
        "counts": np.int64,
        "columns": int,
    }
    return SharedFunction(_multiply_columns, arguments, real)
