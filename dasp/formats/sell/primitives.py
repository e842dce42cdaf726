"""The operations by which each device packs slices, and the records that they exchange.

`dasp.formats.sell.pack` calls them; `cpu/primitives.py` and `cuda/primitives.py` implement them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.choose import SliceStatistics
from dasp.formats.sell.pattern import Coding, Pattern, Values

Detail = Any
"""Results of a step that a device keeps for later steps, in a form of its own."""

Slots = Any
"""The slots of a pattern's entries, or the places where rows begin, in a device's own form, with `nbytes`."""


class Primitives(BasicPrimitives, Protocol):
    """The primitives of slices; arrays lie where the matrix lies, statistics come to the host.

    Results are equal, bit for bit, on every device. Orders are stable. The `detail` of a record is for the
    device that made it.
    """

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """Count the statistics of a matrix, and choose the coding of its values."""

    def try_windows(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        windows: tuple[int, ...],
        sector_columns: int,
        blocks: tuple[int, int, int],
        tiles: int,
    ) -> Tried:
        """Return the `slice_statistics` of each sort window, without segments.

        Windows rise, from 0 to at most m. If `tiles` is not 0, the statistics are of the rows of so many
        tiles (`choose.draw_tile`), one after another, scaled to all rows; long rows have no entries there.
        """

    def lay_out(self, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
        """Put rows and segments in slices.

        Rows lie longest first inside each window; windows begin at multiples of `window`, and with 0 no row
        moves. A slice begins where the one before it ends, and has the fewest lanes to a row with which its
        longest row ends within `cut.steps`. The last slice has no full steps if it has too few rows.
        Segments lie row by row or, if there are more than `cut.in_order` slices, by their first columns.
        """

    def slice_statistics(
        self,
        csr: Csr,
        survey: Survey,
        cut: Cut,
        layout: Layout,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> SliceStatistics:
        """Count slices, steps and full steps, and in a sample the distinct sectors of blocks.

        The sample is `SAMPLES` places, `linspace(0, max(slices - MANY, 0), SAMPLES)` rounded down, with up
        to MANY = 16 slices from each on; inside a place blocks of `blocks[k]` slices follow each other.
        Nothing is counted for a size of 0. A sector is `sector_columns` columns.
        """

    def store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout
    ) -> tuple[Values, tuple[Array, Array, Array, Array]]:
        """Return values by slots, and rows, headers, bases and deltas of the pattern.

        A pad has the code 0, and every bit of its delta set. A dictionary's values stand in the order of
        their bits, taken as an unsigned integer, or as two for a number of 16 bytes. Without `order`, as
        `Operations.sort_columns` returns it, values stand in the order of the columns. Writes into the
        headers the `Width` that each slice's deltas need, and where they begin.
        """

    def choose_coding(self, data: Array) -> tuple[Coding, Detail]:
        """Return the narrowest coding that keeps every bit of every value, and a dictionary if it has one.

        If all values are equal, it is EQUAL; else the first that holds them of BYTE, DICTIONARY and SINGLE;
        else PLAIN. There is at least one value.
        """

    def code_values(
        self,
        data: Array,
        slots: Slots,
        total: int,
        coding: Coding,
        dictionary: Detail,
    ) -> Values:
        """Return values in `total` slots, in a coding that holds them, with code 0 in pads.

        `dictionary` comes from `choose_coding`; None if the coding was not chosen there.
        """

    def recode_values(self, data: Array, slots: Slots, values: Values) -> bool:
        """Write values by slots into the arrays of a plan, in its coding.

        Return False, with nothing written, if the coding does not keep every bit of every value; a dictionary
        may not grow. With Coding.PLAIN nothing is read back.
        """

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """Return the matrix of a plan of slices as CSR, bit for bit.

        Returns
        -------
        indptr : Array, shape (m + 1,), int64
        indices : Array, shape (nnz,), the plan's index type
        data : Array, shape (nnz,), the plan's type
            The entries of a row stand in the order of their slots. Nothing is read back.
        """

    def find_slots(self, plan: Plan) -> Slots:
        """Return the slot of every entry of a plan of slices, in the caller's order of entries.

        Nothing is read back.
        """

    def clear_pads(self, pattern: Pattern, codes: Array) -> None:
        """Write 0 into the pads of a pattern's codes."""


class Cut(NamedTuple):
    """Limits by which rows are cut into slices and segments.

    Attributes
    ----------
    steps : int
        Most steps of a slice; a row of more than 32 times as many entries is long.
    segment_steps, most_segments : int
        A segment of a long row has ceil(length / (32 most_segments)) steps, limited to the range from
        `steps` to `segment_steps`.
    in_order : int
        Up to so many slices, segments are stored row by row; above, by their first columns.
    """

    steps: int
    segment_steps: int
    most_segments: int
    in_order: int


class Survey(NamedTuple):
    """Statistics of a matrix before its rows are ordered.

    Attributes
    ----------
    columns_rise : bool
        True if no row has a column after a larger one.
    most_column : int
        Largest column, -1 if there are no entries.
    coding : Coding
        Of the values: PLAIN if they may not be narrowed, else by `choose_coding`.
    long_rows : int
        Rows too long for a slice.
    longest : int
        Entries of the longest of the other rows, 0 if there are none.
    rises : bool
        True if some row is longer than the row before it, long rows left out.
    detail : Detail
    """

    columns_rise: bool
    most_column: int
    coding: Coding
    long_rows: int
    longest: int
    rises: bool
    detail: Detail


class Tried(NamedTuple):
    """The statistics of the slices that each sort window would give, and a detail."""

    statistics: dict[int, SliceStatistics]
    detail: Detail


class Layout(NamedTuple):
    """Rows and segments in slices: all of a pattern but its columns.

    Attributes
    ----------
    positions, long_rows, segment_offsets, segment_rows
        As in `Pattern`.
    steps, full : int
        Steps of all slices, with the segments, and their steps without pads.
    segment_steps : int
        Steps of the segments.
    rows : Array
        As in `Pattern`.
    headers : Array
        As in `Pattern`, without the widths and the places of deltas, which `store` adds.
    detail : Detail
    """

    positions: int
    steps: int
    full: int
    segment_steps: int
    rows: Array
    headers: Array
    long_rows: Array
    segment_offsets: Array
    segment_rows: Array
    detail: Detail

    @property
    def slices(self) -> int:
        """Slices, with the segments."""
        return len(self.headers)


class Runs(NamedTuple):
    """Runs of entries: a run is a row, or one segment of a row that is too long for a slice.

    Attributes
    ----------
    starts : Array, shape (runs,), int32 or int64
        First entry of each run.
    lengths : Array, shape (runs,), int32 or int64
        Entries of each run.
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
