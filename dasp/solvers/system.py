"""One linear system, and its solve by any method that carries a residual along; see `dasp.solvers.driver`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from dasp.runtime.types import Array, ArrayLike
from dasp.solvers.arguments import Limits, check_square, place_and_type, space_for, together, vector
from dasp.solvers.driver import BEYOND, HIDDEN, Solve, answer
from dasp.solvers.operator import Matrix, as_operator
from dasp.solvers.scalars import NOT_FINITE, NOTHING, RUNNING, Scalar, where
from dasp.solvers.space import Loop, Space, State
from dasp.solvers.stats import Stats
from dasp.solvers.workspace import Workspace, workspace_for

SQUARES = (1e-200, 1e200)
"""Between these the square of a norm loses nothing; a b beyond them is scaled by a power of two."""

COMPLEX_SQUARES = (1e-140, 1e140)
"""The same where quotients of complex numbers take squares of squares."""


class Method:
    """A method that carries a residual along, one iteration like the other.

    Attributes
    ----------
    period, leaving : int, tuple of str
        See `dasp.solvers.space.Space.loop`.
    words : dict of int to str
        Why the method cannot go on, by its own codes.
    restarts : frozenset of int
        The codes after which another start may help.
    """

    period: ClassVar[int] = 1
    leaving: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[dict[int, str]] = {}
    restarts: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, system: System) -> None:
        """Prepare the passes of an iteration."""

    def start(self, s: State) -> State:
        """Take r = b - A x and the square of its norm, `rr`; return the first scalars."""
        raise NotImplementedError

    def iterate(self, phase: int, s: State) -> State:
        """Make an iteration; return `rr`, `code` where there is a reason to stop, and the scalars that
        change."""
        raise NotImplementedError


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
        Takes the system and returns what iterates; by default the space's loop of the method's iterations.
    """

    def __init__(
        self,
        A: Matrix,
        M: Matrix | None,
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
        self._subtract = self.vectors.fuse("r = b - q", dots=("b b", "r r", "x x"))
        self.method = method(self)
        self.loop: Loop = self._make_loop() if loop is None else loop(self)

    def _make_loop(self) -> Loop:
        starts = {"zero": self._start_from_zero, "x": self._start_from_x}
        method = self.method
        return self.space.loop(starts, method.iterate, self._true, method.period, method.leaving)

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
        """The diagonal of a preconditioner that is one; methods keep a copy in their vector `d`."""
        return getattr(self.preconditioner, "diagonal", None)

    @property
    def captures(self) -> bool:
        """True if its products can be captured in a CUDA graph."""
        return all(one is None or one.captures for one in (self.operator, self.preconditioner))

    def take(self, b: Array, x0: Array | None) -> None:
        """Take a right-hand side, where to start if that is not None, and the values of a diagonal M."""
        load(self.vectors["b"], b, self.space)
        if x0 is not None:
            load(self.vectors["x"], x0, self.space)
        if "d" in self.names:
            load(self.vectors["d"], self.diagonal, self.space)

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
        *squares, xx = self._subtract()
        return {**self._start(given, *squares), "xx": xx}

    def _start(self, given: State, bb: Scalar, rr: Scalar) -> State:
        state = self.find_first_scalars(given, bb, rr)
        return {**state, **self.method.start(state)}

    def find_first_scalars(self, given: State, bb: Scalar, rr: Scalar) -> State:
        """Return the first scalars of any method, by the squares of the norms of b and of the residual."""
        relative, absolute = given["rtol"] * given["rtol"] * bb, given["atol"] * given["atol"]
        low, high = self.squares
        lost = where(bb >= 0.0, float(NOTHING), float(NOT_FINITE))
        fits = where(bb >= low, where(bb <= high, float(RUNNING), lost), lost)
        wanted = where(relative > absolute, relative, absolute)
        return {
            "bb": bb,
            "rr": rr,
            "start": rr,
            "wanted": wanted,
            "goal": wanted * given["margin"],
            "code": fits,
        }

    def _true(self) -> State:
        self.multiply("x", "q")
        _, rr, xx = self._subtract()
        return {"true": rr, "xx": xx}


class LinearSolve(Solve):
    """One solve of a system, whose b and x are there already."""

    def __init__(self, system: System, *, from_zero: bool) -> None:
        self.system, self.space, self.loop, self.from_zero = system, system.space, system.loop, from_zero
        self.words, self.restarts = system.method.words, system.method.restarts

    def copy_x(self) -> Array:
        """Return a copy of x, divided by the factor."""
        x = self.system.vectors["x"].copy()
        if self.factor != 1.0:
            x /= self.factor
        return x

    def clear_x(self) -> None:
        """Set x to zero."""
        self.system.vectors["x"][...] = 0

    def rescale(self) -> bool:
        """Multiply b, and x0, by a power of two so that the norm of b can be squared; once."""
        system = self.system
        if not self.rescaled:
            self.factor = scale_for(system.space.largest(system.vectors["b"]), system.squares)
            if self.factor != 1.0:
                for name in ("b",) if self.from_zero else ("b", "x"):
                    system.vectors[name][...] *= self.factor
                self.rescaled = True
                return True
        return False

    def claim(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return a reason if the true residual is small enough."""
        if s["true"] <= s["wanted"] and math.isfinite(s["true"]):
            return f"{self.describe(self.norm(s), s)}, small enough"
        return None

    def find_flaw(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return a reason if x holds NaN that its residual does not show, or not in its type."""
        M = self.system.preconditioner
        # A diagonal M was found to be finite when it was made. To look takes as long as some iterations.
        may_hide = not self.from_zero or (M is not None and self.system.diagonal is None)
        if may_hide and not (math.isfinite(s.get("xx", math.nan)) or self._is_finite()):
            return HIDDEN
        if self.factor == 1.0:
            return None
        round_unscaled(self.system.vectors["x"], self.factor)
        self.loop.start("x", given)
        fits = self.loop.advance(0, finish=False).state["start"] <= s["wanted"]
        return None if fits and self._is_finite() else BEYOND

    def _is_finite(self) -> bool:
        return math.isfinite(self.space.largest(self.system.vectors["x"]))


def solve(
    A: Matrix,
    b: ArrayLike,
    x0: ArrayLike | None,
    limits: Limits,
    M: Matrix | None,
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
    name = str(key[0]) if key else getattr(method, "__name__", "another method")

    def take() -> tuple[str, np.dtype[Any], Array, Array | None]:
        check_square(A, M)
        size = int(getattr(A, "local_shape", A.shape)[0])
        placed = place_and_type(A, b, M)
        begin = None if x0 is None else vector("x0", x0, size, into=placed[1])
        return *placed, vector("b", b, size), begin

    device, dtype, right, start = together(A, take, lambda taken: collect_alike(name, taken, x0, M))

    kind = key or (method,), dtype, device
    with workspace_for(A, M, workspace) as (made, own), np.errstate(all="ignore"):
        system = made.get(kind, own, lambda: System(*own, dtype, device, method, names, loop=loop))
        system.take(right, start)
        x, stats = answer(LinearSolve(system, from_zero=start is None), limits, b)
    return x.reshape(getattr(b, "shape", x.shape)), stats


def collect_alike(
    method: str,
    taken: tuple[str, np.dtype[Any], Array, Array | None],
    x0: ArrayLike | None,
    M: Matrix | None = None,
) -> dict[str, Any]:
    """Return the arguments of a solve, besides its limits, that must be equal on all ranks."""
    diagonal = getattr(M, "diagonal_of_inverse", None) is not None
    kind = "none" if M is None else "a diagonal" if diagonal else "given"
    return {"type of the system": taken[1].name, "x0": x0 is not None, "M": kind, "method": method}


def scale_for(largest: float, squares: tuple[float, float] = SQUARES) -> float:
    """Return the power of two that brings a largest absolute value to where its square is a number; 1 if it
    is between `squares`, or is 0 or none."""
    if not 0 < largest < math.inf or squares[0] <= largest * largest <= squares[1]:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))


def round_unscaled(x: Array, scale: float) -> None:
    """Round the numbers of a vector, or let them be infinite, as dividing them by a power of two does."""
    x /= scale
    x *= scale


def load(target: Array, source: Array | None, space: Space) -> None:
    """Copy a vector into one of the space, or clear that."""
    target[...] = 0 if source is None else space.asarray(source)
