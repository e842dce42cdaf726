"""Choose the layout of a matrix: pure functions of statistics, options and cost model, on the host.

Statistics are integers, so every device that counts them chooses the same layout.

The coding, which each device chooses, depends on the values. `choose_window` and `choose_warps` depend on the
bytes of a stored value: they weigh the bytes of the slots against the gathers of x, whose time does not
depend on the values. All other choices depend on the structure and the type alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dasp.formats.cost import FEW_WARPS, MANY_WARPS, SOME_WARPS, CostModel, Gathers
from dasp.formats.plan import WARP
from dasp.formats.sell.pattern import Coding, code_type
from dasp.runtime.sizes import ceil_div, round_up

SECTOR_BYTES = 32
"""The least number of bytes that a gather moves: a sector of a GPU's cache."""

SAMPLES = 24
"""Number of places among the slices at which sectors of x are counted."""

WINDOWS = 0, 128, 512, 1024, 8192
"""Sort windows that are tried, in rows. More windows find better plans, and each adds to the planning."""

LOAD_BYTES = 4
"""Loading a narrower value takes as long as loading one of so many bytes."""

MOST_SEGMENTS = 128
"""Most segments of a row; longer rows get longer segments. One warp adds up their sums."""

TILES, TILE_ROWS = 32, 8192
"""Tiles of the sample in which windows are tried, and the rows of a tile: those of the widest window.
A sample chooses windows that cost at most 1% more (benchmarks/lab_book.md)."""


class SliceStatistics(NamedTuple):
    """Statistics of rows in slices.

    Attributes
    ----------
    slices, steps, full : int
        Slices, their steps, and their steps without pads.
    sampled_steps : int
        Steps of the sampled slices, in which sectors were counted.
    by_slice, by_few, by_many : int
        Distinct sectors of x in each sampled slice, in each block of `FEW_WARPS` and in each of
        `MANY_WARPS` slices, added up. 0 if they were not counted.
    """

    slices: int
    steps: int
    full: int
    sampled_steps: int
    by_slice: int
    by_few: int
    by_many: int

    @property
    def slots(self) -> int:
        """Slots of all slices."""
        return WARP * self.steps

    def scale(self, rows: int, of: int) -> SliceStatistics:
        """Scale the numbers of `of` rows to `rows` rows."""
        slices, steps, full = (count * rows // of for count in self[:3])
        return SliceStatistics(slices, steps, full, *self[3:])

    def extrapolate(self, sectors: int) -> float:
        """Estimate the sectors of all slices from those counted in the sample."""
        return sectors * self.steps / max(self.sampled_steps, 1)


def count_tiles(windows: tuple[int, ...], rows: int, model: CostModel) -> int:
    """Return the number of tiles of `TILE_ROWS` rows in which to try windows, or 0 to try them in all rows.

    A tile holds whole windows. A window of all rows becomes one of all rows in the tiles.
    """
    if rows < max(model.sampled_rows, 2 * TILES * TILE_ROWS) or len(windows) < 2:
        return 0
    whole = all([window in (0, rows) or TILE_ROWS % window == 0 for window in windows])
    return TILES if whole else 0


def draw_tile(nth: int, count: int, tiles: int) -> int:
    """Draw one tile, by a hash, from the nth of `count` equal parts of all `tiles`."""
    first, last = nth * tiles // count, (nth + 1) * tiles // count
    word = nth * 0x9E3779B1 & 0xFFFFFFFF
    word = (word ^ word >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return first + (word ^ word >> 13) % (last - first)


def is_like(sample: SliceStatistics, steps: int) -> bool:
    """Return True if the steps that a sample predicts for all rows are right to a sixteenth.

    If they are not, the sample has missed the long rows.
    """
    return 16 * abs(sample.steps - steps) <= steps


def add_segments(
    rows: SliceStatistics, slices: int, steps: int, full: int, segment_steps: int
) -> SliceStatistics | None:
    """Return the statistics of all slices from those without segments, or None if segments are too many.

    Parameters
    ----------
    rows : SliceStatistics
        Of the slices that are no segments of long rows.
    slices, steps, full : int
        Of all slices.
    segment_steps : int
        Steps of the segments.
    """
    # Segments with up to a quarter of all steps are assumed to gather as the other slices do: the blocks
    # chosen then cost at most 1% more (benchmarks/lab_book.md).
    if 4 * segment_steps > steps:
        return None
    return SliceStatistics(slices, steps, full, *rows[3:])


def code_bytes(coding: Coding, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a stored value."""
    return 0 if coding == Coding.EQUAL else code_type(coding, dtype).itemsize


def choose_steps(entries: int, model: CostModel) -> int:
    """Choose the largest number of steps of a slice."""
    for below, steps in model.steps:
        if entries < below:
            return steps
    return model.most_steps


def choose_long_steps(
    steps: int, rows: int, entries: int, longest: int, dtype: np.dtype[Any], model: CostModel
) -> int:
    """Choose more steps for many long rows of similar length, so that fewer lanes share a row.

    Lanes that share a row read entries of it that lie far apart, so the columns of a step need more bits.
    Fewer lanes to a row also leave fewer pads.

    Parameters
    ----------
    steps : int
        Largest number of steps of a slice otherwise.
    rows, entries : int
    longest : int
        Entries of the longest row.
    dtype : dtype
        Of the matrix.
    model : CostModel
    """
    if steps * rows >= entries:
        return steps
    for most, lanes, least, share in model.long_slices:
        alike = dtype.itemsize < 8 or share * longest * rows <= entries
        longer = steps < most and alike
        if longer and lanes // 2 * most < longest <= lanes * most and lanes * rows >= WARP * least:
            return most
    return steps


def bound_saving(
    rows: int, entries: int, longest: int, steps: int, dtype: np.dtype[Any], model: CostModel
) -> float:
    """Bound the cost that sorting the rows can save, without reading their lengths.

    Unsorted rows have at most as many pads as if all were as long as the longest, and no order has fewer
    slots than entries. Gathers are left out: a sort seldom makes them cheaper.

    Parameters
    ----------
    rows, entries : int
        No row is cut.
    longest : int
        Entries of the longest row.
    steps : int
        Most steps of a slice.
    dtype : dtype
        Of the matrix.
    model : CostModel
    """
    lanes = 1
    while lanes * steps < longest:
        lanes *= 2
    pads = (rows + WARP) * round_up(longest, lanes) - entries
    slices = (rows * lanes - max(rows, ceil_div(entries, steps))) / WARP + 1
    return _bound_slot(dtype, model) * pads + model.slice * slices


def list_windows(
    saved: float, rows: int, entries: int, dtype: np.dtype[Any], model: CostModel
) -> tuple[int, ...]:
    """Return the sort windows to try, rising; a window of `rows` or more sorts all rows.

    Empty if a sort can save less than it costs, or too little. `saved` is the bound of `bound_saving`.
    """
    moves = model.row * rows
    if saved - moves <= model.least_saving * _bound_slot(dtype, model) * entries:
        return ()
    narrower = tuple([window for window in WINDOWS if window < rows])
    sorts_all = len(narrower) < len(WINDOWS) or saved > moves + _estimate_scatter(rows, dtype, model)
    return (*narrower, rows) if sorts_all and rows not in narrower else narrower


def _bound_slot(dtype: np.dtype[Any], model: CostModel) -> float:
    """Return the highest cost of a slot."""
    return _estimate_slot(dtype.itemsize, model) + max(model.near.pad, model.far.pad)


def _estimate_scatter(rows: int, dtype: np.dtype[Any], model: CostModel) -> float:
    """Estimate what writing y in the order of a sort over all rows costs."""
    return model.scattered_row * rows if rows * dtype.itemsize > model.scattered_bytes else 0.0


def choose_gathers(x_bytes: int, model: CostModel) -> Gathers:
    """Choose the cost of gathers from an x of `x_bytes` bytes."""
    return model.near if x_bytes <= model.near_bytes else model.far


def choose_window(
    tried: dict[int, SliceStatistics],
    rows: int,
    dtype: np.dtype[Any],
    code_bytes: int,
    gathers: Gathers,
    model: CostModel,
) -> int:
    """Choose the sort window whose plan costs least: wide ones save pads, narrow ones save gathers.

    A pad costs the bytes of a value, so that the window depends on how values are stored.

    Parameters
    ----------
    tried : dict
        Statistics by window.
    rows : int
        Rows in slices.
    dtype : dtype
        Of the matrix, and of y.
    code_bytes : int
        Of a stored value.
    gathers : Gathers
        Of this x.
    model : CostModel
    """
    costs = []
    for window, slices in tried.items():
        size = _estimate_plan(slices, code_bytes, model) + (model.row * rows if window else 0)
        cost = size + gathers.pad * (slices.slots - WARP * slices.full)
        if window > WINDOWS[-1]:
            cost += _estimate_scatter(rows, dtype, model)
        for price, sectors in zip(gathers[1:], slices[4:], strict=True):
            cost += price * slices.extrapolate(sectors)
        costs.append((cost, size, window))
    most = model.most_growth * min([size for _, size, _ in costs])
    return min([cost for cost in costs if cost[1] <= most])[2]


def may_share(slices: SliceStatistics, model: CostModel) -> bool:
    """Return True if the number of slices in a block depends on sectors, which must then be counted."""
    enough, (_, least_slots) = SAMPLES * MANY_WARPS, model.block_slots
    return model.kind == "gpu" and slices.slices >= enough and slices.slots >= least_slots * slices.slices


def choose_warps(
    slices: SliceStatistics,
    even: bool,
    dtype: np.dtype[Any],
    code_bytes: int,
    gathers: Gathers,
    model: CostModel,
) -> int:
    """Choose how many slices share a multiprocessor's cache.

    Large blocks pay where neighbouring slices share many sectors of x, as in a band of random columns.
    Complex numbers take so many registers that few of the largest blocks would run at once. Blocks of a
    middle size pay in two cases: all slices run at once and are not short; or slices take turns, and
    launching a block takes as long as running it.

    Parameters
    ----------
    slices : SliceStatistics
    even : bool
        True if every slice has one row to a lane.
    dtype : dtype
        Of the matrix, and of y.
    code_bytes : int
        Of a stored value.
    gathers : Gathers
        Of this x.
    model : CostModel
    """
    if model.kind == "cpu":
        return FEW_WARPS
    count, slots = slices.slices, slices.slots
    if count <= model.wave_slices:
        pays = slots >= model.block_slots[0] * count
    else:
        others = model.slice + WARP * dtype.itemsize
        of_slots = _estimate_slot(max(code_bytes, LOAD_BYTES), model) * slots
        pays = even and of_slots <= (model.tiny_bytes - others) * count
    least = SOME_WARPS if pays else FEW_WARPS
    if not may_share(slices, model):
        return least
    size, least_cost = _estimate_plan(slices, code_bytes, model), model.slot_bytes * slots
    few, many = (
        max(size + gathers.by_few * slices.extrapolate(sectors), least_cost)
        for sectors in (slices.by_few, slices.by_many)
    )
    if model.large_block * many >= few:
        return least
    return SOME_WARPS if dtype.kind == "c" else MANY_WARPS


def _estimate_plan(slices: SliceStatistics, code_bytes: int, model: CostModel) -> float:
    """Estimate the cost of reading the slots and the headers."""
    return WARP * slices.steps * _estimate_slot(code_bytes, model) + model.slice * slices.slices


def _estimate_slot(code_bytes: int, model: CostModel) -> float:
    """Estimate the cost of reading a slot."""
    return model.slot + model.value_byte * code_bytes
