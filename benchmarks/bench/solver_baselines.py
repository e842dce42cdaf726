"""The solvers that ours are compared with beside SciPy and CuPy: JAX's, and PyAMG with our smoother.

Each is made ready for one system and returns x where it lies.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from dasp.cli.systems import Solve

SMOOTHER = ("jacobi", {"omega": 4.0 / 3.0, "iterations": 1})
"""PyAMG's, that of our `jacobi`."""


def jax_methods() -> tuple[str, ...]:
    """Return the methods that JAX has, none where it is not installed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of a GPU's memory
    try:
        import jax.experimental.sparse
        import jax.scipy.sparse.linalg  # noqa: F401
    except ImportError:
        return ()
    return "cg", "bicgstab"


def by_jax(kind: str, method: str, csr: Any, rtol: float, maxiter: int) -> Solve:
    """Return a solve by JAX, compiled as one loop on the device; it tells no iterations."""
    import jax
    import jax.experimental.sparse
    import jax.scipy.sparse.linalg

    jax.config.update("jax_enable_x64", True)
    device = jax.devices("cpu" if kind == "cpu" else "gpu")[0]
    with jax.default_device(device):
        A = jax.device_put(jax.experimental.sparse.BCSR.from_scipy_sparse(csr), device)
        b = jax.device_put(np.ones(csr.shape[0], csr.dtype), device)
    solver = getattr(jax.scipy.sparse.linalg, method)
    run = jax.jit(lambda A, b: solver(lambda x: A @ x, b, tol=rtol, maxiter=maxiter)[0])
    run(A, b).block_until_ready()
    return lambda: run(A, b).block_until_ready()


def by_pyamg(ml: Any, b: np.ndarray[Any, Any], rtol: float, maxiter: int) -> tuple[Solve, list[float]]:
    """Return a solve by conjugate gradients with PyAMG's own cycle, and where it leaves its residuals."""
    import pyamg

    pyamg.relaxation.smoothing.change_smoothers(ml, SMOOTHER, SMOOTHER)
    residuals: list[float] = []

    def solve() -> Any:
        residuals.clear()
        return ml.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)

    return solve, residuals
