"""Rows too long for a slice, and the segments that they are cut into: kernels/pack/segments.cu."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.csr.cuda.sort import sort
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import LONG_TILE, SORT_THREADS, SORT_TILE
from dasp.formats.sell.cuda.pack.kinds import INT64, UINT32
from dasp.formats.sell.cuda.pack.launcher import Launcher, count_blocks
from dasp.formats.sell.layout import Cut, Survey
from dasp.runtime.integers import ceil_div

MOST_SEGMENTS = SORT_TILE
"""Segments that one block sorts: kernels/pack/segments.cu."""


class Segments(NamedTuple):
    """Segments in an order: how many, first entries, lengths and headers. None if there are none."""

    total: int
    starts: Array | None
    lengths: Array | None
    headers: Array | None

    @property
    def arguments(self) -> dict[str, Any]:
        """What kernels take of them that go through slices."""
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
    of, bits, count = kinds.of_matrix(csr), survey.most_column.bit_length(), segments.total
    in_turn = _new_segments(on, count)
    arguments = {
        "starts": segments.starts,
        "lengths": segments.lengths,
        "segments": count,
        "turned_starts": in_turn.starts,
        "turned_lengths": in_turn.lengths,
        "turned_headers": in_turn.headers,
    }
    if count <= MOST_SEGMENTS:
        keys = on.device.empty(count, UINT32)
        of_sort = {"indices": csr.indices, "column_bits": bits, "column_keys": keys}
        on.launch(kernels.SORT_SEGMENTS, of, 1, SORT_THREADS, **of_sort, **arguments)
        return in_turn
    index = of.types["Index"]
    order, keys = on.device.empty(count, index), on.device.empty(count, csr.indices.dtype)
    of_keys = {"indices": csr.indices, "starts": segments.starts, "count": count, "keys": keys}
    on.launch(kernels.COLUMN_KEYS, of, count_blocks(count, 256), **of_keys)
    sort(on.csr.launcher, keys, bits, order, index)
    on.launch(kernels.PLACE_SEGMENTS, of, 1, SORT_THREADS, in_turn=order, **arguments)
    return in_turn
