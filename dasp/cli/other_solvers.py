"""The solvers that `dasp solve --compare` runs beside ours: methods of SciPy and CuPy, PyAMG's multigrid."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasp.cli.systems import Outcome, judge
from dasp.multigrid.hierarchy import make_hierarchy
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array
from dasp.solvers.choose import choose_method

Solve = Callable[[], Any]
"""Solves, and returns x where it lies."""

SHARED = ("cg", "minres", "bicgstab", "gmres")
"""Methods that SciPy and CuPy have under the same names and with the same arguments as dasp."""

RESTART = 30
"""Iterations of a cycle of gmres."""


def library_of(kind: str) -> tuple[str, ModuleType]:
    """Return the name of the library with solvers for a device, `cpu` or `cuda`, and its module."""
    if kind == "cpu":
        import scipy.sparse.linalg

        return "SciPy", scipy.sparse.linalg
    import cupyx.scipy.sparse.linalg

    return "CuPy", cupyx.scipy.sparse.linalg


def by_library(kind: str, method: str, A: Any, b: Array, rtol: float, maxiter: int) -> tuple[Solve, int]:
    """Return a solve by SciPy or CuPy, and how many iterations it makes, which one solve counts.

    CuPy's minres tells of its progress by its own estimate, and stops by it.
    """
    name, library = library_of(kind)
    solver = getattr(library, method)
    options: dict[str, Any] = {"maxiter": maxiter}
    options["tol" if (name, method) == ("CuPy", "minres") else "rtol"] = rtol
    count, each = [0], 1
    if method == "gmres":
        options["restart"] = RESTART
        if name == "SciPy":
            options |= {"callback_type": "pr_norm", "maxiter": ceil_div(maxiter, RESTART)}
        else:
            each = RESTART  # CuPy calls back after each cycle
            options["callback_type"] = "pr_norm"

    def add(_: object) -> None:
        count[0] += each

    solver(A, b, **options, callback=add)
    options.pop("callback_type", None)
    return lambda: solver(A, b, **options)[0], count[0]


def one_blas_thread() -> tuple[AbstractContextManager[Any], str]:
    """Return a context in which every BLAS of this process has one thread, and words about it.

    Threads of a BLAS that spin take the processors from whatever runs next: a comparison would time that.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext(), "BLAS threads are not limited: threadpoolctl is not installed"
    return threadpool_limits(limits=1, user_api="blas"), "BLAS limited to 1 thread for all solvers"


def solve_by_others(
    matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int, device: str
) -> list[Outcome]:
    """Solve the same system by others: SciPy, CuPy if the device is a GPU, PyAMG if it is installed."""
    outcomes: list[Outcome] = []
    if method in SHARED:
        outcomes += [
            _solve_by_library(kind, matrix, b, method, rtol, maxiter)
            for kind in (("cpu",) if device == "cpu" else ("cpu", "cuda"))
        ]
    if choose_method(matrix)[0] == "cg" and b.dtype.kind == matrix.dtype.kind:  # as PyAMG needs it
        outcomes.extend(_solve_by_pyamg(matrix, b, rtol, maxiter))
    return outcomes


def _solve_by_library(
    kind: str, matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int
) -> Outcome:
    """Solve by one of SciPy's solvers, or of CuPy's; the second of two solves is timed, without counting."""
    name, _ = library_of(kind)
    operator, there = (matrix, b) if kind == "cpu" else _upload(matrix, b)
    solve_again, iterations = by_library(kind, method, operator, there, rtol, maxiter)
    began = time.perf_counter()
    x = solve_again()
    x = x if kind == "cpu" else x.get()
    seconds = time.perf_counter() - began
    reason = f"{name}'s {method} stopped above the tolerance"
    return judge(f"{name} {method}", matrix, x, b, rtol, iterations, 0.0, seconds, reason)


def _upload(matrix: csr_array, b: NDArray[np.inexact]) -> tuple[Any, Any]:
    """Return CuPy's matrix and vector, of one type."""
    import cupy
    import cupyx.scipy.sparse
    from scipy.sparse import csr_matrix

    on_device = cupyx.scipy.sparse.csr_matrix(csr_matrix(matrix.astype(b.dtype, copy=False)))
    return on_device, cupy.asarray(b)


def _solve_by_pyamg(matrix: csr_array, b: NDArray[np.inexact], rtol: float, maxiter: int) -> list[Outcome]:
    try:
        began = time.perf_counter()
        ml = make_hierarchy(matrix)
        setup = time.perf_counter() - began
    except RuntimeError:
        return []
    residuals: list[float] = []
    began = time.perf_counter()
    x = ml.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)
    seconds = time.perf_counter() - began
    reason = "PyAMG's cg stopped above the tolerance"
    made = max(0, len(residuals) - 1)
    return [judge("PyAMG cg with its cycle", matrix, x, b, rtol, made, setup, seconds, reason)]
