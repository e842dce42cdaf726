"""A + sigma I without another plan."""

from __future__ import annotations

from typing import Any

from dasp.formats import devices
from dasp.matrix.transpose import from_left
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign


class Shifted:
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
        If `sigma` is no number.
    ValueError
        If A is not square.

    Notes
    -----
    A product is one with A, and a pass over x and y that adds alpha sigma x: two more roundings a row. Where
    x requires gradients, so does the result.

    Examples
    --------
    >>> import dasp, numpy
    >>> A = dasp.SpMatrix([[0.0, 2.0], [3.0, 0.0]], device="cpu")
    >>> A.shifted(10.0) @ numpy.array([1.0, 2.0])
    array([14., 23.])
    """

    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2

    def __init__(self, matrix: Any, sigma: Any) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"A has shape {matrix.shape}; a square matrix is needed for A + sigma I")
        self.matrix, self.sigma = matrix, _check.scale("sigma", sigma, matrix.dtype)
        self.shape, self.dtype, self.device = matrix.shape, matrix.dtype, matrix.device

    def matvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha (A + sigma I) x + beta out; see `dasp.SpMatrix.matvec`."""
        A = self.matrix
        if _foreign.is_one(x) or _foreign.is_one(out):
            if _foreign.wants_gradients(x):
                return _foreign.by_operators(self._shifted, x, out, alpha, beta)
            return _foreign.call(self.matvec, self, x, out, alpha=alpha, beta=beta)
        out = A.matvec(x, out=out, alpha=alpha, beta=beta)
        devices.find(self.device).add_scaled(
            out, _check.scale("alpha", alpha, out.dtype) * self.sigma, A.asarray(x)
        )
        return out

    def _shifted(self, x: Any) -> Any:
        """Return (A + sigma I) x by operators of PyTorch."""
        return self.matrix.matvec(x).add(x, alpha=self.sigma)

    def matmat(self, X: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha (A + sigma I) X + beta out."""
        return self.matvec(X, out=out, alpha=alpha, beta=beta)

    def rmatvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha (A + sigma I)^H x + beta out."""
        return self.H.matvec(x, out=out, alpha=alpha, beta=beta)

    def rmatmat(self, X: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return alpha (A + sigma I)^H X + beta out."""
        return self.rmatvec(X, out=out, alpha=alpha, beta=beta)

    def __matmul__(self, x: Any) -> Any:
        return self.matvec(x)

    def __rmatmul__(self, x: Any) -> Any:
        return from_left(self, x)

    @property
    def T(self) -> Shifted:
        """The transpose, A^T + sigma I."""
        return Shifted(self.matrix.T, self.sigma)

    @property
    def H(self) -> Shifted:
        """The conjugate transpose."""
        return Shifted(self.matrix.H, self.sigma.conjugate())

    def as_linear_operator(self) -> Any:
        """Return a LinearOperator: SciPy's on the CPU, CuPy's on a GPU."""
        return devices.find(self.device).linear_operator(self)

    def __repr__(self) -> str:
        return f"<A + {self.sigma} I with A = {self.matrix!r}>"
