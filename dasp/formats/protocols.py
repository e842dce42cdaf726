"""What a backend owes: devices and arrays, products, and the primitives that packing is written in.

A backend is a module with the functions of `Device`. Nothing above it knows whether arrays are NumPy's or
CuPy's, and nothing in it knows a CSR once a plan is made.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.csr.protocols import Operations
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics
from dasp.formats.sell.layout import Cut, Layout, Survey, Tried
from dasp.formats.sell.pattern import Coding, Pattern, Values
from dasp.runtime.arrays import Order


class Product(Protocol):
    """A plan, ready to be multiplied on one device. Several threads may use one at once.

    Attributes
    ----------
    plan : Plan
        With arrays on the device.
    """

    plan: Plan

    def quick(self, x: Any, out: Any = None, scale: tuple[float, float] | None = None) -> Array | None:
        """Return A x if x, and out if given, are the plainest of vectors here, else None.

        With alpha and beta as `scale`, alpha A x + beta out; out is given if beta is not 0.
        """

    def take_values(self, data: Any, slots: Any) -> bool:
        """Overwrite the plan's values if data is the plainest of arrays and the coding holds it, else False.

        Parameters
        ----------
        data : object
        slots : object or None
            What the primitives said of the pattern, once somebody asked.
        """

    def multiply(self, x: Array, y: Array, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Parameters
        ----------
        x : Array, shape (n,) or (n, k), of any type that y's type holds
        y : Array, shape (m,) or (m, k), not overlapping x
            Any strides. All rows are written, those without entries too.
        alpha, beta : float, or complex for a complex y
        """

    def diagonal(self, k: int) -> Array | None:
        """Return the k-th diagonal in the type of sums; None if the matrix must be unpacked for it."""

    @property
    def nbytes(self) -> int:
        """Bytes of what products have made beside the plan."""

    def follow(self) -> None:
        """Take over values that were written into the plan in place."""


class Device(Protocol):
    """A kind of device."""

    def available(self) -> tuple[bool, str]:
        """Return whether a device works, and the reason in words."""

    def resolve(self, device: str) -> str | None:
        """Return the device that a name means, None if `auto` finds none here."""

    def find_cost_model(self, device: str) -> CostModel:
        """Return the model by which choices are made for a device; ValueError for a bad file of them."""

    def as_operand(self, x: Any, device: str) -> Array:
        """Return x as an array on the device; TypeError if it is somewhere else."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> Array:
        """Return a new array for a result, in C or F order."""

    def check_out(
        self, out: Any, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> None:
        """Hold that `out` can take a result; TypeError or ValueError if not."""

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan with NumPy arrays, read-only."""

    def packs(self, name: str) -> bool:
        """Whether the primitives are enough to pack a format.

        Those of a GPU hold that they get a valid matrix; for those of the CPU `dasp.runtime.arrays` does.
        """

    def packing(self, csr: Csr, device: str) -> AbstractContextManager[tuple[Csr, Primitives]]:
        """Give the matrix on a device, and the primitives; what they made is done once it is a product."""

    def as_values(self, data: Any, device: str) -> Array:
        """Return values of a matrix as a vector on the device, in a type that plans have."""

    def to_device(self, array: Any, device: str) -> Array:
        """Return a NumPy array on the device."""

    def filling(self, device: str, *, ends: bool = False) -> Any:
        """Return a context that gives the primitives, for work on the current stream; if asked, that ends."""

    def may_write(self, plan: Plan) -> bool:
        """Whether the values of a plan lie in memory that can be written, though they be read-only."""

    def product(self, plan: Plan, device: str, like: Any = None) -> Product:
        """Take a plan with NumPy arrays, or made on this device, to a device; what made it is done then.

        `like` is the product of a plan with the same pattern, perhaps of other types.
        """

    def asarray(self, x: Any, device: str, dtype: Any) -> Array:
        """Return an array of any library, wherever it is, as one on the device; copied only if it must be."""

    def add_scaled(self, y: Array, factor: Any, x: Array) -> None:
        """Add a multiple of x to y, on the current stream, without allocating on a GPU."""

    def sparse(self, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> Any:
        """Return a CSR matrix of SciPy or CuPy."""

    def linear_operator(self, matrix: Any) -> Any:
        """Return the operator that solvers for this kind of device take."""


class Primitives(Protocol):
    """What packing is written in; arrays lie where the matrix lies, statistics come to the host.

    Results are equal, bit for bit, on every backend. Orders are stable. `Cut`, `Survey`, `Tried` and `Layout`
    are those of `dasp.formats.sell.layout`; what they call detail is for the backend that made it.

    Attributes
    ----------
    operations : Operations
        On matrices, on the same device.
    """

    @property
    def operations(self) -> Operations:
        """The operations on matrices in compressed sparse rows."""

    def survey(self, csr: Csr, cut: Cut, narrow: bool) -> Survey:
        """Count what must be known of a matrix; of its values only if they may be narrowed."""

    def sort_columns(self, csr: Csr, survey: Survey) -> tuple[Csr, Array]:
        """Do `Operations.sort_columns` for a matrix whose survey later steps take."""

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
        which they first occur. Without `order`, as `sort_columns` returns it, values stand in the order of
        the columns. Writes into the headers the `Width` that each slice's deltas need, and where they begin.
        """

    def count_values(self, data: Array) -> tuple[ValueStatistics, Any]:
        """Count what `choose_coding` asks for; also what the backend keeps of that for `code_values`."""

    def code_values(
        self,
        data: Array,
        slots: Any,
        total: int,
        coding: Coding,
        counted: tuple[ValueStatistics, Any] | None,
    ) -> Values:
        """Return values by slots, of which there are `total`, in a coding that holds them; code 0 in a pad.

        `counted` is what `count_values` returned, which a dictionary needs.
        """

    def recode_values(self, data: Array, slots: Any, values: Values) -> bool:
        """Write values by slots into the arrays of a plan, in its coding.

        Returns False, and has written nothing, if the coding does not keep every bit of every value, with a
        dictionary of as many values as now at most. Of Coding.PLAIN nothing is asked or read back.
        """

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Return a new array of zeros."""

    def scatter(self, numbers: Array, slots: Array, stored: Array) -> None:
        """Write each number into its slot, all bits of it; no slot comes twice."""

    def overwrite(self, array: Array, numbers: Array) -> None:
        """Write numbers over the first ones of an array of a plan."""

    def unpack(self, plan: Plan) -> tuple[Array, Array, Array]:
        """Give the matrix of a plan of slices back as CSR, bit for bit.

        Returns
        -------
        indptr : Array, shape (m + 1,), int64
        indices : Array, shape (nnz,), the plan's index type
        data : Array, shape (nnz,), the plan's type
            The entries of a row stand in the order of their slots. Nothing is read back.
        """

    def slots(self, plan: Plan) -> Any:
        """Return where every entry of a plan of slices goes, in the order in which the entries came in.

        Returns
        -------
        object
            With `nbytes`, for `code_values` and `recode_values` of the same backend: where rows begin, which
            is less than the slot of every entry, or these. Nothing is read back.
        """

    def decode(self, values: Values, codes: Array, count: int, dtype: np.dtype[Any]) -> Array:
        """Return the numbers, of a type, that some of the codes of `values` stand for.

        There are `count`; no codes if all are equal.
        """

    def negated(self, pattern: Pattern, numbers: Array) -> Array:
        """Return the negatives of numbers that are stored as they are, by slots; 0 in pads."""

    def map_bytes(self, codes: Array, to: np.ndarray[Any, Any], pads: int) -> Array | None:
        """Return codes of `Coding.BYTE` with others in their places.

        Parameters
        ----------
        codes : Array, shape (32 * steps,), int8
        to : numpy.ndarray, shape (256,), uint16
            What becomes of each, by its bits: a byte, or 256 if it has none. A pad's 0 stays; if that is 256,
            no entry may be 0.
        pads : int
            Codes that hold no entry.

        Returns
        -------
        Array of int8, or None
            New; None if an entry has none.
        """

    def clear_pads(self, pattern: Pattern, codes: Array) -> None:
        """Write 0 into the pads of a pattern's codes."""

    def scale_entries(self, plan: Plan, slots: Any, left: Array | None, right: Array | None) -> Array | None:
        """Return each value times a factor of its row, and then of its column, as the entries came in.

        Parameters
        ----------
        plan : Plan
            Of slices.
        slots : object
            What `slots` returns of it.
        left, right : Array or None
            Of shape (m,) and (n,), and one type; no factors if None.

        Returns
        -------
        Array, or None
            None if the matrix must be unpacked for it, as where factors have another type than values.
        """
