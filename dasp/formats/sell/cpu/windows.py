"""Try sort windows on the CPU: sort rows inside windows, cut them into slices, and count what slices read.

Rows lie longest first inside a window, so a count of each length gives the lengths in their new order, and
these give the slices. The rows themselves are sorted for the layout, and for samples of the sectors that
blocks of slices read.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.sell.choose import SAMPLES, TILE_ROWS, SliceStatistics, draw_tile
from dasp.formats.sell.pattern import MOST_WARPS
from dasp.formats.sell.primitives import Cut, Layout, Runs, Slices, Survey, Tried
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import Vector

SECTOR_BITS = 36
"""Bits of a sector's number in a key; the other bits number the block of slices that reads it."""


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
