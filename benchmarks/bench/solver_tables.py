"""The tables of linear systems in the documents, from the CSV files of `solvers`, each as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench import results, solvers_report
from benchmarks.bench.report import provenance
from benchmarks.bench.rows import Row, number
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


def solves_text(_: str) -> str:
    """Return the front page's table of systems solved by cg."""
    told = [
        ("on", lambda one: one.on),
        ("system", lambda one: one.system),
        ("unknowns", lambda one: f"{one.unknowns:,}"),
        ("library", lambda one: one.library),
        ("its ms", lambda one: significant(one.its_ms)),
        ("dasp ms", lambda one: significant(one.dasp_ms)),
        ("faster", lambda one: f"{significant(one.its_ms / one.dasp_ms, 2)} x"),
    ]
    table = Table.of("", told, solved_systems(), words=("system", "library"))
    files = ", ".join(f"`{name}.csv`" for name in SYSTEMS)
    note = (
        "Conjugate gradients without a preconditioner, to a residual of 1e-8. From the SciPy matrix to x on "
        f"the host: upload and plan count, compilation does not. Rows: {files}."
    )
    return f"{table.markdown()}\n\n{note}"


RIGHT_HAND_SIDES = (1, 10, 100)


def whole_text(_: str) -> str:
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


def solvers_text(name: str) -> str:
    """Return the tables of linear systems."""
    rows = results.latest(results.read(RESULTS / f"{name}.csv"))
    found = solvers_report.report(rows)
    said = provenance(rows, RESULTS / f"{name}.csv")
    missed = [f"{row['kernel']} ({row['matrix']})" for row in rows if not results.right(row)]
    named = [f"Missed: {', '.join(missed)}."] if missed else []
    return solvers_report.Report(found.summary, [*found.notes, *named, said]).markdown()


def cg_text(name: str) -> str:
    """Conjugate gradients without a preconditioner, ours and CuPy's, and the means of the other methods."""
    path = RESULTS / f"{name.replace('cg', 'solvers')}.csv"
    rows = results.latest(results.read(path))
    mine = [row for row in rows if row["kernel"] == "dasp cg"]
    told: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"]),
        ("rows", lambda row: f"{int(row['rows']):,}"),
        ("iterations", lambda row: f"{int(row['iterations']):,}"),
    ]
    figures_of = {
        "us each": "us_per_iteration",
        "solve ms": "solve_ms",
        "all ms": "total_ms",
    }
    for heading, column in figures_of.items():
        told.append((heading, lambda row, column=column: significant(number(row, column))))  # type: ignore[misc]
        told.append((f"CuPy's {heading}", lambda row, column=column: _of_rival(rows, row, column)))  # type: ignore[misc]
    table = Table.of("", told, sorted(mine, key=lambda row: int(row["rows"]))).markdown()
    means = [
        f"`{method}` {significant(mean, 2)}"
        for method in ("cg", "minres", "bicgstab", "gmres")
        if not math.isnan(mean := _mean_of(rows, method))
    ]
    note = f"CuPy's time of an iteration over ours, geometric means: {', '.join(means)}."
    return f"{table}\n\n{note} {provenance(rows, path)}"


def _of_rival(rows: Sequence[Row], row: Row, column: str) -> str:
    other = solvers_report.rival(rows, row)
    return "" if other is None else significant(number(other, column))


def _mean_of(rows: Sequence[Row], method: str) -> float:
    mine = [row for row in rows if row["kernel"] == f"dasp {method}"]
    return geometric_mean(solvers_report.ratio(rows, row, "us_per_iteration") for row in mine)


def multigrid_text(name: str) -> str:
    """Return the systems that were solved with multigrid, and each without."""
    path = RESULTS / f"{name.replace('multigrid', 'solvers')}.csv"
    rows = results.latest(results.read(path))
    systems = {row["matrix"] for row in rows if "multigrid" in row["kernel"]}
    wanted = [row for row in rows if "multigrid" in row["kernel"] or row["kernel"] == "dasp cg"]
    told = [
        ("system", lambda row: row["matrix"]),
        ("rows", lambda row: f"{int(row['rows']):,}"),
        ("solver", lambda row: row["kernel"]),
        ("iterations", lambda row: row["iterations"]),
        ("ms a solve", lambda row: significant(number(row, "solve_ms"))),
    ]
    chosen = [row for row in wanted if row["matrix"] in systems]
    lines = sorted(chosen, key=lambda row: (int(row["rows"]), -number(row, "solve_ms")))
    return f"{Table.of('', told, lines, words=['solver']).markdown()}\n\n{provenance(rows, path)}"


def helmholtz_text(name: str) -> str:
    """Complex systems, ours and the library's."""
    path = RESULTS / f"{name}.csv"
    rows = results.latest(results.read(path))
    mine = [row for row in solvers_report.ours(rows) if results.right(row)]
    told: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"]),
        ("method", solvers_report.method_of),
    ]
    for heading, column in {
        "iterations": "iterations",
        "us each": "us_per_iteration",
        "solve ms": "solve_ms",
    }.items():
        told.append((heading, lambda row, column=column: significant(number(row, column))))  # type: ignore[misc]
        told.append((f"CuPy's {heading}", lambda row, column=column: _of_rival(rows, row, column)))  # type: ignore[misc]
    return f"{Table.of('', told, mine, words=['method']).markdown()}\n\n{provenance(rows, path)}"
