"""A matrix in slices: which entry lies in which slot, how its values are stored, and what a user may choose.

`Pattern` says the layout. Codes, headers and deltas are explained where their types stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from dasp.formats.cost import MOST_STEPS, CostModel
from dasp.formats.format import check_int, check_switch
from dasp.formats.plan import WARP, Array, Part, Plan, nbytes

NAME = "sell"

MOST_WARPS = 16
"""Slices that one block of a GPU's threads may multiply."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Rows in slices that one warp multiplies: 32 / T rows to a slice, T lanes to a row.

    T is a power of two from 1 to 32, chosen for each slice. A slice is a run of steps of 32 slots, and
    slot l of step k is what lane l meets at step k: entry k T + l % T of the slice's row l / T. So T = 1 is
    a slice of SELL-C-sigma, column by column with a thread for each row, and a step at T = 4 is an 8 x 4
    tile. A row too long for one slice is cut into segments, each a slice with T = 32. Those come before the
    other slices, in any order in which the segments of one row follow each other.

    A header is four numbers: the slice's first step; its first position in `rows` (for a segment, its number
    row by row, as `segment_offsets` counts); the first of its deltas, in blocks of 32 bytes; and its
    `pack_shape`: steps, leading steps without pads, log2 T and `Width`. Steps, positions and deltas of the
    slices follow each other without a gap.

    Sources: Kreutzer et al., SIAM J. Sci. Comput. 36 (2014) C401, for SELL-C-sigma; Lu and Liu, SC '23, for
    the tile; Kourtis, Goumas and Koziris, CF '08, for columns as deltas (CSR-DU).

    Attributes
    ----------
    choice : Choice
    index_dtype : numpy.dtype
        int32 or int64, of rows and columns.
    entries : int
        Stored entries, without pads.
    segments : int
        Slices that are segments of long rows: the first ones.
    positions : int
        Rows in slices, the long ones not counted; the last slice may have room for more.
    rows : Array, shape (positions,) or (0,), index type
        The caller's row at each position. Empty if position p is row p.
    headers : Array, shape (slices, 4), uint32
    bases : Array, shape (steps,), index type
        What a step's deltas are added to: its least column.
    deltas : Array, shape (32 * blocks,), uint8
        Of each slice its steps' deltas, little-endian, in the width of its header.
    long_rows : Array, shape (r,), index type
        The caller's rows that are cut into segments.
    segment_offsets : Array, shape (r + 1,), index type
        First segment of each of those rows.
    segment_rows : Array, shape (segments,), index type
        Position in `long_rows` of each segment's row.
    """

    choice: Choice
    index_dtype: np.dtype[Any]
    entries: int
    segments: int
    positions: int
    rows: Array
    headers: Array
    bases: Array
    deltas: Array
    long_rows: Array
    segment_offsets: Array
    segment_rows: Array


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a matrix in slices.

    Attributes
    ----------
    coding : Coding
        How `codes` are stored.
    codes : Array, shape (32 * steps,), or (0,) if all are equal; the coding's type
        A pad's code is 0, which need not stand for the value 0: a product must leave it out.
    table : Array, shape (t,), the matrix's type
        The values that codes stand for; empty where a code is the value itself.
    """

    coding: Coding
    codes: Array
    table: Array


@dataclass(frozen=True, kw_only=True)
class Options:
    """The choices of slices; None leaves one to the matrix and the machine.

    Attributes
    ----------
    steps : int or None
        Most steps of a slice, 1 to 4095; a row of more than 32 times as many entries is cut.
    window : int or None
        Rows among which rows are sorted by length, less than 2^32; 0 keeps the caller's order, m or more
        sorts all.
    narrow : bool
        True if values may be stored in fewer bits where each keeps all of its own.
    warps : int or None
        Slices to a block of threads on a GPU, 1 to 16.
    mma : bool
        True if a GPU may multiply several columns at once with tensor cores, where that is faster.

    Raises
    ------
    TypeError, ValueError
        For a choice of the wrong kind, or outside its range.
    """

    steps: int | None = None
    window: int | None = None
    narrow: bool = True
    warps: int | None = None
    mma: bool = True

    def __post_init__(self) -> None:
        """Check every choice."""
        if self.steps is not None:
            check_int("steps", self.steps, 1, MOST_STEPS)
        if self.window is not None:
            check_int("window", self.window, 0, MOST_COLUMNS)
        if self.warps is not None:
            check_int("warps", self.warps, 1, MOST_WARPS)
        check_switch("narrow", self.narrow)
        check_switch("mma", self.mma)


@dataclass(frozen=True)
class Choice:
    """The choices for a matrix, by a cost model, within a policy.

    The window and the warps depend on the bytes of a stored value as well: `dasp.formats.sell.choose`.

    Attributes
    ----------
    model : CostModel
        Whose costs decided.
    steps, segment_steps : int
        Most steps of a slice, and of a segment of a row that would have very many.
    window : int
        Rows among which rows are sorted by length (SELL-C-sigma: sorting scope); 0 for none.
    warps : int
        Slices to a block of threads on a GPU.
    narrow : bool
        True if values may be stored in fewer bits.
    mma : bool
        True if a GPU may multiply several columns at once with tensor cores.
    """

    model: CostModel
    steps: int
    segment_steps: int
    window: int
    warps: int
    narrow: bool
    mma: bool


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

MOST_COLUMNS = PAD_32
"""Columns that the widest deltas can tell apart, and rows that a header can count."""


Word = Any
"""An int or an array of 64-bit integers, in Python or in compiled code."""


def pack_shape(steps: Word, full: Word, shift: Word, width: Word) -> Word:
    """Return the last number of a header from steps, full steps, log2 of the lanes to a row, and `Width`."""
    return steps | full << 12 | shift << 24 | width << 27


def unpack_shape(word: Word) -> tuple[Word, Word, Word, Word]:
    """Return steps, full steps, log2 of the lanes to a row, and `Width`, from the last number of a header.

    For numbers and arrays of 64 bits; compiled code uses it as it is.
    """
    return word & 4095, word >> 12 & 4095, word >> 24 & 7, word >> 27 & 3


SHAPE_BITS = 29
"""Bits of that number that mean something."""


class Coding(IntEnum):
    """How the values of a matrix are stored; every coding gives back every bit.

    PLAIN: as the matrix's type. SINGLE: as float32, a complex value as complex64. BYTE: as int8. DICTIONARY:
    as the uint8 position in `table`. EQUAL: not at all, since each is `table[0]`. Values as codes are the
    CSR-VI of Kourtis, Goumas and Koziris, CF '08, doi:10.1145/1366230.1366244.
    """

    PLAIN = 0
    SINGLE = 1
    BYTE = 2
    DICTIONARY = 3
    EQUAL = 4


CODE_TYPES: dict[Coding, np.dtype[Any]] = {
    Coding.SINGLE: np.dtype(np.float32),
    Coding.BYTE: np.dtype(np.int8),
    Coding.DICTIONARY: np.dtype(np.uint8),
}
"""The type of a coded value, where it is not the matrix's."""

MOST_CODES = 256
"""Values that a dictionary can hold."""


@cache
def code_type(coding: Coding, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of a stored value of a matrix of a type; any where none is stored."""
    if coding == Coding.SINGLE and dtype.kind == "c":
        return np.dtype(np.complex64)
    kind: np.dtype[Any] = CODE_TYPES.get(coding, dtype)
    return kind


def may_code(coding: Coding, dtype: np.dtype[Any]) -> bool:
    """Return True if a coding stores values of a type in fewer bits; BYTE stores real ones alone."""
    if coding == Coding.BYTE and dtype.kind == "c":
        return False
    return code_type(coding, dtype).itemsize < dtype.itemsize


def list_parts(plan: Plan) -> list[Part]:
    """Return one line: rows, entries, slots and bytes of all slices."""
    pattern, values = plan.pattern, plan.values
    slots = WARP * len(pattern.bases)
    rows = pattern.positions + len(pattern.long_rows)
    return [Part("slices", rows, pattern.entries, slots, nbytes(pattern, values))]


def count_shares(plan: Plan) -> dict[str, dict[str, int]]:
    """Return slots by lanes to a row and by bits of a column, and bytes by what they hold.

    Parameters
    ----------
    plan : Plan
        With arrays on any device; the headers are copied to the host.

    Returns
    -------
    dict of str to dict of str to int
        What is shared out, then the shares, zeros left out; slots add up to the plan's, bytes to `nbytes`.
    """
    pattern: Pattern = plan.pattern
    values: Values = plan.values
    headers = pattern.headers
    words = np.asarray(headers.get() if hasattr(headers, "get") else headers)[:, 3].astype(np.int64)
    steps, _, shift, width = unpack_shape(words)
    cut = np.arange(len(words)) < pattern.segments
    lanes = {"long rows, cut": WARP * int(steps[cut].sum())}
    for log in range(6):
        lanes[f"{1 << log}"] = WARP * int(steps[(shift == log) & ~cut].sum())
    bits = "none", "8", "16", "32"
    widths = {name: WARP * int(steps[width == kind].sum()) for kind, name in enumerate(bits)}
    parts = {
        f"values, {values.coding.name.lower()}": nbytes(values),
        "columns": nbytes(pattern.bases, pattern.deltas),
        "headers": nbytes(headers),
        "rows": nbytes(pattern) - nbytes(pattern.bases, pattern.deltas, headers),
    }
    found = {"slots, by lanes to a row": lanes, "slots, by bits of a column": widths, "bytes": parts}
    return {what: {name: n for name, n in each.items() if n} for what, each in found.items()}
