"""The choices that a user has."""

from __future__ import annotations

from dataclasses import dataclass

from dasp.formats.cost import MOST_STEPS
from dasp.formats.format import check_int, check_switch
from dasp.formats.sell.pattern import MOST_COLUMNS, MOST_WARPS


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
