"""The product of slices on a CPU as LLVM instructions: 32 sums beside each other, in vector registers.

Numba's loop vectoriser would keep the 32 sums in memory and decode slot by slot, so the steps of a slice are
emitted as LLVM instructions here: the sums stay in registers over all steps; deltas are read in words of 64
bits, because a load for each costs more than shifts; x is gathered by scalar loads, because the gathers of
x86 processors are no faster and often slower; values are read, widened and multiplied as vectors. Nothing
names an instruction set: LLVM makes AVX-512, AVX2, SSE2 or NEON of it.

Intrinsics and the loops around them share this file because Numba's disk cache watches only the file of the
outermost function.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

from dasp._compile import jit
from dasp.backends.cpu.team import SharedFunction
from dasp.formats.array import WARP
from dasp.formats.sliced.pattern import BITS_8, BITS_16, NONE, shape_fields

intrinsic: Any = _intrinsic
_shape_fields = jit()(shape_fields)

WORD_LANES = 8
"""Lanes whose deltas, at 8 bits, fill a word of 64."""

VECTOR_BYTES = 32
"""Bytes of a vector of sums. Eight of them leave half of AVX2's registers free, and building one from
scalars takes fewer shuffles than building one of 64 bytes."""

AHEAD, LINE = 32, 64
"""Steps by which values and deltas are asked for before they are read, and bytes that a cache brings at a
time. Hardware prefetchers stop at the end of a page, which is 16 steps of float64."""

SECOND_LEVEL = 2
"""LLVM's number for the cache they are brought to. On one core of a Zen 4 a dense matrix of 83 MB takes 6.8
milliseconds without asking, 5.1 asking for the first level, whose places soon run out, and 3.0 so; what lies
in the cache already takes 1 to 3% longer."""

I32, I64 = ir.IntType(32), ir.IntType(64)


def _widens_halves() -> bool:
    """Whether code is compiled for this very processor, and it has an instruction that widens float16."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return False
    try:
        features = dict(llvmlite.binding.get_host_cpu_features())
    except RuntimeError:
        return False
    return bool(features.get("f16c") or features.get("fp-armv8"))


class _Emitter:
    """Emits the steps of one slice for arrays of these types.

    Parameters
    ----------
    builder : LLVM's
    bits : int
        Of a delta; 0 if lane l reads the column base + l.
    coded : numba type
        Of what stands for a value: float32, float64 or int8 as it is, uint8 for a place in `table`,
        uint16 for the bits of a float16; none if all values are equal.
    deltas, bases, values, table, x : LLVM pointers
    """

    def __init__(self, builder: ir.IRBuilder, bits: int, coded: Any, *pointers: ir.Value) -> None:
        self.builder, self.bits, self.coded = builder, bits, coded
        self.data = dict(zip(("deltas", "bases", "values", "table", "x"), pointers, strict=True))
        self.real = self.data["x"].type.pointee
        size = 64 if self.real == ir.DoubleType() else 32
        self.lanes = VECTOR_BYTES * 8 // size
        self.vector = ir.VectorType(self.real, self.lanes)
        suffix = f"v{self.lanes}f{size}"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = builder.module.declare_intrinsic(f"llvm.fmuladd.{suffix}", (), function)

    def zeros(self) -> list[ir.Value]:
        """The 32 sums at the start."""
        return [ir.Constant(self.vector, [0.0] * self.lanes)] * (WARP // self.lanes)

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
        totals: list[ir.Value] = []
        if self.coded != types.none:
            self.prefetch("values", slot, WARP * self.coded.bitwidth // 8)
        if self.bits:
            self.prefetch("deltas", delta, WARP * self.bits // 8)
        for group in range(0, WARP, WORD_LANES):
            if self.bits:
                columns = self.columns(base, self.plus(delta, group), masked)
            for lane in range(group, group + WORD_LANES, self.lanes):
                if self.bits:
                    gathered = self.pick("x", columns[lane - group : lane - group + self.lanes], self.real)
                else:
                    gathered = self.load("x", self.plus(base, lane), self.vector)
                before = sums[len(totals)]
                total = builder.call(self.fma, [self.values(self.plus(slot, lane)), gathered, before])
                if masked:
                    total = builder.select(self.is_entry(self.plus(delta, lane), self.lanes), total, before)
                totals.append(total)
        return totals

    def prefetch(self, name: str, place: ir.Value, count: int) -> None:
        """Ask for the `count` bytes of an array that a step `AHEAD` of this one will read."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        address = self.builder.bitcast(self.address(name, place), byte)
        for line in range(0, count, LINE):
            ahead = self.builder.gep(address, [ir.Constant(I64, AHEAD * count + line)])
            self.builder.call(function, [ahead, *(ir.Constant(I32, flag) for flag in (0, SECOND_LEVEL, 1))])

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

    def pick(self, name: str, places: list[ir.Value], kind: ir.Type) -> ir.Value:
        """The vector of an array's items at these places."""
        picked = ir.Constant(ir.VectorType(kind, len(places)), ir.Undefined)
        for lane, place in enumerate(places):
            item = self.builder.load(self.builder.gep(self.data[name], [place]))
            picked = self.builder.insert_element(picked, item, ir.Constant(I32, lane))
        return picked

    def values(self, slot: ir.Value) -> ir.Value:
        """The values of `lanes` slots, decoded by the type of what is stored, as x has them."""
        builder, kind = self.builder, self.data["table"].type.pointee
        if self.coded == types.none:
            return self.widened(self.pick("table", [ir.Constant(I64, 0)] * self.lanes, kind))
        if self.coded == types.uint8:
            word = ir.IntType(8 * self.lanes)
            codes = builder.zext(self.load("values", slot, word), I64)
            return self.widened(self.pick("table", self.split(codes, 8)[: self.lanes], kind))
        if self.coded == types.int8:
            return builder.sitofp(
                self.load("values", slot, ir.VectorType(ir.IntType(8), self.lanes)), self.vector
            )
        if self.coded == types.uint16:
            return self.widened(self.halves(slot))
        return self.widened(
            self.load("values", slot, ir.VectorType(self.data["values"].type.pointee, self.lanes))
        )

    def halves(self, slot: ir.Value) -> ir.Value:
        """The float16 of `lanes` slots as float32.

        LLVM turns its own widening into a call of a function that need not exist where a processor has no
        such instruction; so there the exponent is shifted into place, and 2^112 makes up for its bias.
        """
        builder = self.builder
        if _widens_halves():
            half = self.load("values", slot, ir.VectorType(ir.HalfType(), self.lanes))
            return builder.fpext(half, ir.VectorType(ir.FloatType(), self.lanes))
        words, floats = ir.VectorType(I32, self.lanes), ir.VectorType(ir.FloatType(), self.lanes)

        def each(number: int) -> ir.Constant:
            return ir.Constant(words, [number] * self.lanes)

        bits = builder.zext(self.load("values", slot, ir.VectorType(ir.IntType(16), self.lanes)), words)
        size = builder.shl(builder.and_(bits, each(0x7FFF)), each(13))
        scaled = builder.fmul(builder.bitcast(size, floats), ir.Constant(floats, [2.0**112] * self.lanes))
        special = builder.icmp_unsigned(">=", size, each(0x7C00 << 13))
        whole = builder.or_(
            builder.bitcast(scaled, words), builder.select(special, each(0x7F800000), each(0))
        )
        sign = builder.shl(builder.and_(bits, each(0x8000)), each(16))
        return builder.bitcast(builder.or_(whole, sign), floats)

    def widened(self, vector: ir.Value) -> ir.Value:
        """A vector of floats in the type of x, which is at least as wide."""
        return vector if vector.type == self.vector else self.builder.fpext(vector, self.vector)


@intrinsic(prefer_literal=True)
def _sum_slice(  # type: ignore[no-untyped-def]
    typing_context, bits, sums, step, steps, full, first_delta, deltas, bases, values, table, x
):
    """Set `sums` to what each of the 32 lanes adds up over a slice.

    Parameters
    ----------
    bits : constant
        Of a delta; 0 if lane l reads the column base + l.
    sums : pointer to 32 numbers of the type of x
    step, steps, full : int64
        First step of the slice, its steps, and those of them, the leading ones, that have no pads.
    first_delta : int64
        Of the slice.
    deltas, bases, values, table, x : pointers
        `values` is void where all are equal, uint8 for places in `table`, uint16 for the bits of float16.
    """
    width = int(bits.literal_value)
    coded = types.none if values == types.voidptr else values.dtype

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, sums, step, steps, full, first_delta, *pointers = arguments
        emitter = _Emitter(builder, width, coded, *pointers)
        end = full if width else steps
        totals = emitter.loop(ir.Constant(I64, 0), end, emitter.zeros(), (step, first_delta), False)
        if width:
            totals = emitter.loop(full, steps, totals, (step, first_delta), True)
        _store_all(builder, sums, totals)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(bits, sums, whole, whole, whole, whole, deltas, bases, values, table, x), generate


def _store_all(builder: ir.IRBuilder, place: ir.Value, vectors: list[ir.Value]) -> None:
    """Store vectors one after another."""
    size = 8 if vectors[0].type.element == ir.DoubleType() else 4
    for number, vector in enumerate(vectors):
        address = builder.gep(place, [ir.Constant(I64, number * vector.type.count)])
        builder.store(vector, builder.bitcast(address, vector.type.as_pointer()), align=size)


@intrinsic
def _place_for_sums(typing_context, x):  # type: ignore[no-untyped-def]
    """Return a pointer to 32 numbers on the stack."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = cgutils.alloca_once(builder, arguments[0].type.pointee, size=WARP)
        place.align = 64
        return place

    return types.CPointer(x.dtype)(x), generate


@intrinsic
def _fold(typing_context, sums, shift):  # type: ignore[no-untyped-def]
    """Add every two neighbours of the 32 sums, `shift` times over, so that those of rows come first."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place, shift = arguments
        real = place.type.pointee
        size = 8 if real == ir.DoubleType() else 4
        done = builder.append_basic_block("fold.done")
        for level in range(5):
            add = builder.append_basic_block("fold.add")
            builder.cbranch(builder.icmp_signed(">", shift, ir.Constant(shift.type, level)), add, done)
            builder.position_at_end(add)
            count = WARP >> level
            pairs = ir.VectorType(real, count)
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
        builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(sums, types.int64), generate


@intrinsic
def _store_whole(typing_context, sums, alpha, rows, position, y):  # type: ignore[no-untyped-def]
    """Write alpha times the sums of a slice of 32 rows, which begins at a position of `rows`, to y."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        sums, alpha, rows, position, y = arguments
        real = sums.type.pointee
        lanes = 8 * VECTOR_BYTES // (64 if real == ir.DoubleType() else 32)
        vector = ir.VectorType(real, lanes)
        once = builder.insert_element(ir.Constant(vector, ir.Undefined), alpha, ir.Constant(I32, 0))
        scale = builder.shuffle_vector(once, once, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))
        totals = []
        for lane in range(0, WARP, lanes):
            place = builder.gep(sums, [ir.Constant(I64, lane)])
            total = builder.load(builder.bitcast(place, vector.as_pointer()), align=VECTOR_BYTES)
            totals.append(builder.fmul(scale, total))
        with builder.if_else(cgutils.is_null(builder, rows)) as (in_order, permuted):
            with in_order:
                _store_all(builder, builder.gep(y, [position]), totals)
            with permuted:
                for row in range(WARP):
                    total = builder.extract_element(totals[row // lanes], ir.Constant(I32, row % lanes))
                    mine = builder.load(builder.gep(rows, [builder.add(position, ir.Constant(I64, row))]))
                    mine = mine if mine.type == I64 else builder.zext(mine, I64)
                    builder.store(total, builder.gep(y, [mine]))
        return context.get_dummy_value()

    return types.void(sums, sums.dtype, rows, types.int64, y), generate


def _multiply_slices(  # type: ignore[no-untyped-def]
    first, last, headers, bases, deltas, values, table, rows, positions, segments, partials, x, y, scale
):
    """Multiply slices `first` to `last`.

    Every array comes as a pointer; `rows` is null if position p is row p, and `scale` holds alpha and beta.
    """
    sums = _place_for_sums(x)
    alpha, beta = scale[0], scale[1]
    for s in range(first, last):
        step = np.int64(headers[4 * s])
        steps, full, shift, width = _shape_fields(np.int64(headers[4 * s + 3]))
        block = WARP * np.int64(headers[4 * s + 2])
        if width == NONE:
            _sum_slice(0, sums, step, steps, full, block, deltas, bases, values, table, x)
        elif width == BITS_8:
            _sum_slice(8, sums, step, steps, full, block, deltas, bases, values, table, x)
        elif width == BITS_16:
            _sum_slice(16, sums, step, steps, full, block >> 1, deltas, bases, values, table, x)
        else:
            _sum_slice(32, sums, step, steps, full, block >> 2, deltas, bases, values, table, x)
        _fold(sums, shift)
        position = np.int64(headers[4 * s + 1])
        count = min(WARP >> shift, positions - position)
        if s < segments:
            partials[position] = sums[0]
        elif count == WARP and beta == 0:
            _store_whole(sums, alpha, rows, position, y)
        else:
            for row in range(count):
                mine = position + row if _is_null(rows) else np.int64(rows[position + row])
                total = alpha * sums[row]
                y[mine] = total if beta == 0 else total + beta * y[mine]


@intrinsic
def _is_null(typing_context, pointer):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return cgutils.is_null(builder, arguments[0])

    return types.boolean(pointer), generate


@functools.cache
def product_of_slices(values: Any, table: Any, index: Any, real: Any) -> SharedFunction:
    """Compile the product for these types, or find it on disk.

    Parameters
    ----------
    values : dtype or None
        Of what stands for a value; None if all are equal.
    table, index, real : dtype
        The matrix's; of rows and columns; of x and y.
    """
    arguments = {
        "headers": np.uint32,
        "bases": index,
        "deltas": np.uint8,
        "values": values,
        "table": table,
        "rows": index,
        "positions": int,
        "segments": int,
    }
    return SharedFunction(_multiply_slices, arguments, real)
