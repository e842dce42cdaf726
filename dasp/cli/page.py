"""The page of `dasp info --html`: a matrix, its plan, and what a product takes, in one file."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasp import _html

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.bench.sparse import MatrixResult
    from dasp.matrix.matrix import SpMatrix
    from dasp.matrix.policy import Policy

_CELLS = 140
"""Cells along the longer side of the picture of entries."""

_LIBRARIES = {"cpu": ("scipy",), "cuda": ("cupy", "cusparse_alg2")}
"""What a product is held against, as `dasp.bench` names it."""


def check_page(path: str) -> None:
    """Hold that a page can be written, before the work that it will show; ValueError if not."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--html is {path!r}; its name must end in .html")
    if target.is_dir():
        raise ValueError(f"--html is {path!r}, a folder; it must be a file")
    if not target.parent.is_dir():
        raise ValueError(f"--html is {path!r}; the folder {target.parent} must exist; make it first")


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
    classes: list[tuple[int, int, int, int]],
    result: MatrixResult | None,
) -> str:
    """Return the page.

    Parameters
    ----------
    name : str
        Of the matrix.
    summary : str
        Its name and size, and its row lengths, a line each.
    matrix : csr_array
    planned : SpMatrix
        Of the matrix.
    classes : list
        Row lengths, as `length_table` of `dasp._html` takes them.
    result : MatrixResult, optional
        Of the same matrix and policy.
    """
    lines = summary.removeprefix(f"{name}: ").split("\n")
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines)
    sections = [
        f"<h1>{escape(name)}</h1>\n{paragraphs}",
        f"<h2>Where its entries are</h2>\n{_picture(matrix)}",
        f"<h2>Row lengths</h2>\n{_html.length_table(classes)}",
        f"<h2>The plan</h2>\n{planned._repr_html_()}",
        f"<h2>Bytes</h2>\n{_bytes(matrix, planned)}",
        f"<h2>Time</h2>\n{_times(planned, result)}",
    ]
    return _html.document(f"{name}: dasp info", sections)


def _picture(matrix: csr_array) -> str:
    """Where the entries are, or that there are none."""
    from dasp.cli.figures import density_image

    if not matrix.nnz:
        return "<p>It has no entries.</p>"
    return f"<figure>{_html.spy(density_image(matrix, _CELLS))}</figure>"


def _bytes(matrix: csr_array, planned: SpMatrix) -> str:
    """The plan's bytes beside those of CSR with 32-bit indices."""
    from dasp.bench.roofline import csr_bytes

    csr = csr_bytes(matrix.shape[0], matrix.nnz, matrix.dtype.itemsize)
    lines = [
        ("CSR, 32-bit indices", f"{csr:,}", "1.000"),
        ("plan", f"{planned.plan.nbytes:,}", f"{planned.plan.nbytes / csr:.3f}"),
    ]
    return _html.table(("held as", "bytes", "of CSR"), lines)


def _times(planned: SpMatrix, result: MatrixResult | None) -> str:
    """What a product takes: predicted from bytes, measured, and against the usual library."""
    if result is None:
        return "<p>Not measured: there are no entries, or they are neither float32 nor float64.</p>"
    if not result.verified.passed:
        return f"<p>Not measured: {result.verified.rows_failed:,} rows of the product are wrong.</p>"
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
    picture = f"<figure>{_html.total_times(curves)}</figure>"
    return f"{_html.table(('a product', 'time', 'the plan pays'), lines)}\n<p>{about}</p>\n{picture}"


def _pays(plan_ms: float, ours_us: float, once_ms: float, theirs_us: float) -> str:
    """After how many products the plan has paid, in words."""
    from dasp.bench.sparse_report import break_even

    products = break_even(plan_ms, ours_us, 0.0 if math.isnan(once_ms) else once_ms, theirs_us)
    if products == math.inf:
        return "never"
    return f"after {math.ceil(products):,} products" if products >= 1 else "at once"
