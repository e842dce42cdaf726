"""Rows in the order of each sort window, and where these are cut into slices."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import (
    CHUNK,
    CHUNKS,
    CUT_THREADS,
    CUT_TILE,
    ENTRIES,
    NUMBERS,
    SORT_THREADS,
    SORT_TILE,
)
from dasp.formats.sell.cuda.pack.kinds import COUNT, INT64
from dasp.formats.sell.cuda.pack.launcher import Launcher, count_blocks
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cuda.launch import Arguments
from dasp.runtime.sizes import ceil_div


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
    index = kinds.of_matrix(csr).types["Index"]
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
            kernels.CUT_TILES,
            kinds.of_matrix(csr),
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
    of, count, width = kinds.of_matrix(csr), orders.stride, min(window, orders.stride)
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
            kernels.SORT_WINDOWS,
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
    on.launch(kernels.ROW_KEYS, of, blocks, **arguments, width=width, keys=keys, elements=elements)
    most_key = ceil_div(count, width) * (survey.longest + 1)
    sort(on.operations.launcher, keys, most_key.bit_length(), to, to.dtype, elements)
