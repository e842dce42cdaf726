"""What our solvers are compared with: SciPy's, CuPy's and JAX's methods, and PyAMG's multigrid.

Each is made ready for one system and returns x where it lies, and the iterations. Where a library does not
tell these they are counted by a callback in one solve, which is not timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.runtime.integers import ceil_div

Solve = Callable[[], Any]
"""Solves, and returns x where it lies."""

RESTART = 30
"""Iterations of a cycle of gmres."""

SMOOTHER = ("jacobi", {"omega": 4.0 / 3.0, "iterations": 1})
"""PyAMG's, that of our `jacobi`."""


def library_of(kind: str) -> tuple[str, Any]:
    """Return the name of the library with solvers for a device, `cpu` or `cuda`, and its module."""
    if kind == "cpu":
        import scipy.sparse.linalg

        return "SciPy", scipy.sparse.linalg
    import cupyx.scipy.sparse.linalg

    return "CuPy", cupyx.scipy.sparse.linalg


def by_library(kind: str, method: str, A: Any, b: Any, rtol: float, maxiter: int) -> tuple[Solve, int]:
    """Return a solve by SciPy or CuPy, and how many iterations it makes.

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

    def counted(_: Any) -> None:
        count[0] += each

    solver(A, b, **options, callback=counted)
    options.pop("callback_type", None)
    return lambda: solver(A, b, **options)[0], count[0]


def jax_methods() -> tuple[str, ...]:
    """Return the methods that JAX has, none where it is not installed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of a GPU's memory
    try:
        import jax.experimental.sparse
        import jax.scipy.sparse.linalg  # noqa: F401
    except ImportError:
        return ()
    return "cg", "bicgstab"


def by_jax(kind: str, method: str, csr: Any, rtol: float, maxiter: int) -> tuple[Solve, None]:
    """Return a solve by JAX, compiled as one loop on the device; it tells no iterations."""
    import jax
    import jax.experimental.sparse
    import jax.scipy.sparse.linalg

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu" if kind == "cpu" else "gpu")[0]
    with jax.default_device(device):
        A = jax.device_put(jax.experimental.sparse.BCSR.from_scipy_sparse(csr), device)
        b = jax.device_put(np.ones(csr.shape[0]), device)
    solver = getattr(jax.scipy.sparse.linalg, method)
    run = jax.jit(lambda A, b: solver(lambda x: A @ x, b, tol=rtol, maxiter=maxiter)[0])
    run(A, b).block_until_ready()
    return lambda: run(A, b).block_until_ready(), None


def hierarchy(csr: Any, near_null: Any = None) -> Any:
    """Return PyAMG's smoothed aggregation of a matrix.

    Raises
    ------
    RuntimeError
        If PyAMG is not installed.
    """
    try:
        import pyamg
    except ImportError as error:
        raise RuntimeError("PyAMG is not installed; pip install pyamg") from error
    from scipy.sparse import csr_matrix

    return pyamg.smoothed_aggregation_solver(csr_matrix(csr), B=near_null)


def by_pyamg(ml: Any, b: np.ndarray[Any, Any], rtol: float, maxiter: int) -> tuple[Solve, list[float]]:
    """Return a solve by conjugate gradients with PyAMG's own cycle, and where it leaves its residuals."""
    import pyamg

    pyamg.relaxation.smoothing.change_smoothers(ml, SMOOTHER, SMOOTHER)
    residuals: list[float] = []

    def solve() -> Any:
        residuals.clear()
        return ml.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)

    return solve, residuals
