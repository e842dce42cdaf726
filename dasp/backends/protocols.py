"""What a backend owes: devices and arrays, products, and the primitives that packing is written in.

A backend is a module with the functions of `Backend`. Nothing above it knows whether arrays are NumPy's or
CuPy's, and nothing in it knows a CSR once a plan is made.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dasp.formats.array import Array, Csr, Plan
from dasp.formats.sliced.choose import SliceStatistics, ValueStatistics
from dasp.formats.sliced.layout import ColumnStatistics, Runs, Segments, Slices
from dasp.formats.sliced.pattern import Coding


class Product(Protocol):
    """A plan, ready to be multiplied on one device. Several threads may use one at once.

    Attributes
    ----------
    plan : Plan
        With arrays on the device.
    """

    plan: Plan

    def quick(self, x: Any, out: Any = None) -> Array | None:
        """Return A x if x, and out if given, are the plainest of vectors here, else None."""

    def multiply(self, x: Array, y: Array, alpha: float, beta: float) -> None:
        """Set y = alpha A x + beta y; y is not read if beta is 0.

        Parameters
        ----------
        x : Array, shape (n,) or (n, k), of any real type that y's type holds
        y : Array, shape (m,) or (m, k), not overlapping x
            Any strides. All rows are written, those without entries too.
        alpha, beta : float
        """


class Backend(Protocol):
    """A kind of device."""

    def available(self) -> tuple[bool, str]:
        """Return whether a device works, and the reason in words."""

    def resolve(self, device: str) -> str | None:
        """Return the device that a name means, None if `auto` finds none here."""

    def machine(self, device: str) -> str:
        """Return the name of the machine record in `dasp._machines.MACHINES` that stands for a device."""

    def as_operand(self, x: Any, device: str) -> Array:
        """Return x as an array on the device; TypeError if it is somewhere else."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Array:
        """Return a new array for a result, columns contiguous."""

    def check_out(
        self, out: Any, x: Array, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> None:
        """Hold that `out` can take a result; TypeError or ValueError if not."""

    def to_host(self, plan: Plan) -> Plan:
        """Return the plan with NumPy arrays, read-only."""

    def product(self, plan: Plan, device: str) -> Product:
        """Take a plan with NumPy arrays to a device."""

    def linear_operator(self, matrix: Any) -> Any:
        """Return the operator that solvers for this kind of device take."""


class Primitives(Protocol):
    """What packing is written in; arrays lie where the matrix lies, statistics come to the host.

    Results are equal, bit for bit, on every backend. Orders are stable.
    """

    def column_statistics(self, indptr: Array, indices: Array) -> ColumnStatistics:
        """Say whether columns rise inside every row, and which is the largest."""

    def column_order(self, indptr: Array, indices: Array) -> Array:
        """Return the order that sorts each row's entries by column, shape (nnz,), int64."""

    def value_statistics(self, data: Array) -> ValueStatistics:
        """Count what `choose_coding` asks for."""

    def encode(self, data: Array, coding: Coding) -> tuple[Array, Array]:
        """Return the codes of all values, and the table of what they stand for.

        A dictionary's values stand in the order in which they first occur. Codes are empty if all values are
        equal, and a table has no values where a code is the value itself.
        """

    def row_lengths(self, indptr: Array, longest: int) -> tuple[Array, Array]:
        """Return the entries of each row, int64, `PAD` for rows of more than `longest`; and those rows."""

    def never_rises(self, lengths: Array) -> bool:
        """Whether no row is longer than the one before it, rows with length `PAD` left out."""

    def sort_rows(self, lengths: Array, window: int, longest: int) -> Array:
        """Return the rows that are not `PAD`, longest first inside each window, shape (rows,), int64.

        Windows begin at multiples of `window`; 0 means that no row moves.
        """

    def runs_of_rows(self, indptr: Array, rows: Array) -> Runs:
        """Return the runs of whole rows."""

    def cut_runs(self, lengths: Array, steps: int) -> Slices:
        """Cut runs into slices of at most `steps` steps.

        A slice begins where the one before it ends, and has as few lanes to a run as let its longest run
        end within `steps`; the last slice has no full steps if it has too few runs.
        """

    def slice_statistics(
        self,
        slices: Slices,
        runs: Runs,
        indices: Array,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> SliceStatistics:
        """Count slices, steps and full steps, and in a sample the distinct sectors of x that blocks read.

        The sample is `SAMPLES` places, `linspace(0, max(slices - MANY, 0), SAMPLES)` rounded down, with up
        to MANY = 16 slices from each on; inside a place blocks of `blocks[k]` slices follow each other. Of a
        size of 0 nothing is counted. A sector is `sector_columns` columns.
        """

    def window_statistics(
        self,
        csr: Csr,
        lengths: Array,
        windows: tuple[int, ...],
        steps: int,
        sector_columns: int,
        blocks: tuple[int, int, int],
    ) -> dict[int, SliceStatistics]:
        """Return `slice_statistics` of the slices that each sort window would give."""

    def segments(
        self, csr: Csr, long_rows: Array, steps: int, segment_steps: int, most_segments: int, few: int
    ) -> Segments:
        """Cut long rows into segments of `steps` steps, or longer ones where there would be very many.

        A segment has ceil(length / (32 most_segments)) steps, but at least `steps` and at most
        `segment_steps`. Segments lie row by row or, if there are more than `few`, by their first columns,
        equal ones in order.
        """

    def segments_first(self, segments: Segments, runs: Runs, slices: Slices) -> tuple[Runs, Slices]:
        """Put slices of one segment each, with 32 lanes, before the other slices, and their runs likewise."""

    def measure_columns(
        self, slices: Slices, runs: Runs, indices: Array, index: np.dtype[Any]
    ) -> tuple[Array, Array]:
        """Return the least column of every step, and for every slice the `Width` that its deltas need."""

    def headers(self, slices: Slices, widths: Array, in_turn: Array) -> tuple[Array, Array]:
        """Return the headers, and the first block of deltas of each slice, int64, with that of the end."""

    def fill(
        self,
        slices: Slices,
        runs: Runs,
        indices: Array,
        codes: Array,
        bases: Array,
        widths: Array,
        blocks: Array,
    ) -> tuple[Array, Array]:
        """Return the deltas and the codes of all slots; a pad has every bit of its delta set, and code 0."""
