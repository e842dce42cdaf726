"""LSMR, for least-squares problems and matrices of any shape.

MINRES on the normal equations, without forming them.
"""

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


class Lsmr(Bidiagonalization):
    """A product with A, one with its adjoint, and three passes an iteration. Names are those of the paper."""

    names = ("h", "hbar")

    def __init__(self, problem: Problem) -> None:
        fuse = problem.columns.fuse
        self._first = fuse("h = scale v", "hbar = 0")
        self._step = fuse("hbar = h - old hbar", "x = x + step hbar", "h = scale v - back h")

    def start(self, s: State, beta: Scalar, alpha: Scalar) -> State:
        """Take the first v as the direction."""
        self._first(scale=where(alpha > 0.0, 1.0 / alpha, 0.0))
        ones = dict.fromkeys(("rho", "rhobar", "cbar", "rhodold"), 1.0)
        zeros = dict.fromkeys(("sbar", "betad", "tautildeold", "thetatilde", "zeta"), 0.0)
        return {"alphabar": alpha, "zetabar": alpha * beta, "betadd": beta, **ones, **zeros}

    def iterate(self, s: State, alpha: Scalar, beta: Scalar, next_alpha: Scalar) -> State:
        """Make two rotations, and step."""
        rho = hypot(s["alphabar"], beta)
        c, sine = s["alphabar"] / rho, beta / rho
        thetanew = sine * next_alpha
        thetabar, rhotemp = s["sbar"] * rho, s["cbar"] * rho
        rhobar = hypot(rhotemp, thetanew)
        cbar, sbar = rhotemp / rhobar, thetanew / rhobar
        zeta, zetabar = cbar * s["zetabar"], -sbar * s["zetabar"]
        self._step(
            old=thetabar * rho / (s["rho"] * s["rhobar"]),
            step=zeta / (rho * rhobar),
            scale=where(next_alpha > 0.0, 1.0 / next_alpha, 0.0),
            back=thetanew / rho,
        )
        new = {"rho": rho, "rhobar": rhobar, "cbar": cbar, "sbar": sbar, "zeta": zeta, "zetabar": zetabar}
        residual = self._residual(s, c, sine, thetabar, rhobar, zeta)
        return {**new, **residual, "alphabar": c * next_alpha, "gradient": zetabar * zetabar}

    @staticmethod
    def _residual(s: State, c: Scalar, sine: Scalar, thetabar: Scalar, rhobar: Scalar, zeta: Scalar) -> State:
        """Return the residual's squared norm (section 5.1 of the paper), and scalars for the next one."""
        betahat, betadd = c * s["betadd"], -sine * s["betadd"]
        rhotildeold = hypot(s["rhodold"], thetabar)
        ctildeold, stildeold = s["rhodold"] / rhotildeold, thetabar / rhotildeold
        thetatilde, rhodold = stildeold * rhobar, ctildeold * rhobar
        betad = ctildeold * betahat - stildeold * s["betad"]
        tautildeold = (s["zeta"] - s["thetatilde"] * s["tautildeold"]) / rhotildeold
        taud = (zeta - thetatilde * tautildeold) / rhodold
        return {
            "rr": (betad - taud) * (betad - taud) + betadd * betadd,
            "betadd": betadd,
            "thetatilde": thetatilde,
            "rhodold": rhodold,
            "betad": betad,
            "tautildeold": tautildeold,
        }


@one_call(ranks=True)
def lsmr(
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
    """Find the x of least norm(b - A x), for A of any shape, by LSMR.

    Parameters, results and errors are those of `dasp.solvers.lsqr`.

    Notes
    -----
    Memory: 3 vectors of length m and 5 of length n. The norm of A' r falls in every iteration, so the method
    may stop earlier than `lsqr`.

    References
    ----------
    Fong and Saunders (2011), doi:10.1137/10079687X.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import lsmr
    >>> x, stats = lsmr(np.array([[1.0], [1.0]]), np.array([1.0, 2.0]))
    >>> x.round(9), stats.converged
    (array([1.5]), True)
    """
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress, usual=4)
    return solve_least_squares(A, b, x0, limits, workspace, Lsmr, damp)
