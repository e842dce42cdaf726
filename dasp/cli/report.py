"""The parts of reports: tables in text and Markdown, numbers in words, and the look of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- tables ----------------------------------------------------------------------------------------------

WIDTH = 100
"""Columns of a terminal that a table may take."""

LONGEST_CELL = 34
SEPARATOR = "  "


@dataclass(frozen=True)
class Table:
    """Lines under headings; the first column names the line.

    Attributes
    ----------
    title : str
    headings : tuple of str
    lines : list of tuple of str
        Tuples of one cell for each heading.
    words : frozenset of str
        Headings of the columns that are aligned to the left, as the first column always is.
    """

    title: str
    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    words: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(
        cls,
        title: str,
        columns: Sequence[tuple[str, Callable[[Any], str]]],
        rows: Iterable[Any],
        words: Iterable[str] = (),
    ) -> Table:
        """Make a table of rows; `columns` pairs each heading with a function from a row to its cell."""
        lines = [tuple(cell(row) for _, cell in columns) for row in rows]
        return cls(title, tuple(heading for heading, _ in columns), lines, frozenset(words))

    def text(self, width: int = WIDTH) -> str:
        """Return the table for a terminal; columns that do not fit follow below, the first one repeated."""
        cells = [self.headings, *(tuple(map(_shorten, line)) for line in self.lines)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.headings))]
        blocks, used = [[0]], widths[0]
        for i in range(1, len(widths)):
            used += len(SEPARATOR) + widths[i]
            if used > width and len(blocks[-1]) > 1:
                blocks.append([0])
                used = widths[0] + len(SEPARATOR) + widths[i]
            blocks[-1].append(i)
        left = {i for i, heading in enumerate(self.headings) if i == 0 or heading in self.words}

        def aligned(line: Sequence[str], i: int) -> str:
            return line[i].ljust(widths[i]) if i in left else line[i].rjust(widths[i])

        parts = [
            "\n".join(SEPARATOR.join(aligned(line, i) for i in block).rstrip() for line in cells)
            for block in blocks
        ]
        return "\n".join([*([self.title] if self.title else []), "\n\n".join(parts)])

    def markdown(self) -> str:
        """Return the table in Markdown, without its title."""
        left = {i for i, heading in enumerate(self.headings) if i == 0 or heading in self.words}
        rule = "|".join(" --- " if i in left else " ---: " for i in range(len(self.headings)))
        lines = ["| " + " | ".join(line) + " |" for line in (self.headings, *self.lines)]
        return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _shorten(cell: str) -> str:
    """Return a cell; leave out the middle of one that is longer than LONGEST_CELL."""
    half = (LONGEST_CELL - 3) // 2
    return cell if len(cell) <= LONGEST_CELL else f"{cell[:half]}...{cell[-half:]}"


# ---- numbers ---------------------------------------------------------------------------------------------


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of the positive numbers among `values`; NaN if there are none.

    Examples
    --------
    >>> geometric_mean([1.0, 4.0, float("nan")])
    2.0
    """
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def significant(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and no exponent, with commas; a dash for NaN.

    Examples
    --------
    >>> significant(0.012345), significant(1234.5), significant(float("nan"))
    ('0.0123', '1,234', '-')
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}"


def products(value: float) -> str:
    """Return in words after how many products something pays.

    Examples
    --------
    >>> products(0.0), products(61.2), products(float("inf")), products(float("nan"))
    ('at once', '62', 'never', '-')
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    return f"{math.ceil(value):,}" if value > 0 else "at once"


# ---- pictures --------------------------------------------------------------------------------------------

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"
COLOURS = (ORANGE, SKY, GREEN, PINK, BLUE, RED)
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 200,
}
"""For `matplotlib.rc_context`."""


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of width x height inches, and its panels row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix; replace an existing file as a whole."""
    from dasp.io.files import replacing

    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])
