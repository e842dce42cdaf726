"""Products of slices on the CPU: whole runs of slices for each thread of the team, lanes in vector registers.

`SellCpuProduct` hands the runs out. `_multiply_slices` multiplies a run by a vector, and the functions below
it are its parts; `dasp.formats.sell.cpu.column_blocks` has the product by several columns.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dasp.formats import product_cpu
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cpu.column_blocks import ColumnRange, compile_columns, cut_columns, find_span
from dasp.formats.sell.cpu.emitter import VECTOR_BYTES, Dtype, StepEmitter, of_plan
from dasp.formats.sell.cpu.unpack import diagonal
from dasp.formats.sell.pattern import BITS_8, BITS_16, NONE, Coding, unpack_shape
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import (
    I32,
    I64,
    is_null,
    scale_number,
    scale_parts,
    store_long,
)
from dasp.runtime.cpu.job import CHUNKS, Job, SharedFunction
from dasp.runtime.cpu.operands import bits_of_halves
from dasp.runtime.cpu.team import NUMBER_SECONDS, is_short, multiply_alone, team
from dasp.runtime.dtypes import TABLE, sum_type
from dasp.runtime.types import Number, Vector

SLICE_STEPS = 3
"""Cost of finding, reducing and storing a slice, in steps."""

COLUMNS_AT_ONCE = 4
"""Columns that take about as long together as a vector does."""

MOST_JOBS = 64
"""Jobs that a product keeps: each number of columns and each stride of rows needs some of its own."""

_NO_PARTIALS = {sum_type(row.dtype): np.empty(0, row.sum) for row in TABLE.values()}


class SellCpuProduct(product_cpu.CpuProduct):
    """A plan of slices, ready for a team of threads."""

    several = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        pattern, values = plan.pattern, plan.values
        steps = unpack_shape(pattern.headers[:, 3].astype(np.int64))[0]
        self._pattern, self._values = pattern, values
        table = values.table if len(values.table) else np.zeros(1, plan.dtype)
        # Numba knows no numbers in half precision; a table of them is small.
        self._table = table.astype(np.float32) if plan.dtype.itemsize == 2 else table
        self._costs = np.concatenate([[0], np.cumsum(WARP * (steps + SLICE_STEPS))])
        self._seconds = NUMBER_SECONDS * int(self._costs[-1])
        self._is_tiny = not pattern.segments and is_short(self._seconds)
        self._jobs: dict[tuple[Any, ...], Job] = {}

    def refresh(self) -> None:
        """Take over values that were written into the plan: the table of half precisions is a copy."""
        table = self._values.table
        if table.dtype != self._table.dtype:
            self._table[: len(table)] = table

    def diagonal(self, k: int) -> Vector | None:
        """Return the k-th diagonal in the type of sums; None if an entry of it occurs twice."""
        return diagonal(self.plan, k)

    def multiply_vector(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set y = alpha A x + beta y, for contiguous vectors of types of sums that fit."""
        if self._is_tiny:
            # Without the team, for the sake of matrices whose product takes a few microseconds.
            job = self._jobs.get((1, x.dtype, y.dtype)) or self._prepare(1, x.dtype, y.dtype)
            multiply_alone(job, _NO_PARTIALS[y.dtype], x, y, alpha, beta)
            return
        pattern, shared = self._pattern, team()
        partials = np.empty(pattern.segments, y.dtype)
        parts = shared.parts(self._seconds)
        job = self._jobs.get((parts, x.dtype, y.dtype)) or self._prepare(parts, x.dtype, y.dtype)
        shared.multiply(job, partials, x, y, alpha, beta)
        if pattern.segments:
            self._store_long(partials[:, None], 0, y[:, None], alpha, beta)

    def multiply_rows(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set Y = alpha A X + beta Y; see `dasp.formats.product_cpu.CpuProduct.multiply_rows`."""
        spans = find_span(x), find_span(y)
        for block in cut_columns(y.shape[1], y.itemsize):
            self._multiply_block(block, (x, y), spans, alpha, beta)

    def _multiply_block(
        self,
        block: ColumnRange,
        arrays: tuple[Vector, Vector],
        spans: tuple[Vector, Vector],
        alpha: Number,
        beta: Number,
    ) -> None:
        """Multiply by a block of X's columns; of Y, leave the block's first `done` columns as they are."""
        (x, y), shared = arrays, team()
        seconds = self._seconds * block.columns / COLUMNS_AT_ONCE
        parts = shared.parts(seconds)
        rest = y.shape[1] - block.begin - block.columns
        mine = [span[block.begin : len(span) - rest] for span in spans]
        key = parts, x.dtype, y.dtype, *block[1:], x.strides[0], y.strides[0]
        job = self._jobs.get(key) or self._prepare_block(key, seconds)
        partials = np.empty((self._pattern.segments, block.columns), y.dtype)
        shared.multiply(job, partials.reshape(-1), *mine, alpha, beta)
        if self._pattern.segments:
            columns = y[:, block.begin : block.begin + block.columns]
            self._store_long(partials, block.done, columns, alpha, beta)

    def _store_long(self, partials: Vector, done: int, y: Vector, alpha: Number, beta: Number) -> None:
        """Set the rows that come in segments."""
        pattern = self._pattern
        store_long(pattern.long_rows, pattern.segment_offsets, partials, done, y, alpha, beta)

    def _prepare(self, parts: int, x: np.dtype[Any], total: np.dtype[Any]) -> Job:
        """Compile and keep the job that so many parts make with x and sums of these types."""
        pattern = self._pattern
        job = self._jobs[parts, x, total] = Job(
            compile_slices(*self._list_types(), x, total),
            self._cut_chunks(parts),
            self._seconds,
            **self._list_arrays(),
            positions=pattern.positions,
            segments=pattern.segments,
        )
        return job

    def _prepare_block(self, key: tuple[Any, ...], seconds: float) -> Job:
        """Compile and keep the job for `parts` threads, a column block, two types, and strides of rows."""
        pattern, (parts, x, total, columns, done, *strides) = self._pattern, key
        if len(self._jobs) >= MOST_JOBS:
            self._jobs.clear()
        apart = (stride // kind.itemsize for stride, kind in zip(strides, (x, total), strict=True))
        job = self._jobs[key] = Job(
            compile_columns(columns, *self._list_types(), x, total),
            self._cut_chunks(parts),
            seconds,
            **self._list_arrays(),
            counts=np.array([pattern.positions, pattern.segments, *apart], np.int64),
            done=done,
        )
        return job

    def _cut_chunks(self, parts: int) -> Vector:
        """Return the slices at which the chunks of so many parts begin and end."""
        goals = self._costs[-1] * np.arange(CHUNKS * parts + 1) / (CHUNKS * parts)
        cuts: Vector = np.searchsorted(self._costs, goals).astype(np.int64)
        return cuts

    def _list_types(self) -> tuple[Any, ...]:
        """Return the types of the plan that its functions are compiled for."""
        coded = None if self._values.coding == Coding.EQUAL else bits_of_halves(self._values.codes).dtype
        return coded, self._table.dtype, self._pattern.index_dtype

    def _list_arrays(self) -> dict[str, Vector]:
        """Return the plan's arrays that the compiled functions read."""
        pattern = self._pattern
        return {
            "headers": pattern.headers,
            "bases": pattern.bases,
            "deltas": pattern.deltas,
            "values": bits_of_halves(self._values.codes),
            "table": self._table,
            "rows": pattern.rows,
        }


@functools.cache
def compile_slices(
    values: Dtype | None, table: Dtype, index: Dtype, x: Dtype, total: Dtype
) -> SharedFunction:
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


_unpack_shape = jit(inline="always")(unpack_shape)


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
        steps, full, shift, width = _unpack_shape(np.int64(headers[4 * s + 3]))
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
        count = WARP >> shift if position + (WARP >> shift) < positions else positions - position
        if s < segments:
            partials[position] = _add_row(sums, scale, 0)
        elif count == WARP and beta == 0:
            _store_whole(sums, alpha, rows, position, y)
        else:
            for row in range(count):
                mine = position + row if is_null(rows) else np.int64(rows[position + row])
                total = scale_number(alpha, _add_row(sums, scale, row))
                y[mine] = total if beta == 0 else total + scale_number(beta, y[mine])


@intrinsic(prefer_literal=True)
def _sum_slice(
    typing_context, bits, sums, scale, step, steps, full, first_delta, deltas, bases, values, table, x
):
    """Set `sums` to the sums of the 32 lanes over a slice.

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
    parts = _count_parts(scale)

    def generate(context, builder, signature, arguments):
        _, sums, _, step, steps, full, first_delta, *pointers = arguments
        emitter = StepEmitter(builder, width, coded, sums.type.pointee, parts, *pointers)
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


def _count_parts(pointer: types.CPointer) -> int:
    """Return the parts of the numbers that a pointer of Numba's points to."""
    return 2 if isinstance(pointer.dtype, types.Complex) else 1


def _find_real_type(pointer: types.CPointer) -> types.Type:
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
    real, count = _find_real_type(scale), WARP * _count_parts(scale)

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, context.get_data_type(real), size=count)
        place.align = 64
        return place

    return types.CPointer(real)(scale), generate


@intrinsic
def _fold(typing_context, sums, scale, shift):
    """Add every two neighbours of the 32 sums, `shift` times over, so that the rows' sums come first."""
    firsts = [WARP * part for part in range(_count_parts(scale))]

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
def _add_row(typing_context, sums, scale, row):
    """Return the sum of a row of a slice, after `_fold`."""
    parts = _count_parts(scale)

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
    parts = _count_parts(y)

    def generate(context, builder, signature, arguments):
        sums, alpha, rows, position, y = arguments
        totals = _scale_sums(builder, sums, alpha, parts)
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


def _scale_sums(builder: ir.IRBuilder, sums: ir.Value, alpha: ir.Value, parts: int) -> list[ir.Value]:
    """Return alpha times the 32 sums as vectors, both parts of a complex one beside each other."""
    real = sums.type.pointee
    lanes = 8 * VECTOR_BYTES // (64 if real == ir.DoubleType() else 32)
    vector = ir.VectorType(real, lanes)

    def load(lane: int) -> ir.Value:
        place = builder.gep(sums, [ir.Constant(I64, lane)])
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=VECTOR_BYTES)

    def repeat(number: ir.Value) -> ir.Value:
        once = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(I32, 0))
        return builder.shuffle_vector(once, once, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))

    if parts == 1:
        scale = repeat(alpha)
        return [builder.fmul(scale, load(lane)) for lane in range(0, WARP, lanes)]
    factor = cgutils.unpack_tuple(builder, alpha, 2)
    alternating = ir.Constant(
        ir.VectorType(I32, 2 * lanes), [lane + part for lane in range(lanes) for part in (0, lanes)]
    )
    return [
        builder.shuffle_vector(
            *scale_parts(builder, factor, [load(lane), load(WARP + lane)], repeat), alternating
        )
        for lane in range(0, WARP, lanes)
    ]
