"""LSQR, for least-squares problems and matrices of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import make_limits, one_call
from dasp.solvers.leastsquares import Bidiagonalization, Problem, solve_least_squares
from dasp.solvers.operator import Matrix
from dasp.solvers.scalars import Scalar, hypot, where
from dasp.solvers.space import State
from dasp.solvers.stats import Stats
from dasp.solvers.workspace import Workspace


class Lsqr(Bidiagonalization):
    """A product with A, one with its adjoint, and three passes an iteration."""

    names = ("w",)

    def __init__(self, problem: Problem) -> None:
        fuse = problem.columns.fuse
        self._first = fuse("w = scale v")
        self._step = fuse("x = x + step w", "w = scale v - back w")

    def start(self, s: State, beta: Scalar, alpha: Scalar) -> State:
        """Take the first v as the direction."""
        self._first(scale=where(alpha > 0.0, 1.0 / alpha, 0.0))
        return {"phi_bar": beta, "rho_bar": alpha}

    def iterate(self, s: State, alpha: Scalar, beta: Scalar, next_alpha: Scalar) -> State:
        """Rotate the bidiagonal matrix into a triangle, and step."""
        rho = hypot(s["rho_bar"], beta)
        c, sine = s["rho_bar"] / rho, beta / rho
        theta, phi, phi_bar = sine * next_alpha, c * s["phi_bar"], sine * s["phi_bar"]
        self._step(step=phi / rho, scale=where(next_alpha > 0.0, 1.0 / next_alpha, 0.0), back=theta / rho)
        gradient = phi_bar * next_alpha * c
        return {
            "rr": phi_bar * phi_bar,
            "gradient": gradient * gradient,
            "phi_bar": phi_bar,
            "rho_bar": -c * next_alpha,
        }


@one_call(ranks=True)
def lsqr(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    damp: float = 0.0,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], None] | None = None,
    check_every: int | None = None,
    workspace: Workspace | None = None,
    progress: bool = False,
) -> tuple[Array, Stats]:
    """Find the x of least norm(b - A x), for A of any shape, by LSQR.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (m, n)
        With a transpose: `A.T`, or `A.rmatvec`.
    b : array, shape (m,)
        NumPy, or CuPy for a matrix on a GPU.
    x0 : array, shape (n,), optional
        Where to start; zeros by default, from which the shortest of all solutions is found.
    damp : float
        Minimize norm(b - A x)^2 + damp^2 norm(x - x0)^2, as SciPy does: solve the problem of the matrix
        [A; damp I] and the right-hand side [b; damp x0]. Below, A and b stand for these. At least 0; on
        several ranks 0.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol * norm(b), atol), or when the residual r is orthogonal to the
        columns: norm(A' r) <= rtol * norm(A) * norm(r), with SciPy's estimate of A's Frobenius norm. The
        estimate grows: it is too small at first, and several times too large after more iterations than A
        has large singular values.
    maxiter : int, optional
        Iterations at most, 4 max(m, n) by default.
    callback : callable, optional
        Called with x after each check.
    check_every : int, optional
        Iterations between two checks, each an entry of `Stats.residuals` and a call of `callback`.
    workspace : Workspace, optional
        Keeps vectors and prepared passes for the next solve with A.
    progress : bool
        Show the residual as it falls (needs tqdm).

    Returns
    -------
    x : array, shape (n,), of the kind and place of b
    stats : Stats
        `residual` is norm(b - A x), which need not be small.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value, or A has no transpose.

    Notes
    -----
    Memory: 3 vectors of length m and 4 of length n.

    References
    ----------
    Paige and Saunders (1982), doi:10.1145/355984.355989.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import lsqr
    >>> x, stats = lsqr(np.array([[1.0], [1.0]]), np.array([1.0, 2.0]))
    >>> x.round(9), stats.converged
    (array([1.5]), True)
    """
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress, usual=4)
    return solve_least_squares(A, b, x0, limits, workspace, Lsqr, damp)
