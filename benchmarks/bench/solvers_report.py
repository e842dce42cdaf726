"""What the rows of linear systems say: times, true residuals, and speed-ups per solve and all counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.bench import results
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row, number, whole
from dasp.cli.report import Table, geometric_mean, significant

OURS, MULTIGRID = "dasp", "multigrid"
LIBRARIES = ("CuPy", "SciPy", "PyAMG")
"""What ours are compared with, in this order; the kernel of a row is a library and a method."""

SHARED = ("matrix", "device", "machine", "threads")


def library_of(row: Row) -> str:
    """Return the library of a row."""
    return row["kernel"].partition(" ")[0]


def method_of(row: Row) -> str:
    """Return the method of a row, such as `cg` or `cg multigrid`, without what kind of cycle."""
    words = row["kernel"].split()
    return " ".join(words[1:3]) if MULTIGRID in words else words[1]


def rival(rows: Sequence[Row], row: Row) -> Row | None:
    """Return the row of a library's method on the same system and machine; None where there is none."""
    for name in LIBRARIES:
        for other in rows:
            same = all(other.get(key) == row.get(key) for key in SHARED)
            if same and library_of(other) == name and method_of(other) == method_of(row):
                return other
    return None


def ratio(rows: Sequence[Row], row: Row, figure: str) -> float:
    """Return how many times as long as a row's the library's figure is; NaN where either is not known."""
    other = rival(rows, row)
    return math.nan if other is None else number(other, figure) / number(row, figure)


def ours(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of our solvers."""
    return [row for row in rows if library_of(row) == OURS]


def report(rows: Sequence[Row]) -> Report:
    """Return a line for each method in the mean, and one for each solver of each system."""
    mine = ours(rows)
    compared = [row for row in mine if rival(rows, row) is not None]

    def mean(method: str, figure: str) -> str:
        found = (ratio(rows, row, figure) for row in mine if method_of(row) == method)
        return significant(geometric_mean(found))

    summary: list[tuple[str, Callable[[str], str]]] = [
        ("method", lambda method: method),
        ("systems", lambda method: str(len({row["matrix"] for row in compared if method_of(row) == method}))),
        ("x an iteration", lambda method: mean(method, "us_per_iteration")),
        ("x a solve", lambda method: mean(method, "solve_ms")),
        ("x all counted", lambda method: mean(method, "total_ms")),
    ]
    methods = list(dict.fromkeys(map(method_of, compared)))
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"]),
        ("solver", lambda row: row["kernel"]),
        ("iterations", lambda row: whole(number(row, "iterations"))),
        ("us each", lambda row: significant(number(row, "us_per_iteration"))),
        ("solve ms", lambda row: significant(number(row, "solve_ms")) if results.right(row) else "missed"),
        ("plan ms", lambda row: significant(number(row, "plan_ms"))),
        ("all ms", lambda row: significant(number(row, "total_ms"))),
        ("set-up ms", lambda row: significant(number(row, "setup_ms"))),
        ("hierarchy ms", lambda row: significant(number(row, "hierarchy_ms"))),
        ("residual", lambda row: f"{number(row, 'residual'):.1e}"),
    ]
    notes = [
        "The time of the library over ours, geometric means: SciPy on a CPU, CuPy on a GPU, and PyAMG's own "
        "cycles for multigrid.",
        "`x a solve` compares later solves with a workspace, the best of several. `x all counted` compares "
        "the time from a SciPy matrix to x on the host, with upload, plan and first capture, but no "
        "compilation. A solve is missed if its true residual, by SciPy's product with the original matrix, "
        "is above the tolerance; it has no time.",
    ]
    tables = [Table.of("", summary, methods)] if methods else []
    return Report(tables, notes, [Table.of("linear systems", columns, rows, words=["solver"])])
