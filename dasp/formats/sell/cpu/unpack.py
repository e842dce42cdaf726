"""Unpack slices on the CPU: the matrix, and the slots of its entries.

`dasp.formats.sell.primitives.Primitives` says what each function returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dasp.formats.cost import MOST_STEPS
from dasp.formats.plan import WARP, Plan, diagonal_rows
from dasp.formats.sell.cpu.lanes import load_columns
from dasp.formats.sell.cpu.values import decode
from dasp.formats.sell.pattern import Pattern, unpack_shape
from dasp.formats.sell.primitives import Runs, Slices
from dasp.runtime.arrays import as_input
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import at
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import bits_type, sum_type
from dasp.runtime.sizes import narrowest, new_array
from dasp.runtime.types import Vector

NO_COLUMN = -(1 << 62)
"""The column searched for in a lane without a row."""


def unpack(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """See `Primitives`."""
    pattern, values = plan.pattern, plan.values
    starts, cursors, _, _ = _start_rows(pattern, plan.shape[0])
    indices = new_array(pattern.entries, pattern.index_dtype)
    codes = new_array(pattern.entries if len(values.codes) else 0, values.codes.dtype)
    bits = bits_type(codes.dtype)
    _over_slices(
        _list_entries, pattern, as_input(values.codes.view(bits)), cursors, indices, codes.view(bits)
    )
    return starts, indices, decode(values, codes, pattern.entries, plan.dtype)


class RowPlaces(NamedTuple):
    """The places of the entries of a plan of slices, row by row.

    Attributes
    ----------
    slices : Slices
    first_steps : numpy.ndarray, shape (slices,), int64
    runs : Runs
        Runs of the matrix, segments first, as in the slices.
    """

    slices: Slices
    first_steps: Vector
    runs: Runs

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.slices, self.first_steps, *self.runs))


def find_slots(plan: Plan) -> RowPlaces | Vector:
    """See `Primitives`: the places of rows or, if entries came in another order, the slot of each entry.

    Reading values out of order takes longer than writing them out of order: rows leave the first cache,
    slices hardly do.
    """
    pattern, order = plan.pattern, plan.order
    _, cursors, counts, gaps = _start_rows(pattern, plan.shape[0])
    if order is None and not gaps:
        return _find_places(pattern, cursors, counts)
    found = np.empty(pattern.entries, narrowest(WARP * len(pattern.bases)))
    order = as_input(np.empty(0, np.int32) if order is None else order)
    _over_slices(_number_slots, pattern, cursors, order, found)
    return found


def _find_places(pattern: Pattern, cursors: Vector, counts: Vector) -> RowPlaces:
    """Return the places of a pattern's rows, from the results of `_start_rows`."""
    headers, segments = pattern.headers.astype(np.int64), pattern.segments
    steps, full, shift, _ = unpack_shape(headers[:, 3])
    first_run = headers[:, 1] + segments
    first_run[:segments] = np.arange(segments)
    turns = np.concatenate([pattern.positions + headers[:segments, 1], np.arange(pattern.positions)])
    runs = Runs(cursors[turns].astype(narrowest(pattern.entries)), counts[turns].astype(np.int32))
    return RowPlaces(Slices(first_run, shift, steps, full), headers[:, 0].copy(), runs)


def _over_slices(function: Callable[..., Any], pattern: Pattern, *arrays: Any) -> list[Any]:
    """Call a compiled function for ranges of slices, in several threads; return its results.

    It gets the pattern's arrays, then `arrays`, scratch for the columns of a slice and one more step, and the
    range.
    """
    headers, deltas, bases = map(as_input, (pattern.headers, pattern.deltas, pattern.bases))
    slices = headers, deltas, bases, pattern.segments, pattern.positions

    def work(begin: int, end: int) -> Any:
        return function(slices, *arrays, np.empty(WARP * (MOST_STEPS + 1), np.int64), begin, end)

    return over_ranges(len(headers), pattern.entries, work)


class _RowStarts(NamedTuple):
    """The places of a pattern's rows in the matrix.

    Attributes
    ----------
    starts : numpy.ndarray, shape (m + 1,), int64
        First entry of each row, and the number of entries.
    cursors, counts : numpy.ndarray, shape (positions + segments,), int64
        First entry, and entries, of each position and then of each segment by its number.
    gaps : bool
        True if a row has a pad between two of its entries.
    """

    starts: Vector
    cursors: Vector
    counts: Vector
    gaps: bool


def _start_rows(pattern: Pattern, m: int) -> _RowStarts:
    """Return the places of the rows of a pattern of m rows."""
    positions, segments, long_rows = pattern.positions, pattern.segments, pattern.long_rows
    counts = np.empty(positions + segments, np.int64)
    gaps = _over_slices(_count_entries, pattern, counts)
    lengths, pieces = np.zeros(m, np.int64), counts[positions:]
    rows = pattern.rows if len(pattern.rows) else slice(positions)
    lengths[rows] = counts[:positions]
    if segments:
        lengths[long_rows] = np.add.reduceat(pieces, pattern.segment_offsets[:-1])
    starts, cursors = np.concatenate([[0], np.cumsum(lengths)]), np.empty_like(counts)
    cursors[:positions] = starts[:-1][rows]
    if segments:
        of, before = pattern.segment_rows, np.cumsum(pieces) - pieces
        cursors[positions:] = starts[long_rows[of]] + before - before[pattern.segment_offsets[of]]
    return _RowStarts(starts, cursors, counts, any(gaps))


def diagonal(plan: Plan, k: int) -> Vector | None:
    """Return the k-th diagonal in the type of sums, or None if an entry of it occurs twice."""
    first, count = diagonal_rows(plan.shape, k)
    values, total = plan.values, sum_type(plan.dtype)
    found = _find_diagonal(plan.pattern, k, first, count)
    if found is None:
        return None
    numbers = np.zeros(count, total)
    held = slice(None) if found.min(initial=0) >= 0 else found >= 0  # a mask takes longer than all
    slots = found[held]
    codes = values.codes[slots] if len(values.codes) else values.codes
    with np.errstate(invalid="ignore"):
        numbers[held] += decode(values, codes, len(slots), plan.dtype)  # as SciPy does: none is -0
    return numbers


def _find_diagonal(pattern: Pattern, k: int, first: int, count: int) -> Vector | None:
    """Return the slot of each row's entry on the k-th diagonal, -1 for none, or None if a row has two."""
    found, pieces = np.full(count, -1, np.int64), np.full(pattern.segments, -1, np.int64)
    rows = pattern.rows, pattern.long_rows, pattern.segment_rows
    if any(_over_slices(_find_columns, pattern, rows, k, first, found, pieces)):
        return None
    held = np.flatnonzero(pieces >= 0)
    of = pattern.long_rows[pattern.segment_rows[held]]
    found[of - first] = pieces[held]
    return found if len(np.unique(of)) == len(of) else None


def clear_pads(pattern: Pattern, codes: Vector) -> None:
    """See `Primitives`."""
    _over_slices(_clear_pads, pattern, codes.view(bits_type(codes.dtype)))


_compile = jit(nogil=True)
_inline = jit(nogil=True, inline="always")
_unpack_shape = _compile(unpack_shape)


@_inline
def _load_columns(slices, s, first, last, width, block):
    """Write the column of every slot of some steps of slice s to the scratch, -1 for a pad."""
    headers, deltas, bases, _, _ = slices
    bytes_of_step = WARP * (1 << width >> 1)
    place, base = WARP * np.int64(headers[s, 2]), np.int64(headers[s, 0])
    for step in range(first, last):
        column = np.int64(bases[np.uint64(base + step)])
        load_columns(deltas, place + bytes_of_step * step, width, column, block, WARP * step)


@_inline
def _find_slice_places(slices, s, shift):
    """Return the place of a slice's first row, and the number of its rows. Segments follow all positions."""
    headers, _, _, segments, positions = slices
    first = np.int64(headers[s, 1])
    if s < segments:
        return positions + first, np.int64(1)
    return first, min(np.int64(WARP >> shift), positions - first)


@_compile
def _count_entries(slices, counts, block, begin, end):
    """Count the entries of each position and segment. Return True if one of them comes behind a pad."""
    gaps = False
    for s in range(begin, end):
        steps, full, shift, width = _unpack_shape(np.int64(slices[0][s, 3]))
        _load_columns(slices, s, full, steps, width, block)
        first, rows = _find_slice_places(slices, s, shift)
        for row in range(rows):
            count, behind = full << shift, full << shift
            for step in range(full, steps):
                for lane in range(row << shift, (row + 1) << shift):
                    there = block[np.uint64(WARP * step + lane)] >= 0
                    gaps |= there and count < behind
                    count, behind = count + there, behind + 1
            counts[first + row] = count
    return gaps


@_compile
def _find_columns(slices, rows, k, first_row, found, pieces, block, begin, end):
    """Find the slot of the entry k columns behind its row. Return True if a row or segment has two."""
    headers, _, _, segments, positions = slices
    of_positions, long_rows, segment_rows = rows
    twice, wanted = False, at(block, WARP * MOST_STEPS)  # Numba compiles allocations slowly
    for s in range(begin, end):
        steps, _, shift, width = _unpack_shape(np.int64(headers[s, 3]))
        _load_columns(slices, s, 0, steps, width, block)
        first_step, first = np.int64(headers[s, 0]), np.int64(headers[s, 1])
        for lane in range(WARP):
            position, column = first + (lane >> shift), np.int64(-1)
            if s < segments:
                column = np.int64(long_rows[segment_rows[first]]) + k
            elif position < positions:
                column = (np.int64(of_positions[position]) if len(of_positions) else position) + k
            wanted[lane] = column if column >= 0 else NO_COLUMN
        for step in range(np.uint64(steps)):
            hits = np.int64(0)
            for lane in range(np.uint64(WARP)):
                hits |= np.int64(block[np.uint64(WARP) * step + lane] == wanted[lane])
            if not hits:
                continue
            for lane in range(WARP):
                if block[WARP * step + lane] == wanted[lane]:
                    to, place = (pieces, first) if s < segments else (found, wanted[lane] - k - first_row)
                    twice |= to[place] >= 0
                    to[place] = WARP * (first_step + step) + lane
    return twice


@_compile
def _clear_pads(slices, codes, block, begin, end):
    for s in range(begin, end):
        steps, full, _, width = _unpack_shape(np.int64(slices[0][s, 3]))
        _load_columns(slices, s, full, steps, width, block)
        first_slot = WARP * np.int64(slices[0][s, 0])
        for slot in range(WARP * full, WARP * steps):
            if block[slot] < 0:
                codes[first_slot + slot] = 0


@_compile
def _number_slots(slices, cursors, order, slots, block, begin, end):
    """Walk the entries row by row, and write the slot of each as they came in."""
    for s in range(begin, end):
        steps, full, shift, width = _unpack_shape(np.int64(slices[0][s, 3]))
        _load_columns(slices, s, full, steps, width, block)
        first_slot = WARP * np.int64(slices[0][s, 0])
        first, rows = _find_slice_places(slices, s, shift)
        for row in range(rows):
            place = cursors[first + row]
            for step in range(steps):
                for lane in range(row << shift, (row + 1) << shift):
                    slot = WARP * step + lane
                    if step >= full and block[slot] < 0:
                        continue
                    slots[order[place] if len(order) else place] = first_slot + slot
                    place += 1


@_compile
def _list_entries(slices, codes, cursors, indices, to_codes, block, begin, end):
    """Write the column of each entry, row by row, and its code if there are codes."""
    for s in range(begin, end):
        steps, full, shift, width = _unpack_shape(np.int64(slices[0][s, 3]))
        _load_columns(slices, s, 0, steps, width, block)
        first_slot = np.uint64(WARP * np.int64(slices[0][s, 0]))
        first, rows = _find_slice_places(slices, s, shift)
        mask = np.uint64((1 << shift) - 1)
        for row in range(rows):
            place, lane = np.uint64(cursors[first + row]), np.uint64(row << shift)
            for entry in range(np.uint64(full << shift)):
                slot = np.uint64(WARP) * (entry >> np.uint64(shift)) + lane + (entry & mask)
                indices[place + entry] = block[slot]
                if len(codes):
                    to_codes[place + entry] = codes[first_slot + slot]
            place += np.uint64(full << shift)
            for entry in range(np.uint64(full << shift), np.uint64(steps << shift)):
                slot = np.uint64(WARP) * (entry >> np.uint64(shift)) + lane + (entry & mask)
                if block[slot] >= 0:
                    indices[place] = block[slot]
                    if len(codes):
                        to_codes[place] = codes[first_slot + slot]
                    place += np.uint64(1)
