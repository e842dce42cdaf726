"""Rows and segments in slices: the headers."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import UINT32
from dasp.formats.sell.cuda.pack.orders import Orders, cut_order, one_of
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.segments import list_long_rows, sort_segments
from dasp.formats.sell.cuda.pack.sizes import CUT_THREADS, TOTALS
from dasp.formats.sell.cuda.pack.survey import Segments
from dasp.formats.sell.layout import Cut, Layout, Survey, Tried


class Placed(NamedTuple):
    """What a layout keeps: kernels that follow it are told where these are; room for the bases of steps."""

    segments: Segments
    orders: Orders
    bases: Array


def lay_out(on: Resources, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
    """See `Primitives`."""
    device, m, work = on.device, csr.shape[0], survey.detail
    facts, window, positions = work.facts, min(window, m), m - survey.long_rows
    if tried and tried.detail and window in tried.detail.windows:
        orders = one_of(on, tried.detail, survey, window, m)
        slices, steps, full = tried.statistics[window][:TOTALS]
    else:
        orders, (slices, steps, full) = cut_order(on, csr, survey, cut, window)
    segments, index, known, word = facts.segments, work.types["Index"], work.known, device.word
    slices, steps = segments + slices, facts.segment_steps + steps
    moved = () if orders.rows is None else ((positions, index),)
    room = device.scratch((4 * slices, UINT32), (steps, index), *moved)
    placed = room[2] if moved else None
    pieces = list_long_rows(on, csr, survey)
    starts, lengths, of_segments = in_turn = (
        sort_segments(on, csr, survey) if segments and slices > cut.in_order else pieces.segments
    )
    known["headers"], known["segments"] = word(room[0]), segments
    known["segment_starts"], known["segment_lengths"] = word(starts), word(lengths)
    known["segment_headers"], known["placed"] = word(of_segments), word(placed)
    if segments or orders.tiles:
        known["steps_before"] = facts.segment_steps
        work.launch(kernels.CUT_HEADERS, max(orders.tiles, 1), CUT_THREADS)
    known["rows"] = known["placed"]
    return Layout(
        positions=positions,
        segments=segments,
        slices=slices,
        steps=steps,
        full=facts.segment_full + full,
        segment_steps=facts.segment_steps,
        rows=placed,
        headers=room[0],
        long_rows=pieces.long_rows,
        segment_offsets=pieces.offsets,
        segment_rows=pieces.rows,
        detail=Placed(in_turn, Orders(orders.windows, placed, *orders[2:]), room[1]),
    )
