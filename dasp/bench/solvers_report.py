"""What the rows of linear systems say: times, true residuals, and speed-ups with and without planning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dasp.bench import results
from dasp.bench.report import Report
from dasp.bench.table import Row, Table, geometric_mean, number, significant, whole

OURS = "dasp"
LIBRARY = "library"
ON_DASP = "library_on_dasp"
"""The kernels of the rows: our solver; SciPy's or CuPy's on its own matrix; the same on our operator."""


def words(row: Row) -> str:
    """The solver of a row in words."""
    library = "SciPy" if row.get("device") == "cpu" else "CuPy"
    return {OURS: "dasp", LIBRARY: library, ON_DASP: f"{library}, dasp's A @ x"}[row["kernel"]]


def of_library(rows: Sequence[Row], row: Row, *, with_plan: bool = False) -> float:
    """How many times as fast as the library's a row's solve of the same system is; NaN where one is wrong."""
    shared = ("matrix", "device", "machine", "threads")
    for other in rows:
        if other["kernel"] == LIBRARY and all(other.get(name) == row.get(name) for name in shared):
            plan = number(row, "plan_ms") if with_plan else 0.0
            spent = number(row, "solve_ms") + (0.0 if math.isnan(plan) else plan)
            return number(other, "solve_ms") / spent
    return math.nan


def systems(rows: Sequence[Row]) -> list[str]:
    """The systems that some rows are about."""
    return list(dict.fromkeys(row["matrix"] for row in rows))


def report(rows: Sequence[Row]) -> Report:
    """A line for each solver of each system, and the means."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"].removeprefix("cg:")),
        ("solver", words),
        ("iterations", lambda row: whole(number(row, "iterations"))),
        ("ms", lambda row: significant(number(row, "solve_ms")) if results.right(row) else "WRONG"),
        ("residual", lambda row: f"{number(row, 'residual'):.1e}"),
        ("x library", lambda row: significant(of_library(rows, row))),
        ("plan ms", lambda row: significant(number(row, "plan_ms"))),
        ("x with plan", lambda row: significant(of_library(rows, row, with_plan=True))),
    ]
    ours = [row for row in rows if row["kernel"] == OURS]
    alone, planned = (
        geometric_mean(of_library(rows, row, with_plan=with_plan) for row in ours)
        for with_plan in (False, True)
    )
    notes = [
        f"dasp against the library, geometric means: {significant(alone)} x with the plan at hand, "
        f"{significant(planned)} x with planning counted in full for one solve.",
        "The residual is the true one, over the norm of b, by SciPy's product with the original matrix.",
    ]
    return Report([Table.of("conjugate gradients", columns, rows, words=["solver"])], notes)
