"""Least-squares problems, and their solves by any method on a bidiagonalization.

A solve is done when A x = b holds, or when b - A x is orthogonal to the columns of A. Both are claimed only
for the true residual and its true product with the adjoint, computed from x.

A problem whose numbers cannot be squared in the type of its vectors is solved as (2^u A) y = 2^s b, with
x = 2^(u - s) y. A damped problem is that of [A; damp I] and [b; damp x0].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import Limits, check_number, find_space
from dasp.solvers.driver import Solve, answer
from dasp.solvers.operator import (
    DeviceOperator,
    Matrix,
    adjoint_of,
    as_operator,
    damp_by,
    kept_adjoint,
    scale_by_power,
)
from dasp.solvers.scalars import OWN, RUNNING, Scalar, sqrt, where
from dasp.solvers.space import State, Vectors
from dasp.solvers.stats import Stats
from dasp.solvers.system import first_scalars, judge_square, load, take_vectors
from dasp.solvers.workspace import Workspace, workspace_for

LEAST = OWN
"""Why a method stopped: the residual, as it is updated, is orthogonal to the columns of A."""

SIZES = {np.float32: (1e-20, 1e20), np.float64: (1e-100, 1e100)}
"""The squares of the norms of b and of A' times the first u must lie between these, so that no square that a
method takes is lost."""

LEAST_SQUARE = 1e-250
"""A smaller sum of squares may have lost some of them."""

MOST_POWER = 1000
"""The largest power of two that A and b are multiplied by: larger ones are near the end of float64."""

BOOST = {np.float32: 60, np.float64: 500}
"""The power of two by which a vector is multiplied, or divided, to see whether its product with A is zero or
infinite only because of the vector's size."""


class Bidiagonalization:
    """A method on Golub and Kahan's bidiagonalization.

    Attributes
    ----------
    names : tuple of str
        The method's vectors of length n, besides those of the problem.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self, problem: Problem) -> None:
        """Prepare the passes of an iteration."""

    def start(self, s: State, beta: Scalar, alpha: Scalar) -> State:
        """Return the first scalars; beta and alpha are the lengths of the first u and v."""
        raise NotImplementedError

    def iterate(self, s: State, alpha: Scalar, beta: Scalar, next_alpha: Scalar) -> State:
        """Make an iteration, given the lengths of this v and of the next u and v.

        Return `rr`, `gradient`, the square of the norm of A' r, and the scalars that change.
        """
        raise NotImplementedError


class Problem(Solve):
    """min norm(b - A x) for one A and one method, ready for any b; also the solve for the last b.

    `adjoint` is the one that `dasp.solvers.operator.kept_adjoint` returns, or None.
    The vectors u and v of the bidiagonalization are not normalised: their lengths are in the coefficients.
    The matrix of the problem is 2^unit times A, and its right-hand side 2^scale times b.
    """

    unit, scale = 0, 0

    def __init__(
        self,
        A: Matrix,
        adjoint: Matrix | None,
        dtype: np.dtype[Any],
        device: str,
        method: type[Bidiagonalization],
        damp: float,
    ) -> None:
        self.space = find_space(A, device, dtype)
        self.operator: DeviceOperator = as_operator(A, device)
        self.adjoint = adjoint_of(A, device) if adjoint is None else as_operator(adjoint, device, "A.H")
        self.sizes, self.damp, self.given = tuple(map(int, A.shape)), damp, self.operator.shape[0]
        if damp:
            self.operator, self.adjoint = damp_by(self.operator, self.adjoint, damp)
            self.sizes = self.sizes[0] + self.sizes[1], self.sizes[1]
        self._unscaled = self.operator, self.adjoint
        m, n = self.operator.shape
        self.rows = self.space.vectors(m, "b", "u", "t")
        self.columns = self.vectors = self.space.vectors(n, "x", "v", "g", *method.names)
        self.count, self.nbytes = 6 + len(method.names), self.rows.nbytes + self.columns.nbytes
        self._begin = self.rows.fuse("u = b", dots=("b b", "u u"))
        self._clear = self.columns.fuse("x = 0")
        self._residual = self.rows.fuse("u = b - t", dots=("b b", "u u"))
        self._first_v = self.columns.fuse("v = scale g", dots=("v v",))
        self._next_u = self.rows.fuse("u = scale t - back u", dots=("u u",))
        self._next_v = self.columns.fuse("v = scale g - back v", dots=("v v",))
        self._true = self.rows.fuse("t = b - t", dots=("t t",))
        self._gradient = self.columns.fuse(dots=("g g", "x x"))
        self.method = method(self)
        self._prepare_loop()

    def _prepare_loop(self) -> None:
        starts = {"zero": self._start_from_zero, "x": self._start_from_x}
        self.loop = self.space.loop(starts, self._iterate, self._finish, 1)

    def _scale(self, unit: int, scale: int) -> None:
        """Multiply the A that was given by 2^unit, b by 2^scale, and x to match."""
        if unit != self.unit:
            self.operator, self.adjoint = self._unscaled
            if unit:
                self.operator, self.adjoint = (scale_by_power(one, unit) for one in self._unscaled)
            self._prepare_loop()
        self.unit, self.scale, self.factor = unit, scale, math.ldexp(1.0, scale)
        multiply_by_power(self.rows["b"], scale)
        multiply_by_power(self.columns["x"], scale - unit)

    @property
    def precision(self) -> type[np.generic]:
        """The type of the real numbers in the vectors."""
        return real_type(self.space.dtype).type

    def take(self, b: Array, x0: Array | None) -> None:
        """Copy a right-hand side, and x0, or zeros if it is None."""
        self.from_zero, self.rescaled, self._norm_of_A = x0 is None, False, 0.0
        load(self.rows["b"][: self.given], b, self.space)
        load(self.columns["x"], x0, self.space)
        if self.damp:
            self.rows["b"][self.given :] = self.columns["x"] * self.damp
        self._scale(0, 0)

    def norms(self, s: Mapping[str, float]) -> tuple[float, float]:
        """Return the norms of the true residual and of its product with the adjoint.

        If a square is lost, return an upper bound on the norm instead, from the largest absolute value.
        """
        residual = _norm(self, s["true"], self.rows, "t", self.sizes[0])
        return residual, _norm(self, s["gradient"], self.columns, "g", self.sizes[1])

    def forward(self, v: str, t: str) -> None:
        """Set t to A v."""
        self.space.apply(self.operator, self.columns[v], self.rows[t])

    def backward(self, u: str, g: str) -> None:
        """Set g to the adjoint of A times u."""
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
        state = first_scalars(given, bb, rr, SIZES[self.precision])
        state["code"] = judge_square(squared, SIZES[self.precision], state["code"])
        least = given["rtol"] * given["rtol"] * given["margin"]
        state |= {"norm": squared, "least": least, "beta": beta, "alpha": alpha}
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
        gradient, xx = self._gradient()
        return {"true": true, "gradient": gradient, "xx": xx}

    def copy_x(self) -> Array:
        """Return a copy of x for A and b as they were given."""
        x = self.columns["x"].copy()
        multiply_by_power(x, self.unit - self.scale)
        return x

    def clear_x(self) -> None:
        """Set x to zero."""
        self.columns["x"][...] = 0

    def rescale(self) -> bool:
        """Multiply A and b by powers of two so that their norms can be squared, but only once."""
        if self.rescaled:
            return False
        self.rescaled = True
        self._scale(*_find_powers(self))
        return True

    def norm(self, s: Mapping[str, float]) -> float:
        """Return the norm of the true residual."""
        return self.norms(s)[0]

    def find_claim(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return a reason if A x = b is solved, or the residual is orthogonal to the columns of A."""
        self._norm_of_A = max(self._norm_of_A, math.sqrt(s["norm"]))
        residual, gradient = self.norms(s)
        if not all(map(math.isfinite, (residual, gradient, self._norm_of_A))):
            return None
        if residual <= max(given["rtol"] * math.sqrt(s["bb"]), given["atol"]):
            return f"{self.describe(s)}, small enough"
        if gradient <= given["rtol"] * self._norm_of_A * residual:
            return f"the residual, {residual / self.factor:.3g}, is orthogonal to the columns of A"
        return None

    def round_x(self) -> bool:
        """Round x to the numbers that the caller gets; return True if it had been multiplied."""
        power = self.unit - self.scale
        multiply_by_power(self.columns["x"], power)
        multiply_by_power(self.columns["x"], -power)
        return power != 0

    def hides_nan(self, s: Mapping[str, float]) -> bool:
        """Return True if x holds NaN or infinity, which its residual does not show where A has no entries."""
        if (self.from_zero and not self.rescaled) or math.isfinite(s["xx"]):
            return False
        return not math.isfinite(self.space.largest(self.columns["x"]))

    def may_improve(self, code: int, *, gained: bool, first: bool) -> bool:
        """Return True after the first start too: A' r may fall even if the residual does not."""
        return gained or first


def solve_least_squares(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None,
    limits: Limits,
    workspace: Workspace | None,
    method: type[Bidiagonalization],
    damp: float = 0.0,
) -> tuple[Array, Stats]:
    """Solve a least-squares problem by a method; the other arguments are those of `lsqr` and `lsmr`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.
    """

    def check() -> None:
        if len(getattr(A, "shape", ())) != 2:
            raise TypeError(f"A is {_check.kind_of(A)}; a matrix or linear operator is needed")

    damp = check_number("damp", damp)
    if damp and hasattr(A, "solver_space"):
        raise TypeError("A lies on several ranks and damp is not 0; damp works on one rank")
    device, dtype, right, start = take_vectors(A, b, x0, None, method.__name__, check)
    key = method, dtype, device, damp
    with workspace_for(A, kept_adjoint(A), workspace) as (made, own), np.errstate(all="ignore"):
        problem = made.get(key, own, lambda: Problem(*own, dtype, device, method, damp))
        problem.take(right, start)
        return answer(problem, limits, b)


def multiply_by_power(vector: Array, power: int) -> None:
    """Multiply a vector by 2^power."""
    if power:
        parts = vector.view(real_type(vector.dtype))
        np.ldexp(parts, np.int32(power), out=parts)


def _find_powers(problem: Problem) -> tuple[int, int]:
    """Return the powers of two, unit and scale, that bring A and b to sizes that can be squared.

    The power for A is found from the product of its adjoint with the first residual, which the start left in
    u, or with b if that residual is 0 or not finite.
    """
    space, precision = problem.space, problem.precision
    b, u, g = problem.rows["b"], problem.rows["u"], problem.columns["g"]
    size = space.largest(b)
    scale = _power_of(size, precision)
    first = space.largest(u)
    if not 0 < first < math.inf:
        u[...], first = b, size
    if not 0 < first < math.inf:
        return 0, scale
    boosted = 0
    for boost in (0, BOOST[precision], -BOOST[precision]):
        power = boost - math.frexp(first)[1]
        multiply_by_power(u, power - boosted)
        boosted = power
        problem.adjoint.multiply(u, g)
        largest = space.largest(g)
        if 0 < largest < math.inf:
            return _power_of(largest, precision, boost), scale
    return 0, scale


def _power_of(size: float, precision: type[np.generic], boost: int = 0) -> int:
    """Return the power of two that brings size / 2^boost near 1; 0 if it can stay, or `size` is 0 or not
    finite."""
    if not 0 < size < math.inf:
        return 0
    power = boost - math.frexp(size)[1]
    far = math.log2(SIZES[precision][1]) / 4
    return 0 if abs(power) <= far else max(-MOST_POWER, min(MOST_POWER, power))


def _norm(problem: Problem, squared: float, vectors: Vectors, name: str, size: int) -> float:
    """Return the norm of a vector of `size` numbers, given its square; an upper bound if that is lost."""
    if squared >= LEAST_SQUARE:
        return math.sqrt(squared)
    return problem.space.largest(vectors[name]) * math.sqrt(size)
