"""A Chebyshev polynomial in the matrix: products alone, no dot products.

Saad, Iterative Methods for Sparse Linear Systems, second edition, algorithm 12.1; as a smoother: Adams,
Brezina, Hu, Tuminaro (2003), doi:10.1016/S0021-9991(03)00194-3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import (
    MOST_STEPS,
    Preconditioner,
    cast,
    cast_matrix,
    computing_type,
    host_matrix,
    inverse_diagonal,
    place,
    spectral_radius,
)
from dasp.runtime import check as _check
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator

UPPER = 1.1
"""By what the estimate of the largest eigenvalue, which is from below, is raised."""


def coefficients(low: float, high: float, degree: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the first step's factor, and (of the last step, of the residual) for each further step."""
    middle, half = (high + low) / 2, (high - low) / 2
    sigma = middle / half
    rho, steps = 1.0 / sigma, []
    for _ in range(degree - 1):
        following = 1.0 / (2.0 * sigma - rho)
        steps.append((following * rho, 2.0 * following / half))
        rho = following
    return 1.0 / middle, steps


class Polynomial(Preconditioner):
    """`degree` - 1 products with an operator and `degree` passes.

    Parameters
    ----------
    operator : DeviceOperator
        The matrix, on the device; on several ranks its products are those of all of them.
    inverse : numpy.ndarray, shape (n,)
        1 / a_ii, of the rows here.
    bounds, degree
        As for `chebyshev`.
    dtype, device, again
        As for `Preconditioner`.
    """

    def __init__(
        self,
        operator: DeviceOperator,
        inverse: np.ndarray[Any, Any],
        bounds: tuple[float, float],
        degree: int,
        dtype: np.dtype[Any],
        device: str,
        again: Callable[[np.dtype[Any]], Preconditioner],
    ) -> None:
        super().__init__(len(inverse), dtype, device, ("d", "step", "q", "r"), again)
        self.vectors["d"][...] = self.space.asarray(cast(inverse, self.dtype, diagonal=True))
        self._operator = operator
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


def _polynomial(
    matrix: Any,
    planned: SpMatrix | None,
    bounds: tuple[float, float],
    degree: int,
    dtype: np.dtype[Any],
    device: str,
) -> Polynomial:
    """Return the polynomial in a matrix of the host, which is planned if it is not in the type yet."""

    def again(other: np.dtype[Any]) -> Polynomial:
        return _polynomial(matrix, None, bounds, degree, other, device)

    if planned is None or np.dtype(planned.dtype) != dtype:
        planned = SpMatrix.from_scipy(cast_matrix(matrix, dtype), device=device)
    operator = as_operator(planned, device)
    return Polynomial(operator, inverse_diagonal(matrix.diagonal()), bounds, degree, dtype, device, again)


def chebyshev(
    A: Matrix,
    *,
    degree: int = 3,
    ratio: float = 30.0,
    bounds: tuple[float, float] | None = None,
    device: str | None = None,
) -> Preconditioner:
    """Return a Chebyshev polynomial in D^-1 A, D the diagonal, times D^-1: for positive definite A.

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        Symmetric or Hermitian. A planned matrix is used as it is, others are planned. Where its values are
        written in place, make the preconditioner anew: it keeps the old diagonal and the interval.
    degree : int
        Steps; one less is the number of products.
    ratio : float
        Of the interval's ends, if `bounds` are not given: the upper one is an estimate of the largest
        eigenvalue of D^-1 A, raised by a tenth.
    bounds : tuple of float, optional
        The interval on which the polynomial approximates the inverse.
    device : {"cpu", "cuda", "cuda:N"}, optional
        Where it works; by default where A is.

    Returns
    -------
    Preconditioner
        Symmetric and positive definite if the interval's upper end is above the spectrum. Memory: 6 vectors
        of length n.

    Raises
    ------
    ValueError
        If the degree or the bounds make no polynomial, a diagonal entry is zero, or A is not finite.

    Examples
    --------
    >>> import dasp, numpy as np
    >>> A = dasp.SpMatrix(dasp.models.generate("poisson2d:40"), device="cpu")
    >>> M = dasp.preconditioners.chebyshev(A, degree=4)
    >>> plain, quick = (dasp.solvers.cg(A, np.ones(1600), M=each)[1] for each in (None, M))
    >>> quick.converged, quick.iterations < plain.iterations
    (True, True)
    """
    degree = _check.count("degree", degree, most=MOST_STEPS)
    matrix = host_matrix(A)
    if bounds is None:
        if not ratio > 1:
            raise ValueError(f"ratio is {ratio}; a number above 1 is needed")
        high = UPPER * spectral_radius(matrix, inverse_diagonal(matrix.diagonal()))
        bounds = high / ratio, high
    bounds = _check.interval(bounds)
    dtype = computing_type(matrix)
    planned = A if isinstance(A, SpMatrix) else None
    return _polynomial(matrix, planned, bounds, degree, dtype, place(A, device))
