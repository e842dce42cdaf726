"""The tables of linear systems in the documents, from the CSV files of `solvers`, each as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import results, solvers_report
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row, number
from benchmarks.bench.solvers_report import OURS
from dasp.cli.report import Table, geometric_mean, significant

RESULTS = Path(__file__).resolve().parents[1] / "results"
SYSTEMS = ("solvers_cpu", "solvers_h200")
"""The files of all machines, in the order in which tables show them."""


class Solved(NamedTuple):
    """One system solved by cg, by a library and by dasp, from SciPy's matrix to x on the host."""

    on: str
    system: str
    unknowns: int
    library: str
    its_ms: float
    dasp_ms: float


def machine_of(row: Row) -> str:
    """Return the machine of a row in the fewest words."""
    return "2 CPU cores" if row["device"] == "cpu" else row["machine"].removeprefix("NVIDIA ")


def solved_systems() -> list[Solved]:
    """Return the systems that cg solved on each machine, for which a library has a time too."""
    found = []
    for name in SYSTEMS:
        rows = results.latest(results.read(RESULTS / f"{name}.csv"))
        mine = [row for row in rows if row["kernel"] == "dasp cg"]
        for row in sorted(mine, key=lambda row: int(row["rows"])):
            other = solvers_report.rival(rows, row)
            if other is not None:
                library, times = solvers_report.library_of(other), map(_all_ms, (other, row))
                found.append(Solved(machine_of(row), row["matrix"], int(row["rows"]), library, *times))
    return found


def _all_ms(row: Row) -> float:
    return number(row, "total_ms")


def solves_text() -> str:
    """Return the front page's table of systems solved by cg."""
    columns = [
        ("on", lambda one: one.on),
        ("system", lambda one: one.system),
        ("unknowns", lambda one: f"{one.unknowns:,}"),
        ("library", lambda one: one.library),
        ("its ms", lambda one: significant(one.its_ms)),
        ("dasp ms", lambda one: significant(one.dasp_ms)),
        ("faster", lambda one: f"{significant(one.its_ms / one.dasp_ms, 2)} x"),
    ]
    table = Table.of("", columns, solved_systems(), words=("system", "library"))
    files = ", ".join(f"`{name}.csv`" for name in SYSTEMS)
    note = (
        "Conjugate gradients without a preconditioner, to a residual of 1e-8. From the SciPy matrix to x on "
        f"the host: upload and plan count, compilation does not. Rows: {files}."
    )
    return f"{table.markdown()}\n\n{note}"


RIGHT_HAND_SIDES = (1, 10, 100)


def whole_text() -> str:
    """Return the seconds for several right-hand sides, set-up counted, where multigrid was measured."""
    lines: list[tuple[str, ...]] = []
    for name in SYSTEMS:
        rows = [row for row in results.latest(results.read(RESULTS / f"{name}.csv")) if results.right(row)]
        counted = {row["matrix"] for row in rows if row["kernel"] == "dasp cg" and row.get("total_ms")}
        counted &= {row["matrix"] for row in rows if row["kernel"].startswith("dasp cg multigrid")}
        for system in sorted(
            counted, key=lambda one: min(int(r["rows"]) for r in rows if r["matrix"] == one)
        ):
            best: dict[str, list[float]] = {}
            for row in (row for row in rows if row["matrix"] == system):
                solver = f"{solvers_report.library_of(row)} {solvers_report.method_of(row)}"
                times = [_whole_seconds(rows, row, count) for count in RIGHT_HAND_SIDES]
                if solver.partition(" ")[2] in ("cg", "cg multigrid") and not math.isnan(times[0]):
                    best[solver] = min(best.get(solver, times), times, key=lambda each: each[-1])
            on = machine_of(next(row for row in rows if row["matrix"] == system))
            for solver in sorted(best, key=lambda one: ("multigrid" in one, one.startswith("dasp"))):
                lines.append((on, system, solver, *map(significant, best[solver])))
    headings = ("on", "system", "solver", *(f"{count} b" for count in RIGHT_HAND_SIDES))
    table = Table("", headings, lines, frozenset({"system", "solver"}))
    files = ", ".join(f"`{name}.csv`" for name in SYSTEMS)
    return f"{table.markdown()}\n\nSeconds. Rows: {files}."


def _whole_seconds(rows: Sequence[Row], row: Row, count: int) -> float:
    """Return the seconds of so many solves with their set-up; NaN if a part of it was not measured."""
    solves = count * number(row, "solve_ms")
    if "multigrid" not in row["kernel"]:
        return (number(row, "total_ms") - number(row, "solve_ms") + solves) / 1e3
    setup = number(row, "hierarchy_ms")
    if solvers_report.library_of(row) == "dasp":
        setup += number(row, "setup_ms") + number(row, "plan_ms")
    return (setup + solves) / 1e3


def solvers_text(rows: Sequence[Row]) -> str:
    """Return the tables of linear systems."""
    found = solvers_report.report(rows)
    missed = [f"{row['kernel']} ({row['matrix']})" for row in rows if not results.right(row)]
    named = [f"Missed: {', '.join(missed)}."] if missed else []
    return Report(found.summary, [*found.notes, *named]).markdown()


Columns = list[tuple[str, Callable[[Row], str]]]


def _beside(rows: Sequence[Row], figures: dict[str, str]) -> Columns:
    """Return columns of some figures by their headings, ours and CuPy's."""

    def ours(column: str) -> Callable[[Row], str]:
        return lambda row: significant(number(row, column))

    def theirs(column: str) -> Callable[[Row], str]:
        return lambda row: significant(number(solvers_report.rival(rows, row) or {}, column))

    pairs = [
        ((heading, ours(name)), (f"CuPy's {heading}", theirs(name))) for heading, name in figures.items()
    ]
    return [column for pair in pairs for column in pair]


def cg_text(rows: Sequence[Row]) -> str:
    """Conjugate gradients without a preconditioner, ours and CuPy's, and the means of the other methods."""
    mine = [row for row in rows if row["kernel"] == "dasp cg"]
    columns: Columns = [
        ("system", lambda row: row["matrix"]),
        ("rows", lambda row: f"{int(row['rows']):,}"),
        ("iterations", lambda row: f"{int(row['iterations']):,}"),
    ]
    columns += _beside(rows, {"us each": "us_per_iteration", "solve ms": "solve_ms", "all ms": "total_ms"})
    table = Table.of("", columns, sorted(mine, key=lambda row: int(row["rows"]))).markdown()
    means = [
        f"`{method}` {significant(mean, 2)}"
        for method in ("cg", "minres", "bicgstab", "gmres")
        if not math.isnan(mean := _mean_of(rows, method))
    ]
    return f"{table}\n\nCuPy's time of an iteration over ours, geometric means: {', '.join(means)}."


def _mean_of(rows: Sequence[Row], method: str) -> float:
    mine = [row for row in rows if row["kernel"] == f"dasp {method}"]
    return geometric_mean(solvers_report.ratio(rows, row, "us_per_iteration") for row in mine)


def multigrid_text(rows: Sequence[Row]) -> str:
    """Return the systems that were solved with multigrid, and each without."""
    systems = {row["matrix"] for row in rows if "multigrid" in row["kernel"]}
    wanted = [row for row in rows if "multigrid" in row["kernel"] or row["kernel"] == "dasp cg"]
    columns: Columns = [
        ("system", lambda row: row["matrix"]),
        ("rows", lambda row: f"{int(row['rows']):,}"),
        ("solver", lambda row: row["kernel"]),
        ("iterations", lambda row: row["iterations"]),
        ("ms a solve", lambda row: significant(number(row, "solve_ms"))),
    ]
    chosen = [row for row in wanted if row["matrix"] in systems]
    lines = sorted(chosen, key=lambda row: (int(row["rows"]), -number(row, "solve_ms")))
    return Table.of("", columns, lines, words=["solver"]).markdown()


def helmholtz_text(rows: Sequence[Row]) -> str:
    """Complex systems, ours and the library's."""
    mine = [row for row in solvers_report.ours(rows) if results.right(row)]
    columns: Columns = [("system", lambda row: row["matrix"]), ("method", solvers_report.method_of)]
    columns += _beside(
        rows, {"iterations": "iterations", "us each": "us_per_iteration", "solve ms": "solve_ms"}
    )
    return Table.of("", columns, mine, words=["method"]).markdown()


def factor_text(rows: Sequence[Row]) -> str:
    """Return the seconds of a factorisation and of our iterations, set-up counted, a line a system."""

    def seconds(system: str, library: str, count: int) -> tuple[float, str]:
        """Return the least seconds for so many right-hand sides, and the solver that takes them."""
        return min(
            ((number(row, "setup_ms") + count * number(row, "solve_ms")) / 1e3, row["kernel"])
            for row in rows
            if row["matrix"] == system and solvers_report.library_of(row) == library and results.right(row)
        )

    unknowns = {row["matrix"]: int(row["rows"]) for row in rows}
    lines = []
    for system in sorted(unknowns, key=lambda name: (name.partition(":")[0], unknowns[name])):
        line = [system, f"{unknowns[system]:,}"]
        for count in (1, 100):
            theirs, ours = (seconds(system, library, count) for library in ("SciPy", OURS))
            line += [significant(theirs[0]), significant(ours[0]), ours[1].removeprefix("dasp ")]
        lines.append(tuple(line))
    headings = [
        *("system", "unknowns"),
        *(f"{what}, {count} b" for count in (1, 100) for what in ("splu", "dasp", "by")),
    ]
    words = frozenset(("system", *(name for name in headings if name.startswith("by"))))
    return Table("", headings, lines, words).markdown()
