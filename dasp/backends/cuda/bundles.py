"""A matrix in bundles on a GPU: rows near each other, whose rows of X a block gathers in shared memory.

A bundle is 128 rows that follow each other, or a box of points of a grid. Each row of X that any of them
wants is read once for all of them. kernels/spmv/bundles.cu says how they are stored and multiplied. They are
made from a plan of slices, beside it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dasp._dtypes import Arithmetic
from dasp._integers import ceil_div
from dasp._launch import Signature
from dasp._machines import Machine
from dasp.backends.cuda import columns, octets
from dasp.backends.cuda.columns import Kernels, Panel
from dasp.backends.cuda.octets import COUNT_TYPE
from dasp.formats.array import WARP, Array, Plan

ROWS = 128
"""Of a bundle."""

BEHIND = 3
"""Chunks behind the last one, at least, that lanes may load."""

ROOM = 367
"""Columns of a bundle, at most: 48 KB hold their rows of X, one of zeros and what lanes exchange."""

SLOTS = 5
"""That cost as much as a column."""

SLOT_TYPE = np.dtype(np.uint16)
"""Of which of a bundle's columns a slot has."""

BOXES = {2: (16, 8), 3: (8, 4)}
"""Points of a line and lines that a bundle has of a grid of so many dimensions."""

COUNT = Signature(
    "spmv/bundles_fill.cu",
    "dasp_count_bundles",
    f"""
    const long long*  indptr   [rows + 1]
    const Index*      indices
    long long         rows
    long long         bundles
    long long         line
    long long         plane
    int               box_x
    int               box_y
    int               most
    Index*            places   [{ROWS} * bundles]
    Count*            starts   [bundles + 1]
    Count*            chunks_of
    Count*            totals   [4]
    """,
)

FILL = Signature(
    "spmv/bundles_fill.cu",
    "dasp_fill_bundles",
    """
    const long long*  indptr
    const Index*      indices
    const Code*       codes
    const Index*      places
    const Count*      starts
    const Count*      chunks_of
    Index*            columns
    unsigned short*   slots
    Code*             values
    """,
)

SIGNATURE = Signature(
    "spmv/bundles.cu",
    "dasp_bundles",
    f"""
    const unsigned long long*  starts  [count + 1]
    const Index*     columns_of
    const unsigned long long*  chunks_of
    const unsigned short*  slots
    const Code*      values
    const Value*     table
    const Index*     rows        [{ROWS} * count]
    const X*         zeros
    long long        count
    {columns.OF_PANEL.strip()}
    """,
)


class Bundles(NamedTuple):
    """A matrix in bundles; see kernels/spmv/bundles.cu.

    Attributes
    ----------
    starts : Array, shape (bundles + 1,), uint64
    columns : Array, the plan's index type
    chunks_of : Array, shape (16 bundles + 1,), uint64
    slots : Array, shape (32 (chunks + BEHIND),), uint16
    values : Array, shape (32 (chunks + BEHIND),), codes of the plan; empty where it stores none
    rows : Array, shape (128 bundles,), the plan's index type
        Which row stands where; -1 where none does.
    most : int
        Columns of the bundle that has most of them.
    """

    starts: Array
    columns: Array
    chunks_of: Array
    slots: Array
    values: Array
    rows: Array
    most: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self[:-1])

    def kernels(self) -> Kernels:
        """Return how they are multiplied."""
        return octets.KERNELS._replace(
            signature=SIGNATURE,
            defines=self.defines,
            passes=lambda machine, plan, k, kinds, x, y: octets.passes_of(
                machine.bundles_of_x, k, kinds, x, y
            ),
            warps=lambda plan, panel: (len(self.starts) - 1) * panel.threads // WARP,
            arguments=self.arguments,
        )

    def defines(self, plan: Plan, kinds: Arithmetic, panel: Panel) -> dict[str, str]:
        """Return the compile-time constants: room for the rows of X of any bundle and one of zeros."""
        pool = ceil_div(self.most + 1, 8) * 8
        return columns.defines(plan, kinds, panel) | {"DASP_POOL": str(pool)}

    def arguments(self, plan: Plan, zeros: Any, parts: int) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""
        own = {name: array for name, array in self._asdict().items() if name not in ("most", "columns")}
        own |= {"columns_of": self.columns, "count": len(self.starts) - 1, "parts": parts}
        return own | {"table": plan.values.table, "zeros": zeros}


def most(machine: Machine, plan: Plan, kinds: Arithmetic, k: int) -> float:
    """Return the columns of all bundles up to which k columns of X are multiplied faster in bundles."""
    if kinds.x.itemsize >= columns.NUMBER_BYTES:
        return 0.0
    return next((plan.nnz / entries for columns, entries in machine.bundle_entries if k >= columns), 0.0)


def build(made_of: Any, plan: Plan, most: float) -> tuple[float, Bundles | None]:
    """Return how many columns the bundles of a plan have, and the bundles, unless these are more than `most`.

    Parameters
    ----------
    made_of : Primitives
        Of `dasp.backends.cuda.primitives`, where the plan's arrays lie. What is counted and some offsets
        are read back.
    plan : Plan
        Of slices, that octets could serve.
    most : float

    Notes
    -----
    Slots that few entries fill count as columns, and columns as infinitely many if a block has no room for
    those of a bundle.
    """
    on, entries = made_of.device, made_of.unpack_codes(plan)
    rows, index = plan.shape[0], plan.pattern.index_dtype
    line, plane = octets.grid_of(octets.sampled(on, plan, entries), rows)
    box_x, box_y, count = ROWS, 1, ceil_div(rows, ROWS)
    if line:
        box_x, box_y = BOXES[2 if plane == rows else 3]
        box_z = ROWS // box_x // box_y
        count = ceil_div(line, box_x) * ceil_div(plane // line, box_y) * ceil_div(rows // plane, box_z)
    starts = on.empty(count + 1, COUNT_TYPE)
    chunks_of = on.empty(ROWS // octets.ROWS * count + 1, COUNT_TYPE)
    places, totals = on.empty(ROWS * count, index), on.zeroed(4)
    grid = {"line": line, "plane": plane, "box_x": box_x, "box_y": box_y, "most": ROOM, "bundles": count}
    made = {"places": places, "starts": starts, "chunks_of": chunks_of}
    octets.launch(
        on, COUNT, plan, entries, count, ROWS, **grid, **made, rows=rows, totals=on.part(totals, 0, 4)
    )
    wanted, chunks, widest = on.reading(totals, 1, 3)()
    size = max(wanted, WARP * chunks / SLOTS) if widest <= ROOM else math.inf
    if size > most:
        return size, None
    there = WARP * (chunks + BEHIND)
    stored = 0 if entries[2] is None else there
    bundles = Bundles(
        starts,
        on.empty(wanted, index),
        chunks_of,
        on.zeros(there, SLOT_TYPE),
        on.zeros(stored, plan.values.codes.dtype),
        places,
        widest,
    )
    fill(on, plan, entries, bundles)
    return size, bundles


def fill(on: Any, plan: Plan, entries: tuple[Any, ...], bundles: Bundles) -> None:
    """Write the entries of a plan into its bundles."""
    values = None if entries[2] is None else bundles.values
    made = {
        "starts": bundles.starts,
        "chunks_of": bundles.chunks_of,
        "columns": bundles.columns,
        "slots": bundles.slots,
    }
    given = made | {"values": values, "places": bundles.rows}
    octets.launch(on, FILL, plan, entries, len(bundles.starts) - 1, ROWS, **given)
