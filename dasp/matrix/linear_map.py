"""The products and the names that follow from `matvec` and a transpose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from dasp.formats import backends
from dasp.runtime import check as _check
from dasp.runtime import foreign as _foreign
from dasp.runtime.types import ArrayLike, DenseArray, Number


class LinearMap(ABC):
    """A linear map with a product, a transpose and the names that SciPy's operators have."""

    # NumPy must not take `x @ A` for an array product of its own, nor SciPy for a sparse one.
    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    takes_out = True  # tells solvers to multiply by `matvec(x, out=y)`, not by `@`

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(m, n)."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""

    @property
    @abstractmethod
    def device(self) -> str:
        """`cpu` or `cuda:N`."""

    @abstractmethod
    def matvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A x + beta out."""

    @property
    @abstractmethod
    def T(self) -> Self:
        """The transpose."""

    @property
    @abstractmethod
    def H(self) -> Self:
        """The conjugate transpose."""

    def matmat(
        self, X: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A X + beta out; see `matvec`."""
        return self.matvec(X, out=out, alpha=alpha, beta=beta)

    def rmatvec(
        self, x: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A^H x + beta out.

        Parameters
        ----------
        x : array_like, shape (m,), (m, 1) or (m, k)
        out, alpha, beta
            As `matvec` takes them.

        Returns
        -------
        array, shape (n,), (n, 1) or (n, k)
            The result of `A.H.matvec`: deterministic, with the same bound, and as fast as a product with A.

        Raises
        ------
        TypeError, ValueError
            As `matvec` does.
        """
        shape = np.shape(x) if isinstance(x, (list, tuple)) else getattr(x, "shape", None)
        if shape is not None:
            _check.left_operand(self.shape, shape, 0)
        return self.H.matvec(x, out=out, alpha=alpha, beta=beta)

    def rmatmat(
        self, X: ArrayLike, *, out: DenseArray | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Any:
        """Return alpha A^H X + beta out; see `rmatvec`."""
        return self.rmatvec(X, out=out, alpha=alpha, beta=beta)

    def dot(self, x: ArrayLike, out: DenseArray | None = None) -> Any:
        """Return A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: ArrayLike) -> Any:
        """Return A x; see `matvec`."""
        return self.matvec(x)

    def __rmatmul__(self, x: ArrayLike) -> Any:
        """Return x A by a product with the transpose, for x of shape (m,) or (k, m)."""
        z = x if _foreign.is_foreign(x) else backends.find(self.device).as_operand(x)
        _check.left_operand(self.shape, z.shape, -1)
        return self.T.matvec(z.T).T if len(z.shape) == 2 else self.T.matvec(z)

    def transpose(self) -> Self:
        """Return `A.T`."""
        return self.T

    def as_linear_operator(self) -> Any:
        """Return a LinearOperator for iterative solvers: SciPy's on the CPU, CuPy's on a GPU."""
        operator = backends.find(self.device).find_operator_type()
        return operator(
            self.shape,
            self.matvec,
            rmatvec=self.rmatvec,
            matmat=self.matvec,
            rmatmat=self.rmatvec,
            dtype=self.dtype,
        )
