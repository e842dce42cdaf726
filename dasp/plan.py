"""The plan: a matrix packed by row length into parts, as frozen data.

`preprocess` makes a plan, a backend executes it, and neither sees the other. Every array below may
live in NumPy or, once a plan has been moved to a GPU, in CuPy. Two integer types occur in a plan: the
*index* type (rows and columns of the matrix) and the *offset* type (positions in the packed arrays);
each is int32 where that holds every number it must, else int64.

A slot is one place for an entry. A pad is a slot with no entry: its column is `PAD` and its value 0,
and no product may read x for it.

Source of the format: Lu and Liu, "DASP: Specific Dense Matrix Multiply-Accumulate Units Accelerated
General Sparse Matrix-Vector Multiplication", SC '23, section 3, doi:10.1145/3581784.3607051.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

PAD = -1
"""The column of a slot that holds no entry, and the row of a result that belongs to nobody."""

TILE_ROWS = 8
TILE_COLUMNS = 4
TILE = TILE_ROWS * TILE_COLUMNS
"""Slots of the tile that one m8n8k4 reads; slot l of a tile is what lane l of the warp holds."""

GROUP = 2 * TILE
"""Slots of a long row that a warp multiplies with two MMAs; long rows are padded to whole groups."""

WARP = 32
"""Lanes of a warp, and results that a warp makes from pieces of short rows."""

MAX_SHORT = TILE_COLUMNS
"""Longest row that fits one row of a tile."""

Array = Any
"""numpy.ndarray or cupy.ndarray, all of one plan on one device."""


@dataclass(frozen=True, eq=False)
class LongPart:
    """Rows above the policy's limit, each padded to whole groups of 64 slots.

    A segment is a run of `segment` slots of one row (the last run of a row may be shorter); one warp
    sums it. Invariants: `offsets` are multiples of 64, rising; a row's pads come after its entries;
    segment s belongs to row `segment_rows[s]` and covers slots
    `offsets[r] + (s - segment_offsets[r]) * segment` up to `segment` further or `offsets[r + 1]`.

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
    values : Array, shape (slots,), the matrix's type
    """

    entries: int
    segment: int
    rows: Array
    offsets: Array
    segment_offsets: Array
    segment_rows: Array
    columns: Array
    values: Array


@dataclass(frozen=True, eq=False)
class RegularPart:
    """Full enough 8 x 4 tiles of the medium rows, dense, row-major inside a tile.

    Row block b owns tiles `offsets[b]` up to `offsets[b + 1]`; tile t owns slots 32 t up to 32 t + 32,
    and slot 32 t + 4 r + c is column c of the tile in the block's row r. Invariant: slot 31 of a tile is
    an entry exactly if every slot is, because the rows of a block never get longer.

    Attributes
    ----------
    entries : int
        Stored entries, without pads.
    offsets : Array, shape (blocks + 1,), offset type
        First tile of each row block.
    columns : Array, shape (32 * tiles,), index type
    values : Array, shape (32 * tiles,), the matrix's type
    """

    entries: int
    offsets: Array
    columns: Array
    values: Array


@dataclass(frozen=True, eq=False)
class IrregularPart:
    """What the tiles leave of the medium rows, as CSR in the order of the medium rows; no pads.

    Attributes
    ----------
    entries : int
    offsets : Array, shape (8 * blocks + 1,), offset type
        First slot of each row; the rows that fill up the last row block are empty.
    columns : Array, shape (entries,), index type
    values : Array, shape (entries,), the matrix's type
    """

    entries: int
    offsets: Array
    columns: Array
    values: Array


@dataclass(frozen=True, eq=False)
class MediumPart:
    """Rows of 5 entries up to the policy's limit, eight to a row block, longest first.

    Attributes
    ----------
    rows : Array, shape (8 * blocks,), index type
        The caller's row of each row; `PAD` where the last row block has fewer than eight. Rows of equal
        length keep the caller's order.
    blocks_per_warp : int
        Row blocks that one warp multiplies: 1, 2 or 4.
    regular : RegularPart
    irregular : IrregularPart
    """

    rows: Array
    blocks_per_warp: int
    regular: RegularPart
    irregular: IrregularPart


@dataclass(frozen=True, eq=False)
class ShortPart:
    """Rows of 1 to 4 entries, pieced together so that rows of a tile are full.

    Four sections follow each other, each a whole number of warps of 32 results (the last excepted), so
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
    values : Array, same shape as `columns`, the matrix's type
    """

    entries: int
    pairs_13: int
    pairs_22: int
    fours: int
    singles: int
    rows: Array
    columns: Array
    values: Array


class Width(IntEnum):
    """How wide the columns of a slice are stored, as the exponent of two in a slice's header.

    With NONE nothing is stored: the column of lane l is the step's base + l. Else it is the base plus a
    delta of 8, 16 or 32 bits, or, if every bit of the delta is set, the slot is a pad.
    """

    NONE = 0
    BITS_8 = 1
    BITS_16 = 2
    BITS_32 = 3


NONE, BITS_8, BITS_16, BITS_32 = (int(width) for width in Width)
PAD_8, PAD_16, PAD_32 = (1 << 8) - 1, (1 << 16) - 1, (1 << 32) - 1
"""The delta of a pad, in each width that is stored."""

STEPS_MASK, FULL_SHIFT, LANES_SHIFT, WIDTH_SHIFT = (1 << 12) - 1, 12, 24, 27
LANES_MASK, WIDTH_MASK = 7, 3
"""Where the last number of a slice's header keeps steps, full steps, log2 T and width."""


class Coding(IntEnum):
    """How the values of a slice part are stored; every coding gives back every bit.

    PLAIN: as the matrix's type. SINGLE: as float32. BYTE: as int8. DICTIONARY: as the uint8 position in
    `table`. EQUAL: not at all, since each is `table[0]`. HALF: as float16.
    """

    PLAIN = 0
    SINGLE = 1
    BYTE = 2
    DICTIONARY = 3
    EQUAL = 4
    HALF = 5


CODE_TYPES = {
    Coding.SINGLE: np.float32,
    Coding.BYTE: np.int8,
    Coding.DICTIONARY: np.uint8,
    Coding.HALF: np.float16,
}
"""The type of a coded value, where it is not the matrix's."""

MOST_CODES = 256
"""Values that a dictionary can hold."""

MOST_WARPS = 16
"""Slices that one block of a GPU's threads may multiply."""

ONE_WAVE = 8192
"""Slices that a large GPU multiplies at the same time."""


@dataclass(frozen=True, eq=False)
class SlicePart:
    """Rows in slices that one warp multiplies: 32 / T rows to a slice, T lanes to a row.

    T is a power of two from 1 to 32, chosen for each slice. A slice is a run of steps of 32 slots, and
    slot l of step k is what lane l meets at step k: entry k T + l % T of the slice's row l / T. So T = 1 is
    a slice of SELL-C-sigma, column by column with a thread for each row, and a step at T = 4 is an 8 x 4
    tile. A row too long for one slice is cut into segments, each a slice with T = 32. Those come before the
    other slices, in any order in which the segments of one row follow each other.

    A header is four numbers: the slice's first step; its first position in `rows` (for a segment, its number
    row by row, as `segment_offsets` counts); the first of its deltas, in blocks of 32 bytes; and, from the
    lowest bit, steps (12 bits), leading steps without pads (12), log2 T (3) and `Width` (2). Steps, positions
    and deltas of the slices follow each other without a gap.

    Sources: Kreutzer et al., SIAM J. Sci. Comput. 36 (2014) C401, for SELL-C-sigma; Lu and Liu, SC '23, for
    the tile.

    Attributes
    ----------
    entries : int
        Stored entries, without pads.
    coding : Coding
        How `values` are stored.
    warps_per_block : int
        Slices that a GPU should multiply on one multiprocessor, for the x that they share.
    segments : int
        Slices that are segments of long rows: the first ones.
    positions : int
        Rows in slices, the long ones not counted; the last slice may have room for more.
    rows : Array, shape (positions,) or (0,), index type
        The caller's row at each position. Empty if position p is row p.
    headers : Array, shape (slices, 4), uint32
    bases : Array, shape (steps,), index type
        What a step's deltas are added to.
    deltas : Array, shape (32 * blocks,), uint8
        Of each slice its steps' deltas, little-endian, in the width of its header.
    values : Array, shape (32 * steps,), or (0,) if all are equal; the coding's type
        A pad's code is 0, which need not stand for the value 0: a product must leave it out.
    table : Array, shape (t,), the matrix's type
        The values that codes stand for.
    long_rows : Array, shape (r,), index type
        The caller's rows that are cut into segments.
    segment_offsets : Array, shape (r + 1,), index type
        First segment of each of those rows.
    segment_rows : Array, shape (segments,), index type
        Position in `long_rows` of each segment's row.
    """

    entries: int
    coding: Coding
    warps_per_block: int
    segments: int
    positions: int
    rows: Array
    headers: Array
    bases: Array
    deltas: Array
    values: Array
    table: Array
    long_rows: Array
    segment_offsets: Array
    segment_rows: Array


@dataclass(frozen=True, eq=False)
class Plan:
    """A matrix, packed. Every row is either in a slice, or in exactly one of the four categories.

    Either `slices` holds the whole matrix and the categories are bare, or the other way round.

    Attributes
    ----------
    shape : tuple of int
        (m, n) of the matrix.
    dtype : numpy.dtype
        float32 or float64, of every value.
    index_dtype, offset_dtype : numpy.dtype
        int32 or int64: rows and columns; positions in packed arrays.
    mma : bool
        Whether a GPU multiplies tiles with tensor cores where it can (else with FMA).
    slices : SlicePart
    long : LongPart
    medium : MediumPart
    short : ShortPart
    empty_rows : Array, shape (e,), index type
        The caller's rows without entries; a product writes them too.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    index_dtype: np.dtype[Any]
    offset_dtype: np.dtype[Any]
    mma: bool
    slices: SlicePart
    long: LongPart
    medium: MediumPart
    short: ShortPart
    empty_rows: Array

    @property
    def nnz(self) -> int:
        """Stored entries of the matrix, explicit zeros and duplicates counted."""
        return (
            self.slices.entries
            + self.long.entries
            + self.medium.regular.entries
            + self.medium.irregular.entries
            + self.short.entries
        )


def delta_views(deltas: Array) -> tuple[Array, Array, Array]:
    """Return the deltas of a slice part as 8, as 16 and as 32 bits each."""
    return deltas, deltas.view(np.uint16), deltas.view(np.uint32)


def plain_values(part: SlicePart) -> Array:
    """Return the values of a slice part in a type that every compiler knows: float16 as its 16 bits."""
    return part.values.view(np.uint16) if part.coding == Coding.HALF else part.values


def arrays_of(part: Any) -> Iterator[Array]:
    """Yield every array of a plan, or of a part, in the order of its fields."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from arrays_of(value)
        elif hasattr(value, "nbytes") and hasattr(value, "shape"):
            yield value


def with_arrays(part: Any, arrays: Iterator[Array]) -> Any:
    """Return the part with the next of `arrays` in the place of each of its own, field by field."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = with_arrays(value, arrays)
        elif hasattr(value, "nbytes") and hasattr(value, "shape"):
            changes[field.name] = next(arrays)
    return dataclasses.replace(part, **changes)
