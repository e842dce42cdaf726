"""Least-squares problems, and how a method for them is driven to a true answer.

There are two ways to be done: A x = b is solved, or it cannot be and b - A x is orthogonal to the columns
of A. Both are claimed only for the true residual and its true product with the transpose, computed from x.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np

from dasp import _check
from dasp.solvers import idle
from dasp.solvers.devices import space_for, together
from dasp.solvers.given import Limits, place_and_type, vector
from dasp.solvers.operator import Scaled, adjoint_of, as_operator, kept_adjoint
from dasp.solvers.scalars import LIMIT, NOT_FINITE, NOTHING, OWN, RUNNING, Scalar, sqrt, where
from dasp.solvers.space import Loop, State
from dasp.solvers.stats import Stats
from dasp.solvers.system import (
    BEYOND,
    BREAKDOWN,
    GAIN,
    HIDDEN,
    MARGIN,
    SQUARES,
    STAGNATION,
    asked,
    is_finite,
    iterate,
    load,
    round_unscaled,
    scale_for,
)
from dasp.solvers.workspace import Workspace

LEAST = OWN
"""Why a method stopped: as it carries them along, the residual is orthogonal to the columns of A."""

SIZES = (1e-120, 1e120)
"""Between these lies the square of a size of A with which squares of A' r lose nothing; an A beyond them is
multiplied by a power of two."""


class Bidiagonalization(Protocol):
    """A method on Golub and Kahan's bidiagonalization."""

    names: ClassVar[tuple[str, ...]]

    def start(self, s: State, beta: Scalar, alpha: Scalar) -> State:
        """Take the lengths of the first u and v; return the first scalars."""

    def iterate(self, s: State, alpha: Scalar, beta: Scalar, next_alpha: Scalar) -> State:
        """Take those of this v, and of the next u and v; return `rr`, `gradient` and the scalars that
        change."""


class Problem:
    """min norm(b - A x) for one A and one method, ready for any b.

    `adjoint` is what `dasp.solvers.operator.kept_adjoint` says, for it may change.
    The vectors u and v of the bidiagonalization are not normed: their lengths are in the coefficients.
    With a `unit` other than 1 it is that of unit times A, whose x is A's over the unit.
    """

    def __init__(
        self,
        A: Any,
        adjoint: Any,
        dtype: np.dtype[Any],
        device: str,
        method: Callable[[Problem], Bidiagonalization],
        names: tuple[str, ...],
        unit: float = 1.0,
    ) -> None:
        brings = getattr(A, "solver_space", None)  # a matrix on several ranks has a space of its own
        self.space = space_for(device, dtype) if brings is None else brings(dtype)
        self.operator = as_operator(A, device)
        self.adjoint = adjoint_of(A, device) if adjoint is None else as_operator(adjoint, device, "A.H")
        self.shape, self.unit = tuple(map(int, A.shape)), unit
        if unit != 1.0:
            self.operator, self.adjoint = Scaled(self.operator, unit), Scaled(self.adjoint, unit)
        m, n = self.operator.shape
        self.rows = self.space.vectors(m, "b", "u", "t")
        self.columns = self.vectors = self.space.vectors(n, "x", "v", "g", *names)
        self.count, self.nbytes = 6 + len(names), self.rows.nbytes + self.columns.nbytes
        self._begin = self.rows.fuse("u = b", dots=("b b", "u u"))
        self._clear = self.columns.fuse("x = 0")
        self._residual = self.rows.fuse("u = b - t", dots=("b b", "u u"))
        self._first_v = self.columns.fuse("v = scale g", dots=("v v",))
        self._next_u = self.rows.fuse("u = scale t - back u", dots=("u u",))
        self._next_v = self.columns.fuse("v = scale g - back v", dots=("v v",))
        self._true = self.rows.fuse("t = b - t", dots=("t t",))
        self._gradient = self.columns.fuse(dots=("g g",))
        self.method = method(self)
        starts = {"zero": self._start_from_zero, "x": self._start_from_x}
        self.loop: Loop = self.space.loop(starts, self._iterate, self._finish, 1)

    def forward(self, v: str, t: str) -> None:
        """Set t to A v."""
        self.space.apply(self.operator, self.columns[v], self.rows[t])

    def backward(self, u: str, g: str) -> None:
        """Set g to the adjoint of A times u: of a real A the transpose."""
        self.space.apply(self.adjoint, self.rows[u], self.columns[g])

    def _start_from_zero(self, given: State) -> State:
        self._clear()
        return self._start(given, *self._begin())

    def _start_from_x(self, given: State) -> State:
        self.forward("x", "t")
        return self._start(given, *self._residual())

    def _start(self, given: State, bb: Scalar, rr: Scalar) -> State:
        beta = sqrt(rr)
        self.backward("u", "g")
        (squared,) = self._first_v(scale=where(beta > 0.0, 1.0 / beta, 0.0))
        alpha = sqrt(squared)
        relative, absolute = given["rtol"] * given["rtol"] * bb, given["atol"] * given["atol"]
        low, high = SQUARES
        told = where(bb >= 0.0, float(NOTHING), float(NOT_FINITE))
        code = where(bb >= low, where(bb <= high, float(RUNNING), told), told)
        orthogonal = where(alpha > 0.0, code, where(code > 0.0, code, float(LEAST)))
        wanted = where(relative > absolute, relative, absolute)
        state = {
            "bb": bb, "rr": rr, "start": rr, "wanted": wanted, "goal": wanted * given["margin"],
            "code": where(squared >= 0.0, orthogonal, float(NOT_FINITE)), "norm": squared,
            "least": given["rtol"] * given["rtol"] * given["margin"], "beta": beta, "alpha": alpha,
        }  # fmt: skip
        return {**state, **self.method.start(state, beta, alpha)}

    def _iterate(self, phase: int, s: State) -> State:
        alpha, last_beta = s["alpha"], s["beta"]
        self.forward("v", "t")
        (squared,) = self._next_u(scale=1.0 / alpha, back=alpha / last_beta)
        beta = sqrt(squared)
        self.backward("u", "g")
        inverse = where(beta > 0.0, 1.0 / beta, 0.0)
        (squared,) = self._next_v(scale=inverse, back=where(beta > 0.0, beta / alpha, 0.0))
        next_alpha = sqrt(squared)
        new = self.method.iterate(s, alpha, beta, next_alpha)
        norm = s["norm"] + beta * beta + next_alpha * next_alpha
        gradient = new.pop("gradient")
        least = gradient <= s["least"] * norm * new["rr"]
        code = where(least, float(LEAST), float(RUNNING))
        return {**new, "code": code, "norm": norm, "alpha": next_alpha, "beta": beta}

    def _finish(self) -> State:
        self.forward("x", "t")
        (true,) = self._true()
        self.backward("t", "g")
        (gradient,) = self._gradient()
        return {"true": true, "gradient": gradient}


def solve_least_squares(
    A: Any,
    b: Any,
    x0: Any,
    limits: Limits,
    workspace: Workspace | None,
    method: Callable[[Problem], Bidiagonalization],
    names: tuple[str, ...],
) -> tuple[Any, Stats]:
    """Solve by a method; the arguments are those of `lsqr` and `lsmr`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.
    """
    began = time.perf_counter()
    if len(getattr(A, "shape", ())) != 2:
        raise TypeError(f"A is {_check.kind_of(A)}; a matrix or linear operator is needed")

    def take() -> tuple[str, np.dtype[Any], Any, Any]:
        m, n = map(int, getattr(A, "local_shape", A.shape))
        placed = place_and_type(A, b)
        begin = None if x0 is None else vector("x0", x0, n, "columns", placed[1])
        return *placed, vector("b", b, m), begin

    device, dtype, right, start = together(A, take, lambda taken: asked(limits, taken, x0))
    adjoint = kept_adjoint(A)
    make, own = idle.take(A, adjoint, workspace)

    def attempt(limits: Limits, unit: float) -> tuple[Problem, Stats]:
        key = method, dtype, device, unit
        problem: Problem = make.get(key, own, lambda: Problem(*own, dtype, device, method, names, unit))
        load(problem.rows["b"], right, problem.space)
        if start is not None:
            load(problem.columns["x"], start, problem.space)
            problem.columns["x"][...] /= unit
        return problem, _drive(problem, limits, from_zero=start is None)

    with make.held():
        problem, stats = attempt(limits, 1.0)
        lost = stats.info == BREAKDOWN and stats.reason != BEYOND and stats.iterations < limits.maxiter
        if lost and (unit := _unit(problem)) != 1.0:
            problem, more = attempt(_after(limits, stats, unit), unit)
            stats = more.after(stats)
        x = problem.columns["x"].copy()
    if limits.bar is not None:
        limits.bar.close()
    if isinstance(b, np.ndarray) or not hasattr(b, "dtype"):
        x = problem.space.download(x)
    idle.leave(A, adjoint, make, own, problem.space.mark)
    return x, stats.timed(time.perf_counter() - began)


def _after(limits: Limits, before: Stats, unit: float) -> Limits:
    """Return what is left to be done with unit times A; its x is shown as that of A."""
    seen = limits.callback
    callback = None if seen is None else lambda x: seen(x * unit)
    return replace(limits, maxiter=limits.maxiter - before.iterations, callback=callback)


def _unit(problem: Problem) -> float:
    """Return the power of two by which A is to be multiplied, so that A' r can be squared."""
    b = problem.rows["b"]
    largest = problem.space.largest(b)
    if not 0 < largest < math.inf:
        return 1.0
    problem.rows["u"][...] = b / largest
    problem.adjoint.multiply(problem.rows["u"], problem.columns["g"])
    return scale_for(problem.space.largest(problem.columns["g"]), SIZES)


@np.errstate(all="ignore")
def _drive(problem: Problem, limits: Limits, *, from_zero: bool) -> Stats:
    """Iterate, start again where that helps, and say how it ended."""
    if not all(problem.shape):
        problem.columns["x"][...] = 0
        return Stats(True, 0, [0.0], 0.0, "A has no rows or no columns: x is zero", 0.0, 0)
    residuals: list[float] = []
    made, name, margin, scale, size = 0, "zero" if from_zero else "x", 1.0, 1.0, 0.0
    while True:
        given = {"rtol": limits.rtol, "atol": limits.atol * scale, "margin": margin}
        problem.loop.start(name, given)
        report, count, _ = iterate(problem, limits, made, residuals, scale)
        made += count
        s, code = report.state, int(report.state["code"])
        size = max(size, s["norm"])
        if (
            code in (NOTHING, NOT_FINITE)
            and made == 0
            and scale == 1.0
            and (scale := _scaling(problem)) != 1.0
        ):
            residuals.clear()
            continue
        if s["bb"] == 0:
            problem.columns["x"][...] = 0
            return Stats(True, made, [0.0], 0.0, "b is zero, and so is x", 0.0, 0)
        true = s["true"]
        norm = math.sqrt(true) / scale if true >= 0 else math.nan
        ended = _ending(limits, made, s, norm, _is_orthogonal(problem, s, limits.rtol))
        if ended is None and (margin == 1.0 or true <= GAIN**2 * s["start"]):
            name, margin = "x", MARGIN
            continue
        stuck = STAGNATION, f"the residual stays at {norm:.3g}: no more can be had; ask for less"
        info, reason = ended or stuck
        if info == 0 and not from_zero and not is_finite(problem):
            info, reason = BREAKDOWN, HIDDEN
        if scale != 1.0 or problem.unit != 1.0:
            if info == 0 and not _has_room(problem, given, scale, size):
                info, reason = BREAKDOWN, BEYOND
            problem.columns["x"][...] /= scale
            problem.columns["x"][...] *= problem.unit
        return Stats(info == 0, made, residuals, norm, reason, 0.0, info)


def _has_room(problem: Problem, given: Mapping[str, float], scale: float, size: float) -> bool:
    """Whether x is still an answer when its numbers are rounded to what they are without scale and unit.

    `size` is what the iterations know of the square of the norm of A.
    """
    x = problem.columns["x"]
    x /= scale
    round_unscaled(x, 1.0 / problem.unit)
    x *= scale
    problem.loop.start("x", given)
    s = {**problem.loop.advance(0, finish=True).state, "norm": size}
    return s["true"] <= s["wanted"] or _is_orthogonal(problem, s, given["rtol"])


def _is_orthogonal(problem: Problem, s: Mapping[str, float], rtol: float) -> bool:
    """Whether A' r is small beside A and r; where its square is lost, that is told by its largest number."""
    squared, norm, true = (max(s[name], 0.0) for name in ("gradient", "norm", "true"))
    bound = rtol * math.sqrt(norm) * math.sqrt(true)
    if squared >= SQUARES[0]:
        return math.sqrt(squared) <= bound
    largest = problem.space.largest(problem.columns["g"])
    return largest * math.sqrt(problem.shape[1]) <= bound


def _ending(
    limits: Limits, made: int, s: Mapping[str, float], norm: float, orthogonal: bool
) -> tuple[int, str] | None:
    """Return SciPy's integer and the reason, or None if starting again may help."""
    true, gradient, code = s["true"], s["gradient"], int(s["code"])
    after = f"after {made} iterations"
    not_finite = f"NaN or infinity {after}: A or b holds such a number, or products overflow"
    if not math.isfinite(true) or not math.isfinite(gradient):
        return BREAKDOWN, not_finite
    if true <= s["wanted"]:
        return 0, f"the residual is {norm:.3g}, small enough, {after}"
    if orthogonal:
        return 0, f"the residual, {norm:.3g}, is orthogonal to the columns of A, {after}"
    if code in (NOTHING, NOT_FINITE):
        return BREAKDOWN, not_finite
    if code == LEAST and gradient < SQUARES[0]:
        return BREAKDOWN, f"numbers of A' r are so small {after} that their squares are none; scale A"
    if made >= limits.maxiter or code == LIMIT:
        return made, f"{made} iterations were made: the residual is {norm:.3g}"
    return None


def _scaling(problem: Problem) -> float:
    """Return the power of two by which b (and x) was multiplied, so that its norm can be squared."""
    scale = scale_for(problem.space.largest(problem.rows["b"]))
    if scale != 1.0:
        problem.rows["b"][...] *= scale
        problem.columns["x"][...] *= scale
    return scale
