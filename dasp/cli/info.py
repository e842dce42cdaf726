"""`dasp info`: show a matrix, its row lengths and its plan, in text, as JSON and as a page with pictures."""

from __future__ import annotations

import argparse
import importlib
import io
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from dasp.cli.options import (
    Subparsers,
    add_device_option,
    add_format_option,
    add_json_option,
    add_matrix_option,
    add_parser,
    check_file,
    load_and_plan,
)
from dasp.cli.report import BLUE, COLOURS, STYLE, new_figure

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix


def add_info(subparsers: Subparsers) -> None:
    """Add `dasp info` to the command line."""
    parser = add_parser(subparsers, "info")
    add_matrix_option(parser)
    add_device_option(parser)
    add_format_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write one page: entries, row lengths, the plan, its bytes, and products measured here",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.html is not None:
        check_file("--html", arguments.html, (".html", ".htm"))
        importlib.import_module("matplotlib")  # raises before any work if it is missing
    name = arguments.matrix
    matrix, planned, seconds = load_and_plan(arguments)
    if arguments.json:
        print(as_json(name, matrix, planned, 1e3 * seconds))
    else:
        plan = f"{planned!r}\nplanned in {1e3 * seconds:,.1f} ms"
        print("\n\n".join([describe(name, matrix), plan, histogram(row_lengths(matrix))]))
    if arguments.html is not None:
        write_page(Path(arguments.html), name, describe(name, matrix), matrix, planned, arguments.format)
        if not arguments.json:
            print(f"\nwrote {arguments.html}")
    return 0


def row_lengths(matrix: csr_array) -> NDArray[np.integer]:
    """Return the number of entries of every row."""
    import numpy as np

    lengths: NDArray[np.integer] = np.diff(matrix.indptr)
    return lengths


def describe(name: str, matrix: csr_array) -> str:
    """Return lines of text with the size of a matrix and the spread of its row lengths."""
    import numpy as np

    rows, columns = matrix.shape
    lengths = row_lengths(matrix)
    density = matrix.nnz / (rows * columns) if rows and columns else 0.0
    lines = [f"{name}: {rows:,} x {columns:,}, {matrix.nnz:,} entries ({density:.2e} of all), {matrix.dtype}"]
    if rows:
        low, quarter, half, most, high = np.percentile(lengths, (0, 25, 50, 75, 100))
        lines.append(
            f"row length: mean {lengths.mean():.2f}, deviation {lengths.std():.2f}; "
            f"least {low:.0f}, quartiles {quarter:.0f} {half:.0f} {most:.0f}, most {high:.0f}; "
            f"{np.count_nonzero(lengths == 0):,} empty rows"
        )
    return "\n".join(lines)


def as_json(name: str, matrix: csr_array, planned: SpMatrix, milliseconds: float) -> str:
    """Return the matrix, its row lengths and its plan as JSON."""
    from dasp import formats

    classes = [
        {"first": first, "last": last, "rows": rows, "entries": entries}
        for first, last, rows, entries in length_classes(row_lengths(matrix))
    ]
    found = {
        "matrix": name,
        "shape": list(matrix.shape),
        "entries": int(matrix.nnz),
        "dtype": str(matrix.dtype),
        "row_lengths": classes,
        "device": planned.device,
        "plan": {
            "format": planned.plan.format,
            "bytes": int(planned.nbytes),
            "milliseconds": milliseconds,
            "shares": formats.count_shares(planned.plan),
        },
    }
    return json.dumps(found, indent=1)


def length_classes(lengths: NDArray[np.integer]) -> list[tuple[int, int, int, int]]:
    """Count rows by length, in one class each for 0 to 4, then in classes that double: 5-8, 9-16, 17-32.

    Returns
    -------
    list of (first length, last length, rows, entries)
        From length 0 to the longest row, empty classes between them included.
    """
    import numpy as np

    longest = int(lengths.max(initial=0))
    firsts = [0, 1, 2, 3, 4, 5]
    while firsts[-1] <= longest:
        firsts.append(9 if firsts[-1] == 5 else 2 * firsts[-1] - 1)
    rows, _ = np.histogram(lengths, bins=firsts)
    entries, _ = np.histogram(lengths, bins=firsts, weights=lengths)
    classes = [
        (first, after - 1, int(row_count), int(entry_count))
        for first, after, row_count, entry_count in zip(firsts, firsts[1:], rows, entries, strict=False)
    ]
    while len(classes) > 1 and classes[-1][2] == 0:
        classes.pop()
    return classes


def histogram(lengths: NDArray[np.integer]) -> str:
    """Return row lengths in text: for each class, a bar for its rows, and its share of all entries."""
    classes = length_classes(lengths)
    largest = max(1, *(rows for _, _, rows, _ in classes), 1)
    total = max(1, int(lengths.sum()))
    lines = [f"{'row length':>15} {'rows':>13} {'entries':>8}"]
    for first, last, rows, entries in classes:
        label = _name_class(first, last)
        bar = "#" * max(round(30 * rows / largest), int(rows > 0))
        lines.append(f"{label:>15} {rows:>13,} {entries / total:>8.1%} {bar}".rstrip())
    return "\n".join(lines)


def _name_class(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


# ---- the page --------------------------------------------------------------------------------------------

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$name: dasp info</title>
<style>
body { font-family: sans-serif; line-height: 1.45; max-width: 52rem; margin: auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-bottom: 0.8rem; }
th, td { padding: 0.15rem 0.7rem 0.15rem 0; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid; }
th:first-child, td:first-child { text-align: left; }
svg { display: block; max-width: 100%; height: auto; }
</style>
</head>
<body>
<h1>$name</h1>
<p>$summary</p>
$pictures
<h2>The plan</h2>
<div class="wide">$plan</div>
<h2>A product</h2>
<pre class="wide">$times</pre>
</body>
</html>
""")


def write_page(
    path: Path, name: str, summary: str, matrix: csr_array, planned: SpMatrix, format: str
) -> None:
    """Measure a matrix and write its page, which needs no other file.

    Parameters
    ----------
    path : pathlib.Path
    name : str
        Name of the matrix.
    summary : str
        The lines of `describe`.
    matrix : csr_array
    planned : SpMatrix
        The same matrix, planned.
    format : str
        The format that the user asked for.
    """
    from dasp import formats
    from dasp.io.files import replacing

    text = _PAGE.substitute(
        name=escape(name),
        summary="<br>".join(escape(line) for line in summary.removeprefix(f"{name}: ").split("\n")),
        pictures=draw_matrix(matrix, formats.count_shares(planned.plan)),
        plan=planned._repr_html_(),
        times=escape(_measure(name, matrix, planned, format)),
    )
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))  # a name may have bytes that are no text


def _measure(name: str, matrix: csr_array, planned: SpMatrix, format: str) -> str:
    """Verify and time a matrix; return the report of `dasp bench`, or why there is none."""
    from dasp.cli.bench import measure_matrix, planner, report
    from dasp.cli.devices import open_device
    from dasp.cli.measure import as_float

    if not matrix.nnz:
        return "Not measured: there are no entries."
    csr, device = as_float(matrix, planned.dtype), planned.device
    try:
        return report([measure_matrix(name, csr, planner(device, format), open_device(device))])
    except ValueError as error:
        return f"Not measured: {error}"


# ---- the pictures of the page ----------------------------------------------------------------------------


def draw_matrix(matrix: csr_array, shares: Mapping[str, Mapping[str, int]]) -> str:
    """Return an `<svg>` element that shows row lengths, entries and the plan, and needs no other file.

    Parameters
    ----------
    matrix : csr_array
    shares : mapping
        {quantity: {part of the plan: count}}, as `dasp.formats.count_shares` returns it.
    """
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context(STYLE):
        figure, (lengths, density, plan, last) = new_figure(7.2, 6.4, columns=2, rows=2)
        _draw_lengths(lengths, matrix)
        _draw_density(density, matrix)
        _draw_plan(plan, shares)
        last.remove()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_lengths(axes: Axes, matrix: csr_array) -> None:
    classes = length_classes(row_lengths(matrix))
    labels = [_name_class(first, last) for first, last, *_ in classes]
    axes.bar(labels, [rows for _, _, rows, _ in classes], color=BLUE)
    axes.set_yscale("symlog", linthresh=1)
    axes.tick_params(axis="x", rotation=60)
    axes.set_xlabel("entries in a row")
    axes.set_ylabel("rows")
    axes.set_title("Row lengths")


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
    """Draw a block of bars for each quantity: a bar for each part of the plan, with its count beside it."""
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


def density_image(matrix: csr_array, pixels: int = 400) -> NDArray[np.float64]:
    """Lay a grid over the matrix; return the share of each cell's places that hold an entry.

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

    from dasp.runtime.sizes import ceil_div

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
