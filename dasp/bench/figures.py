"""Pictures of result rows, for a screen and for a paper: the suffix of the file says which format.

Colours are those of Okabe and Ito, which the colour-blind tell apart; every curve has a marker of its own
too, and its name stands at its end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from dasp.bench import results
from dasp.bench.gemm import VENDOR, cells
from dasp.bench.report import where
from dasp.bench.sparse_report import baselines, timed, us
from dasp.bench.table import Row, geometric_mean, number

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
COLOURS = (ORANGE, SKY, GREEN, PINK, BLUE, RED)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "h")
OURS = {"color": BLUE, "marker": "o"}
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 200,
}
NAMES = {"dasp": "dasp", "scipy": "SciPy", "mkl": "MKL", "numba_csr": "numba loop", "cusparse": "cuSPARSE"}
"""How libraries are written in pictures."""

LINE_PIXELS = 8.5
"""Height of a label in points, below which two of them would touch."""


def styled(draw: Callable[..., None]) -> Callable[..., None]:
    """Run a function that draws under STYLE; RuntimeError if matplotlib is not installed."""

    @functools.wraps(draw)
    def run(*arguments: Any) -> None:
        try:
            from matplotlib import rc_context
        except ImportError as error:
            raise RuntimeError("matplotlib is not installed; pip install 'dasp-spmv[bench]'") from error
        with rc_context(STYLE):
            draw(*arguments)

    return run


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """A figure of so many inches with panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's suffix; a PDF without its date, so that equal is equal."""
    figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


@styled
def draw_panels(title: str, panels: Sequence[Callable[[Any], None]], path: Path) -> None:
    """Draw panels side by side, each by a function of its axes."""
    figure, places = new_figure(3.6 * len(panels), 3.4, len(panels))
    figure.suptitle(title)
    for axes, panel in zip(places, panels, strict=True):
        panel(axes)
    save(figure, path)


def plain_ticks(axis: Any, subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Label a logarithmic axis in each decade, without exponents."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names beside the ends of curves, moved apart where they would touch.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        With its limits and scale set.
    ends : sequence of (x, y, name, colour)
        In data coordinates.
    """
    to_points = axes.transData.transform
    scale = 72 / axes.figure.dpi
    below = -math.inf
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        at = float(to_points((x, y))[1]) * scale
        moved = max(at, below + LINE_PIXELS)
        below = moved
        axes.annotate(
            name,
            (x, y),
            xytext=(5, moved - at),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=colour,
            annotation_clip=False,
        )


# --- sparse products --------------------------------------------------------------------------------------


@styled
def draw_collection(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows of one machine: a performance profile, time against size, and each matrix by name.

    Raises
    ------
    RuntimeError
        If matplotlib is not installed.
    ValueError
        If no row was timed.
    """
    drawn = sorted(timed(rows), key=lambda row: number(row, "speedup_best"))
    if not drawn:
        raise ValueError("no row was timed; at least one is needed for a figure")
    figure, (left, middle, right) = new_figure(10.5, max(3.4, 1.2 + 0.115 * len(drawn)), 3)
    profile(left, drawn)
    against_roofline(middle, drawn)
    by_name(right, drawn)
    first = drawn[0]
    figure.suptitle(f"Sparse products on {where(first)}, {first.get('dtype', '')}, {len(drawn)} matrices")
    save(figure, path)


def family(name: str) -> str:
    """The library that a baseline is a setting of."""
    return "cusparse" if name.startswith("cusparse") else name


def best_times(row: Row) -> dict[str, float]:
    """Microseconds of each library at its best setting; those that are called from Python left out."""
    found = {"dasp": us(row, "dasp")}
    for name in baselines(row):
        if name != "cupy":
            found[family(name)] = min(us(row, name), found.get(family(name), math.inf))
    return found


def profile(axes: Any, rows: Sequence[Row], title: str = "Performance profile") -> None:
    """Share of the matrices on which a library is within a factor of the fastest (Dolan and More, 2002)."""
    times = [best_times(row) for row in rows]
    names = list(dict.fromkeys(name for row in times for name in row))
    ratios = {name: sorted(row.get(name, math.inf) / min(row.values()) for row in times) for name in names}
    finite = [ratio for row in ratios.values() for ratio in row if ratio < math.inf]
    end = max(min(max(finite, default=2.0), 20.0), 2.0)
    shares = [(i + 1) / len(rows) for i in range(len(rows))]
    axes.set(xscale="log", xlim=(1, end), ylim=(0, 1.02), title=title)
    ends = []
    styles = zip(names, islice(cycle([(ORANGE, "s"), (RED, "^"), (GREEN, "D")]), len(names)), strict=True)
    for i, (name, (colour, marker)) in enumerate(styles):
        look = OURS if name == "dasp" else {"color": colour, "marker": marker}
        steps = ([1.0, *ratios[name], end], [0.0, *shares, math.nan])
        steps[1][-1] = sum(ratio <= end for ratio in ratios[name]) / len(rows)
        axes.plot(*steps, drawstyle="steps-post", markevery=max(len(rows) // 6, 1), clip_on=True, **look)
        ends.append((end, steps[1][-1] - 1e-6 * i, NAMES.get(name, name), look["color"]))
    axes.set_xlabel("factor of the fastest library's time")
    axes.set_ylabel("share of the matrices within it")
    plain_ticks(axes.xaxis, (1.0, 1.5, 2.0, 3.0, 5.0))
    axes.figure.draw_without_rendering()
    label_ends(axes, ends)


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
    plain_ticks(axes.xaxis, (1.0,))
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
    """A dot a matrix: speed-up over its best baseline, on a logarithmic axis; in and beyond the cache."""
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
    axes.set(xscale="log", title=f"Speed-up over the best baseline (mean {geometric_mean(values):.2f})")
    axes.axvline(1, color=BLACK, linewidth=0.8)
    axes.set_xlabel("best baseline's time / dasp's time")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    plain_ticks(axes.xaxis, (1.0, 1.5, 2.0, 3.0, 5.0))
    axes.legend(frameon=False, loc="lower right")


@styled
def draw_headline(collections: Sequence[tuple[str, Sequence[Row]]], path: Path) -> None:
    """Draw a performance profile for each machine, side by side, for the front page."""
    figure, panels = new_figure(7.2, 2.5, len(collections))
    for axes, (title, rows) in zip(panels, collections, strict=True):
        counted = timed(rows)
        profile(axes, counted, f"{title}, {len(counted)} matrices")
    save(figure, path)


# --- dense products ---------------------------------------------------------------------------------------


@styled
def draw_ladder(ladders: Sequence[tuple[str, str, list[Row]]], path: Path) -> None:
    """Draw GFLOP/s against size, a panel per machine and dtype, a named curve per kernel."""
    figure, panels = new_figure(3.6 * len(ladders), 3.4, len(ladders))
    for axes, (machine, dtype, rows) in zip(panels, ladders, strict=True):
        names, sizes, found = cells(rows)
        axes.set(xscale="log", yscale="log", title=f"{dtype}, {machine}")
        axes.set(xlabel="size of the square matrices", ylabel="GFLOP/s")
        looks = islice(cycle((c, m) for m in MARKERS for c in COLOURS), len(names))
        curves = []
        for name, (colour, marker) in zip(names, looks, strict=True):
            look: dict[str, Any] = {"color": colour, "marker": marker}
            if name == VENDOR:
                look = {"color": BLACK, "marker": "x", "linewidth": 2}
            known = [size for size in sizes if (name, size) in found and results.right(found[name, size])]
            speeds = [number(found[name, size], "gflops") for size in known]
            axes.plot(known, speeds, **look)
            if known:
                curves.append((known[-1], speeds[-1], name, look["color"]))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        plain_ticks(axes.yaxis, (1.0,))
        figure.draw_without_rendering()
        label_ends(axes, curves)
    save(figure, path)


@styled
def draw_bars(shapes: Sequence[tuple[str, list[Row]]], path: Path) -> None:
    """Draw a bar per kernel over GF(2^8), a panel per machine and shape, and what copying allows."""
    figure, panels = new_figure(
        4.6 * len(shapes), 0.9 + 0.28 * max(len(rows) for _, rows in shapes), len(shapes)
    )
    for axes, (title, rows) in zip(panels, shapes, strict=True):
        drawn = [row for row in rows if results.right(row)]
        speeds = [number(row, "data_gbs") for row in drawn]
        colours = [ORANGE if row["kernel"] == "isa-l" else BLUE for row in drawn]
        bars = axes.barh([row["kernel"] for row in drawn], speeds, color=colours)
        axes.bar_label(bars, [f"{speed:.3g}" for speed in speeds], padding=2, fontsize=7)
        axes.invert_yaxis()
        limit = max((number(row, "copy_limit_gbs") for row in drawn), default=math.nan)
        axes.axvline(limit, color=BLACK, linewidth=0.8, linestyle="--", label="what copying allows")
        axes.set(xscale="log", xlabel="data encoded, GB/s", title=title.replace(" on ", "\non "))
        axes.margins(x=0.15)
        axes.legend(frameon=False, loc="lower right")
    save(figure, path)
