"""Square systems A x = b, and their solves by any method that updates a residual."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import (
    Limits,
    check_square,
    check_vector,
    find_device_and_type,
    find_space,
    together,
)
from dasp.solvers.driver import Solve, answer
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator
from dasp.solvers.scalars import NOT_FINITE, NOTHING, RUNNING, Scalar, where
from dasp.solvers.space import Loop, Space, State
from dasp.solvers.stats import Stats
from dasp.solvers.workspace import Workspace, workspace_for

SQUARES = (1e-200, 1e200)
"""A square of a norm between these loses nothing; if that of b is not, b is scaled by a power of two."""

COMPLEX_SQUARES = (1e-140, 1e140)
"""The same for complex numbers, whose quotients take squares of squares."""


class Method:
    """A method that updates a residual in iterations that are all alike.

    Attributes
    ----------
    period, leaving : int, tuple of str
        See `dasp.solvers.space.Space.loop`.
    words : dict of int to str
        Why the method cannot go on, for each of its own codes.
    restarts : frozenset of int
        The codes after which another start may help.
    """

    period: ClassVar[int] = 1
    leaving: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[dict[int, str]] = {}
    restarts: ClassVar[frozenset[int]] = frozenset()

    @classmethod
    def names(cls, M: DeviceOperator | None, *options: Any) -> tuple[str, ...]:
        """Return the names of its vectors besides b, x, r, and q, which is free between iterations."""
        raise NotImplementedError

    def __init__(self, system: System, *options: Any) -> None:
        """Prepare the passes of an iteration."""

    def make_loop(self, system: System) -> Loop:
        """Return the loop that repeats the iteration: by default that of the system's space."""
        return system.space.loop(
            system.starts, self.iterate, system.find_true_residual, self.period, self.leaving
        )

    def start(self, s: State) -> State:
        """Begin with r = b - A x and the square of its norm, `rr`; return the first scalars."""
        raise NotImplementedError

    def iterate(self, phase: int, s: State) -> State:
        """Make an iteration; return `rr`, `code` if there is a reason to stop, and the scalars that
        change."""
        raise NotImplementedError


def first_scalars(given: State, bb: Scalar, rr: Scalar, squares: tuple[float, float]) -> State:
    """Return the first scalars of any method, from the squares of the norms of b and of the residual."""
    relative, absolute = given["rtol"] * given["rtol"] * bb, given["atol"] * given["atol"]
    wanted = where(relative > absolute, relative, absolute)
    return {
        "bb": bb,
        "rr": rr,
        "start": rr,
        "wanted": wanted,
        "goal": wanted * given["margin"],
        "code": judge_square(bb, squares, float(RUNNING)),
    }


def judge_square(square: Scalar, squares: tuple[float, float], code: Scalar) -> Scalar:
    """Return `code` if a square is between `squares`; `NOTHING` if not, and `NOT_FINITE` if it is NaN."""
    lost = where(square >= 0.0, float(NOTHING), float(NOT_FINITE))
    return where(square >= squares[0], where(square <= squares[1], code, lost), lost)


class System(Solve):
    """A x = b for one A, one preconditioner and one method, ready for any b; also the solve for the last b.

    Parameters
    ----------
    A, M : matrix or linear operator, shape (n, n); M may be None
    dtype : numpy.dtype
    device : str
    method : type of Method
    options
        The options of the method.
    """

    def __init__(
        self,
        A: Matrix,
        M: Matrix | None,
        dtype: np.dtype[Any],
        device: str,
        method: type[Method],
        *options: Hashable,
    ) -> None:
        self.space = find_space(A, device, dtype)
        self.operator = as_operator(A, device)
        self.preconditioner = None if M is None else as_operator(M, device, "M")
        self.n = self.operator.shape[0]
        self.names = method.names(self.preconditioner, *options)
        self.vectors = self.space.vectors(self.n, "b", "x", "r", "q", *self.names)
        self.count, self.nbytes = 4 + len(self.names), self.vectors.nbytes
        self._begin = self.vectors.fuse("r = b", "x = 0", dots=("b b", "r r"))
        self._subtract = self.vectors.fuse("r = b - q", dots=("b b", "r r", "x x"))
        self.starts = {"zero": self._start_from_zero, "x": self._start_from_x}
        self.method = method(self, *options)
        self.words, self.restarts = method.words, method.restarts
        self.loop = self.method.make_loop(self)

    @property
    def complex(self) -> bool:
        """True if its vectors are of complex numbers."""
        return self.space.dtype.kind == "c"

    @property
    def squares(self) -> tuple[float, float]:
        """The least and the largest square of a norm that loses nothing."""
        return COMPLEX_SQUARES if self.complex else SQUARES

    @property
    def diagonal(self) -> Array | None:
        """The diagonal of a diagonal preconditioner, else None; methods keep a copy in their vector `d`."""
        return None if self.preconditioner is None else self.preconditioner.diagonal

    @property
    def captures(self) -> bool:
        """True if its products can be captured in a CUDA graph."""
        return all(one is None or one.captures for one in (self.operator, self.preconditioner))

    def take(self, b: Array, x0: Array | None) -> None:
        """Copy a right-hand side, an x0 that is not None, and the values of a diagonal M."""
        self.from_zero, self.factor, self.rescaled = x0 is None, 1.0, False
        load(self.vectors["b"], b, self.space)
        if x0 is not None:
            load(self.vectors["x"], x0, self.space)
        if "d" in self.names:
            load(self.vectors["d"], self.diagonal, self.space)

    def multiply(self, x: str, y: str) -> None:
        """Set vector y to A times vector x."""
        self.space.apply(self.operator, self.vectors[x], self.vectors[y])

    def precondition(self, r: str, z: str) -> None:
        """Set vector z to M times vector r; M must not be None."""
        assert self.preconditioner is not None
        self.space.apply(self.preconditioner, self.vectors[r], self.vectors[z])

    def _start_from_zero(self, given: State) -> State:
        return self._start(given, *self._begin())

    def _start_from_x(self, given: State) -> State:
        self.multiply("x", "q")
        *squares, xx = self._subtract()
        return {**self._start(given, *squares), "xx": xx}

    def _start(self, given: State, bb: Scalar, rr: Scalar) -> State:
        state = first_scalars(given, bb, rr, self.squares)
        return {**state, **self.method.start(state)}

    def find_true_residual(self) -> State:
        """Compute the residual from x; return the squares of its norm and of that of x."""
        self.multiply("x", "q")
        _, rr, xx = self._subtract()
        return {"true": rr, "xx": xx}

    def copy_x(self) -> Array:
        """Return a copy of x, divided by the factor."""
        x = self.vectors["x"].copy()
        if self.factor != 1.0:
            x /= self.factor
        return x

    def clear_x(self) -> None:
        """Set x to zero."""
        self.vectors["x"][...] = 0

    def rescale(self) -> bool:
        """Multiply b and x0 by a power of two so that the norm of b can be squared, but only once."""
        if self.rescaled:
            return False
        self.factor = scale_for(self.space.largest(self.vectors["b"]), self.squares)
        self.rescaled = self.factor != 1.0
        if self.rescaled:
            for name in ("b",) if self.from_zero else ("b", "x"):
                self.vectors[name][...] *= self.factor
        return self.rescaled

    def find_claim(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return a reason if the true residual is small enough."""
        if s["true"] <= s["wanted"] and math.isfinite(s["true"]):
            return f"{self.describe(s)}, small enough"
        return None

    def round_x(self) -> bool:
        """Round x to the numbers that the caller gets; return True if it had been multiplied."""
        if self.rescaled:
            self.vectors["x"][...] /= self.factor
            self.vectors["x"][...] *= self.factor
        return self.rescaled

    def hides_nan(self, s: Mapping[str, float]) -> bool:
        """Return True if x holds NaN or infinity, which its residual does not show where A has no entries."""
        M = self.preconditioner
        # To look takes as long as some iterations. A diagonal M was found to be finite when it was made.
        may_hide = self.rescaled or not self.from_zero or (M is not None and self.diagonal is None)
        if not may_hide or math.isfinite(s.get("xx", math.nan)):
            return False
        return not math.isfinite(self.space.largest(self.vectors["x"]))


def solve(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None,
    limits: Limits,
    M: Matrix | None,
    workspace: Workspace | None,
    method: type[Method],
    *options: Hashable,
) -> tuple[Array, Stats]:
    """Solve A x = b by a method and its options; the other arguments are those of every solver here.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.
    """
    check = partial(check_square, A, M)
    device, dtype, right, start = take_vectors(A, b, x0, M, method.__name__, check)
    key = method, options, dtype, device
    with workspace_for(A, M, workspace) as (made, own), np.errstate(all="ignore"):
        system = made.get(key, own, lambda: System(*own, dtype, device, method, *options))
        system.take(right, start)
        x, stats = answer(system, limits, b)
    return x.reshape(getattr(b, "shape", x.shape)), stats


def take_vectors(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None,
    M: Matrix | None,
    method: str,
    check: Callable[[], None],
) -> tuple[str, np.dtype[Any], Array, Array | None]:
    """Return the device of a system, the type of its vectors, b and x0, after `check` has passed.

    If A lies on several ranks, they must agree on the type, the method, and the kinds of x0 and M.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value, or `check` raises it.
    """

    def take() -> tuple[str, np.dtype[Any], Array, Array | None]:
        check()
        m, n = map(int, getattr(A, "local_shape", A.shape))
        device, dtype = find_device_and_type(A, b, M)
        begin = None if x0 is None else check_vector("x0", x0, n, "columns", dtype)
        return device, dtype, check_vector("b", b, m), begin

    diagonal = getattr(M, "diagonal_of_inverse", None) is not None
    kind = "none" if M is None else "a diagonal" if diagonal else "given"
    alike = {"x0": "none" if x0 is None else "given", "M": kind, "method": method}
    taken: tuple[str, np.dtype[Any], Array, Array | None] = together(
        A, take, lambda taken: {"type of the system": taken[1].name, **alike}
    )
    return taken


def scale_for(largest: float, squares: tuple[float, float] = SQUARES) -> float:
    """Return the power of two that brings a largest absolute value near 1, so that it can be squared; 1 if
    its square is between `squares`, or if it is 0 or not finite."""
    if not 0 < largest < math.inf or squares[0] <= largest * largest <= squares[1]:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))


def load(target: Array, source: Array | None, space: Space) -> None:
    """Copy a vector into one of the space, or clear that one if the source is None."""
    target[...] = 0 if source is None else space.asarray(source)
