"""Pictures of result rows; the suffix of the file says the format.

Colours are those of Okabe and Ito, which the colour-blind tell apart; every curve has a marker of its own
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.bench import results, solvers_report
from benchmarks.bench.gemm_report import VENDOR, cells
from benchmarks.bench.report import where
from benchmarks.bench.rows import Row, number
from benchmarks.bench.sparse_report import baselines, timed, us
from dasp.cli.report import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    ORANGE,
    RED,
    SKY,
    STYLE,
    geometric_mean,
    new_figure,
    save,
    significant,
)
from dasp.runtime.sizes import ceil_div

MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "h")
NAMES = {"dasp": "dasp", "scipy": "SciPy", "mkl": "MKL", "numba_csr": "numba loop", "cusparse": "cuSPARSE"}
"""How libraries are written in pictures."""


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis without exponents, the more often in a decade the fewer decades there are."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 1 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value < 1e4 else f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


# --- sparse products --------------------------------------------------------------------------------------


@rc_context(STYLE)
def draw_collection(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows of one machine: a performance profile, time against size, and each matrix by name.

    Raises
    ------
    ValueError
        If no row was timed.
    """
    drawn = sorted(timed(rows), key=lambda row: number(row, "speedup_best"))
    if not drawn:
        raise ValueError("no row was timed; at least one is needed for a figure")
    figure = Figure(figsize=(7.2, max(4.8, 1.0 + 0.115 * len(drawn))), layout="constrained")
    panels = figure.subplot_mosaic([["profile", "names"], ["roofline", "names"]])
    profile(panels["profile"], drawn)
    against_roofline(panels["roofline"], drawn)
    by_name(panels["names"], drawn)
    first = drawn[0]
    figure.suptitle(
        f"Sparse products on {where(first)}, {first.get('dtype', '')}, {len(drawn)} matrices", fontsize=9
    )
    save(figure, path)


def family(name: str) -> str:
    """Return the library that a baseline is a setting of."""
    return "cusparse" if name.startswith("cusparse") else name


def best_times(row: Row) -> dict[str, float]:
    """Return the microseconds of each library at its best setting, without those called from Python."""
    found = {"dasp": us(row, "dasp")}
    for name in baselines(row):
        if name != "cupy":
            found[family(name)] = min(us(row, name), found.get(family(name), math.inf))
    return found


def profile(axes: Any, rows: Sequence[Row], title: str = "Performance profile") -> None:
    """Draw the share of matrices on which a library is within a factor of the fastest (Dolan, More 2002)."""
    times = [best_times(row) for row in rows]
    names = list(dict.fromkeys(name for row in times for name in row))
    ratios = {name: sorted(row.get(name, math.inf) / min(row.values()) for row in times) for name in names}
    finite = sorted(ratio for row in ratios.values() for ratio in row if ratio < math.inf)
    end = max(finite[int(0.98 * (len(finite) - 1))], 2.0)
    axes.set(xscale="log", xlim=(0.985, end), ylim=(0, 1.02), title=title)
    looks = islice(cycle([(ORANGE, "s"), (RED, "^"), (GREEN, "D")]), len(names))
    for name, (colour, marker) in zip(names, looks, strict=True):
        look: dict[str, Any] = {"color": colour, "marker": marker}
        if name == "dasp":
            look = {"color": BLUE, "marker": "o"}
        shares = [i / len(rows) for i in range(len(rows) + 1)]
        look["label"] = NAMES.get(name, name)
        axes.plot([1.0, *ratios[name]], shares, drawstyle="steps-post", markevery=0.15, **look)
        axes.plot([ratios[name][-1], max(end, ratios[name][-1])], [1, 1], color=look["color"])
    axes.set_xlabel("time / the fastest library's time")
    axes.set_ylabel("share of the matrices within it")
    axes.legend(frameon=False)
    plain_ticks(axes.xaxis)


def against_roofline(axes: Any, rows: Sequence[Row]) -> None:
    """Time over the roofline of CSR against bytes: ours, and the best baseline of each matrix."""
    size = [number(row, "moved_bytes") / 1e6 for row in rows]
    ours = [number(row, "time_over_roofline") for row in rows]
    best = [number(row, "best_baseline_us") / number(row, "roofline_us") for row in rows]
    axes.plot(size, best, "s", color=ORANGE, markerfacecolor="none", label="best baseline")
    axes.plot(size, ours, "o", color=BLUE, label="dasp")
    axes.axhline(1, color=BLACK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", title="Time over the roofline of CSR")
    axes.set_xlabel("bytes that a CSR product moves, MB")
    axes.set_ylabel("time / (bytes / copy bandwidth)")
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    slowest = sorted(range(len(rows)), key=lambda i: ours[i])
    for i in dict.fromkeys([slowest[0], slowest[-1], size.index(max(size))]):
        near_right = size[i] > math.sqrt(min(size) * max(size))
        axes.annotate(
            rows[i]["matrix"],
            (size[i], ours[i]),
            xytext=(-5 if near_right else 5, 0),
            textcoords="offset points",
            ha="right" if near_right else "left",
            va="center",
            fontsize=6,
            color=BLUE,
        )
    axes.legend(frameon=False)


def by_name(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a dot a matrix: speed-up over its best baseline; in and beyond the cache."""
    places = range(len(rows))
    values = [number(row, "speedup_best") for row in rows]
    axes.hlines(places, 1, values, color="0.75", linewidth=0.8)
    for inside, (colour, marker, label) in {
        "yes": (SKY, "o", "in the cache"),
        "no": (BLUE, "D", "beyond the cache"),
    }.items():
        part = [i for i in places if rows[i].get("in_cache", "yes") == inside]
        if part:
            axes.plot([values[i] for i in part], part, marker, color=colour, label=label)
    axes.set_yticks(list(places), [row["matrix"] for row in rows], fontsize=5.5)
    axes.set(xscale="log", title=f"Speed-up, geometric mean {geometric_mean(values):.2f}")
    axes.axvline(1, color=BLACK, linewidth=0.8)
    axes.set_xlabel("best baseline's time / dasp's time")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    plain_ticks(axes.xaxis)
    axes.legend(frameon=False, loc="lower right")


@rc_context(STYLE)
def draw_speedups(
    panels: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], path: Path, narrow: bool = False
) -> None:
    """Draw bars, a panel a title: the name of each, how many times as fast dasp is, and the machine."""
    heights = [len(bars) for _, bars in panels]
    size = (3.6, 1.9 + 0.2 * sum(heights)) if narrow else (7.2, 1.1 + 0.2 * max(heights))
    figure, axes_of = new_figure(*size, 1 if narrow else len(panels), len(panels) if narrow else 1)
    machines = list(dict.fromkeys(machine for _, bars in panels for _, _, machine in bars))
    colours = dict(zip(machines, (ORANGE, BLUE), strict=True))
    for axes, (title, bars) in zip(axes_of, panels, strict=True):
        for machine, colour in colours.items():
            mine = [i for i, bar in enumerate(bars) if bar[2] == machine]
            drawn = axes.barh(mine, [bars[i][1] for i in mine], color=colour, height=0.7, label=machine)
            axes.bar_label(drawn, [f"{significant(bars[i][1], 2)} x" for i in mine], padding=3)
        axes.axvline(1, color=BLACK, linewidth=0.8)
        axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
        axes.set(title=title, xlabel="the library's time / dasp's time")
        axes.margins(x=0.15)
        axes.invert_yaxis()
    handles, labels = axes_of[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=2)
    save(figure, path)


# --- linear systems ---------------------------------------------------------------------------------------


@rc_context(STYLE)
def draw_systems(rows: Sequence[Row], path: Path) -> None:
    """Draw the speed-up of our solvers over the library's, a line for each solver of a system."""
    ours = [row for row in solvers_report.ours(rows) if solvers_report.rival(rows, row)]
    figure, (axes,) = new_figure(5.2, 1.0 + 0.2 * len(ours))
    places = range(len(ours))
    names = [f"{row['matrix']} {row['kernel'].removeprefix('dasp ')}" for row in ours]
    for name, marker, colour, label in (
        ("us_per_iteration", "^", GREEN, "an iteration"),
        ("solve_ms", "o", BLUE, "a solve"),
        ("total_ms", "s", ORANGE, "all counted"),
    ):
        ratios = [solvers_report.ratio(rows, row, name) for row in ours]
        axes.plot(ratios, places, marker, color=colour, label=label)
    axes.axvline(1, color=BLACK, linewidth=0.8)
    axes.set_yticks(list(places), names)
    axes.set_ylim(len(ours) - 0.4, -0.6)
    axes.set(xscale="log", xlabel="library's time / dasp's time", title="Linear systems")
    plain_ticks(axes.xaxis)
    axes.legend(frameon=False)
    save(figure, path)


# --- dense products ---------------------------------------------------------------------------------------


@rc_context(STYLE)
def draw_ladder(ladders: Sequence[tuple[str, str, list[Row]]], path: Path) -> None:
    """Draw % of the vendor's library against size: a panel per machine and dtype, a curve per kernel."""
    columns = min(len(ladders), 2)
    lines = ceil_div(len(ladders), columns)
    figure, panels = new_figure(4.4 * columns, 3.0 * lines, columns, lines)
    for axes, (machine, dtype, rows) in zip(panels, ladders, strict=False):
        _ladder(axes, f"{dtype}, {machine}", rows)
    for axes in panels[len(ladders) :]:
        axes.set_axis_off()
    save(figure, path)


def _ladder(axes: Any, title: str, rows: Sequence[Row]) -> None:
    names, sizes, found = cells(rows)
    axes.set(xscale="log", title=title, xlabel="size of the square matrices", ylabel="% of vendor's GFLOP/s")
    looks = islice(cycle((colour, marker) for marker in MARKERS for colour in COLOURS), len(names))
    for name, (colour, marker) in zip(names, looks, strict=True):
        known = [size for size in sizes if (name, size) in found and results.right(found[name, size])]
        look: dict[str, Any] = {"color": colour, "marker": marker, "label": name}
        if name == VENDOR and known:
            speed = f"{number(found[name, known[-1]], 'gflops'):,.0f} GFLOP/s"
            look = {"color": BLACK, "linewidth": 1.8, "label": f"{name} ({speed})"}
        axes.plot(known, [100 * number(found[name, size], "of_vendor") for size in known], **look)
    shown = [size for size in sizes if size.bit_count() == 1] or sizes
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    drawn = [line for line in axes.lines if len(line.get_ydata())]
    drawn.sort(key=lambda line: -line.get_ydata()[-1])
    axes.legend(handles=drawn, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


@rc_context(STYLE)
def draw_bars(shapes: Sequence[tuple[str, list[Row]]], path: Path) -> None:
    """Draw a bar per kernel over GF(2^8), a panel per machine and shape, and what copying allows."""
    most = max(len(rows) for _, rows in shapes)
    figure, panels = new_figure(3.6 * len(shapes), 1.0 + 0.22 * most, len(shapes))
    for axes, (title, rows) in zip(panels, shapes, strict=True):
        drawn = [row for row in rows if results.right(row)]
        speeds = [number(row, "data_gbs") for row in drawn]
        colours = [ORANGE if row["kernel"] == "isa-l" else BLUE for row in drawn]
        bars = axes.barh([row["kernel"] for row in drawn], speeds, color=colours, height=0.7)
        limit = max((number(row, "copy_limit_gbs") for row in drawn), default=math.nan)
        axes.axvline(limit, color=BLACK, linewidth=0.8, linestyle="--")
        axes.annotate("what copying allows ", (limit, 0), ha="right", va="center")
        white = {"color": "white", "pad": 0.4}
        axes.bar_label(bars, [significant(speed, 3) for speed in speeds], padding=3, fontsize=7, bbox=white)
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel="data encoded, GB/s")
        axes.set_title(title.partition(", commit")[0].replace(" on ", "\non "))
        axes.margins(x=0.2)
        plain_ticks(axes.xaxis)
    save(figure, path)
