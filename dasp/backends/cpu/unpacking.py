"""The way back from slices on the CPU: the matrix, and the slots of its entries.

`dasp.backends.protocols.Primitives` says what each function returns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dasp._compile import jit
from dasp._dtypes import bits_type, real_type
from dasp.backends.cpu.ranges import over_ranges
from dasp.formats.array import WARP, Plan, narrowest
from dasp.formats.sliced.pattern import (
    BITS_8,
    BITS_16,
    NONE,
    PAD_8,
    PAD_16,
    PAD_32,
    Coding,
    Pattern,
    Values,
    delta_views,
    shape_fields,
)

Vector = np.ndarray[Any, Any]

NO_ORDER = NO_SLOTS = np.empty(0, np.int32)
NO_CODES = np.empty(0, np.uint8)
"""What stands for an array that is not there, or not asked for."""


def unpack(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """See `Primitives`."""
    pattern, values = plan.pattern, plan.values
    starts, cursors = _start_rows(pattern, plan.shape[0])
    indices = np.empty(pattern.entries, pattern.index_dtype)
    codes = np.empty(pattern.entries if len(values.codes) else 0, values.codes.dtype)
    bits = bits_type(codes.dtype)
    slices = _slices(pattern), pattern.bases, values.codes.view(bits), cursors
    work = partial(_list_entries, *slices, NO_ORDER, indices, codes.view(bits), NO_SLOTS)
    over_ranges(len(pattern.headers), pattern.entries, work)
    return starts, indices, _decode(values, codes, pattern.entries, plan.dtype)


def slots(plan: Plan) -> Vector:
    """See `Primitives`."""
    pattern = plan.pattern
    _, cursors = _start_rows(pattern, plan.shape[0])
    found = np.empty(pattern.entries, narrowest(WARP * len(pattern.bases)))
    order = NO_ORDER if plan.order is None else plan.order
    slices = _slices(pattern), pattern.bases, NO_CODES, cursors
    work = partial(_list_entries, *slices, order, NO_SLOTS, NO_CODES, found)
    over_ranges(len(pattern.headers), pattern.entries, work)
    return found


def _slices(pattern: Pattern) -> tuple[Any, ...]:
    return pattern.headers, delta_views(pattern.deltas), pattern.segments, pattern.positions


def _start_rows(pattern: Pattern, m: int) -> tuple[Vector, Vector]:
    """Return where each row begins, with the number of entries; and where each position and segment does."""
    positions, segments = pattern.positions, pattern.segments
    counts = np.empty(
        positions + segments, np.int64
    )  # of each position; then of the segments by their numbers
    over_ranges(len(pattern.headers), pattern.entries, partial(_count_entries, _slices(pattern), counts))
    starts, cursors = np.empty(m + 1, np.int64), np.empty_like(counts)
    rows = pattern.rows, pattern.long_rows, pattern.segment_offsets
    _sum_rows(positions, *rows, counts, starts, cursors)
    return starts, cursors


def _decode(values: Values, codes: Vector, count: int, dtype: np.dtype[Any]) -> Vector:
    """Return the values that codes stand for."""
    if values.coding == Coding.EQUAL:
        return np.full(count, values.table[0], dtype)
    if values.coding == Coding.DICTIONARY:
        found: Vector = values.table[codes]
        return found
    if values.coding == Coding.SINGLE and dtype.kind == "c":
        return codes.view(np.float32).astype(np.float64).view(dtype)
    if dtype.kind == "c" and values.coding != Coding.PLAIN:
        parts = np.zeros((count, 2), real_type(dtype))
        parts[:, 0] = codes
        return parts.view(dtype).ravel()
    return codes.astype(dtype, copy=False)


_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)
_shape_fields = _compile(shape_fields)


@_inline
def _is_pad(deltas, width, slot):  # type: ignore[no-untyped-def]
    bytes_of, words_of, doubles_of = deltas
    if width == BITS_8:
        return bytes_of[slot] == PAD_8
    if width == BITS_16:
        return words_of[slot] == PAD_16
    return width != NONE and doubles_of[slot] == PAD_32


@_inline
def _delta(deltas, width, slot, lane):  # type: ignore[no-untyped-def]
    bytes_of, words_of, doubles_of = deltas
    if width == BITS_8:
        return np.int64(bytes_of[slot])
    if width == BITS_16:
        return np.int64(words_of[slot])
    return np.int64(lane) if width == NONE else np.int64(doubles_of[slot])


@_inline
def _first_delta(header, width):  # type: ignore[no-untyped-def]
    return WARP * np.int64(header[2]) >> max(width - 1, 0)


@_compile
def _count_entries(slices, counts, begin, end):  # type: ignore[no-untyped-def]
    headers, deltas, segments, positions = slices
    for s in range(begin, end):
        steps, full, shift, width = _shape_fields(np.int64(headers[s, 3]))
        first, slot = np.int64(headers[s, 1]), _first_delta(headers[s], width)
        first, end_of_rows = (
            (positions + first, positions + first + 1) if s < segments else (first, positions)
        )
        for row in range(min(WARP >> shift, end_of_rows - first)):
            count = full << shift
            for step in range(full, steps):
                for lane in range(row << shift, (row + 1) << shift):
                    count += not _is_pad(deltas, width, slot + WARP * step + lane)
            counts[first + row] = count


@_compile
def _sum_rows(positions, rows, long_rows, segment_offsets, counts, starts, cursors):  # type: ignore[no-untyped-def]
    """Set where each row begins, and from where each position and each segment goes on."""
    for position in range(positions):
        starts[rows[position] if len(rows) else position] = counts[position]
    for r in range(len(long_rows)):
        starts[long_rows[r]] = counts[
            positions + segment_offsets[r] : positions + segment_offsets[r + 1]
        ].sum()
    total = 0
    for row in range(len(starts) - 1):
        count = starts[row]
        starts[row] = total
        total += count
    starts[-1] = total
    for position in range(positions):
        cursors[position] = starts[rows[position] if len(rows) else position]
    for r in range(len(long_rows)):
        place = starts[long_rows[r]]
        for piece in range(positions + segment_offsets[r], positions + segment_offsets[r + 1]):
            cursors[piece] = place
            place += counts[piece]


@_compile
def _list_entries(  # type: ignore[no-untyped-def]
    slices, bases, codes, cursors, order, indices, to_codes, slots, begin, end
):
    """Walk the entries row by row: write the slot of each, as they came in, or its column and its code."""
    headers, deltas, segments, positions = slices
    for s in range(begin, end):
        steps, full, shift, width = _shape_fields(np.int64(headers[s, 3]))
        first_step, first = np.int64(headers[s, 0]), np.int64(headers[s, 1])
        slot = _first_delta(headers[s], width)
        first, end_of_rows = (
            (positions + first, positions + first + 1) if s < segments else (first, positions)
        )
        for row in range(min(WARP >> shift, end_of_rows - first)):
            place = cursors[first + row]
            for step in range(steps):
                base = bases[first_step + step]
                for lane in range(row << shift, (row + 1) << shift):
                    at = WARP * step + lane
                    if step >= full and _is_pad(deltas, width, slot + at):
                        continue
                    if len(slots):
                        slots[order[place] if len(order) else place] = WARP * first_step + at
                    else:
                        indices[place] = base + _delta(deltas, width, slot + at, lane)
                        if len(to_codes):
                            to_codes[place] = codes[WARP * first_step + at]
                    place += 1
