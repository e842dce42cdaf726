"""Sort rows in each sort window on a GPU, cut them into slices, and count these."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.csr.cuda import CudaOperations, kinds_of, sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array, nbytes
from dasp.formats.sell.choose import TILE_ROWS, SliceStatistics
from dasp.formats.sell.cuda.kinds import COUNT, INT64, UINT32
from dasp.formats.sell.primitives import Cut, Layout, Survey, Tried
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div

SORT_THREADS, SORT_TILE, CHUNK, CHUNKS = 1024, TILE_ROWS, 128, 64
"""Threads of a block that sorts, its elements, and elements that it counts at once: kernels/csr/sort.cuh."""

AT_ONCE, WINDOW_BITS = 4, 16
"""Windows that one launch sorts, and the bits that describe each: kernels/pack/windows.cu."""

CUT_THREADS, CUT_TILE, TILE_WORDS = 512, 2048, 2 + WARP
"""Threads and positions of a block that cuts, and its words for the chain of slices:
kernels/pack/cut.cu."""

NUMBERS, SAMPLED = 8, slice(3, 7)
"""Counts of a candidate, and which of them are of a sample of its slices: kernels/pack/cut.cuh."""

PLACES, SHARED_SLOTS = 24, 20_480
"""Places in a sample, and most words of a table in shared memory, of which two fit a multiprocessor:
kernels/pack/sectors.cu."""

SHARE, FLOOR = 0.6, 8 << 20
"""Memory in which windows are tried side by side: a share of the matrix's bytes, at least so many bytes."""

SORT_WINDOWS = Signature(
    "pack/windows.cu",
    "dasp_sort_windows",
    """
    const Start*  indptr       [m + 1]
    long long     m
    long long     count
    long long     longest
    long long     most
    int           bits
    long long     windows
    int           left_out
    const Count*  long_tiles
    Index*        rows
    """,
)

ROW_KEYS = Signature(
    "pack/windows.cu",
    "dasp_row_keys",
    """
    const Start*  indptr    [m + 1]
    long long     m
    long long     count
    long long     width
    long long     longest
    long long     most
    Key*          keys      [m]
    Index*        elements  [count]
    """,
)

CUT_TILES = Signature(
    "pack/cut.cu",
    "dasp_cut_tiles",
    """
    const Start*      indptr
    const Index*      rows
    long long         stride
    int               unmoved
    long long         positions
    int               steps
    int               even
    Count*            before
    Count*            totals
    """,
)

COUNT_SECTORS = Signature(
    "pack/sectors.cu",
    "dasp_count_sectors",
    """
    const Start*      indptr
    const Column*     indices
    const Index*      rows
    long long         stride
    int               unmoved
    long long         positions
    int               steps
    int               even
    const Count*      before
    const long long*  segment_starts
    const long long*  segment_lengths
    long long         segments
    int               sector_shift
    int               by_slice
    int               few
    int               many
    unsigned          slots_by_slice
    unsigned          slots_few
    unsigned          slots_many
    const Count*      totals
    unsigned*         tables
    long long         table_slots
    int               shared_slots
    Count*            sampled
    """,
    shared_words="shared_slots",
)


class Orders(NamedTuple):
    """Rows in the orders of several sort windows, and their cut into slices.

    Attributes
    ----------
    windows : tuple of int
        0, or from 1 to m, rising, one for each candidate.
    unmoved : int
        1 if the first candidate is the caller's order, which is not stored, else 0.
    rows : Array, shape (candidates - unmoved, stride), or None
        The row at each position of each other candidate.
    stride : int
    positions : int
        Rows of an order.
    before : Array, shape (candidates * TILE_WORDS * tiles,), uint64
        The state of the chain of slices at the start of each tile of positions: kernels/pack/cut.cu.
    totals : Array, shape (candidates * NUMBERS,), uint64
        Slices, steps and full steps of each candidate, and room for the counts of a sample.
    """

    windows: tuple[int, ...]
    unmoved: int
    rows: Array | None
    stride: int
    positions: int
    before: Array
    totals: Array

    @property
    def tiles(self) -> int:
        """Tiles of positions."""
        return ceil_div(self.positions, CUT_TILE)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of kernels that read the orders."""
        return {
            "unmoved": self.unmoved,
            "rows": self.rows,
            "stride": self.stride,
            "positions": self.positions,
            "before": self.before,
            "totals": self.totals,
        }

    def pick(self, window: int) -> Orders:
        """Return the order of one of the windows."""
        nth = self.windows.index(window)
        unmoved = int(nth < self.unmoved)
        return self._replace(
            windows=(window,),
            unmoved=unmoved,
            rows=None if unmoved or self.rows is None else self.rows[nth - self.unmoved],
            before=self.before[2 * self.tiles * nth :],
            totals=self.totals[NUMBERS * nth :],
        )


def try_windows(
    on: CudaOperations,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    sector_columns: int,
    blocks: tuple[int, int, int],
    tiles: int,
) -> Tried:
    """See `Primitives`; as many windows are tried side by side as `SHARE` and `FLOOR` allow."""
    m = csr.shape[0]
    rows = tiles * SORT_TILE or m
    each = rows * (survey.detail.kinds.types["Index"].itemsize + 1)
    at_once = max(max(int(SHARE * nbytes(*csr[1:])), FLOOR) // each, 1)
    found: dict[int, SliceStatistics] = {}
    orders = None
    while windows:
        orders = None  # free its memory before more is allocated
        # The caller's order is not stored, so it comes in addition.
        some = windows[: at_once + _is_unmoved(windows, bool(tiles or survey.long_rows))]
        windows = windows[len(some) :]
        widths = tuple([min(window, rows) for window in some]) if tiles else some
        orders = cut_orders(on, csr, survey, cut, widths, tiles)
        if any(blocks):
            _count_sectors(on, csr, survey, cut, orders, NO_SEGMENTS, sector_columns, blocks, orders.totals)
        numbers = iter(on.device.read(orders.totals))
        for window, (*counted, _) in zip(some, zip(*[numbers] * NUMBERS, strict=True), strict=True):
            found[window] = SliceStatistics(*counted)
    if tiles:
        return Tried({window: slices.scale(m, rows) for window, slices in found.items()}, None)
    return Tried(found, orders)


def cut_orders(
    on: CudaOperations, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...], tiles: int = 0
) -> Orders:
    """Sort rows in each of the windows, and cut them into slices; nothing is read back.

    If `tiles` is not 0, sort the rows of so many tiles alone, with long rows as empty ones.
    """
    device, count, m = on.device, len(windows), csr.shape[0]
    stride = tiles * SORT_TILE or m
    positions = stride if tiles else m - survey.long_rows
    unmoved = _is_unmoved(windows, bool(tiles or survey.long_rows))
    kinds, rows = survey.detail.kinds, None
    if count > unmoved:
        rows = device.empty((count - unmoved, stride), kinds.types["Index"])
        if stride:
            _sort_rows(on, csr, survey, cut, windows[unmoved:], positions < stride, rows)
    in_tiles = ceil_div(positions, CUT_TILE)
    before = device.empty(count * TILE_WORDS * in_tiles, COUNT)
    orders = Orders(windows, unmoved, rows, stride, positions, before, device.zeros(count * NUMBERS, COUNT))
    if in_tiles:
        on.launch(
            CUT_TILES,
            kinds,
            (in_tiles, count),
            CUT_THREADS,
            indptr=csr.indptr,
            **orders.arguments,
            **steps_of(survey, cut),
        )
    return orders


def _is_unmoved(windows: tuple[int, ...], leaves_out: bool) -> int:
    """Return 1 if the first window leaves all rows in their place, else 0."""
    return int(bool(windows) and not windows[0] and not leaves_out)


def _sort_rows(
    on: CudaOperations,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    left_out: bool,
    rows: Array,
) -> None:
    """Write rows in the order of each window: narrow windows together, wider ones one by one."""
    m, (_, count) = csr.shape[0], rows.shape
    kinds, widths = survey.detail.kinds, [min(window, count) for window in windows]
    arguments: dict[str, Any] = {
        "indptr": csr.indptr,
        "m": m,
        "count": count,
        "longest": survey.longest,
        "most": WARP * cut.steps,
    }
    narrow = sum(width <= SORT_TILE for width in widths)
    for first in range(0, narrow, AT_ONCE):
        some = widths[first : min(first + AT_ONCE, narrow)]
        whole = [CHUNKS // ceil_div(width, CHUNK) * width if width else SORT_TILE for width in some]
        on.launch(
            SORT_WINDOWS,
            kinds,
            (ceil_div(count, min(whole)), len(some)),
            SORT_THREADS,
            **arguments,
            bits=(survey.longest + 1).bit_length(),
            windows=sum(width << nth * WINDOW_BITS for nth, width in enumerate(some)),
            left_out=int(left_out),
            long_tiles=survey.detail.long_tiles,
            rows=rows[first:] if first else rows,
        )
    of_keys = kinds_of(Start=csr.indptr.dtype, Column=csr.indices.dtype, Index=rows.dtype, Key=INT64)
    for nth, width in enumerate(widths[narrow:], narrow):
        keys, elements = on.device.empty(m, INT64), on.device.empty(count, rows.dtype)
        blocks = on.count_blocks(count, 256)
        on.launch(ROW_KEYS, of_keys, blocks, **arguments, width=width, keys=keys, elements=elements)
        most_key = ceil_div(count, width) * (survey.longest + 1)
        sort(on, keys, most_key.bit_length(), rows[nth], rows.dtype, elements)


def steps_of(survey: Survey, cut: Cut) -> dict[str, int]:
    """Return the arguments that say how many steps slices have: `even` is 1 if every row fits one lane."""
    return {"steps": cut.steps, "even": int(survey.longest <= cut.steps)}


def slice_statistics(
    on: CudaOperations,
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
    of = placed.orders, placed.segments.arguments
    _count_sectors(on, csr, survey, cut, *of, sector_columns, blocks, sampled)
    return SliceStatistics(*counted, *on.device.read(sampled)[SAMPLED])


NO_SEGMENTS: dict[str, Any] = {"segments": 0, "segment_starts": None, "segment_lengths": None}
"""Arguments of kernels that go through rows alone."""


def _count_sectors(
    on: CudaOperations,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    segments: dict[str, Any],
    sector_columns: int,
    blocks: tuple[int, int, int],
    sampled: Array,
) -> None:
    """Count the sectors that blocks of slices read, in all orders or in one with segments before it.

    Parameters
    ----------
    sampled : Array, shape (candidates * NUMBERS,), uint64
        `SAMPLED` of each are 0 and become what a sample of its slices reads.
    """
    longest = max(cut.steps, cut.segment_steps) if segments["segments"] else cut.steps
    most = [min(size * WARP * longest, len(csr.indices)) for size in blocks]
    slots = [max(1 << (2 * count - 1).bit_length(), 64) if count else 0 for count in most]
    shared = min(on.device.shared_words, SHARED_SLOTS)
    units, count, tables = PLACES, len(orders.windows), None
    if max(slots) > shared and csr.shape[1] // sector_columns >= WARP * shared:
        room = max(nbytes(*csr[1:]) // 3, FLOOR) // (4 * max(slots) * count)
        units = max(min(units, room), 1)
        tables = on.device.empty(units * max(slots) * count, UINT32)
    on.launch(
        COUNT_SECTORS,
        survey.detail.kinds,
        (units, count),
        CUT_THREADS,
        indptr=csr.indptr,
        indices=csr.indices,
        **orders.arguments,
        **steps_of(survey, cut),
        **segments,
        sector_shift=sector_columns.bit_length() - 1,
        **dict(zip(("by_slice", "few", "many"), blocks, strict=True)),
        **dict(zip(("slots_by_slice", "slots_few", "slots_many"), slots, strict=True)),
        tables=tables,
        table_slots=max(slots),
        shared_slots=shared,
        sampled=sampled,
    )
