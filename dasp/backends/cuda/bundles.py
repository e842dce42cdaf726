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

ROWS, SET, GROUP = 128, 16, 4
"""Of a bundle, and of the sets and groups that it has."""

UNIT = 16
"""Slots of a unit, 4 of each group of a set."""

BEHIND = 96
"""Slots behind the last one, at least, that lanes may load."""

ROOM = 512
"""Columns of a bundle, at most: three blocks with their rows of X have room in a multiprocessor."""

COPIED = 4
"""Rows of X that a warp copies at once."""

SLOTS = 5
"""That cost as much as a column."""

SLOT_TYPE = np.dtype(np.uint32)
"""Of which of a bundle's columns a slot has, and where its values are."""

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
    Count*            units_of
    Count*            values_of
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
    const Count*      units_of
    const Count*      values_of
    Index*            columns
    unsigned*         slots
    Code*             values
    """,
)

SIGNATURE = Signature(
    "spmv/bundles.cu",
    "dasp_bundles",
    f"""
    const unsigned long long*  starts  [count + 1]
    const Index*     columns_of
    const unsigned long long*  units_of   [{ROWS // SET} * count + 1]
    const unsigned long long*  values_of  [{ROWS // SET} * count + 1]
    const unsigned*  slots
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
    units_of, values_of : Array, shape (8 bundles + 1,), uint64
    slots : Array, shape (16 units + BEHIND,), uint32
    values : Array, shape (nnz,), codes of the plan; empty where it stores none
    rows : Array, shape (128 bundles,), the plan's index type
        Which row stands where; -1 where none does.
    most : int
        Columns of the bundle that has most of them.
    """

    starts: Array
    columns: Array
    units_of: Array
    values_of: Array
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
            shared=self.shared,
        )

    def defines(self, plan: Plan, kinds: Arithmetic, panel: Panel) -> dict[str, str]:
        """Return the compile-time constants."""
        return columns.defines(plan, kinds, panel) | {"DASP_POOL": str(self.room(panel))}

    def room(self, panel: Panel) -> int:
        """Return the rows of X that a block has room for: those of any bundle, as many of each warp."""
        at_once = COPIED * panel.threads // WARP
        return ceil_div(self.most, at_once) * at_once

    def shared(self, kinds: Arithmetic, panel: Panel) -> int:
        """Return the bytes of shared memory that a block has: rows of X, and slots that lanes exchange."""
        exchanged = panel.threads * (GROUP * kinds.sum.itemsize + SLOT_TYPE.itemsize)
        return exchanged + self.room(panel) * panel.columns * kinds.x.itemsize

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
    units_of, values_of = (on.empty(ROWS // SET * count + 1, COUNT_TYPE) for _ in range(2))
    places, totals = on.empty(ROWS * count, index), on.zeroed(4)
    grid = {"line": line, "plane": plane, "box_x": box_x, "box_y": box_y, "most": ROOM, "bundles": count}
    made = {"places": places, "starts": starts, "units_of": units_of, "values_of": values_of}
    octets.launch(
        on, COUNT, plan, entries, count, ROWS, **grid, **made, rows=rows, totals=on.part(totals, 0, 4)
    )
    wanted, units, widest = on.reading(totals, 1, 3)()
    size = max(wanted, UNIT * units / SLOTS) if widest <= ROOM else math.inf
    if size > most:
        return size, None
    stored = 0 if entries[2] is None else plan.nnz
    bundles = Bundles(
        starts,
        on.empty(wanted, index),
        units_of,
        values_of,
        on.zeros(UNIT * units + BEHIND, SLOT_TYPE),
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
        "units_of": bundles.units_of,
        "values_of": bundles.values_of,
        "columns": bundles.columns,
        "slots": bundles.slots,
    }
    given = made | {"values": values, "places": bundles.rows}
    octets.launch(on, FILL, plan, entries, len(bundles.starts) - 1, ROWS, **given)
