"""One linear system, and how any method that carries a residual along is driven to a true one.

A method updates its residual by a recurrence, which drifts away from b - A x by rounding. So when the
carried one is small enough the true one is computed, and that alone counts. Where it is not small enough
yet, the method starts again from the x that it has; where starting again no longer helps, that is said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from dasp.runtime.log import logger
from dasp.solvers.arguments import Limits, check_square, place_and_type, vector
from dasp.solvers.operator import as_operator
from dasp.solvers.scalars import CLAIMED, LIMIT, NOT_FINITE, NOTHING, RUNNING, where
from dasp.solvers.space import Loop, Report, Space, State, Vectors
from dasp.solvers.spaces import space_for, together
from dasp.solvers.stats import Stats
from dasp.solvers.workspace import Workspace, workspace_for

Array = Any

GAIN = 0.5
"""What the true residual must have come down to, over a start, for another start to be worth while."""

MARGIN = 0.25
"""By what a method that starts again undershoots the square that is wanted, because it drifted once
already."""

SQUARES = (1e-200, 1e200)
"""Between these the square of a norm loses nothing; a b beyond them is scaled by a power of two."""

COMPLEX_SQUARES = (1e-140, 1e140)
"""The same where quotients of complex numbers take squares of squares."""

BREAKDOWN, STAGNATION = -1, -2
"""`Stats.info` where a method could not go on; and where x does not get better by starting again."""


class Method(Protocol):
    """A method that carries a residual along, one iteration like the other."""

    period: ClassVar[int]
    leaving: ClassVar[tuple[str, ...]]
    words: ClassVar[dict[int, str]]
    restarts: ClassVar[frozenset[int]]

    def start(self, s: State) -> State:
        """Take r = b - A x and the square of its norm, `rr`; return the first scalars."""

    def iterate(self, phase: int, s: State) -> State:
        """Make an iteration; return `rr`, `code` where there is a reason to stop, and the scalars that
        change."""


class Iterated(Protocol):
    """What iterates, and has an x among its vectors."""

    space: Space
    loop: Loop
    vectors: Vectors


@runtime_checkable
class Taking(Protocol):
    """A loop that takes b and x where they are, without copies."""

    def take(self, b: Array) -> None:
        """Let b be the right-hand side, and x a new array."""

    def solution(self) -> Array:
        """Return x, and let go of both."""

    def keep_b(self) -> None:
        """Let a copy of b be the right-hand side."""


class System:
    """A x = b for one A, one preconditioner and one method, ready for any b.

    Parameters
    ----------
    A, M : matrix or linear operator, shape (n, n); M may be None
    dtype : numpy.dtype
    device : str
    method : callable
        Takes the system and returns a `Method`.
    names : tuple of str
        The method's vectors, besides b, x, r and q, which is free between iterations.
    space : Space, optional
        By default that of the device.
    loop : callable, optional
        Takes the system and returns what iterates; by default `System.space_loop`.
    """

    def __init__(
        self,
        A: Any,
        M: Any,
        dtype: np.dtype[Any],
        device: str,
        method: Callable[[System], Method],
        names: tuple[str, ...],
        space: Space | None = None,
        loop: Callable[[System], Loop] | None = None,
    ) -> None:
        brings = getattr(A, "solver_space", None)  # a matrix on several ranks has a space of its own
        own: Space = space_for(device, dtype) if brings is None else brings(dtype)
        self.space = own if space is None else space
        self.operator = as_operator(A, device)
        self.preconditioner = None if M is None else as_operator(M, device, "M")
        self.n = self.operator.shape[0]
        self.names = names
        self.vectors = self.space.vectors(self.n, "b", "x", "r", "q", *names)
        self.count, self.nbytes = 4 + len(names), self.vectors.nbytes
        self._begin = self.vectors.fuse("r = b", "x = 0", dots=("b b", "r r"))
        self._subtract = self.vectors.fuse("r = b - q", dots=("b b", "r r"))
        self.method = method(self)
        self.loop: Loop = self.space_loop() if loop is None else loop(self)
        self._taking: Taking | None = self.loop if isinstance(self.loop, Taking) else None

    def space_loop(self) -> Loop:
        """Return the space's loop of the method's iterations."""
        starts = {"zero": self._start_from_zero, "x": self._start_from_x}
        method = self.method
        return self.space.loop(starts, method.iterate, self._true, method.period, method.leaving)

    @property
    def complex(self) -> bool:
        """Whether its vectors are of complex numbers."""
        return self.space.dtype.kind == "c"

    @property
    def squares(self) -> tuple[float, float]:
        """Between which numbers the square of a norm must be."""
        return COMPLEX_SQUARES if self.complex else SQUARES

    @property
    def captures(self) -> bool:
        """Whether its products can be captured in a CUDA graph."""
        return all(one is None or one.captures for one in (self.operator, self.preconditioner))

    def take(self, b: Array, x0: Array) -> None:
        """Take a right-hand side, and where to start if that is not None."""
        if self._taking is not None:
            self._taking.take(b)
        else:
            load(self.vectors["b"], b, self.space)
        if x0 is not None:
            load(self.vectors["x"], x0, self.space)

    def solution(self) -> Array:
        """Return x, which the caller may keep."""
        if self._taking is not None:
            return self._taking.solution()
        return self.space.asarray(self.vectors["x"]).copy()

    def scale(self, factor: float, names: tuple[str, ...]) -> None:
        """Multiply b, and x, but not the caller's b."""
        if self._taking is not None:
            self._taking.keep_b()
        for name in names:
            self.vectors[name][...] *= factor

    def multiply(self, x: str, y: str) -> None:
        """Set vector y to A times vector x."""
        self.space.apply(self.operator, self.vectors[x], self.vectors[y])

    def precondition(self, r: str, z: str) -> None:
        """Set vector z to M times vector r; only where there is a preconditioner."""
        assert self.preconditioner is not None
        self.space.apply(self.preconditioner, self.vectors[r], self.vectors[z])

    def _start_from_zero(self, given: State) -> State:
        return self._start(given, *self._begin())

    def _start_from_x(self, given: State) -> State:
        self.multiply("x", "q")
        return self._start(given, *self._subtract())

    def _start(self, given: State, bb: Any, rr: Any) -> State:
        relative, absolute = given["rtol"] * given["rtol"] * bb, given["atol"] * given["atol"]
        low, high = self.squares
        told = where(bb >= 0.0, float(NOTHING), float(NOT_FINITE))
        fits = where(bb >= low, where(bb <= high, float(RUNNING), told), told)
        wanted = where(relative > absolute, relative, absolute)
        state = {
            "bb": bb,
            "rr": rr,
            "start": rr,
            "wanted": wanted,
            "goal": wanted * given["margin"],
            "code": fits,
        }
        return {**state, **self.method.start(state)}

    def _true(self) -> State:
        self.multiply("x", "q")
        _, rr = self._subtract()
        return {"true": rr}


@dataclass
class Answer:
    """What driving a system came to; norms are those of the system as it was given."""

    iterations: int
    residuals: list[float]
    residual: float
    info: int
    reason: str


def solve(
    A: Any,
    b: Any,
    x0: Any,
    limits: Limits,
    M: Any,
    workspace: Workspace | None,
    method: Callable[[System], Method],
    names: tuple[str, ...],
    key: tuple[Any, ...] = (),
    loop: Callable[[System], Loop] | None = None,
) -> tuple[Array, Stats]:
    """Solve A x = b by a method; the arguments are those of every solver here.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.
    """
    began = time.perf_counter()
    name = str(key[0]) if key else getattr(method, "__name__", "another method")

    def take() -> tuple[str, np.dtype[Any], Any, Any]:
        check_square(A, M)
        size = int(getattr(A, "local_shape", A.shape)[0])
        placed = place_and_type(A, b, M)
        begin = None if x0 is None else vector("x0", x0, size, into=placed[1])
        return *placed, vector("b", b, size), begin

    device, dtype, right, start = together(A, take, lambda taken: asked(name, taken, x0, M))
    with workspace_for(A, M, workspace) as (made, own):
        system = made.get(
            (key or (method,), dtype, device),
            own,
            lambda: System(*own, dtype, device, method, names, loop=loop),
        )
        system.take(right, start)
        if int(A.shape[0]) == 0:
            answer = Answer(0, [0.0], 0.0, 0, "A has no rows: x is empty")
        else:
            answer = drive(system, limits, from_zero=start is None)
        x = system.solution()
        space = system.space
    if limits.bar is not None:
        limits.bar.close()
    if isinstance(b, np.ndarray) or not hasattr(b, "dtype"):
        x = space.download(x)
    x = x.reshape(getattr(b, "shape", x.shape))
    seconds = time.perf_counter() - began
    logger.info("%s rows solved in %.3g s: %s", int(A.shape[0]), seconds, answer.reason)
    stats = Stats(
        answer.info == 0,
        answer.iterations,
        answer.residuals,
        answer.residual,
        answer.reason,
        seconds,
        answer.info,
    )
    return x, stats


def asked(method: str, taken: tuple[str, np.dtype[Any], Any, Any], x0: Any, M: Any = None) -> dict[str, Any]:
    """Return what all ranks of a system must be asked alike, besides its limits."""
    diagonal = getattr(M, "diagonal_of_inverse", None) is not None
    kind = "none" if M is None else "a diagonal" if diagonal else "given"
    return {"type of the system": taken[1].name, "x0": x0 is not None, "M": kind, "method": method}


@np.errstate(all="ignore")
def drive(system: System, limits: Limits, *, from_zero: bool) -> Answer:
    """Iterate, start again where that helps, and say how it ended; see the head of this file."""
    residuals: list[float] = []
    made, scale, name = 0, 1.0, "zero" if from_zero else "x"
    while True:
        given = {"rtol": limits.rtol, "atol": limits.atol * scale, "margin": 1.0 if made == 0 else MARGIN}
        system.loop.start(name, given)
        report, count, at_start = iterate(system, limits, made, residuals, scale)
        made += count
        code, true = int(report.state["code"]), report.state["true"]
        if code in (NOTHING, NOT_FINITE) and made == 0:
            if scale == 1.0 and (scale := _scaling(system, from_zero=from_zero)) != 1.0:
                residuals.clear()
                continue
            if scale != 1.0 and name == "x":  # x0 is too large beside such a b to be of use
                residuals.clear()
                name = "zero"
                continue
        if report.state["bb"] == 0:
            system.vectors["x"][...] = 0
            return Answer(made, [0.0], 0.0, 0, "b is zero, and so is x")
        norm = math.sqrt(true) / scale if true >= 0 else math.nan
        if true <= report.state["wanted"] and math.isfinite(true):
            answer = Answer(made, residuals, norm, 0, _converged(norm, made))
            if _may_hide(system, from_zero=from_zero) and not is_finite(system):
                answer = Answer(made, residuals, norm, BREAKDOWN, HIDDEN)
        elif code in (NOTHING, NOT_FINITE) or not math.isfinite(true):
            answer = Answer(made, residuals, norm, BREAKDOWN, _not_finite(made, residuals))
        elif made >= limits.maxiter or code == LIMIT:
            answer = Answer(
                made, residuals, norm, made, f"{made} iterations were made: the residual is {norm:.3g}"
            )
        elif true > GAIN**2 * at_start:
            answer = _stuck(system, made, residuals, norm, code)
        elif code == CLAIMED or code in system.method.restarts:
            name = "x"
            continue
        else:
            answer = _stuck(system, made, residuals, norm, code)
        if scale != 1.0:
            if answer.info == 0 and not _has_room(system, given, scale, report.state["wanted"]):
                answer = Answer(made, residuals, norm, BREAKDOWN, BEYOND)
            system.vectors["x"][...] /= scale
        return answer


def iterate(
    system: Iterated, limits: Limits, made: int, residuals: list[float], scale: float
) -> tuple[Report, int, float]:
    """Advance in blocks as long as callbacks want them; return the last report, iterations, first rr."""
    left, count = limits.maxiter - made, 0
    whole = limits.callback is None and limits.bar is None
    report = system.loop.advance(left if whole else 0, finish=whole)
    at_start = report.state["start"]
    if not residuals:
        residuals.append(math.sqrt(max(at_start, 0.0)) / scale)
    if whole:
        every = limits.check_every
        seen = report.residuals[every - 1 :: every]
        residuals.extend(seen if scale == 1.0 else (value / scale for value in seen))
        return report, len(report.residuals), at_start
    while report.state["code"] in (RUNNING, LIMIT) and count < left:
        report = system.loop.advance(min(limits.check_every, left - count), finish=False)
        count += len(report.residuals)
        residuals.extend(value / scale for value in report.residuals[-1:])
        if limits.callback is not None:
            limits.callback(system.vectors["x"] / scale)
        if limits.bar is not None:
            limits.bar.set_postfix_str(f"residual {residuals[-1]:.2e}", refresh=False)
            limits.bar.update(len(report.residuals))
    return system.loop.advance(0, finish=True), count, at_start


def _may_hide(system: System, *, from_zero: bool) -> bool:
    """Whether x may hold NaN that its residual does not show: from x0, or from M.

    A diagonal M was found to be finite when it was made. To look takes as long as some iterations.
    """
    M = system.preconditioner
    return not from_zero or (M is not None and getattr(M, "diagonal", None) is None)


def is_finite(system: Iterated) -> bool:
    """Whether all numbers of x are: what A has no entries for, no residual shows."""
    return math.isfinite(system.space.largest(system.vectors["x"]))


def scale_for(largest: float, squares: tuple[float, float] = SQUARES) -> float:
    """Return the power of two that brings a largest absolute value to where its square is a number; 1 if it
    is between `squares`, or is 0 or none."""
    if not 0 < largest < math.inf or squares[0] <= largest * largest <= squares[1]:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))


def _scaling(system: System, *, from_zero: bool) -> float:
    """Return the power of two by which b (and x0) was multiplied, so that its norm can be squared."""
    scale = scale_for(system.space.largest(system.vectors["b"]), system.squares)
    if scale != 1.0:
        system.scale(scale, ("b",) if from_zero else ("b", "x"))
    return scale


def _has_room(system: System, given: State, scale: float, wanted: float) -> bool:
    """Whether x still solves the system when its numbers are rounded to what they are without the scale."""
    round_unscaled(system.vectors["x"], scale)
    system.loop.start("x", given)
    return bool(system.loop.advance(0, finish=False).state["start"] <= wanted) and is_finite(system)


def round_unscaled(x: Array, scale: float) -> None:
    """Round the numbers of a vector, or let them be infinite, as dividing them by a power of two does."""
    x /= scale
    x *= scale


BEYOND = "x holds numbers too large or too small for its type; multiply b by another power of two"
"""Why an x is none whose residual was small before it was brought to the size of b."""

HIDDEN = "x holds NaN or infinity where A has no entries: x0 or M gave it"
"""Why an x is none whose residual is small."""


def _converged(norm: float, made: int) -> str:
    return f"the residual is {norm:.3g}, small enough, after {made} iterations"


DIVERGED = 1e4
"""Times the first residual: one that was larger says why numbers overflowed."""


def _not_finite(made: int, residuals: list[float]) -> str:
    if made == 0:
        return "b, x0 or A x0 holds NaN or infinity"
    largest = max(filter(math.isfinite, residuals), default=0.0)
    why = "A, M or b holds such a number, or their products overflow"
    if largest > DIVERGED * residuals[0]:
        why = (
            f"the residual had grown from {residuals[0]:.3g} to {largest:.3g}, so the method diverges; "
            "try another one, or a preconditioner"
        )
    return f"iteration {made} gave NaN or infinity: {why}"


def _stuck(system: System, made: int, residuals: list[float], norm: float, code: int) -> Answer:
    words = system.method.words.get(code)
    if words is None:
        stagnation = (
            f"the residual stays at {norm:.3g} after {made} iterations, though the one carried along says "
            f"{residuals[-1]:.3g}: no more can be had in {system.space.dtype}; ask for less"
        )
        return Answer(made, residuals, norm, STAGNATION, stagnation)
    return Answer(made, residuals, norm, BREAKDOWN, f"iteration {made}: {words}; the residual is {norm:.3g}")


def load(target: Array, source: Any, space: Any) -> None:
    """Copy a vector into one of the space, or clear that."""
    target[...] = 0 if source is None else space.asarray(source)
