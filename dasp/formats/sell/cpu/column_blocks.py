"""The product of slices by several columns on a CPU: rows of X, and of sums, in vector registers.

In C order an entry multiplies a run of neighbouring numbers, a row of X. So a few lanes of a slice walk its
steps together, for a block of columns whose sums stay in registers; the plan stays in the nearest cache for
the lanes that follow. Each width of a block is a function of its own, compiled at its first use. The columns
left over make one more block, which ends at the last column and may overlap the block before it: columns that
are done are not stored again, and two narrow blocks would take longer.

Sums are added in the order of the product by a vector, so a column's bits are those of that product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.emitter import WORD_LANES, Dtype, RowBuilder, RowEmitter, count_real_bytes, of_plan
from dasp.formats.sell.pattern import unpack_shape
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import I64, at, is_null
from dasp.runtime.cpu.job import SharedFunction
from dasp.runtime.types import Vector

WIDEST = 32
"""Columns of the widest block; the other widths are its halves, down to 2."""

ROW_BYTES = 256
"""Most bytes of sums that a lane keeps in registers: eight registers of AVX2."""

SUMS_BYTES = 1024
"""Bytes of sums in registers at a time: half of the registers of AVX-512."""

WIDTHS = 0, 8, 16, 32
"""Bits of a delta, by the `Width` of a slice."""


class ColumnRange(NamedTuple):
    """The columns of X that a column block multiplies.

    Attributes
    ----------
    begin, columns : int
        The first one, and their number, a power of two.
    done : int
        The number of leading columns that another block has done.
    """

    begin: int
    columns: int
    done: int


@functools.cache
def cut_columns(columns: int, item: int) -> tuple[ColumnRange, ...]:
    """Cut 2 or more columns of numbers of `item` bytes into blocks.

    Examples
    --------
    >>> [tuple(block) for block in cut_columns(37, 8)]
    [(0, 32, 0), (29, 8, 3)]
    """
    widest = min(WIDEST, ROW_BYTES // item, 1 << columns.bit_length() - 1)
    blocks, start = [], 0
    while start < columns:
        width = min(widest, max(2, 1 << (columns - start - 1).bit_length()))
        begin = min(start, columns - width)
        blocks.append(ColumnRange(begin, width, start - begin))
        start = begin + width
    return tuple(blocks)


def find_span(array: Vector) -> Vector:
    """Return a view of the memory from the first to the last element of a matrix with contiguous rows."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    rows, columns = array.shape
    size = (rows - 1) * (array.strides[0] // array.itemsize) + columns if rows else 0
    return np.lib.stride_tricks.as_strided(array, (size,), (array.itemsize,))


@functools.cache
def compile_columns(
    columns: int, values: Dtype | None, table: Dtype, index: Dtype, x: Dtype, total: Dtype
) -> SharedFunction:
    """Compile the product by a block of `columns` columns for these types; see `compile_slices`."""
    arguments = of_plan(values, table, index) | {"counts": np.int64, "done": int}
    return SharedFunction(_write_product(columns), arguments, total, x)


_unpack_shape = jit(inline="always")(unpack_shape)


def _write_product(columns: int) -> Callable[..., None]:
    """Return the product by a block of `columns` columns, to be compiled."""

    def _multiply_columns(
        first, last, headers, bases, deltas, values, table, rows, counts, done, partials, x, y, scale
    ):
        """Multiply slices `first` to `last`.

        Every array is a pointer. `rows` is null if position p is row p. `counts` holds positions, segments,
        and the numbers from one row to the next of X and of Y, which begin at the block's first column.
        `scale` holds alpha and beta.
        """
        sums = place_for_sums(scale, columns)
        positions, segments, x_row, y_row = counts[0], counts[1], counts[2], counts[3]
        alpha, beta = scale[0], scale[1]
        for s in range(first, last):
            step = np.int64(headers[4 * s])
            steps, full, shift, width = _unpack_shape(np.int64(headers[4 * s + 3]))
            block = WARP * np.int64(headers[4 * s + 2])
            position = np.int64(headers[4 * s + 1])
            count = WARP >> shift if position + (WARP >> shift) < positions else positions - position
            count = 1 if s < segments else count
            lanes = count << shift
            groups = (lanes + WORD_LANES - 1) // WORD_LANES
            _sum_lanes(
                columns, sums, width, groups, step, steps, full, block, x_row, deltas, bases, values, table, x
            )
            for _ in range(shift):
                lanes >>= 1
                add_neighbours(columns, sums, lanes)
            if s < segments:
                copy_row(columns, sums, at(partials, position * columns))
            else:
                for row in range(count):
                    mine = position + row if is_null(rows) else np.int64(rows[position + row])
                    update_row(columns, at(sums, row * columns), alpha, beta, done, at(y, mine * y_row))

    return _multiply_columns


@intrinsic(prefer_literal=True)
def place_for_sums(typing_context, scale, columns):
    """Return a pointer to the sums of a column block for 32 lanes, on the stack."""
    count = WARP * int(columns.literal_value)

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, arguments[0].type.pointee, size=count)
        place.align = 64
        return place

    return scale(scale, columns), generate


@intrinsic(prefer_literal=True)
def _sum_lanes(
    typing_context,
    columns,
    sums,
    width,
    groups,
    step,
    steps,
    full,
    block,
    row,
    deltas,
    bases,
    values,
    table,
    x,
):
    """Set `sums` to the sums of each lane in the first `groups` of a slice, for a column block.

    Parameters
    ----------
    columns : constant
        Of the block.
    sums : pointer to `columns` numbers for each lane
    width : int64
        The `Width` of the slice.
    groups : int64
        Of `WORD_LANES` lanes each.
    step, steps, full : int64
        The slice's first step, its steps, and its leading steps without pads.
    block : int64
        Bytes before the slice's deltas.
    row : int64
        Numbers from a row of X to the next.
    deltas, bases, values, table, x : pointers
        x: of the block's first column.
    """
    count = int(columns.literal_value)
    coded = types.none if values == types.voidptr else values.dtype

    def generate(context, builder, signature, arguments):
        _, sums, width, groups, step, steps, full, block, row, *pointers = arguments
        rows = RowBuilder(builder, sums.type.pointee, count)
        together = min(WORD_LANES, SUMS_BYTES // (rows.kind.count * count_real_bytes(rows.real)))

        def multiply_width(number: int) -> None:
            bits = WIDTHS[number]
            delta = builder.udiv(block, ir.Constant(I64, max(bits // 8, 1)))
            with cgutils.for_range(builder, groups) as loop:
                group = builder.mul(loop.index, ir.Constant(I64, WORD_LANES))
                for first in range(0, WORD_LANES, together):
                    mine = range(first, first + together)
                    kinds = bits, coded, rows.real, rows.parts, count, mine
                    emitter = RowEmitter(builder, *kinds, *pointers)
                    places = step, delta, group, row
                    end = full if bits else steps
                    totals = emitter.loop(ir.Constant(I64, 0), end, emitter.zeros(), places, False)
                    if bits:
                        totals = emitter.loop(full, steps, totals, places, True)
                    for lane, total in zip(mine, totals, strict=True):
                        place = builder.mul(emitter.plus(group, lane), ir.Constant(I64, count))
                        rows.store(total, builder.gep(sums, [place]))

        _switch(builder, width, range(len(WIDTHS)), multiply_width)
        return context.get_dummy_value()

    whole = [types.int64] * 7
    return types.void(columns, sums, *whole, deltas, bases, values, table, x), generate


def _switch(
    builder: ir.IRBuilder, selector: ir.Value, cases: Iterable[int], emit: Callable[[int], None]
) -> None:
    """Emit a switch with `emit(case)` for each number that the selector may be."""
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
def add_neighbours(typing_context, columns, sums, lanes):
    """Add pairs of neighbouring lanes, so that `lanes` sums are left."""

    def generate(context, builder, signature, arguments):
        _, sums, lanes = arguments
        count = int(columns.literal_value)
        rows = RowBuilder(builder, sums.type.pointee, count)
        with cgutils.for_range(builder, lanes) as loop:
            to = builder.mul(loop.index, ir.Constant(I64, count))
            one = builder.gep(sums, [builder.mul(to, ir.Constant(I64, 2))])
            other = builder.gep(one, [ir.Constant(I64, count)])
            rows.store(builder.fadd(rows.load(one), rows.load(other)), builder.gep(sums, [to]))
        return context.get_dummy_value()

    return types.void(columns, sums, types.int64), generate


@intrinsic(prefer_literal=True)
def copy_row(typing_context, columns, sums, to):
    """Copy a row of sums."""

    def generate(context, builder, signature, arguments):
        _, sums, to = arguments
        rows = RowBuilder(builder, sums.type.pointee, int(columns.literal_value))
        rows.store(rows.load(sums), to)
        return context.get_dummy_value()

    return types.void(columns, sums, to), generate


@intrinsic(prefer_literal=True)
def update_row(typing_context, columns, sums, alpha, beta, done, y):
    """Set y, but for `done` columns, to alpha times a row of sums plus beta times y unless beta is 0."""

    def generate(context, builder, signature, arguments):
        _, sums, alpha, beta, done, y = arguments
        rows = RowBuilder(builder, sums.type.pointee, int(columns.literal_value))
        before, total = rows.load(y), rows.scale(alpha, rows.load(sums))
        both = builder.fadd(total, rows.scale(beta, before))
        total = builder.select(rows.is_zero(beta), total, both)
        rows.store(builder.select(rows.is_below(done), before, total), y)
        return context.get_dummy_value()

    return types.void(columns, sums, alpha, beta, types.int64, y), generate
