"""MINRES, for symmetric or Hermitian matrices that need not be definite.

The Lanczos vectors are not normalised: their lengths are in the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import make_limits, one_call
from dasp.solvers.cg import SKEW
from dasp.solvers.operator import DeviceOperator, Matrix
from dasp.solvers.scalars import OWN, RUNNING, hypot, sqrt, where
from dasp.solvers.space import State
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, solve
from dasp.solvers.workspace import Workspace

SINGULAR, BAD_M, NOT_HERMITIAN = OWN, OWN + 1, OWN + 2

LEAST = 2
"""If norm(A r) is below this times sqrt(eps) norm(A) norm(r), r is near the least residual. If A is singular,
rounding would spoil x in further iterations."""


class MinimalResiduals(Method):
    """One product and three passes an iteration; vectors of two iterations swap their names."""

    period = 2
    words: ClassVar[dict[int, str]] = {
        SINGULAR: "A r is almost 0, so A is singular, or nearly, and b out of its reach; where rows only "
        "differ much in scale, a preconditioner M mends that",
        BAD_M: "r' M r is not positive, so M is not positive definite",
        NOT_HERMITIAN: "v' A v is not real, so A is not Hermitian; gmres and bicgstab take such matrices",
    }

    @classmethod
    def names(cls, M: DeviceOperator | None) -> tuple[str, ...]:
        """Return two Lanczos vectors, two directions, and with an M two vectors for M times the first two."""
        return ("v0", "v1", "w0", "w1") if M is None else ("v0", "v1", "w0", "w1", "z0", "z1")

    def __init__(self, system: System) -> None:
        self._system, fuse = system, system.vectors.fuse
        self._plain = plain = system.preconditioner is None
        kind = system.space.dtype.type
        self._least, self._skew = LEAST * float(np.sqrt(np.finfo(kind).eps)), SKEW.get(kind, 0.0)
        self._z = ("v0", "v1") if plain else ("z0", "z1")
        self._clear = fuse("v0 = r", "v1 = 0", "w0 = 0", "w1 = 0")
        self._first = None if plain else fuse(dots=("v0 z0",))
        self._project = [fuse(dots=(f"q'{z}",)) for z in self._z]
        self._extend, self._measure, self._step = [], [], []
        for old, new in ((0, 1), (1, 0)):
            squares = (f"v{new} v{new}",) if plain else ()
            extend = f"v{new} = over v{new} + scale q - along v{old}"
            self._extend.append(fuse(extend, dots=squares))
            self._measure.append(None if plain else fuse(dots=(f"v{new} z{new}",)))
            direction = f"w{new} = before w{new} + unit {self._z[old]} - last w{old}", f"x = x + step w{new}"
            carried = () if plain else (f"r = keep r - turn v{new}",)
            self._step.append(fuse(*direction, *carried, dots=() if plain else ("r r",)))

    def start(self, s: State) -> State:
        """Take the residual as the first Lanczos vector."""
        self._clear()
        squared = s["rr"]
        if self._first:
            self._system.precondition("v0", "z0")
            (squared,) = self._first()
        zero = squared * 0.0
        gamma, one = sqrt(squared), zero + 1.0
        stopped = where(s["code"] > float(RUNNING), s["code"], float(BAD_M))
        code = where(squared <= 0.0, stopped, s["code"])
        rotations = {"c0": one, "c1": one, "s0": zero, "s1": zero}
        return {"gamma": gamma, "gamma0": one, "eta": gamma, "norm": zero, "code": code, **rotations}

    def iterate(self, phase: int, s: State) -> State:
        """Extend the Lanczos basis by one vector, rotate its matrix into a triangle, and step."""
        gamma, eta, (new, z) = s["gamma"], s["eta"], (1 - phase, self._z[1 - phase])
        self._system.multiply(self._z[phase], "q")
        (qz,) = self._project[phase]()
        delta = qz.real / (gamma * gamma)
        dots = self._extend[phase](over=-gamma / s["gamma0"], scale=1.0 / gamma, along=delta / gamma)
        measure = self._measure[phase]
        if measure:
            self._system.precondition(f"v{new}", z)
            dots = measure()
        next_gamma = where(dots[0] > 0.0, sqrt(dots[0]), 0.0)
        a0 = s["c1"] * delta - s["c0"] * s["s1"] * gamma
        a1 = hypot(a0, next_gamma)
        size = abs(delta) + next_gamma  # without gamma, which at first is the norm of r
        norm = where(size > s["norm"], size, s["norm"])
        usable = hypot(a0, s["c1"] * next_gamma) > self._least * norm  # norm(A r) / norm(r), at most a1
        inverse = where(usable, 1.0 / a1, 0.0)
        cosine, sine = a0 * inverse, where(usable, next_gamma * inverse, 1.0)
        last = (s["s1"] * delta + s["c0"] * s["c1"] * gamma) * inverse
        factors = {"before": -s["s0"] * gamma * inverse, "unit": inverse / gamma, "last": last}
        factors["step"] = cosine * eta
        rr = sine * eta * sine * eta
        if self._plain:
            self._step[phase](**factors)
        else:
            (rr,) = self._step[phase](**factors, keep=sine * sine, turn=cosine * eta * inverse)
        code = where(dots[0] < 0.0, float(BAD_M), where(usable, float(RUNNING), float(SINGULAR)))
        if self._system.complex:
            code = where(abs(qz.imag) > self._skew * norm * gamma * gamma, float(NOT_HERMITIAN), code)
        rotations = {"c0": s["c1"], "c1": cosine, "s0": s["s1"], "s1": sine}
        return {
            "rr": rr,
            "code": code,
            "gamma": next_gamma,
            "gamma0": gamma,
            "eta": -sine * eta,
            "norm": norm,
            **rotations,
        }


@one_call(ranks=True)
def minres(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Matrix | None = None,
    callback: Callable[[Any], None] | None = None,
    check_every: int | None = None,
    workspace: Workspace | None = None,
    progress: bool = False,
) -> tuple[Array, Stats]:
    """Solve A x = b by MINRES, for A symmetric or Hermitian, definite or not.

    Parameters, results and errors are those of `dasp.solvers.cg`. M must be symmetric (Hermitian) and
    positive definite even if A is not.

    Notes
    -----
    Memory, in vectors of length n: 8, with a preconditioner 10. If A is singular and b out of its reach, the
    method stops near the least residual, where norm(A r) is about sqrt(eps) norm(A) norm(r), and says so. It
    may also stop there if A is nearly singular. With an M it is r' M r that is least there, not norm(r).

    References
    ----------
    Paige and Saunders (1975), doi:10.1137/0712047; in the form of Elman, Silvester and Wathen, Finite
    Elements and Fast Iterative Solvers, algorithm 2.4 (6.1 with a preconditioner).

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import minres
    >>> x, stats = minres(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    >>> x.round(9), stats.converged
    (array([1., 1.]), True)
    """
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress)
    return solve(A, b, x0, limits, M, workspace, MinimalResiduals)
