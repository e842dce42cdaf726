"""Rows too long for a slice, and the segments that they are cut into: kernels/pack/segments.cu."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.plan import WARP, Array, Csr
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.protocols import Aside
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, LONG_TILE, SORT_THREADS, SORT_TILE
from dasp.formats.sell.cuda.pack.survey import LongRows, Segments, SurveyWork
from dasp.formats.sell.cuda.pack.work import share
from dasp.formats.sell.layout import Cut, Survey
from dasp.runtime.cuda.c_types import INT64, UINT32
from dasp.runtime.integers import ceil_div

_NO_SEGMENTS = Segments(None, None, None)

MOST_SEGMENTS = SORT_TILE
"""Segments that one block sorts: kernels/pack/segments.cu."""


def list_long_rows(on: Resources, csr: Csr, survey: Survey, beside: Aside | None = None) -> LongRows:
    """Return the rows too long for a slice, and their segments, perhaps listed beside others."""
    work: SurveyWork = survey.detail
    if work.long is not None:
        return work.long
    index = work.types["Index"]
    if not survey.long_rows:
        none = _NO_SEGMENTS, _NO_SEGMENTS, None
        work.long = LongRows(on.nothing(index), on.zero(index), on.nothing(index), *none)
    else:
        device, known, word = on.device, work.known, on.device.word
        found, of_fields = take_room(on, survey)
        long_rows, offsets, of_segments = found
        starts, lengths, headers, *turned, keys = of_fields
        known["long_rows"], known["offsets"] = word(long_rows), word(offsets)
        known["segment_rows"], known["headers"] = word(of_segments), word(headers)
        known["starts"], known["lengths"] = word(starts), word(lengths)
        with beside or nullcontext():
            work.launch(kernels.LIST_LONG, ceil_div(csr.shape[0], LONG_TILE))
        long_rows, offsets, of_segments = map(device.shown, found)
        segments = Segments(starts, lengths, headers)
        work.long = LongRows(long_rows, offsets, of_segments, segments, Segments(*turned), keys)
    return work.long


def take_room(on: Resources, survey: Survey) -> tuple[list[Array], list[Array]]:
    """Return memory for long rows, and for their segments and what sorts them, which is taken once."""
    work: SurveyWork = survey.detail
    if work.room is None:
        rows, index, count = survey.long_rows, work.types["Index"], work.facts.segments
        each = (count, INT64), (count, INT64), (4 * count, UINT32)
        found = on.device.scratch((rows, index), (rows + 1, index), (count, index))
        work.room = found, on.device.scratch(*each, *each, (count, UINT32))
    return work.room


def likely_to_turn(csr: Csr, work: SurveyWork, cut: Cut) -> bool:
    """Whether segments, not yet sorted, are likely to be: the host waits anyway while a block sorts them.

    Slices of short rows have 32 of them, and slices of long ones are full; a matrix has some of each.
    """
    facts = work.facts
    if work.turns or not 0 < facts.segments <= MOST_SEGMENTS:
        return False
    rows, entries = csr.shape[0] - facts.long_rows, len(csr.indices) - WARP * facts.segment_steps
    return facts.segments + ceil_div(rows, WARP) + ceil_div(entries, WARP * cut.steps) > cut.in_order


def sorting(on: Resources, csr: Csr, survey: Survey) -> Callable[[Aside], Segments]:
    """Take memory for segments; return what sorts them beside others."""
    take_room(on, survey)
    return partial(sort_segments, on, csr, survey)


def sort_segments(on: Resources, csr: Csr, survey: Survey, beside: Aside | None = None) -> Segments:
    """Return segments in the order of their first columns, perhaps sorted beside others."""
    work, bits = survey.detail, survey.most_column.bit_length()
    *_, segments, turned, keys = list_long_rows(on, csr, survey, beside)
    work.turned, count, known, word = turned, work.facts.segments, work.known, on.device.word
    known["starts"], known["lengths"], _ = map(word, segments)
    known["turned_starts"], known["turned_lengths"], known["turned_headers"] = map(word, turned)
    known["segments"], known["column_keys"] = count, word(keys)
    if count <= MOST_SEGMENTS:
        with beside or nullcontext():
            work.launch(kernels.SORT_SEGMENTS, 1, SORT_THREADS, column_bits=bits)
        return turned
    (in_turn,) = on.device.scratch((count, work.types["Index"]))
    work.launch(kernels.COLUMN_KEYS, share(count, 256, BLOCKS), count=count, keys=keys)
    indptr = work.known["indptr"]
    work.tell(indptr=None, longest=0, most=0, gone=None, gone_count=0)
    sort(on, work, (count, work.types["Index"]), count, bits, in_turn)
    work.known["indptr"] = indptr
    work.launch(kernels.PLACE_SEGMENTS, 1, 1024, in_turn=in_turn)
    return turned
