"""Conjugate gradients in one pass, for a GPU and systems so small that launches are what counts.

In exact arithmetic these are conjugate gradients; they carry more along by recurrences, and so drift sooner
from the true residual. An iteration is judged at the head of the next one, as only a GPU's loop does.
"""

from __future__ import annotations

from typing import ClassVar

from dasp.solvers.plain import INDEFINITE, ConjugateGradients
from dasp.solvers.scalars import RUNNING, Scalar, where
from dasp.solvers.space import State
from dasp.solvers.system import System


def _step(rr: Scalar, delta: Scalar, s: State) -> tuple[Scalar, Scalar, Scalar]:
    """Return alpha, beta and the method's reason to stop, from r' r and r' A r and those of the last
    iteration."""
    beta = where(s["last"] > 0.0, rr / s["last"], 0.0)
    curvature = delta - beta * rr / s["alpha"]
    alpha = where(curvature > 0.0, rr / curvature, 0.0)
    return alpha, beta, where(curvature > 0.0, float(RUNNING), float(INDEFINITE))


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
        rr: Scalar = s["rr"]
        alpha, beta, code = _step(rr, s["delta"], s)
        next_rr, delta = self._advance(alpha=alpha, beta=beta)
        return {"judge": rr, "rr": next_rr, "delta": delta, "last": rr, "alpha": alpha, "code": code}
