"""The choices in planning that a user may make."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dasp import formats
from dasp.formats import Format
from dasp.formats.format import check_switch


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The way to pack a matrix. All other choices follow from the matrix and the machine.

    Parameters
    ----------
    format : {"auto", "sell", "dasp"}
        `sell` is SELL-C-sigma, with the order of the rows, the lengths of the slices and the compression
        fitted to each matrix; `dasp` is the format of Lu and Liu, SC '23, with its thresholds. `auto` is
        `sell`, the faster one, unless the matrix has 2^32 or more rows or columns, which `sell` cannot hold.
    narrow : bool, optional
        True stores values in fewer bits where that changes none of them. `dasp` never does.
    mma : bool, optional
        True multiplies 8 x 4 tiles with tensor cores on a GPU that has them for the matrix's type; False
        uses FMA. `sell` has tiles only for products by several columns, where they are faster.

    Raises
    ------
    TypeError, ValueError
        For an unknown format; for `narrow` or `mma` that are neither True nor False.

    Examples
    --------
    >>> import dasp
    >>> dasp.Policy.dasp(mma=False)
    Policy(format='dasp', narrow=True, mma=False)
    """

    format: str = "auto"
    narrow: bool = True
    mma: bool = True

    def __post_init__(self) -> None:
        """Check every choice."""
        if not isinstance(self.format, str) or self.format not in ("auto", *formats.list_names()):
            known = " or ".join(map(repr, ("auto", *formats.list_names())))
            raise ValueError(f"format is {self.format!r}; {known} is needed")
        check_switch("narrow", self.narrow)
        check_switch("mma", self.mma)

    @classmethod
    def dasp(cls, *, mma: bool = True) -> Policy:
        """Return the policy for the format of Lu and Liu, SC '23; the class says what `mma` does."""
        return cls(format="dasp", mma=mma)

    def format_for(self, shape: tuple[int, int]) -> Format:
        """Return the format that packs a matrix of a shape.

        Raises
        ------
        ValueError
            If the format cannot hold it.
        """
        if self.format == "auto":
            return formats.find_first(shape)
        asked = formats.find(self.format)
        if not asked.can_hold(shape):
            raise ValueError(
                f"A has shape {shape}; format {self.format!r} cannot hold it; pass format='auto'"
            )
        return asked

    def options(self, format: Format) -> Any:
        """Return the options that a format packs with: its defaults, except for this policy's."""
        names = {field.name for field in dataclasses.fields(format.options)}
        return format.options(**{name: getattr(self, name) for name in ("narrow", "mma") if name in names})
