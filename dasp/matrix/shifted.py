"""A + sigma I, without another plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats import backends
from dasp.matrix.linear_map import LinearMap
from dasp.matrix.planned import PlannedMatrix
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign
from dasp.runtime.types import ArrayLike, DenseArray, Number


class Shifted(LinearMap):
    """The operator A + sigma I, which multiplies by the plan of A.

    Attributes
    ----------
    matrix : SpMatrix
        A, shape (n, n).
    sigma : float
    shape, dtype, device
        Those of A.

    Raises
    ------
    TypeError
        If `sigma` is not a number.
    ValueError
        If A is not square.

    Notes
    -----
    A product is one with A, and then a pass over x and y that adds alpha sigma x, with two more roundings a
    row. If x requires gradients, so does the result.

    Examples
    --------
    >>> import dasp, numpy
    >>> A = dasp.SpMatrix([[0.0, 2.0], [3.0, 0.0]], device="cpu")
    >>> A.shifted(10.0) @ numpy.array([1.0, 2.0])
    array([14., 23.])
    """

    def __init__(self, matrix: PlannedMatrix, sigma: Number) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"A has shape {matrix.shape}; a square matrix is needed for A + sigma I")
        self.matrix, self.sigma = matrix, _check.scale("sigma", sigma, matrix.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return self.matrix.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of A."""
        return self.matrix.dtype

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`."""
        return self.matrix.device

    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha (A + sigma I) x + beta out; see `dasp.SpMatrix.matvec`."""
        A = self.matrix
        if _foreign.is_foreign(x) or _foreign.is_foreign(out):
            if _foreign.wants_gradients(x):
                return _foreign.by_operators(self._shifted, x, out, alpha, beta)
            return _foreign.call(self.matvec, self, x, out, alpha=alpha, beta=beta)
        y = A.matvec(x, out=out, alpha=alpha, beta=beta)
        factor = _check.scale("alpha", alpha, y.dtype) * self.sigma
        backends.find(self.device).add_scaled(y, factor, A.asarray(x))
        return y

    def _shifted(self, x: ArrayLike) -> Any:
        """Return (A + sigma I) x by operators of PyTorch."""
        return self.matrix.matvec(x).add(x, alpha=self.sigma)

    @property
    def T(self) -> Shifted:
        """The transpose, A^T + sigma I."""
        return Shifted(self.matrix.T, self.sigma)

    @property
    def H(self) -> Shifted:
        """The conjugate transpose."""
        return Shifted(self.matrix.H, self.sigma.conjugate())

    def __repr__(self) -> str:
        return f"<A + {self.sigma} I with A = {self.matrix!r}>"
