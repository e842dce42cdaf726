"""Drive an iteration until its true residual is small, whatever it solves.

A method updates its residual by a recurrence, and rounding lets this residual drift away from the true one.
So when the updated residual is small enough, the true one is computed, and it alone counts. If it is not yet
small enough, the method starts again from the x that it has. If starting again no longer helps, the solve
ends, and its reason says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import Limits
from dasp.solvers.scalars import CLAIMED, LIMIT, NOT_FINITE, NOTHING, RUNNING
from dasp.solvers.space import Loop, Report, Space
from dasp.solvers.stats import Stats

GAIN = 0.5
"""Another start is worth it only if the last one lowered the norm of the residual at least by this factor."""

MARGIN = 0.25
"""The factor on the wanted square of the norm when a method starts again: it drifted once already."""

BREAKDOWN, STAGNATION = -1, -2
"""`Stats.info` if a method cannot go on, and if starting again does not improve x."""

BEYOND = "x holds numbers too large or too small for its type; multiply b by another power of two"
"""The reason if the residual is small for the scaled problem, but not for the caller's."""

HIDDEN = "x holds NaN or infinity where A has no entries: x0 or M gave it"
"""The reason if the residual is small although x holds NaN or infinity."""

DIVERGED = 1e4
"""A method has diverged if its residual grew to this times norm(b), or to this times the first residual
before numbers overflowed."""

DIVERGES = "so the method diverges; try another one, or a preconditioner"
"""The advice for such a system."""


MEASURED = "true", "gradient", "xx"
"""The scalars of a loop's finish: they depend on x alone."""


class Solve:
    """One solve: an iteration, and the rules that tell from its scalars whether x is an answer.

    Attributes
    ----------
    loop : Loop
        Its reports hold `code`, and after a finish `true`, which is finite if the true residual is.
    space : Space
    from_zero : bool
        True if x is zero at first.
    words : mapping of int to str
        Why the method cannot go on, for each of its own codes.
    restarts : frozenset of int
        The codes after which another start may help.
    factor : float
        Norms in a solve are those of the caller's problem times this.
    rescaled : bool
        True if the problem was multiplied by powers of two.
    noun, no_start : str
        The name of the residual, and the reason if the first one is not finite.
    """

    loop: Loop
    space: Space
    from_zero: bool
    words: Mapping[int, str] = {}
    restarts: frozenset[int] = frozenset()
    factor = 1.0
    rescaled = False
    noun = "the residual"
    no_start = "A, b or x0 holds NaN or infinity, or their products overflow"

    def copy_x(self) -> Array:
        """Return a copy of x for the caller's problem; elements too large for its type are infinite."""
        raise NotImplementedError

    def is_zero(self, s: Mapping[str, float]) -> bool:
        """Return True if the right-hand side is zero."""
        return s["bb"] == 0

    def clear_x(self) -> None:
        """Set x to zero, the solution for a right-hand side of zeros."""
        raise NotImplementedError

    def rescale(self) -> bool:
        """Multiply the problem by powers of two so that no square of a norm overflows or underflows.

        Return True if another start may help. Called if the first start lost a square.
        """
        return False

    def norm_at_start(self, s: Mapping[str, float]) -> float:
        """Return the norm of the residual at the last start."""
        return math.sqrt(max(s["start"], 0.0))

    def norm(self, s: Mapping[str, float]) -> float:
        """Return the norm of the true residual."""
        return math.sqrt(s["true"]) if s["true"] >= 0 else math.nan

    def relative(self, s: Mapping[str, float]) -> float:
        """Return the norm of the true residual over norm(b); NaN if norm(b)^2 is 0 or not finite."""
        return self.norm(s) / math.sqrt(s["bb"]) if 0 < s["bb"] < math.inf else math.nan

    def describe(self, s: Mapping[str, float]) -> str:
        """Return a text with the norm of the true residual, and its ratio to norm(b)."""
        share = self.relative(s)
        text = f"{self.noun} is {self.norm(s) / self.factor:.3g}"
        return f"{text}, {share:.2g} of norm(b)" if share >= 0 else text

    def find_claim(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return why x is an answer, or None if it is not one."""
        raise NotImplementedError

    def round_x(self) -> bool:
        """Round x to the numbers that the caller gets; return True if it had been multiplied."""
        return False

    def hides_nan(self, s: Mapping[str, float]) -> bool:
        """Return True if x holds NaN or infinity although its residual is finite."""
        return False

    def may_improve(self, code: int, *, gained: bool, first: bool) -> bool:
        """Return True if another start may help.

        `gained` is True if the last start lowered the residual by `GAIN`, `first` if it was the first one.
        """
        return gained and (code == CLAIMED or code in self.restarts)


def answer(solve: Solve, limits: Limits, b: ArrayLike) -> tuple[Array, Stats]:
    """Drive a solve to its end; return x, on the host if b is a NumPy array or a list, and the statistics."""
    try:
        stats = drive(solve, limits)
    finally:
        if limits.bar is not None:
            limits.bar.close()
    x = solve.copy_x()
    there = hasattr(b, "dtype") and not isinstance(b, np.ndarray)
    return x if there else solve.space.download(x), stats


@np.errstate(all="ignore")
def drive(solve: Solve, limits: Limits) -> Stats:
    """Iterate, start again where that helps, and return how the solve ended."""
    residuals: list[float] = []
    made, name, first = 0, "zero" if solve.from_zero else "x", True
    while True:
        margin = 1.0 if first else MARGIN
        given = {"rtol": limits.rtol, "atol": limits.atol * solve.factor, "margin": margin}
        solve.loop.start(name, given)
        report, count = advance(solve, limits, made, residuals)
        made += count
        s, code = report.state, int(report.state["code"])
        lost = made == 0 and code in (NOTHING, NOT_FINITE)
        if lost and solve.rescale():
            residuals.clear()
            continue
        if solve.is_zero(s):
            solve.clear_x()
            return Stats(True, made, [0.0], 0.0, "b is zero, and so is x", 0.0, 0, relative=0.0)
        norm, claim = solve.norm(s), solve.find_claim(s, given)
        claimed = claim is not None
        if lost and claim is None and solve.rescaled and name == "x":  # x0 is too large to be of use
            residuals.clear()
            name = "zero"
            continue
        finite = math.isfinite(s["true"]) and math.isfinite(s.get("gradient", 0.0))
        broken, spent = not finite or code in (NOTHING, NOT_FINITE), made >= limits.maxiter or code == LIMIT
        gained = norm <= GAIN * solve.norm_at_start(s)
        if not (claimed or broken or spent) and solve.may_improve(code, gained=gained, first=first):
            name, first = "x", False
            continue
        rounded = solve.round_x()
        if rounded:
            solve.loop.start("x", given)
            end = solve.loop.advance(0, finish=True).state
            s = {**s, **{key: end[key] for key in MEASURED if key in end}}
            norm, claim = solve.norm(s), solve.find_claim(s, given)
        if claim is not None and not solve.hides_nan(s):
            info, reason = 0, f"{claim}, after {made} iterations"
        elif claimed or claim is not None:
            info, reason = BREAKDOWN, BEYOND if rounded else HIDDEN
        elif broken:
            info, reason = BREAKDOWN, _explain_not_finite(solve, made, residuals)
        elif spent:
            advice = f", {DIVERGES}" if solve.relative(s) > DIVERGED else ""
            info, reason = made, f"{made} iterations were made: {solve.describe(s)}{advice}"
        else:
            info, reason = _explain_stuck(solve, made, s)
        norm, relative = norm / solve.factor, solve.relative(s)
        return Stats(info == 0, made, residuals, norm, reason, 0.0, info, relative=relative)


def advance(solve: Solve, limits: Limits, made: int, residuals: list[float]) -> tuple[Report, int]:
    """Advance, in blocks if a callback or a bar follows; return the last report and the iterations made."""
    left, count, factor = limits.maxiter - made, 0, solve.factor
    whole = limits.callback is None and limits.bar is None
    report = solve.loop.advance(left if whole else 0, finish=whole)
    if not residuals:
        residuals.append(solve.norm_at_start(report.state) / factor)
    if whole:
        seen = [*report.residuals[limits.check_every - 1 : -1 : limits.check_every], *report.residuals[-1:]]
        residuals.extend(seen if factor == 1.0 else (value / factor for value in seen))
        return report, len(report.residuals)
    while report.state["code"] in (RUNNING, LIMIT) and count < left:
        report = solve.loop.advance(min(limits.check_every, left - count), finish=False)
        count += len(report.residuals)
        residuals.extend(value / factor for value in report.residuals[-1:])
        if limits.callback is not None:
            limits.callback(solve.copy_x())
        if limits.bar is not None:
            limits.bar.set_postfix_str(f"residual {residuals[-1]:.2e}", refresh=False)
            limits.bar.update(len(report.residuals))
    return solve.loop.advance(0, finish=True), count


def _explain_not_finite(solve: Solve, made: int, residuals: list[float]) -> str:
    if made == 0:
        return solve.no_start
    largest = max(filter(math.isfinite, residuals), default=0.0)
    why = "A, M or b holds such a number, or their products overflow"
    if largest > DIVERGED * residuals[0]:
        why = f"the residual had grown from {residuals[0]:.3g} to {largest:.3g}, {DIVERGES}"
    return f"iteration {made} gave NaN or infinity: {why}"


def _explain_stuck(solve: Solve, made: int, s: Mapping[str, float]) -> tuple[int, str]:
    words, residual = solve.words.get(int(s["code"])), solve.describe(s)
    if words is not None:
        return BREAKDOWN, f"iteration {made}: {words}; {residual}"
    why = f"no more can be had in {solve.space.dtype}; ask for less"
    if solve.relative(s) > 0.1:
        why = "A may be singular, and b out of its reach; lsmr finds an x with the least residual"
    return STAGNATION, f"{residual} after {made} iterations, and falls no further: {why}"
