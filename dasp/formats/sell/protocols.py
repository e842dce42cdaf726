"""The primitives in which packing into slices is written, and which a device owes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dasp.formats.csr.matrix import Csr
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics
from dasp.formats.sell.layout import Cut, Detail, Layout, Slots, Survey, Tried
from dasp.formats.sell.pattern import Coding, Pattern, Values


class Primitives(BasicPrimitives, Protocol):
    """The primitives of slices; arrays lie where the matrix lies, statistics come to the host.

    Results are equal, bit for bit, on every device. Orders are stable. `Cut`, `Survey`, `Tried` and `Layout`
    are those of `dasp.formats.sell.layout`; what they call detail is for the device that made it.
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

        A pad has the code 0, and every bit of its delta set. A dictionary's values stand in the order in
        which they first occur. Without `order`, as `Operations.sort_columns` returns it, values stand in the
        order of the columns. Writes into the headers the `Width` that each slice's deltas need, and where
        they begin.
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


if TYPE_CHECKING:  # both devices have all of them
    from dasp.formats.sell.cpu import primitives as _on_cpu
    from dasp.formats.sell.cuda.primitives import CudaPrimitives

    def _agree(on_gpu: CudaPrimitives) -> tuple[Primitives, Primitives]:
        return _on_cpu, on_gpu
