"""Preconditioners of a distributed matrix.

A preconditioner of the block on the diagonal that a rank holds needs no other rank; Jacobi's is the same as
for the whole matrix, and one by blocks too where no block is cut. Chebyshev's polynomials multiply by the
whole matrix, and so need the neighbours, but no sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import dasp.preconditioners as local
from dasp.distributed.matrix import SpMatrix
from dasp.preconditioners.base import Preconditioner, inverse_diagonal
from dasp.preconditioners.chebyshev import UPPER, coefficients
from dasp.solvers.chebyshev import estimate_spectrum
from dasp.solvers.operator import as_operator

__all__ = ["RankPreconditioner", "block_jacobi", "chebyshev", "jacobi", "of_blocks"]

Array = Any


class RankPreconditioner:
    """A preconditioner of all ranks, made of one on each that works on its parts of r and z.

    Attributes
    ----------
    shape : tuple of int
        (n, n), of the whole.
    local_shape : tuple of int
        Of this rank's part.
    dtype : numpy.dtype
    device : str
    """

    def __init__(self, matrix: SpMatrix, own: Preconditioner) -> None:
        self.shape, self.local_shape, self.device = matrix.shape, matrix.local_shape, matrix.device
        self.dtype, self._matrix, self._own = own.dtype, matrix, own
        diagonal = getattr(own, "diagonal_of_inverse", None)
        if diagonal is not None:
            self.diagonal_of_inverse = diagonal

    def matvec(self, r: Array, out: Array = None) -> Array:
        """Return this rank's part of M r; see `dasp.preconditioners.base.Preconditioner.matvec`."""
        return self._own.matvec(r, out=out)

    def prepare(self, x: Array, y: Array) -> Callable[[], None]:
        """Return what sets y to M x again and again."""
        ready: Any = getattr(self._own, "prepare", None)
        return partial(self.matvec, x, y) if ready is None else ready(x, y)

    def __matmul__(self, r: Array) -> Array:
        """Return this rank's part of M r."""
        return self._own @ r

    def astype(self, dtype: Any) -> RankPreconditioner:
        """Return it computing in float32 or float64."""
        return RankPreconditioner(self._matrix, self._own.astype(dtype))


def of_blocks(D: SpMatrix, make: Callable[..., Preconditioner], **options: Any) -> RankPreconditioner:
    """Return the preconditioner that each rank makes of its block on the diagonal (block Jacobi over ranks).

    Parameters
    ----------
    D : SpMatrix
        Distributed, square, its rows and columns cut alike.
    make : callable
        Takes the block, a SciPy CSR array, and `device`, such as `dasp.preconditioners.ilu0`.
    **options
        For `make`.

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    TypeError, ValueError, RankError
        On all ranks the same: what `make` raises on one of them.
    """

    def work() -> Preconditioner:
        if D.local_shape[0] != D.local_shape[1]:
            raise ValueError(f"this rank's block is {D.local_shape}; rows and columns must be cut alike")
        return make(D.diagonal_block(), device=D.device, **options)

    return RankPreconditioner(D, D.agree(work))


def jacobi(D: SpMatrix) -> RankPreconditioner:
    """Return the preconditioner that divides by the diagonal of D; see `dasp.preconditioners.jacobi`."""
    return of_blocks(D, local.jacobi)


def block_jacobi(D: SpMatrix, *, block: int) -> RankPreconditioner:
    """Return the preconditioner that solves with dense blocks of rows, counted from each rank's first.

    See `dasp.preconditioners.block_jacobi`.
    """
    return of_blocks(D, local.block_jacobi, block=block)


class _Chebyshev(Preconditioner):
    """`degree` - 1 products with a distributed matrix and `degree` passes over this rank's parts."""

    def __init__(
        self, matrix: SpMatrix, inverse: Any, bounds: tuple[float, float], degree: int, dtype: Any
    ) -> None:
        def again(other: np.dtype[Any]) -> Preconditioner:
            raise ValueError(f"a polynomial in a distributed matrix of {dtype} computes in {dtype} only")

        super().__init__(matrix.local_shape[0], dtype, matrix.device, ("d", "step", "q", "r"), again)
        self.vectors["d"][...] = self.space.asarray(inverse)
        self._operator = as_operator(matrix, matrix.device)
        self._first, self._further = coefficients(*bounds, degree)
        fuse = self.vectors.fuse
        self._begin = fuse("step = first d*b", "x = step", "r = b")
        self._extend = fuse("r = r - q", "step = last step + rest d*r", "x = x + step")

    def apply(self) -> None:
        """Go through the polynomial's steps."""
        self._begin(first=self._first)
        for last, rest in self._further:
            self.space.apply(self._operator, self.vectors["step"], self.vectors["q"])
            self._extend(last=last, rest=rest)


def chebyshev(
    D: SpMatrix, *, degree: int = 3, ratio: float = 30.0, bounds: tuple[float, float] | None = None
) -> RankPreconditioner:
    """Return a Chebyshev polynomial in the inverse of the diagonal times D; all ranks call it.

    Parameters
    ----------
    D : SpMatrix
        Distributed, symmetric and positive definite.
    degree : int
    ratio : float
        Of the interval's ends, if `bounds` are not given: the upper one is found by some iterations of
        conjugate gradients with Jacobi's preconditioner, and raised by a tenth.
    bounds : tuple of float, optional

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    ValueError, RankError
        On all ranks the same: if the degree or the bounds make no polynomial, or D has no such diagonal.
    """
    dtype = np.dtype(np.float32 if D.dtype == np.float32 else np.float64)

    def check() -> Any:
        if degree < 1 or not ratio > 1:
            raise ValueError(f"degree is {degree} and ratio {ratio}; at least 1, and more than 1, are needed")
        return inverse_diagonal(D.diagonal_block())

    inverse = D.agree(check, lambda _: {"degree": degree, "ratio": ratio, "bounds": bounds})
    if bounds is None:
        high = UPPER * estimate_spectrum(D, jacobi(D), dtype, D.device)[1]
        bounds = high / ratio, high
    if not 0 < bounds[0] < bounds[1]:
        raise ValueError(f"bounds are {bounds}; two rising positive numbers are needed")
    return RankPreconditioner(D, _Chebyshev(D, inverse, bounds, int(degree), dtype))
