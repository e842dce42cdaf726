"""Rows and segments in slices: the headers."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.matrix import Csr
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import CUT_THREADS, TOTALS
from dasp.formats.sell.cuda.pack.kinds import UINT32
from dasp.formats.sell.cuda.pack.launcher import Launcher
from dasp.formats.sell.cuda.pack.orders import Orders, cut_orders, steps_of
from dasp.formats.sell.cuda.pack.segments import Segments, list_long_rows, sort_segments
from dasp.formats.sell.primitives import Cut, Layout, Survey, Tried


class Placed(NamedTuple):
    """The detail of a layout: segments in their order, and the order of the rows."""

    segments: Segments
    orders: Orders


def lay_out(on: Launcher, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
    """See `Primitives`."""
    device, of, facts = on.device, kinds.of_matrix(csr), survey.detail.facts
    window = min(window, csr.shape[0])
    if tried and tried.detail and window in tried.detail.windows:
        orders = tried.detail.pick(window)
        slices, steps, full = tried.statistics[window][:TOTALS]
    else:
        orders = cut_orders(on, csr, survey, cut, (window,))
        slices, steps, full = device.read(orders.totals[0])[:TOTALS]
    long = list_long_rows(on, csr, survey, cut)
    segments = long.segments
    slices, steps = segments.total + slices, facts.segment_steps + steps
    if segments.total and slices > cut.in_order:
        segments = sort_segments(on, csr, survey, segments)
    headers = device.empty((slices, 4), UINT32)
    rows = device.empty(0 if orders.rows is None else orders.positions, of.types["Index"])
    placed = rows if len(rows) else None
    if slices:
        on.launch(
            kernels.CUT_HEADERS,
            of,
            max(orders.tiles, 1),
            CUT_THREADS,
            indptr=csr.indptr,
            **orders.arguments,
            **steps_of(survey, cut),
            segments=segments.total,
            segment_headers=segments.headers,
            steps_before=facts.segment_steps,
            headers=headers,
            placed=placed,
        )
    return Layout(
        positions=orders.positions,
        segments=segments.total,
        slices=slices,
        steps=steps,
        full=facts.segment_full + full,
        segment_steps=facts.segment_steps,
        rows=rows,
        headers=headers,
        long_rows=long.rows,
        segment_offsets=long.offsets,
        segment_rows=long.segment_rows,
        detail=Placed(segments, orders._replace(rows=placed)),
    )
