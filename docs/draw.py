"""Draw the figures of the site, from plans that are made here and from benchmarks/results/*.csv.

python docs/draw.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import scipy.sparse
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import dasp
from benchmarks.bench import results
from benchmarks.bench.figures import plain_ticks
from benchmarks.bench.rows import Row, number
from benchmarks.bench.sparse_report import baselines, pays_against_all, speedup, timed
from dasp import formats
from dasp.cli import report, timing
from dasp.formats import backends
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP
from dasp.formats.sell.cpu import primitives
from dasp.formats.sell.pattern import Coding, unpack_shape

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
STYLE = {
    **report.STYLE,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.dpi": 100,
    "savefig.dpi": 160,
}
"""Letters that can be read on a telephone."""

GREY = "#E4E4E4"
CATEGORIES = {
    "long": report.RED,
    "regular": report.BLUE,
    "irregular": report.SKY,
    "short": report.GREEN,
}


def draw_all(folder: Path) -> None:
    """Draw every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for draw in (slices, lanes, tiles, fragments, columns, plan_bytes, pays, speeds):
            figure = draw()
            figure.savefig(folder / f"{draw.__name__}.png")


# ---- matrices and their plans ----------------------------------------------------------------------


@cache
def mixed(lengths: tuple[int, ...], n: int, spread: int) -> Any:
    """A matrix whose rows have given lengths, their columns near the diagonal."""
    rng = np.random.default_rng(1)
    rows, found = [], []
    for i, length in enumerate(lengths):
        middle = i * n // len(lengths)
        near = np.arange(max(0, middle - max(spread, length)), min(n, middle + max(spread, length)))
        found.append(np.sort(rng.choice(near, length, replace=False)))
        rows.append(np.full(length, i))
    row, column = np.concatenate(rows), np.concatenate(found)
    shape = (len(lengths), n)
    return scipy.sparse.csr_array((rng.standard_normal(len(row)), (row, column)), shape=shape)


def draw_lengths(count: int) -> tuple[int, ...]:
    """Row lengths as many matrices have them: mostly short, a few long."""
    rng = np.random.default_rng(4)
    return tuple(int(k) for k in np.clip(rng.pareto(1.4, count) * 3 + 1, 1, 70))


def packed(matrix: Any, layout: str, **options: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """The plan of a CSR matrix, and the row and the column of each of its slots; `PAD` for a pad."""
    packs, on = formats.find(layout), primitives
    csr = Csr(matrix.shape, matrix.indptr, matrix.indices, matrix.data)
    plan = packs.pack(csr, packs.options(**options), backends.find("cpu").cost_model, on)
    slots, numbers = packs.find_slots(plan, on), np.arange(1.0, matrix.nnz + 1)
    count = sum(part.slots for part in packs.list_parts(plan))
    if plan.format == "sell":
        entries = on.code_values(numbers, slots, count, Coding.PLAIN, None).codes
    else:
        entries = np.zeros(count)
        entries[slots] = numbers
    there = entries > 0
    entry = entries[there].astype(int) - 1
    rows, columns = np.full((2, count), PAD)
    rows[there] = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[entry]
    columns[there] = matrix.indices[entry]
    return plan, rows, columns


def slice_fields(plan: Any) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and lanes to a row, of each slice."""
    steps, _, shift, _ = unpack_shape(plan.pattern.headers[:, 3].astype(np.int64))
    return steps, 1 << shift


# ---- slices ----------------------------------------------------------------------------------------


def slices() -> Figure:
    """A matrix before and after: where its entries lie, and the slots that they are packed into."""
    matrix = mixed(draw_lengths(160), 160, 24)
    plan, rows, columns = packed(matrix, "sell", steps=8, window=160)
    steps, lanes_of = slice_fields(plan)
    kinds = sorted(set(lanes_of.tolist()))
    colour = dict(
        zip(kinds, (report.BLUE, report.ORANGE, report.GREEN, report.PINK, report.RED), strict=False)
    )
    owner = np.repeat(lanes_of, WARP * steps)
    figure = Figure(figsize=(5.8, 3.9), layout="constrained")
    before, after = figure.subplots(1, 2)
    filled = columns >= 0
    for kind in kinds:
        of_kind = filled & (owner == kind)
        label = f"{kind} lane{'s' if kind > 1 else ''} a row"
        before.plot(columns[of_kind], rows[of_kind], "s", color=colour[kind], markersize=1.6, label=label)
    before.set(
        xlim=(-2, 162), ylim=(162, -2), aspect="equal", xlabel="column", ylabel="row", title="The matrix"
    )
    image = np.full((len(rows) // WARP, WARP), -1)
    image.ravel()[filled] = np.searchsorted(kinds, owner[filled])
    palette = ListedColormap([GREY, *(colour[kind] for kind in kinds)])
    after.imshow(
        image, cmap=palette, vmin=-1.5, vmax=len(kinds) - 0.5, aspect="auto", interpolation="nearest"
    )
    for edge in np.cumsum(steps)[:-1]:
        after.axhline(edge - 0.5, color="white", linewidth=1.5)
    after.set(
        xlabel="lane of the warp",
        ylabel="step",
        title=f"Its plan: {len(steps)} slices",
        xticks=[0, 8, 16, 24, 31],
    )
    figure.legend(loc="outside lower center", ncols=min(len(kinds), 3), frameon=False, markerscale=4)
    return figure


def lanes() -> Figure:
    """Three slices, a row of the matrix a colour: one lane to a row, four, and thirty-two."""
    figure = Figure(figsize=(5.4, 4.6), layout="constrained")
    panels = figure.subplots(3, 1, height_ratios=[1, 1, 1])
    cases = (
        ("rows of 3 to 5 entries", [3 + i % 3 for i in range(32)]),
        ("rows of 14 to 17", [14 + i % 4 for i in range(8)]),
        ("one row of 150", [150]),
    )
    for axes, (name, lengths) in zip(panels, cases, strict=True):
        plan, rows, _ = packed(mixed(tuple(lengths), 160, 160), "sell", steps=5, window=32)
        steps, lanes_of = slice_fields(plan)
        count = WARP * int(steps[0])
        order = {int(row): i % 8 + 1 for i, row in enumerate(dict.fromkeys(rows[rows >= 0]))}
        image = np.array([order.get(int(row), 0) for row in rows[:count]]).reshape(-1, WARP)
        palette = ListedColormap([GREY, *matplotlib.colormaps["Set2"].colors])
        axes.imshow(image, cmap=palette, vmin=-0.5, vmax=8.5, aspect="auto", interpolation="nearest")
        axes.set_xticks(np.arange(-0.5, WARP), minor=True)
        axes.set_yticks(np.arange(-0.5, len(image)), minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
        axes.set(ylabel="step", xticks=[0, 8, 16, 24, 31], yticks=range(len(image)))
        plural = "lanes" if lanes_of[0] > 1 else "lane"
        axes.set_title(f"{lanes_of[0]} {plural} to a row: {name}")
    panels[-1].set_xlabel("lane of the warp (a colour is a row, grey is a pad)")
    return figure


def columns() -> Figure:
    """What is stored of the columns of one step: a base, and 32 short distances."""
    matrix = dasp.models.generate("poisson2d:40")
    plan, rows, found = packed(matrix, "sell")
    pattern = plan.pattern
    steps, _ = slice_fields(plan)
    index = len(steps) // 2
    first = int(pattern.headers[index, 0])
    shown = range(first, first + int(steps[index]))
    figure = Figure(figsize=(5.4, 2.6), layout="constrained")
    axes = figure.subplots()
    for k, step in enumerate(shown):
        part = found[WARP * step : WARP * (step + 1)]
        real = part >= 0
        axes.plot(part[real], np.full(real.sum(), k), "|", color=report.BLUE, markersize=9)
        axes.plot(pattern.bases[step], k, ">", color=report.RED, markersize=6, clip_on=False)
        distance = int(part[real].max() - pattern.bases[step])
        axes.annotate(
            f"base {int(pattern.bases[step])}, distances up to {distance}",
            (1.02, k),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
        )
    axes.set(xlabel="column", ylabel="step", yticks=range(len(shown)), ylim=(len(shown) - 0.5, -0.5))
    axes.set_title(
        f"The columns of a slice of poisson2d:40, rows {rows[WARP * first]} to {rows[WARP * first + 31]}"
    )
    return figure


def plan_bytes() -> Figure:
    """Bytes of plans over bytes of CSR, by what they hold."""
    names = "poisson2d:300 stencil27:30 rmat:15 fem3:16 circuit:100000 kkt:60000 powerlaw:100000 band:30000"
    found = []
    for name in names.split():
        matrix = dasp.models.generate(name)
        plan = dasp.SpMatrix.from_scipy(matrix, device="cpu").plan
        csr = timing.csr_bytes(matrix.shape[0], matrix.nnz, 8)
        parts = {key.partition(",")[0]: n / csr for key, n in formats.count_shares(plan)["bytes"].items()}
        found.append((name, parts))
    found.sort(key=lambda each: sum(each[1].values()))
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(found))
    kinds = (
        ("values", report.BLUE),
        ("columns", report.SKY),
        ("rows", report.GREEN),
        ("headers", report.RED),
    )
    for kind, colour in kinds:
        width = np.array([parts.get(kind, 0.0) for _, parts in found])
        axes.barh(range(len(found)), width, left=left, color=colour, label=kind)
        left += width
    for i, total in enumerate(left):
        axes.text(total + 0.01, i, f"{total:.2f}", va="center", fontsize=9)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    axes.set(
        xlabel="bytes of the plan / bytes of CSR (float64, 32-bit indices)",
        xlim=(0, max(1.1, left.max() + 0.12)),
    )
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


# ---- the format of the paper --------------------------------------------------------------------------


def tiles() -> Figure:
    """A matrix by category, and the tiles that its medium rows are packed into."""
    matrix = mixed(draw_lengths(96), 128, 40)
    plan, rows, found = packed(matrix, "dasp", long_row=40, segment=64)
    pattern = plan.pattern
    sizes = (
        len(pattern.long.columns),
        len(pattern.medium.regular.columns),
        len(pattern.medium.irregular.columns),
        len(pattern.short.columns),
    )
    kind = np.repeat(np.array(list(CATEGORIES)), sizes)
    figure = Figure(figsize=(5.8, 4.0), layout="constrained")
    before, after = figure.subplots(1, 2, width_ratios=[1, 1])
    for name, colour in CATEGORIES.items():
        mine = (kind == name) & (found >= 0)
        before.plot(found[mine], rows[mine], "s", color=colour, markersize=1.8, label=name)
    before.set(xlim=(-2, 130), ylim=(98, -2), xlabel="column", ylabel="row", title="The matrix, by category")
    _tiles(after, pattern.medium.regular, found[sizes[0] : sizes[0] + sizes[1]])
    figure.legend(
        *before.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, markerscale=4
    )
    return figure


def _tiles(axes: Any, regular: Any, found: np.ndarray) -> None:
    """Draw the regular tiles: a line a row block, a tile beside the next."""
    tiles = found.reshape(-1, 8, 4)
    for block, (begin, end) in enumerate(zip(regular.offsets[:-1], regular.offsets[1:], strict=True)):
        for place in range(int(begin), int(end)):
            x, y = 5 * (place - int(begin)), 9.5 * block
            for row in range(8):
                for column in range(4):
                    full = tiles[place, row, column] >= 0
                    colour = CATEGORIES["regular"] if full else GREY
                    axes.add_patch(Rectangle((x + column, y + row), 0.92, 0.92, color=colour, linewidth=0))
        if begin == end:
            axes.text(
                -0.3, 9.5 * block + 4, "no tile is full enough:\nall irregular", va="center", fontsize=8
            )
    widest = int(np.diff(regular.offsets).max())
    axes.set(xlim=(-0.5, 5 * widest), ylim=(9.5 * (len(regular.offsets) - 1), -0.5), aspect="equal")
    axes.set_xticks([])
    axes.set_yticks([9.5 * b + 4 for b in range(len(regular.offsets) - 1)], range(len(regular.offsets) - 1))
    axes.set(ylabel="row block", title="Tiles of its medium rows")
    axes.spines[:].set_visible(False)


def fragments() -> Figure:
    """The fragment map of mma.m8n8k4 on float64: which lane holds which element."""
    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    mosaic = figure.subplot_mosaic([[".", "B"], ["A", "C"]], width_ratios=[1, 2], height_ratios=[1, 2])
    a = {(lane // 4, lane % 4): str(lane) for lane in range(WARP)}
    b = {(lane % 4, lane // 4): str(lane) for lane in range(WARP)}
    c = {(lane // 4, 2 * (lane % 4) + v): f"{lane}.{v}" for lane in range(WARP) for v in (0, 1)}
    _grid(mosaic["A"], "A, 8 x 4", a, (8, 4))
    _grid(mosaic["B"], "B, 4 x 8", b, (4, 8))
    _grid(mosaic["C"], "C, 8 x 8: lane.register", c, (8, 8), marked={(r, r) for r in range(8)})
    return figure


def _grid(axes: Any, title: str, texts: dict, shape: tuple[int, int], marked: set = frozenset()) -> None:
    """Draw the elements of a tile, each with the lane that holds it, coloured by groups of four lanes."""
    palette = matplotlib.colormaps["Set2"].colors
    for (row, column), text in texts.items():
        colour = palette[int(text.partition(".")[0]) // 4]
        look = {"edgecolor": "black", "linewidth": 1.6, "zorder": 2}
        if (row, column) not in marked:
            look = {"edgecolor": "white", "linewidth": 0.8, "zorder": 1}
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, **look))
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5, zorder=3)
    axes.set(xlim=(-0.05, shape[1] + 0.05), ylim=(shape[0] + 0.05, -0.05), aspect="equal", title=title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


# ---- what was measured -----------------------------------------------------------------------------

MACHINES = (("cpu", "2 CPU cores", report.BLUE, "o"), ("h200", "NVIDIA H200", report.RED, "s"))


def rows_of(name: str) -> list[Row]:
    """The timed rows of a collection."""
    return timed(results.latest(results.read(RESULTS / f"{name}.csv")))


def _by_entries(measure: Callable[[Row, list[str]], float], against: dict[str, tuple[str, ...]]) -> Figure:
    """Draw a figure of each matrix over its entries, a panel for each kind of baseline."""
    figure = Figure(figsize=(5.8, 3.1), layout="constrained")
    panels = figure.subplots(1, len(against), sharey=True)
    for axes, (title, names) in zip(panels, against.items(), strict=True):
        for file, label, colour, marker in MACHINES:
            rows = [(row, [n for n in baselines(row) if n.startswith(names)]) for row in rows_of(file)]
            points = [(number(row, "entries"), measure(row, known)) for row, known in rows if known]
            finite = [(x, y) for x, y in points if np.isfinite(y)]
            axes.plot(*zip(*finite, strict=True), marker, color=colour, label=label, markersize=4, alpha=0.75)
        axes.set(xscale="log", title=title, xlabel="entries of the matrix")
    return figure


def pays() -> Figure:
    """After how many products a plan has paid, over the size of the matrix."""
    against = {"against SciPy and CuPy": ("scipy", "cupy"), "against MKL and cuSPARSE": ("mkl", "cusparse")}
    figure = _by_entries(lambda row, names: max(pays_against_all(row, names), 1.0), against)
    first = figure.axes[0]
    first.set(yscale="log", ylabel="products after which\nthe plan has paid")
    first.set_yticks([1, 10, 100, 1000], ["at once", "10", "100", "1,000"])
    first.legend(frameon=False)
    return figure


def speeds() -> Figure:
    """How much faster a product is, over the size of the matrix."""
    against = {"against SciPy and CuPy": ("scipy", "cupy"), "against MKL and cuSPARSE": ("mkl", "cusparse")}

    def least(row: Row, names: list[str]) -> float:
        return min((speedup(row, name) for name in names if speedup(row, name) > 0), default=np.nan)

    figure = _by_entries(least, against)
    figure.axes[0].set(yscale="log", ylabel="their time / dasp's time")
    for axes in figure.axes:
        axes.axhline(1, color="black", linewidth=0.8)
    plain_ticks(figure.axes[0].yaxis)
    figure.axes[1].legend(frameon=False)
    return figure


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
