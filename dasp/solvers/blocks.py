"""Blocks, arrays whose columns are vectors: norms, scales, bases from Gram matrices, and a solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Array
from dasp.solvers.cg import SKEW
from dasp.solvers.driver import Solve
from dasp.solvers.scalars import CLAIMED, NOT_FINITE, OWN, RUNNING
from dasp.solvers.space import Report, Space
from dasp.solvers.system import SQUARES, scale_for

SINGLE_SQUARES = (1e-20, 1e20)
"""A square in single precision between these loses nothing, nor does that of a small remainder."""

RANK = 1e-14
"""A direction with an eigenvalue of a Gram matrix below this times the largest is dropped."""

OVERFLOW = "NaN or infinity came up: A, M or what was given holds such a number, or products overflow"

WELL_CONDITIONED = 1e-2
"""One pass makes a basis orthonormal if the least eigenvalue of its Gram matrix is above this times the
largest."""

ROUNDS, PROJECTIONS = 4, 2
"""The most rounds of orthogonalization, and the most of them that only project."""

BROKEN = OWN
"""The code of a block method that cannot go on; its words say why."""


class Breakdown(ArithmeticError):
    """The error of a method that cannot go on; the message says why."""


class BlockSolve(Solve):
    """A solve for a block X, and its loop, which iterates on the host.

    A report's norms are the largest over the columns. The residuals of X are measured before it starts.

    Attributes
    ----------
    _norms, _sizes : numpy.ndarray, shape (k,)
        The norms of the residuals, and the norms to which `rtol` relates them.
    """

    noun = "the largest residual"
    _norms: np.ndarray[Any, Any]
    _sizes: np.ndarray[Any, Any]

    def __init__(self) -> None:
        self.loop = self

    def _measure(self) -> None:
        """Compute the residuals and their norms from X alone."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Prepare the first iteration."""

    def _iterate(self) -> None:
        """Make an iteration, and set the norms of the updated residuals."""
        raise NotImplementedError

    def norm_at_start(self, s: Mapping[str, float]) -> float:
        """Return the largest norm of a residual at the last start."""
        return s["start"]

    def norm(self, s: Mapping[str, float]) -> float:
        """Return the largest norm of a true residual."""
        return s["true"]

    def find_claim(self, s: Mapping[str, float], given: Mapping[str, float]) -> str | None:
        """Return a reason if the true residuals of all columns are small enough."""
        return f"{self.describe(s)}, small enough" if self._is_small() else None

    def relative(self, s: Mapping[str, float]) -> float:
        """Return the largest norm of a residual over its size in `_sizes`; NaN if all of them are 0."""
        known = self._sizes != 0
        return float((self._norms[known] / self._sizes[known]).max()) if known.any() else math.nan

    def describe(self, s: Mapping[str, float]) -> str:
        """Return the largest norm of a true residual in words."""
        return f"{self.noun} is {self.norm(s) / self.factor:.3g}"

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew from X."""
        self._rtol, self._atol, self._margin = given["rtol"], given["atol"], math.sqrt(given["margin"])
        self._start = self._largest()
        if not np.isfinite(self._norms).all():
            self._code = NOT_FINITE
        elif self._is_small():
            self._code = CLAIMED
        else:
            self._code = RUNNING
            self._try(self._begin)

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until the updated residuals of all columns are small, `most` times at most."""
        residuals: list[float] = []
        while self._code == RUNNING and len(residuals) < most:
            self._try(self._iterate)
            residuals.append(self._largest())
            if self._code == RUNNING and self._is_small(self._margin):
                self._code = CLAIMED
        if finish:
            self._measure()
        return Report({"code": self._code, "start": self._start, "true": self._largest()}, residuals)

    def _are_large(self, margin: float = 1.0) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each column whether the norm of its residual is too large."""
        wanted = margin * np.maximum(self._rtol * self._sizes, self._atol)
        # An infinite column of B makes an infinite norm and an infinite limit.
        return ~((self._norms <= wanted) & (self._norms < math.inf))

    def _is_small(self, margin: float = 1.0) -> bool:
        return not self._are_large(margin).any()

    def _largest(self) -> float:
        return float(self._norms.max(initial=0.0))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Breakdown as error:
            self._code, self.words = BROKEN, {BROKEN: str(error)}


def new_block(space: Space, n: int, k: int) -> Array:
    """Return an n x k array of zeros in C order, in which products are fastest."""
    return space.vectors(n * k, "all")["all"].reshape(n, k)


def gram(space: Space, X: Array, Y: Array) -> np.ndarray[Any, Any]:
    """Return X.H Y for two blocks, on the host in double precision; it is summed in the space's precision."""
    products = space.download(X.conj().T @ Y)
    return products.astype(np.complex128 if products.dtype.kind == "c" else np.float64)


def project(space: Space, S: Array, AS: Array) -> np.ndarray[Any, Any]:
    """Return S.H A S, given A S, as `gram` does.

    Raises
    ------
    Breakdown
        If a number is not finite.
    """
    products = gram(space, S, AS)
    if not np.isfinite(products).all():
        raise Breakdown(OVERFLOW)
    return products


def check_hermitian(space: Space, products: np.ndarray[Any, Any], instead: str) -> None:
    """Check that S.H A S is Hermitian, if it is complex; `instead` says what takes an A that is not.

    Raises
    ------
    Breakdown
        If A is not Hermitian.
    """
    if products.dtype.kind == "c":
        skew = abs(products - products.conj().T).max()
        if skew > 2 * SKEW[space.dtype.type] * abs(products).max():
            raise Breakdown(f"x' A x is not Hermitian, so A is not; {instead}")


def squared_lengths(space: Space, block: Array) -> np.ndarray[Any, Any]:
    """Return the squares of the norms of columns, on the host."""
    return np.array(gram(space, block, block).diagonal().real)


def norms(space: Space, block: Array) -> np.ndarray[Any, Any]:
    """Return the norms of columns, on the host, even if squares would overflow or underflow."""
    squares = squared_lengths(space, block)
    low, high = squares_of(space)
    if not ((low <= squares) & (squares <= high)).all():
        scales, _ = column_scales(space, block)
        scaled = block.copy()
        multiply_columns(scaled, scales)
        return np.asarray(np.sqrt(squared_lengths(space, scaled)) / scales)
    return np.asarray(np.sqrt(squares))


def squares_of(space: Space) -> tuple[float, float]:
    """Return the bounds between which squares in a space's type, and sums of them, lose nothing."""
    return SQUARES if real_type(space.dtype) == np.float64 else SINGLE_SQUARES


def column_scales(space: Space, block: Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the powers of two that scale columns so that they can be squared, and the largest absolute
    values of columns."""
    largest = space.download(abs(block).max(axis=0)) if block.size else np.zeros(block.shape[1])
    return np.array([scale_for(float(one), squares_of(space)) for one in largest]), largest


def multiply_columns(block: Array, scales: np.ndarray[Any, Any]) -> None:
    """Multiply each column by its scale."""
    for k in np.flatnonzero(scales != 1.0):
        block[:, k] *= scales[k]


def conjugate(space: Space, R: Array, Z: Array) -> np.ndarray[Any, Any]:
    """Set R to Q, and Z, which is M R or R itself, to M Q; return C.

    R = Q C, and Q.H M Q is the identity except for columns of zeros. It takes one Gram matrix if that is
    `WELL_CONDITIONED`, else two, one after the other. Stathopoulos and Wu (2002),
    doi:10.1137/S1064827500370883.

    Raises
    ------
    Breakdown
        If R shows that M is not positive definite, or a number is not finite.
    """
    C, plain = np.eye(R.shape[1]), Z is R
    for _ in range(2):
        products = gram(space, R, Z)
        if not np.isfinite(products).all():
            raise Breakdown(OVERFLOW if plain else "M gave NaN or infinity")
        values, vectors = np.linalg.eigh((products + products.conj().T) / 2)
        largest = float(values[-1])
        if not plain and values[0] < -np.sqrt(RANK) * abs(values).max():
            raise Breakdown("r' M r is negative, so M is not positive definite")
        inverse, roots = inverse_roots(values, max(largest, 0.0))
        for block in (R,) if plain else (R, Z):
            space.set_product(block, block, vectors * inverse)
        C = (vectors * roots).conj().T @ C
        if values[0] > WELL_CONDITIONED * largest:
            break
    return C


def inverse_roots(
    values: np.ndarray[Any, Any], largest: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return 1 / sqrt(values) and sqrt(values), both 0 where a value is at most `RANK` times the largest."""
    kept = values > RANK * largest
    roots = np.where(kept, np.sqrt(np.maximum(values, 0.0)), 0.0)
    return np.divide(1.0, roots, out=np.zeros_like(roots), where=kept), roots


def orthonormalize(space: Space, S: Array, first: int, last: int) -> np.ndarray[Any, Any]:
    """Make columns `first` to `last` of a block orthonormal, and orthogonal to those before them.

    The columns before must be orthonormal already, or zero. A direction that depends on others becomes a
    column of zeros.

    Returns
    -------
    numpy.ndarray of bool
        Which of the columns are not zero.

    Raises
    ------
    Breakdown
        If a number is not finite.

    Notes
    -----
    A round reads the columns twice: once for a Gram matrix, and once for projection and basis in one product.
    The Gram matrix of the projected columns follows from the first by Pythagoras. If the projection leaves so
    little of a column that this is not exact enough, the round only projects. Carson, Lund, Rozloznik and
    Thomas (2022), doi:10.1016/j.laa.2021.12.017, call the method BCGS-PIP.
    """
    before, block = S[:, :last], S[:, first:last]
    for made in range(ROUNDS):
        products = gram(space, before, block)
        if not np.isfinite(products).all():
            raise Breakdown(OVERFLOW)
        projection, own = products[:first], products[first:]
        lengths = np.sqrt(own.diagonal().real)
        # Columns count alike in a Gram matrix only if they are equally long.
        scales = np.diag(np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0))
        projection, own = projection @ scales, scales @ own @ scales
        left = own - projection.conj().T @ projection
        lost = (lengths > 0) & (left.diagonal().real < WELL_CONDITIONED)
        if lost.any() and made < PROJECTIONS:
            space.set_product(block, before, np.vstack([-projection, scales]))
            continue
        left[lost], left[:, lost] = 0, 0
        values, vectors = np.linalg.eigh((left + left.conj().T) / 2)
        inverse, roots = inverse_roots(values, float(values[-1]))
        change = vectors * inverse
        space.set_product(block, before, np.vstack([-projection @ change, scales @ change]))
        if values[0] > WELL_CONDITIONED:
            break
    return np.asarray(roots > 0)


def pseudo_inverse(matrix: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """Return the pseudoinverse of a Hermitian matrix, and its least eigenvalue over the largest absolute
    one."""
    values, vectors = np.linalg.eigh((matrix + matrix.conj().T) / 2)
    largest = max(abs(values).max(initial=0.0), 1e-300)
    kept = abs(values) > RANK * largest
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return (vectors * inverse) @ vectors.conj().T, float(values.min(initial=0.0) / largest)
