"""Rows in the order of each sort window, and where these are cut into slices."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import COUNT, INT64
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import (
    BLOCKS,
    CHUNK,
    CHUNKS,
    CUT_THREADS,
    CUT_TILE,
    ENTRIES,
    NUMBERS,
    SORT_THREADS,
    SORT_TILE,
    TOTALS,
)
from dasp.formats.sell.cuda.pack.work import share
from dasp.formats.sell.layout import Cut, Survey
from dasp.runtime.integers import ceil_div


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
    stride = drawn * SORT_TILE or csr.shape[0]
    positions = stride if drawn else stride - survey.long_rows
    leaves_out, tiles = positions < stride, ceil_div(positions, CUT_TILE)
    unmoved = count_unmoved(windows, bool(drawn or leaves_out))
    passages, rows = device.scratch(
        (count * tiles * ENTRIES, COUNT), ((count - unmoved) * stride, work.types["Index"])
    )
    first, before = work.take(count * NUMBERS), work.take(2 * count * tiles)
    orders, known = Orders(windows, rows if count > unmoved else None, tiles, before, first), work.known
    for nth, window in enumerate(windows[unmoved:] if stride else ()):
        _sort_rows(on, survey, cut, stride, leaves_out, window, device.part(rows, nth * stride, stride))
    known["unmoved"], known["stride"], known["rows"] = unmoved, stride, device.word(orders.rows)
    known["positions"] = positions
    known["steps"], known["segment_steps"] = cut.steps, cut.segment_steps
    known["even"] = int(work.facts.longest_whole <= cut.steps)
    known["before"] = work.words(before, 2 * count * tiles)
    known["totals"] = work.words(first, count * NUMBERS)
    if tiles:
        known["come"], known["passages"] = work.zeros(count), device.word(passages)
    return orders, passages


def count_unmoved(windows: tuple[int, ...], leaves_out: bool) -> int:
    """Return 1 if the first window moves no row, so that its order is not stored, else 0."""
    return int(bool(windows) and not windows[0] and not leaves_out)


def one_of(on: Resources, orders: Orders, survey: Survey, window: int, m: int) -> Orders:
    """Return one of several orders, and have the kernels that follow know it alone."""
    windows, rows, tiles, before, first = orders
    nth, work, device = windows.index(window), survey.detail, on.device
    unmoved = count_unmoved(windows, survey.long_rows > 0)
    before += 2 * nth * tiles
    work.known["before"] = work.words(before, 2 * tiles)
    if nth < unmoved:
        rows, work.known["rows"] = None, device.word(None)
    else:
        work.known["rows"] = device.part(rows, (nth - unmoved) * m, m)
    work.known["unmoved"] = int(nth < unmoved)
    return Orders((window,), rows, tiles, before, first + nth * NUMBERS)


def _sort_rows(
    on: Resources, survey: Survey, cut: Cut, count: int, leaves_out: bool, window: int, to: Any
) -> None:
    """Write the rows in slices, of `count` rows, in the order of a window."""
    work, width = survey.detail, min(window, count)
    of_rows = {"count": count, "longest": survey.longest, "most": WARP * cut.steps}
    if width <= SORT_TILE:
        tile = CHUNKS // ceil_div(width, CHUNK) * width if width else SORT_TILE
        work.launch(
            kernels.SORT_WINDOWS,
            ceil_div(count, tile),
            SORT_THREADS,
            **of_rows,
            bits=(survey.longest + 1).bit_length(),
            window=width,
            left_out=int(leaves_out),
            rows=to,
        )
        return
    index = work.types["Index"]
    keys, elements = on.device.scratch((work.known["m"], INT64), (count, index))
    work.launch(
        kernels.ROW_KEYS, share(count, 256, BLOCKS), **of_rows, width=width, keys=keys, elements=elements
    )
    most_key = ceil_div(count, width) * (survey.longest + 1)
    sort(on.csr.launcher, keys, most_key.bit_length(), to, index, elements)
