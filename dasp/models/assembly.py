"""Two ways to assemble a model matrix as CSR: from neighbours, and from pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def index_type(rows: float, columns: float, entries: float) -> type[np.signedinteger]:
    """Return the narrowest index type SciPy uses for a matrix of this size."""
    return np.int32 if max(rows, columns, entries) < 2**31 else np.int64


def csr_from_slots(columns: NDArray, stored: NDArray[np.bool_], values: NDArray, width: int) -> csr_array:
    """Build a matrix whose rows have the same number of slots, of which some are stored.

    Parameters
    ----------
    columns : integer array, shape (rows, slots)
        Column of each slot, ascending among the stored slots of a row.
    stored : bool array, shape (rows, slots)
        Which slots become entries.
    values : float64 array, broadcastable to (rows, slots)
        Value of each slot.
    width : int
        Number of columns of the matrix.

    Returns
    -------
    csr_array
        Shape (rows, width), indices sorted, no duplicates.
    """
    from scipy.sparse import csr_array

    rows = columns.shape[0]
    kind = index_type(rows, width, columns.size)
    indptr = np.zeros(rows + 1, dtype=kind)
    np.cumsum(np.count_nonzero(stored, axis=1), out=indptr[1:])
    indices = columns[stored].astype(kind, copy=False)
    data = np.broadcast_to(values, columns.shape)[stored]
    return csr_array((data, indices, indptr), shape=(rows, width))


def csr_from_pairs(
    generator: np.random.Generator, rows: NDArray, columns: NDArray, shape: tuple[int, int]
) -> csr_array:
    """Build a matrix with a standard normal value at each distinct (row, column); indices are sorted."""
    from scipy.sparse import coo_array, csr_array

    kind = index_type(*shape, len(rows))
    ones = np.ones(len(rows), dtype=np.int8)
    matrix = coo_array((ones, (rows.astype(kind), columns.astype(kind))), shape=shape).tocsr()
    return csr_array(
        (generator.standard_normal(matrix.nnz), matrix.indices, matrix.indptr), shape=shape, copy=False
    )


def csr_from_sums(values: Floats, rows: NDArray, columns: NDArray, shape: tuple[int, int]) -> csr_array:
    """Build a matrix that sums all values given for the same (row, column); indices are sorted."""
    from scipy.sparse import coo_array

    kind = index_type(*shape, len(rows))
    return coo_array((values, (rows.astype(kind), columns.astype(kind))), shape=shape).tocsr()


def laplacian(weights: Floats, left: NDArray, right: NDArray, ground: Floats) -> csr_array:
    """Return the matrix of a resistor network: symmetric, positive definite where every `ground` is positive.

    Parameters
    ----------
    weights : float64 array, shape (edges,)
        Conductance of each edge, positive.
    left, right : integer arrays, shape (edges,)
        The nodes that the edge joins; an edge from a node to itself adds nothing.
    ground : float64 array, shape (nodes,)
        Conductance from each node to the ground.
    """
    from scipy.sparse import diags_array

    nodes = len(ground)
    joined = left != right
    low, high = np.minimum(left, right)[joined], np.maximum(left, right)[joined]
    # Mirrored after summing, since parallel edges summed twice in another order differ in the last bit.
    upper = csr_from_sums(weights[joined], low, high, (nodes, nodes))
    degree = ground + upper.sum(axis=0) + upper.sum(axis=1)
    return (diags_array(degree, format="csr") - (upper + upper.T)).tocsr()
