"""Rows in the order of each sort window, and where these are cut into slices."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

from dasp._integers import ceil_div
from dasp.backends.cuda.pack import kernels
from dasp.backends.cuda.pack.c_types import COUNT
from dasp.backends.cuda.pack.protocols import Device
from dasp.backends.cuda.pack.resources import Resources
from dasp.backends.cuda.pack.segments import likely_to_turn, list_long_rows, sort_segments
from dasp.backends.cuda.pack.sizes import (
    CHUNK,
    CHUNKS,
    CUT_THREADS,
    CUT_TILE,
    DIGIT_BITS,
    ENTRIES,
    SAMPLED,
    SORT_TILE,
    TOTALS,
)
from dasp.backends.cuda.pack.sort import sort
from dasp.formats.array import WARP, Array, Csr
from dasp.formats.sliced.layout import Cut, Survey

APART = 264
"""Blocks up to which each sorts a tile in a window of its own: two to a multiprocessor."""

BESIDE = 1 << 17
"""Rows from which a sort over more than a tile of them runs beside those inside of tiles: fewer are sorted
before the host has launched it."""


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
        Where the numbers of all candidates begin among these words: slices, steps and full steps of every
        one, and then what a sample of each reads.
    """

    windows: tuple[int, ...]
    rows: Array | None
    tiles: int
    before: int
    first: int


def cut_orders(on: Resources, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...]) -> Orders:
    """Sort rows in each of the windows, and cut them; nothing is read."""
    (orders, _kept), work = _sort_orders(on, csr, survey, cut, windows), survey.detail
    if orders.tiles:
        none = on.device.word(None)
        work.known["words"], work.known["word_count"], work.known["told"] = none, 0, none
        work.launch(kernels.CUT_TILES, (orders.tiles, len(windows)), CUT_THREADS)
    return orders


def cut_order(
    on: Resources, csr: Csr, survey: Survey, cut: Cut, window: int
) -> tuple[Orders, tuple[int, int, int]]:
    """Sort rows in a window, and cut them; return with them the numbers of slices, steps and full steps."""
    (orders, _kept), work = _sort_orders(on, csr, survey, cut, (window,)), survey.detail
    if not orders.tiles:
        return orders, (0, 0, 0)
    reading = work.telling(orders.first, TOTALS)
    work.launch(kernels.CUT_TILES, (orders.tiles, 1), CUT_THREADS)
    slices, steps, full = reading()()
    return orders, (slices, steps, full)


def _sort_orders(
    on: Resources, csr: Csr, survey: Survey, cut: Cut, windows: tuple[int, ...]
) -> tuple[Orders, Any]:
    """Sort rows in each of the windows, for what cuts them; return them, and what must live until that."""
    device, m, count, work = on.device, csr.shape[0], len(windows), survey.detail
    positions, known = m - survey.long_rows, work.known
    known["positions"], known["identity"] = positions, int(not survey.long_rows)
    known["steps"], known["segment_steps"] = cut.steps, cut.segment_steps
    tiles = ceil_div(positions, CUT_TILE)
    moves = m and (survey.long_rows or any(windows))
    sort_tiles = _window_tiles(windows, m) if moves else 0
    passages, counts, rows = device.scratch(
        (count * tiles * ENTRIES, COUNT),
        ((sort_tiles << DIGIT_BITS) + 1, COUNT),
        (stored(windows, survey.long_rows) * m, work.types["Index"]),
    )
    first, before = work.take(count * (TOTALS + SAMPLED)), work.take(2 * count * tiles)
    orders = Orders(windows, rows if moves else None, tiles, before, first)
    _tell(device, survey, orders, m)
    if survey.long_rows:
        list_long_rows(on, csr, survey)
    if likely_to_turn(csr, work, cut):
        work.turns = True
        work.later.append(partial(sort_segments, on, survey))
    if moves:
        _sort_rows(on, csr, survey, cut, orders, sort_tiles, counts)
    if tiles:
        known["come"], known["passages"] = work.zeros(count), device.word(passages)
    return orders, passages


def stored(windows: tuple[int, ...], long_rows: int) -> int:
    """Return how many orders are stored: the caller's is not, unless long rows are left out."""
    return len(windows) - (bool(windows) and not windows[0] and not long_rows)


def one_of(on: Resources, survey: Survey, orders: Orders, window: int, m: int) -> Orders:
    """Return one of several orders, and have the kernels that follow know it alone."""
    nth, tiles, work, rows = orders.windows.index(window), 2 * orders.tiles, survey.detail, None
    if orders.rows is not None and (window or survey.long_rows):
        rows = orders.rows
        before = stored(orders.windows[:nth], survey.long_rows)
        work.known["rows"] = on.device.part(rows, before * m, m)
    else:
        work.known["rows"] = on.device.word(None)
    before = orders.before + nth * tiles
    work.known["before"] = work.words(before, tiles)
    return Orders((window,), rows, orders.tiles, before, orders.first + nth * TOTALS)


def _tell(device: Device, survey: Survey, orders: Orders, m: int) -> None:
    """Have kernels know some orders; a window of all rows goes unsaid."""
    work, windows = survey.detail, orders.windows
    narrower = windows if windows[-1] < m else windows[:-1]
    work.known |= {
        "rows": device.word(orders.rows),
        "windows": device.word(device.constant(narrower)),
        "window_count": len(narrower),
        "before": work.words(orders.before, 2 * orders.tiles * len(windows)),
        "totals": work.words(orders.first, TOTALS * len(windows)),
    }


def _sort_rows(
    on: Resources,
    csr: Csr,
    survey: Survey,
    cut: Cut,
    orders: Orders,
    tiles: int,
    counts: Array,
) -> None:
    """Set the rows in slices in the order of each window, m apart."""
    m, long_count, work, windows = csr.shape[0], survey.long_rows, survey.detail, orders.windows
    device, word = on.device, on.device.word
    long_rows = word(work.long.long_rows if long_count else None)
    longest = work.facts.longest_whole
    bits = (longest + 1).bit_length()
    wide = [nth for nth, window in enumerate(windows) if window > SORT_TILE]
    beside = device.aside() if wide and m >= BESIDE and bits > DIGIT_BITS else None
    work.known |= {
        "longest": longest,
        "most": WARP * cut.steps,
        "bits": bits,
        "long_rows": long_rows,
        "long_count": long_count,
        "come": work.zeros(1),
        "counts": word(None if beside else counts),
        "apart": int(tiles * len(windows) <= APART),
    }
    work.launch(kernels.SORT_WINDOWS, (tiles, len(windows)), 512)
    work.known |= {"keys": word(None), "gone": long_rows, "gone_count": long_count}
    kept = []
    try:
        for nth in wide:
            before = stored(windows[:nth], long_count)
            to, counted = device.part(orders.rows, before * m, m), counts if nth == wide[-1] else None
            of = m, work.types["Index"]
            kept.append(sort(on, work, of, windows[nth], bits, to, None if beside else counted, beside))
    finally:
        if beside:
            beside.join()


@lru_cache(maxsize=256)
def _window_tiles(windows: tuple[int, ...], m: int) -> int:
    """Return the most blocks that sort rows inside any of some windows, 0 for one that is cut as it is.

    A block has several windows, or a window several blocks.
    """

    def tiles(window: int) -> int:
        if window > SORT_TILE:
            return ceil_div(m, window) * ceil_div(window, SORT_TILE)
        return ceil_div(m, CHUNKS // ceil_div(window, CHUNK) * window)

    return max(tiles(min(window or SORT_TILE, m)) for window in windows)
