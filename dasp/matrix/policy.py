"""The choices of a plan that a user may make."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dasp import formats
from dasp.formats import Format


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The way to pack a matrix: its format, and the choices of the format that are made beforehand.

    A choice that is None is left to the format, which chooses by the matrix and the machine.

    Parameters
    ----------
    format : {"auto", "sell", "dasp"}
        `sell` is SELL-C-sigma, whose slices are ordered, cut and narrowed as the rows, columns and values of
        each matrix allow; `dasp` is the format of Lu and Liu, SC '23. `auto` is the faster one, which is
        `sell`, except for a matrix with 2^32 rows or columns.
    steps : int, optional
        sell: most steps of a slice, 1 to 4095.
    window : int, optional
        sell: rows among which rows are sorted by length, less than 2^32; 0 keeps the caller's order.
    narrow : bool, optional
        sell: store values in fewer bits where every one of them keeps all of its own (True).
    warps : int, optional
        sell: how many of them a GPU multiplies in one block of threads, 1 to 16.
    long_row : int, optional
        dasp: rows with more entries than this are long, at least 4 (256).
    fill : float, optional
        dasp: share of a tile's 32 slots that must hold entries for the tile to be regular, in (0, 1]
        (0.75).
    segment : int, optional
        dasp: slots of a long row that one warp sums, a multiple of 64 (1024).
    row_blocks_2, row_blocks_4 : int, optional
        dasp: medium rows from which on a warp takes 2, and 4, row blocks of eight rows (59990, 400000).
    mma : bool, optional
        Multiply 8 x 4 tiles with tensor cores on a GPU that has them for the matrix's type, else with FMA
        (True). In sell that means several columns at once, where it is faster.

    Raises
    ------
    TypeError, ValueError
        For a choice of the wrong kind, outside its range, or of another format than `format`.

    Examples
    --------
    >>> import dasp
    >>> dasp.Policy.dasp(fill=0.5).options().long_row
    256
    """

    format: str = "auto"
    steps: int | None = None
    window: int | None = None
    narrow: bool | None = None
    warps: int | None = None
    long_row: int | None = None
    fill: float | None = None
    segment: int | None = None
    row_blocks_2: int | None = None
    row_blocks_4: int | None = None
    mma: bool | None = None

    def __post_init__(self) -> None:
        """Check every choice, by making the options of the format."""
        if not isinstance(self.format, str) or self.format not in ("auto", *formats.names()):
            known = " or ".join(map(repr, ("auto", *formats.names())))
            raise ValueError(f"format is {self.format!r}; {known} is needed")
        self.options()

    @classmethod
    def dasp(cls, **thresholds: Any) -> Policy:
        """Return the format of Lu and Liu, SC '23, with its thresholds unless others are given."""
        return cls(format="dasp", **thresholds)

    def format_for(self, shape: tuple[int, int]) -> Format:
        """Return the format that packs a matrix of a shape.

        Raises
        ------
        ValueError
            If the format cannot hold it.
        """
        if self.format == "auto":
            return formats.first_that_takes(shape)
        asked = formats.find(self.format)
        if not asked.takes(shape):
            raise ValueError(
                f"A has shape {shape}; format {self.format!r} cannot hold it; pass format='auto'"
            )
        return asked

    def options(self, owner: Format | None = None) -> Any:
        """Return the options that `owner` packs with.

        By default that is the format of this policy, for `auto` the first one.

        Raises
        ------
        TypeError, ValueError
            As the class does.
        """
        packs = owner or formats.find(formats.names()[0] if self.format == "auto" else self.format)
        given = {name: value for name, value in vars(self).items() if name != "format" and value is not None}
        known = _choices_of(packs)
        for name in given:
            if name not in known and owner is None:
                home = next(home for home in formats.names() if name in _choices_of(formats.find(home)))
                raise ValueError(
                    f"{name} is {given[name]!r} and format is {self.format!r}; {name} is a choice of "
                    f"{home!r}; pass format={home!r} or leave it out"
                )
        return packs.options(**{name: value for name, value in given.items() if name in known})


def _choices_of(format: Format) -> set[str]:
    """Return the names of the choices that a format has."""
    return {field.name for field in dataclasses.fields(format.options)}
