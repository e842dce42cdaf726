"""The options of the format of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from dasp.formats.dasp.pattern import LONG_UNIT, MAX_SHORT
from dasp.formats.format import check_int, check_switch

MOST_MEDIUM = 2**31 - 1
"""Entries of a medium row, and of a segment, that the kernels count with 32 bits."""

MOST_ROWS = 2**63 - 1
"""Rows of a matrix, which are counted with 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The thresholds of the format of the paper; the defaults are those of its paper, section 3.

    Attributes
    ----------
    long_row : int
        Rows with more entries than this are long. At least 4.
    fill : float
        Share of a tile's 32 slots that must hold entries for the tile to be regular, in (0, 1].
    segment : int
        Slots of a long row that one warp sums, a multiple of 64.
    row_blocks_2, row_blocks_4 : int
        Medium rows from which on a warp takes 2, and 4, row blocks of eight rows.
    mma : bool
        True if a GPU that has tensor cores for the matrix's type multiplies tiles with them, else with FMA.

    Raises
    ------
    TypeError, ValueError
        For a threshold of the wrong kind, or outside its range.
    """

    long_row: int = 256
    fill: float = 0.75
    segment: int = 1024
    row_blocks_2: int = 59_990
    row_blocks_4: int = 400_000
    mma: bool = True

    def __post_init__(self) -> None:
        """Check every threshold."""
        check_int("long_row", self.long_row, MAX_SHORT, MOST_MEDIUM)
        if not isinstance(self.fill, Real) or isinstance(self.fill, bool):
            raise TypeError(f"fill is {self.fill!r}; it must be a float")
        if not 0 < self.fill <= 1:
            raise ValueError(f"fill is {self.fill}; it must be above 0 and at most 1")
        check_int("segment", self.segment, LONG_UNIT, MOST_MEDIUM)
        if self.segment % LONG_UNIT:
            raise ValueError(f"segment is {self.segment}; it must be a positive multiple of {LONG_UNIT}")
        check_int("row_blocks_2", self.row_blocks_2, 0, MOST_ROWS)
        check_int("row_blocks_4", self.row_blocks_4, 0, MOST_ROWS)
        if self.row_blocks_2 > self.row_blocks_4:
            raise ValueError(
                f"row_blocks_2 is {self.row_blocks_2} and row_blocks_4 is {self.row_blocks_4}; "
                "they must satisfy 0 <= row_blocks_2 <= row_blocks_4"
            )
        check_switch("mma", self.mma)
