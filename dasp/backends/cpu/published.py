"""The published format on the CPU: one compiled function per part, run by several threads.

Where is a row multiplied? By its length: long rows in `_sum_segments`, then `store_long`; medium rows in
`_multiply_medium`; rows of 1 to 4 in `_multiply_13`, `_multiply_22`, `_multiply_fours` and
`_multiply_singles`. Each function works on a range of its part, so that threads can share a part, and every
sum has one fixed order, so that the result does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dasp import _threads
from dasp._compile import jit
from dasp.backends.cpu.emitter import store_long
from dasp.formats.array import WARP, Plan
from dasp.formats.published.pattern import (
    HALF_WARP,
    LONG_UNIT,
    MAX_SHORT,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
)

Vector = np.ndarray[Any, Any]

SERIAL_SLOTS = 150_000
"""Below this many slots, waking a second thread costs more than it saves."""

ROW_SLOTS = 2
"""What finding, reducing and storing one row costs, in slots; used to share rows among threads."""


class Kernel:
    """A plan in the published format, ready for several threads."""

    def __init__(self, plan: Plan) -> None:
        self._steps = _steps(plan)
        self._work = sum(int(step.costs[-1]) for step in self._steps)
        long = plan.pattern.long
        self._segments = len(long.segment_rows)
        self._long_rows = long.rows, long.segment_offsets
        self._shares: dict[int, list[list[tuple[Any, ...]]]] = {}

    def multiply(self, x: Vector, y: Vector, alpha: Any, beta: Any) -> None:
        """Set y = alpha A x + beta y, for contiguous vectors of one type, x read-only."""
        scale = x, y, alpha, beta
        partials = np.empty(self._segments, x.dtype)
        threads = _threads.get_num_threads() if self._work >= SERIAL_SLOTS else 1
        shares = self._shares.get(threads) or self._share(threads)
        if threads == 1:
            _run_share(shares[0], scale, partials)
        else:
            _threads.run([partial(_run_share, share, scale, partials) for share in shares])
        if self._segments:
            store_long(*self._long_rows, partials[:, None], 0, y[:, None], alpha, beta)

    def _share(self, threads: int) -> list[list[tuple[Any, ...]]]:
        """Find, for each thread, the calls (function, arrays, first, last) it makes, and keep them."""
        shares: list[list[tuple[Any, ...]]] = [[] for _ in range(threads)]
        for step in self._steps:
            goals = step.costs[-1] * np.arange(threads + 1) / threads
            cuts = np.searchsorted(step.costs, goals)
            for share, first, last in zip(shares, cuts[:-1], cuts[1:], strict=True):
                if first < last:
                    share.append((step.function, step.arrays, int(first), int(last)))
        self._shares[threads] = shares
        return shares


class _Step:
    """A function of one part, its arrays, and the rising cost of its items in slots, from 0."""

    def __init__(self, function: Callable[..., None], arrays: tuple[Any, ...], costs: Vector) -> None:
        self.function = function
        self.arrays = arrays
        self.costs = costs


def _run_share(share: list[tuple[Any, ...]], scale: tuple[Any, ...], partials: Vector) -> None:
    for function, arrays, first, last in share:
        function(first, last, *arrays, partials, *scale)


def _steps(plan: Plan) -> list[_Step]:
    """Return the functions that a product calls; parts without rows have none."""
    pattern, values = plan.pattern, plan.values
    long, medium, short = pattern.long, pattern.medium, pattern.short
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

    steps = [
        _Step(
            _sum_segments,
            (long.segment, long.offsets, long.segment_offsets, long.segment_rows, long.columns, values.long),
            even(len(long.segment_rows), long.segment),
        ),
        _Step(
            _multiply_medium,
            (
                medium.rows,
                regular.offsets,
                regular.columns,
                values.regular,
                irregular.offsets,
                irregular.columns,
                values.irregular,
            ),
            block_costs,
        ),
        _Step(_multiply_13, pairs_13, even(short.pairs_13, TILE_COLUMNS + 2 * ROW_SLOTS)),
        _Step(_multiply_22, pairs_22, even(short.pairs_22, TILE_COLUMNS + 2 * ROW_SLOTS)),
        _Step(_multiply_fours, fours, even(short.fours, TILE_COLUMNS + ROW_SLOTS)),
        _Step(_multiply_singles, singles, even(short.singles, 1 + ROW_SLOTS)),
        _Step(_clear_rows, (pattern.empty_rows,), even(len(pattern.empty_rows), 1)),
    ]
    return [step for step in steps if step.costs[-1] > 0]


# Products may fuse a multiplication and an addition into one rounding, and nothing else: sums keep
# their order, and NaN and Inf their meaning.
_compile = jit(nogil=True, fastmath={"contract"})
_inline = jit(nogil=True, fastmath={"contract"}, forceinline=True)


@_inline
def _term(columns, values, slot, x):  # type: ignore[no-untyped-def]
    # Unsigned positions, so that Numba does not look for those that count from the end.
    return values[np.uint64(slot)] * x[np.uint64(columns[np.uint64(slot)])]


@_inline
def _term_or_pad(columns, values, slot, x):  # type: ignore[no-untyped-def]
    if columns[np.uint64(slot)] < 0:
        return x.dtype.type(0)
    return _term(columns, values, slot, x)


@_inline
def _store(row, total, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    position = np.uint64(row)
    if beta == 0:
        y[position] = alpha * total
    else:
        y[position] = alpha * total + beta * y[position]


@_compile
def _sum_segments(  # type: ignore[no-untyped-def]
    first, last, segment, offsets, segment_offsets, segment_rows, columns, values, partials, x, y, alpha, beta
):
    for s in range(first, last):
        row = segment_rows[s]
        begin = offsets[row] + (s - segment_offsets[row]) * segment
        end = min(begin + segment, offsets[row + 1])
        pads_from = end if columns[end - 1] >= 0 else end - LONG_UNIT
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = x.dtype.type(0)
        for slot in range(begin, pads_from, 8):
            t0 += _term(columns, values, slot, x)
            t1 += _term(columns, values, slot + 1, x)
            t2 += _term(columns, values, slot + 2, x)
            t3 += _term(columns, values, slot + 3, x)
            t4 += _term(columns, values, slot + 4, x)
            t5 += _term(columns, values, slot + 5, x)
            t6 += _term(columns, values, slot + 6, x)
            t7 += _term(columns, values, slot + 7, x)
        for slot in range(pads_from, end):
            t0 += _term_or_pad(columns, values, slot, x)
        partials[s] = ((t0 + t1) + (t2 + t3)) + ((t4 + t5) + (t6 + t7))


@_inline
def _tail(offsets, columns, values, row, x, total):  # type: ignore[no-untyped-def]
    for slot in range(offsets[np.uint64(row)], offsets[np.uint64(row + 1)]):
        total += _term(columns, values, slot, x)
    return total


@_compile
def _multiply_medium(  # type: ignore[no-untyped-def]
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
    for block in range(first, last):
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = x.dtype.type(0)
        for tile in range(tile_offsets[block], tile_offsets[block + 1]):
            for slot in range(TILE * tile, TILE * tile + TILE_COLUMNS):
                # Rows never get longer inside a block: the last one tells of all, and so does the first.
                if columns[np.uint64(slot + TILE - TILE_COLUMNS)] >= 0:
                    t0 += _term(columns, values, slot, x)
                    t1 += _term(columns, values, slot + 4, x)
                    t2 += _term(columns, values, slot + 8, x)
                    t3 += _term(columns, values, slot + 12, x)
                    t4 += _term(columns, values, slot + 16, x)
                    t5 += _term(columns, values, slot + 20, x)
                    t6 += _term(columns, values, slot + 24, x)
                    t7 += _term(columns, values, slot + 28, x)
                elif columns[np.uint64(slot)] >= 0:
                    t0 += _term_or_pad(columns, values, slot, x)
                    t1 += _term_or_pad(columns, values, slot + 4, x)
                    t2 += _term_or_pad(columns, values, slot + 8, x)
                    t3 += _term_or_pad(columns, values, slot + 12, x)
                    t4 += _term_or_pad(columns, values, slot + 16, x)
                    t5 += _term_or_pad(columns, values, slot + 20, x)
                    t6 += _term_or_pad(columns, values, slot + 24, x)
        row = TILE_ROWS * block
        if tail_offsets[row] != tail_offsets[row + TILE_ROWS]:
            t0 = _tail(tail_offsets, tail_columns, tail_values, row, x, t0)
            t1 = _tail(tail_offsets, tail_columns, tail_values, row + 1, x, t1)
            t2 = _tail(tail_offsets, tail_columns, tail_values, row + 2, x, t2)
            t3 = _tail(tail_offsets, tail_columns, tail_values, row + 3, x, t3)
            t4 = _tail(tail_offsets, tail_columns, tail_values, row + 4, x, t4)
            t5 = _tail(tail_offsets, tail_columns, tail_values, row + 5, x, t5)
            t6 = _tail(tail_offsets, tail_columns, tail_values, row + 6, x, t6)
            t7 = _tail(tail_offsets, tail_columns, tail_values, row + 7, x, t7)
        for r, total in enumerate((t0, t1, t2, t3, t4, t5, t6, t7)):
            if rows[row + r] >= 0:
                _store(rows[row + r], total, x, y, alpha, beta)


@_compile
def _multiply_13(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    # A tile row holds a row of 1, then a row of 3; a warp lists its 16 rows of 1 before those of 3.
    for tile_row in range(first, last):
        slot = TILE_COLUMNS * tile_row
        place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
        if rows[np.uint64(place)] >= 0:
            _store(rows[np.uint64(place)], _term(columns, values, slot, x), x, y, alpha, beta)
        if rows[np.uint64(place + HALF_WARP)] >= 0:
            total = (
                _term(columns, values, slot + 1, x)
                + _term(columns, values, slot + 2, x)
                + _term(columns, values, slot + 3, x)
            )
            _store(rows[np.uint64(place + HALF_WARP)], total, x, y, alpha, beta)


@_compile
def _multiply_22(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    # A tile row holds two rows of 2; a warp lists its 16 first ones before the second ones.
    for tile_row in range(first, last):
        slot = TILE_COLUMNS * tile_row
        place = WARP * (tile_row // HALF_WARP) + tile_row % HALF_WARP
        if rows[np.uint64(place)] >= 0:
            _store(
                rows[np.uint64(place)],
                _term(columns, values, slot, x) + _term(columns, values, slot + 1, x),
                x,
                y,
                alpha,
                beta,
            )
        if rows[np.uint64(place + HALF_WARP)] >= 0:
            total = _term(columns, values, slot + 2, x) + _term(columns, values, slot + 3, x)
            _store(rows[np.uint64(place + HALF_WARP)], total, x, y, alpha, beta)


@_compile
def _multiply_fours(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        if rows[r] >= 0:
            slot = TILE_COLUMNS * r
            total = x.dtype.type(0)
            for k in range(MAX_SHORT - 1):
                total += _term(columns, values, slot + k, x)
            total += _term_or_pad(columns, values, slot + MAX_SHORT - 1, x)
            _store(rows[r], total, x, y, alpha, beta)


@_compile
def _multiply_singles(first, last, rows, columns, values, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        _store(rows[r], _term(columns, values, r, x), x, y, alpha, beta)


@_compile
def _clear_rows(first, last, rows, partials, x, y, alpha, beta):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        _store(rows[r], x.dtype.type(0), x, y, alpha, beta)
