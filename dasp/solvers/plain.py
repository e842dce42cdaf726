"""The iteration of conjugate gradients: one product and three passes over the vectors.

Hestenes and Stiefel (1952), doi:10.6028/jres.049.044; with a preconditioner as in Saad, Iterative Methods for
Sparse Linear Systems, second edition, algorithm 9.1.
"""

from __future__ import annotations

from typing import ClassVar

from dasp.solvers.operator import Matrix
from dasp.solvers.scalars import OWN, RUNNING, where
from dasp.solvers.space import State
from dasp.solvers.system import System

INDEFINITE, BAD_M = OWN, OWN + 1


class ConjugateGradients:
    """One product and three passes an iteration, four with a preconditioner that is no diagonal."""

    period: ClassVar = 1
    leaving: ClassVar[tuple[str, ...]] = ()
    restarts: ClassVar[frozenset[int]] = frozenset({INDEFINITE})
    words: ClassVar[dict[int, str]] = {
        INDEFINITE: "p' A p is not positive, so A is not positive definite (or is singular, and b out of its "
        "reach); minres takes symmetric matrices that are not",
        BAD_M: "r' M r is not positive, so M is not positive definite",
    }

    def __init__(self, system: System) -> None:
        self._system = system
        self._z = "r" if system.preconditioner is None else "z"
        fuse = system.vectors.fuse
        self._first = fuse(f"p = {self._z}", dots=(f"r {self._z}",))
        self._curvature = fuse(dots=("p q",))
        diagonal = getattr(system.preconditioner, "diagonal", None)
        self._divide = None if diagonal is None else fuse("z = d*r")
        self._inner = fuse(dots=("r z",)) if self._z == "z" and diagonal is None else None
        if diagonal is None:
            self._descend = fuse("r = r - alpha q", dots=("r r",))
        else:
            system.vectors["d"][...] = system.space.asarray(diagonal)
            self._descend = fuse("r = r - alpha q", "z = d*r", dots=("r r", "r z"))
        self._advance = fuse("x = x + alpha p", f"p = {self._z} + beta p")

    def start(self, s: State) -> State:
        """Go down along M r."""
        if self._divide:
            self._divide()
        elif self._inner:
            self._system.precondition("r", "z")
        (rho,) = self._first()
        stopped = where(s["code"] > float(RUNNING), s["code"], float(BAD_M))
        return {"rho": rho, "code": where(rho > 0.0, s["code"], stopped)}

    def iterate(self, phase: int, s: State) -> State:
        """Go as far along p as lowers the error most; then turn."""
        self._system.multiply("p", "q")
        (curvature,) = self._curvature()
        self.alpha = alpha = where(curvature > 0.0, s["rho"] / curvature, 0.0)
        dots = self._descend(alpha=alpha)
        rr, rho = dots[0], dots[-1]
        if self._inner:
            self._system.precondition("r", "z")
            (rho,) = self._inner()
        beta = rho / s["rho"]
        self._advance(alpha=alpha, beta=beta)
        of_m = where(rho > 0.0, float(RUNNING), float(BAD_M))
        return {"rr": rr, "rho": rho, "code": where(curvature > 0.0, of_m, float(INDEFINITE))}


def names_with(M: Matrix | None) -> tuple[str, ...]:
    """Return the vectors that conjugate gradients take with a preconditioner."""
    if M is None:
        return ("p",)
    return ("p", "z") if getattr(M, "diagonal_of_inverse", None) is None else ("p", "z", "d")
