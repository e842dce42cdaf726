"""Conjugate gradients with one sum over all dot products an iteration, for several ranks.

Chronopoulos and Gear (1989), doi:10.1016/0377-0427(89)90045-9. In exact arithmetic these are conjugate
gradients; A p is carried along by a recurrence, and so is the curvature, which drift from what they stand
for. Where the residual that came of it is not the true one, the method starts again from x with the true
residual (`dasp.solvers.system`), and where that does not help, the plain one goes on.
"""

from __future__ import annotations

from typing import ClassVar

from dasp.solvers.plain import BAD_M, INDEFINITE, ConjugateGradients, names_with
from dasp.solvers.scalars import RUNNING, Scalar, where
from dasp.solvers.space import State
from dasp.solvers.system import System


class ReducedConjugateGradients:
    """One product, two passes and one sum over the ranks an iteration; three passes with a preconditioner
    that is no diagonal."""

    alike: ClassVar = True
    period: ClassVar = 1
    leaving: ClassVar[tuple[str, ...]] = ()
    restarts: ClassVar[frozenset[int]] = ConjugateGradients.restarts
    words: ClassVar[dict[int, str]] = ConjugateGradients.words

    def __init__(self, system: System) -> None:
        self._system, fuse = system, system.vectors.fuse
        self._z = z = "r" if system.preconditioner is None else "z"
        diagonal = getattr(system.preconditioner, "diagonal", None)
        divide = () if diagonal is None else ("z = d*r",)
        if diagonal is not None:
            system.vectors["d"][...] = system.space.asarray(diagonal)
        self._applies = z == "z" and diagonal is None
        self._clear = fuse("p = 0", "s = 0", *divide)
        steps = f"p = {z} + beta p", "s = q + beta s", "x = x + alpha p", "r = r - alpha s"
        self._advance = fuse(*steps, *divide)
        self._measure = fuse(dots=("r r", f"q {z}") if z == "r" else ("r r", f"q {z}", f"r {z}"))

    def start(self, s: State) -> State:
        """Clear what is updated, and measure along M r."""
        self._clear()
        _, delta, rho = self._look()
        code = where(delta > 0.0, float(RUNNING), float(INDEFINITE))
        of_m = where(rho > 0.0, code, float(BAD_M))
        return {
            "rho": rho,
            "alpha": where(delta > 0.0, rho / delta, 0.0),
            "beta": 0.0,
            "code": where(s["code"] > float(RUNNING), s["code"], of_m),
        }

    def iterate(self, phase: int, s: State) -> State:
        """Step with what the last iteration measured, then measure everything at once."""
        self._advance(alpha=s["alpha"], beta=s["beta"])
        rr, delta, rho = self._look()
        beta = rho / s["rho"]
        curvature = delta - beta * rho / s["alpha"]
        code = where(curvature > 0.0, float(RUNNING), float(INDEFINITE))
        return {
            "rr": rr,
            "rho": rho,
            "alpha": where(curvature > 0.0, rho / curvature, 0.0),
            "beta": beta,
            "code": where(rho > 0.0, code, float(BAD_M)),
        }

    def _look(self) -> tuple[Scalar, Scalar, Scalar]:
        if self._applies:
            self._system.precondition("r", "z")
        self._system.multiply(self._z, "q")
        dots = self._measure()
        return dots[0], dots[1], dots[-1] if self._z == "z" else dots[0]


def reduced_names(M: object) -> tuple[str, ...]:
    """Return the vectors that it takes with a preconditioner."""
    return (*names_with(M), "s")
