"""Rows in the order of each sort window, and where these are cut into slices."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array, nbytes
from dasp.formats.sell.choose import TILE_ROWS, SliceStatistics
from dasp.formats.sell.cuda.launcher import COUNT, INT64, UINT32, Launcher, count_blocks, kinds_of_matrix
from dasp.formats.sell.primitives import Cut, Layout, Survey, Tried
from dasp.runtime.cuda.launch import Arguments, Signature
from dasp.runtime.sizes import ceil_div

SORT_THREADS, SORT_TILE, CHUNK, CHUNKS = 1024, TILE_ROWS, 128, 64
"""Threads of a block that sorts, its elements, and elements that it counts at once: kernels/csr/sort.cuh."""

CUT_THREADS, CUT_TILE, ENTRIES = 512, 2048, 32
"""Threads of a block that cuts, its positions, and those at which a chain of slices can enter them:
kernels/pack/cut.cuh."""

TOTALS, NUMBERS = 3, 7
"""Numbers of a candidate, those of all its slices first: kernels/pack/cut.cuh."""

PLACES, SHARED_SLOTS = 24, 20_480
"""Places in a sample, and most words of a table in shared memory, of which a multiprocessor has two:
kernels/pack/sectors.cu."""

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
    long long     window
    int           left_out
    const Count*  long_tiles
    Index*        rows         [count]
    """,
)

ROW_KEYS = Signature(
    "pack/keys.cu",
    "dasp_row_keys",
    """
    const Start*  indptr    [m + 1]
    long long     m
    long long     count
    long long     width
    long long     longest
    long long     most
    long long*    keys      [m]
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
    Count*            come
    Count*            passages
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
    """Rows in the orders of several sort windows, and how they are cut.

    Attributes
    ----------
    windows : tuple of int
        0, or from 1 to m, rising, one for each candidate.
    unmoved : int
        1 if the first candidate is the order of the caller, which is not stored, else 0.
    rows : Array, shape (candidates - unmoved, stride), or None
        The row at each position of each other candidate.
    stride : int
    positions : int
        Rows of an order.
    before : Array, shape (candidates, 2 * tiles), uint64
        How the chain of slices comes to each tile of positions: kernels/pack/cut.cu.
    totals : Array, shape (candidates, NUMBERS), uint64
        Slices, steps and full steps of each candidate, and room for numbers of a sample of them.
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
    def arguments(self) -> Arguments:
        """The arguments of kernels that go through them."""
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def pick(self, window: int) -> Orders:
        """Return the order of one of the windows."""
        nth = self.windows.index(window)
        unmoved = int(nth < self.unmoved)
        rows = None if unmoved or self.rows is None else self.rows[nth - self.unmoved :][:1]
        one = slice(nth, nth + 1)
        return self._replace(
            windows=(window,), unmoved=unmoved, rows=rows, before=self.before[one], totals=self.totals[one]
        )


_ARGUMENTS = "unmoved", "rows", "stride", "positions", "before", "totals"


def is_unmoved(windows: tuple[int, ...], leaves_out: bool) -> int:
    """Return 1 if the first window leaves all rows where they are, else 0."""
    return int(bool(windows) and not windows[0] and not leaves_out)


def cut_orders(
    on: Launcher, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...], tiles: int = 0
) -> Orders:
    """Sort rows in each of the windows, and cut them into slices; nothing is read.

    If `tiles` is not 0, only the rows of so many tiles, among which long rows are empty ones.
    """
    device, count, m = on.device, len(windows), csr.shape[0]
    stride = tiles * SORT_TILE or m
    positions = stride if tiles else m - survey.long_rows
    unmoved = is_unmoved(windows, bool(tiles or survey.long_rows))
    index = kinds_of_matrix(csr).types["Index"]
    rows = device.empty((count - unmoved, stride), index) if count > unmoved else None
    orders = Orders(
        windows=windows,
        unmoved=unmoved,
        rows=rows,
        stride=stride,
        positions=positions,
        before=device.empty((count, 2 * ceil_div(positions, CUT_TILE)), COUNT),
        totals=device.zeros(count * NUMBERS, COUNT).reshape(count, NUMBERS),
    )
    for window, to in zip(windows[unmoved:], () if rows is None else rows, strict=True):
        _sort_rows(on, csr, survey, cut, orders, window, to)
    if orders.tiles:
        on.launch(
            CUT_TILES,
            kinds_of_matrix(csr),
            (orders.tiles, count),
            CUT_THREADS,
            indptr=csr.indptr,
            **orders.arguments,
            **steps_of(survey, cut),
            come=device.zeros(count, COUNT),
            passages=device.empty(count * orders.tiles * ENTRIES, COUNT),
        )
    return orders


def steps_of(survey: Survey, cut: Cut) -> dict[str, int]:
    """Return the arguments that say how many steps slices have: `even` is 1 if every row fits one lane."""
    return {"steps": cut.steps, "even": int(survey.longest <= cut.steps)}


def _sort_rows(
    on: Launcher, csr: Csr, survey: Survey, cut: Cut, orders: Orders, window: int, to: Array
) -> None:
    """Write the rows in slices in the order of a window."""
    if not orders.stride:
        return
    of, count, width = kinds_of_matrix(csr), orders.stride, min(window, orders.stride)
    arguments: Arguments = {
        "indptr": csr.indptr,
        "m": csr.shape[0],
        "count": count,
        "longest": survey.longest,
        "most": WARP * cut.steps,
    }
    if width <= SORT_TILE:
        tile = CHUNKS // ceil_div(width, CHUNK) * width if width else SORT_TILE  # whole windows
        on.launch(
            SORT_WINDOWS,
            of,
            ceil_div(count, tile),
            SORT_THREADS,
            **arguments,
            bits=(survey.longest + 1).bit_length(),
            window=width,
            left_out=int(orders.positions < count),
            long_tiles=survey.detail.long_tiles,
            rows=to,
        )
        return
    keys, elements = on.device.empty(csr.shape[0], INT64), on.device.empty(count, to.dtype)
    blocks = count_blocks(count, 256)
    on.launch(ROW_KEYS, of, blocks, **arguments, width=width, keys=keys, elements=elements)
    most_key = ceil_div(count, width) * (survey.longest + 1)
    sort(on.operations.launcher, keys, most_key.bit_length(), to, to.dtype, elements)


NO_SEGMENTS: Arguments = {"segments": 0, "segment_starts": None, "segment_lengths": None}
"""Arguments of kernels that go through rows alone."""

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
    each = rows * (kinds_of_matrix(csr).types["Index"].itemsize + 1)
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
    of = placed.orders, placed.segments.arguments
    _count_sectors(on, csr, survey, cut, *of, sector_columns, blocks, sampled)
    return SliceStatistics(*counted, *on.device.read(sampled)[TOTALS:])


def _count_sectors(
    on: Launcher,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    segments: Arguments,
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
    longest = max(cut.steps, cut.segment_steps) if segments["segments"] else cut.steps
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
        COUNT_SECTORS,
        kinds_of_matrix(csr),
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
