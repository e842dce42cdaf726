"""`dasp solve --compare`: the same system solved by methods of SciPy and CuPy, and by PyAMG's multigrid."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasp.cli.systems import Outcome, judge, true_residual
from dasp.multigrid.hierarchy import make_hierarchy
from dasp.preconditioners.automatic import choose_method
from dasp.runtime.arrays import to_host
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array
from dasp.solvers.operator import Matrix

SHARED = ("cg", "minres", "bicgstab", "gmres")
"""Methods that SciPy and CuPy have under the same names and with the same arguments as dasp."""


def solve_by_others(
    matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int, device: str
) -> list[Outcome]:
    """Solve the same system by SciPy, by CuPy if the device is a GPU, and by PyAMG, where they can."""
    outcomes: list[Outcome] = []
    if method in SHARED:
        outcomes += [
            _solve_by_library(kind, matrix, b, method, rtol, maxiter)
            for kind in (("cpu",) if device == "cpu" else ("cpu", "cuda"))
        ]
    if choose_method(matrix)[0] == "cg" and b.dtype.kind == matrix.dtype.kind:  # as PyAMG needs it
        with suppress(RuntimeError):  # it is not installed, or makes no hierarchy
            outcomes.append(_solve_by_pyamg(matrix, b, rtol, maxiter))
    return outcomes


def _solve_by_library(
    kind: str, matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int
) -> Outcome:
    """Solve by a solver of SciPy or CuPy; time the second of two solves, which counts no iterations."""
    name, _ = find_library(kind)
    operator, there = matrix, b
    if kind == "cuda":
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        operator, there = csr_matrix(matrix.astype(b.dtype, copy=False)), cupy.asarray(b)
    solve_again, iterations = prepare_by_library(kind, method, operator, there, rtol, maxiter)
    began = time.perf_counter()
    x = to_host(solve_again())
    seconds = time.perf_counter() - began
    return judge(f"{name} {method}", iterations, 0.0, seconds, true_residual(matrix, x, b), rtol)


def _solve_by_pyamg(matrix: csr_array, b: NDArray[np.inexact], rtol: float, maxiter: int) -> Outcome:
    began = time.perf_counter()
    ml = make_hierarchy(matrix)
    setup = time.perf_counter() - began
    residuals: list[float] = []
    began = time.perf_counter()
    x = ml.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)
    seconds = time.perf_counter() - began
    made = max(0, len(residuals) - 1)
    return judge("PyAMG cg with its cycle", made, setup, seconds, true_residual(matrix, x, b), rtol)


Solve = Callable[[], Any]
"""Solves the system; returns x on its device."""

RESTART = 30
"""Iterations of gmres between two restarts."""


def prepare_by_library(
    kind: str, method: str, A: Matrix, b: Array, rtol: float, maxiter: int
) -> tuple[Solve, int]:
    """Solve once by SciPy or CuPy to count iterations; return a function that solves again, and the count.

    CuPy's minres takes `tol` in place of `rtol`, and stops by an estimate of its own.
    """
    name, library = find_library(kind)
    solver = getattr(library, method)
    options: dict[str, Any] = {"maxiter": maxiter}
    options["tol" if (name, method) == ("CuPy", "minres") else "rtol"] = rtol
    count, each = [0], 1
    if method == "gmres":
        options |= {"restart": RESTART, "callback_type": "pr_norm"}
        if name == "SciPy":
            options["maxiter"] = ceil_div(maxiter, RESTART)
        else:
            each = RESTART  # CuPy calls back after each cycle

    def add(_: object) -> None:
        count[0] += each

    solver(A, b, **options, callback=add)
    return lambda: solver(A, b, **options)[0], count[0]


def find_library(kind: str) -> tuple[str, ModuleType]:
    """Return the name and the module of the library with solvers for a device, `cpu` or `cuda`."""
    if kind == "cpu":
        import scipy.sparse.linalg

        return "SciPy", scipy.sparse.linalg
    import cupyx.scipy.sparse.linalg

    return "CuPy", cupyx.scipy.sparse.linalg


def one_blas_thread() -> tuple[AbstractContextManager[Any], str]:
    """Return a context in which every BLAS of this process has one thread, and a message about it.

    Spinning threads of a BLAS take processors from the solver that runs next, which would distort its time.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext(), "BLAS threads are not limited: threadpoolctl is not installed"
    return threadpool_limits(limits=1, user_api="blas"), "BLAS limited to 1 thread for all solvers"
