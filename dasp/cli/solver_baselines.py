"""The solvers that ours are compared with: the methods of SciPy and CuPy, and PyAMG's multigrid."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dasp.runtime.integers import ceil_div

if TYPE_CHECKING:
    from dasp.runtime.types import Array

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
