"""What is counted of slices: those that each sort window would give, and those of a layout."""

from __future__ import annotations

from functools import lru_cache

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.sell.choose import SliceStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import UINT32
from dasp.formats.sell.cuda.pack.orders import Orders, count_unmoved, cut_orders
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import CUT_THREADS, NUMBERS, PLACES, SHARED_SLOTS, SORT_TILE, TOTALS
from dasp.formats.sell.cuda.pack.survey import SurveyWork
from dasp.formats.sell.layout import Cut, Layout, Survey, Tried

SHARE, FLOOR = 0.6, 8 << 20
"""Share of the bytes of a matrix, or bytes if more, in which windows are tried side by side."""


def try_windows(
    on: Resources,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    sector_columns: int,
    blocks: tuple[int, int, int],
    tiles: int,
) -> Tried:
    """See `Primitives`; as many windows side by side as their share of the matrix's memory holds."""
    m, work = csr.shape[0], survey.detail
    rows = tiles * SORT_TILE or m
    each = rows * (work.types["Index"].itemsize + 1)
    at_once = max(max(int(SHARE * work.nbytes), FLOOR) // each, 1)
    found: dict[int, SliceStatistics] = {}
    orders = None
    while windows:
        orders = None  # gives its memory back before more is taken
        # As many that are stored, and the caller's order with them.
        some = windows[: at_once + count_unmoved(windows, bool(tiles or survey.long_rows))]
        windows = windows[len(some) :]
        widths = tuple([min(window, rows) for window in some]) if tiles else some
        orders = cut_orders(on, csr, survey, cut, widths, tiles)
        counted = _statistics(on, csr, survey, cut, orders, sector_columns, blocks)
        found |= zip(some, counted, strict=True)
    if tiles:
        return Tried({window: slices.scaled(m, rows) for window, slices in found.items()}, None)
    return Tried(found, orders)


def of_layout(
    on: Resources,
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
    work, orders = survey.detail, layout.detail.orders
    first = work.take(NUMBERS)
    work.known["totals"] = work.words(orders.first, NUMBERS)
    work.known["unmoved"] = int(orders.rows is None)
    _count_sectors(on, csr, cut, orders, layout, sector_columns, blocks, first, work)
    return SliceStatistics(*counted, *work.read(first + TOTALS, NUMBERS - TOTALS))


def _statistics(
    on: Resources,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    sector_columns: int,
    blocks: tuple[int, int, int],
) -> list[SliceStatistics]:
    """Return what is counted of orders, segments left out."""
    work: SurveyWork = survey.detail
    if any(blocks):
        _count_sectors(on, csr, cut, orders, None, sector_columns, blocks, orders.first, work)
    counted = work.read(orders.first, NUMBERS * len(orders.windows))
    return list(map(SliceStatistics._make, zip(*[iter(counted)] * NUMBERS, strict=True)))


def _count_sectors(
    on: Resources,
    csr: Csr,
    cut: Cut,
    orders: Orders,
    layout: Layout | None,
    sector_columns: int,
    blocks: tuple[int, int, int],
    sampled: int,
    work: SurveyWork,
) -> None:
    """Count the sectors that blocks of slices read, in all orders or of a layout.

    `sampled` is where they go among the words of the work.
    """
    longest = max(cut.steps, cut.segment_steps) if layout and layout.segments else cut.steps
    units, count, known = PLACES, len(orders.windows), work.known
    known |= _sizes_of_blocks(blocks, longest, len(csr.indices))
    tables, most = None, known["table_slots"]
    known["shared_slots"] = shared = min(on.device.shared_words, SHARED_SLOTS)
    if most > shared and csr.shape[1] // sector_columns >= WARP * shared:
        room = max(work.nbytes // 3, FLOOR) // (4 * most * count)
        units = max(min(units, room), 1)
        (tables,) = on.device.scratch((units * most * count, UINT32))
    known["sector_shift"] = sector_columns.bit_length() - 1
    known["tables"] = on.device.word(tables)
    known["sampled"] = work.words(sampled, NUMBERS * count)
    work.launch(kernels.COUNT_SECTORS, (units, count), CUT_THREADS)


@lru_cache(maxsize=256)
def _sizes_of_blocks(blocks: tuple[int, int, int], longest: int, entries: int) -> dict[str, int]:
    """Return what a sample is told of blocks of slices of up to so many steps, and of their tables.

    `entries` are those of the matrix.
    """
    most = [min(size * WARP * longest, entries) for size in blocks]
    slots = [max(1 << (2 * count - 1).bit_length(), 64) if count else 0 for count in most]
    kinds = "by_slice", "few", "many"
    sizes = dict(zip(kinds, blocks, strict=True)) | {"table_slots": max(slots)}
    return sizes | {f"slots_{kind}": count for kind, count in zip(kinds, slots, strict=True)}
