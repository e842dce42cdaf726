"""Blocks of vectors, the columns of an array: their norms, scales, and bases by way of Gram matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.runtime.dtypes import real_type
from dasp.solvers.space import Space
from dasp.solvers.system import SQUARES, scale_for

Array = Any

SINGLE_SQUARES = (1e-20, 1e20)
"""Between these the square of a number in single precision, and of what is left of it, loses nothing."""

RANK = 1e-14
"""Of the largest eigenvalue of a Gram matrix: below this times that a direction counts as none."""

OVERFLOW = "NaN or infinity came up: A, M or what was given holds such a number, or products overflow"


class Breakdown(ArithmeticError):
    """The method cannot go on; the message says why."""


def columns(space: Space, n: int, k: int) -> Array:
    """Return an n x k array of zeros whose columns are contiguous."""
    return space.vectors(n * k, "all")["all"].reshape(k, n).T


def multiply(operator: Any, X: Array, Y: Array) -> None:
    """Set each column of Y to the product with that of X; columns are contiguous."""
    for k in range(X.shape[1]):
        operator.multiply(X[:, k], Y[:, k])


def squared_lengths(space: Space, block: Array) -> np.ndarray[Any, Any]:
    """Return the squares of the norms of columns, on the host."""
    return space.download((block.conj() * block).real.sum(axis=0)).astype(np.float64)


def norms(space: Space, block: Array) -> np.ndarray[Any, Any]:
    """Return the norms of columns, on the host, of numbers too whose squares are lost."""
    squares = squared_lengths(space, block)
    low, high = squares_of(space)
    if not ((low <= squares) & (squares <= high)).all():
        scales, _ = column_scales(space, block)
        scaled = block.copy()
        multiply_columns(scaled, scales)
        return np.asarray(np.sqrt(squared_lengths(space, scaled)) / scales)
    return np.asarray(np.sqrt(squares))


def squares_of(space: Space) -> tuple[float, float]:
    """Return between which numbers squares in the type of a space, and sums of them, lose nothing."""
    return SQUARES if real_type(space.dtype) == np.float64 else SINGLE_SQUARES


def column_scales(space: Space, block: Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the powers of two that bring columns to where their squares are numbers, and the largest
    absolute values of columns."""
    largest = space.download(abs(block).max(axis=0)) if block.size else np.zeros(block.shape[1])
    return np.array([scale_for(float(one), squares_of(space)) for one in largest]), largest


def multiply_columns(block: Array, scales: np.ndarray[Any, Any]) -> None:
    """Multiply columns by numbers, where they are not 1."""
    for k in np.flatnonzero(scales != 1.0):
        block[:, k] *= scales[k]


def wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of the host in double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def orthonormal(space: Space, R: Array) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return Q and C with R = Q C, the columns of Q orthonormal or zero, by way of Gram matrices, twice.

    Stathopoulos and Wu (2002), doi:10.1137/S1064827500370883.
    """
    Q, _, C = conjugate(space, R, R)
    return Q, C


def conjugate(space: Space, R: Array, Z: Array) -> tuple[Array, Array, np.ndarray[Any, Any]]:
    """Return Q, M Q and C with R = Q C and Q'M Q the identity, but for zero columns; Z is M R, or R itself.

    Of complex columns Q' is the conjugate transpose.

    Raises
    ------
    Breakdown
        If M is not positive definite, as far as R shows, or there are numbers that are not finite.
    """
    C, plain = np.eye(R.shape[1]), Z is R
    for _ in range(2):
        gram = wide(space.download(R.conj().T @ Z))
        if not np.isfinite(gram).all():
            raise Breakdown(OVERFLOW if plain else "M gave NaN or infinity")
        values, vectors = np.linalg.eigh((gram + gram.conj().T) / 2)
        largest = float(values[-1])
        if not plain and values[0] < -np.sqrt(RANK) * abs(values).max():
            raise Breakdown("r' M r is negative, so M is not positive definite")
        kept = values > RANK * max(largest, 0.0)
        roots = np.where(kept, np.sqrt(np.maximum(values, 0.0)), 0.0)
        inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=kept)
        turn = space.asarray(vectors * inverse)
        R = R @ turn
        Z = R if plain else Z @ turn
        C = (vectors * roots).conj().T @ C
    return R, Z, C


def pseudo_inverse(matrix: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """Return the inverse of a Hermitian matrix on its range, and its least eigenvalue over the largest."""
    values, vectors = np.linalg.eigh((matrix + matrix.conj().T) / 2)
    largest = max(abs(values).max(initial=0.0), 1e-300)
    kept = abs(values) > RANK * largest
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return (vectors * inverse) @ vectors.conj().T, float(values.min(initial=0.0) / largest)
