"""`block_cg` and `lobpcg` of several columns, beside SciPy's `lobpcg`; a row of CSV for each.

    python -m benchmarks.block_methods --csv block_methods.csv poisson2d:245 poisson3d:40

Each time is the best of some solves, every BLAS having one thread.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.linalg

import dasp
from benchmarks.bench import results
from dasp.cli.systems import one_blas_thread

FIELDS = ("version", "matrix", "rows", "columns", "method", "iterations", "seconds", "converged")


def measure(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """Return what a call returns, and its least time in seconds."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        answer = call()
        best = min(best, time.perf_counter() - began)
    return answer, best


def rows(matrix: str, columns: int, version: str, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of a matrix: the two methods of dasp, and SciPy's."""
    csr = dasp.models.generate(matrix)
    n, rng = csr.shape[0], np.random.default_rng(0)
    A, B = dasp.SpMatrix.from_scipy(csr, device="cpu"), rng.standard_normal((csr.shape[0], columns))
    X = rng.standard_normal((n, columns))
    known = {"version": version, "matrix": matrix, "rows": n, "columns": columns}
    (_, stats), seconds = measure(lambda: dasp.solvers.block_cg(A, B, rtol=1e-8), repeats)
    said = [("block_cg", stats.iterations, seconds, stats.converged)]
    (_, _, stats), seconds = measure(
        lambda: dasp.solvers.lobpcg(A, X, largest=False, rtol=1e-2, maxiter=400), repeats
    )
    said.append(("lobpcg", stats.iterations, seconds, stats.converged))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (values, vectors, history), seconds = measure(
            lambda: scipy.sparse.linalg.lobpcg(
                csr,
                X.copy(),
                largest=False,
                tol=stats.residual,
                maxiter=400,
                retResidualNormsHistory=True,
            ),
            repeats,
        )
    reached = np.linalg.norm(csr @ vectors - vectors * values, axis=0).max() <= 1.01 * stats.residual
    said.append(("scipy lobpcg", len(history), seconds, bool(reached)))
    return [
        known | dict(zip(FIELDS[4:], (name, made, f"{time_:.3f}", ok), strict=True))
        for name, made, time_, ok in said
    ]


def main() -> None:
    """Measure every matrix that is named, and keep the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--version", default="", help="what the rows call this dasp: a commit")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    limit, said = one_blas_thread()
    print(said, flush=True)
    with limit:
        for matrix in options.matrices:
            for row in rows(matrix, options.columns, options.version, options.repeats):
                print(*row.values(), flush=True)
                if options.csv:
                    results.append(options.csv, {name: str(value) for name, value in row.items()})


if __name__ == "__main__":
    main()
