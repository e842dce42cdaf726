"""Pack rows into slices in four steps: statistics, choice, layout, fill. Put new values into a plan.

The steps call the primitives (`dasp.formats.sell.primitives`) of the device on which the matrix lies.
Integers and stable orders alone decide, so every device makes the same plan, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dasp.formats.cost import FEW_WARPS, MANY_WARPS, CostModel, Gathers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell import choose
from dasp.formats.sell.choose import SliceStatistics
from dasp.formats.sell.pattern import NAME, Choice, Coding, Options, Pattern, Values
from dasp.formats.sell.primitives import Cut, Layout, Primitives, Slots, Survey
from dasp.runtime.dtypes import stored
from dasp.runtime.sizes import ceil_div, narrowest


def pack(csr: Csr, options: Options, model: CostModel, on: Primitives) -> Plan:
    """Pack a matrix into slices.

    Parameters
    ----------
    csr : Csr
        On the device of the primitives; not modified.
    options : Options
    model : CostModel
        Decides what the options leave open.
    on : Primitives

    Returns
    -------
    Plan
        With arrays on that device.
    """
    dtype = csr.data.dtype
    survey, cut = _survey(csr, options, model, on)
    order = None
    if not survey.columns_rise:
        csr, order = on.sort_columns(csr)

    gathers = choose.choose_gathers((survey.most_column + 1) * dtype.itemsize, model)
    rows = _Rows(csr, survey, cut, choose.code_bytes(survey.coding, dtype), gathers, model, on)
    # If no row is longer than the one before it, a sort moves none.
    windows = rows.list_windows() if options.window is None and survey.rises else ()
    if windows:
        window, layout, slices = rows.lay_out_best(windows)
    else:
        window, slices = options.window or 0, None
        layout = on.lay_out(csr, survey, cut, window, None)
    warps = options.warps or rows.choose_warps(layout, slices)

    values, (moved, headers, bases, deltas) = on.store(csr, survey, order, layout)
    pattern = Pattern(
        choice=Choice(
            model, cut.steps, cut.segment_steps, window, warps, bool(options.narrow), bool(options.mma)
        ),
        index_dtype=narrowest(max(csr.shape)),
        entries=len(csr.data),
        segments=len(layout.segment_rows),
        positions=layout.positions,
        rows=moved,
        headers=headers,
        bases=bases,
        deltas=deltas,
        long_rows=layout.long_rows,
        segment_offsets=layout.segment_offsets,
        segment_rows=layout.segment_rows,
    )
    return Plan(NAME, csr.shape, dtype, pattern, values, order)


def _survey(csr: Csr, options: Options, model: CostModel, on: Primitives) -> tuple[Survey, Cut]:
    """Return the statistics of a matrix and the cut of its rows."""
    entries = len(csr.data)
    steps = options.steps or choose.choose_steps(entries, model)
    segment_steps = options.steps or max(steps, model.most_steps)
    cut = Cut(steps, segment_steps, choose.MOST_SEGMENTS, model.wave_slices)
    survey = on.survey(csr, cut, options.narrow)
    if not options.steps and not survey.long_rows:
        steps = choose.choose_long_steps(steps, csr.shape[0], entries, survey.longest, csr.data.dtype, model)
        cut = cut._replace(steps=steps, segment_steps=max(steps, segment_steps))
    return survey, cut


class _Rows(NamedTuple):
    """The rows of a matrix with rising columns, and the numbers by which order and blocks are chosen."""

    csr: Csr
    survey: Survey
    cut: Cut
    code_bytes: int
    gathers: Gathers
    model: CostModel
    on: Primitives

    def list_windows(self) -> tuple[int, ...]:
        """Return the sort windows that may pay, rising."""
        (rows, _), entries, dtype = self.csr.shape, len(self.csr.data), self.csr.data.dtype
        saved, longest = math.inf, self.survey.longest
        if not self.survey.long_rows:
            saved = choose.bound_saving(rows, entries, longest, self.cut.steps, dtype, self.model)
        return choose.list_windows(saved, rows, entries, dtype, self.model)

    def lay_out_best(self, windows: tuple[int, ...]) -> tuple[int, Layout, SliceStatistics | None]:
        """Return the best window, its layout, and the statistics of its slices, or None if they are unknown.

        Many rows are sampled to try windows; if the sample missed the long ones, all rows are used.
        """
        tiles = choose.count_tiles(windows, self.csr.shape[0], self.model)
        window, layout, slices = self._lay_out_best(windows, tiles)
        if tiles and not choose.is_like(slices, layout.steps - layout.segment_steps):
            del layout  # its memory is taken again
            window, layout, slices = self._lay_out_best(windows, 0)
        counts = layout.slices, layout.steps, layout.full, layout.segment_steps
        return window, layout, choose.add_segments(slices, *counts)

    def _lay_out_best(self, windows: tuple[int, ...], tiles: int) -> tuple[int, Layout, SliceStatistics]:
        """Try windows in some tiles, or in all rows if `tiles` is 0, and lay the rows out by the best."""
        csr, survey, cut, code_bytes, gathers, model, on = self
        tried = on.try_windows(csr, survey, cut, windows, self._sector_columns, self._blocks, tiles)
        in_slices = csr.shape[0] - survey.long_rows
        window = choose.choose_window(tried.statistics, in_slices, csr.data.dtype, code_bytes, gathers, model)
        return window, on.lay_out(csr, survey, cut, window, tried), tried.statistics[window]

    def choose_warps(self, layout: Layout, slices: SliceStatistics | None) -> int:
        """Choose the slices of a block; count their statistics first if they matter and are unknown."""
        if slices is None:
            slices = SliceStatistics(layout.slices, layout.steps, layout.full, 0, 0, 0, 0)
            if choose.may_share(slices, self.model):
                blocks = 0, FEW_WARPS, MANY_WARPS
                slices = self.on.slice_statistics(
                    self.csr, self.survey, self.cut, layout, self._sector_columns, blocks
                )
        even = layout.slices == ceil_div(layout.positions, WARP)
        dtype = self.csr.data.dtype
        return choose.choose_warps(slices, even, dtype, self.code_bytes, self.gathers, self.model)

    @property
    def _blocks(self) -> tuple[int, int, int]:
        """The slices of each kind of block whose sectors matter, 0 for the other kinds."""
        matter, gathers = self.model.kind == "gpu", self.gathers
        few = FEW_WARPS if matter or gathers.by_few else 0
        many = MANY_WARPS if matter or gathers.by_many else 0
        return 1 if gathers.by_slice else 0, few, many

    @property
    def _sector_columns(self) -> int:
        """The columns whose x share a sector; x has the matrix's type."""
        return max(choose.SECTOR_BYTES // int(self.csr.data.dtype.itemsize), 1)


def values_from(plan: Plan, data: Array, slots: Slots, on: Primitives) -> Values:
    """Return the values of a plan with the same pattern, in the narrowest coding that holds them.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,)
        Of any type that a matrix may have.
    slots : Slots
        The slot of each value's entry, from `Primitives.find_slots`.
    on : Primitives
    """
    coding, dictionary = Coding.PLAIN, None
    if plan.pattern.choice.narrow and len(data):
        coding, dictionary = on.choose_coding(data)
    return on.code_values(data, slots, WARP * len(plan.pattern.bases), coding, dictionary)


def values_into(plan: Plan, data: Array, slots: Slots, on: Primitives) -> None:
    """Write values into the arrays of a plan, in its coding.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,), the plan's type
    slots : Slots
        The slot of each value's entry, from `Primitives.find_slots`.
    on : Primitives

    Raises
    ------
    ValueError
        If the coding cannot hold the values; nothing was written.

    Notes
    -----
    With Coding.PLAIN nothing is read back from the device: the call can be captured.
    """
    if len(data) and not on.recode_values(data, slots, plan.values):
        raise ValueError(
            f"out stores its values as {plan.values.coding.name}, which does not hold the new ones; "
            "plan it with Policy(narrow=False), or leave out `out`"
        )


def map_values(plan: Plan, function: Callable[[Array], Array], on: Primitives) -> Plan | None:
    """Apply a function to each value of a plan. Return None if the values must be coded anew.

    It is applied to the table of a dictionary, and to every slot of values that are stored as they are.
    """
    values, pattern = plan.values, plan.pattern
    if values.coding in (Coding.EQUAL, Coding.DICTIONARY):
        table = _to_stored(function(values.table))
        return plan.of(Values(values.coding, values.codes.copy(), table), table.dtype)
    with np.errstate(all="ignore"):
        of_pad = function(np.zeros(1, plan.dtype))
    if values.coding != Coding.PLAIN or of_pad[0] != 0:  # as a product with infinity, which is NaN
        return None
    numbers = _to_stored(function(values.codes))
    on.clear_pads(pattern, numbers)
    # A pad's 0 may hide that numbers fit a narrower coding, and never that they do not.
    if pattern.choice.narrow and len(numbers) and on.choose_coding(numbers)[0] != Coding.PLAIN:
        return None
    return plan.of(Values(Coding.PLAIN, numbers, on.zeros(0, numbers.dtype)), numbers.dtype)


def _to_stored(numbers: Array) -> Array:
    """Convert numbers to a type that a matrix may have."""
    return numbers.astype(stored(numbers.dtype), copy=False)
