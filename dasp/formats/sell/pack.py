"""Rows into slices, in four steps: statistics, choice, layout, fill.

Written over the primitives of the device on which the matrix lies (`dasp.formats.sell.protocols.Primitives`).
Integers and stable orders alone decide, so that every device makes the same plan, bit for bit.
"""

from __future__ import annotations

import math

from dasp.formats.cost import FEW_WARPS, MANY_WARPS, CostModel, Gathers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Plan, narrowest
from dasp.formats.sell import choose
from dasp.formats.sell.layout import Cut, Layout, Survey
from dasp.formats.sell.options import Options
from dasp.formats.sell.pattern import NAME, Choice, Coding, Pattern
from dasp.formats.sell.protocols import Primitives
from dasp.runtime.integers import ceil_div


def pack(csr: Csr, options: Options, model: CostModel, on: Primitives) -> Plan:
    """Pack a matrix into slices.

    Parameters
    ----------
    csr : Csr
        On the device of the primitives; not modified.
    options : Options
    model : CostModel
        For which is chosen what the options leave open.
    on : Primitives

    Returns
    -------
    Plan
        With arrays on that device.
    """
    dtype, m = csr.data.dtype, csr.shape[0]
    steps = options.steps or choose.choose_steps(len(csr.data), model)
    segment_steps = options.steps or max(steps, model.most_steps)
    cut = Cut(steps, segment_steps, choose.MOST_SEGMENTS, model.wave_slices)
    survey = on.survey(csr, cut, options.narrow)
    coding = choose.choose_coding(survey.values, dtype) if survey.values else Coding.PLAIN
    code_bytes = choose.code_bytes(coding, dtype)
    if not options.steps and not survey.long_rows:
        steps = choose.choose_long_steps(steps, m, len(csr.data), survey.longest, dtype, model)
        if steps != cut.steps:
            cut = cut._replace(steps=steps, segment_steps=max(steps, cut.segment_steps))
    order = None
    if not survey.columns_rise:
        csr, order = on.operations.sort_columns(csr)
    gathers = choose.gathers_of((survey.most_column + 1) * dtype.itemsize, model)

    # If no row is longer than the one before it, a sort moves none.
    windows = _windows(csr, survey, cut, model) if options.window is None and survey.rises else ()
    known = None
    if windows:
        tiles = choose.tiles_to_try(windows, m, model)
        window, layout, known = _lay_out_best(
            csr, survey, cut, windows, code_bytes, gathers, model, on, tiles
        )
        if tiles and not choose.is_like(known, layout.steps - layout.segment_steps):
            del layout
            window, layout, known = _lay_out_best(
                csr, survey, cut, windows, code_bytes, gathers, model, on, 0
            )
        counts = layout.slices, layout.steps, layout.full, layout.segment_steps
        known = choose.with_segments(known, *counts)
    else:
        window = options.window or 0
        layout = on.lay_out(csr, survey, cut, window, None)
    warps = options.warps
    if warps is None:
        slices = known or _count_slices(csr, survey, cut, layout, model, on)
        even = layout.slices == ceil_div(layout.positions, WARP)
        warps = choose.choose_warps(slices, even, dtype, code_bytes, gathers, model)
    choice = Choice(model, steps, cut.segment_steps, window, warps, bool(options.narrow), bool(options.mma))
    values, (rows, headers, bases, deltas) = on.store(csr, survey, order, layout, coding)
    pattern = Pattern(
        choice=choice,
        index_dtype=narrowest(max(csr.shape)),
        entries=len(csr.data),
        segments=layout.segments,
        positions=layout.positions,
        rows=rows,
        headers=headers,
        bases=bases,
        deltas=deltas,
        long_rows=layout.long_rows,
        segment_offsets=layout.segment_offsets,
        segment_rows=layout.segment_rows,
    )
    return Plan(NAME, csr.shape, dtype, pattern, values, order)


def _windows(csr: Csr, survey: Survey, cut: Cut, model: CostModel) -> tuple[int, ...]:
    """Return the sort windows to try."""
    rows, entries, dtype, saved = csr.shape[0], len(csr.data), csr.data.dtype, math.inf
    if not survey.long_rows:
        saved = choose.most_saved(rows, entries, survey.longest, cut.steps, dtype, model)
    return choose.windows_to_try(saved, rows, entries, dtype, model)


def _lay_out_best(
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    code_bytes: int,
    gathers: Gathers,
    model: CostModel,
    on: Primitives,
    tiles: int,
) -> tuple[int, Layout, choose.SliceStatistics]:
    """Try sort windows, in some tiles or in all rows, and put rows in slices in the order of the best.

    Return the window, the layout, and the statistics of its rows that decided.
    """
    dtype, blocks = csr.data.dtype, _blocks(gathers, model)
    tried = on.try_windows(csr, survey, cut, windows, _sector_columns(csr), blocks, tiles)
    rows = csr.shape[0] - survey.long_rows
    window = choose.choose_window(tried.statistics, rows, dtype, code_bytes, gathers, model)
    return window, on.lay_out(csr, survey, cut, window, tried), tried.statistics[window]


def _count_slices(
    csr: Csr, survey: Survey, cut: Cut, layout: Layout, model: CostModel, on: Primitives
) -> choose.SliceStatistics:
    """Return what is known of slices, and what blocks of them read where that matters."""
    slices = choose.SliceStatistics(layout.slices, layout.steps, layout.full, 0, 0, 0, 0)
    if not choose.may_share(slices, model):
        return slices
    blocks = 0, FEW_WARPS, MANY_WARPS
    return on.slice_statistics(csr, survey, cut, layout, _sector_columns(csr), blocks)


def _blocks(gathers: Gathers, model: CostModel) -> tuple[int, int, int]:
    """Return the slices of each kind of block whose sectors matter; 0 for the others."""
    matter = model.kind == "gpu"
    few = FEW_WARPS if matter or gathers.by_few else 0
    many = MANY_WARPS if matter or gathers.by_many else 0
    return 1 if gathers.by_slice else 0, few, many


def _sector_columns(csr: Csr) -> int:
    """Return the columns whose x share a sector; x has the matrix's type."""
    return max(choose.SECTOR_BYTES // int(csr.data.dtype.itemsize), 1)
