"""A row of a result file, and the figures of many rows."""

from __future__ import annotations

import math
from collections.abc import Iterable

Row = dict[str, str]
"""Every value as text, by the name of its column."""


def number(row: Row, name: str) -> float:
    """Return a figure of a row; NaN where the row has none."""
    text = row.get(name, "")
    return float(text) if text else math.nan


def median(values: Iterable[float]) -> float:
    """Return the median of the numbers among `values`, infinities counted; NaN where there are none.

    Of an even number of values it is the upper of the two in the middle, so that it is never infinity less
    infinity.

    Examples
    --------
    >>> median([3.0, float("inf"), 1.0, float("nan")])
    3.0
    """
    known = sorted(value for value in values if not math.isnan(value))
    return known[len(known) // 2] if known else math.nan


def whole(value: float) -> str:
    """Return a whole number with commas; a dash for NaN."""
    return "-" if math.isnan(value) else f"{int(value):,}"


def percent(share: float, places: int = 0) -> str:
    """Return a share in percent, without the sign; a dash for NaN.

    Examples
    --------
    >>> percent(0.126), percent(0.126, 1), percent(float("nan"))
    ('13', '12.6', '-')
    """
    return "-" if math.isnan(share) else f"{100 * share:.{places}f}"
