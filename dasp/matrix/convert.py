"""Convert matrices of any kind to CSR, on the host or on the GPU where they lie.

SciPy's conversions read and write memory at positions that the arrays of a matrix give, and a caller may have
changed those arrays since SciPy checked them. So every array is checked before SciPy converts anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import sparray, spmatrix

from dasp.formats import backends
from dasp.formats.csr.matrix import Csr, check_compressed, check_entries, check_room, sort_by_row
from dasp.matrix.planning import Request
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.arrays import index, is_cupy, is_cupy_sparse, take, values
from dasp.runtime.types import Array, ArrayLike, Vector

Entries = tuple[Csr, Array | None]
"""A matrix, and the position of each of its entries among the caller's; None if those came row by row."""


def to_csr(A: Any, shape: tuple[int, int] | None, request: Request) -> Entries:
    """Convert a sparse matrix of SciPy or CuPy, a dense one, or a tuple that SciPy's csr_array takes.

    Parameters
    ----------
    A : sparse matrix, array_like or tuple
        `(data, (row, col))` and `(data, indices, indptr)` are coordinates and CSR.
    shape : tuple of int or None
        The shape of a matrix given as a tuple; by default the smallest that holds its coordinates.
    request : Request

    Raises
    ------
    TypeError, ValueError, RuntimeError
    """
    if isinstance(A, (str, os.PathLike)):
        raise TypeError(f"A is {str(A)!r}; a matrix is needed; read it with dasp.load_matrix")
    if isinstance(A, tuple):
        return from_tuple(A, shape)
    if shape is not None and _check.shape(shape) != tuple(getattr(A, "shape", np.shape(A))):
        raise ValueError(f"shape is {shape}; A has shape {np.shape(A)}; leave shape out")
    if is_cupy_sparse(A):
        return from_cupy(A, request)
    if scipy.sparse.issparse(A):
        return from_scipy(A, request)
    return from_dense(A, request)


def from_tuple(A: tuple[Any, ...], shape: tuple[int, int] | None) -> Entries:
    """Convert coordinates or the three arrays of a CSR matrix."""
    if len(A) == 3:
        data, indices, indptr = values("data", A[0]), index("indices", A[1]), index("indptr", A[2])
        if shape is None:
            shape = max(len(indptr) - 1, 0), int(indices.max(initial=-1)) + 1
        size = _check.shape(shape)
        check_compressed("CSR", size, indptr, indices, data)
        return Csr(size, indptr, indices, data), None
    if len(A) != 2 or not _is_pair(A[1]):
        raise TypeError(f"A is a tuple of {len(A)}; (data, (row, col)) or (data, indices, indptr) is needed")
    data, (row, col) = A
    if shape is None:
        row, col = index("row", row), index("col", col)
        shape = int(row.max(initial=-1)) + 1, int(col.max(initial=-1)) + 1
    return from_coo(data, (row, col), shape)


def _is_pair(coords: object) -> bool:
    """Return True for a row and a column of indices; one array of shape (2, nnz) is such a pair, too."""
    if isinstance(coords, np.ndarray):
        return coords.ndim == 2 and len(coords) == 2
    return isinstance(coords, (tuple, list)) and len(coords) == 2


def from_scipy(A: sparray | spmatrix, request: Request) -> Entries:
    """Convert a SciPy sparse matrix; see `dasp.SpMatrix.from_scipy`."""
    if not scipy.sparse.issparse(A):
        planned = hasattr(A, "to_scipy")
        remedy = "pass A.to_scipy()" if planned else "use from_dense, from_coo or from_cupy for others"
        raise TypeError(f"A is {_check.kind_of(A)}; a scipy.sparse matrix is needed; {remedy}")
    on_cpu = request.packing_device(A.shape) == "cpu"
    return read_sparse(A, checks=on_cpu)


def from_cupy(A: object, request: Request) -> Entries:
    """Convert a sparse matrix of CuPy; see `dasp.SpMatrix.from_cupy`."""
    if not is_cupy_sparse(A):
        raise TypeError(f"A is {_check.kind_of(A)}; a cupyx.scipy.sparse matrix is needed")
    shape = int(A.shape[0]), int(A.shape[1])
    where = request.packing_device(shape)
    if A.format != "csr" or where != f"cuda:{A.data.device.id}":
        return from_scipy(A.get(), request)
    return Csr(shape, *backends.find(where).as_csr(A)), None


def from_dense(A: ArrayLike, request: Request) -> Entries:
    """Convert the non-zero entries of a dense matrix of NumPy or CuPy."""
    if is_cupy(A) and A.ndim == 2:
        where = request.packing_device(A.shape)
        if where == f"cuda:{A.device.id}":
            return Csr(A.shape, *backends.find(where).find_entries(A)), None
        A = A.get()
    dense = take("A", A)
    if dense.ndim != 2:
        raise ValueError(f"A has shape {dense.shape}; a matrix with 2 dimensions is needed")
    _dtypes.stored(dense.dtype)  # refuses the type before any array is made
    rows, columns = np.nonzero(dense)
    return read_coordinates(dense.shape, dense[rows, columns], rows, columns)


def from_coo(data: ArrayLike, coords: tuple[ArrayLike, ArrayLike], shape: tuple[int, int]) -> Entries:
    """Convert a matrix given by its entries; see `dasp.SpMatrix.from_coo`."""
    size = _check.shape(shape)
    if not _is_pair(coords):
        raise TypeError("coords is not a pair; (row, col) is needed")
    return read_coordinates(size, data, *coords)


# ---- SciPy's formats -------------------------------------------------------------------------------------


def read_coordinates(shape: tuple[int, int], data: ArrayLike, rows: ArrayLike, columns: ArrayLike) -> Entries:
    """Return the matrix of some entries, checked against its shape and sorted by row, stably.

    Parameters
    ----------
    shape : tuple of int
    data : array_like, shape (nnz,), any dtype of numbers
    rows, columns : array_like, shape (nnz,), any integer dtype

    Raises
    ------
    TypeError, ValueError
        For arrays that do not fit each other or the shape.
    OversizeError
        If the rows are too many for this machine's memory.
    """
    taken, row, column = values("data", data), index("row", rows), index("col", columns)
    check_entries(shape, row, column, taken)
    check_room(shape)
    if (row[1:] < row[:-1]).any():
        indptr, order = sort_by_row(shape[0], row)
        return Csr(shape, indptr, column[order], taken[order]), order
    indptr = np.zeros(shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=shape[0]), out=indptr[1:])
    return Csr(shape, indptr, column, taken), None


def read_sparse(matrix: sparray | spmatrix, checks: bool = True) -> Entries:
    """Return a SciPy sparse matrix of any format as CSR, checked before SciPy converts it.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix, shape (m, n), any format and dtype of numbers
    checks : bool
        False leaves the numbers in indptr and indices of a CSR matrix unchecked.

    Raises
    ------
    TypeError
        For values that are not numbers, indices that are not integers, and masked arrays.
    ValueError
        For arrays that do not fit each other or the shape; the message names the first.
    """
    if matrix.ndim != 2:
        raise ValueError(f"A has shape {matrix.shape}; a matrix with 2 dimensions is needed")
    shape = int(matrix.shape[0]), int(matrix.shape[1])
    if matrix.format == "csr":
        arrays = _read_compressed("CSR", matrix, shape, values("A.data", matrix.data), checks)
        return Csr(shape, *arrays), None
    if matrix.format not in _READERS:
        raise TypeError(f"A has the format {matrix.format!r}; one of csr, {', '.join(_READERS)} is needed")
    return _READERS[matrix.format](matrix)


def _read_compressed(
    kind: str, matrix: sparray | spmatrix, shape: tuple[int, int], data: Vector, checks: bool = True
) -> tuple[Vector, Vector, Vector]:
    """Return indptr, indices and data without the spare room that SciPy keeps after the last entry."""
    indptr, indices = index("A.indptr", matrix.indptr), index("A.indices", matrix.indices)
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        indices, data = indices[:end], data[:end]
    if checks:
        check_compressed(kind, shape, indptr, indices, data)
    return indptr, indices, data


def _convert_by_scipy(matrix: sparray | spmatrix, arrays: tuple[Vector, ...]) -> Entries:
    """Build an array of SciPy from checked arrays, and let SciPy convert it.

    SciPy lacks half precisions, so it moves them as integers of the same bits.
    """
    check_room(matrix.shape)
    data, *others = arrays
    bits = np.dtype(np.uint16) if data.dtype.itemsize == 2 else data.dtype
    array = getattr(scipy.sparse, f"{matrix.format}_array")
    csr = array((data.view(bits), *others), shape=matrix.shape).tocsr()
    return Csr(csr.shape, csr.indptr, csr.indices, csr.data.view(data.dtype)), None


def _read_csc(matrix: sparray | spmatrix) -> Entries:
    indptr, indices, data = _read_compressed("CSC", matrix, matrix.shape[::-1], values("A.data", matrix.data))
    return _convert_by_scipy(matrix, (data, indices, indptr))


def _read_bsr(matrix: sparray | spmatrix) -> Entries:
    data = values("A.data", matrix.data, 3)
    (m, n), (height, width) = matrix.shape, data.shape[1:]
    if not height or not width or m % height or n % width:
        raise ValueError(f"A has blocks of shape {(height, width)} and shape {(m, n)}; a multiple is needed")
    indptr, indices, data = _read_compressed("BSR", matrix, (m // height, n // width), data)
    return _convert_by_scipy(matrix, (data, indices, indptr))


def _read_dia(matrix: sparray | spmatrix) -> Entries:
    data, offsets = values("A.data", matrix.data, 2), index("A.offsets", matrix.offsets)
    different = len(np.unique(offsets))
    if not len(data) == len(offsets) == different:
        raise ValueError(
            f"A has {len(data)} diagonals and {len(offsets)} offsets, {different} of them different; "
            "these must be equal"
        )
    m, n = matrix.shape
    inside = (offsets > -m) & (offsets < n)
    return _convert_by_scipy(matrix, (data[inside], offsets[inside]))


def _read_coo(matrix: sparray | spmatrix) -> Entries:
    return read_coordinates(matrix.shape, matrix.data, *matrix.coords)


def _read_dok(matrix: sparray | spmatrix) -> Entries:
    try:
        keys = np.array(list(matrix.keys())).reshape(-1, 2)
        data = np.fromiter(matrix.values(), matrix.dtype, len(keys))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds something that is no entry ({error}); keys (row, column) and numbers are needed"
        ) from error
    if not len(keys):
        keys = keys.astype(np.int32)
    return read_coordinates(matrix.shape, data, keys[:, 0], keys[:, 1])


def _read_lil(matrix: sparray | spmatrix) -> Entries:
    m, n = matrix.shape
    try:
        lengths, others = ([len(row) for row in lists] for lists in (matrix.rows, matrix.data))
        indices = index("A.rows", list(chain.from_iterable(matrix.rows)))
        data = np.fromiter(chain.from_iterable(matrix.data), matrix.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds something that is no row ({error}); a list of columns and one of numbers are needed"
        ) from error
    if lengths != others or len(lengths) != m:
        raise ValueError(
            f"A has {m} rows and lists that do not fit; each row needs as many columns as values"
        )
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data = values("A.data", data)
    check_compressed("LIL", (m, n), indptr, indices, data)
    return Csr((m, n), indptr, indices, data), None


_READERS: dict[str, Callable[[sparray | spmatrix], Entries]] = {
    "csc": _read_csc,
    "bsr": _read_bsr,
    "dia": _read_dia,
    "coo": _read_coo,
    "dok": _read_dok,
    "lil": _read_lil,
}
