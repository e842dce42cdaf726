"""A matrix in bundles on a GPU: rows near each other, whose rows of X a block gathers in shared memory.

A bundle is 128 rows that follow each other, or a box of points of a grid. Each row of X that any of them
wants is read once for all of them. kernels/spmv/bundles.cu says how they are stored and multiplied. They are
made from a plan of slices, beside it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dasp.formats.cost import Machine
from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell.cuda import columns, octets
from dasp.formats.sell.cuda.columns import Kernels, Layout, Panel, Pass
from dasp.formats.sell.cuda.octets import COUNT_TYPE
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import Arithmetic
from dasp.runtime.integers import ceil_div

ROWS, SET, GROUP = 128, 16, 4
"""Of a bundle, and of the sets and groups that it has."""

CHUNK = 32
"""Slots of a chunk, 8 of each group of a set."""

BEHIND = 2 * CHUNK
"""Slots behind the last one, at least, that lanes may load."""

ROOM = 512
"""Columns of a bundle, at most: three blocks with their rows of X have room in a multiprocessor."""

COPIED = 32
"""Rows of X that the warps of a block copy at once, 4 each."""

WORD, WIDEST = 4, 16
"""Bytes of the narrowest copy, and of numbers that take too many registers."""

MULTIPROCESSOR_BYTES, BLOCK_BYTES = 228 << 10, 1 << 10
"""Of shared memory that a multiprocessor has, and that it takes for each block itself."""

SLOTS = 2.5
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
    Count*            more_of    [{ROWS // SET} * bundles + 1]
    Count*            values_of  [{ROWS // SET} * bundles + 1]
    unsigned*         extents    [{2 * ROWS // SET} * bundles]
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
    const Count*      more_of
    const Count*      values_of
    const unsigned*   extents
    long long         pool
    Index*            columns
    unsigned*         slots
    Code*             values
    """,
)

SIGNATURE = Signature(
    "spmv/bundles.cu",
    "dasp_bundles",
    f"""
    const Index*     columns_of
    const unsigned long long*  more_of    [{ROWS // SET} * count + 1]
    const unsigned long long*  values_of  [{ROWS // SET} * count + 1]
    const unsigned*  extents     [{2 * ROWS // SET} * count]
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
    columns : Array, shape (pool bundles,), the plan's index type
        Which rows of X each bundle wants; -1 behind them.
    more_of, values_of : Array, shape (8 bundles + 1,), uint64
    extents : Array, shape (16 bundles,), uint32
    slots : Array, shape (32 chunks + BEHIND,), uint32
    values : Array, shape (nnz,), codes of the plan; empty where it stores none
    rows : Array, shape (128 bundles,), the plan's index type
        Which row stands where; -1 where none does.
    pool : int
        Columns that a bundle has room for.
    """

    columns: Array
    more_of: Array
    values_of: Array
    extents: Array
    slots: Array
    values: Array
    rows: Array
    pool: int

    @property
    def bundles(self) -> int:
        """How many bundles there are."""
        return len(self.rows) // ROWS

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self[:-1])

    def kernels(self) -> Kernels:
        """Return how they are multiplied."""
        return octets.KERNELS._replace(
            signature=SIGNATURE,
            defines=self.defines,
            passes=self.passes,
            warps=lambda plan, panel: self.bundles * panel.threads // WARP,
            arguments=self.arguments,
            shared=self.shared,
            apart=True,
        )

    def defines(self, plan: Plan, kinds: Arithmetic, panel: Panel) -> dict[str, str]:
        """Return the compile-time constants."""
        return columns.defines(plan, kinds, panel) | {"DASP_POOL": str(self.pool)}

    def passes(
        self, machine: Machine, plan: Plan, k: int, kinds: Arithmetic, x: Layout, y: Layout, sectors: Any
    ) -> tuple[Pass, ...]:
        """Return the launches for so many columns."""
        sizes = tuple(
            one for one in machine.bundles_of_x if octets.LANES <= one.panel // kinds.x.itemsize <= WARP
        )
        made = octets.passes_of(sizes, k, kinds, x, y)
        return tuple(one._replace(panel=self._with_registers(machine, kinds, one.panel)) for one in made)

    def _with_registers(self, machine: Machine, kinds: Arithmetic, panel: Panel) -> Panel:
        """Return a panel with fewer registers where more blocks have room then, of any panel."""
        blocks = machine.registers // (machine.bundle_registers * panel.threads)
        widest = max(one.panel for one in machine.bundles_of_x)
        room = MULTIPROCESSOR_BYTES // (self._bytes(kinds, panel.threads, widest) + BLOCK_BYTES)
        fewer = kinds.sum.itemsize == WORD and room >= blocks
        return panel._replace(registers=machine.bundle_registers) if fewer else panel

    def shared(self, kinds: Arithmetic, panel: Panel) -> int:
        """Return the bytes of shared memory that a block has: rows of X, and slots that lanes exchange."""
        return self._bytes(kinds, panel.threads, panel.columns * kinds.x.itemsize)

    def _bytes(self, kinds: Arithmetic, threads: int, row: int) -> int:
        return threads * (GROUP * kinds.sum.itemsize + SLOT_TYPE.itemsize) + self.pool * row

    def arguments(self, plan: Plan, zeros: Any, parts: int) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""
        own = {name: array for name, array in self._asdict().items() if name not in ("pool", "columns")}
        own |= {"columns_of": self.columns, "count": self.bundles, "parts": parts}
        return own | {"table": plan.values.table, "zeros": zeros}


def serve(plan: Plan, kinds: Arithmetic, x: Layout) -> bool:
    """Whether bundles can stand for a plan of slices in a product: not where rows are cut.

    Lanes copy at least a word of X at once. A policy without tensor cores wants no copy of the matrix.
    """
    return (
        x.column == 1
        and bool(plan.nnz)
        and plan.pattern.choice.mma is not False
        and not plan.pattern.segments
        and x.pack * kinds.x.itemsize >= WORD
        and kinds.sum.itemsize == max(kinds.x.itemsize, WORD) < WIDEST
    )


def come_first(machine: Machine, kinds: Arithmetic, k: int) -> bool:
    """Whether bundles are faster than octets, where there are both."""
    return kinds.x != np.float64 or k * kinds.x.itemsize < machine.float64_bundles[1]


def most(machine: Machine, plan: Plan, kinds: Arithmetic, k: int) -> float:
    """Return the columns of all bundles up to which k columns of X are multiplied faster in bundles."""
    row = k * kinds.x.itemsize
    found = next((plan.nnz / entries for nbytes, entries in machine.bundle_entries if row >= nbytes), 0.0)
    if kinds.x != np.float64:
        return found
    gathered, _, least = machine.float64_bundles
    return min(found, gathered * plan.shape[0]) if row * sum(plan.shape) >= least else 0.0


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
    more_of, values_of = (on.empty(ROWS // SET * count + 1, COUNT_TYPE) for _ in range(2))
    places, totals = on.empty(ROWS * count, index), on.zeroed(4)
    grid = {"line": line, "plane": plane, "box_x": box_x, "box_y": box_y, "most": ROOM, "bundles": count}
    extents = on.empty(2 * ROWS // SET * count, SLOT_TYPE)
    made = {"places": places, "more_of": more_of, "values_of": values_of, "extents": extents}
    octets.launch(
        on, COUNT, plan, entries, count, ROWS, **grid, **made, rows=rows, totals=on.part(totals, 0, 4)
    )
    wanted, more, widest = on.reading(totals, 1, 3)()
    slots = CHUNK * (ROWS // SET * count + more)
    size = max(wanted, slots / SLOTS) if widest <= ROOM else math.inf
    if size > most:
        return size, None
    stored, pool = 0 if entries[2] is None else plan.nnz, ceil_div(max(widest, 1), COPIED) * COPIED
    bundles = Bundles(
        on.empty(pool * count, index),
        more_of,
        values_of,
        extents,
        on.zeros(slots + BEHIND, SLOT_TYPE),
        on.zeros(stored, plan.values.codes.dtype),
        places,
        pool,
    )
    fill(on, plan, entries, bundles)
    return size, bundles


def fill(on: Any, plan: Plan, entries: tuple[Any, ...], bundles: Bundles) -> None:
    """Write the entries of a plan into its bundles."""
    values = None if entries[2] is None else bundles.values
    made = {
        "more_of": bundles.more_of,
        "values_of": bundles.values_of,
        "extents": bundles.extents,
        "pool": bundles.pool,
        "columns": bundles.columns,
        "slots": bundles.slots,
    }
    given = made | {"values": values, "places": bundles.rows}
    octets.launch(on, FILL, plan, entries, bundles.bundles, ROWS, **given)
