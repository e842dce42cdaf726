"""A matrix in octets on a GPU: rows that have much the same columns, multiplied by several columns at once on
tensor cores.

An octet is eight rows that follow each other, and a quad four of the columns in which any of them has an
entry: one tile of `mma.m8n8k4`. kernels/spmv/octets.cu says how they are stored and multiplied. They are made
from a plan of slices, beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell.cuda import columns
from dasp.formats.sell.cuda.column_blocks import (
    NUMBER_BYTES,
    BlockTable,
    ColumnBlock,
    Layout,
    Pass,
    Rule,
    choose_rule,
)
from dasp.formats.sell.cuda.columns import Kernels
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic, bits_type
from dasp.runtime.integers import ceil_div

ROWS, COLUMNS = 8, 4
"""Of a quad."""

LANES = 8
"""That read a row of X together; columns of X that a quad is multiplied by at once."""

FILL_THREADS = 512
"""Threads of a block that makes octets, `ROWS` for each of them."""

BEHIND = 8
"""Quads behind the last one, at least, that lanes may load: those of a loop's next turn."""

COUNT_TYPE = np.dtype(np.uint64)
"""Of numbers of quads."""

TYPES = np.float32, np.float64
"""Of X and of sums."""

COUNT = Signature(
    "spmv/octets_fill.cu",
    "dasp_count_quads",
    """
    const long long*  indptr   [rows + 1]
    const Index*      indices
    long long         rows
    long long         octets
    long long         line
    long long         plane
    Index*            places   [8 * octets]
    Count*            starts   [octets + 1]
    Count*            totals   [2]
    """,
)

FILL = Signature(
    "spmv/octets_fill.cu",
    "dasp_fill_quads",
    """
    const long long*  indptr
    const Index*      indices
    const Code*       codes
    const Index*      places   [8 * octets]
    long long         octets
    const Count*      starts   [octets + 1]
    Index*            columns
    unsigned*         masks
    Code*             values
    """,
)

SAMPLE = Signature(
    "spmv/octets_fill.cu",
    "dasp_sample_offsets",
    """
    const long long*  indptr
    const Index*      indices
    long long         rows
    long long         count
    long long         most
    Count*            offsets
    """,
)

SAMPLED_ROWS, SAMPLED_ENTRIES = 16, 128
"""Rows that are looked at for a grid, and entries of each."""

MOST_REACH = 4
"""Points along a line that a row of a grid reaches; more are unknowns of one point."""

SIGNATURE = Signature(
    "spmv/octets.cu",
    "dasp_octets",
    f"""
    const unsigned long long*  starts  [count + 1]
    const Index*     columns_of
    const unsigned*  masks
    const Code*      values
    const Value*     table
    const Index*     rows        [8 * count]
    const X*         zeros
    long long        count
    {columns.OF_BLOCK.strip()}
    """,
)


class Octets(NamedTuple):
    """A matrix in octets; see kernels/spmv/octets.cu.

    Attributes
    ----------
    starts : Array, shape (octets + 1,), uint64
    columns : Array, shape (4 (quads + BEHIND),), the plan's index type
    masks : Array, shape (quads + BEHIND,), uint32
    values : Array, shape (32 (quads + BEHIND),), codes of the plan; empty where it stores none
    rows : Array, shape (8 octets,), the plan's index type
        Which row stands where; -1 behind the last.
    """

    starts: Array
    columns: Array
    masks: Array
    values: Array
    rows: Array

    @property
    def quads(self) -> int:
        """How many there are."""
        return len(self.masks) - BEHIND

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self)

    def kernels(self) -> Kernels:
        """Return how they are multiplied."""
        return columns.SLICES._replace(
            signature=SIGNATURE,
            types=lambda plan, kinds: columns.types(plan, kinds) | {"Count": COUNT_TYPE},
            long_rows=lambda plan: 0,
            passes=lambda table, plan, k, kinds, x, y, sectors: choose_passes(table, k, kinds, x, y),
            warps=lambda plan, block: len(self.starts) - 1,
            arguments=self.arguments,
        )

    def arguments(self, plan: Plan, zeros: Any, parts: int) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""
        starts, columns_of, masks, values, rows = self
        own = {"starts": starts, "columns_of": columns_of, "masks": masks, "values": values, "rows": rows}
        sizes = {"count": len(starts) - 1, "parts": parts}
        return own | sizes | {"table": plan.values.table, "zeros": zeros}


def serve(plan: Plan, kinds: Arithmetic, x: Layout) -> bool:
    """Return True if octets can stand for a plan of slices in a product.

    Not where rows are cut: eight lanes go through the entries of eight rows one by one to make an octet.
    """
    return (
        x.column == 1
        and bool(plan.nnz)
        and plan.pattern.choice.mma is not False
        and not plan.pattern.segments
        and kinds.value.kind == "f"
        and kinds.x in TYPES
        and kinds.sum in TYPES
    )


def most(table: BlockTable, plan: Plan, kinds: Arithmetic, k: int) -> float:
    """Return the quads up to which k columns are multiplied faster in octets than in slices."""
    wide = kinds.x.itemsize >= NUMBER_BYTES
    known = table.octet_entries if wide else table.narrow_octet_entries
    return next((plan.nnz / entries for columns, entries in known if k >= columns), 0.0)


def build(made_of: Any, plan: Plan, most: float) -> tuple[int, Octets | None]:
    """Return how many quads the matrix of a plan takes, and it in octets, unless there are more than `most`.

    Parameters
    ----------
    made_of : Primitives
        Of `dasp.formats.sell.cuda.primitives`, where the plan's arrays lie. The count and some offsets are
        read back.
    plan : Plan
        Of slices, that octets serve.
    most : float
    """
    on, entries = made_of.device, made_of.unpack_codes(plan)
    octets = ceil_div(plan.shape[0], ROWS)
    starts, totals = on.empty(octets + 1, COUNT_TYPE), on.zeroed(2)
    rows = on.empty(ROWS * octets, plan.pattern.index_dtype)
    line, plane = grid_of(sampled(on, plan, entries), plan.shape[0])
    grid = {"line": line, "plane": plane, "places": rows}
    _launch(on, COUNT, plan, entries, **grid, starts=starts, totals=on.part(totals, 0, 2))
    (count,) = on.read(totals, 1, 1)
    if count > most:
        return count, None
    there = count + BEHIND
    stored = 0 if entries[2] is None else WARP * there
    columns, masks = on.zeros(COLUMNS * there, plan.pattern.index_dtype), on.zeros(there, np.uint32)
    made = Octets(starts, columns, masks, on.zeros(stored, plan.values.codes.dtype), rows)
    fill(on, plan, entries, made)
    return count, made


def choose_passes(
    table: BlockTable, columns: int, kinds: Arithmetic, x: Layout, y: Layout
) -> tuple[Pass, ...]:
    """Return the launches for so many columns: in large blocks, and of the rest in smaller ones."""
    item, passes, first = kinds.x.itemsize, [], 0
    words = frozenset(["wide" if item >= NUMBER_BYTES else "narrow"])
    while first < columns:
        rule, width, count = choose_rule(table.octets, columns - first, item, columns + WARP, words)
        passes.append(Pass(first, count, _make_block(rule, width, count, x, y)))
        first += count
    return tuple(passes)


def _make_block(rule: Rule, width: int, columns: int, x: Layout, y: Layout) -> ColumnBlock:
    """Return the block of a width for columns that fill it, or for fewer."""
    pack = min(x.pack, width // LANES)
    return ColumnBlock(
        columns=width,
        lanes=LANES,
        pack=pack,
        y_pack=pack if y.column == 1 and y.pack >= pack else 1,
        whole=int(columns % width == 0),
        steps=rule.steps,
        loads=rule.loads,
        registers=rule.registers,
        threads=WARP * rule.warps,
    )


def fill(on: Any, plan: Plan, entries: tuple[Any, ...], octets: Octets) -> None:
    """Write the entries of a plan into its octets."""
    values = None if entries[2] is None else octets.values
    made = {"starts": octets.starts, "columns": octets.columns, "masks": octets.masks, "values": values}
    _launch(on, FILL, plan, entries, places=octets.rows, **made)


def sampled(on: Any, plan: Plan, entries: tuple[Any, ...]) -> list[frozenset[int]]:
    """Return how far behind the diagonal the entries of some rows lie, one set a row."""
    count = min(SAMPLED_ROWS, plan.shape[0])
    words = on.zeroed(count * SAMPLED_ENTRIES)
    given = {"count": count, "most": SAMPLED_ENTRIES}
    _launch(on, SAMPLE, plan, entries, **given, offsets=on.part(words, 0, count * SAMPLED_ENTRIES))
    found = np.reshape(on.read(words, 0, count * SAMPLED_ENTRIES), (count, SAMPLED_ENTRIES))
    return [frozenset(map(int, row[row > 0])) for row in found]


def grid_of(offsets: list[frozenset[int]], rows: int) -> tuple[int, int]:
    """Return the rows of a line and of a plane of the grid whose points are the rows; 0, 0 if there is none.

    Parameters
    ----------
    offsets : list of frozenset of int
        How far behind the diagonal the entries of some rows lie: on a grid, along a line, and about one line
        and one plane away, the same for all rows but those at its edges, which have fewer.
    rows : int
        Of the matrix.
    """
    widest = max(offsets, key=len)
    if 4 * sum(row <= widest for row in offsets) < 3 * len(offsets):
        return 0, 0
    groups: list[list[int]] = []
    for offset in sorted(widest):
        if groups and offset <= 2 * groups[-1][-1]:
            groups[-1].append(offset)
        else:
            groups.append([offset])
    if not 2 <= len(groups) <= 3 or groups[0][0] != 1 or groups[0][-1] > MOST_REACH:
        return 0, 0
    middles = [(group[0] + group[-1]) // 2 for group in groups[1:]]
    for line, *plane in (
        middles,
        [group[0] for group in groups[1:]],
    ):  # boxes that lie around a row, or behind it
        one = plane[0] if plane else rows
        if rows % one == one % line == 0:
            return line, one
    return 0, 0


def _launch(on: Any, signature: Signature, plan: Plan, entries: tuple[Any, ...], **more: Any) -> None:
    """Launch a kernel that makes octets of a plan's entries, `ROWS` threads for each."""
    index, code = plan.pattern.index_dtype, bits_type(plan.values.codes.dtype)
    octets = ceil_div(plan.shape[0], ROWS)
    constants = {"DASP_START": "long long", "DASP_COLUMN": C_NAMES[index], "DASP_INDEX": C_NAMES[index]}
    constants |= {"DASP_CODE_BYTES": str(code.itemsize)}
    given = dict(zip(("indptr", "indices", "codes"), entries, strict=True)) | more
    given |= {"rows": plan.shape[0], "octets": octets}
    given |= {name: given[name].view(code) for name in ("codes", "values") if given.get(name) is not None}
    compiled = on.kernel(signature, constants, {"Index": index, "Code": code, "Count": COUNT_TYPE})
    words = {name: value if type(value) is int else on.word(value) for name, value in given.items()}
    compiled((ceil_div(octets * ROWS, FILL_THREADS), 1), FILL_THREADS, words)
