"""Chebyshev iteration, for symmetric or Hermitian positive definite matrices whose spectrum is known.

The only dot product is the square of the residual's norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import check_square, find_device_and_type, make_limits, one_call
from dasp.solvers.cg import ConjugateGradients
from dasp.solvers.operator import DeviceOperator, Matrix
from dasp.solvers.scalars import OWN, RUNNING, where
from dasp.solvers.space import State
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, solve
from dasp.solvers.workspace import Workspace

DIVERGED = OWN

GROWTH = 1e16
"""The factor by which the square of the residual may exceed the first one."""

STEPS = 30
"""Iterations of conjugate gradients from which the spectrum is estimated."""

LOWER, UPPER = 0.8, 1.05
"""The factors that move the ends of the estimate, which lies inside the spectrum, outwards."""


class ChebyshevIteration(Method):
    """One product and one pass an iteration, two with a preconditioner."""

    leaving = ("rr",)
    words: ClassVar[dict[int, str]] = {
        DIVERGED: "the residual grows: the bounds do not hold the spectrum, or A is not definite or not "
        "symmetric; pass bounds"
    }

    @classmethod
    def names(cls, M: DeviceOperator | None, *bounds: float) -> tuple[str, ...]:
        """Return the vectors p (the step) and, with an M, z = M r."""
        return ("p",) if M is None else ("p", "z")

    def __init__(self, system: System, low: float, high: float) -> None:
        self._system = system
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        z = "r" if system.preconditioner is None else "z"
        fuse = system.vectors.fuse
        self._begin = fuse(f"p = scale {z}", dots=("r r",))
        self._plain = (
            fuse("x = x + p", "r = r - q", "p = last p + rest r", dots=("r r",)) if z == "r" else None
        )
        self._descend = fuse("x = x + p", "r = r - q")
        self._turn = fuse("p = last p + rest z", dots=("r r",)) if z == "z" else None

    def start(self, s: State) -> State:
        """Set the first step: the residual, or M r, over the middle of the spectrum."""
        if self._turn:
            self._system.precondition("r", "z")
        (rr,) = self._begin(scale=1.0 / self._middle)
        return {
            "rr": rr,
            "rho": self._half / self._middle,
            "sigma": self._middle / self._half,
            "half": self._half,
        }

    def iterate(self, phase: int, s: State) -> State:
        """Step, then find the next step by the recurrence of Chebyshev's polynomials."""
        self._system.multiply("p", "q")
        rho = 1.0 / (2.0 * s["sigma"] - s["rho"])
        factors = {"last": rho * s["rho"], "rest": 2.0 * rho / s["half"]}
        if self._plain:
            (rr,) = self._plain(**factors)
        else:
            assert self._turn is not None
            self._descend()
            self._system.precondition("r", "z")
            (rr,) = self._turn(**factors)
        judged = s["rr"]
        code = where(judged > GROWTH * s["start"], float(DIVERGED), float(RUNNING))
        return {"judge": judged, "rr": rr, "rho": rho, "code": code}


class _Probe(ConjugateGradients):
    """Conjugate gradients that report their coefficients, which make up Lanczos' matrix."""

    def start(self, s: State) -> State:
        """Start, with zeros as coefficients."""
        return {**super().start(s), "alpha": 0.0, "beta": 0.0}

    def iterate(self, phase: int, s: State) -> State:
        """Iterate, and return alpha and beta too."""
        new = super().iterate(phase, s)
        return {**new, "beta": new["rho"] / s["rho"], "alpha": self.alpha}


def estimate_spectrum(A: Matrix, M: Matrix | None, dtype: np.dtype[Any], device: str) -> tuple[float, float]:
    """Estimate the least and the largest eigenvalue of M A, from inside, by conjugate gradients.

    Raises
    ------
    ValueError
        If the estimate of the least eigenvalue is not positive.
    """
    probe = Workspace()  # its memory is free as soon as this returns
    system: System = probe.get((), (), lambda: System(A, M, dtype, device, _Probe))
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(system.n)
    if system.complex:
        noise = noise + 1j * rng.standard_normal(system.n)
    system.take(noise.astype(dtype), None)
    system.loop.start("zero", {"rtol": 1e-6, "atol": 0.0, "margin": 1.0})
    diagonal, beside = [], []
    before = 0.0
    for _ in range(min(STEPS, int(A.shape[0]))):
        state = system.loop.advance(1, finish=False).state
        if not state["alpha"] > 0 or not math.isfinite(state["beta"]):
            break
        diagonal.append(1.0 / state["alpha"] + before)
        beside.append(math.sqrt(abs(state["beta"])) / state["alpha"])
        before = state["beta"] / state["alpha"]
    if diagonal:
        T = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
        values = np.linalg.eigvalsh(T)
        if values[0] > 0:
            return float(values[0]), float(values[-1])
    raise ValueError(
        "no bounds of the spectrum are found: A or M is not positive definite, not finite, or nearly "
        "singular; pass bounds, or use minres"
    )


@one_call(ranks=True)
def chebyshev(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Matrix | None = None,
    callback: Callable[[Any], None] | None = None,
    check_every: int | None = None,
    workspace: Workspace | None = None,
    progress: bool = False,
) -> tuple[Array, Stats]:
    """Solve A x = b by Chebyshev iteration, for A symmetric or Hermitian, and positive definite.

    It needs more iterations than `cg`, but uses dot products only to decide when to stop.

    Parameters, results and errors are those of `dasp.solvers.cg`, and also:

    Parameters
    ----------
    bounds : tuple of float, optional
        Bounds below and above the eigenvalues of A (of M A, if M is given); by default estimated by some
        iterations of conjugate gradients. If the upper bound is too low, the method diverges, and says so.
        The symmetry of A is not checked. For another A it may converge if all eigenvalues are real and lie
        between bounds that are passed, and else diverges; the estimated bounds mean nothing then.

    Raises
    ------
    ValueError
        If the bounds are not positive and in order, or none are found.

    Notes
    -----
    Memory, in vectors of length n: 5, with a preconditioner 6.

    References
    ----------
    Golub and Varga (1961), doi:10.1007/BF01386013; in the form of Saad, Iterative Methods for Sparse Linear
    Systems, second edition, algorithm 12.1.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import chebyshev
    >>> A, b = np.diag([1.0, 2.0]), np.array([1.0, 4.0])
    >>> x, stats = chebyshev(A, b, bounds=(1.0, 2.0), rtol=1e-12)
    >>> x.round(9), stats.converged
    (array([1., 2.]), True)
    """
    bounds = None if bounds is None else _check.interval(bounds, may_be_point=True)
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress, bounds=bounds)
    check_square(A, M)
    if bounds is None:
        device, dtype = find_device_and_type(A, b, M)
        low, high = estimate_spectrum(A, M, dtype, device) if A.shape[0] else (1.0, 2.0)
        bounds = LOWER * low, UPPER * high
    low, high = _check.interval(bounds, may_be_point=True)
    high = max(high, low * (1 + 1e-3))
    return solve(A, b, x0, limits, M, workspace, ChebyshevIteration, low, high)
