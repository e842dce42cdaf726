"""The transpose of a distributed matrix: its products send the same messages the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.distributed.operator import RankOperator
from dasp.distributed.planned import RankMatrix
from dasp.runtime.types import Array, ArrayLike, Number


class Transposed(RankOperator):
    """The transpose of a distributed matrix; made by `SpMatrix.T`.

    Attributes
    ----------
    T : SpMatrix
        The matrix itself.
    nnz : int
        Its stored entries.
    """

    name = "T"
    hidden_sums = False

    def __init__(self, matrix: RankMatrix) -> None:
        self._matrix, self.nnz = matrix, matrix.nnz
        setattr(self, self.name, matrix)
        self.comm, self.device = matrix.comm, matrix.device
        self.rows, self.columns = matrix.columns, matrix.rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self._matrix.dtype

    def matvec(
        self, x: ArrayLike, *, out: Array | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Array:
        """Return this rank's part of alpha A.T x + beta out (A.H x of `A.H`); all ranks call it.

        Arguments, results and errors are those of `SpMatrix.matvec`, with rows and columns exchanged. Each
        sum is rounded once more for every neighbour that adds to it.
        """
        return self._matrix.multiply(x, out, alpha, beta, self.name)

    def __repr__(self) -> str:
        """Return the whole's size."""
        return f"<{self.name} of {self._matrix!r}>"


class Adjoint(Transposed):
    """The conjugate transpose; made by `SpMatrix.H`, whose matrix is its `H`."""

    name = "H"
