"""GMRES with restarts, for square matrices that need not be symmetric.

M preconditions from the right, so that the residual stays that of A x = b. On a GPU the basis is made
orthogonal with one reduction a step (kernels/solve/basis.cu); on the CPU by classical Gram-Schmidt, twice if
little of a vector is left (Giraud, Langou, Rozloznik, van den Eshof, doi:10.1007/s00211-005-0615-4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dasp.runtime import check as _check
from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import make_limits, one_call
from dasp.solvers.operator import DeviceOperator, Matrix
from dasp.solvers.scalars import CLAIMED, LIMIT, OWN, RUNNING, Scalar, first_verdict
from dasp.solvers.space import Loop, Report, State
from dasp.solvers.stats import Stats
from dasp.solvers.system import Method, System, first_scalars, solve
from dasp.solvers.workspace import Workspace

STALLED = OWN

STALL = 1 - 1e-8
"""A cycle has stalled if the square of the residual is above this times the square before the cycle."""


class GeneralizedMinimalResiduals(Method):
    """The method as a system sees it; the iteration itself is in `Cycles`."""

    words: ClassVar[dict[int, str]] = {
        STALLED: "a whole cycle did not lower the residual: A is singular, or the cycles are too short, or "
        "no more can be had in this type; try a larger restart or a preconditioner, or ask for less"
    }

    @classmethod
    def names(cls, M: DeviceOperator | None, restart: int) -> tuple[str, ...]:
        """Return the vectors of the basis, and with an M one for M times a basis vector."""
        return (*(f"v{k}" for k in range(restart + 1)), *(() if M is None else ("z",)))

    def __init__(self, system: System, restart: int) -> None:
        self._restart = restart

    def make_loop(self, system: System) -> Loop:
        """Return a loop of cycles."""
        return Cycles(system, self._restart)


class Cycles:
    """The loop of a system: cycles, each with a Krylov basis and a small least-squares problem."""

    def __init__(self, system: System, restart: int) -> None:
        self._system, self._restart, vectors, eager = system, restart, system.vectors, system.space.eager
        self._basis = system.space.arnoldi(vectors, [f"v{k}" for k in range(restart + 1)])
        self._begin = eager(vectors, "r = b", "x = 0", dots=("b b", "r r"))
        self._multiply = system.operator.prepare(vectors["x"], vectors["q"])
        self._subtract = eager(vectors, "r = b - q", dots=("b b", "r r", "x x"))
        self._state: State = {}
        if system.preconditioner is None:
            self._steps = [self._step(f"v{k}", k) for k in range(restart)]
        else:
            self._steps = [self._step_preconditioned(k) for k in range(restart)]
        self._run = self._basis.prepare(self._steps, system.captures)

    def _step(self, source: str, k: int) -> Callable[[], None]:
        vectors, basis = self._system.vectors, self._basis
        multiply = self._system.operator.prepare(vectors[source], vectors[f"v{k + 1}"])

        def step() -> None:
            multiply()
            basis.extend(k)

        return step

    def _step_preconditioned(self, k: int) -> Callable[[], None]:
        preconditioner, vectors = self._system.preconditioner, self._system.vectors
        assert preconditioner is not None
        precondition, then = preconditioner.prepare(vectors[f"v{k}"], vectors["z"]), self._step("z", k)

        def step() -> None:
            precondition()
            then()

        return step

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Compute the residual."""
        squares = self._begin() if name == "zero" else self._find_residual()
        state = self._judge(given, *squares)
        if name == "zero" and state["code"] == CLAIMED:  # A 0 is not 0 where A holds NaN
            state = self._judge(given, *self._find_residual())
        self._state = state

    def _find_residual(self) -> tuple[Scalar, ...]:
        """Set r to b - A x; return the squares of the norms of b, r and x."""
        self._multiply()
        return self._subtract()

    def _judge(self, given: Mapping[str, float], bb: Scalar, rr: Scalar, xx: Scalar = 0.0) -> State:
        """Return the first scalars, with the verdict on them."""
        state = first_scalars(dict(given), bb, rr, self._system.squares)
        return {**state, "xx": xx, "code": first_verdict(rr, state["goal"], state["code"])}

    def advance(self, most: int, *, finish: bool) -> Report:
        """Make cycles until there is a verdict, `most` iterations at most; the last cycle may be shorter."""
        residuals: list[float] = []
        state = self._state
        if state["code"] == LIMIT:
            state["code"] = RUNNING
        while state["code"] == RUNNING and len(residuals) < most:
            before = state["rr"]
            steps = min(self._restart, most - len(residuals))
            residuals += self._cycle(math.sqrt(before), steps)
            _, rr, xx = self._find_residual()
            code = first_verdict(rr, state["goal"], float(RUNNING))
            if code == RUNNING and rr > STALL * before:
                code = STALLED
            state |= {"rr": rr, "xx": xx, "code": code}
        if state["code"] == RUNNING:
            state["code"] = LIMIT
        numbers = {name: float(value) for name, value in state.items()}
        return Report({**numbers, "true": numbers["rr"]}, residuals)

    def _cycle(self, norm: float, steps: int) -> list[float]:
        """Make one cycle: extend the basis, solve the small problem, correct x. Return the residual norms."""
        basis = self._basis
        basis.begin(norm)
        goal = math.sqrt(self._state["goal"])
        residuals, count, broken = [norm], 0, False
        while count < steps and residuals[-1] > goal and not broken:
            last = min(steps, count + basis.ahead)
            self._run(count, last)
            for residual, ends in basis.residuals(count, last):
                if residuals[-1] > goal and not broken:
                    residuals.append(residual)
                    count, broken = count + 1, ends
        self._correct(count)
        return residuals[1:]

    def _correct(self, count: int) -> None:
        """Correct x by the first `count` steps."""
        system = self._system
        if system.preconditioner is None:
            return self._basis.correct(count, "x")
        vectors = system.vectors
        vectors["q"][...] = 0
        self._basis.correct(count, "q")
        system.preconditioner.multiply(vectors["q"], vectors["z"])
        vectors["x"][...] += vectors["z"]


@one_call(ranks=True)
def gmres(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 30,
    maxiter: int | None = None,
    M: Matrix | None = None,
    callback: Callable[[Any], None] | None = None,
    check_every: int | None = None,
    workspace: Workspace | None = None,
    progress: bool = False,
) -> tuple[Array, Stats]:
    """Solve A x = b by GMRES with restarts, for any square A.

    Parameters, results and errors are those of `dasp.solvers.cg`, except for these:

    Parameters
    ----------
    restart : int
        Iterations of a cycle: the vectors of the basis that is kept and made orthogonal.
    maxiter : int, optional
        Iterations at most (products, not cycles), 10 n by default.
    callback : callable, optional
        Called with x after each cycle: there is no x within one.

    Notes
    -----
    M preconditions from the right. Memory, in vectors of length n: 5 + `restart`, with a preconditioner 6 +
    `restart`. The host reads the residuals from a GPU once in ten iterations, so some may be made in vain.

    References
    ----------
    Saad and Schultz (1986), doi:10.1137/0907058.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import gmres
    >>> x, stats = gmres(np.array([[0.0, 1.0], [-1.0, 0.0]]), np.array([3.0, 4.0]))
    >>> x.round(9), stats.converged
    (array([-4.,  3.]), True)
    """
    restart = _check.count("restart", restart)
    limits = make_limits(A, rtol, atol, maxiter, check_every, callback, progress, restart=restart)
    steps = min(restart, max((1, *getattr(A, "shape", ()))))
    if callback is not None or progress:
        limits.check_every = steps
    return solve(A, b, x0, limits, M, workspace, GeneralizedMinimalResiduals, steps)
