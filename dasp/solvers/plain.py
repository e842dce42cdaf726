"""The iteration of conjugate gradients: one product and three passes over the vectors.

Hestenes and Stiefel (1952), doi:10.6028/jres.049.044; with a preconditioner as in Saad, Iterative Methods for
Sparse Linear Systems, second edition, algorithm 9.1.
"""

from __future__ import annotations

from typing import ClassVar

from dasp.solvers.operator import Matrix
from dasp.solvers.scalars import OWN, RUNNING, Scalar, where
from dasp.solvers.space import State
from dasp.solvers.system import System

INDEFINITE, BAD_M, NOT_HERMITIAN = OWN, OWN + 1, OWN + 2

SKEW = {"complex64": 1e-2, "complex128": 1e-4}
"""An imaginary part of p' A p above this times p' p and the norm of A, as far as that has shown, is no
rounding: with the unit roundoff that would take a p whose Rayleigh quotient is 1e-12 (in complex64 6e-6) of
the norm, and none before it with a larger one."""


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
        is_diagonal = system.diagonal is not None
        self._divide = fuse("z = d*r") if is_diagonal else None
        self._inner = fuse(dots=("r z",)) if self._z == "z" and not is_diagonal else None
        if is_diagonal:
            self._descend = fuse("r = r - alpha q", "z = d*r", dots=("r r", "r z"))
        else:
            self._descend = fuse("r = r - alpha q", dots=("r r",))
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


class HermitianConjugateGradients(ConjugateGradients):
    """The passes of `ConjugateGradients`, and p' p in the one that makes p' A p.

    With the real part for an inner product the n complex numbers of a vector are 2 n real ones, and a
    Hermitian matrix is a symmetric one of them. So every coefficient is real, and but for products the
    iteration is the same. If A is not Hermitian, p' A p has an imaginary part.
    """

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


def names_with(M: Matrix | None) -> tuple[str, ...]:
    """Return the vectors that conjugate gradients take with a preconditioner."""
    if M is None:
        return ("p",)
    return ("p", "z") if getattr(M, "diagonal_of_inverse", None) is None else ("p", "z", "d")
