"""The page of `dasp info --html`: a matrix, its plan, and the time of a product, in one file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix

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
    """Measure a matrix and write its page, which needs no file beside it.

    Parameters
    ----------
    path : pathlib.Path
    name : str
        Of the matrix.
    summary : str
        Its name and size, and its row lengths, a line each.
    matrix : csr_array
    planned : SpMatrix
        Of the matrix.
    format : str
        In which it was asked to be planned.
    """
    from dasp import formats
    from dasp.cli.figures import draw_matrix

    text = _PAGE.substitute(
        name=escape(name),
        summary="<br>".join(escape(line) for line in summary.removeprefix(f"{name}: ").split("\n")),
        pictures=draw_matrix(matrix, formats.shares(planned.plan)),
        plan=planned._repr_html_(),
        times=escape(_measure(name, matrix, planned.device, format)),
    )
    path.write_text(text, encoding="utf-8")


def _measure(name: str, matrix: csr_array, device: str, format: str) -> str:
    """Verify and time a matrix; return the report of `dasp bench`."""
    from dasp.cli.bench import measure_matrix, planner, report
    from dasp.cli.devices import open_device
    from dasp.cli.measure import as_float

    if not matrix.nnz or matrix.dtype.name not in ("float32", "float64"):
        return "Not measured: there are no entries, or they are neither float32 nor float64."
    csr = as_float(matrix, matrix.dtype)
    return report([measure_matrix(name, csr, planner(device, format), open_device(device))])
