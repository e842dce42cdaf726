"""Emits the steps of a slice for a CPU as LLVM instructions: 32 sums beside each other, in vector registers.

Numba's loop vectoriser would keep the 32 sums in memory and decode slot by slot, so the steps of a slice are
emitted as LLVM instructions here: the sums stay in registers over all steps; deltas are read in words of 64
bits, because a load for each costs more than shifts; x is gathered by scalar loads, because the gathers of
x86 processors are no faster and often slower; values are read, widened and multiplied as vectors. Nothing
names an instruction set: LLVM makes AVX-512, AVX2, SSE2 or NEON of it.

Complex sums are 32 real parts and 32 imaginary ones. Complex numbers are read from memory in pieces of 16
bytes, so arranged that one shuffle of two vectors gives all real parts and another one all imaginary parts.

For several columns of X, `RowEmitter` has a vector for a lane and its row of X instead, in which the parts of
complex numbers take turns.

Numba's disk cache watches only the file of the outermost function: after a change here or in
`dasp.runtime.cpu.emitter` it has to be cleared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dasp.formats.plan import WARP
from dasp.runtime.cpu.emitter import (
    FIRST_LEVEL,
    HALVES,
    I32,
    I64,
    SECOND_LEVEL,
    as_floats,
    bytes_of,
    emit_loop,
    multiply_add,
    prefetch_run,
)

Dtype = np.dtype[Any]

WORD_LANES = 8
"""Lanes whose deltas, at 8 bits, fill a word of 64."""

VECTOR_BYTES = 32
"""Bytes of a vector of sums. Eight of them leave half of AVX2's registers free, and building one from
scalars takes fewer shuffles than building one of 64 bytes."""

AHEAD = 32
"""Steps by which values and deltas are asked for before they are read. Hardware prefetchers stop at the
end of a page, which is 16 steps of float64.

Values and deltas are brought to the second level: on one core of a Zen 4 a dense matrix of 83 MB takes 6.8
milliseconds without asking, 5.1 asking for the first level, whose places soon run out, and 3.0 so; a matrix
that lies in the cache already takes 1 to 3% longer."""


class StepEmitter:
    """Emits the steps of one slice for arrays of these types.

    Parameters
    ----------
    builder : LLVM's
    bits : int
        Of a delta; 0 if lane l reads the column base + l.
    coded : numba type
        Of what stands for a value: a number or int8 as it is, uint8 for a place in `table`, uint16 and int16
        for the bits of float16 and bfloat16; none if all values are equal.
    real : LLVM type
        Of the sums' parts.
    parts : int
        Of a sum: 1, or 2 of a complex one.
    deltas, bases, values, table, x : LLVM pointers
        To a struct of two where numbers are complex.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        bits: int,
        coded: types.Type,
        real: ir.Type,
        parts: int,
        *pointers: ir.Value,
    ) -> None:
        self.builder, self.bits, self.coded, self.real, self.parts = builder, bits, coded, real, parts
        self.data = dict(zip(("deltas", "bases", "values", "table", "x"), pointers, strict=True))
        size = 64 if real == ir.DoubleType() else 32
        self.lanes = VECTOR_BYTES * 8 // size
        self.vector = ir.VectorType(real, self.lanes)
        suffix = f"v{self.lanes}f{size}"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = builder.module.declare_intrinsic(f"llvm.fmuladd.{suffix}", (), function)

    def zeros(self) -> list[ir.Value]:
        """The 32 sums at the start: all first parts, then all second ones."""
        return [ir.Constant(self.vector, [0.0] * self.lanes)] * (self.parts * WARP // self.lanes)

    def address(self, name: str, place: ir.Value) -> ir.Value:
        """The address of an item of an array; deltas come as bytes, whatever their width."""
        if name == "deltas":
            place = self.builder.mul(place, ir.Constant(I64, self.bits // 8))
        return self.builder.gep(self.data[name], [place])

    def load(self, name: str, place: ir.Value, kind: ir.Type) -> ir.Value:
        """A value of any type at a place of an array."""
        pointer = self.builder.bitcast(self.address(name, place), kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def plus(self, place: ir.Value, count: int) -> ir.Value:
        """The place `count` items further."""
        return self.builder.add(place, ir.Constant(place.type, count)) if count else place

    def loop(
        self, start: ir.Value, end: ir.Value, sums: list[ir.Value], places: tuple[ir.Value, ...], masked: bool
    ) -> list[ir.Value]:
        """Add steps `start` to `end` to the sums."""

        def emit_step(k: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            return self.add_step(k, totals, places, masked)

        return emit_loop(self.builder, start, end, 1, sums, emit_step)

    def add_step(
        self, k: ir.Value, sums: list[ir.Value], places: tuple[ir.Value, ...], masked: bool
    ) -> list[ir.Value]:
        """Add step k of the slice to its sums; `masked` if it may hold pads."""
        builder, (step, first_delta) = self.builder, places
        current = builder.add(step, k)
        base = builder.load(builder.gep(self.data["bases"], [current]))
        base = base if base.type == I64 else builder.zext(base, I64)
        slot = builder.mul(current, ir.Constant(I64, WARP))
        delta = builder.add(first_delta, builder.mul(k, ir.Constant(I64, WARP)))
        totals = list(sums)
        if self.coded != types.none:
            self.prefetch("values", slot, WARP * bytes_of(self.coded))
        if self.bits:
            self.prefetch("deltas", delta, WARP * self.bits // 8)
        for group in range(0, WARP, WORD_LANES):
            if self.bits:
                columns = self.columns(base, self.plus(delta, group), masked)
            for lane in range(group, group + WORD_LANES, self.lanes):
                if self.bits:
                    gathered = self.pick("x", columns[lane - group : lane - group + self.lanes])
                else:
                    gathered = self.run("x", self.plus(base, lane))
                mine = slice(lane // self.lanes, None, WARP // self.lanes)
                terms = multiply_add(
                    builder, self.fma, self.values(self.plus(slot, lane)), gathered, totals[mine]
                )
                if masked:
                    kept = self.is_entry(self.plus(delta, lane), self.lanes)
                    terms = [builder.select(kept, *both) for both in zip(terms, totals[mine], strict=True)]
                totals[mine] = terms
        return totals

    def prefetch(self, name: str, place: ir.Value, count: int) -> None:
        """Ask for the `count` bytes of an array that a step `AHEAD` of this one will read."""
        prefetch_run(self.builder, self.address(name, place), AHEAD * count, count, SECOND_LEVEL)

    def columns(self, base: ir.Value, place: ir.Value, masked: bool) -> list[ir.Value]:
        """The columns of a group of lanes; that of a pad is the base, where x may be read."""
        bits = self.bits
        deltas = ir.VectorType(ir.IntType(bits), WORD_LANES)
        if not masked:
            words = [
                self.load("deltas", self.plus(place, lane), I64) for lane in range(0, WORD_LANES, 64 // bits)
            ]
        else:
            stored = self.load("deltas", place, deltas)
            kept = self.builder.select(
                self.is_entry(place, WORD_LANES), stored, ir.Constant(deltas, [0] * WORD_LANES)
            )
            vector = self.builder.bitcast(kept, ir.VectorType(I64, WORD_LANES * bits // 64))
            words = [
                self.builder.extract_element(vector, ir.Constant(I32, word))
                for word in range(WORD_LANES * bits // 64)
            ]
        return [self.builder.add(base, delta) for word in words for delta in self.split(word, bits)]

    def split(self, word: ir.Value, bits: int) -> list[ir.Value]:
        """The numbers of so many bits that a word of 64 holds."""
        parts = []
        for low in range(0, 64, bits):
            part = self.builder.lshr(word, ir.Constant(I64, low)) if low else word
            last = low + bits == 64
            parts.append(part if last else self.builder.and_(part, ir.Constant(I64, (1 << bits) - 1)))
        return parts

    def is_entry(self, place: ir.Value, count: int) -> ir.Value:
        """The mask of the slots among `count` that hold an entry: a bit of their deltas is not set."""
        bits = self.bits
        deltas = ir.VectorType(ir.IntType(bits), count)
        pads = ir.Constant(deltas, [(1 << bits) - 1] * count)
        return self.builder.icmp_unsigned("!=", self.load("deltas", place, deltas), pads)

    def pick(self, name: str, places: list[ir.Value]) -> list[ir.Value]:
        """The parts of an array's numbers at these places, a vector for each part."""
        builder, kind = self.builder, self.data[name].type.pointee
        if not isinstance(kind, ir.BaseStructType):
            picked = ir.Constant(ir.VectorType(kind, len(places)), ir.Undefined)
            for lane, place in enumerate(places):
                item = builder.load(builder.gep(self.data[name], [place]))
                picked = builder.insert_element(picked, item, ir.Constant(I32, lane))
            return [self.widen(picked)]
        pair = ir.VectorType(kind.elements[0], 2)
        pieces = [self.load(name, place, pair) for place in places]
        if kind.elements[0] == ir.FloatType():
            pieces = [self.join(*pieces[lane : lane + 2]) for lane in range(0, len(pieces), 2)]
        return self.separate_parts(pieces)

    def run(self, name: str, place: ir.Value) -> list[ir.Value]:
        """The parts of `lanes` numbers of an array that follow each other."""
        kind = self.data[name].type.pointee
        if not isinstance(kind, ir.BaseStructType):
            return [self.widen(self.load(name, place, ir.VectorType(kind, self.lanes)))]
        numbers = 2 if kind.elements[0] == ir.FloatType() else 1  # in a piece
        piece = ir.VectorType(kind.elements[0], 2 * numbers)
        return self.separate_parts(
            [self.load(name, self.plus(place, lane), piece) for lane in range(0, self.lanes, numbers)]
        )

    def join(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Two vectors, one behind the other."""
        every = ir.Constant(ir.VectorType(I32, 2 * one.type.count), list(range(2 * one.type.count)))
        return self.builder.shuffle_vector(one, other, every)

    def separate_parts(self, pieces: list[ir.Value]) -> list[ir.Value]:
        """The real and the imaginary parts of the complex numbers in pieces of 16 bytes, in their order."""
        if len(pieces) == 2:  # four complex64, to be widened
            both = self.join(*pieces)
            masks = [[first, first + 2, first + 4, first + 6] for first in (0, 1)]
            return [self.widen(self.shuffle(both, both, mask)) for mask in masks]
        one, other = self.join(pieces[0], pieces[2]), self.join(pieces[1], pieces[3])
        count, half = one.type.count, pieces[0].type.count
        parts = []
        for first in (0, 1):
            mask = [
                vector + piece + number
                for piece in (0, half)
                for vector in (0, count)
                for number in range(first, half, 2)
            ]
            parts.append(self.widen(self.shuffle(one, other, mask)))
        return parts

    def shuffle(self, one: ir.Value, other: ir.Value, mask: list[int]) -> ir.Value:
        """The items of two vectors that a mask names."""
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, len(mask)), mask))

    def values(self, slot: ir.Value) -> list[ir.Value]:
        """The parts of the values of `lanes` slots, decoded by the type of what is stored."""
        builder = self.builder
        if self.coded == types.none:
            return self.pick("table", [ir.Constant(I64, 0)] * self.lanes)
        if self.coded == types.uint8:
            word = ir.IntType(8 * self.lanes)
            codes = builder.zext(self.load("values", slot, word), I64)
            return self.pick("table", self.split(codes, 8)[: self.lanes])
        if self.coded == types.int8:
            stored = self.load("values", slot, ir.VectorType(ir.IntType(8), self.lanes))
            return [builder.sitofp(stored, self.vector)]
        if self.coded in HALVES:
            bits = self.load("values", slot, ir.VectorType(ir.IntType(16), self.lanes))
            return [self.widen(as_floats(builder, self.coded, bits))]
        return self.run("values", slot)

    def widen(self, vector: ir.Value) -> ir.Value:
        """A vector of floats in the type of the sums' parts, which is at least as wide."""
        return vector if vector.type == self.vector else self.builder.fpext(vector, self.vector)


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
        self.size = count_real_bytes(real)
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
            factors = [self.shuffle(part, part, mask) for part in values]
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
        return self.builder.load(self.at(pointer), align=count_real_bytes(self.real))

    def store(self, row: ir.Value, pointer: ir.Value) -> None:
        """Write a row from a pointer on."""
        self.builder.store(row, self.at(pointer), align=count_real_bytes(self.real))

    def repeat(self, number: ir.Value) -> ir.Value:
        """A real number, once for each item of a row."""
        once = self.builder.insert_element(ir.Constant(self.kind, ir.Undefined), number, ir.Constant(I32, 0))
        return self.shuffle(once, [0] * self.kind.count)

    def shuffle(self, row: ir.Value, mask: list[int]) -> ir.Value:
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
            twice = self.shuffle(x, [number // 2 for number in range(count)])
            return self.fma(builder.select(is_real, *factors), twice, before)
        if len(factors) == 2:
            across = self.shuffle(x, [number ^ 1 for number in range(count)])
            before = self.fma(self.negate_first(factors[1]), across, before)
        return self.fma(factors[0], x, before)

    def fma(self, *terms: ir.Value) -> ir.Value:
        """The product of two rows and the sum with a third."""
        name = f"llvm.fmuladd.v{self.kind.count}f{8 * count_real_bytes(self.real)}"
        function = ir.FunctionType(self.kind, [self.kind] * 3)
        return self.builder.call(self.builder.module.declare_intrinsic(name, (), function), terms)

    def negate_first(self, numbers: ir.Value) -> ir.Value:
        """A row of numbers, the first part of each with the other sign."""
        size = 8 * count_real_bytes(self.real)
        words = ir.VectorType(ir.IntType(size), numbers.type.count)
        signs = ir.Constant(words, [1 << size - 1, 0] * (words.count // 2))
        return self.builder.bitcast(
            self.builder.xor(self.builder.bitcast(numbers, words), signs), numbers.type
        )

    def scale(self, factor: ir.Value, row: ir.Value) -> ir.Value:
        """A factor times a row, by the rule of `emitter.scale_number`."""
        builder, count = self.builder, self.kind.count
        if self.parts == 1:
            return builder.fmul(self.repeat(factor), row)
        real, imaginary = cgutils.unpack_tuple(builder, factor, 2)
        plain = builder.fmul(self.repeat(real), row)
        crossed = builder.fmul(self.repeat(imaginary), self.shuffle(row, [item ^ 1 for item in range(count)]))
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
        return builder.icmp_signed("<", own, self.shuffle(once, [0] * places.count))


def count_real_bytes(real: ir.Type) -> int:
    """Return the bytes of a float or a double."""
    return 8 if real == ir.DoubleType() else 4


def of_plan(values: Dtype | None, table: Dtype, index: Dtype) -> dict[str, Any]:
    """Return the types of a plan's arrays, by the names that products have for them."""
    pattern = {"headers": np.uint32, "bases": index, "deltas": np.uint8}
    return pattern | {"values": values, "table": table, "rows": index}
