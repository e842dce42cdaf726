"""What packing hands from step to step: runs of entries, and the slices that they are cut into."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.array import Array


class Runs(NamedTuple):
    """Runs of entries: a run is what the lanes of one row of a slice share.

    All entries of a row, or those of one segment of a row that is too long for a slice.

    Attributes
    ----------
    starts : Array, shape (runs,), int64
        First entry of each run.
    lengths : Array, shape (runs,), int64
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


class Segments(NamedTuple):
    """Rows too long for one slice, cut.

    Attributes
    ----------
    total : int
        Segments of all rows.
    offsets : Array, shape (r + 1,), int64
        First segment of each long row.
    rows : Array, shape (total,), int64
        Which of the long rows each segment belongs to.
    in_turn : Array, shape (total,), int64
        The segments in the order in which they are stored; those of one row follow each other.
    runs : Runs
        Of the segments in that order.
    """

    total: int
    offsets: Array
    rows: Array
    in_turn: Array
    runs: Runs


class ColumnStatistics(NamedTuple):
    """Whether no row has a column after a larger one, and the largest column (-1 if there are no entries)."""

    rise: bool
    most: int
