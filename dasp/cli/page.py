"""The page of `dasp info --html`: a matrix, its plan, and what a product takes, in one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.cli.measure import Comparison
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


@dataclass(frozen=True)
class Measured:
    """The times of a matrix: its plan, its products, and those of others.

    Attributes
    ----------
    plan_ms : float
        Milliseconds that its plan takes.
    bandwidth : float
        Of a copy, in bytes a second.
    found : Comparison
    """

    plan_ms: float
    bandwidth: float
    found: Comparison


def measured(matrix: csr_array, policy: Policy | None, device: str) -> Measured | None:
    """Plan, verify and time a matrix as `dasp bench` does; None for what that does not measure."""
    from dasp.cli.measure import best_ms, compare, open_device, warm_up
    from dasp.cli.values import as_float
    from dasp.matrix.matrix import SpMatrix

    if not matrix.nnz or matrix.dtype.name not in ("float32", "float64"):
        return None
    machine = open_device(device.partition(":")[0])
    csr = as_float(matrix, matrix.dtype)

    def plan(csr: csr_array) -> SpMatrix:
        return SpMatrix.from_scipy(csr, policy=policy, device=device)

    with machine.alone():
        warm_up(plan, machine, matrix.dtype)
        operator, plan_ms = best_ms(lambda: plan(csr), machine)
        found = compare(operator, csr, machine, lambda x: machine.baselines(csr, x))
    return Measured(plan_ms, machine.bandwidth, found)


def page(
    name: str,
    summary: str,
    matrix: csr_array,
    planned: SpMatrix,
    result: Measured | None,
) -> str:
    """Return the page, which needs no file beside it.

    Parameters
    ----------
    name : str
        Of the matrix.
    summary : str
        Its name and size, and its row lengths, a line each.
    matrix : csr_array
    planned : SpMatrix
        Of the matrix.
    result : Measured, optional
        Of the same matrix and policy.
    """
    from dasp import formats
    from dasp.cli.figures import draw_svg, draw_times, matrix_panels

    times, about, curves = _times(planned, result)
    panels = matrix_panels(matrix, formats.shares(planned.plan))
    if curves:
        panels.append(lambda axes: draw_times(axes, curves))
    return _PAGE.substitute(
        name=escape(name),
        summary="<br>".join(escape(line) for line in summary.removeprefix(f"{name}: ").split("\n")),
        pictures=draw_svg(panels),
        plan=planned._repr_html_(),
        bytes=_bytes(matrix, planned),
        times=times,
        about=escape(about),
    )


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


def _times(planned: SpMatrix, result: Measured | None) -> tuple[str, str, dict[str, tuple[float, float]]]:
    """Return a table of what a product takes, a text about it, and the curves of total time."""
    from dasp.cli.roofline import product_bytes, roofline_us
    from dasp.cli.table import products

    if result is None:
        return "", "Not measured: there are no entries, or they are neither float32 nor float64.", {}
    found, ours, plan_ms = result.found, result.found.us("dasp"), result.plan_ms
    if not found.verified.passed:
        return "", f"Not measured: {found.verified.rows_failed:,} rows of the product are wrong.", {}
    (m, n), size = planned.shape, planned.dtype.itemsize
    roofline = roofline_us(product_bytes(m, n, planned.nnz, size), result.bandwidth)
    expected = roofline_us(planned.plan.nbytes + size * (m + n), result.bandwidth)
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
        f"the {1e-9 * result.bandwidth:,.1f} GB/s "
        "that a copy reaches here; gathers of x come on top, and what lies in a cache may come faster."
    )
    return _table(("a product", "time", "the plan pays"), lines), about, curves
