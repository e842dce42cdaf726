"""What the rows of sparse products say: speed-ups like for like, and after how many products a plan pays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from benchmarks.bench import results
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row, median, number, percent, whole
from dasp.cli.measure import BY_A_CALL, break_even
from dasp.cli.report import Table, geometric_mean, products, significant

LIBRARY = {"cpu": ("scipy", "SciPy"), "cuda": ("cupy", "CuPy")}
"""The library whose arrays a device multiplies: the baseline's name, and how it is written."""


def timed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose product was right, and was timed."""
    return [row for row in rows if results.right(row) and number(row, "time_us") > 0]


def us(row: Row, name: str) -> float:
    """Return the microseconds of a timing by its device's statistic; NaN where it was not taken."""
    return number(row, f"{name}_us" if row.get("statistic") == "median" else f"{name}_best_us")


def ours_against(row: Row, name: str) -> float:
    """Return our microseconds to hold against a baseline: called as it is called."""
    return us(row, "dasp_new" if name in BY_A_CALL else "dasp")


def library(row: Row) -> tuple[str, str]:
    """Return the library whose arrays a row's device multiplies."""
    return LIBRARY["cuda" if row.get("device") == "cuda" else "cpu"]


def baselines(row: Row) -> list[str]:
    """Return the baselines that a row has a time of."""
    names = [name.removesuffix("_best_us") for name in row if name.endswith("_best_us")]
    return [name for name in names if not name.startswith("dasp") and not math.isnan(us(row, name))]


def speedup(row: Row, name: str) -> float:
    """Return how many times as fast as a baseline our product is."""
    return us(row, name) / ours_against(row, name)


def pays(row: Row, name: str, *, from_device: bool = False) -> float:
    """After how many products our plan has paid against a baseline.

    Parameters
    ----------
    row : dict of str to str
    name : str
        The baseline.
    from_device : bool
        From a matrix that lies on the GPU; else from one on the host, where a baseline of the GPU needs an
        upload too (which rows of before it was measured do not have; it counts as nothing there).
    """
    setup = _or_zero(number(row, f"{name}_setup_ms"))
    if from_device:
        plan = number(row, "plan_device_ms")
    else:
        plan, setup = number(row, "plan_ms"), setup + _or_zero(number(row, "upload_ms"))
    return break_even(plan, ours_against(row, name), setup, us(row, name))


def pays_against_all(row: Row, names: Sequence[str], *, from_device: bool = False) -> float:
    """After how many products our plan has paid, whichever of some baselines is the best for so many."""
    known = [pays(row, name, from_device=from_device) for name in names]
    known = [value for value in known if not math.isnan(value)]
    return max(known, default=math.nan)


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def groups(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows beyond the cache and inside it, under their headings, without empty groups."""
    beyond = [row for row in rows if row.get("in_cache") == "no"]
    inside = [row for row in rows if row.get("in_cache") != "no"]
    return [(title, part) for title, part in (("beyond the cache", beyond), ("in the cache", inside)) if part]


def report(rows: Sequence[Row]) -> Report:
    """Return the table of both groups, their means, the losses by name, and what did not run."""
    return Report([summary_table(rows)], notes(rows), [table(part, title) for title, part in groups(rows)])


def table(rows: Sequence[Row], title: str) -> Table:
    """Return times, speed-ups and the cost of plans, a line a matrix."""
    on_gpu = any(row.get("device") == "cuda" for row in rows)

    def figure(name: str) -> Callable[[Row], str]:
        return lambda row: significant(number(row, name))

    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("matrix", lambda row: row["matrix"]),
        ("entries", lambda row: whole(number(row, "entries"))),
        ("us", lambda row: figure("time_us")(row) if results.right(row) else "WRONG"),
        *([("cold us", figure("dasp_cold_us"))] if on_gpu else []),
        ("+-%", lambda row: percent(number(row, "dasp_spread"))),
        ("GB/s", figure("gbytes_per_s")),
        ("/roofline", figure("time_over_roofline")),
        ("best baseline", lambda row: row.get("best_baseline", "") or "-"),
        ("its us", figure("best_baseline_us")),
        ("x best", figure("speedup_best")),
        (f"x {library(rows[0])[1]}", lambda row: significant(speedup(row, library(row)[0]))),
        ("plan ms", figure("plan_ms")),
        *([("on the GPU", figure("plan_device_ms"))] if on_gpu else []),
        ("bytes/CSR", figure("bytes_ratio")),
        ("pays after", lambda row: products(pays_against_all(row, baselines(row)))),
    ]
    return Table.of(title, columns, rows, words=["best baseline"])


def planning_text(rows: Sequence[Row]) -> str:
    """Say after how many products plans pay that are made of a CSR matrix on the GPU."""
    said = []
    for title, part in groups([row for row in timed(rows) if number(row, "plan_device_ms") > 0]):
        counts = []
        for row in part:
            names = [name for name in baselines(row) if name.startswith("cusparse")]
            counts.append(max(pays_against_all(row, names, from_device=True), 1.0))
        paid = [count for count in counts if count < math.inf]
        never = "" if len(paid) == len(counts) else f", {len(counts) - len(paid)} never"
        mean = f"{products(geometric_mean(paid))} products {title}"
        said.append(f"{mean} (geometric mean of {len(paid)} matrices{never})")
    return (
        "Planned from a CSR on the GPU: plans pay, against every setting of cuSPARSE with its set-up, after "
        f"{', '.join(said)}."
    )


def summary_table(rows: Sequence[Row]) -> Table:
    """Return the means of both groups and of all, of the rows that were verified and timed."""
    parts = groups(rows)
    if len(parts) > 1:
        parts.append(("all", list(rows)))
    parts = [(title, timed(part)) for title, part in parts]
    Part = tuple[str, list[Row]]

    def mean(name: str) -> Callable[[Part], str]:
        return lambda part: significant(geometric_mean(number(row, name) for row in part[1]))

    def library_mean(part: Part) -> str:
        return significant(geometric_mean(speedup(row, library(row)[0]) for row in part[1]))

    columns: list[tuple[str, Callable[[Part], str]]] = [
        ("matrices", lambda part: part[0]),
        ("count", lambda part: str(len(part[1]))),
        ("x best", mean("speedup_best")),
        (f"x {library(rows[0])[1]}", library_mean),
        ("/roofline", mean("time_over_roofline")),
        ("bytes/CSR", mean("bytes_ratio")),
        ("plan, products", mean("plan_products")),
        ("pays after", lambda part: products(median(pays_against_all(r, baselines(r)) for r in part[1]))),
    ]
    return Table.of("", columns, parts)


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the meaning of the figures, the losses by name, the faults and what did not run."""
    said = [
        "Geometric means, and the median of `pays after`. `x best` compares with the fastest baseline of "
        "each matrix. A baseline that is called from Python and makes a new y (SciPy, CuPy) is compared with "
        "`A @ x`, all others with a product into a given y"
        + (", both in CUDA graphs." if any(row.get("device") == "cuda" for row in rows) else ".")
    ]
    losses = [row for row in timed(rows) if number(row, "speedup_best") < 1]
    named = ", ".join(
        f"{row['matrix']} ({significant(number(row, 'speedup_best'))}, {row['best_baseline']})"
        for row in sorted(losses, key=lambda row: number(row, "speedup_best"))
    )
    said.append(f"Slower than the best baseline: {named or 'none'}.")
    wrong = [
        f"{row['matrix']} ({row.get('rows_failed', '?')} rows)" for row in rows if not results.right(row)
    ]
    if wrong:
        said.append(f"WRONG, and not timed: {', '.join(wrong)}.")
    return said + missing_lines(rows)


def missing_lines(rows: Sequence[Row]) -> list[str]:
    """Return the baselines that did not run, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        # A reason may hold "; " itself; only what a baseline's name follows divides two of them.
        for reason in filter(None, re.split(r"; (?=\w+: )", row.get("missing", ""))):
            reasons.setdefault(reason, []).append(row["matrix"])
    return [
        f"not run: {reason}" + ("" if len(names) == len(rows) else f" [{', '.join(names)}]")
        for reason, names in reasons.items()
    ]
