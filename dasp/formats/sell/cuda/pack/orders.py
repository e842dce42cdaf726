"""Rows in the order of each sort window, and where these are cut into slices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import COUNT, INT64, UINT32
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import (
    BLOCKS,
    CHUNK,
    CHUNKS,
    CUT_THREADS,
    CUT_TILE,
    ENTRIES,
    MOST_KEYS,
    NUMBERS,
    SORT_THREADS,
    SORT_TILE,
    TOTALS,
)
from dasp.formats.sell.cuda.pack.work import share
from dasp.formats.sell.layout import Cut, Survey
from dasp.runtime.integers import ceil_div

APART = 264
"""Blocks up to which each sorts a tile in a window of its own: two to a multiprocessor."""


class Orders(NamedTuple):
    """Rows in the orders of several sort windows, and how they are cut.

    Attributes
    ----------
    windows : tuple of int
        0, or from 1 to m, rising, one for each candidate.
    rows : Array, shape (candidates * m,), or None
        The row at each position of each candidate but the caller's order; None if no row moves.
    tiles : int
        Of an order.
    before : int
        Where the words of the work begin that say how the chain of slices comes to each tile: two for each of
        every candidate.
    first : int
        Where the numbers of all candidates begin among these words: of each slices, steps and full steps,
        and what a sample of them reads.
    """

    windows: tuple[int, ...]
    rows: Array | None
    tiles: int
    before: int
    first: int


def cut_orders(
    on: Resources, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...], tiles: int = 0
) -> Orders:
    """Sort rows in each of the windows, and cut them; nothing is read. Of so many tiles, unless 0, alone."""
    (orders, _kept), work = _sort_orders(on, csr, survey, cut, windows, tiles), survey.detail
    if orders.tiles:
        work.launch(kernels.CUT_TILES, (orders.tiles, len(windows)), CUT_THREADS)
    return orders


def cut_order(
    on: Resources, csr: Csr, survey: Survey, cut: Cut, window: int
) -> tuple[Orders, tuple[int, int, int]]:
    """Sort rows in a window, and cut them; return with them the numbers of slices, steps and full steps."""
    (orders, _kept), work = _sort_orders(on, csr, survey, cut, (window,)), survey.detail
    if not orders.tiles:
        return orders, (0, 0, 0)
    work.launch(kernels.CUT_TILES, (orders.tiles, 1), CUT_THREADS)
    slices, steps, full = work.read(orders.first, TOTALS)
    return orders, (slices, steps, full)


def _sort_orders(
    on: Resources, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...], drawn: int = 0
) -> tuple[Orders, Any]:
    """Sort rows in each of the windows, for what cuts them; return them, and what must live until that."""
    device, count, work = on.device, len(windows), survey.detail
    m, left_out = (drawn * SORT_TILE, 1) if drawn else (csr.shape[0], survey.long_rows)
    positions = m if drawn else m - survey.long_rows
    tiles = ceil_div(positions, CUT_TILE)
    moves = m and (left_out or any(windows))
    index, sorts = work.types["Index"], _sorts(windows, m, work.facts.longest_whole) if moves else _NO_SORTS
    passages, counts, spare, rows = device.scratch(
        (count * tiles * ENTRIES, COUNT),
        (sorts.counts, UINT32),
        (sorts.spare, index),
        (stored(windows, left_out) * m, index),
    )
    first, before = work.take(count * NUMBERS), work.take(2 * count * tiles)
    orders, known = Orders(windows, rows if moves else None, tiles, before, first), work.known
    narrower = windows if windows[-1] < m else windows[:-1]  # a window of all rows goes unsaid
    known["stride"], known["rows"] = m, device.word(orders.rows)
    known["windows"], known["window_count"] = device.word(device.constant(narrower)), len(narrower)
    if moves:
        _sort_rows(on, csr, survey, cut, orders, sorts, counts, spare, left_out)
    known["positions"], known["identity"] = positions, int(not left_out)
    known["steps"], known["segment_steps"] = cut.steps, cut.segment_steps
    known["even"] = int(work.facts.longest_whole <= cut.steps)
    known["before"] = work.words(before, 2 * count * tiles)
    known["totals"] = work.words(first, count * NUMBERS)
    if tiles:
        known["come"], known["passages"] = work.zeros(count), device.word(passages)
    return orders, passages


def stored(windows: tuple[int, ...], left_out: int) -> int:
    """Return how many orders are stored: the caller's is not, unless rows are left out."""
    return len(windows) - (bool(windows) and not windows[0] and not left_out)


def one_of(on: Resources, survey: Survey, orders: Orders, window: int, m: int) -> Orders:
    """Return one of several orders, and have the kernels that follow know it alone."""
    windows, rows, tiles, before, first = orders
    nth, work, device = windows.index(window), survey.detail, on.device
    before += 2 * nth * tiles
    work.known["before"] = work.words(before, 2 * tiles)
    if rows is None or not (window or survey.long_rows):
        rows, work.known["rows"] = None, device.word(None)
    else:
        work.known["rows"] = device.part(rows, stored(windows[:nth], survey.long_rows) * m, m)
    return Orders((window,), rows, tiles, before, first + nth * NUMBERS)


class _Sorts(NamedTuple):
    """How rows are sorted in some windows: kernels/pack/windows.cu.

    Attributes
    ----------
    blocks, tiles, candidates : int
        Of the launch; no blocks where there is none.
    tile_order : int
        The candidate whose tiles are those of all rows, -1 where these are not sorted there.
    spare : int
        Rows for which it needs room of its own.
    counts : int
        Numbers that are counted of all rows.
    apart : bool
        Whether each block sorts a tile in one window.
    passes : tuple of int
        Windows, by their numbers, that are sorted in passes over all rows.
    """

    blocks: int
    tiles: int
    candidates: int
    tile_order: int
    spare: int
    counts: int
    apart: bool
    passes: tuple[int, ...]


_NO_SORTS = _Sorts(0, 1, 0, -1, 0, 0, False, ())


@lru_cache(maxsize=256)
def _sorts(windows: tuple[int, ...], m: int, longest: int) -> _Sorts:
    """Return how m rows of up to so many entries are sorted in each of some windows."""
    narrow = [min(window or SORT_TILE, m) for window in windows if min(window, m) <= SORT_TILE]
    tiles = max([ceil_div(m, CHUNKS // ceil_div(window, CHUNK) * window) for window in narrow], default=1)
    wide = tuple(range(len(narrow), len(windows)))
    if not wide or windows[-1] < m or longest >= MOST_KEYS or m >> 32:  # places there have 32 bits
        blocks = len(narrow) * tiles
        return _Sorts(blocks, tiles, len(narrow), -1, 0, 0, blocks <= APART, wide)
    spares = SORT_TILE not in windows
    order = len(windows) - 1 if spares else windows.index(SORT_TILE)
    all_tiles, keys = ceil_div(m, SORT_TILE), longest + 1
    sorting = all_tiles + order * tiles
    blocks = sorting + ceil_div(keys, SORT_THREADS // WARP) + all_tiles
    counts = keys * (all_tiles + 1)
    return _Sorts(blocks, tiles, order + 1, order, spares * m, counts, sorting <= APART, wide[:-1])


def _sort_rows(
    on: Resources,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    sorts: _Sorts,
    counts: Array,
    spare: Array,
    left_out: int,
) -> None:
    """Set the rows in slices in the order of each window, as far apart as there are rows in all."""
    m, long_count, work, windows = csr.shape[0], survey.long_rows, survey.detail, orders.windows
    longest, word = work.facts.longest_whole, on.device.word
    bits = (longest + 1).bit_length()
    known = work.known
    known["left_out"], known["candidates"] = int(left_out > 0), sorts.candidates
    known["most"], known["longest"], known["bits"] = WARP * cut.steps, longest, bits
    known["apart"], known["tiles"], known["tile_order"] = int(sorts.apart), sorts.tiles, sorts.tile_order
    known["spare"], known["counts"] = word(spare if sorts.spare else None), word(counts)
    known["come"] = work.zeros(3)
    if sorts.blocks:
        few = sorts.apart or known["stride"] < m  # a sample
        kernel = kernels.SORT_WINDOWS if few else kernels.SORT_MANY_WINDOWS
        work.launch(kernel, sorts.blocks, SORT_THREADS)
    if not sorts.passes:
        return
    (keys,) = on.device.scratch((m, INT64))
    for nth in sorts.passes:
        to = on.device.part(orders.rows, stored(windows[:nth], long_count) * m, m)
        blocks, most_key = share(m, 256, BLOCKS), ceil_div(m, windows[nth]) * (longest + 1)
        work.launch(kernels.ROW_KEYS, blocks, width=windows[nth], keys=keys)
        sort(on.csr.launcher, keys, most_key.bit_length(), to, work.types["Index"])
