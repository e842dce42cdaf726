"""The statistics of sort windows on the CPU: lengths are sorted, and rows only where a sample looks.

Inside a window rows lie longest first, so their lengths are known from how often each occurs. Slices follow
from lengths; what blocks of slices read asks for the rows themselves, in the places of the sample.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.sell.choose import SAMPLES, TILE_ROWS, SliceStatistics, drawn_tile
from dasp.formats.sell.layout import Cut, Layout, Runs, Slices, Survey, Tried
from dasp.formats.sell.pattern import MOST_WARPS
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.integers import ceil_div

Vector = np.ndarray[Any, Any]

DIRECT_SECTORS = 1 << 20
"""Sectors up to which each has its own place, of 4 bytes, in the table of those seen; others are hashed."""


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
    lengths, steps = survey.detail[0], cut.steps  # lengths: below 0 for rows that are in no slice
    all_rows = len(lengths)
    if tiles:
        rows = _rows_of_tiles(tiles, all_rows)
        csr, lengths = csr._replace(indptr=csr.indptr[rows]), np.maximum(lengths[rows], 0)

    def statistics(window: int) -> SliceStatistics:
        in_order, begins = _lengths_in_order(lengths, window, WARP * steps)
        slices = cut_runs(in_order, steps)
        runs = Runs(np.empty(begins[-1], csr.indptr.dtype), np.empty(begins[-1], np.int32))
        if any(blocks):
            wanted = _places(slices)[:, None] + np.arange(MOST_WARPS)
            _take_sampled(csr.indptr, lengths, window, begins, slices.first_run, wanted, WARP * steps, *runs)
        found = _sample(slices, runs, csr, sector_columns, blocks)
        return found.scaled(all_rows, len(lengths)) if tiles else found

    def each(begin: int, end: int) -> list[SliceStatistics]:
        return [statistics(window) for window in windows[begin:end]]

    found = chain.from_iterable(over_ranges(len(windows), len(csr.data), each))
    return Tried(dict(zip(windows, found, strict=True)), None)


def _rows_of_tiles(tiles: int, rows: int) -> Vector:
    """Return the rows of so many tiles that are drawn."""
    firsts = [TILE_ROWS * drawn_tile(nth, tiles, rows // TILE_ROWS) for nth in range(tiles)]
    return (np.array(firsts)[:, None] + np.arange(TILE_ROWS)).ravel()


def slice_statistics(
    csr: Csr, survey: Survey, cut: Cut, layout: Layout, sector_columns: int, blocks: tuple[int, int, int]
) -> SliceStatistics:
    """See `Primitives`."""
    return _sample(layout.detail.slices, layout.detail.runs, csr, sector_columns, blocks)


def _sample(
    slices: Slices, runs: Runs, csr: Csr, sector_columns: int, blocks: tuple[int, int, int]
) -> SliceStatistics:
    """Count slices and, in a sample, sectors; only the runs of the slices in the sample are read."""
    count = len(slices.steps)
    steps, full = int(slices.steps.sum()), int(slices.full.sum())
    if not count or not any(blocks):
        return SliceStatistics(count, steps, full, 0, 0, 0, 0)
    every, shift = csr.shape[1] // sector_columns + 1, sector_columns.bit_length() - 1
    sampled, *sectors = _count_sectors(*slices, *runs, csr.indices, _places(slices), blocks, shift, every)
    return SliceStatistics(count, steps, full, sampled, *sectors)


def _places(slices: Slices) -> Vector:
    """Return the first slice of every place of the sample."""
    places: Vector = np.linspace(0, max(len(slices.steps) - MOST_WARPS, 0), SAMPLES).astype(np.int64)
    return places


def _lengths_in_order(lengths: Vector, window: int, longest: int) -> tuple[Vector, Vector]:
    """Return lengths as they stand in slices, and the position at which each window begins and all end."""
    width = window or max(len(lengths), 1)
    in_order, begins = np.empty(len(lengths), np.int32), np.empty(ceil_div(len(lengths), width) + 1, np.int64)
    _sort_lengths(lengths, width, window > 0, in_order, begins, np.zeros(longest + 1, np.int32))
    return in_order[: begins[-1]], begins


def cut_runs(lengths: Vector, steps: int) -> Slices:
    """Cut runs into slices of at most `steps` steps.

    A slice has as few lanes to a run as let its longest run end within `steps`.
    """
    cuts = np.empty((4, len(lengths)), np.int64)
    return Slices(*cuts[:, : _cut_runs(lengths, steps, cuts)])


_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)


@_compile
def _sort_lengths(lengths, width, sorts, in_order, begins, times_of):
    """Write lengths as they stand in slices, and the position at which each window begins and all end.

    `times_of` counts lengths, and is 0 before and after.
    """
    m, place = len(lengths), 0
    for nth in range(len(begins) - 1):
        begins[nth] = place
        begin, end = nth * width, min((nth + 1) * width, m)
        if not sorts:
            for row in range(begin, end):
                in_order[place] = lengths[row]
                place += lengths[row] >= 0
            continue
        most = 0
        for row in range(begin, end):
            if lengths[row] >= 0:
                times_of[lengths[row]] += 1
                most = max(most, lengths[row])
        for length in range(most, -1, -1):
            for _ in range(times_of[length]):
                in_order[place] = length
                place += 1
            times_of[length] = 0
    begins[-1] = place


@_compile
def _cut_runs(lengths, steps, cuts):
    """Write first run, shift, steps and full steps of each slice, and return how many slices there are."""
    slices = run = 0
    while run < len(lengths):
        shift, most, least = -1, np.int64(0), np.int64(0)
        while shift < 0 or most > steps << shift:
            shift += 1
            most = least = np.int64(lengths[run])
            for i in range(np.uint64(run), np.uint64(min(run + (WARP >> shift), len(lengths)))):
                most, least = max(most, np.int64(lengths[i])), min(least, np.int64(lengths[i]))
        cuts[0, slices], cuts[1, slices] = run, shift
        cuts[2, slices] = (most + (1 << shift) - 1) >> shift
        run += WARP >> shift
        cuts[3, slices] = least >> shift if run <= len(lengths) else 0
        slices += 1
    return slices


@_inline
def _sort_window(indptr, lengths, begin, end, sorts, place, cursors, rows, starts, sizes):
    """Set row, start and length at the positions of a window from `place` on; equal lengths keep their order.

    Cursors are 0 before and after. No rows are set if there is no room for any.
    """
    most = np.int64(-1)
    for row in range(begin, end if sorts else begin):
        length = np.int64(lengths[row])
        if length >= 0:
            cursors[length] += 1
            most = max(most, length)
    first = np.int64(place)
    for each in range(most, -1, -1):
        times = cursors[each]
        cursors[each] = first
        first += times
    for row in range(begin, end):
        length = np.int64(lengths[row])
        if length >= 0:
            at = place
            if sorts:
                at = cursors[length]
                cursors[length] += 1
            else:
                place += 1
            starts[at], sizes[at] = indptr[row], length
            if len(rows):
                rows[at] = row
    cursors[: most + 1] = 0


@_compile
def sort_rows(indptr, lengths, window, longest, rows, starts, sizes):
    """Set row, start and length at every position, longest first inside each window; 0 leaves their order."""
    cursors, place = np.zeros(longest + 1, np.int64), 0
    width = window if window > 0 else max(len(lengths), 1)
    for begin in range(0, len(lengths), width):
        end = min(begin + width, len(lengths))
        _sort_window(indptr, lengths, begin, end, window > 0, place, cursors, rows, starts, sizes)
        for row in range(begin, end):
            place += lengths[row] >= 0


@_compile
def _take_sampled(indptr, lengths, window, begins, first_run, wanted, longest, starts, sizes):
    """Set start and length of the runs of the wanted slices, and of those in the same windows."""
    width = window if window > 0 else max(len(lengths), 1)
    done, cursors = np.zeros(len(begins), np.bool_), np.zeros(longest + 1, np.int64)
    for s in wanted.ravel():
        if s >= len(first_run):
            continue
        first, last = first_run[s], first_run[s + 1] if s + 1 < len(first_run) else len(starts)
        if window == 0 and len(starts) == len(lengths):
            for row in range(first, last):
                starts[row], sizes[row] = indptr[row], lengths[row]
            continue
        nth = np.searchsorted(begins, first, side="right") - 1
        while nth < len(begins) - 1 and begins[nth] < last:
            if not done[nth]:
                done[nth] = True
                begin, end = nth * width, min((nth + 1) * width, len(lengths))
                _sort_window(
                    indptr, lengths, begin, end, window > 0, begins[nth], cursors, begins[:0], starts, sizes
                )
            nth += 1


@_compile
def _count_sectors(
    first_run, shifts, steps, full, starts, lengths, indices, firsts, blocks, sector_shift, sectors
):
    count, sampled, most = len(steps), 0, 1
    for first in firsts:
        slots = 0
        for s in range(first, min(first + MOST_WARPS, count)):
            sampled += steps[s]
            slots += WARP * steps[s]
        most = max(most, slots)
    direct = sectors <= DIRECT_SECTORS
    places = np.int64(1)  # open addressing, at most half full
    while places < 2 * most:
        places *= 2
    if direct:
        places = np.int64(sectors)
    holds, seen = np.zeros(1 if direct else places, np.int64), np.zeros(places, np.int32)
    block = np.int32(0)
    totals = np.zeros(3, np.int64)
    found = np.empty(count, np.int32)
    for kind in range(3):
        if blocks[kind] == 0:
            continue
        found[:] = -1  # sectors of the block that begins at a slice: places of a small matrix overlap
        for first in firsts:
            for begin in range(first, min(first + MOST_WARPS, count), blocks[kind]):
                if found[begin] < 0:
                    block += np.int32(1)
                    distinct = 0
                    for s in range(begin, min(begin + blocks[kind], count)):
                        for run in range(first_run[s], min(first_run[s] + (WARP >> shifts[s]), len(lengths))):
                            entries = range(np.uint64(starts[run]), np.uint64(starts[run] + lengths[run]))
                            if direct:
                                distinct += _mark(entries, indices, sector_shift, seen, block)
                            else:
                                distinct += _mark_hashed(entries, indices, sector_shift, seen, holds, block)
                    found[begin] = distinct
                totals[kind] += found[begin]
    return sampled, totals[0], totals[1], totals[2]


@_inline
def _mark(entries, indices, sector_shift, seen, block):
    """Mark the sectors of entries as seen by a block, without a branch. Return the number of new ones."""
    new = 0
    for entry in entries:
        sector = np.uint64(indices[entry]) >> np.uint64(sector_shift)
        new += seen[sector] != block
        seen[sector] = block
    return new


@_inline
def _mark_hashed(entries, indices, sector_shift, seen, holds, block):
    """Mark sectors as `_mark` does, where they share places. Return the number of new ones."""
    new = 0
    last = np.uint64(len(seen) - 1)
    for entry in entries:
        sector = np.uint64(indices[entry]) >> np.uint64(sector_shift)
        place = sector & last
        while seen[place] == block and holds[place] != sector:
            place = (place + np.uint64(1)) & last
        if seen[place] != block:
            seen[place], holds[place] = block, sector
            new += 1
    return new
