"""Rows too long for a slice, and the segments that they are cut into: kernels/pack/segments.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import INT64, UINT32
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, LONG_TILE, SORT_THREADS, SORT_TILE
from dasp.formats.sell.cuda.pack.survey import LongRows, Segments, SurveyWork
from dasp.formats.sell.cuda.pack.work import share
from dasp.formats.sell.layout import Survey
from dasp.runtime.integers import ceil_div

_NO_SEGMENTS = Segments(None, None, None)

MOST_SEGMENTS = SORT_TILE
"""Segments that one block sorts: kernels/pack/segments.cu."""


def list_long_rows(on: Resources, csr: Csr, survey: Survey) -> LongRows:
    """Return the rows too long for a slice, and their segments, listed when first asked for."""
    work: SurveyWork = survey.detail
    if work.long is not None:
        return work.long
    index = work.types["Index"]
    if not survey.long_rows:
        work.long = LongRows(on.nothing(index), on.zero(index), on.nothing(index), _NO_SEGMENTS)
        return work.long
    device, rows, count = on.device, survey.long_rows, work.facts.segments
    found = device.scratch((rows, index), (rows + 1, index), (count, index))
    segments = Segments(*device.scratch(*_arrays_of(count)))
    work.tell(
        long_rows=found[0],
        offsets=found[1],
        segment_rows=found[2],
        starts=segments.starts,
        lengths=segments.lengths,
        headers=segments.headers,
    )
    work.launch(kernels.LIST_LONG, ceil_div(csr.shape[0], LONG_TILE))
    long_rows, offsets, of_segments = map(device.as_array, found)
    work.long = LongRows(long_rows, offsets, of_segments, segments)
    return work.long


def _arrays_of(count: int) -> tuple[tuple[int, np.dtype[Any]], ...]:
    """Return sizes and types of the arrays of so many segments."""
    return (count, INT64), (count, INT64), (4 * count, UINT32)


def sort_segments(on: Resources, csr: Csr, survey: Survey) -> Segments:
    """Return segments in the order of their first columns, equal ones row by row."""
    work, device, bits = survey.detail, on.device, survey.most_column.bit_length()
    segments, count = list_long_rows(on, csr, survey).segments, work.facts.segments
    *arrays, keys = device.scratch(*_arrays_of(count), (count, UINT32))
    in_turn = Segments(*arrays)
    work.tell(
        starts=segments.starts,
        lengths=segments.lengths,
        turned_starts=in_turn.starts,
        turned_lengths=in_turn.lengths,
        turned_headers=in_turn.headers,
        segments=count,
        column_keys=keys,
    )
    if count <= MOST_SEGMENTS:
        work.launch(kernels.SORT_SEGMENTS, 1, SORT_THREADS, column_bits=bits)
        return in_turn
    index, column = work.types["Index"], csr.indices.dtype
    order, wide_keys = device.scratch((count, index), (count, column))
    work.launch(kernels.COLUMN_KEYS, share(count, 256, BLOCKS), count=count, keys=wide_keys)
    sort(on.csr.launcher, wide_keys, bits, order, index)
    work.launch(kernels.PLACE_SEGMENTS, 1, 1024, in_turn=order)
    return in_turn
