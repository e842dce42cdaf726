"""The product of slices on a CPU as LLVM instructions: 32 sums beside each other, in vector registers.

Numba's loop vectoriser would keep the 32 sums in memory and decode slot by slot, so the steps of a slice are
emitted as LLVM instructions here: the sums stay in registers over all steps; deltas are read in words of 64
bits, because a load for each costs more than shifts; x is gathered by scalar loads, because the gathers of
x86 processors are no faster and often slower; values are read, widened and multiplied as vectors. Nothing
names an instruction set: LLVM makes AVX-512, AVX2, SSE2 or NEON of it.

Complex sums are 32 real parts and 32 imaginary ones. Complex numbers are read from memory in pieces of 16
bytes, so arranged that one shuffle of two vectors gives all real parts and another one all imaginary parts.

Numba's disk cache watches only the file of the outermost function: whoever changes
`dasp.runtime.cpu.emitter` clears it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from dasp.formats.plan import WARP
from dasp.formats.sell.pattern import BITS_8, BITS_16, NONE, shape_fields
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import (
    HALVES,
    I32,
    I64,
    as_floats,
    bytes_of,
    is_null,
    multiply_add,
    prefetch_run,
    scaled,
    scaled_parts,
)
from dasp.runtime.cpu.job import SharedFunction

intrinsic: Any = _intrinsic
_shape_fields = jit()(shape_fields)

WORD_LANES = 8
"""Lanes whose deltas, at 8 bits, fill a word of 64."""

VECTOR_BYTES = 32
"""Bytes of a vector of sums. Eight of them leave half of AVX2's registers free, and building one from
scalars takes fewer shuffles than building one of 64 bytes."""

AHEAD = 32
"""Steps by which values and deltas are asked for before they are read. Hardware prefetchers stop at the
end of a page, which is 16 steps of float64."""

FIRST_LEVEL, SECOND_LEVEL = 3, 2
"""LLVM's numbers for caches. A product by a vector has values and deltas brought to the second level: on one
core of a Zen 4 a dense matrix of 83 MB takes 6.8 milliseconds without asking, 5.1 asking for the first level,
whose places soon run out, and 3.0 so; what lies in the cache already takes 1 to 3% longer."""


class Emitter:
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
        self, builder: ir.IRBuilder, bits: int, coded: Any, real: ir.Type, parts: int, *pointers: ir.Value
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
        """Where an item of an array lies; deltas come as bytes, whatever their width."""
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
        """Add steps `start` to `end`; sums are carried from one to the next in phi nodes."""
        builder, before = self.builder, self.builder.block
        head, body, after = (
            builder.append_basic_block(f"steps.{name}") for name in ("head", "body", "after")
        )
        builder.branch(head)
        builder.position_at_end(head)
        k, *totals = carried = [builder.phi(value.type) for value in (start, *sums)]
        for phi, value in zip(carried, (start, *sums), strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", k, end), body, after)
        builder.position_at_end(body)
        ends = [self.plus(k, 1), *self.add_step(k, totals, places, masked)]
        for phi, value in zip(carried, ends, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return totals

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
        """Which of `count` slots hold an entry: those whose deltas have a bit that is not set."""
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
            return [self.widened(picked)]
        pair = ir.VectorType(kind.elements[0], 2)
        pieces = [self.load(name, place, pair) for place in places]
        if kind.elements[0] == ir.FloatType():
            pieces = [self.joined(*pieces[lane : lane + 2]) for lane in range(0, len(pieces), 2)]
        return self.parted(pieces)

    def run(self, name: str, place: ir.Value) -> list[ir.Value]:
        """The same of `lanes` numbers that follow each other."""
        kind = self.data[name].type.pointee
        if not isinstance(kind, ir.BaseStructType):
            return [self.widened(self.load(name, place, ir.VectorType(kind, self.lanes)))]
        numbers = 2 if kind.elements[0] == ir.FloatType() else 1  # in a piece
        piece = ir.VectorType(kind.elements[0], 2 * numbers)
        return self.parted(
            [self.load(name, self.plus(place, lane), piece) for lane in range(0, self.lanes, numbers)]
        )

    def joined(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Two vectors, one behind the other."""
        every = ir.Constant(ir.VectorType(I32, 2 * one.type.count), list(range(2 * one.type.count)))
        return self.builder.shuffle_vector(one, other, every)

    def parted(self, pieces: list[ir.Value]) -> list[ir.Value]:
        """The real and the imaginary parts of the complex numbers in pieces of 16 bytes, in their order."""
        if len(pieces) == 2:  # four complex64, to be widened
            both = self.joined(*pieces)
            masks = [[first, first + 2, first + 4, first + 6] for first in (0, 1)]
            return [self.widened(self.shuffled(both, both, mask)) for mask in masks]
        one, other = self.joined(pieces[0], pieces[2]), self.joined(pieces[1], pieces[3])
        count, half = one.type.count, pieces[0].type.count
        parts = []
        for first in (0, 1):
            mask = [
                vector + piece + number
                for piece in (0, half)
                for vector in (0, count)
                for number in range(first, half, 2)
            ]
            parts.append(self.widened(self.shuffled(one, other, mask)))
        return parts

    def shuffled(self, one: ir.Value, other: ir.Value, mask: list[int]) -> ir.Value:
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
            return [self.widened(as_floats(builder, self.coded, bits))]
        return self.run("values", slot)

    def widened(self, vector: ir.Value) -> ir.Value:
        """A vector of floats in the type of the sums' parts, which is at least as wide."""
        return vector if vector.type == self.vector else self.builder.fpext(vector, self.vector)


@intrinsic(prefer_literal=True)
def _sum_slice(
    typing_context, bits, sums, scale, step, steps, full, first_delta, deltas, bases, values, table, x
):
    """Set `sums` to what each of the 32 lanes adds up over a slice.

    Parameters
    ----------
    bits : constant
        Of a delta; 0 if lane l reads the column base + l.
    sums : pointer to 32 numbers, or to the real parts of 32 and then to their imaginary parts
    scale : pointer to numbers of the type of the sums
    step, steps, full : int64
        First step of the slice, its steps, and those of them, the leading ones, that have no pads.
    first_delta : int64
        Of the slice.
    deltas, bases, values, table, x : pointers
        `values` is void where all are equal, uint8 for places in `table`, uint16 and int16 for the bits of
        float16 and bfloat16.
    """
    width = int(bits.literal_value)
    coded = types.none if values == types.voidptr else values.dtype
    parts = _parts(scale)

    def generate(context, builder, signature, arguments):
        _, sums, _, step, steps, full, first_delta, *pointers = arguments
        emitter = Emitter(builder, width, coded, sums.type.pointee, parts, *pointers)
        end = full if width else steps
        totals = emitter.loop(ir.Constant(I64, 0), end, emitter.zeros(), (step, first_delta), False)
        if width:
            totals = emitter.loop(full, steps, totals, (step, first_delta), True)
        _store_all(builder, sums, totals)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(
        bits, sums, scale, whole, whole, whole, whole, deltas, bases, values, table, x
    ), generate


def _parts(pointer: Any) -> int:
    """Return the parts of the numbers that a pointer of Numba's points to."""
    return 2 if isinstance(pointer.dtype, types.Complex) else 1


def _real(pointer: Any) -> Any:
    """Return the type of these parts."""
    return getattr(pointer.dtype, "underlying_float", pointer.dtype)


def _store_all(builder: ir.IRBuilder, place: ir.Value, vectors: list[ir.Value]) -> None:
    """Store vectors one after another."""
    size = 8 if vectors[0].type.element == ir.DoubleType() else 4
    for number, vector in enumerate(vectors):
        address = builder.gep(place, [ir.Constant(I64, number * vector.type.count)])
        builder.store(vector, builder.bitcast(address, vector.type.as_pointer()), align=size)


@intrinsic
def _place_for_sums(typing_context, scale):
    """Return a pointer to the parts of 32 numbers on the stack."""
    real, count = _real(scale), WARP * _parts(scale)

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, context.get_data_type(real), size=count)
        place.align = 64
        return place

    return types.CPointer(real)(scale), generate


@intrinsic
def _fold(typing_context, sums, scale, shift):
    """Add every two neighbours of the 32 sums, `shift` times over, so that those of rows come first."""
    firsts = [WARP * part for part in range(_parts(scale))]

    def generate(context, builder, signature, arguments):
        place, _, shift = arguments
        size = 8 if place.type.pointee == ir.DoubleType() else 4
        done = builder.append_basic_block("fold.done")
        for level in range(5):
            add = builder.append_basic_block("fold.add")
            builder.cbranch(builder.icmp_signed(">", shift, ir.Constant(shift.type, level)), add, done)
            builder.position_at_end(add)
            for part in firsts:
                _fold_once(builder, builder.gep(place, [ir.Constant(I64, part)]), WARP >> level, size)
        builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(sums, scale, types.int64), generate


def _fold_once(builder: ir.IRBuilder, place: ir.Value, count: int, size: int) -> None:
    """Add every two neighbours of `count` sums."""
    pairs = ir.VectorType(place.type.pointee, count)
    both = builder.load(builder.bitcast(place, pairs.as_pointer()), align=size)
    even, odd = (
        builder.shuffle_vector(
            both,
            ir.Constant(pairs, ir.Undefined),
            ir.Constant(ir.VectorType(I32, count // 2), list(range(first, count, 2))),
        )
        for first in (0, 1)
    )
    _store_all(builder, place, [builder.fadd(even, odd)])


@intrinsic
def _total(typing_context, sums, scale, row):
    """Return the sum of a row of a slice, after `_fold`."""
    parts = _parts(scale)

    def generate(context, builder, signature, arguments):
        place, _, row = arguments
        found = [
            builder.load(builder.gep(place, [builder.add(row, ir.Constant(I64, WARP * part))]))
            for part in range(parts)
        ]
        return found[0] if parts == 1 else cgutils.pack_struct(builder, found)

    return scale.dtype(sums, scale, types.int64), generate


@intrinsic
def _store_whole(typing_context, sums, alpha, rows, position, y):
    """Write alpha times the sums of a slice of 32 rows, which begins at a position of `rows`, to y."""
    parts = _parts(y)

    def generate(context, builder, signature, arguments):
        sums, alpha, rows, position, y = arguments
        totals = _scaled_sums(builder, sums, alpha, parts)
        lanes = totals[0].type.count // parts
        real = sums.type.pointee.as_pointer()
        with builder.if_else(cgutils.is_null(builder, rows)) as (in_order, permuted):
            with in_order:
                _store_all(builder, builder.bitcast(builder.gep(y, [position]), real), totals)
            with permuted:
                for row in range(WARP):
                    mine = builder.load(builder.gep(rows, [builder.add(position, ir.Constant(I64, row))]))
                    mine = mine if mine.type == I64 else builder.zext(mine, I64)
                    place = builder.bitcast(builder.gep(y, [mine]), real)
                    for part in range(parts):
                        lane = ir.Constant(I32, parts * (row % lanes) + part)
                        total = builder.extract_element(totals[row // lanes], lane)
                        builder.store(total, builder.gep(place, [ir.Constant(I64, part)]))
        return context.get_dummy_value()

    return types.void(sums, y.dtype, rows, types.int64, y), generate


def _scaled_sums(builder: ir.IRBuilder, sums: ir.Value, alpha: ir.Value, parts: int) -> list[ir.Value]:
    """Return alpha times the 32 sums as vectors, both parts of a complex one beside each other."""
    real = sums.type.pointee
    lanes = 8 * VECTOR_BYTES // (64 if real == ir.DoubleType() else 32)
    vector = ir.VectorType(real, lanes)

    def load(lane: int) -> ir.Value:
        place = builder.gep(sums, [ir.Constant(I64, lane)])
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=VECTOR_BYTES)

    def spread(number: ir.Value) -> ir.Value:
        once = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(I32, 0))
        return builder.shuffle_vector(once, once, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))

    if parts == 1:
        scale = spread(alpha)
        return [builder.fmul(scale, load(lane)) for lane in range(0, WARP, lanes)]
    factor = cgutils.unpack_tuple(builder, alpha, 2)
    by_turns = ir.Constant(
        ir.VectorType(I32, 2 * lanes), [lane + part for lane in range(lanes) for part in (0, lanes)]
    )
    return [
        builder.shuffle_vector(
            *scaled_parts(builder, factor, [load(lane), load(WARP + lane)], spread), by_turns
        )
        for lane in range(0, WARP, lanes)
    ]


def _multiply_slices(
    first, last, headers, bases, deltas, values, table, rows, positions, segments, partials, x, y, scale
):
    """Multiply slices `first` to `last`.

    Every array comes as a pointer; `rows` is null if position p is row p, and `scale` holds alpha and beta.
    """
    sums = _place_for_sums(scale)
    alpha, beta = scale[0], scale[1]
    for s in range(first, last):
        step = np.int64(headers[4 * s])
        steps, full, shift, width = _shape_fields(np.int64(headers[4 * s + 3]))
        block = WARP * np.int64(headers[4 * s + 2])
        if width == NONE:
            _sum_slice(0, sums, scale, step, steps, full, block, deltas, bases, values, table, x)
        elif width == BITS_8:
            _sum_slice(8, sums, scale, step, steps, full, block, deltas, bases, values, table, x)
        elif width == BITS_16:
            _sum_slice(16, sums, scale, step, steps, full, block >> 1, deltas, bases, values, table, x)
        else:
            _sum_slice(32, sums, scale, step, steps, full, block >> 2, deltas, bases, values, table, x)
        _fold(sums, scale, shift)
        position = np.int64(headers[4 * s + 1])
        count = min(WARP >> shift, positions - position)
        if s < segments:
            partials[position] = _total(sums, scale, 0)
        elif count == WARP and beta == 0:
            _store_whole(sums, alpha, rows, position, y)
        else:
            for row in range(count):
                mine = position + row if is_null(rows) else np.int64(rows[position + row])
                total = scaled(alpha, _total(sums, scale, row))
                y[mine] = total if beta == 0 else total + scaled(beta, y[mine])


@functools.cache
def product_of_slices(values: Any, table: Any, index: Any, x: Any, total: Any) -> SharedFunction:
    """Compile the product for these types, or find it on disk.

    Parameters
    ----------
    values : dtype or None
        Of what stands for a value, int16 for the bits of bfloat16; None if all are equal.
    table, index, x, total : dtype
        The matrix's, or float32 of one in half precision; of rows and columns; of x; of sums and y.
    """
    arguments = of_plan(values, table, index) | {"positions": int, "segments": int}
    return SharedFunction(_multiply_slices, arguments, total, x)


def of_plan(values: Any, table: Any, index: Any) -> dict[str, Any]:
    """Return the types of a plan's arrays, by the names that products have for them."""
    pattern = {"headers": np.uint32, "bases": index, "deltas": np.uint8}
    return pattern | {"values": values, "table": table, "rows": index}
