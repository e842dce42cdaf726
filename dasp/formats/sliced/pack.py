"""Rows into slices, in four steps: statistics, choice, layout, fill.

Written over the primitives of the device on which the matrix lies (`dasp.backends.protocols.Primitives`).
Integers and stable orders alone decide, so that every device makes the same plan, bit for bit.
"""

from __future__ import annotations

from typing import Any

from dasp._machines import Gathers, Machine
from dasp.formats.array import WARP, Array, Csr, Plan, narrowest
from dasp.formats.sliced import choose
from dasp.formats.sliced.layout import Runs, Slices
from dasp.formats.sliced.options import Options
from dasp.formats.sliced.pattern import (
    NAME,
    Choice,
    Coding,
    Pattern,
    Values,
)


def pack(csr: Csr, options: Options, machine: Machine, on: Any) -> Plan:
    """Pack a matrix into slices.

    Parameters
    ----------
    csr : Csr
        On the device of the primitives; not modified.
    options : Options
    machine : Machine
        For which is chosen what the options leave open.
    on : Primitives

    Returns
    -------
    Plan
        With arrays on that device.
    """
    columns = on.column_statistics(csr.indptr, csr.indices)
    if not columns.rise:
        order = on.column_order(csr.indptr, csr.indices)
        csr = csr._replace(indices=csr.indices[order], data=csr.data[order])
    dtype = csr.data.dtype
    steps = options.steps or choose.choose_steps(len(csr.data), machine)
    segment_steps = options.steps or max(steps, machine.most_steps)
    coding = choose.choose_coding(on.value_statistics(csr.data), dtype) if options.narrow else Coding.PLAIN
    code_bytes = choose.code_bytes(coding, dtype)
    gathers = choose.gathers_of((columns.most + 1) * dtype.itemsize, machine)

    lengths, long_rows = on.row_lengths(csr.indptr, WARP * steps)
    window = options.window
    if window is None:
        costs = code_bytes, gathers, machine
        window = _choose_window(csr, lengths, len(lengths) - len(long_rows), steps, *costs, on)
    rows = on.sort_rows(lengths, window, WARP * steps)
    runs = on.runs_of_rows(csr.indptr, rows)
    slices = on.cut_runs(runs.lengths, steps)
    segments = on.segments(
        csr, long_rows, steps, segment_steps, machine.most_segments, machine.wave_slices - len(slices.steps)
    )
    if segments.total:
        runs, slices = on.segments_first(segments, runs, slices)
    warps = options.warps or _choose_warps(csr, runs, slices, code_bytes, gathers, machine, on)

    index = narrowest(max(csr.shape))
    bases, widths = on.measure_columns(slices, runs, csr.indices, index)
    headers, blocks = on.headers(slices, widths, segments.in_turn)
    codes, table = on.encode(csr.data, coding)
    deltas, stored = on.fill(slices, runs, csr.indices, codes, bases, widths, blocks)
    pattern = Pattern(
        choice=Choice(machine.name, steps, segment_steps, window, warps, bool(options.mma)),
        index_dtype=index,
        entries=len(csr.data),
        segments=segments.total,
        positions=len(rows),
        rows=rows[:0].astype(index) if len(rows) == csr.shape[0] and window == 0 else rows.astype(index),
        headers=headers,
        bases=bases,
        deltas=deltas,
        long_rows=long_rows.astype(index),
        segment_offsets=segments.offsets.astype(index),
        segment_rows=segments.rows.astype(index),
    )
    return Plan(NAME, csr.shape, dtype, pattern, Values(coding, stored, table))


def _choose_window(
    csr: Csr,
    lengths: Array,
    rows: int,
    steps: int,
    code_bytes: int,
    gathers: Gathers,
    machine: Machine,
    on: Any,
) -> int:
    """Count what each window to try would give, and choose; 0 where a sort would move no row."""
    if on.never_rises(lengths):
        return 0
    windows = choose.windows_to_try(len(lengths), machine)
    blocks = _blocks(gathers, machine)
    tried = on.window_statistics(csr, lengths, windows, steps, _sector_columns(csr), blocks)
    return choose.choose_window(tried, rows, code_bytes, gathers, machine)


def _choose_warps(
    csr: Csr, runs: Runs, slices: Slices, code_bytes: int, gathers: Gathers, machine: Machine, on: Any
) -> int:
    """Count what blocks of slices would read, where that matters, and choose."""
    if not machine.blocks_matter:
        return machine.few_warps
    statistics = on.slice_statistics(slices, runs, csr.indices, 1, (0, 0, 0))
    if choose.may_share(statistics, machine):
        blocks = 0, machine.few_warps, machine.many_warps
        statistics = on.slice_statistics(slices, runs, csr.indices, _sector_columns(csr), blocks)
    return choose.choose_warps(statistics, code_bytes, gathers, machine)


def _blocks(gathers: Gathers, machine: Machine) -> tuple[int, int, int]:
    """Return the slices of each kind of block whose sectors cost something; 0 for the others."""
    sizes = 1, machine.few_warps, machine.many_warps
    first, second, third = (size if cost else 0 for size, cost in zip(sizes, gathers[1:], strict=True))
    return first, second, third


def _sector_columns(csr: Csr) -> int:
    """Return the columns whose x share a sector; x has the matrix's type."""
    return max(choose.SECTOR_BYTES // int(csr.data.dtype.itemsize), 1)
