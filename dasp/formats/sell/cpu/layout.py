"""Lay rows out in slices on the CPU: survey the matrix, try sort windows, lay out.

Rows lie longest first inside a window, so a count of each length gives the lengths in their new order, and
these give the slices. The rows themselves are sorted for the layout, and for samples of the sectors that
blocks of slices read.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP, narrowest
from dasp.formats.sell.choose import SAMPLES, TILE_ROWS, SliceStatistics, draw_tile
from dasp.formats.sell.cpu.values import count_values
from dasp.formats.sell.pattern import MOST_WARPS, pack_shape
from dasp.formats.sell.primitives import Cut, Layout, Runs, Slices, Survey, Tried
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Vector

SURVEYED_ROWS, SURVEYED_ENTRIES = 256, 1 << 20
"""Rows that are surveyed while the cache holds their entries, and entries that are counted at once."""

SECTOR_BITS = 36
"""Bits of a sector's number in a key; the other bits number the block of slices that reads it."""


def survey(csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`."""
    m, entries = csr.shape[0], len(csr.indices)
    lengths = np.empty(m, np.int32)
    found = over_ranges(m, entries, partial(_survey_rows, csr.indptr, csr.indices, WARP * cut.steps, lengths))
    falls, most, long_rows, rises = (list(each) for each in zip(*found, strict=True))
    counted, coded = count_values(csr.data) if narrow and entries else (None, None)
    long = np.flatnonzero(lengths < 0) if sum(long_rows) else np.zeros(0, np.int64)
    # Rows also rise if a range begins with a longer row than the last one of the range before it.
    cuts = [m * part // len(found) for part in range(1, len(found))] if not any(rises) else []
    rise = any(rises) or any(rises_at(lengths, cut) for cut in cuts)
    longest = max(int(lengths.max(initial=0)), 0)
    detail = lengths, long, coded
    return Survey(not any(falls), int(max(most)), counted, len(long), longest, bool(rise), detail)


def rises_at(lengths: Vector, row: int) -> bool:
    """Return True if the first row in a slice from `row` on is longer than the last one before it."""
    before, after = (part[part >= 0] for part in (lengths[:row], lengths[row:]))
    return bool(len(before) and len(after) and after[0] > before[-1])


def try_windows(
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    sector_columns: int,
    blocks: tuple[int, int, int],
    tiles: int,
) -> Tried:
    """See `Primitives`."""
    lengths, long_rows = survey.detail[0], survey.long_rows
    all_rows = len(lengths)
    if tiles:
        rows = _list_tile_rows(tiles, all_rows)
        csr, lengths, long_rows = csr._replace(indptr=csr.indptr[rows]), np.maximum(lengths[rows], 0), 0

    def statistics(window: int) -> SliceStatistics:
        sorter = WindowSorter(csr, lengths, long_rows, window, WARP * cut.steps)
        slices = cut_runs(sorter.list_lengths(), cut.steps)
        runs = sorter.list_sampled_runs(slices) if any(blocks) else Runs(csr.indptr, lengths)
        found = _sample(slices, runs, csr, sector_columns, blocks)
        return found.scale(all_rows, len(lengths)) if tiles else found

    def each(begin: int, end: int) -> list[SliceStatistics]:
        return [statistics(window) for window in windows[begin:end]]

    found = chain.from_iterable(over_ranges(len(windows), len(csr.data), each))
    return Tried(dict(zip(windows, found, strict=True)), None)


def _list_tile_rows(tiles: int, rows: int) -> Vector:
    """Draw tiles and list their rows."""
    firsts = [TILE_ROWS * draw_tile(nth, tiles, rows // TILE_ROWS) for nth in range(tiles)]
    return (np.array(firsts)[:, None] + np.arange(TILE_ROWS)).ravel()


def slice_statistics(
    csr: Csr, survey: Survey, cut: Cut, layout: Layout, sector_columns: int, blocks: tuple[int, int, int]
) -> SliceStatistics:
    """See `Primitives`."""
    return _sample(layout.detail.slices, layout.detail.runs, csr, sector_columns, blocks)


def _sample(
    slices: Slices, runs: Runs, csr: Csr, sector_columns: int, blocks: tuple[int, int, int]
) -> SliceStatistics:
    """Count slices and, in a sample of them, sectors; only the runs of sampled slices are read."""
    count = len(slices.steps)
    steps, full = int(slices.steps.sum()), int(slices.full.sum())
    if not count or not any(blocks):
        return SliceStatistics(count, steps, full, 0, 0, 0, 0)
    places, ends = _draw_places(slices), np.append(0, np.cumsum(slices.steps))
    sampled = ends[np.minimum(places + MOST_WARPS, count)] - ends[places]
    # Each sector has a place of its own, or there are twice as many places as slots, and sectors share them.
    sectors, slots = csr.shape[1] // sector_columns + 1, WARP * int(sampled.max())
    room, shift = 1 << min(sectors, 2 * slots).bit_length(), sector_columns.bit_length() - 1
    arrays = slices.first_run, slices.shift, *runs, csr.indices, places

    def count_sectors(width: int) -> int:
        seen, counts = np.zeros(room, np.uint64), np.full(count, -1, np.int64)
        return int(_count_sectors(*arrays, width, shift, seen, counts)) if width else 0

    return SliceStatistics(count, steps, full, int(sampled.sum()), *map(count_sectors, blocks))


def _draw_places(slices: Slices) -> Vector:
    """Return the first slice of every place of the sample."""
    places: Vector = np.linspace(0, max(len(slices.steps) - MOST_WARPS, 0), SAMPLES).astype(np.int64)
    return places


class PlacedRuns(NamedTuple):
    """The detail of a layout: slices and their runs, segments first."""

    slices: Slices
    runs: Runs


def lay_out(csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
    """See `Primitives`."""
    index, (lengths, long_rows, _) = narrowest(max(csr.shape)), survey.detail
    positions = len(lengths) - len(long_rows)
    rows, runs = WindowSorter(csr, lengths, len(long_rows), window, WARP * cut.steps).list_rows_and_runs()
    slices = cut_runs(runs.lengths, cut.steps)
    segments = _cut_segments(csr, long_rows, cut, cut.in_order - len(slices.steps))
    if len(segments.rows):
        runs, slices = _put_segments_first(segments, runs, slices)
    headers = np.zeros((len(slices.steps), 4), np.uint32)
    headers[:, 0] = np.cumsum(slices.steps) - slices.steps
    headers[:, 1] = slices.first_run - len(segments.rows)
    headers[: len(segments.rows), 1] = segments.order
    headers[:, 3] = pack_shape(slices.steps, slices.full, slices.shift, 0)
    return Layout(
        positions=positions,
        segments=len(segments.rows),
        slices=len(slices.steps),
        steps=int(slices.steps.sum()),
        full=int(slices.full.sum()),
        segment_steps=int(slices.steps[: len(segments.rows)].sum()),
        rows=rows,
        headers=headers,
        long_rows=long_rows.astype(index),
        segment_offsets=segments.offsets.astype(index),
        segment_rows=segments.rows.astype(index),
        detail=PlacedRuns(slices, runs),
    )


class _Segments(NamedTuple):
    """Rows too long for one slice, cut into segments.

    Attributes
    ----------
    offsets : numpy.ndarray, shape (long rows + 1,)
        First segment of each long row.
    rows : numpy.ndarray, shape (segments,)
        The long row of each.
    order : numpy.ndarray, shape (segments,)
        Segments in the order in which they are stored.
    runs : Runs
        In that order.
    """

    offsets: Vector
    rows: Vector
    order: Vector
    runs: Runs


def _cut_segments(csr: Csr, long_rows: Vector, cut: Cut, few: int) -> _Segments:
    """Cut long rows into segments: row by row or, if there are more than `few`, by their first columns."""
    if not len(long_rows):
        return _Segments(np.zeros(1, np.int64), long_rows, long_rows, Runs(long_rows, long_rows))
    long = csr.indptr[long_rows + 1].astype(np.int64) - csr.indptr[long_rows]
    room = WARP * np.clip(ceil_div(long, WARP * cut.most_segments), cut.steps, cut.segment_steps)
    counts = ceil_div(long, room)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(long_rows)), counts)
    begun = room[rows] * (np.arange(len(rows)) - offsets[rows])
    starts = csr.indptr[long_rows].astype(np.int64)[rows] + begun
    lengths = np.minimum(long[rows] - begun, room[rows])
    order = np.arange(len(rows))
    if len(rows) > few:
        # Neighbours meet the same x, and when the last segment of a row comes, the others have been summed.
        order = np.argsort(csr.indices[starts], kind="stable")
    return _Segments(offsets, rows, order, Runs(starts[order], lengths[order]))


def _put_segments_first(segments: _Segments, runs: Runs, slices: Slices) -> tuple[Runs, Slices]:
    """Put a slice of 32 lanes for each segment before the other slices, and the runs likewise."""
    count, lengths = len(segments.rows), segments.runs.lengths
    pairs = zip(segments.runs, runs, strict=True)
    together = Runs(*(np.concatenate([mine.astype(rest.dtype), rest]) for mine, rest in pairs))
    return together, Slices(
        np.concatenate([np.arange(count), slices.first_run + count]),
        np.concatenate([np.full(count, 5), slices.shift]),
        np.concatenate([ceil_div(lengths, WARP), slices.steps]),
        np.concatenate([lengths // WARP, slices.full]),
    )


def cut_runs(lengths: Vector, steps: int) -> Slices:
    """Cut runs into slices of at most `steps` steps.

    A slice has the fewest lanes to a run with which its longest run ends within `steps`.
    """
    cuts = np.empty((4, len(lengths)), np.int64)
    return Slices(*cuts[:, : _cut_runs(lengths, steps, cuts)])


class WindowSorter:
    """Sorts rows inside each window, longest first, equal lengths in their order.

    Parameters
    ----------
    csr : Csr
    lengths : numpy.ndarray, int32
        Of rows; negative for long ones, which are left out.
    long_rows : int
    window : int
        Rows of a window; 0 to leave rows in their order.
    longest : int
        A bound of the other lengths.
    """

    def __init__(self, csr: Csr, lengths: Vector, long_rows: int, window: int, longest: int) -> None:
        self._window, self._longest = window, longest
        self._rows = np.empty(0, narrowest(max(csr.shape)))
        self._runs = Runs(csr.indptr[: len(lengths)], lengths)
        if window:
            firsts = np.arange(0, len(lengths), window)
            self._begins = np.append(firsts, len(lengths))
            if long_rows:
                self._begins[1:] = np.cumsum(np.add.reduceat(lengths >= 0, firsts, dtype=np.int64))
        elif long_rows:
            kept = np.flatnonzero(lengths >= 0)
            self._rows = kept.astype(self._rows.dtype)
            self._runs = Runs(*(array[kept] for array in self._runs))

    def list_lengths(self) -> Vector:
        """Return the lengths of rows in their new order."""
        if not self._window:
            return self._runs.lengths
        lengths = np.empty(self._begins[-1], np.int32)
        self._sort(_ALL, self._rows, np.empty(0, self._runs.starts.dtype), lengths)
        return lengths

    def list_rows_and_runs(self) -> tuple[Vector, Runs]:
        """Return the rows in their new order, or none if no row moves, and their runs."""
        if not self._window:
            return self._rows, self._runs
        rows, runs = np.empty(self._begins[-1], self._rows.dtype), self._allocate()
        self._sort(_ALL, rows, *runs)
        return rows, runs

    def list_sampled_runs(self, slices: Slices) -> Runs:
        """Return the runs in their new order; only those in windows of the sample are set."""
        if not self._window:
            return self._runs
        begins, places, runs = self._begins, _draw_places(slices), self._allocate()
        ends = np.append(slices.first_run, begins[-1])[np.minimum(places + MOST_WARPS, len(slices.steps))]
        firsts = np.searchsorted(begins, slices.first_run[places], side="right") - 1
        self._sort((firsts, np.searchsorted(begins, ends)), self._rows, *runs)
        return runs

    def _allocate(self) -> Runs:
        count = self._begins[-1]
        return Runs(np.empty(count, self._runs.starts.dtype), np.empty(count, np.int32))

    def _sort(self, windows: tuple[Vector, Vector], rows: Vector, starts: Vector, lengths: Vector) -> None:
        """Sort some ranges of windows; arrays of no length are not set."""
        cursors = np.zeros(self._longest + 1, np.int64)
        _sort_windows(*self._runs, self._window, self._begins, *windows, cursors, rows, starts, lengths)


_ALL = np.zeros(1, np.int64), np.full(1, np.iinfo(np.int64).max)
"""The range of all windows."""

_compile = jit(nogil=True)
# `a if a < b else b`, not `min(a, b)`: Numba compiles `min`, `max` and `int` as functions for each type.


@_compile
def _survey_rows(indptr, indices, longest, lengths, begin, end):
    """Write the lengths of rows, `PAD` for long ones.

    Return True if columns fall inside a row, the largest column or -1, the number of long rows, and True if
    a row in a slice is longer than the last one before it.
    """
    falls = long_rows = rises = 0
    most, last = indices.dtype.type(-1), np.int64((1 << 63) - 1)  # no row is as long
    for first in range(begin, end, SURVEYED_ROWS):
        stop = first + SURVEYED_ROWS if first + SURVEYED_ROWS < end else end
        between = np.int64(0)  # falls from row to row
        for row in range(first, stop):
            start, length = np.int64(indptr[row]), np.int64(indptr[row + 1]) - np.int64(indptr[row])
            if length > 0 and start > indptr[first]:
                between += indices[start] < indices[start - 1]
            if length > longest:
                long_rows += 1
                length = np.int64(PAD)
            else:
                rises = 1 if length > last else rises
                last = length
            lengths[row] = length
        for some in range(indptr[first], indptr[stop], SURVEYED_ENTRIES):
            down = np.uint32(0)
            after_some = some + SURVEYED_ENTRIES if some + SURVEYED_ENTRIES < indptr[stop] else indptr[stop]
            most = indices[some] if indices[some] > most else most
            # Neighbours by numbers without a sign are compared many at a time.
            for entry in range(np.uint64(some), np.uint64(after_some - 1)):
                after = indices[entry + np.uint64(1)]
                down = np.uint32(down + np.uint32(after < indices[entry]))
                most = after if after > most else most
            between -= np.int64(down)
            if some > indptr[first]:
                between -= indices[some] < indices[some - 1]
        falls = 1 if between != 0 else falls
    return falls > 0, most, long_rows, rises > 0


@_compile
def _sort_windows(starts, lengths, width, begins, firsts, stops, cursors, rows, to_starts, to_lengths):
    """Sort some windows, longest row first: write lengths, and rows and starts unless these have no length.

    `begins` holds the position of the first row of each window, `firsts` and `stops` the rising ranges of
    windows. `cursors`, one for each length, are 0 before and after.
    """
    done = 0
    for i in range(len(firsts)):
        first = firsts[i] if firsts[i] > done else done
        done = stops[i] if stops[i] < len(begins) else len(begins) - 1
        for nth in range(first, done):
            place, begin, end = begins[nth], nth * width, (nth + 1) * width
            end = end if end < len(lengths) else len(lengths)
            most = 0
            for row in range(begin, end):
                if lengths[row] >= 0:
                    cursors[lengths[row]] += 1
                    most = lengths[row] if lengths[row] > most else most
            for length in range(most, -1, -1):
                times, cursors[length] = cursors[length], place
                for _ in range(times):
                    to_lengths[place] = length
                    place += 1
            if len(to_starts):
                for row in range(begin, end):
                    if lengths[row] >= 0:
                        at = cursors[lengths[row]]
                        cursors[lengths[row]] += 1
                        to_starts[at] = starts[row]
                        if len(rows):
                            rows[at] = row
            for length in range(most + 1):
                cursors[length] = 0


@_compile
def _cut_runs(lengths, steps, cuts):
    """Write first run, shift, steps and full steps of each slice, and return the number of slices."""
    slices = run = 0
    while run < len(lengths):
        shift, most, least = -1, np.int64(0), np.int64(0)
        while shift < 0 or most > steps << shift:
            shift += 1
            most = least = np.int64(lengths[run])
            end = run + (WARP >> shift)
            for i in range(np.uint64(run), np.uint64(end if end < len(lengths) else len(lengths))):
                length = np.int64(lengths[i])
                most, least = length if length > most else most, length if length < least else least
        cuts[0, slices], cuts[1, slices] = run, shift
        cuts[2, slices] = (most + (1 << shift) - 1) >> shift
        run += WARP >> shift
        cuts[3, slices] = least >> shift if run <= len(lengths) else 0
        slices += 1
    return slices


@_compile
def _count_sectors(first_run, shifts, starts, lengths, indices, places, width, sector_shift, seen, counts):
    """Count the sectors that blocks of `width` slices read, and add them up over all places.

    `seen` is a hash table of zeros, a power of two long. `counts` is -1 for each slice; it keeps the count of
    a block that belongs to several places of a small matrix.
    """
    total, slices, last = 0, len(counts), np.uint64(len(seen) - 1)
    ones, one = np.uint64((1 << SECTOR_BITS) - 1), np.uint64(1)
    for first in places:
        for begin in range(first, min(first + MOST_WARPS, slices), width):
            if counts[begin] < 0:
                counts[begin] = 0
                block = np.uint64(begin + 1) << np.uint64(SECTOR_BITS)
                for s in range(begin, min(begin + width, slices)):
                    for run in range(first_run[s], min(first_run[s] + (WARP >> shifts[s]), len(lengths))):
                        for entry in range(np.uint64(starts[run]), np.uint64(starts[run] + lengths[run])):
                            key = block | np.uint64(indices[entry]) >> np.uint64(sector_shift)
                            place = key & last
                            while (seen[place] ^ key) - one < ones:  # another sector of this block
                                place = (place + one) & last
                            counts[begin] += seen[place] != key
                            seen[place] = key
            total += counts[begin]
    return total
