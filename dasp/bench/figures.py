"""Pictures of result rows: the speed-up over each baseline, and time against the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dasp.bench.table import Row, number, summarize, timed

COLOURS = {"no": "#1f6f8b", "yes": "#e0a030"}
LABELS = {"no": "beyond the cache", "yes": "in the cache"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw two panels: speed-up over the best baseline a matrix, and time over roofline against size.

    Parameters
    ----------
    rows : sequence of dict
        Result rows; those that were not timed are left out.
    path : pathlib.Path
        Where the picture goes; the suffix says which format.

    Raises
    ------
    RuntimeError
        If matplotlib is not installed.
    ValueError
        If no row was timed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError("matplotlib is not installed; pip install 'dasp-spmv[bench]' is needed") from error
    drawn = sorted(timed(rows), key=lambda row: number(row, "speedup_best"))
    if not drawn:
        raise ValueError("no row was timed; at least one is needed for a figure")
    figure = Figure(figsize=(11, 2.6 + 0.2 * len(drawn)), layout="constrained")
    left, right = figure.subplots(1, 2)
    _speedups(left, drawn)
    _rooflines(right, drawn)
    first = drawn[0]
    figure.suptitle(
        f"{first.get('machine', '')}, {first.get('dtype', '')}, commit {first.get('commit', '')}", fontsize=9
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _speedups(axes: Any, rows: Sequence[Row]) -> None:
    """A bar a matrix: speed-up over its best baseline, on a logarithmic axis that starts at 1."""
    values = [number(row, "speedup_best") for row in rows]
    colours = [COLOURS[row.get("in_cache", "yes")] for row in rows]
    axes.barh(range(len(rows)), [v - 1 for v in values], left=1, color=colours)
    axes.set_yticks(range(len(rows)), [row["matrix"] for row in rows], fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("speed-up over the best baseline")
    axes.set_title(f"geometric mean {summarize(rows).best:.2f}", fontsize=9)
    axes.margins(y=0.01)
    _plain_ticks(axes.xaxis)


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each decade, without exponents."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _rooflines(axes: Any, rows: Sequence[Row]) -> None:
    """A point a matrix: time over roofline against the bytes a CSR product moves; best baselines hollow."""
    for group, label in LABELS.items():
        part = [row for row in rows if row.get("in_cache") == group]
        if not part:
            continue
        size = [number(row, "moved_bytes") / 1e6 for row in part]
        ours = [number(row, "time_over_roofline") for row in part]
        best = [number(row, "best_baseline_us") / number(row, "roofline_us") for row in part]
        axes.scatter(size, ours, color=COLOURS[group], s=22, label=f"dasp, {label}")
        axes.scatter(
            size, best, facecolors="none", edgecolors=COLOURS[group], s=22, label=f"best baseline, {label}"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes.yaxis)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("megabytes a CSR product moves")
    axes.set_ylabel("time over CSR roofline")
    axes.legend(fontsize=7)
