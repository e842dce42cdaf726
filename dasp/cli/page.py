"""The page of `dasp info --html`: a matrix, its plan, and the time of a product, in one file."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

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
    path: Path, name: str, summary: str, matrix: csr_array, planned: SpMatrix, policy: Policy | None
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
    policy : Policy, optional
        By which it was planned.
    """
    from dasp import formats
    from dasp.cli.figures import draw_svg, matrix_panels

    text = _PAGE.substitute(
        name=escape(name),
        summary="<br>".join(escape(line) for line in summary.removeprefix(f"{name}: ").split("\n")),
        pictures=draw_svg(matrix_panels(matrix, formats.shares(planned.plan))),
        plan=planned._repr_html_(),
        times=escape(_measure(name, matrix, planned, policy)),
    )
    path.write_text(text, encoding="utf-8")


def _measure(name: str, matrix: csr_array, planned: SpMatrix, policy: Policy | None) -> str:
    """Verify and time a matrix; return the report of `dasp bench`."""
    from dasp.cli.bench import measure_matrix, report
    from dasp.cli.measure import open_device, warm_up
    from dasp.cli.values import as_float
    from dasp.matrix.matrix import SpMatrix

    if not matrix.nnz or matrix.dtype.name not in ("float32", "float64"):
        return "Not measured: there are no entries, or they are neither float32 nor float64."

    def plan(csr: csr_array) -> SpMatrix:
        return SpMatrix.from_scipy(csr, policy=policy, device=planned.device)

    device = open_device(planned.device.partition(":")[0])
    warm_up(plan, device, matrix.dtype)
    return report([measure_matrix(name, as_float(matrix, matrix.dtype), plan, device)])
