"""The arrays that the format of the paper stores, and the options that a user may choose.

Rows are sorted by their length into categories, and packed into tiles that a tensor core reads.

Every row is in exactly one of four categories: long, medium, short or empty. Two integer types occur: the
*index* type (rows and columns of the matrix) and the *offset* type (positions in the packed arrays); each is
int32 where that holds every number it must, else int64.

A slot is one place for an entry. A pad is a slot with no entry: its column is `PAD` and its value 0,
and no product may read x for it.

Source: Lu and Liu, "DASP: Specific Dense Matrix Multiply-Accumulate Units Accelerated General Sparse
Matrix-Vector Multiplication", SC '23, section 3, doi:10.1145/3581784.3607051.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dasp.formats.plan import WARP, Array

NAME = "dasp"

TILE_ROWS = 8
TILE_COLUMNS = 4
TILE = TILE_ROWS * TILE_COLUMNS
"""Slots of the tile that one m8n8k4 reads; lane l of the warp holds slot l of a tile."""

LONG_UNIT = 2 * TILE
"""Slots of a long row that a warp multiplies with two MMAs; long rows are padded to whole units."""

MAX_SHORT = TILE_COLUMNS
"""Longest row that fits one row of a tile."""

HALF_WARP = WARP // 2

MOST_MEDIUM = 2**31 - 1
"""Most entries of a medium row, and most slots of a segment: kernels count them with 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The thresholds of the paper, section 3. A policy sets only `mma`; tests set others.

    Attributes
    ----------
    long_row : int
        Rows with more entries than this are long. At least 4.
    fill : float
        Share of a tile's 32 slots that must hold entries for the tile to be regular, in (0, 1].
    segment : int
        Slots of a long row that one warp sums, a multiple of 64.
    row_blocks_2, row_blocks_4 : int
        Fewest medium rows for which a warp takes 2, and 4, row blocks of eight rows.
    mma : bool
        True if a GPU that has tensor cores for the matrix's type multiplies tiles with them, else with FMA.
    """

    long_row: int = 256
    fill: float = 0.75
    segment: int = 1024
    row_blocks_2: int = 59_990
    row_blocks_4: int = 400_000
    mma: bool = True


@dataclass(frozen=True, eq=False)
class LongPart:
    """Rows of more than `Options.long_row` entries, each padded to whole units of 64 slots.

    A segment is a run of `segment` slots of one row (the last run of a row may be shorter); one warp
    sums it. Invariants: `offsets` are multiples of 64, rising; a row's pads come after its entries;
    segment s belongs to row r = `segment_rows[s]` and begins at slot
    `offsets[r] + (s - segment_offsets[r]) * segment`; it ends `segment` slots later, or at `offsets[r + 1]`.

    Attributes
    ----------
    entries : int
        Stored entries, without pads.
    segment : int
        Slots of a full segment, a multiple of 64.
    rows : Array, shape (r,), index type
        The caller's row of each long row, rising.
    offsets : Array, shape (r + 1,), offset type
        First slot of each row.
    segment_offsets : Array, shape (r + 1,), offset type
        First segment of each row.
    segment_rows : Array, shape (segments,), index type
        Position in `rows` of the row that each segment is part of.
    columns : Array, shape (slots,), index type
    """

    entries: int
    segment: int
    rows: Array
    offsets: Array
    segment_offsets: Array
    segment_rows: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class RegularPart:
    """The 8 x 4 tiles of the medium rows that are full enough, dense, row-major inside a tile.

    Row block b owns tiles `offsets[b]` up to `offsets[b + 1]`; tile t owns slots 32 t up to 32 t + 32,
    and slot 32 t + 4 r + c is column c of the tile in the block's row r. Invariant: slot 31 of a tile is
    an entry exactly if every slot is, because the rows of a block never get longer.

    Attributes
    ----------
    entries : int
        Stored entries, without pads.
    rows : int
        Rows of the matrix in row blocks that have a tile.
    offsets : Array, shape (blocks + 1,), offset type
        First tile of each row block.
    columns : Array, shape (32 * tiles,), index type
    """

    entries: int
    rows: int
    offsets: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class IrregularPart:
    """The entries of medium rows that no tile holds, as CSR in the order of the medium rows; no pads.

    Attributes
    ----------
    entries : int
    rows : int
        Rows of the matrix with entries that no tile holds.
    offsets : Array, shape (8 * blocks + 1,), offset type
        First slot of each row; the rows that fill up the last row block are empty.
    columns : Array, shape (entries,), index type
    """

    entries: int
    rows: int
    offsets: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class MediumPart:
    """Rows of 5 to `Options.long_row` entries, eight to a row block, longest first.

    Attributes
    ----------
    rows : Array, shape (8 * blocks,), index type
        The caller's row of each medium row; `PAD` where the last row block has fewer than eight. Rows of
        equal length keep the caller's order.
    count : int
        Medium rows of the matrix.
    blocks_per_warp : int
        Row blocks that one warp multiplies: 1, 2 or 4.
    regular : RegularPart
    irregular : IrregularPart
    """

    count: int
    rows: Array
    blocks_per_warp: int
    regular: RegularPart
    irregular: IrregularPart


@dataclass(frozen=True, eq=False)
class ShortPart:
    """Rows of 1 to 4 entries, pieced together so that the rows of tiles are full.

    Four sections follow each other, each a whole number of warps of 32 results (except the last), so
    that no offsets are needed:

    ========= ==================== ============== ===========================================
    section   a tile row holds     tile rows      results of a warp
    ========= ==================== ============== ===========================================
    pairs_13  a row of 1, one of 3 multiple of 16 the 16 rows of 1, then the 16 rows of 3
    pairs_22  two rows of 2        multiple of 16 the 16 first rows, then the 16 second rows
    fours     a row of 4, or of 3  multiple of 32 the 32 rows
    singles   (no tile)            any            32 rows of 1, one slot each
    ========= ==================== ============== ===========================================

    Attributes
    ----------
    entries : int
        Stored entries, without pads.
    pairs_13, pairs_22, fours : int
        Tile rows of each section.
    singles : int
        Rows of the last section.
    rows : Array, shape (2 * pairs_13 + 2 * pairs_22 + fours + singles,), index type
        The caller's row of each result, `PAD` where there is none.
    columns : Array, shape (4 * (pairs_13 + pairs_22 + fours) + singles,), index type
    """

    entries: int
    pairs_13: int
    pairs_22: int
    fours: int
    singles: int
    rows: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class Pattern:
    """The places of a matrix's entries in the format of the paper.

    Attributes
    ----------
    index_dtype, offset_dtype : numpy.dtype
        int32 or int64: for rows and columns, and for positions in packed arrays.
    mma : bool
        True if a GPU multiplies tiles with tensor cores where it can, else with FMA.
    long : LongPart
    medium : MediumPart
    short : ShortPart
    empty_rows : Array, shape (e,), index type
        The caller's rows without entries; a product writes them too.
    """

    index_dtype: np.dtype[Any]
    offset_dtype: np.dtype[Any]
    mma: bool
    long: LongPart
    medium: MediumPart
    short: ShortPart
    empty_rows: Array

    @property
    def entries(self) -> int:
        """Stored entries of the matrix."""
        medium = self.medium
        return self.long.entries + medium.regular.entries + medium.irregular.entries + self.short.entries


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a matrix in the format of the paper, each beside the column of its slot; a pad's is 0.

    Attributes
    ----------
    long, regular, irregular, short : Array, shape (slots,) of that part, the matrix's type
    """

    long: Array
    regular: Array
    irregular: Array
    short: Array
