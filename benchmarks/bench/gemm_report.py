"""What the rows of a dense ladder say: GFLOP/s, and shares of the vendor's library and of the peak."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bench import results
from benchmarks.bench.report import Report, where
from benchmarks.bench.rows import Row, number, percent
from dasp.cli.report import Table, geometric_mean

VENDOR = "vendor"
"""The kernel of cuBLAS or of NumPy's BLAS, which all others are compared with."""

Cells = dict[tuple[str, int], Row]


def ladders(rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Return the rows of each machine and dtype, with the machine in words."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((where(row), row["dtype"]), []).append(row)
    return [(machine, dtype, part) for (machine, dtype), part in found.items()]


def cells(rows: Sequence[Row]) -> tuple[list[str], list[int], Cells]:
    """Return the kernels and sizes of some rows, and the row of each pair."""
    names = list(dict.fromkeys(row["kernel"] for row in rows))
    sizes = sorted({int(row["size"]) for row in rows})
    return names, sizes, {(row["kernel"], int(row["size"])): row for row in rows}


def mean_of_vendor(name: str, sizes: Sequence[int], found: Cells) -> float:
    """Return a kernel's geometric mean, over the sizes, of its ratio to the vendor's library."""
    return geometric_mean(number(found[name, size], "of_vendor") for size in sizes if (name, size) in found)


def report(rows: Sequence[Row]) -> Report:
    """Return the share that `kernel="auto"`, or the last rung, reaches at the largest size; then all."""
    headings = ("machine", "dtype", "size", "GFLOP/s", "% of vendor", "% of peak", "% over all sizes")
    lines, details = [], []
    for machine, dtype, part in ladders(rows):
        names, sizes, found = cells(part)
        best = "auto" if "auto" in names else names[-1]
        size = max(size for name, size in found if name == best)
        row = found[best, size]
        shares = (number(row, "of_vendor"), number(row, "of_peak"), mean_of_vendor(best, sizes, found))
        speed = f"{number(row, 'gflops'):,.0f}"
        lines.append((machine, dtype, str(size), speed, *(percent(share, 1) for share in shares)))
        commits = ", ".join(sorted({row.get("commit", "") for row in part}))
        title = f"GFLOP/s (% of the vendor): {dtype} on {machine}, commit {commits}"
        details.append(ladder_table(part, title))
    notes = ["The vendor's library is cuBLAS on a GPU and NumPy's BLAS, with as many threads, on a CPU."]
    return Report([Table("", headings, lines, frozenset({"dtype"}))], notes, details)


def ladder_table(rows: Sequence[Row], title: str) -> Table:
    """Return GFLOP/s and % of the vendor's library for each kernel and size."""
    names, sizes, found = cells(rows)
    lines = []
    for name in names:
        texts = [_cell(found.get((name, size))) for size in sizes]
        lines.append((name, *texts, percent(mean_of_vendor(name, sizes, found), 1)))
    return Table(title, ("kernel", *map(str, sizes), "mean %"), lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if not results.right(row):
        return "WRONG"
    return f"{number(row, 'gflops'):,.0f} ({percent(number(row, 'of_vendor'))})"
