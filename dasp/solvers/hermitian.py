"""Conjugate gradients for Hermitian matrices: those for symmetric ones, which look whether A is Hermitian.

With the real part for an inner product the n complex numbers of a vector are 2 n real ones, and a Hermitian
matrix is a symmetric one of them. So every coefficient is real, and but for products the iteration is the
same. What is not is how a matrix that is not Hermitian shows: p' A p has an imaginary part.
"""

from __future__ import annotations

from typing import ClassVar

from dasp.solvers.plain import BAD_M, ConjugateGradients
from dasp.solvers.scalars import Scalar, where
from dasp.solvers.space import State
from dasp.solvers.system import System

NOT_HERMITIAN = BAD_M + 1

SKEW = {"complex64": 1e-2, "complex128": 1e-4}
"""An imaginary part of p' A p above this times p' p and the norm of A, as far as that has shown, is no
rounding: with the unit roundoff that would take a p whose Rayleigh quotient is 1e-12 (in complex64 6e-6) of
the norm, and none before it with a larger one."""


class HermitianConjugateGradients(ConjugateGradients):
    """The passes of `ConjugateGradients`, and p' p in that which makes p' A p."""

    words: ClassVar[dict[int, str]] = {
        **ConjugateGradients.words,
        NOT_HERMITIAN: "p' A p is not real, so A is not Hermitian; gmres and bicgstab take such matrices",
    }

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self._skew = SKEW[system.space.dtype.name]
        self._look = system.vectors.fuse(dots=("p'q", "p p"))
        self._curvature = self._look_along

    def _look_along(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        self._seen = along, _ = self._look(**coefficients)
        return (along.real,)

    def start(self, s: State) -> State:
        """Nothing is known of the norm of A."""
        return {**super().start(s), "norm": 0.0}

    def iterate(self, phase: int, s: State) -> State:
        """Do as for a symmetric matrix, and look at what p' A p was."""
        new = super().iterate(phase, s)
        along, pp = self._seen
        norm = where(along.real > s["norm"] * pp, along.real / pp, s["norm"])
        skew = abs(along.imag) > self._skew * norm * pp
        return {**new, "norm": norm, "code": where(skew, float(NOT_HERMITIAN), new["code"])}


def conjugate_gradients(system: System) -> ConjugateGradients:
    """Return the method for the numbers of a system."""
    return HermitianConjugateGradients(system) if system.complex else ConjugateGradients(system)
