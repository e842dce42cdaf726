"""Conjugate gradients in fewer passes, for a GPU and systems so small that launches are what counts.

In exact arithmetic these are conjugate gradients; they carry more along by recurrences, and so drift sooner
from the true residual. Both judge an iteration at the head of the next one, as only a GPU's loop does.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dasp.solvers.scalars import RUNNING, Scalar, where
from dasp.solvers.space import State
from dasp.solvers.system import System
from dasp.solvers.three_pass import INDEFINITE, ConjugateGradients


def _step(rr: Scalar, delta: Scalar, s: State) -> tuple[Scalar, Scalar, Scalar]:
    """Return alpha, beta and the method's reason to stop, from r' r and r' A r and those of the last
    iteration."""
    beta = where(s["last"] > 0.0, rr / s["last"], 0.0)
    curvature = delta - beta * rr / s["alpha"]
    alpha = where(curvature > 0.0, rr / curvature, 0.0)
    return alpha, beta, where(curvature > 0.0, float(RUNNING), float(INDEFINITE))


class TwoPassConjugateGradients:
    """One product and two passes an iteration, the first of which is part of the product where that can be.

    Chronopoulos and Gear (1989), doi:10.1016/0377-0427(89)90045-9.
    """

    period: ClassVar = 1
    leaving: ClassVar[tuple[str, ...]] = ("rr",)
    restarts: ClassVar[frozenset[int]] = ConjugateGradients.restarts
    words: ClassVar[dict[int, str]] = ConjugateGradients.words
    names: ClassVar = ("p", "s")

    def __init__(self, system: System) -> None:
        self._system, fuse = system, system.vectors.fuse
        self._clear = fuse("p = 0", "s = 0", dots=("r r",))
        self._measure = fuse(dots=("q r",))
        self._advance = fuse(
            *("p = r + beta p", "s = q + beta s", "x = x + alpha p", "r = r - alpha s"), dots=("r r",)
        )

    def start(self, s: State) -> State:
        """Clear what is updated."""
        (rr,) = self._clear()
        return {"rr": rr, "last": 0.0, "alpha": 1.0}

    def iterate(self, phase: int, s: State) -> State:
        """Measure, then everything else at once."""
        self._system.multiply("r", "q")
        (delta,) = self._measure()
        rr: Any = s["rr"]
        alpha, beta, code = _step(rr, delta, s)
        (next_rr,) = self._advance(alpha=alpha, beta=beta)
        return {"judge": rr, "rr": next_rr, "last": rr, "alpha": alpha, "code": code}


class PipelinedConjugateGradients:
    """One product and one pass an iteration: both dot products are of vectors that are there at its start.

    Ghysels and Vanroose (2014), doi:10.1016/j.parco.2013.06.001, algorithm 3.
    """

    period: ClassVar = 1
    leaving: ClassVar[tuple[str, ...]] = ("rr", "delta")
    restarts: ClassVar[frozenset[int]] = ConjugateGradients.restarts
    words: ClassVar[dict[int, str]] = ConjugateGradients.words
    names: ClassVar = ("w", "z", "s", "p")

    def __init__(self, system: System) -> None:
        self._system, fuse = system, system.vectors.fuse
        dots = ("r r", "w r")
        self._clear = fuse("z = 0", "s = 0", "p = 0", dots=dots)
        self._advance = fuse(
            *("z = q + beta z", "s = w + beta s", "p = r + beta p"),
            *("x = x + alpha p", "r = r - alpha s", "w = w - alpha z"),
            dots=dots,
        )

    def start(self, s: State) -> State:
        """Take w = A r along, and clear what is updated."""
        self._system.multiply("r", "w")
        rr, delta = self._clear()
        return {"rr": rr, "delta": delta, "last": 0.0, "alpha": 1.0}

    def iterate(self, phase: int, s: State) -> State:
        """Make the product ahead, then everything else at once."""
        self._system.multiply("w", "q")
        rr: Any = s["rr"]
        alpha, beta, code = _step(rr, s["delta"], s)
        next_rr, delta = self._advance(alpha=alpha, beta=beta)
        return {"judge": rr, "rr": next_rr, "delta": delta, "last": rr, "alpha": alpha, "code": code}
