"""Chebyshev polynomials in a matrix, which need products and no dot products.

Saad, Iterative Methods for Sparse Linear Systems, second edition, algorithm 12.1; as a smoother: Adams,
Brezina, Hu, Tuminaro (2003), doi:10.1016/S0021-9991(03)00194-3.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import numpy as np
from scipy.sparse import csr_array

from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import (
    MOST_STEPS,
    PlannedPart,
    Preconditioner,
    choose_device,
    computing_type,
    host_matrix,
    inverse_diagonal,
)
from dasp.preconditioners.spectrum import UPPER, spectral_radius
from dasp.runtime import check as _check
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator


def coefficients(ratio: float, degree: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the residual's factor in the first step, and for each further step the factors of the step
    before it and of the residual; the interval ends at 1, `ratio` times its lower end."""
    low = 1.0 / ratio
    middle, half = (1.0 + low) / 2, (1.0 - low) / 2
    sigma = middle / half
    rho, steps = 1.0 / sigma, []
    for _ in range(degree - 1):
        following = 1.0 / (2.0 * sigma - rho)
        steps.append((following * rho, 2.0 * following / half))
        rho = following
    return 1.0 / middle, steps


class Polynomial(Preconditioner):
    """A Chebyshev polynomial: `degree` - 1 products with an operator and `degree` passes.

    Parameters
    ----------
    operator : DeviceOperator
        The matrix, on the device; on several ranks it multiplies by the whole matrix.
    ratio : float
        The upper end of the interval over the lower one.
    degree : int
    dtype : numpy.dtype
        As for `Preconditioner`.
    """

    def __init__(self, operator: DeviceOperator, ratio: float, degree: int, dtype: np.dtype[Any]) -> None:
        super().__init__(operator.shape[0], dtype, operator.device, ("d", "step", "q", "r"))
        self.operator = operator
        self._first, self._further = coefficients(ratio, degree)
        fuse = self.vectors.fuse
        self._begin = fuse("step = first d*b", "x = step", "r = b")
        self._extend = fuse("r = r - q", "step = last step + rest d*r", "x = x + step")

    def apply(self) -> None:
        """Set `x` to the polynomial times `b`, step by step."""
        self._begin(first=self._first)
        for last, rest in self._further:
            self.space.apply(self.operator, self.vectors["step"], self.vectors["q"])
            self._extend(last=last, rest=rest)


class _Numbers(NamedTuple):
    """A matrix on the host, the SpMatrix that it came from or None, and 1 / a_ii."""

    matrix: csr_array
    planned: SpMatrix | None
    inverse: np.ndarray[Any, Any]


class MatrixPolynomial(Polynomial):
    """A polynomial in a matrix, which is planned unless it is an SpMatrix of the type and on the device.

    `high` is the upper end of the interval; it is estimated if it is None.
    """

    def __init__(
        self,
        numbers: _Numbers,
        high: float | None,
        ratio: float,
        degree: int,
        dtype: np.dtype[Any],
        device: str,
    ) -> None:
        self._numbers, self._interval, self._degree = numbers, (high, ratio), degree
        self._part: PlannedPart | None = None
        if _fits(numbers.planned, dtype, device):
            operator = as_operator(numbers.planned, device)
        else:
            self._part = PlannedPart(numbers.matrix, dtype, device)
            operator = self._part.operator
        super().__init__(operator, ratio, degree, dtype)
        self._scale()

    def _scale(self) -> None:
        """Load the diagonal, scaled by the upper end of the interval, which is estimated if none is given."""
        inverse, high = self._numbers.inverse, self._interval[0]
        if high is None:
            A = self._numbers.matrix
            high = UPPER * spectral_radius(A, self.operator, inverse, self.space, self.vectors)
        self._load_diagonal(inverse / high)

    def _read(self, A: Matrix) -> _Numbers:
        """Return A on the host, A itself if it is an SpMatrix, and 1 / a_ii."""
        return _read(A)

    def _load(self, numbers: _Numbers) -> bool:
        """Take a matrix: an SpMatrix itself if it fits, else its values. Return True if the plan stays."""
        last, self._numbers = self._numbers.planned, numbers
        if _fits(numbers.planned, self.dtype, self.device):
            same = self._part is None and numbers.planned is last
            self._part, self.operator = None, as_operator(numbers.planned, self.device)
        else:
            same = self._part is not None and self._part.load(numbers.matrix)
            self._part = self._part or PlannedPart(numbers.matrix, self.dtype, self.device)
            self.operator = self._part.operator
        self._scale()
        return same

    def _in_type(self, dtype: np.dtype[Any]) -> MatrixPolynomial:
        """Return the same preconditioner, computing in a type."""
        return MatrixPolynomial(self._numbers, *self._interval, self._degree, dtype, self.device)


def _fits(planned: SpMatrix | None, dtype: np.dtype[Any], device: str) -> TypeGuard[SpMatrix]:
    return planned is not None and planned.dtype == dtype and planned.device == device


def _read(A: Matrix) -> _Numbers:
    """Return A on the host, A itself if it is an SpMatrix, and 1 / a_ii."""
    matrix = host_matrix(A)
    return _Numbers(matrix, A if isinstance(A, SpMatrix) else None, inverse_diagonal(matrix.diagonal()))


def chebyshev(
    A: Matrix,
    *,
    degree: int = 3,
    ratio: float = 30.0,
    bounds: tuple[float, float] | None = None,
    device: str | None = None,
) -> Preconditioner:
    """Return a Chebyshev polynomial in D^-1 A times D^-1, for a positive definite A with the diagonal D.

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        Symmetric or Hermitian. A planned matrix is used as it is, others are planned. After writing its
        values in place, call `update` for the new diagonal and interval.
    degree : int
        Number of steps; M r takes one product less.
    ratio : float
        The upper end of the interval over the lower one, if `bounds` are not given. The upper end is then an
        estimate of the largest eigenvalue of D^-1 A, raised by 12 percent; if A is not Hermitian, the largest
        sum of absolute values in a row of D^-1 A.
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
    high = None
    if bounds is not None:
        low, high = _check.interval(bounds)
        ratio = high / low
    elif not ratio > 1:
        raise ValueError(f"ratio is {ratio}; a number above 1 is needed")
    numbers = _read(A)
    dtype = computing_type(numbers.matrix.dtype)
    return MatrixPolynomial(numbers, high, ratio, degree, dtype, choose_device(A, device))._remember_source(A)
