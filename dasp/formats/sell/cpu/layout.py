"""Lay rows out in slices on the CPU: rows in the order of a sort window, and segments of long rows first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.windows import WindowSorter, cut_runs
from dasp.formats.sell.pattern import pack_shape
from dasp.formats.sell.primitives import Cut, Layout, Runs, Slices, Survey, Tried
from dasp.runtime.sizes import ceil_div, narrowest
from dasp.runtime.types import Vector


class PlacedRuns(NamedTuple):
    """The detail of a layout: slices and their runs, segments first."""

    slices: Slices
    runs: Runs


def lay_out(csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
    """See `Primitives`."""
    index, (lengths, long_rows, _) = narrowest(max(csr.shape)), survey.detail
    positions = len(lengths) - len(long_rows)
    rows, runs = WindowSorter(csr, lengths, len(long_rows), window, WARP * cut.steps).list_rows_and_runs()
    slices = cut_runs(runs.lengths, cut.steps)
    segments = _cut_segments(csr, long_rows, cut, cut.in_order - len(slices.steps))
    if len(segments.rows):
        runs, slices = _put_segments_first(segments, runs, slices)
    headers = np.zeros((len(slices.steps), 4), np.uint32)
    headers[:, 0] = np.cumsum(slices.steps) - slices.steps
    headers[:, 1] = slices.first_run - len(segments.rows)
    headers[: len(segments.rows), 1] = segments.order
    headers[:, 3] = pack_shape(slices.steps, slices.full, slices.shift, 0)
    return Layout(
        positions=positions,
        steps=int(slices.steps.sum()),
        full=int(slices.full.sum()),
        segment_steps=int(slices.steps[: len(segments.rows)].sum()),
        rows=rows,
        headers=headers,
        long_rows=long_rows.astype(index),
        segment_offsets=segments.offsets.astype(index),
        segment_rows=segments.rows.astype(index),
        detail=PlacedRuns(slices, runs),
    )


class _Segments(NamedTuple):
    """Rows too long for one slice, cut into segments.

    Attributes
    ----------
    offsets : numpy.ndarray, shape (long rows + 1,)
        First segment of each long row.
    rows : numpy.ndarray, shape (segments,)
        The long row of each.
    order : numpy.ndarray, shape (segments,)
        Segments in the order in which they are stored.
    runs : Runs
        In that order.
    """

    offsets: Vector
    rows: Vector
    order: Vector
    runs: Runs


def _cut_segments(csr: Csr, long_rows: Vector, cut: Cut, few: int) -> _Segments:
    """Cut long rows into segments: row by row or, if there are more than `few`, by their first columns."""
    if not len(long_rows):
        return _Segments(np.zeros(1, np.int64), long_rows, long_rows, Runs(long_rows, long_rows))
    long = csr.indptr[long_rows + 1].astype(np.int64) - csr.indptr[long_rows]
    room = WARP * np.clip(ceil_div(long, WARP * cut.most_segments), cut.steps, cut.segment_steps)
    counts = ceil_div(long, room)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(long_rows)), counts)
    begun = room[rows] * (np.arange(len(rows)) - offsets[rows])
    starts = csr.indptr[long_rows].astype(np.int64)[rows] + begun
    lengths = np.minimum(long[rows] - begun, room[rows])
    order = np.arange(len(rows))
    if len(rows) > few:
        # Neighbours meet the same x, and when the last segment of a row comes, the others have been summed.
        order = np.argsort(csr.indices[starts], kind="stable")
    return _Segments(offsets, rows, order, Runs(starts[order], lengths[order]))


def _put_segments_first(segments: _Segments, runs: Runs, slices: Slices) -> tuple[Runs, Slices]:
    """Put a slice of 32 lanes for each segment before the other slices, and the runs likewise."""
    count, lengths = len(segments.rows), segments.runs.lengths
    pairs = zip(segments.runs, runs, strict=True)
    together = Runs(*(np.concatenate([mine.astype(rest.dtype), rest]) for mine, rest in pairs))
    return together, Slices(
        np.concatenate([np.arange(count), slices.first_run + count]),
        np.concatenate([np.full(count, 5), slices.shift]),
        np.concatenate([ceil_div(lengths, WARP), slices.steps]),
        np.concatenate([lengths // WARP, slices.full]),
    )
