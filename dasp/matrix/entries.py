"""The entries of a caller's matrix as arrays of NumPy, checked before anything is made of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.sparse import sparray, spmatrix

from dasp.formats.csr.matrix import check_compressed, check_entries
from dasp.runtime.arrays import index, values
from dasp.runtime.types import ArrayLike, Vector


class Compressed(NamedTuple):
    """A matrix by rows: `indptr` of m + 1 numbers, then a column and a value for each entry."""

    indptr: Vector
    indices: Vector
    data: Vector


class Coordinates(NamedTuple):
    """A matrix by its entries, in any order: a row, a column and a value for each."""

    rows: Vector
    columns: Vector
    data: Vector


def take_coordinates(
    shape: tuple[int, int], data: ArrayLike, rows: ArrayLike, columns: ArrayLike
) -> Coordinates:
    """Return a matrix that is given by its entries, valid for its shape.

    Parameters
    ----------
    shape : tuple of int
    data : array_like, shape (nnz,), any dtype of numbers
    rows, columns : array_like, shape (nnz,), any integer dtype

    Returns
    -------
    Coordinates
        Rows and columns of one type, int32 or int64; data as `values` has them; all contiguous.
    """
    taken = values("data", data), index("row", rows), index("col", columns)
    dtype = np.result_type(taken[1], taken[2])
    row, column = (positions.astype(dtype, copy=False) for positions in taken[1:])
    check_entries(shape, row, column, taken[0])
    return Coordinates(row, column, taken[0])


def take_sparse(matrix: sparray | spmatrix, checks: bool = True) -> Compressed | Coordinates:
    """Return the arrays of a SciPy sparse matrix of any format, checked before SciPy converts it.

    SciPy's conversions read and write where the arrays of a matrix tell them to, and a caller may have
    changed those arrays since SciPy looked at them.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix, shape (m, n), any format and dtype of numbers
    checks : bool
        False leaves indptr and indices of a CSR matrix unread: they may be anything.

    Returns
    -------
    Compressed
        For CSR (the entries in their order), CSC, BSR, DIA and LIL: valid for the matrix's shape.
    Coordinates
        For COO and DOK.

    Raises
    ------
    TypeError
        For values that are no numbers, indices that are no integers, masked arrays.
    ValueError
        For arrays that do not fit each other or the shape, naming the first.
    """
    if matrix.ndim != 2:
        raise ValueError(f"A has shape {matrix.shape}; a matrix with 2 dimensions is needed")
    reader = _READERS.get(matrix.format)
    if reader is None:
        raise TypeError(f"A has the format {matrix.format!r}; one of {', '.join(_READERS)} is needed")
    return _csr(matrix, checks) if reader is _csr else reader(matrix)


def _csr(matrix: sparray | spmatrix, checks: bool = True) -> Compressed:
    return _compressed("CSR", matrix, matrix.shape, values("A.data", matrix.data), checks)


def _compressed(
    kind: str, matrix: sparray | spmatrix, shape: tuple[int, int], data: Vector, checks: bool = True
) -> Compressed:
    """Take in indptr and indices; what lies behind the last entry is room that SciPy keeps."""
    indptr, indices = index("A.indptr", matrix.indptr), index("A.indices", matrix.indices)
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        indices, data = indices[:end], data[:end]
    if checks:
        check_compressed(kind, shape, indptr, indices, data)
    return Compressed(indptr, indices, data)


def _convert(matrix: sparray | spmatrix, arrays: tuple[Vector, ...]) -> Compressed:
    """Let SciPy convert a matrix of the same class, made anew of arrays that were checked.

    It moves halves, which it has not, as their bits.
    """
    data, *others = arrays
    bits = np.dtype(np.uint16) if data.dtype.itemsize == 2 else data.dtype
    csr = type(matrix)((data.view(bits), *others), shape=matrix.shape).tocsr()
    return Compressed(csr.indptr, csr.indices, csr.data.view(data.dtype))


def _csc(matrix: sparray | spmatrix) -> Compressed:
    indptr, indices, data = _compressed("CSC", matrix, matrix.shape[::-1], values("A.data", matrix.data))
    return _convert(matrix, (data, indices, indptr))


def _bsr(matrix: sparray | spmatrix) -> Compressed:
    data = values("A.data", matrix.data, 3)
    (m, n), (height, width) = matrix.shape, data.shape[1:]
    if not height or not width or m % height or n % width:
        raise ValueError(f"A has blocks of shape {(height, width)} and shape {(m, n)}; a multiple is needed")
    indptr, indices, data = _compressed("BSR", matrix, (m // height, n // width), data)
    return _convert(matrix, (data, indices, indptr))


def _dia(matrix: sparray | spmatrix) -> Compressed:
    data, offsets = values("A.data", matrix.data, 2), index("A.offsets", matrix.offsets)
    different = len(np.unique(offsets))
    if not len(data) == len(offsets) == different:
        raise ValueError(
            f"A has {len(data)} diagonals and {len(offsets)} offsets, {different} of them different; "
            "these must be equal"
        )
    m, n = matrix.shape
    inside = (offsets > -m) & (offsets < n)
    return _convert(matrix, (data[inside], offsets[inside]))


def _coo(matrix: sparray | spmatrix) -> Coordinates:
    return take_coordinates(matrix.shape, matrix.data, *matrix.coords)


def _dok(matrix: sparray | spmatrix) -> Coordinates:
    try:
        keys = np.array(list(matrix.keys())).reshape(-1, 2)
        data = np.fromiter(matrix.values(), matrix.dtype, len(keys))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds what is no entry ({error}); keys (row, column) and values that are numbers are needed"
        ) from error
    if not len(keys):
        keys = keys.astype(np.int32)
    return take_coordinates(matrix.shape, data, keys[:, 0], keys[:, 1])


def _lil(matrix: sparray | spmatrix) -> Compressed:
    m, n = matrix.shape
    try:
        lengths, others = ([len(row) for row in lists] for lists in (matrix.rows, matrix.data))
        indices = index("A.rows", list(chain.from_iterable(matrix.rows)))
        data = np.fromiter(chain.from_iterable(matrix.data), matrix.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A holds what is no row ({error}); lists of columns and of as many numbers are needed"
        ) from error
    if lengths != others or len(lengths) != m:
        raise ValueError(f"A has {m} rows; its lists of columns and of values are not as many or not as long")
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    data = values("A.data", data)
    check_compressed("LIL", (m, n), indptr, indices, data)
    return Compressed(indptr, indices, data)


_READERS: dict[str, Callable[[sparray | spmatrix], Compressed | Coordinates]] = {
    "csr": _csr,
    "csc": _csc,
    "bsr": _bsr,
    "dia": _dia,
    "coo": _coo,
    "dok": _dok,
    "lil": _lil,
}
