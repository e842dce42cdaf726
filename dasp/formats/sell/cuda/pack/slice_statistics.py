"""Counts of slices: of those that each sort window would give, and of those of a layout."""

from __future__ import annotations

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array, nbytes
from dasp.formats.sell.choose import SliceStatistics
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import CUT_THREADS, NUMBERS, PLACES, SHARED_SLOTS, SORT_TILE, TOTALS
from dasp.formats.sell.cuda.pack.kinds import COUNT, UINT32
from dasp.formats.sell.cuda.pack.launcher import Launcher
from dasp.formats.sell.cuda.pack.orders import Orders, cut_orders, is_unmoved, steps_of
from dasp.formats.sell.cuda.pack.segments import NO_SEGMENTS, Segments
from dasp.formats.sell.primitives import Cut, Layout, Survey, Tried

SHARE, FLOOR = 0.6, 8 << 20
"""Share of the bytes of a matrix, or bytes if more, in which windows are tried side by side."""


def try_windows(
    on: Launcher,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    sector_columns: int,
    blocks: tuple[int, int, int],
    tiles: int,
) -> Tried:
    """See `Primitives`; as many windows side by side as their share of the matrix's memory holds."""
    m = csr.shape[0]
    rows = tiles * SORT_TILE or m
    each = rows * (kinds.of_matrix(csr).types["Index"].itemsize + 1)
    at_once = max(max(int(SHARE * nbytes(*csr[1:])), FLOOR) // each, 1)
    found: dict[int, SliceStatistics] = {}
    orders = None
    while windows:
        orders = None  # gives its memory back before more is taken
        # As many that are stored, and the caller's order with them.
        some = windows[: at_once + is_unmoved(windows, bool(tiles or survey.long_rows))]
        windows = windows[len(some) :]
        widths = tuple([min(window, rows) for window in some]) if tiles else some
        orders = cut_orders(on, csr, survey, cut, widths, tiles)
        if any(blocks):
            _count_sectors(on, csr, survey, cut, orders, NO_SEGMENTS, sector_columns, blocks, orders.totals)
        numbers = iter(on.device.read(orders.totals.reshape(-1)))
        counted = [SliceStatistics._make(each) for each in zip(*[numbers] * NUMBERS, strict=True)]
        found |= zip(some, counted, strict=True)
    if tiles:
        return Tried({window: slices.scaled(m, rows) for window, slices in found.items()}, None)
    return Tried(found, orders)


def slice_statistics(
    on: Launcher,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    layout: Layout,
    sector_columns: int,
    blocks: tuple[int, int, int],
) -> SliceStatistics:
    """See `Primitives.slice_statistics`."""
    counted = layout.slices, layout.steps, layout.full
    if not layout.slices or not any(blocks):
        return SliceStatistics(*counted, 0, 0, 0, 0)
    placed, sampled = layout.detail, on.device.zeros(NUMBERS, COUNT)
    of = placed.orders, placed.segments
    _count_sectors(on, csr, survey, cut, *of, sector_columns, blocks, sampled)
    return SliceStatistics(*counted, *on.device.read(sampled)[TOTALS:])


def _count_sectors(
    on: Launcher,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    segments: Segments,
    sector_columns: int,
    blocks: tuple[int, int, int],
    sampled: Array,
) -> None:
    """Count the sectors that blocks of slices read, in all orders or in one with segments before it.

    Parameters
    ----------
    sampled : Array, shape (candidates, NUMBERS), uint64
        The last four numbers of each are 0 and become what a sample of its slices reads.
    """
    longest = max(cut.steps, cut.segment_steps) if segments.total else cut.steps
    most = [min(size * WARP * longest, len(csr.indices)) for size in blocks]
    slots = [max(1 << (2 * count - 1).bit_length(), 64) if count else 0 for count in most]
    units, count, tables, shared = (
        PLACES,
        len(orders.windows),
        None,
        min(on.device.shared_words, SHARED_SLOTS),
    )
    if max(slots) > shared and csr.shape[1] // sector_columns >= WARP * shared:
        room = max(nbytes(*csr[1:]) // 3, FLOOR) // (4 * max(slots) * count)
        units = max(min(units, room), 1)
        tables = on.device.empty(units * max(slots) * count, UINT32)
    on.launch(
        kernels.COUNT_SECTORS,
        kinds.of_matrix(csr),
        (units, count),
        CUT_THREADS,
        indptr=csr.indptr,
        indices=csr.indices,
        **orders.arguments,
        **steps_of(survey, cut),
        **segments.arguments,
        sector_shift=sector_columns.bit_length() - 1,
        **dict(zip(("by_slice", "few", "many"), blocks, strict=True)),
        **dict(zip(("slots_by_slice", "slots_few", "slots_many"), slots, strict=True)),
        tables=tables,
        table_slots=max(slots),
        shared_slots=shared,
        sampled=sampled,
    )
