"""Jacobi: division by the diagonal."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import (
    Preconditioner,
    choose_device,
    computing_type,
    host_matrix,
    inverse_diagonal,
)
from dasp.runtime.arrays import to_host
from dasp.runtime.types import Array
from dasp.solvers.operator import Matrix


class Jacobi(Preconditioner):
    """A preconditioner that divides by the diagonal, in one pass."""

    costly: ClassVar[bool] = False

    def __init__(self, inverse: np.ndarray[Any, Any], dtype: np.dtype[Any], device: str) -> None:
        super().__init__(len(inverse), dtype, device, ("d",))
        self._load(inverse)
        self._divide = self.vectors.fuse("x = d*b")

    @property
    def diagonal_of_inverse(self) -> Array:
        """The diagonal of M, shape (n,), on the device; solvers may multiply by it in their own passes."""
        return self.vectors["d"]

    def apply(self) -> None:
        """Divide by the diagonal."""
        self._divide()

    def _read(self, A: Matrix) -> np.ndarray[Any, Any]:
        """Return 1 / a_ii."""
        return inverse_diagonal(_diagonal(A))

    def _load(self, numbers: np.ndarray[Any, Any]) -> bool:
        """Take 1 / a_ii."""
        self._load_diagonal(numbers)
        self._inverse = numbers
        return True

    def _in_type(self, dtype: np.dtype[Any]) -> Jacobi:
        """Return the same preconditioner, computing in a type."""
        return Jacobi(self._inverse, dtype, self.device)


def _diagonal(A: Matrix) -> np.ndarray[Any, Any]:
    """Return the diagonal of a square matrix, on the host."""
    if isinstance(A, SpMatrix) and A.shape[0] == A.shape[1]:
        return np.asarray(to_host(A.diagonal()))
    return np.asarray(host_matrix(A).diagonal())


def jacobi(A: Matrix, *, device: str | None = None) -> Preconditioner:
    """Return the preconditioner that divides by the diagonal of A.

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        Values that are written into A later reach the preconditioner by `update`.
    device : {"cpu", "cuda", "cuda:N"}, optional
        Where it works; by default where A is.

    Returns
    -------
    Preconditioner
        Memory: 3 vectors of length n.

    Raises
    ------
    ValueError
        If a diagonal entry is zero, not finite or so small that its inverse is not.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from dasp.preconditioners import jacobi
    >>> jacobi(sp.diags_array([2.0, 4.0], format="csr")) @ np.ones(2)
    array([0.5 , 0.25])
    """
    return divide_by(_diagonal(A), A, device)


def divide_by(diagonal: np.ndarray[Any, Any], A: Matrix, device: str | None = None) -> Preconditioner:
    """Return the preconditioner that divides by the diagonal of A, which is given."""
    return Jacobi(
        inverse_diagonal(diagonal), computing_type(diagonal.dtype), choose_device(A, device)
    )._remember_source(A)
