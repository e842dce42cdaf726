"""Rows too long for a slice, and the segments that they are cut into: kernels/pack/segments.cu."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import LONG_TILE, PLACE_THREADS
from dasp.formats.sell.cuda.pack.kinds import INT64, UINT32
from dasp.formats.sell.cuda.pack.launcher import Launcher, count_blocks
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cuda.launch import Arguments
from dasp.runtime.sizes import ceil_div


class Segments(NamedTuple):
    """Segments in an order: how many, first entries, lengths and headers. None if there are none."""

    total: int
    starts: Array | None
    lengths: Array | None
    headers: Array | None

    @property
    def arguments(self) -> Arguments:
        """The arguments of kernels that go through slices."""
        return {"segments": self.total, "segment_starts": self.starts, "segment_lengths": self.lengths}


NO_SEGMENTS = Segments(0, None, None, None)


class LongRows(NamedTuple):
    """Rows that are cut into segments: the rows, the first segment of each, and the row of each segment."""

    rows: Array
    offsets: Array
    segment_rows: Array
    segments: Segments


def list_long_rows(on: Launcher, csr: Csr, survey: Survey, cut: Cut) -> LongRows:
    """Return the rows too long for a slice, and their segments row by row."""
    empty, index = on.device.empty, kinds.of_matrix(csr).types["Index"]
    rows, count = survey.long_rows, survey.detail.facts.segments
    if not rows:
        return LongRows(empty(0, index), on.device.zeros(1, index), empty(0, index), NO_SEGMENTS)
    found = LongRows(
        empty(rows, index), empty(rows + 1, index), empty(count, index), _new_segments(on, count)
    )
    on.launch(
        kernels.LIST_LONG,
        kinds.of_matrix(csr),
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


def _new_segments(on: Launcher, count: int) -> Segments:
    empty = on.device.empty
    return Segments(count, empty(count, INT64), empty(count, INT64), empty(4 * count, UINT32))


def sort_segments(on: Launcher, csr: Csr, survey: Survey, segments: Segments) -> Segments:
    """Return segments in the order of their first columns, equal ones row by row."""
    of, count, index = kinds.of_matrix(csr), segments.total, kinds.of_matrix(csr).types["Index"]
    keys, order = on.device.empty(count, csr.indices.dtype), on.device.empty(count, index)
    of_keys: Arguments = {"indices": csr.indices, "starts": segments.starts, "count": count, "keys": keys}
    on.launch(kernels.COLUMN_KEYS, of, count_blocks(count, 256), **of_keys)
    sort(on.operations.launcher, keys, survey.most_column.bit_length(), order, index)
    ordered = _new_segments(on, count)
    on.launch(
        kernels.PLACE_SEGMENTS,
        of,
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
