"""A space: the vectors of a solver, and the operations on them.

A space holds vectors of one length in one block of memory, a row each, and makes passes over them. A pass
does some updates and then some dot products, in one reading of the vectors that it names:

    descend = vectors.fuse("r = r - alpha q", dots=("r r",))
    (rr,) = descend(alpha=alpha)

Updates happen one after the other, element by element, so that a later one sees what an earlier one wrote.
A term is a vector, perhaps with a sign and a coefficient before it; `d*r` is the vector of the products d_i
r_i.

A space of complex vectors is a real one of twice the length, too: `r z` is the real part of the inner product
of r and z, which makes methods that need no more those for Hermitian matrices. Where all of it is wanted, it
is written `r'z`: the sum over conj(r_i) z_i, a complex number. Coefficients may be complex there.
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
    """A term of a sum: sign times coefficient (1 if it has no name) times vector, times another
    elementwise."""

    sign: float
    coefficient: str | None
    vector: str
    times: str | None = None


@dataclass(frozen=True)
class Update:
    """A vector and the sum that it is set to; a term that is the vector itself comes first."""

    out: str
    terms: tuple[Term, ...]


@cache
def parse_update(text: str) -> Update:
    """Read an update such as "x = x + alpha p - beta q" or "z = d*r"; "x = 0" clears.

    Raises
    ------
    ValueError
        If the text is none.
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
            terms.append(_term(text, sign, pending))
        pending, sign = [], 1.0 if word == "+" else -1.0
    own = [term for term in terms if term.vector == out and term.times is None]
    others = [term for term in terms if term not in own]
    if len(own) > 1 or any(term.vector == out and len(terms) > 1 for term in others):
        raise ValueError(
            f"an update reads {text!r}; its own vector may stand there once, and not in a product"
        )
    return Update(out, (*own, *others))


def _term(text: str, sign: float, words: list[str]) -> Term:
    vector, star, times = words[-1].partition("*")
    if len(words) > 2 or not all(
        word.isidentifier() for word in [*words[:-1], vector, *([times] * bool(star))]
    ):
        raise ValueError(f"an update reads {text!r}; terms such as 'p', 'alpha p' or 'd*r' are needed")
    return Term(sign, words[0] if len(words) == 2 else None, vector, times if star else None)


class Dot(NamedTuple):
    """A dot product of two vectors, of complex ones the real part; or if `whole` of x'y, a complex number."""

    first: str
    second: str
    whole: bool = False


@cache
def parse_dot(text: str) -> Dot:
    """Read a dot product, such as "r z" or "r'z"."""
    first, second = text.replace("'", " ").split()
    return Dot(first, second, "'" in text)


class Fused(Protocol):
    """A pass over vectors: updates, then dot products."""

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""


class Vectors(Protocol):
    """Vectors of n numbers, in one block, by name."""

    n: int
    nbytes: int

    def __getitem__(self, name: str) -> Array:
        """Return a vector; what is written to it is seen."""

    def bind(self, name: str, array: Array) -> bool:
        """Let another array be a vector in all programs prepared from now on; return whether that is
        possible."""

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Fused:
        """Prepare a pass; each of `dots` is two names, as "r z" or "r'z". Nothing else is allocated when it
        is made."""


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
    """An iteration that is made again and again, until there is a verdict."""

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew, as one of the starts does."""

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most; then finish, if that is asked for."""


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
            Each takes what `Loop.start` was given and returns the first scalars: `rr` and `goal`, the squares
            of the residual's norm and of what it must come down to; `code`, if there is a reason to stop;
            and the method's own.
        iterate : callable
            Takes the number of the phase, which goes round from 0 to `period` - 1, and the scalars, and
            returns those that change. On a GPU it runs once for each phase, when the loop is prepared; there
            it may give `judge`, the square of the residual before it, instead of `rr`, the one after it.
        finish : callable
            Returns further scalars at the end.
        period : int
            1 or 2.
        leaving : tuple of str
            Scalars that a start and an iteration return which are just the dot products of their last pass,
            in their order.
        """

    def program(self, function: Callable[[], None]) -> Callable[[], None]:
        """Prepare passes and products whose coefficients are constants, to be made again and again."""

    def eager(self, vectors: Any, *updates: str, dots: tuple[str, ...] = ()) -> Fused:
        """Prepare a pass that is made when it is called, outside of loops and programs."""

    def triangular(self, triangle: Triangle) -> TriangularSolve:
        """Return a solve with a triangle, for use in a `program`."""

    def arnoldi(self, vectors: Any, names: list[str]) -> Arnoldi:
        """Return a Krylov basis that lies in consecutive vectors."""

    def asarray(self, array: Array) -> Array:
        """Return an array of the space's type where the space is, itself if it is there already."""

    def download(self, array: Array) -> Vector:
        """Return a copy on the host."""

    def largest(self, array: Array) -> float:
        """Return the largest absolute value of a vector, 0 if it has no elements."""

    def set_product(self, out: Array, X: Array, C: np.ndarray[Any, Any], plus: Array | None = None) -> None:
        """Set a block to X C, or to X C + `plus`, for a small matrix C of the host.

        A block is an array of n rows in C order, or some columns of one. `out` may be X, some columns of X,
        or `plus`.
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
        Each needs, in a solve, rows of earlier levels alone.
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
        """Take other values of the same pattern, in place."""


class Arnoldi(Protocol):
    """A Krylov basis among the vectors of a system, and the least residual over its space.

    Attributes
    ----------
    ahead : int
        Steps that are made before the host asks what came out.
    """

    ahead: int

    def begin(self, norm: float) -> None:
        """Begin with r, whose norm this is, for the first vector."""

    def extend(self, k: int) -> None:
        """Make vector k + 1 orthogonal to those before it."""

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[[int, int], None]:
        """Return a function that makes steps `first` to `last`, each a product and `extend`."""

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return the norm of the residual after each of these steps, and whether it left nothing."""

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to another vector, x or q."""
