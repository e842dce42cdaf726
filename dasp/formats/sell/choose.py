"""Choices for a matrix: pure functions of statistics, options and cost model, on the host.

Statistics are integers, so that every device that counts them chooses the same.

The coding depends on the values. Of the pattern, `choose_window` and `choose_warps` alone depend on them, by
the bytes of a stored value: 0 to 16 bytes a slot are traded there for gathers of x, which take the same time
whatever the values are. All else depends on the structure and on the type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dasp.formats.cost import FEW_WARPS, MANY_WARPS, SOME_WARPS, CostModel, Gathers
from dasp.formats.plan import WARP
from dasp.formats.sell.pattern import MOST_CODES, Coding, code_type
from dasp.runtime.sizes import ceil_div, round_up

SECTOR_BYTES = 32
"""Bytes that a gather moves at the least: a sector of a GPU's cache."""

SAMPLES = 24
"""Places at which sectors of x are counted, in the order of the slices."""

WINDOWS = 0, 128, 512, 1024, 8192
"""Rows of the sort windows that are tried: more find better plans, and each costs planning."""

LOAD_BYTES = 4
"""Bytes that a lane's load of a value takes the time of, at least."""

MOST_SEGMENTS = 128
"""Segments of a row, from which on they get longer and not more: one warp sums them."""

TILES, TILE_ROWS = 32, 8192
"""Tiles of a sample of rows in which windows are tried, and the rows of each: as many as the widest window.
The windows chosen then cost at most a hundredth more (benchmarks/lab_book.md)."""


class ValueStatistics(NamedTuple):
    """Facts of the values of a matrix.

    Attributes
    ----------
    entries : int
    distinct : int
        Different bit patterns; `MOST_CODES` + 1 where there are more than a dictionary holds.
    are_bytes : bool
        True if every value is real, an integer from -128 to 127, and no zero is negative.
    are_singles : bool
        True if every value keeps all of its bits in float32 (complex64), and not in fewer as it is. May be
        False where `distinct` is at most `MOST_CODES`: it decides nothing then.
    """

    entries: int
    distinct: int
    are_bytes: bool
    are_singles: bool


class SliceStatistics(NamedTuple):
    """Numbers of rows in slices.

    Attributes
    ----------
    slices, steps, full : int
        Slices, the steps of all, and those of them without pads.
    sampled_steps : int
        Steps of the slices in which sectors were counted.
    by_slice, by_few, by_many : int
        Distinct sectors of x in the sampled slices: of each slice, of each block of `FEW_WARPS`
        and of `MANY_WARPS` slices, added up. 0 if they were not counted.
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

    def scaled(self, rows: int, of: int) -> SliceStatistics:
        """Return the numbers of so many rows if `of` rows have these."""
        slices, steps, full = (count * rows // of for count in self[:3])
        return SliceStatistics(slices, steps, full, *self[3:])

    def of_all(self, sectors: int) -> float:
        """Estimate the sectors of all slices from those counted in the sample."""
        return sectors * self.steps / max(self.sampled_steps, 1)


def tiles_to_try(windows: tuple[int, ...], rows: int, model: CostModel) -> int:
    """Return in how many tiles of `TILE_ROWS` rows windows are tried; 0 if in all rows.

    Tiles hold whole windows, but for those of all rows, which are then of all rows in the tiles.
    """
    if rows < max(model.sampled_rows, 2 * TILES * TILE_ROWS) or len(windows) < 2:
        return 0
    whole = all([window in (0, rows) or TILE_ROWS % window == 0 for window in windows])
    return TILES if whole else 0


def drawn_tile(nth: int, count: int, tiles: int) -> int:
    """Return the tile that is drawn as the nth of so many: one of the nth part of all `tiles`, by a hash."""
    first, last = nth * tiles // count, (nth + 1) * tiles // count
    word = nth * 0x9E3779B1 & 0xFFFFFFFF
    word = (word ^ word >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return first + (word ^ word >> 13) % (last - first)


def is_like(sample: SliceStatistics, steps: int) -> bool:
    """Return True if a sample of rows has shown, to a sixteenth, how many steps the slices of all rows have.

    If not, it has missed the long rows.
    """
    return 16 * abs(sample.steps - steps) <= steps


def with_segments(
    rows: SliceStatistics, slices: int, steps: int, full: int, segment_steps: int
) -> SliceStatistics | None:
    """Return the statistics of all slices from those of rows alone, None where segments are too many.

    Parameters
    ----------
    rows : SliceStatistics
        Of the slices but the segments of long rows.
    slices, steps, full : int
        Of all.
    segment_steps : int
        Of the segments among them.
    """
    # Up to a quarter of all steps, segments are taken to gather as the other slices do: the blocks chosen
    # then cost at most a hundredth more (benchmarks/lab_book.md).
    if 4 * segment_steps > steps:
        return None
    return SliceStatistics(slices, steps, full, *rows[3:])


def choose_coding(values: ValueStatistics) -> Coding:
    """Choose the narrowest coding that keeps every bit of every value."""
    if not values.entries:
        return Coding.PLAIN
    if values.distinct == 1:
        return Coding.EQUAL
    if values.are_bytes:
        return Coding.BYTE
    if values.distinct <= MOST_CODES:
        return Coding.DICTIONARY
    return Coding.SINGLE if values.are_singles else Coding.PLAIN


def code_bytes(coding: Coding, dtype: np.dtype[Any]) -> int:
    """Return the bytes in which a value is stored."""
    return 0 if coding == Coding.EQUAL else code_type(coding, dtype).itemsize


def choose_steps(entries: int, model: CostModel) -> int:
    """Choose the most steps of a slice."""
    for below, steps in model.steps:
        if entries < below:
            return steps
    return model.most_steps


def choose_long_steps(
    steps: int, rows: int, entries: int, longest: int, dtype: np.dtype[Any], model: CostModel
) -> int:
    """Choose more steps where rows are long and alike, and many: fewer lanes then share a row.

    Lanes that share a row read different entries of it in a step, and so far columns beside near ones: all
    columns then need more bits. And fewer lanes to a row leave fewer pads.

    Parameters
    ----------
    steps : int
        Most steps of a slice otherwise.
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


def most_saved(
    rows: int, entries: int, longest: int, steps: int, dtype: np.dtype[Any], model: CostModel
) -> float:
    """Return the most that a sort of the rows can save, whatever their lengths are, in units of cost.

    Slices of rows as they are have at most the pads of rows that are all as long as the longest, and no
    order has fewer slots than entries. What gathers cost is not asked: a sort seldom makes them cheaper.

    Parameters
    ----------
    rows, entries : int
        None of the rows is cut.
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
    return _most_of_slot(dtype, model) * pads + model.slice * slices


def windows_to_try(
    saved: float, rows: int, entries: int, dtype: np.dtype[Any], model: CostModel
) -> tuple[int, ...]:
    """Return the sort windows to try, rising; those of `rows` or more sort all of them.

    None of them where no sort can save more than it costs, and enough: `saved` is the most (`most_saved`).
    """
    moves = model.row * rows
    if saved - moves <= model.least_saving * _most_of_slot(dtype, model) * entries:
        return ()
    narrower = tuple([window for window in WINDOWS if window < rows])
    sorts_all = len(narrower) < len(WINDOWS) or saved > moves + _scattered(rows, dtype, model)
    return (*narrower, rows) if sorts_all and rows not in narrower else narrower


def _most_of_slot(dtype: np.dtype[Any], model: CostModel) -> float:
    """Return the most that a slot costs."""
    return _slot_cost(dtype.itemsize, model) + max(model.near.pad, model.far.pad)


def _scattered(rows: int, dtype: np.dtype[Any], model: CostModel) -> float:
    """Return the cost of a sort over all rows beside that of the numbers of rows."""
    return model.scattered_row * rows if rows * dtype.itemsize > model.scattered_bytes else 0.0


def gathers_of(x_bytes: int, model: CostModel) -> Gathers:
    """Return the cost of reading an x of so many bytes."""
    return model.near if x_bytes <= model.near_bytes else model.far


def choose_window(
    tried: dict[int, SliceStatistics],
    rows: int,
    dtype: np.dtype[Any],
    code_bytes: int,
    gathers: Gathers,
    model: CostModel,
) -> int:
    """Choose the sort window whose plan costs least: wide ones save pads, narrow ones gather less of x.

    A pad costs the bytes of a value, so that the window depends on how values are stored.

    Parameters
    ----------
    tried : dict
        By window.
    rows : int
        In slices.
    dtype : dtype
        Of the matrix, and of y.
    code_bytes : int
        Of a stored value.
    gathers : Gathers
        Of this x.
    model : CostModel
    """
    costs, moves, last = [], model.row * rows, WINDOWS[-1]
    slot, of_slice = _slot_cost(code_bytes, model), model.slice
    pad, *each = gathers
    priced = [(kind, price) for kind, price in enumerate(each) if price]
    for window, (slices, steps, full, sampled_steps, *sampled) in tried.items():
        size = WARP * steps * slot + of_slice * slices + (moves if window else 0)
        cost = size + pad * (WARP * steps - WARP * full)
        if window > last:
            cost += _scattered(rows, dtype, model)
        for kind, price in priced:
            cost += price * (sampled[kind] * steps / (sampled_steps or 1))
        costs.append((cost, size, window))
    most = model.most_growth * min([size for _, size, _ in costs])
    return min([cost for cost in costs if cost[1] <= most])[2]


def may_share(slices: SliceStatistics, model: CostModel) -> bool:
    """Return True if sectors must be counted to choose the slices of a block."""
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

    Large blocks pay where neighbouring slices gather the same sectors of x, so many that this is a good
    part of all traffic, as in a band of random columns. Complex numbers take so many registers that few
    of the largest blocks would run at once. Somewhat larger ones pay where all slices run at once and are
    not short, and where slices take turns and launching a block takes as long as it runs. How long that is,
    and how much of the traffic gathers are, depends on how values are stored.

    Parameters
    ----------
    slices : SliceStatistics
    even : bool
        True if all slices have one row a lane.
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
        of_slots = _slot_cost(max(code_bytes, LOAD_BYTES), model) * slots
        pays = even and of_slots <= (model.tiny_bytes - others) * count
    least = SOME_WARPS if pays else FEW_WARPS
    if not may_share(slices, model):
        return least
    size, least_cost = _plan_cost(slices, code_bytes, model), model.slot_bytes * slots
    few, many = (
        max(size + gathers.by_few * slices.of_all(sectors), least_cost)
        for sectors in (slices.by_few, slices.by_many)
    )
    if model.large_block * many >= few:
        return least
    return SOME_WARPS if dtype.kind == "c" else MANY_WARPS


def _plan_cost(slices: SliceStatistics, code_bytes: int, model: CostModel) -> float:
    """Estimate what reading the slots and the headers costs."""
    return WARP * slices.steps * _slot_cost(code_bytes, model) + model.slice * slices.slices


def _slot_cost(code_bytes: int, model: CostModel) -> float:
    """Estimate what reading a slot costs."""
    return model.slot + model.value_byte * code_bytes
