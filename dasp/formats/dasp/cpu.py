"""The format of the paper on the CPU: the product by a vector, and the loops that copy rows into the parts.

Long rows are multiplied in `_sum_segments` and then `store_long`, medium rows in `_multiply_medium`, rows of
0 to 4 entries in `_multiply_short`. Each function works on a range of its part, so that threads can share a
part, and every sum has one fixed order, so that the result does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.formats.dasp.pattern import (
    HALF_WARP,
    LONG_UNIT,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
    Values,
)
from dasp.formats.plan import WARP, Plan, arrays_of
from dasp.formats.product_cpu import CpuProduct
from dasp.runtime.arrays import as_input
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import HALVES, I32, as_floats, data_of, multiply_add, scale_number, store_long
from dasp.runtime.cpu.operands import bits_of_halves
from dasp.runtime.types import Number

Vector = np.ndarray[Any, Any]

ROW_SLOTS = 2
"""Cost of finding, reducing and storing a row, in slots; used to share rows among threads."""


class DaspCpuProduct(CpuProduct):
    """A plan in the format of the paper, ready to be multiplied by several threads."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._steps = _steps(plan)
        self._work = sum(int(step.costs[-1]) for step in self._steps)
        long = plan.pattern.long
        self._segments = len(long.segment_rows)
        self._long_rows = long.rows, long.segment_offsets
        self._shares: dict[int, list[list[tuple[Any, ...]]]] = {}

    def multiply_vector(self, x: Vector, y: Vector, alpha: Number, beta: Number) -> None:
        """Set y = alpha A x + beta y for contiguous vectors in types of sums."""
        scale = x, y, alpha, beta
        partials = np.empty(self._segments, y.dtype)

        def work(share: list[_Task]) -> None:
            for step, first, last in share:
                step.function(first, last, *step.arrays, partials, *scale)

        threads = _threads.get_num_threads() if self._work >= _threads.SERIAL_ENTRIES else 1
        shares = self._shares.get(threads) or self._share(threads)
        _threads.run([partial(work, share) for share in shares])
        if self._segments:
            store_long(*self._long_rows, partials[:, None], 0, y[:, None], alpha, beta)

    def _share(self, threads: int) -> list[list[_Task]]:
        """Share the items of all steps among the threads by cost; return and keep the tasks of each."""
        shares: list[list[_Task]] = [[] for _ in range(threads)]
        for step in self._steps:
            goals = step.costs[-1] * np.arange(threads + 1) / threads
            cuts = np.searchsorted(step.costs, goals)
            for share, first, last in zip(shares, cuts[:-1], cuts[1:], strict=True):
                if first < last:
                    share.append((step, int(first), int(last)))
        self._shares[threads] = shares
        return shares


class _RowLoop(NamedTuple):
    """A function that multiplies one part, its arrays, and the cumulative cost of its items in slots."""

    function: Callable[..., None]
    arrays: tuple[Any, ...]
    costs: Vector


_Task = tuple[_RowLoop, int, int]
"""A step, its first item, and the item after its last one."""


def _steps(plan: Plan) -> list[_RowLoop]:
    """Return the loops that a product runs; parts without rows have none."""
    pattern, long, medium, short = plan.pattern, plan.pattern.long, plan.pattern.medium, plan.pattern.short
    values = Values(*(as_input(bits_of_halves(array)) for array in arrays_of(plan.values)))
    regular, irregular = medium.regular, medium.irregular
    block_costs = TILE * regular.offsets.astype(np.int64) + irregular.offsets[::TILE_ROWS]
    block_costs += TILE_ROWS * ROW_SLOTS * np.arange(len(block_costs))
    row_cuts = np.cumsum([2 * short.pairs_13, 2 * short.pairs_22, short.fours])
    slot_cuts = TILE_COLUMNS * np.cumsum([short.pairs_13, short.pairs_22, short.fours])
    pairs_13, pairs_22, fours, singles = zip(
        np.split(short.rows, row_cuts),
        np.split(short.columns, slot_cuts),
        np.split(values.short, slot_cuts),
        strict=True,
    )

    def even(count: int, cost: int) -> Vector:
        return cost * np.arange(count + 1)

    def of_short(section: tuple[Vector, ...], count: int, width: int, split: int) -> _RowLoop:
        costs = even(count, width + (1 + (split < width)) * ROW_SLOTS)
        return _RowLoop(_multiply_short, (width, split, *section), costs)

    of_long = long.segment, long.offsets, long.segment_offsets, long.segment_rows, long.columns, values.long
    of_medium = (
        *(medium.rows, regular.offsets, regular.columns, values.regular),
        *(irregular.offsets, irregular.columns, values.irregular),
    )
    empty = pattern.empty_rows
    steps = [
        _RowLoop(_sum_segments, of_long, even(len(long.segment_rows), long.segment)),
        _RowLoop(_multiply_medium, of_medium, block_costs),
        of_short(pairs_13, short.pairs_13, TILE_COLUMNS, 1),
        of_short(pairs_22, short.pairs_22, TILE_COLUMNS, 2),
        of_short(fours, short.fours, TILE_COLUMNS, TILE_COLUMNS),
        of_short(singles, short.singles, 1, 1),
        of_short((empty, short.columns, values.short), len(empty), 0, 0),
    ]
    return [step for step in steps if step.costs[-1] > 0]


_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)


@_inline
def _add(columns, values, slot, x, total):
    # Unsigned positions, so that Numba handles none that count from the end.
    return _add_product(values, np.int64(slot), x, np.int64(columns[np.uint64(slot)]), total)


@_inline
def _add_entry(columns, values, slot, x, total):
    if columns[np.uint64(slot)] < 0:
        return total
    return _add(columns, values, slot, x, total)


@_inline
def _store(row, total, x, y, alpha, beta):
    position = np.uint64(row)
    if beta == 0:
        y[position] = scale_number(alpha, total)
    else:
        y[position] = scale_number(alpha, total) + scale_number(beta, y[position])


@_compile
def _sum_segments(
    first, last, segment, offsets, segment_offsets, segment_rows, columns, values, partials, x, y, alpha, beta
):
    for s in range(first, last):
        row = segment_rows[s]
        begin = offsets[row] + (s - segment_offsets[row]) * segment
        end = min(begin + segment, offsets[row + 1])
        pads_from = end if columns[end - 1] >= 0 else end - LONG_UNIT
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = y.dtype.type(0)
        for slot in range(begin, pads_from, 8):
            t0 = _add(columns, values, slot, x, t0)
            t1 = _add(columns, values, slot + 1, x, t1)
            t2 = _add(columns, values, slot + 2, x, t2)
            t3 = _add(columns, values, slot + 3, x, t3)
            t4 = _add(columns, values, slot + 4, x, t4)
            t5 = _add(columns, values, slot + 5, x, t5)
            t6 = _add(columns, values, slot + 6, x, t6)
            t7 = _add(columns, values, slot + 7, x, t7)
        for slot in range(pads_from, end):
            t0 = _add_entry(columns, values, slot, x, t0)
        partials[s] = ((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7))


@_inline
def _add_tail(offsets, columns, values, row, x, total):
    for slot in range(offsets[np.uint64(row)], offsets[np.uint64(row + 1)]):
        total = _add(columns, values, slot, x, total)
    return total


@_compile
def _multiply_medium(
    first,
    last,
    rows,
    tile_offsets,
    columns,
    values,
    tail_offsets,
    tail_columns,
    tail_values,
    partials,
    x,
    y,
    alpha,
    beta,
):
    # Each sum has a name: a loop over a tuple of sums takes a tenth longer.
    for block in range(first, last):
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = y.dtype.type(0)
        for tile in range(tile_offsets[block], tile_offsets[block + 1]):
            for slot in range(TILE * tile, TILE * tile + TILE_COLUMNS):
                # Rows never get longer inside a block: all have an entry here if the last has one, and none
                # if the first has none.
                if columns[np.uint64(slot + TILE - TILE_COLUMNS)] >= 0:
                    t0 = _add(columns, values, slot, x, t0)
                    t1 = _add(columns, values, slot + 4, x, t1)
                    t2 = _add(columns, values, slot + 8, x, t2)
                    t3 = _add(columns, values, slot + 12, x, t3)
                    t4 = _add(columns, values, slot + 16, x, t4)
                    t5 = _add(columns, values, slot + 20, x, t5)
                    t6 = _add(columns, values, slot + 24, x, t6)
                    t7 = _add(columns, values, slot + 28, x, t7)
                elif columns[np.uint64(slot)] >= 0:
                    t0 = _add_entry(columns, values, slot, x, t0)
                    t1 = _add_entry(columns, values, slot + 4, x, t1)
                    t2 = _add_entry(columns, values, slot + 8, x, t2)
                    t3 = _add_entry(columns, values, slot + 12, x, t3)
                    t4 = _add_entry(columns, values, slot + 16, x, t4)
                    t5 = _add_entry(columns, values, slot + 20, x, t5)
                    t6 = _add_entry(columns, values, slot + 24, x, t6)
        row = TILE_ROWS * block
        if tail_offsets[row] != tail_offsets[row + TILE_ROWS]:
            t0 = _add_tail(tail_offsets, tail_columns, tail_values, row, x, t0)
            t1 = _add_tail(tail_offsets, tail_columns, tail_values, row + 1, x, t1)
            t2 = _add_tail(tail_offsets, tail_columns, tail_values, row + 2, x, t2)
            t3 = _add_tail(tail_offsets, tail_columns, tail_values, row + 3, x, t3)
            t4 = _add_tail(tail_offsets, tail_columns, tail_values, row + 4, x, t4)
            t5 = _add_tail(tail_offsets, tail_columns, tail_values, row + 5, x, t5)
            t6 = _add_tail(tail_offsets, tail_columns, tail_values, row + 6, x, t6)
            t7 = _add_tail(tail_offsets, tail_columns, tail_values, row + 7, x, t7)
        for r, total in enumerate((t0, t1, t2, t3, t4, t5, t6, t7)):
            if rows[row + r] >= 0:
                _store(rows[row + r], total, x, y, alpha, beta)


@_compile
def _multiply_short(first, last, width, split, rows, columns, values, partials, x, y, alpha, beta):
    """Multiply tile rows of `width` slots, each with one row, or with a row of `split` entries and another.

    A row that fills a tile row alone may lack its last entry. `rows` lists the 16 first rows of a warp before
    its 16 second ones.
    """
    for tile_row in range(first, last):
        slot, place = width * tile_row, tile_row
        own = other = y.dtype.type(0)
        for k in range(TILE_COLUMNS):
            if k < split:
                own = _add_entry(columns, values, slot + k, x, own)
            elif k < width:
                other = _add_entry(columns, values, slot + k, x, other)
        if split < width:
            place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
            if rows[np.uint64(place + HALF_WARP)] >= 0:
                _store(rows[np.uint64(place + HALF_WARP)], other, x, y, alpha, beta)
        if rows[np.uint64(place)] >= 0:
            _store(rows[np.uint64(place)], own, x, y, alpha, beta)


@intrinsic
def _add_product(typing_context, values, slot, x, column, total):
    """Return `total` plus the product of a value and a number of x, by fused multiply-adds.

    Parameters
    ----------
    values, x : vectors
        Of any types that the type of the sum holds; uint16 and int16 stand for the bits of float16 and
        bfloat16.
    slot, column : int64 or uint64
        The positions in `values` and `x`.
    total : float or complex
    """

    def generate(context, builder, signature, arguments):
        values_array, slot, x_array, column, total = arguments
        is_complex = isinstance(signature.return_type, types.Complex)
        sums = [builder.extract_value(total, part) for part in (0, 1)] if is_complex else [total]
        real = sums[0].type
        size = 64 if real == ir.DoubleType() else 32
        fma = builder.module.declare_intrinsic(f"llvm.fmuladd.f{size}", (), ir.FunctionType(real, [real] * 3))
        factors, numbers = (
            _parts_at(builder, kind.dtype, builder.gep(data_of(context, builder, kind, array), [place]), real)
            for kind, array, place in ((values, values_array, slot), (x, x_array, column))
        )
        parts = multiply_add(builder, fma, factors, numbers, sums)
        if not is_complex:
            return parts[0]
        for part, number in enumerate(parts):
            total = builder.insert_value(total, number, part)
        return total

    return total(values, slot, x, column, total), generate


def _parts_at(builder: ir.IRBuilder, kind: types.Type, place: ir.Value, real: ir.Type) -> list[ir.Value]:
    """Return the number at a pointer as one number of type `real`, or as two if it is complex.

    Parameters
    ----------
    builder : LLVM's
    kind : numba type
        Of the number; uint16 and int16 stand for the bits of float16 and bfloat16.
    place : LLVM pointer
    real : LLVM type
        Float or double, at least as wide as the parts.
    """
    if kind in HALVES:
        bits = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(16), 1).as_pointer()), align=2)
        parts = [builder.extract_element(as_floats(builder, kind, bits), ir.Constant(I32, 0))]
    elif isinstance(place.type.pointee, ir.BaseStructType):
        parts = [
            builder.load(builder.gep(place, [ir.Constant(I32, 0), ir.Constant(I32, part)])) for part in (0, 1)
        ]
    else:
        parts = [builder.load(place)]
    return [part if part.type == real else builder.fpext(part, real) for part in parts]


@_compile
def count_tiles(lengths, least):
    """Count the tiles of each row block up to the first with fewer than `least` entries."""
    tiles = np.empty(len(lengths) // TILE_ROWS, np.int64)
    for block in range(len(tiles)):
        tile = 0
        while True:
            entries = 0
            for row in range(TILE_ROWS * block, TILE_ROWS * (block + 1)):
                entries += min(max(lengths[row] - TILE_COLUMNS * tile, 0), TILE_COLUMNS)
            if entries == 0 or entries < least:
                break
            tile += 1
        tiles[block] = tile
    return tiles


@_compile
def copy_runs(indices, data, starts, lengths, slots, columns, values):
    """Copy `lengths[i]` entries, beginning with entry `starts[i]`, to the slots from `slots[i]` on."""
    for run in range(len(lengths)):
        for k in range(lengths[run]):
            columns[slots[run] + k] = indices[starts[run] + k]
            values[slots[run] + k] = data[starts[run] + k]


@_compile
def copy_tile_rows(indices, data, starts, lengths, tiles, columns, values):
    """Copy `lengths[i]` entries, beginning with `starts[i]`, to row i % 8 of the tiles of block i // 8."""
    for row in range(len(lengths)):
        first = TILE * tiles[row // TILE_ROWS] + TILE_COLUMNS * (row % TILE_ROWS)
        for k in range(lengths[row]):
            slot = first + TILE * (k // TILE_COLUMNS) + k % TILE_COLUMNS
            columns[slot] = indices[starts[row] + k]
            values[slot] = data[starts[row] + k]
