"""The look of figures, and the pictures of a matrix: row lengths, where its entries are, its plan."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

from dasp.runtime.sizes import ceil_div

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

_PIXELS = 400


def check_file(option: str, path: str, endings: Sequence[str]) -> None:
    """Check that a file with figures can be drawn and written, before the work that it will show.

    Parameters
    ----------
    option : str
        The option that named it.
    path : str
    endings : sequence of str
        That its name may have.

    Raises
    ------
    ValueError
        If the name has another ending, or its folder does not exist.
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    target = Path(path)
    if target.suffix.lower() not in endings:
        *most, last = endings
        raise ValueError(f"{option} is {path!r}; its name must end in {', '.join(most)} or {last}")
    if target.is_dir():
        raise ValueError(f"{option} is {path!r}, a folder; it must be a file")
    if not target.parent.is_dir():
        raise ValueError(f"{option} is {path!r}; the folder {target.parent} must exist; make it first")
    importlib.import_module("matplotlib")


def density_image(matrix: csr_array, pixels: int = _PIXELS) -> NDArray[np.float64]:
    """Return the share of the places that hold an entry, in each cell of a grid laid over the matrix.

    Parameters
    ----------
    matrix : csr_array, shape (m, n)
        m and n at least 1.
    pixels : int
        Cells along the longer side at most; a smaller matrix gets one cell a place.

    Returns
    -------
    float64 array, shape (cells down, cells across)
        Above 1 only where duplicates are stored.
    """
    import numpy as np

    rows, columns = matrix.shape
    longest = max(rows, columns)
    down = max(1, min(rows, round(pixels * rows / longest)))
    across = max(1, min(columns, round(pixels * columns / longest)))
    cells = np.zeros(down * across, dtype=np.int64)
    # Some rows at a time, so that a large matrix needs no second copy of its indices.
    step = max(1, rows // 64)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        lengths = np.diff(matrix.indptr[first : last + 1])
        row = np.repeat(np.arange(first, last, dtype=np.int64) * down // rows, lengths)
        column = (
            matrix.indices[matrix.indptr[first] : matrix.indptr[last]].astype(np.int64) * across // columns
        )
        cells += np.bincount(row * across + column, minlength=down * across)
    heights = np.diff(ceil_div(np.arange(down + 1) * rows, down))
    widths = np.diff(ceil_div(np.arange(across + 1) * columns, across))
    shares: NDArray[np.float64] = cells.reshape(down, across) / np.outer(heights, widths)
    return shares


def styled(draw: Callable[..., None]) -> Callable[..., None]:
    """Run a function that draws under STYLE."""

    @functools.wraps(draw)
    def run(*arguments: object) -> None:
        from matplotlib import rc_context

        with rc_context(STYLE):
            draw(*arguments)

    return run


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many inches with panels side by side, line after line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix; a PDF without its date, so that equal is equal."""
    figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


def draw_matrix(matrix: csr_array, shares: Mapping[str, Mapping[str, int]]) -> str:
    """Draw row lengths, entries and the plan as an `<svg>` element that needs nothing from elsewhere.

    Parameters
    ----------
    matrix : csr_array
    shares : mapping
        How the plan is shared out: what, then by which share how much, as the plan's format says it.
    """
    text = io.StringIO()

    @styled
    def draw() -> None:
        figure, (lengths, density, plan, last) = new_figure(7.2, 6.4, columns=2, rows=2)
        _draw_lengths(lengths, matrix)
        _draw_density(density, matrix)
        _draw_plan(plan, shares)
        last.remove()
        figure.savefig(text, format="svg", metadata={"Date": None})

    draw()
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_lengths(axes: Axes, matrix: csr_array) -> None:
    import numpy as np

    lengths = np.diff(matrix.indptr)
    longest = int(lengths.max(initial=1))
    edges = np.unique(np.round(np.geomspace(1, longest + 1, 60))) - 0.5
    if len(edges) == 1:
        edges = np.array([0.5, 1.5])
    counts, _ = np.histogram(lengths, bins=edges)
    axes.stairs(counts, edges, fill=True, color=BLUE)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 4 * max(1, counts.max()))
    axes.set_xlabel("entries in a row")
    axes.set_ylabel("rows")
    axes.set_title(f"Row lengths ({np.count_nonzero(lengths == 0):,} empty rows not shown)")


def _draw_density(axes: Axes, matrix: csr_array) -> None:
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_title("Where the entries are")
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    rows, columns = matrix.shape
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_major_formatter(EngFormatter(sep=""))
    if not matrix.nnz:
        axes.text(0.5, 0.5, "no entries", ha="center", va="center", transform=axes.transAxes)
        return
    shares = density_image(matrix)
    filled = np.ma.masked_equal(shares, 0)
    low = min(float(filled.min()), 0.5)
    image = axes.imshow(
        filled, norm=LogNorm(low, 1), cmap="cividis_r", extent=(0, columns, rows, 0),
        aspect="auto" if max(rows, columns) > 4 * min(rows, columns) else "equal", interpolation="nearest",
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, label="share of the places of a pixel that hold an entry")


def _draw_plan(axes: Axes, shares: Mapping[str, Mapping[str, int]]) -> None:
    """Draw a block of bars for each thing that is shared out, a bar a share, with its count beside it."""
    axes.set_title("The plan")
    axes.set_xlabel("share")
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    place, ticks, names = 0.0, [], []
    for colour, (what, parts) in zip(COLOURS, shares.items(), strict=False):
        total = sum(parts.values())
        heading = f"{total:,} {what}"
        axes.text(0, place, heading, va="center", fontweight="bold", fontsize=7)
        for name, part in parts.items():
            place += 1
            axes.barh(place, part / total, color=colour, height=0.8)
            axes.text(part / total + 0.01, place, f"{part:,}", va="center", fontsize=6)
            ticks.append(place)
            names.append(name)
        place += 1.4
    axes.set_yticks(ticks, names)
    axes.set_ylim(max(place - 0.8, 1), -0.8)
