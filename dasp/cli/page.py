"""The page of `dasp info --html`: a matrix, its plan, and what a product takes, in one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
<h2>Bytes</h2>
<div class="wide">$bytes</div>
<h2>Time</h2>
<div class="wide">$times</div>
<p>$about</p>
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
    from dasp.cli.figures import draw_svg, draw_times, matrix_panels

    times, about, curves = _times(matrix, planned, policy)
    panels = matrix_panels(matrix, formats.shares(planned.plan))
    if curves:
        panels.append(lambda axes: draw_times(axes, curves))
    text = _PAGE.substitute(
        name=escape(name),
        summary="<br>".join(escape(line) for line in summary.removeprefix(f"{name}: ").split("\n")),
        pictures=draw_svg(panels),
        plan=planned._repr_html_(),
        bytes=_bytes(matrix, planned),
        times=times,
        about=escape(about),
    )
    path.write_text(text, encoding="utf-8")


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of texts; the first column names the line."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines]
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in (head, *rows)) + "\n</table>"


def _bytes(matrix: csr_array, planned: SpMatrix) -> str:
    """Return a table of the plan's bytes beside those of CSR with 32-bit indices."""
    from dasp.cli.roofline import csr_bytes

    csr = csr_bytes(matrix.shape[0], matrix.nnz, matrix.dtype.itemsize)
    lines = [
        ("CSR, 32-bit indices", f"{csr:,}", "1.000"),
        ("plan", f"{planned.plan.nbytes:,}", f"{planned.plan.nbytes / csr:.3f}"),
    ]
    return _table(("held as", "bytes", "of CSR"), lines)


def _times(
    matrix: csr_array, planned: SpMatrix, policy: Policy | None
) -> tuple[str, str, dict[str, tuple[float, float]]]:
    """Verify and time a matrix as `dasp bench` does; return a table, a text and the curves of total time."""
    from dasp.cli.measure import best_ms, compare, open_device, warm_up
    from dasp.cli.roofline import product_bytes, roofline_us
    from dasp.cli.table import products
    from dasp.cli.values import as_float
    from dasp.matrix.matrix import SpMatrix

    if not matrix.nnz or matrix.dtype.name not in ("float32", "float64"):
        return "", "Not measured: there are no entries, or they are neither float32 nor float64.", {}
    device, csr = open_device(planned.device.partition(":")[0]), as_float(matrix, matrix.dtype)

    def plan(csr: csr_array) -> SpMatrix:
        return SpMatrix.from_scipy(csr, policy=policy, device=planned.device)

    warm_up(plan, device, matrix.dtype)
    operator, plan_ms = best_ms(lambda: plan(csr), device)
    found = compare(operator, csr, device, lambda x: device.baselines(csr, x))
    if not found.verified.passed:
        return "", f"Not measured: {found.verified.rows_failed:,} rows of the product are wrong.", {}
    (m, n), size, ours = planned.shape, planned.dtype.itemsize, found.us("dasp")
    roofline = roofline_us(product_bytes(m, n, planned.nnz, size), device.bandwidth)
    expected = roofline_us(planned.plan.nbytes + size * (m + n), device.bandwidth)
    lines = [
        ("CSR by its bytes (roofline)", f"{roofline:,.1f} us", ""),
        ("plan by its bytes, expected", f"{expected:,.1f} us", ""),
        ("dasp, measured", f"{ours:,.1f} us", ""),
    ]
    curves = {"dasp, planning counted": (plan_ms, ours)}
    for name in found.baselines:
        once, each = found.setup_ms.get(name, 0.0), found.us(name)
        after = found.pays_after(plan_ms, name)
        pays = "never" if after == math.inf else f"after {products(after)} products" if after else "at once"
        lines.append((f"{name}, measured", f"{each:,.1f} us", pays))
        curves[name] = (once, each)
    about = (
        f"Planning takes {plan_ms:,.1f} ms. Every row of every product was verified against a "
        f"long-double reference. Expected: the bytes of the plan, x and y at "
        f"the {1e-9 * device.bandwidth:,.1f} GB/s "
        "that a copy reaches here; gathers of x come on top, and what lies in a cache may come faster."
    )
    return _table(("a product", "time", "the plan pays"), lines), about, curves
