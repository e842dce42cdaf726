"""Emits the product of a slice by a few columns for a CPU: rows of X, and of sums, in vector registers.

A row of complex numbers is one vector in which real and imaginary parts take turns.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.emitter import WORD_LANES, StepEmitter
from dasp.runtime.cpu.emitter import FIRST_LEVEL, I32, I64, bytes_of, prefetch_run

PLAN_AHEAD = 64
"""Steps by which a group of lanes asks for what it will read of the plan: it reads less than a line of every
step, and hardware prefetchers follow no such steps."""

NEAR_BITS = 8
"""Bits of a delta up to which neighbouring lanes are taken to read neighbouring rows of X."""


class RowEmitter(StepEmitter):
    """Emits the sums that some lanes of a group have over a slice in a block of columns.

    Parameters
    ----------
    bits, coded, real, parts, *pointers
        See `StepEmitter`.
    columns_at_once : int
        Columns of the block.
    mine : range
        Lanes of the group of `WORD_LANES`.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        bits: int,
        coded: types.Type,
        real: ir.Type,
        parts: int,
        columns_at_once: int,
        mine: Iterable[int],
        *pointers: ir.Value,
    ) -> None:
        super().__init__(builder, bits, coded, real, parts, *pointers)
        self.mine, self.row = list(mine), ir.VectorType(real, columns_at_once * parts)
        self.size = bytes_of_real(real)
        number = real if parts == 1 else ir.LiteralStructType([real] * 2)
        self.rows = RowBuilder(builder, number, columns_at_once)
        # Numbers of a real X stand for two parts of a complex sum each.
        whole = parts == 1 or isinstance(self.data["x"].type.pointee, ir.BaseStructType)
        self.of_x = self.row if whole else ir.VectorType(real, columns_at_once)

    def zeros(self) -> list[ir.Value]:
        """The lanes' sums at the start."""
        return [ir.Constant(self.row, [0.0] * self.row.count)] * len(self.mine)

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
            mask = [lane % self.lanes] * self.row.count
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


class RowBuilder:
    """Emits loads and stores of whole rows of sums, at pointers to numbers of their type."""

    def __init__(self, builder: ir.IRBuilder, number: ir.Type, columns: int) -> None:
        self.builder = builder
        self.parts = 2 if isinstance(number, ir.BaseStructType) else 1
        self.real = number.elements[0] if self.parts == 2 else number
        self.kind = ir.VectorType(self.real, columns * self.parts)

    def at(self, pointer: ir.Value) -> ir.Value:
        """A pointer to a row."""
        return self.builder.bitcast(pointer, self.kind.as_pointer())

    def load(self, pointer: ir.Value) -> ir.Value:
        """The row that begins at a pointer."""
        return self.builder.load(self.at(pointer), align=bytes_of_real(self.real))

    def store(self, row: ir.Value, pointer: ir.Value) -> None:
        """Write a row from a pointer on."""
        self.builder.store(row, self.at(pointer), align=bytes_of_real(self.real))

    def repeat(self, number: ir.Value) -> ir.Value:
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
            return builder.fmul(self.repeat(factor), row)
        real, imaginary = cgutils.unpack_tuple(builder, factor, 2)
        plain = builder.fmul(self.repeat(real), row)
        crossed = builder.fmul(
            self.repeat(imaginary), self.shuffled(row, [item ^ 1 for item in range(count)])
        )
        is_real = ir.Constant(ir.VectorType(ir.IntType(1), count), [1, 0] * (count // 2))
        whole = builder.fadd(plain, builder.select(is_real, builder.fneg(crossed), crossed))
        none = builder.fcmp_ordered("==", imaginary, ir.Constant(self.real, 0.0))
        return builder.select(none, plain, whole)

    def is_zero(self, number: ir.Value) -> ir.Value:
        """True if a number is 0."""
        parts = [number] if self.parts == 1 else cgutils.unpack_tuple(self.builder, number, 2)
        zeros = [self.builder.fcmp_ordered("==", part, ir.Constant(self.real, 0.0)) for part in parts]
        return functools.reduce(self.builder.and_, zeros)

    def is_below(self, column: ir.Value) -> ir.Value:
        """The mask of the items of a row that belong to columns below this one."""
        builder, places = self.builder, ir.VectorType(I64, self.kind.count)
        once = builder.insert_element(ir.Constant(places, ir.Undefined), column, ir.Constant(I32, 0))
        own = ir.Constant(places, [item // self.parts for item in range(places.count)])
        return builder.icmp_signed("<", own, self.shuffled(once, [0] * places.count))


def bytes_of_real(real: ir.Type) -> int:
    """Return the bytes of a float or a double."""
    return 8 if real == ir.DoubleType() else 4
