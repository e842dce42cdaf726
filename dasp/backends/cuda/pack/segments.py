"""Rows too long for a slice, and the segments that they are cut into: kernels/pack/segments.cu."""

from __future__ import annotations

from contextlib import nullcontext

from dasp._integers import ceil_div
from dasp.backends.cuda.pack import kernels
from dasp.backends.cuda.pack.c_types import INT64, UINT32
from dasp.backends.cuda.pack.protocols import Aside
from dasp.backends.cuda.pack.resources import Resources
from dasp.backends.cuda.pack.sizes import BLOCKS, LONG_TILE, SORT_TILE
from dasp.backends.cuda.pack.sort import sort
from dasp.backends.cuda.pack.survey import LongRows, Segments, SurveyWork
from dasp.backends.cuda.pack.work import share
from dasp.formats.array import WARP, Csr
from dasp.formats.sliced.layout import Cut, Survey

MOST_SEGMENTS = SORT_TILE
"""Segments that one block sorts: kernels/pack/segments.cu."""


def list_long_rows(on: Resources, csr: Csr, survey: Survey) -> LongRows:
    """Return the rows too long for a slice, and their segments."""
    work: SurveyWork = survey.detail
    rows, index, count = survey.long_rows, work.types["Index"], work.facts.segments
    if not rows:
        none = Segments(None, None, None)
        return LongRows(on.nothing(index), on.zero(index), on.nothing(index), none)
    if work.long is None:
        empty = on.device.empty
        long_rows, offsets = empty(rows, index), empty(rows + 1, index)
        found = LongRows(long_rows, offsets, empty(count, index), _room_for_segments(on, count))
        made = {"long_rows": long_rows, "offsets": offsets, "segment_rows": found.rows}
        work.launch(kernels.LIST_LONG, ceil_div(csr.shape[0], LONG_TILE), **made, **found.segments._asdict())
        work.long = found
    return work.long


def sure_to_turn(csr: Csr, work: SurveyWork, cut: Cut) -> bool:
    """Whether segments, not yet sorted, will be, however rows are sorted."""
    facts = work.facts
    if work.turns or not 0 < facts.segments <= MOST_SEGMENTS:
        return False
    rows, entries = csr.shape[0] - facts.long_rows, len(csr.indices) - WARP * facts.segment_steps
    least = max(ceil_div(rows, WARP), ceil_div(entries, WARP * cut.steps))
    return facts.segments + least > cut.in_order


def sort_segments(on: Resources, survey: Survey, beside: Aside | None = None) -> Segments:
    """Return segments in the order of their first columns, perhaps sorted beside others."""
    work, bits = survey.detail, survey.most_column.bit_length()
    assert work.long
    count, (starts, lengths, _) = work.facts.segments, work.long.segments
    turned = work.turned = _room_for_segments(on, count)
    (keys,) = on.device.scratch((count, UINT32))
    to = {f"turned_{name}": array for name, array in turned._asdict().items()}
    work.tell(starts=starts, lengths=lengths, segments=count, column_keys=keys, **to)
    if count <= MOST_SEGMENTS:
        work.kept = keys
        with beside or nullcontext():
            work.launch(kernels.SORT_SEGMENTS, 1, 512, column_bits=bits)
        return turned
    (in_turn,) = on.device.scratch((count, work.types["Index"]))
    work.launch(kernels.COLUMN_KEYS, share(count, 256, BLOCKS), count=count, keys=keys)
    indptr = work.known["indptr"]
    work.tell(indptr=None, longest=0, most=0, gone=None, gone_count=0)
    sort(on, work, (count, work.types["Index"]), count, bits, in_turn)
    work.known["indptr"] = indptr
    work.launch(kernels.PLACE_SEGMENTS, 1, 1024, in_turn=in_turn)
    return turned


def _room_for_segments(on: Resources, count: int) -> Segments:
    return Segments(*on.device.scratch((count, INT64), (count, INT64), (4 * count, UINT32)))
