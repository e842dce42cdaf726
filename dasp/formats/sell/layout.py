"""Records that packing hands from step to step: runs of entries, and the slices made of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.plan import Array
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics

Detail = Any
"""Results of a step that a device keeps for later steps, as it likes."""

Slots = Any
"""Where the entries of a pattern go, as a device likes, with `nbytes`: their slots, or where rows begin."""


class Cut(NamedTuple):
    """How rows are cut.

    Attributes
    ----------
    steps : int
        Most steps of a slice; a row of more than 32 times as many entries is long.
    segment_steps, most_segments : int
        A segment of a long row has 32 ceil(length / (32 most_segments)) entries, but `steps` to
        `segment_steps` steps.
    in_order : int
        Slices up to which segments are stored row by row; in more, by their first columns.
    """

    steps: int
    segment_steps: int
    most_segments: int
    in_order: int


class Survey(NamedTuple):
    """The facts of a matrix before its rows are ordered.

    Attributes
    ----------
    columns_rise : bool
        True if no row has a column after a larger one.
    most_column : int
        Largest column, -1 if there are no entries.
    values : ValueStatistics or None
        None if they were not counted.
    long_rows : int
        Rows too long for a slice.
    longest : int
        Entries of the longest of the other rows, 0 if there are none.
    rises : bool
        True if some other row is longer than the last one before it, long rows left out.
    detail : Detail
    """

    columns_rise: bool
    most_column: int
    values: ValueStatistics | None
    long_rows: int
    longest: int
    rises: bool
    detail: Detail


class Tried(NamedTuple):
    """The slices that sort windows would give, and the detail of trying them."""

    statistics: dict[int, SliceStatistics]
    detail: Detail


class Layout(NamedTuple):
    """Rows and segments in slices: all of a pattern but its columns.

    Attributes
    ----------
    positions, segments, long_rows, segment_offsets, segment_rows
        As in `Pattern`.
    slices, steps, full : int
        Slices, segments among them; the steps of all, and those of them without pads.
    segment_steps : int
        Steps of the segments.
    rows : Array
        As in `Pattern`.
    headers : Array
        As in `Pattern`, but for the widths and the places of deltas, which `store` adds.
    detail : Detail
    """

    positions: int
    segments: int
    slices: int
    steps: int
    full: int
    segment_steps: int
    rows: Array
    headers: Array
    long_rows: Array
    segment_offsets: Array
    segment_rows: Array
    detail: Detail


class Runs(NamedTuple):
    """Runs of entries: a run is what the lanes of one row of a slice share.

    All entries of a row, or those of one segment of a row that is too long for a slice.

    Attributes
    ----------
    starts : Array, shape (runs,), int32 or int64
        First entry of each run.
    lengths : Array, shape (runs,), int32 or int64
        Its entries.
    """

    starts: Array
    lengths: Array


class Slices(NamedTuple):
    """Slices of runs.

    Attributes
    ----------
    first_run : Array, shape (slices,), int64
    shift : Array, shape (slices,), int64
        log2 of the lanes to a run.
    steps, full : Array, shape (slices,), int64
        Steps, and leading ones without pads.
    """

    first_run: Array
    shift: Array
    steps: Array
    full: Array
