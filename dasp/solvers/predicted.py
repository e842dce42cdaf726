"""Conjugate gradients with one sum over ranks an iteration, and one pass over the vectors.

Meurant (1987), doi:10.1016/0167-8191(87)90037-8: r'r after a step is predicted from what there is before it,
alpha^2 q'q - r'r. That makes beta alone; then r'r is computed, and summed along with the next iteration's p'q
and q'q. So it drifts no more than the plain form (Chen and Carson 2020, doi:10.1137/19M1276856).
"""

from __future__ import annotations

from typing import Any, ClassVar

from dasp.solvers.plain import INDEFINITE, ConjugateGradients
from dasp.solvers.scalars import RUNNING, where
from dasp.solvers.space import State
from dasp.solvers.system import System


class PredictedConjugateGradients:
    """One product and two passes an iteration, the first of which is part of the product where that can be.

    It judges an iteration at the head of the next one, as only a GPU's loop does.
    """

    alike: ClassVar = True
    period: ClassVar = 1
    leaving: ClassVar[tuple[str, ...]] = ("rr",)
    restarts: ClassVar[frozenset[int]] = ConjugateGradients.restarts
    words: ClassVar[dict[int, str]] = ConjugateGradients.words
    names: ClassVar = ("p",)

    def __init__(self, system: System) -> None:
        self._system, fuse = system, system.vectors.fuse
        self._first = fuse("p = r", dots=("r r",))
        self._measure = fuse(dots=("p q", "q q"))
        self._advance = fuse("x = x + alpha p", "r = r - alpha q", "p = r + beta p", dots=("r r",))

    def start(self, s: State) -> State:
        """Go down along r."""
        (rr,) = self._first()
        return {"rr": rr}

    def iterate(self, phase: int, s: State) -> State:
        """Measure, then everything else at once."""
        self._system.multiply("p", "q")
        curvature, square = self._measure()
        rr: Any = s["rr"]
        alpha = where(curvature > 0.0, rr / curvature, 0.0)
        predicted = alpha * alpha * square - rr
        beta = where(predicted > 0.0, predicted / rr, 0.0)
        (next_rr,) = self._advance(alpha=alpha, beta=beta)
        code = where(curvature > 0.0, float(RUNNING), float(INDEFINITE))
        return {"judge": rr, "rr": next_rr, "code": code}
