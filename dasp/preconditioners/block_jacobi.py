"""Block Jacobi: the inverses of dense blocks on the diagonal."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.sparse import bsr_array, csr_array

from dasp.preconditioners.base import (
    PlannedPart,
    Preconditioner,
    choose_device,
    computing_type,
    host_matrix,
    wide_type,
)
from dasp.runtime import check as _check
from dasp.runtime.sizes import ceil_div
from dasp.solvers.operator import Matrix

USUAL_BLOCK, LARGEST_NODE = 4, 8
"""Rows of a block if the pattern shows no nodes, and most unknowns of a node."""


class BlockJacobi(Preconditioner):
    """A preconditioner that multiplies by the inverses of the blocks, one planned matrix."""

    costly: ClassVar[bool] = False

    def __init__(self, inverses: csr_array, block: int, dtype: np.dtype[Any], device: str) -> None:
        super().__init__(inverses.shape[0], dtype, device, ())
        self._inverses, self._block = inverses, block
        self._planned = PlannedPart(inverses, dtype, device)

    def apply(self) -> None:
        """Multiply by the inverses of the blocks."""
        self.space.apply(self._planned.operator, self.vectors["b"], self.vectors["x"])

    def _read(self, A: Matrix) -> csr_array:
        """Return the inverses of the blocks, one matrix in CSR."""
        return _invert_blocks(host_matrix(A), self._block)

    def _load(self, numbers: csr_array) -> bool:
        """Take the inverses. Return True if they could be written in place."""
        self._inverses = numbers
        return self._planned.load(numbers)

    def _in_type(self, dtype: np.dtype[Any]) -> BlockJacobi:
        """Return the same preconditioner, computing in a type."""
        return BlockJacobi(self._inverses, self._block, dtype, self.device)


def block_jacobi(A: Matrix, *, block: int | None = None, device: str | None = None) -> Preconditioner:
    """Return the preconditioner that solves with the dense blocks on the diagonal of A.

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        Values that are written into A later reach the preconditioner by `update`.
    block : int, optional
        Rows of a block; the last one may have fewer. By default the unknowns of a node, which are the natural
        blocks: the largest number from 8 down to 2 for which A consists of dense blocks of that size. That is
        the block size of most BSR matrices, and 3 for a solid's displacements. Where the pattern shows no
        nodes it is 4, so that a block still couples a row with its neighbours, which `jacobi` does not.
    device : {"cpu", "cuda", "cuda:N"}, optional
        Where it works; by default where A is.

    Returns
    -------
    Preconditioner

    Raises
    ------
    TypeError, ValueError
        If `block` is no positive int, or a block is singular or has no finite inverse.

    Notes
    -----
    Memory: n * block numbers for the inverses, and vectors as for `jacobi`.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from dasp.preconditioners import block_jacobi
    >>> A = sp.block_diag([[[2.0, 1.0], [1.0, 1.0]], [[4.0]]], format="csr")
    >>> block_jacobi(A, block=2) @ np.array([3.0, 2.0, 4.0])
    array([1., 1., 1.])
    """
    matrix = host_matrix(A)
    block = find_block(matrix) if block is None else _check.count("block", block)
    block = min(block, max(1, matrix.shape[0]))
    inverses = _invert_blocks(matrix, block)
    return BlockJacobi(
        inverses, block, computing_type(matrix.dtype), choose_device(A, device)
    )._remember_source(A)


def find_block(matrix: csr_array) -> int:
    """Return the rows of a block for a matrix with sorted columns; see `block_jacobi`."""
    for block in range(LARGEST_NODE, 1, -1):
        # The columns of each row must be runs k * block, k * block + 1, ..., one for each node.
        if matrix.nnz and matrix.shape[0] % block == 0 and not (matrix.indptr % block).any():
            runs = matrix.indices.reshape(-1, block)
            if not (runs[:, 0] % block).any() and (np.diff(runs, axis=1) == 1).all():
                return block
    return USUAL_BLOCK


def _invert_blocks(matrix: csr_array, block: int) -> csr_array:
    """Return the block diagonal matrix of the inverses, as CSR."""
    n = matrix.shape[0]
    count = ceil_div(n, block)
    dense = np.zeros((count, block, block), wide_type(matrix.dtype))
    entries = matrix.tocoo()
    rows, columns = entries.coords
    mine = rows // block == columns // block
    rows, columns = rows[mine], columns[mine]
    dense[rows // block, rows % block, columns % block] = entries.data[mine]
    beyond = np.arange(n, count * block)
    dense[-1:, beyond % block, beyond % block] = 1.0  # the rows that the last block lacks
    try:
        with np.errstate(all="ignore"):
            inverse = np.linalg.inv(dense) if count else dense
            finite = np.isfinite(inverse.astype(computing_type(matrix.dtype))).all()
    except np.linalg.LinAlgError as error:
        raise ValueError(f"a block of {block} rows is singular; choose another size of blocks") from error
    if not finite:
        raise ValueError(
            f"a block of {block} rows has no finite inverse; A holds NaN or infinity, or numbers too small"
        )
    offsets = np.arange(count, dtype=np.int32), np.arange(count + 1, dtype=np.int32)
    whole = bsr_array((inverse, *offsets), shape=(count * block,) * 2)
    return csr_array(whole.tocsr()[:n, :n])
