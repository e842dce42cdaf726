"""A matrix in blocks of eight rows on a GPU, multiplied by several columns at once on tensor cores.

This pays where neighbouring rows have nearly the same columns. A row block has eight rows; a tile is four of
the columns in which any of them has an entry: one operand of `mma.m8n8k4`. kernels/spmv/row_blocks.cu
explains how they are stored and multiplied. They are made from a plan of slices at their first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from dasp.formats.plan import WARP, Array, Plan, nbytes
from dasp.formats.sell.cuda import columns
from dasp.formats.sell.cuda.column_rules import (
    NUMBER_BYTES,
    BlockTable,
    ColumnBlock,
    ColumnLaunch,
    Rule,
    Strides,
    choose_rule,
)
from dasp.formats.sell.cuda.columns import ColumnKernels
from dasp.formats.sell.cuda.primitives import CudaPrimitives, find_primitives
from dasp.runtime.cuda.launch import Kinds, Signature
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.sizes import ceil_div

ROWS, COLUMNS = 8, 4
"""Rows and columns of a tile."""

LANES = 8
"""Lanes that read a row of X together, and columns of X that a tile is multiplied by at once."""

FILL_THREADS = 512
"""Threads of a block of the kernels that make row blocks, `ROWS` for each of these."""

BEHIND = 8
"""Padding tiles behind the last one, which a loop's next turn may load."""

NEVER = 2**63
"""A number of tiles with which no product is faster."""

COUNT_TYPE = np.dtype(np.uint64)
"""The type of counts of tiles."""

TYPES = np.float32, np.float64
"""Types of X and of sums."""

COUNT = Signature(
    "spmv/row_blocks_fill.cu",
    "dasp_count_tiles",
    """
    const long long*  indptr   [rows + 1]
    const Index*      indices
    long long         rows
    long long         row_blocks
    long long         line
    long long         plane
    Index*            places   [8 * row_blocks]
    Count*            starts   [row_blocks + 1]
    Count*            totals   [2]
    """,
)

FILL = Signature(
    "spmv/row_blocks_fill.cu",
    "dasp_fill_tiles",
    """
    const long long*  indptr
    const Index*      indices
    const Code*       codes
    const Index*      places   [8 * row_blocks]
    long long         row_blocks
    const Count*      starts   [row_blocks + 1]
    Index*            columns
    unsigned*         masks
    Code*             values
    """,
)

SAMPLE = Signature(
    "spmv/row_blocks_fill.cu",
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
"""Rows that are sampled to find a grid, and entries of each."""

MOST_REACH = 4
"""Points along a line that a row of a grid reaches; a longer reach means several unknowns to a point."""

SIGNATURE = Signature(
    "spmv/row_blocks.cu",
    "dasp_row_blocks",
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


Entries = tuple[Array, Array, Array | None]
"""A plan's matrix as `indptr`, `indices` and codes; codes are None if all values are equal."""


class LazyRowBlocks:
    """The row blocks of a plan of slices, made at their first use.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    """

    def __init__(self, plan: Plan) -> None:
        import cupy

        self._cupy, self._plan = cupy, plan
        self._lock = threading.Lock()
        self._found: RowBlocks | None = None
        self._tiles: int | None = None

    def find_kernels(self, arithmetic: Arithmetic, k: int, x: Strides) -> ColumnKernels | None:
        """Return the kernels that multiply row blocks by k columns of X, or None where slices are faster.

        Row blocks are made at their first use, if there is memory for them.
        """
        most = limit_tiles(self._plan, arithmetic, k)
        if most < 1 or not serve(self._plan, arithmetic, x):
            return None
        with self._lock:
            if self._tiles is None or (self._found is None and self._tiles <= most):
                current = self._cupy.cuda.get_current_stream()
                captured = self._cupy.cuda.runtime.streamIsCapturing(current.ptr)
                # The caller's stream may write new values; memory allocated on it goes to no other stream.
                chosen = self._cupy.cuda.Stream(non_blocking=True) if captured else current
                with on_stream(chosen) as stream:
                    self._tiles, self._found = self._build(most)
                    stream.synchronize()
            tiles, found = self._tiles, self._found
        return None if tiles > most else found

    def _build(self, most: float) -> tuple[int, RowBlocks | None]:
        """Return the number of tiles, or `NEVER` if memory is short, and the row blocks."""
        try:
            return build(find_primitives(self._cupy.cuda.Device().id), self._plan, most)
        except MemoryError:
            return NEVER, None

    @property
    def nbytes(self) -> int:
        """Bytes of the row blocks."""
        return 0 if self._found is None else self._found.nbytes

    def refresh(self, captured: bool) -> None:
        """Take over values that were written into the plan, on the current stream, which may be captured."""
        if self._found is not None:
            made_of = find_primitives(self._cupy.cuda.Device().id)
            fill(made_of, self._plan, made_of.unpack_codes(self._plan), self._found)
        elif captured:
            self._tiles = NEVER  # the graph would not update row blocks that are made later


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A matrix in row blocks, and the kernels that multiply it; see kernels/spmv/row_blocks.cu.

    Attributes
    ----------
    starts : Array, shape (row blocks + 1,), uint64
    columns : Array, shape (4 (tiles + BEHIND),), the plan's index type
    masks : Array, shape (tiles + BEHIND,), uint32
    values : Array, shape (32 (tiles + BEHIND),), codes of the plan; empty where it stores none
    rows : Array, shape (8 row blocks,), the plan's index type
        The row in each place; -1 after the last.
    """

    signature: ClassVar[Signature] = SIGNATURE
    starts: Array
    columns: Array
    masks: Array
    values: Array
    rows: Array

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return len(self.masks) - BEHIND

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return nbytes(self)

    def choose_launches(
        self,
        table: BlockTable,
        plan: Plan,
        columns: int,
        arithmetic: Arithmetic,
        x: Strides,
        y: Strides,
        sectors: Callable[[], float],
    ) -> tuple[ColumnLaunch, ...]:
        """See `ColumnKernels`."""
        return choose_launches(table, columns, arithmetic, x, y)

    def count_warps(self, plan: Plan, block: ColumnBlock) -> int:
        """See `ColumnKernels`."""
        return len(self.starts) - 1

    def list_arguments(self, plan: Plan, zeros: Array, parts: int) -> dict[str, Any]:
        """See `ColumnKernels`."""
        return {
            "starts": self.starts,
            "columns_of": self.columns,
            "masks": self.masks,
            "values": self.values,
            "rows": self.rows,
            "count": len(self.starts) - 1,
            "parts": parts,
            "table": plan.values.table,
            "zeros": zeros,
        }


def serve(plan: Plan, arithmetic: Arithmetic, x: Strides) -> bool:
    """Return True if row blocks can replace a plan of slices in a product.

    They cannot where rows are cut: a row block is made by eight lanes that read eight rows entry by entry.
    """
    return (
        x.column == 1
        and bool(plan.nnz)
        and bool(plan.pattern.choice.mma)
        and not plan.pattern.segments
        and arithmetic.value.kind == "f"
        and arithmetic.x in TYPES
        and arithmetic.sum in TYPES
    )


def limit_tiles(plan: Plan, arithmetic: Arithmetic, k: int) -> float:
    """Return the number of tiles up to which row blocks multiply k columns faster than slices."""
    for number, least, entries in plan.pattern.choice.model.tile_entries:
        if arithmetic.x.itemsize >= number and k >= least:
            return float(plan.nnz / entries)
    return 0.0


def build(made_of: CudaPrimitives, plan: Plan, most: float) -> tuple[int, RowBlocks | None]:
    """Return the number of tiles of a plan's matrix, and its row blocks if there are at most `most` tiles.

    Parameters
    ----------
    made_of : CudaPrimitives
        Of the GPU where the plan's arrays lie. The count and some offsets are read back.
    plan : Plan
        Of slices, for which `serve` is true.
    most : float
    """
    device, entries = made_of.device, made_of.unpack_codes(plan)
    row_blocks = ceil_div(plan.shape[0], ROWS)
    starts, totals = device.empty(row_blocks + 1, COUNT_TYPE), device.zeros(2, COUNT_TYPE)
    rows = device.empty(ROWS * row_blocks, plan.pattern.index_dtype)
    line, plane = find_grid(sample_offsets(made_of, plan, entries), plan.shape[0])
    grid = {"line": line, "plane": plane, "places": rows}
    _launch(made_of, COUNT, plan, entries, **grid, starts=starts, totals=totals)
    count = device.read(totals)[1]
    if count > most:
        return count, None
    there = count + BEHIND
    stored = 0 if entries[2] is None else WARP * there
    columns, masks = device.zeros(COLUMNS * there, plan.pattern.index_dtype), device.zeros(there, np.uint32)
    made = RowBlocks(starts, columns, masks, device.zeros(stored, plan.values.codes.dtype), rows)
    fill(made_of, plan, entries, made)
    return count, made


def choose_launches(
    table: BlockTable, columns: int, arithmetic: Arithmetic, x: Strides, y: Strides
) -> tuple[ColumnLaunch, ...]:
    """Return the launches for `columns` columns: large blocks first, smaller ones for the rest."""
    item, launches, first = arithmetic.x.itemsize, [], 0
    words = frozenset(["wide" if item >= NUMBER_BYTES else "narrow"])
    while first < columns:
        rule, width, count = choose_rule(table.row_blocks, columns - first, item, columns + WARP, words)
        launches.append(ColumnLaunch(first, count, _make_block(rule, width, count, x, y)))
        first += count
    return tuple(launches)


def _make_block(rule: Rule, width: int, columns: int, x: Strides, y: Strides) -> ColumnBlock:
    """Return the block of a width for columns that fill it or not."""
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


def fill(made_of: CudaPrimitives, plan: Plan, entries: Entries, to: RowBlocks) -> None:
    """Write the entries of a plan into its row blocks."""
    values = None if entries[2] is None else to.values
    made = {"starts": to.starts, "columns": to.columns, "masks": to.masks, "values": values}
    _launch(made_of, FILL, plan, entries, places=to.rows, **made)


def sample_offsets(made_of: CudaPrimitives, plan: Plan, entries: Entries) -> list[frozenset[int]]:
    """Return the distances of entries from the diagonal, to its right, in some rows: one set a row."""
    count = min(SAMPLED_ROWS, plan.shape[0])
    offsets = made_of.device.zeros(count * SAMPLED_ENTRIES, COUNT_TYPE)
    given = {"count": count, "most": SAMPLED_ENTRIES}
    _launch(made_of, SAMPLE, plan, entries, **given, offsets=offsets)
    found = np.reshape(made_of.device.read(offsets), (count, SAMPLED_ENTRIES))
    return [frozenset(map(int, row[row > 0])) for row in found]


def find_grid(offsets: list[frozenset[int]], rows: int) -> tuple[int, int]:
    """Return the points of a line and of a plane of the grid whose points are the rows, or 0, 0 if none.

    Parameters
    ----------
    offsets : list of frozenset of int
        The distances of entries from the diagonal, to its right, in some rows. On a grid they are small, or
        near one line or one plane, and equal for all rows but those at edges, which have fewer.
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


@cache
def _find_kinds(index: np.dtype[Any], code: np.dtype[Any]) -> Kinds:
    """Return the kinds for kernels that make row blocks: codes are moved as their bits."""
    constants = {"DASP_INDEX": C_NAMES[index], "DASP_CODE_BYTES": str(code.itemsize)}
    return Kinds({"Index": index, "Code": code, "Count": COUNT_TYPE}, constants)


def _launch(
    made_of: CudaPrimitives, signature: Signature, plan: Plan, entries: Entries, **more: Array | int | None
) -> None:
    """Launch a kernel that makes row blocks of a plan's entries, `ROWS` threads for each."""
    kinds = _find_kinds(plan.pattern.index_dtype, plan.values.codes.dtype)
    row_blocks = ceil_div(plan.shape[0], ROWS)
    given = dict(zip(("indptr", "indices", "codes"), entries, strict=True)) | more
    given |= {"rows": plan.shape[0], "row_blocks": row_blocks}
    made_of.launch(signature, kinds, ceil_div(row_blocks * ROWS, FILL_THREADS), FILL_THREADS, **given)
