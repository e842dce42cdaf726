"""Sparse products: plan a matrix, verify every row of every product, then time ours and the baselines."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import sparse_report
from benchmarks.bench.device import BenchDevice
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row
from dasp.cli.bench import DEFAULT_MATRICES, planner
from dasp.cli.measure import (
    OURS,
    PLAN_SECONDS,
    PLAN_TRIES,
    Comparison,
    as_float,
    best_ms,
    compare,
)
from dasp.cli.timing import csr_bytes, product_bytes, roofline_us
from dasp.matrix.matrix import SpMatrix

ENDINGS = (".mtx.gz", ".mtx", ".npz")
"""Of the files of matrices."""


def as_text(value: object) -> str:
    """Return a value as it stands in the CSV file: six digits, nothing for NaN, yes or no for a bool.

    Examples
    --------
    >>> as_text(True), as_text(0.12345678), as_text(float("nan"))
    ('yes', '0.123457', '')
    """
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{float(value):.6g}"
    return str(value)


def measure(
    name: str,
    csr: Any,
    device: BenchDevice,
    *,
    plan: Callable[[Any], SpMatrix] | None = None,
    dtype: Any = np.float64,
    seed: int = 0,
    samples: int | None = None,
    baselines: Collection[str] | None = None,
    transpose: bool = False,
) -> tuple[Comparison, Row]:
    """Plan, verify and time one matrix; return the timings, and the row of the CSV file.

    Parameters
    ----------
    name : str
        Goes into the row.
    csr : scipy.sparse matrix or array
        Shape (m, n), any real dtype; its own values are used.
    device : BenchDevice
        Where to run.
    plan : callable, optional
        Makes the operator of a CSR matrix; SpMatrix by default.
    dtype : dtype
        A type of `dasp.runtime.dtypes.TABLE`; see `as_float`.
    seed : int
        Seed of imaginary parts, and of x, which is drawn from the standard normal distribution.
    samples : int, optional
        Timed samples of each candidate, instead of as many as the device thinks right.
    baselines : collection of str, optional
        Which baselines; all by default.
    transpose : bool
        Measure the product with the transpose: ours by `A.T`, made of a planned A, which alone counts as
        planning; the baselines by their own operation on A. All figures are of the transpose.
    """
    csr = as_float(csr, dtype, seed)
    plan = plan or planner(device.kind)
    given, csr = csr, as_float(csr.T, dtype) if transpose else csr
    operator, planning = (time_transposing if transpose else time_planning)(plan, given, device)
    names = device.baseline_names if baselines is None else baselines
    found = compare(
        operator,
        csr,
        device,
        lambda x: device.all_baselines(given, x, names, transpose=transpose),
        seed=seed,
        samples=samples,
    )
    rows, cols = csr.shape
    lengths, itemsize = np.diff(csr.indptr), csr.dtype.itemsize
    moved = product_bytes(rows, cols, csr.nnz, itemsize)
    roofline = roofline_us(moved, device.bandwidth)
    ours, best = found.us(OURS), found.best_baseline
    figures: dict[str, object] = {
        "matrix": name,
        "dtype": np.dtype(dtype).name,
        "device": device.kind,
        "rows": rows,
        "cols": cols,
        "entries": int(csr.nnz),
        "row_min": int(lengths.min(initial=csr.nnz if rows else 0)),
        "row_mean": float(csr.nnz / max(rows, 1)),
        "row_max": int(lengths.max(initial=0)),
        "in_cache": moved <= device.cache_bytes,
        "verified": found.verified.passed,
        "worst_error_over_bound": found.verified.worst,
        "rows_failed": found.verified.rows_failed,
        **planning,
        "plan_products": 1e3 * planning["plan_ms"] / ours,
        "plan_bytes": int(operator.nbytes),
        "bytes_ratio": operator.nbytes / csr_bytes(rows, csr.nnz, itemsize),
        "moved_bytes": moved,
        "roofline_us": roofline,
        "statistic": "median" if device.kind == "cpu" else "best",
        "time_us": ours,
        "time_over_roofline": ours / roofline,
        "gflops": 2e-3 * csr.nnz / ours,
        "gbytes_per_s": 1e-3 * moved / ours,
        "best_baseline": best,
        "best_baseline_us": found.us(best),
        "speedup_best": found.us(best) / ours,
        "method": found.timings[OURS].method if OURS in found.timings else "",
        "missing": "; ".join(f"{name}: {reason}" for name, reason in found.missing.items()),
    }
    for each, timing in found.timings.items():
        figures[f"{each}_us"] = timing.median_us
        figures[f"{each}_best_us"] = timing.best_us
        figures[f"{each}_spread"] = timing.spread
        figures[f"{each}_cold_us"] = getattr(timing, "cold_us", math.nan)
        figures[f"{each}_setup_ms"] = found.setup_ms.get(each, math.nan)
    return found, {key: as_text(value) for key, value in figures.items()}


def time_planning(
    plan: Callable[[Any], SpMatrix], csr: Any, device: BenchDevice
) -> tuple[SpMatrix, dict[str, float]]:
    """Return the planned matrix, and milliseconds by the name of their column; NaN where there are none.

    `plan_ms` counts from a matrix on the host, `plan_device_ms` from one that lies on the GPU. `upload_ms` is
    the copy of the plain CSR matrix to the GPU, which every other library of the GPU needs.
    """
    resident, upload_ms = best_ms(lambda: device.resident(csr), device)
    device_ms = math.nan
    if resident is None:
        upload_ms = math.nan
    else:
        with suppress(NotImplementedError):
            _, device_ms = best_ms(lambda: plan(resident), device)
    operator, host_ms = best_ms(lambda: plan(csr), device)
    return operator, {"plan_ms": host_ms, "plan_device_ms": device_ms, "upload_ms": upload_ms}


def time_transposing(
    plan: Callable[[Any], SpMatrix], csr: Any, device: BenchDevice
) -> tuple[SpMatrix, dict[str, float]]:
    """Return the transpose of the planned matrix, and the milliseconds of making it where that lies."""
    best, begun = math.inf, time.perf_counter()
    for nth in range(PLAN_TRIES):
        if nth > 1 and time.perf_counter() - begun > PLAN_SECONDS:
            break
        planned: Any = plan(csr)
        device.synchronize()
        operator, spent = best_ms(partial(getattr, planned, "T"), device, tries=1)
        best = min(best, spent)
    return operator, {"plan_ms": best, "plan_device_ms": best, "upload_ms": math.nan}


def warm_up(
    plan: Callable[[Any], SpMatrix],
    device: BenchDevice,
    dtype: Any = np.float64,
    *,
    transpose: bool = False,
) -> None:
    """Plan and multiply a small matrix with rows of every category, so that compiling is timed nowhere."""
    import scipy.sparse

    lengths = np.array([0, 1, 2, 3, 4, 5, 9, 32, 33, 300, 600] * 4)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    values = np.ones(indptr[-1], dtype=dtype)
    csr = scipy.sparse.csr_array((values, indices, indptr), shape=(len(lengths), 640))
    x = device.vector(np.ones(640, dtype=dtype))
    planned: Any = plan(csr)
    planned.matvec(x, out=device.vector(np.zeros(len(lengths), dtype=dtype)))
    if transpose:
        planned.T.matvec(device.vector(np.ones(len(lengths), dtype=dtype)))
    device.synchronize()


FAMILIES = {
    "full": (
        "stencil27:100 stencil27:60 stencil27:24 poisson3d:128 poisson3d:40 poisson2d:1500 "
        "poisson2d9:1200 fem3:48 fem3:20 fem1:100 qcd:16 triangles:1000000 geometric:1000000 rmat:19 "
        "rmat:16 powerlaw:1000000 circuit:1000000 kkt:1000000 lp:100000:400000 markov:1000000 "
        "band:300000 short:2000000 spikes:400000:20:100000 dense:3000 random:300000:300000:0.00005 "
    ),
    "small": (
        "stencil27:40 poisson3d:50 poisson2d:500 poisson2d9:300 fem3:20 fem1:40 qcd:6 triangles:60000 "
        "geometric:60000 rmat:14 powerlaw:60000 circuit:60000 kkt:60000 lp:10000:40000 markov:60000 "
        "band:20000 short:200000 spikes:60000:5:20000 dense:800 random:30000:30000:0.0005 "
    ),
}
"""The generated half of the collection; most of `full` is beyond the cache of a large GPU."""


def collection(scale: str) -> list[str]:
    """Return the files in the folder DASP_MATRICES, by name, and the generated families of a scale."""
    folder = os.environ.get("DASP_MATRICES")
    found = [path for path in Path(folder).iterdir() if path.name.endswith(ENDINGS)] if folder else []
    files = sorted(found, key=lambda path: path.name.lower())
    return [*map(str, files), *FAMILIES[scale].split()]


class Sparse:
    """Sparse products, a row a matrix; `args` are the options of `python -m benchmarks.bench sparse`.

    A matrix is a file, a name or a model, as `dasp.load_matrix` takes them; `^2` behind one means its square.

    Raises
    ------
    ValueError
        If the policy or a baseline is unknown.
    """

    def __init__(self, args: argparse.Namespace, device: BenchDevice) -> None:
        known = device.baseline_names
        if unknown := [name for name in args.baselines or () if name not in known]:
            raise ValueError(f"--baselines names {', '.join(unknown)}; some of {', '.join(known)} are needed")
        self.device, self._args = device, args
        self.cases = [*args.matrix, *(collection(args.collection) if args.collection else ())]
        self.cases = self.cases or list(DEFAULT_MATRICES)
        self._plan = planner(device.kind, args.format)
        self._warm = False

    def wanted(self, case: str) -> list[Row]:
        """Return the one row of a matrix."""
        named = {"matrix": self._name(case), "dtype": self._args.dtype}
        return [{**named, "device": self.device.kind, "policy": self._args.format}]

    def _name(self, case: str) -> str:
        return short_name(case) + (".T" if self._args.transpose else "")

    def measure(self, case: str) -> Iterator[Row]:
        """Load, plan, verify and time one matrix."""
        args = self._args
        csr, dtype = load(case, args.seed), np.dtype(args.dtype)
        if not self._warm:
            warm_up(self._plan, self.device, dtype, transpose=args.transpose)
            self._warm = True
        _, row = measure(
            self._name(case),
            csr,
            self.device,
            plan=self._plan,
            dtype=dtype,
            seed=args.seed,
            samples=args.repeat,
            baselines=args.baselines,
            transpose=args.transpose,
        )
        yield {**row, "policy": args.format, "seed": str(args.seed)}

    def report(self, rows: Sequence[Row]) -> Report:
        """Products, planning and what they sum up to."""
        return sparse_report.report(rows)


SQUARE, SORTED = "^2", "^2 sorted"
"""Behind the name of a matrix: its product with itself, with columns as SciPy leaves them, or sorted."""


def load(spec: str, seed: int) -> Any:
    """Return the matrix that a user names, from a file or a model, or its square."""
    from dasp.io.matrices import load_matrix

    A = load_matrix(spec.removesuffix(SORTED).removesuffix(SQUARE), seed=seed)
    if spec.endswith((SQUARE, SORTED)):
        A = A @ A
    if spec.endswith(SORTED):
        A.sort_indices()
    return A


def short_name(spec: str) -> str:
    """Return a file's name without folder and suffix; a model's specification as it is.

    Examples
    --------
    >>> short_name("/data/cant.mtx.gz"), short_name("poisson3d:100")
    ('cant', 'poisson3d:100')
    """
    name = Path(spec).name
    for suffix in ENDINGS:
        name = name.removesuffix(suffix)
    return name
