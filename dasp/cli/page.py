"""The page of `dasp info --html`: a matrix, its plan, and what a product takes, in one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.bench.sparse import MatrixResult
    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

_LIBRARIES = {"cpu": ("scipy",), "cuda": ("cupy", "cusparse_alg2")}
"""What a product is held against, as `dasp.bench` names it."""

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


def measured(name: str, matrix: csr_array, policy: Policy | None, device: str) -> MatrixResult | None:
    """Plan, verify and time a matrix as `dasp bench` does; None for what that does not measure."""
    from dasp.bench.device import open_device
    from dasp.bench.sparse import measure, warm_up
    from dasp.matrix.matrix import SpMatrix

    if not matrix.nnz or matrix.dtype.name not in ("float32", "float64"):
        return None
    machine = open_device(device.partition(":")[0])

    def plan(csr: Any) -> SpMatrix:
        make = SpMatrix.from_cupy if type(csr).__module__.startswith("cupyx") else SpMatrix.from_scipy
        return make(csr, policy=policy, device=device)

    with machine.alone():
        warm_up(plan, machine, matrix.dtype)
        libraries = _LIBRARIES[machine.kind]
        return measure(name, matrix, machine, plan=plan, dtype=matrix.dtype, baselines=libraries)


def page(
    name: str,
    summary: str,
    matrix: csr_array,
    planned: SpMatrix,
    result: MatrixResult | None,
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
    result : MatrixResult, optional
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
    from dasp.bench.roofline import csr_bytes

    csr = csr_bytes(matrix.shape[0], matrix.nnz, matrix.dtype.itemsize)
    lines = [
        ("CSR, 32-bit indices", f"{csr:,}", "1.000"),
        ("plan", f"{planned.plan.nbytes:,}", f"{planned.plan.nbytes / csr:.3f}"),
    ]
    return _table(("held as", "bytes", "of CSR"), lines)


def _times(planned: SpMatrix, result: MatrixResult | None) -> tuple[str, str, dict[str, tuple[float, float]]]:
    """Return a table of what a product takes, a text about it, and the curves of total time."""
    if result is None:
        return "", "Not measured: there are no entries, or they are neither float32 nor float64.", {}
    if not result.verified.passed:
        return "", f"Not measured: {result.verified.rows_failed:,} rows of the product are wrong.", {}
    bandwidth = result.moved_bytes / result.roofline_us  # bytes a microsecond
    moved = planned.plan.nbytes + planned.dtype.itemsize * sum(planned.shape)
    ours, plan_ms = result.us("dasp"), result.planning.host_ms
    lines = [
        ("CSR by its bytes (roofline)", f"{result.roofline_us:,.1f} us", ""),
        ("plan by its bytes, predicted", f"{moved / bandwidth:,.1f} us", ""),
        ("dasp, measured", f"{ours:,.1f} us", ""),
    ]
    curves = {"dasp, planning counted": (plan_ms, ours)}
    for name in result.timings:
        if name.startswith("dasp"):
            continue
        once, each = result.setup_ms.get(name, 0.0), result.us(name)
        own = result.us("dasp_new") if name in ("scipy", "cupy") else ours
        lines.append((f"{name}, measured", f"{each:,.1f} us", _pays(plan_ms, own, once, each)))
        curves[name] = (0.0 if math.isnan(once) else once, each)
    about = (
        f"Planning takes {plan_ms:,.1f} ms. Every row of every product was verified against a long-double "
        f"reference. Predicted: the bytes of the plan, x and y at the {1e-3 * bandwidth:,.1f} GB/s that "
        "a copy reaches here; gathers of x come on top, and what lies in a cache may come faster."
    )
    return _table(("a product", "time", "the plan pays"), lines), about, curves


def _pays(plan_ms: float, ours_us: float, once_ms: float, theirs_us: float) -> str:
    """After how many products the plan has paid, in words."""
    from dasp.bench.sparse_report import break_even

    products = break_even(plan_ms, ours_us, 0.0 if math.isnan(once_ms) else once_ms, theirs_us)
    if products == math.inf:
        return "never"
    return f"after {math.ceil(products):,} products" if products >= 1 else "at once"
