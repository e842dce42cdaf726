"""A space: the vectors of a solver, and the operations on them.

A space holds vectors of one length in one block of memory, a row each, and makes passes over them. A pass
does some updates and then some dot products, in one reading of the vectors that it names:

    descend = vectors.fuse("r = r - alpha q", dots=("r r",))
    (rr,) = descend(alpha=alpha)

Updates happen one after the other, element by element, so that a later one reads the elements that an earlier
one wrote. A term is a vector, perhaps with a sign and a coefficient before it; `d*r` is the vector of the
products d_i r_i.

A space of complex vectors is also a real one of twice the length: `r z` is the real part of the inner product
of r and z. A method for symmetric matrices that needs no more takes Hermitian ones as well. The whole inner
product is written `r'z`: the sum over conj(r_i) z_i, a complex number. Coefficients of complex vectors may be
complex.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasp.runtime.types import Array, Vector
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.scalars import Scalar


@dataclass(frozen=True)
class Term:
    """A term of a sum: sign times coefficient (None stands for 1) times vector, and elementwise times the
    vector `times` unless that is None."""

    sign: float
    coefficient: str | None
    vector: str
    times: str | None = None


@dataclass(frozen=True)
class Update:
    """A vector and the sum that it is set to; a term in the vector itself comes first."""

    out: str
    terms: tuple[Term, ...]


@cache
def parse_update(text: str) -> Update:
    """Parse an update such as "x = x + alpha p - beta q" or "z = d*r"; "x = 0" clears x.

    Raises
    ------
    ValueError
        If the text is no update.
    """
    out, equals, right = (part.strip() for part in text.partition("="))
    if not equals or not out.isidentifier():
        raise ValueError(f"an update reads {text!r}; 'vector = terms' is needed")
    terms: list[Term] = []
    pending: list[str] = []
    sign = 1.0
    for word in [*right.split(), "+"]:
        if word not in "+-":
            pending.append(word)
            continue
        if pending and pending != ["0"]:
            terms.append(_parse_term(text, sign, pending))
        pending, sign = [], 1.0 if word == "+" else -1.0
    own = [term for term in terms if term.vector == out and term.times is None]
    others = [term for term in terms if term not in own]
    if len(own) > 1 or any(term.vector == out and len(terms) > 1 for term in others):
        raise ValueError(
            f"an update reads {text!r}; its own vector may stand there once, and not in a product"
        )
    return Update(out, (*own, *others))


def _parse_term(text: str, sign: float, words: list[str]) -> Term:
    vector, star, times = words[-1].partition("*")
    if len(words) > 2 or not all(
        word.isidentifier() for word in [*words[:-1], vector, *([times] * bool(star))]
    ):
        raise ValueError(f"an update reads {text!r}; terms such as 'p', 'alpha p' or 'd*r' are needed")
    return Term(sign, words[0] if len(words) == 2 else None, vector, times if star else None)


class Dot(NamedTuple):
    """A dot product x y of two vectors: for complex ones its real part, or if `whole` the complex x'y."""

    first: str
    second: str
    whole: bool = False


@cache
def parse_dot(text: str) -> Dot:
    """Parse a dot product, such as "r z" or "r'z"."""
    first, second = text.replace("'", " ").split()
    return Dot(first, second, "'" in text)


class Pass(Protocol):
    """A pass over vectors: updates, then dot products."""

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""


class Vectors(Protocol):
    """Named vectors of n numbers in one block."""

    n: int
    nbytes: int

    def __getitem__(self, name: str) -> Array:
        """Return a vector itself, not a copy."""

    def bind(self, name: str, array: Array) -> bool:
        """Let an array stand for a vector in all programs prepared from now on; return False if it cannot."""

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass; each of `dots` is two names, as "r z" or "r'z". To make the pass allocates no
        vectors."""


State = dict[str, Scalar]
Start = Callable[[State], State]
Iterate = Callable[[int, State], State]


@dataclass
class Report:
    """The report of a loop: its last scalars, and the norm of the residual after each iteration since the
    last report."""

    state: dict[str, float]
    residuals: list[float]


class Loop(Protocol):
    """An iteration that is repeated until there is a verdict."""

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew with the start of this name, which takes the scalars in `given`."""

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most; then compute the scalars of the end if
        `finish`."""


class Space(Protocol):
    """The operations that differ between a CPU, a GPU and several ranks, besides the product.

    Attributes
    ----------
    dtype : numpy.dtype
    device : str
    """

    dtype: np.dtype[Any]
    device: str

    def wait(self) -> None:
        """Wait for all launches so far."""

    def vectors(self, n: int, *names: str) -> Vectors:
        """Return vectors of n zeros."""

    def apply(self, operator: DeviceOperator, x: Array, y: Array) -> None:
        """Set y to the product of an operator and x, two vectors of the space."""

    def loop(
        self,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...] = (),
    ) -> Loop:
        """Prepare a loop.

        Parameters
        ----------
        starts : mapping of str to callable
            Each takes the scalars given to `Loop.start` and returns the first scalars: `rr`, the square of
            the residual's norm; `goal`, the square that it must fall to; `code`, if there is a reason to
            stop; and the method's own.
        iterate : callable
            Takes the phase, which cycles through 0 to `period` - 1, and the scalars, and returns those that
            change. On a GPU it runs once for each phase, when the loop is prepared. There it may also return
            `judge`, the square before the iteration: the verdict is then on this and not on `rr`, the one
            after it.
        finish : callable
            Returns further scalars at the end.
        period : int
            1 or 2.
        leaving : tuple of str
            Scalars that a start and an iteration return and that are exactly the dot products of their last
            pass, in its order.
        """

    def program(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats the passes and products of another, whose coefficients are
        constants."""

    def eager(self, vectors: Any, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass that is made when it is called, outside of loops and programs."""

    def triangular(self, triangle: Triangle) -> TriangularSolve:
        """Return a solve with a triangle, for use in a `program`."""

    def arnoldi(self, vectors: Any, names: list[str]) -> Arnoldi:
        """Return a Krylov basis that lies in consecutive vectors."""

    def asarray(self, array: Array) -> Array:
        """Return an array in the space's type and on its device; the array itself if it is that already."""

    def download(self, array: Array) -> Vector:
        """Return a copy on the host."""

    def largest(self, array: Array) -> float:
        """Return the largest absolute value of a vector, 0 if it has no elements."""

    def set_product(self, out: Array, X: Array, C: np.ndarray[Any, Any], plus: Array | None = None) -> None:
        """Set a block to X C, or to X C + `plus`, for a small matrix C on the host.

        A block is an array of n rows in C order, or some columns of one. `out` may share columns with X and
        `plus`.
        """


@dataclass(frozen=True)
class Triangle:
    """A strict triangle by rows, the inverse of its diagonal, and its rows level by level.

    Attributes
    ----------
    indptr, indices : numpy.ndarray of int32
    data : numpy.ndarray
    inverse : numpy.ndarray, shape (n,)
    rows : numpy.ndarray of int32, shape (n,)
        The rows level by level: in a solve each needs rows of earlier levels alone.
    cuts : numpy.ndarray, shape (levels + 1,)
        Where each level begins in `rows`.
    """

    indptr: Vector
    indices: Vector
    data: Vector
    inverse: Vector
    rows: Vector
    cuts: Vector


class TriangularSolve(Protocol):
    """A solve with a triangle."""

    def __call__(self, b: Array, x: Array) -> None:
        """Set x to the solution for b."""

    def load(self, data: Vector, inverse: Vector) -> None:
        """Load other values of the same pattern, in place."""


class Arnoldi(Protocol):
    """A Krylov basis among the vectors of a system, and the least residual over its space.

    Attributes
    ----------
    ahead : int
        Steps that are made before the host reads their residuals.
    """

    ahead: int

    def begin(self, norm: float) -> None:
        """Make the first vector from r, which has this norm."""

    def extend(self, k: int) -> None:
        """Make vector k + 1 orthogonal to those before it."""

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[[int, int], None]:
        """Return a function that makes steps `first` to `last` - 1, each a product and `extend`."""

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return for each of these steps the residual's norm, and whether no new direction was left."""

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to vector `target`, x or q."""
