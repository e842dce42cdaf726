"""The primitives that packing into slices asks of a device, and the records that go from one to the next.

`dasp.formats.sell.pack` is written over them; `cpu/primitives.py` and `cuda/primitives.py` have them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics
from dasp.formats.sell.pattern import Coding, Pattern, Values

Detail = Any
"""Results of a step that a device keeps for later steps, as it likes."""

Slots = Any
"""Where the entries of a pattern go, as a device likes, with `nbytes`: their slots, or where rows begin."""


class Primitives(BasicPrimitives, Protocol):
    """The primitives of slices; arrays lie where the matrix lies, statistics come to the host.

    Results are equal, bit for bit, on every device. Orders are stable. `Cut`, `Survey`, `Tried` and `Layout`
    are those of `dasp.formats.sell.primitives`; what they call detail is for the device that made it.
    """

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """Count what must be known of a matrix; of its values only if they may be narrowed."""

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
        """Return the `slice_statistics` that each sort window would give, segments left out.

        Windows rise, from 0 to at most m. If `tiles` is not 0, they are those of the rows of so many tiles,
        one after another, `scaled` to all: `choose.drawn_tile` says which, and long rows have no entries.
        """

    def lay_out(self, csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
        """Put rows and segments in slices.

        Rows: longest first inside each window, which begin at multiples of `window`; 0 means that no row
        moves. A slice begins where the one before it ends, and has as few lanes to a row as let its longest
        row end within `cut.steps`; the last slice has no full steps if it has too few rows. Segments: row by
        row or, in more than `cut.in_order` slices, by their first columns, equal ones in order.
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
        to MANY = 16 slices from each on; inside a place blocks of `blocks[k]` slices follow each other. Of a
        size of 0 nothing is counted. A sector is `sector_columns` columns.
        """

    def store(
        self, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
    ) -> tuple[Values, tuple[Array, Array, Array, Array]]:
        """Return values by slots, and rows, headers, bases and deltas of the pattern.

        A pad has the code 0, and every bit of its delta set. A dictionary's values stand in the order of
        their bits, taken as an unsigned integer, or as two for a number of 16 bytes. Without `order`, as
        `Operations.sort_columns` returns it, values stand in the order of the columns. Writes into the
        headers the `Width` that each slice's deltas need, and where they begin.
        """

    def count_values(self, data: Array) -> tuple[ValueStatistics, Detail]:
        """Count what `choose_coding` asks for; also what the device keeps of that for `code_values`."""

    def code_values(
        self,
        data: Array,
        slots: Slots,
        total: int,
        coding: Coding,
        counted: tuple[ValueStatistics, Detail] | None,
    ) -> Values:
        """Return values by slots, of which there are `total`, in a coding that holds them; code 0 in a pad.

        `counted` is what `count_values` returned, which a dictionary needs.
        """

    def recode_values(self, data: Array, slots: Slots, values: Values) -> bool:
        """Write values by slots into the arrays of a plan, in its coding.

        Returns False, and has written nothing, if the coding does not keep every bit of every value, with a
        dictionary of as many values as now at most. Of Coding.PLAIN nothing is asked or read back.
        """

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """Give the matrix of a plan of slices back as CSR, bit for bit.

        Returns
        -------
        indptr : Array, shape (m + 1,), int64
        indices : Array, shape (nnz,), the plan's index type
        data : Array, shape (nnz,), the plan's type
            The entries of a row stand in the order of their slots. Nothing is read back.
        """

    def slots(self, plan: Plan) -> Slots:
        """Return where every entry of a plan of slices goes, in the order in which the entries came in.

        Nothing is read back.
        """

    def clear_pads(self, pattern: Pattern, codes: Array) -> None:
        """Write 0 into the pads of a pattern's codes."""


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
