"""The transpose of a distributed matrix: its products send the same messages the other way round."""

from __future__ import annotations

from typing import Any

SpMatrix = Any
"""A dasp.distributed.SpMatrix, whose module imports this one."""


class Transposed:
    """The transpose of a distributed matrix; made by `SpMatrix.T`.

    Its vectors are each rank's own parts, and its methods those of `dasp.distributed.SpMatrix`.

    Attributes
    ----------
    T : SpMatrix
        The matrix itself.
    """

    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    name = "T"

    def __init__(self, matrix: SpMatrix) -> None:
        self._matrix = matrix
        setattr(self, self.name, matrix)
        self.comm, self.device = matrix.comm, matrix.device
        self.shape = matrix.shape[::-1]
        self.local_shape = matrix.local_shape[::-1]
        self.rows, self.columns = matrix.columns, matrix.rows
        self.nnz, self.dtype = matrix.nnz, matrix.dtype
        self.solver_space, self.agree, self.call = matrix.solver_space, matrix.agree, matrix.call
        self.hidden_sums = False

    def matvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return this rank's part of alpha A.T x + beta out (A.H x of `A.H`); all ranks call it.

        Arguments, results and errors are those of `SpMatrix.matvec`, with rows and columns exchanged. Each
        sum is rounded once more for every neighbour that adds to it.
        """
        return self._matrix.multiply(x, out, alpha, beta, self.name)

    def dot(self, x: Any, out: Any = None) -> Any:
        """Return this rank's part of the product with x."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: Any) -> Any:
        """Return this rank's part of the product with x."""
        return self.matvec(x)

    def __repr__(self) -> str:
        """Return the whole's size."""
        return f"<{self.name} of {self._matrix!r}>"


class Adjoint(Transposed):
    """The conjugate transpose; made by `SpMatrix.H`, whose matrix is its `H`."""

    name = "H"
