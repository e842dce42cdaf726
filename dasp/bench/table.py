"""Result rows as text, as Markdown, and as the few figures that sum them up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Row = dict[str, str]


def number(row: Row, name: str) -> float:
    """A figure of a row; NaN where the row has none."""
    text = row.get(name, "")
    return float(text) if text else math.nan


def timed(rows: Sequence[Row]) -> list[Row]:
    """The rows whose product was right, and was timed."""
    return [row for row in rows if row.get("verified") == "yes" and number(row, "time_us") > 0]


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of the numbers among `values`; NaN where there are none.

    Examples
    --------
    >>> geometric_mean([1.0, 4.0, float("nan")])
    2.0
    """
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent; a dash for NaN.

    Examples
    --------
    >>> significant(0.012345), significant(1234.5), significant(float("nan"))
    ('0.0123', '1234', '-')
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{places}f}"


def grouped(value: float) -> str:
    """A whole number with commas; a dash for NaN."""
    return "-" if math.isnan(value) else f"{int(value):,}"


def _of(name: str, digits: int = 3) -> Callable[[Row], str]:
    return lambda row: significant(number(row, name), digits)


def _spread(row: Row) -> str:
    value = number(row, "dasp_spread")
    return "-" if math.isnan(value) else f"{100 * value:.0f}%"


def _check(row: Row) -> str:
    if row.get("verified") == "yes":
        return "ok"
    return f"WRONG ({row.get('rows_failed', '?')} rows)"


def _everyday_title(rows: Sequence[Row]) -> str:
    names = {"scipy": "x SciPy", "cupy": "x CuPy*"}
    return names.get(rows[0].get("everyday", ""), "x everyday") if rows else "x SciPy"


def _columns(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], str]]]:
    """Titles and cells of the table, left to right."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("matrix", lambda row: row["matrix"]),
        ("rows", lambda row: grouped(number(row, "rows"))),
        ("entries", lambda row: grouped(number(row, "entries"))),
        ("dasp us", _of("time_us")),
        ("spread", _spread),
        ("GFLOP/s", _of("gflops")),
        ("GB/s", _of("gbytes_per_s")),
        ("/roofline", _of("time_over_roofline")),
        ("best baseline", lambda row: row.get("best_baseline", "") or "-"),
        ("us", _of("best_baseline_us")),
        ("x best", _of("speedup_best")),
        (_everyday_title(rows), _of("speedup_everyday")),
        ("plan ms", _of("plan_ms")),
        ("products", _of("plan_products", 2)),
        ("bytes/CSR", _of("bytes_ratio")),
        ("rows checked", _check),
    ]
    if any(row.get("device") == "cuda" for row in rows):
        columns.insert(4, ("cold us", _of("dasp_cold_us")))
    return columns


def text_table(rows: Sequence[Row]) -> str:
    """A table for a terminal, one line a matrix."""
    columns = _columns(rows)
    lines = [[title for title, _ in columns], *[[cell(row) for _, cell in columns] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    words = {
        i for i, (title, _) in enumerate(columns) if title in ("matrix", "best baseline", "rows checked")
    }
    return "\n".join(
        "  ".join(
            cell.ljust(widths[i]) if i in words else cell.rjust(widths[i]) for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """The same table in Markdown."""
    columns = _columns(rows)
    lines = [
        "| " + " | ".join(title for title, _ in columns) + " |",
        "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(columns))) + "|",
    ]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    return "\n".join(lines)


@dataclass(frozen=True)
class Summary:
    """Geometric means over some matrices.

    Attributes
    ----------
    matrices : int
        How many rows were verified and timed.
    best, everyday : float
        Speed-up over the best baseline of each matrix, and over SciPy (CuPy on a GPU).
    roofline : float
        Time over roofline.
    products : float
        Planning, in products.
    bytes_ratio : float
        Bytes of the plan over bytes of the CSR matrix.
    losses : tuple of (str, float, str)
        Matrices that the best baseline multiplies faster: name, speed-up (below 1), that baseline.
    """

    matrices: int
    best: float
    everyday: float
    roofline: float
    products: float
    bytes_ratio: float
    losses: tuple[tuple[str, float, str], ...]


def summarize(rows: Sequence[Row]) -> Summary:
    """Sum up the rows that were verified and timed."""
    counted = timed(rows)
    losses = [
        (row["matrix"], number(row, "speedup_best"), row.get("best_baseline", ""))
        for row in counted
        if number(row, "speedup_best") < 1
    ]
    return Summary(
        matrices=len(counted),
        best=geometric_mean(number(row, "speedup_best") for row in counted),
        everyday=geometric_mean(number(row, "speedup_everyday") for row in counted),
        roofline=geometric_mean(number(row, "time_over_roofline") for row in counted),
        products=geometric_mean(number(row, "plan_products") for row in counted),
        bytes_ratio=geometric_mean(number(row, "bytes_ratio") for row in counted),
        losses=tuple(sorted(losses, key=lambda loss: loss[1])),
    )


def groups(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows beyond the cache and those inside it, under their headings; empty groups are left out."""
    beyond = [row for row in rows if row.get("in_cache") == "no"]
    inside = [row for row in rows if row.get("in_cache") != "no"]
    return [(title, part) for title, part in (("beyond the cache", beyond), ("in the cache", inside)) if part]


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """The summary in words: a line a group, then all, then losses and failures by name."""
    everyday = _everyday_title(rows).removeprefix("x ")
    parts = groups(rows)
    if len(parts) > 1:
        parts.append(("all", list(rows)))
    lines = []
    for title, part in parts:
        s = summarize(part)
        lines.append(
            f"{title}: {s.matrices} matrices, geometric mean {significant(s.best)} x the best baseline, "
            f"{significant(s.everyday)} x {everyday}, time {significant(s.roofline)} x roofline, "
            f"plan {significant(s.products, 2)} products and {significant(s.bytes_ratio)} x the bytes of CSR"
        )
    losses = summarize(rows).losses
    if losses:
        named = ", ".join(f"{name} ({significant(ratio)}, {by})" for name, ratio, by in losses)
        lines.append(f"slower than the best baseline: {named}")
    failed = [row["matrix"] for row in rows if row.get("verified") != "yes"]
    if failed:
        lines.append(f"WRONG: {', '.join(failed)}")
    return lines


def report(rows: Sequence[Row]) -> str:
    """The tables of both groups and the summary, for a terminal."""
    parts = [f"{title}\n{text_table(part)}" for title, part in groups(rows)]
    notes = missing_lines(rows)
    if any(row.get("everyday") == "cupy" for row in rows):
        notes.append("* with the overhead of CuPy's calls; everything else is a CUDA graph of 20 products")
    return "\n\n".join([*parts, "\n".join([*summary_lines(rows), *notes])])


def missing_lines(rows: Sequence[Row]) -> list[str]:
    """Baselines that did not run, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        # A reason may hold "; " itself; only what a baseline's name follows divides two of them.
        for reason in filter(None, re.split(r"; (?=\w+: )", row.get("missing", ""))):
            reasons.setdefault(reason, []).append(row["matrix"])
    return [
        f"not run: {reason}" + ("" if len(names) == len(rows) else f" [{', '.join(names)}]")
        for reason, names in reasons.items()
    ]
