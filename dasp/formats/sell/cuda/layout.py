"""Rows and segments in slices: the order of both, and the headers."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.csr.cuda import CudaOperations, sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.kinds import INT64, UINT32
from dasp.formats.sell.cuda.survey import LONG_TILE
from dasp.formats.sell.cuda.windows import CUT_THREADS, Orders, cut_orders, steps_of
from dasp.formats.sell.primitives import Cut, Layout, Survey, Tried
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div

PLACE_THREADS = 1024
"""Threads of the block that places segments: kernels/pack/segments.cu."""

LIST_LONG = Signature(
    "pack/segments.cu",
    "dasp_list_long",
    """
    const Start*  indptr         [m + 1]
    long long     m
    int           steps
    int           segment_steps
    int           most_segments
    const Count*  long_tiles
    Index*        long_rows      [r]
    Index*        offsets        [r + 1]
    Index*        segment_rows   [segments]
    long long*    starts         [segments]
    long long*    lengths        [segments]
    uint4*        headers        [segments]
    """,
)

COLUMN_KEYS = Signature(
    "pack/segments.cu",
    "dasp_column_keys",
    """
    const Column*     indices
    const long long*  starts   [count]
    long long         count
    Column*           keys     [count]
    """,
)

PLACE_SEGMENTS = Signature(
    "pack/segments.cu",
    "dasp_place_segments",
    """
    const long long*  starts          [segments]
    const long long*  lengths         [segments]
    long long         segments
    const Index*      order           [segments]
    long long*        to_starts       [segments]
    long long*        to_lengths      [segments]
    uint4*            to_headers      [segments]
    """,
)

CUT_HEADERS = Signature(
    "pack/cut.cu",
    "dasp_cut_headers",
    """
    const Start*  indptr
    const Index*  rows
    long long     positions
    int           steps
    int           even
    const Count*  before
    const uint4*  segment_headers  [segments]
    long long     segments
    long long     steps_before
    uint4*        headers
    Index*        placed         [positions]
    """,
)


class Segments(NamedTuple):
    """Segments in an order: their number, first entries, lengths and headers; None if there are none."""

    total: int
    starts: Array | None
    lengths: Array | None
    headers: Array | None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of kernels that go through slices."""
        return {"segments": self.total, "segment_starts": self.starts, "segment_lengths": self.lengths}


class LongRows(NamedTuple):
    """Rows that are cut into segments: the rows, the first segment of each, and the row of each segment."""

    rows: Array
    offsets: Array
    segment_rows: Array
    segments: Segments


class Placed(NamedTuple):
    """The detail of a layout: segments in their order, and the order of the rows."""

    segments: Segments
    orders: Orders


def lay_out(
    on: CudaOperations, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None
) -> Layout:
    """See `Primitives`."""
    device, kinds, facts = on.device, survey.detail.kinds, survey.detail.facts
    window = min(window, csr.shape[0])
    if tried and tried.detail and window in tried.detail.windows:
        orders = tried.detail.pick(window)
        slices, steps, full, *_ = tried.statistics[window]
    else:
        orders = cut_orders(on, csr, survey, cut, (window,))
        slices, steps, full, *_ = device.read(orders.totals)
    long = _list_long_rows(on, csr, survey, cut)
    segments = long.segments
    slices, steps = segments.total + slices, facts.segment_steps + steps
    if segments.total and slices > cut.in_order:
        segments = _sort_segments(on, csr, survey, segments)
    headers = device.empty((slices, 4), UINT32)
    rows = device.empty(0 if orders.rows is None else orders.positions, kinds.types["Index"])
    placed = rows if len(rows) else None
    if slices:
        on.launch(
            CUT_HEADERS,
            kinds,
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


def _list_long_rows(on: CudaOperations, csr: Csr, survey: Survey, cut: Cut) -> LongRows:
    """Return the rows too long for a slice, and their segments row by row."""
    empty, kinds = on.device.empty, survey.detail.kinds
    index, rows, count = kinds.types["Index"], survey.long_rows, survey.detail.facts.segments
    if not rows:
        none = empty(0, index)
        return LongRows(none, on.device.zeros(1, index), none, Segments(0, None, None, None))
    found = LongRows(
        empty(rows, index), empty(rows + 1, index), empty(count, index), _allocate_segments(on, count)
    )
    on.launch(
        LIST_LONG,
        kinds,
        ceil_div(csr.shape[0], LONG_TILE),
        indptr=csr.indptr,
        m=csr.shape[0],
        steps=cut.steps,
        segment_steps=cut.segment_steps,
        most_segments=cut.most_segments,
        long_tiles=survey.detail.long_tiles,
        long_rows=found.rows,
        offsets=found.offsets,
        segment_rows=found.segment_rows,
        starts=found.segments.starts,
        lengths=found.segments.lengths,
        headers=found.segments.headers,
    )
    return found


def _allocate_segments(on: CudaOperations, count: int) -> Segments:
    empty = on.device.empty
    return Segments(count, empty(count, INT64), empty(count, INT64), empty(4 * count, UINT32))


def _sort_segments(on: CudaOperations, csr: Csr, survey: Survey, segments: Segments) -> Segments:
    """Sort segments by their first columns, equal ones row by row."""
    kinds, count = survey.detail.kinds, segments.total
    index = kinds.types["Index"]
    keys, order = on.device.empty(count, csr.indices.dtype), on.device.empty(count, index)
    of_keys: dict[str, Any] = {
        "indices": csr.indices,
        "starts": segments.starts,
        "count": count,
        "keys": keys,
    }
    on.launch(COLUMN_KEYS, kinds, on.count_blocks(count, 256), **of_keys)
    sort(on, keys, survey.most_column.bit_length(), order, index)
    ordered = _allocate_segments(on, count)
    on.launch(
        PLACE_SEGMENTS,
        kinds,
        1,
        PLACE_THREADS,
        starts=segments.starts,
        lengths=segments.lengths,
        segments=count,
        order=order,
        to_starts=ordered.starts,
        to_lengths=ordered.lengths,
        to_headers=ordered.headers,
    )
    return ordered
