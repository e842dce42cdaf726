"""Matrices of any kind -> CSR, checked, on the host or on the GPU where they lie."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import sparray, spmatrix

from dasp.formats import devices
from dasp.formats.csr.matrix import Csr, check_compressed
from dasp.formats.plan import Array, csr_from_coo, sort_by_row
from dasp.matrix.entries import Compressed, Coordinates, take_coordinates, take_sparse
from dasp.matrix.planning import Request
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.sizes import BYTES_PER_ROW, refuse_oversize
from dasp.runtime.types import ArrayLike

Entries = tuple[Csr, Array | None]
"""A matrix, and the place in which each of its entries came in; None if they came row by row."""


def to_csr(A: Any, shape: tuple[int, int] | None, request: Request) -> Entries:
    """Convert a matrix of SciPy or CuPy, dense, or a tuple as SciPy's csr_array takes it.

    Parameters
    ----------
    A : sparse matrix, array_like or tuple
        `(data, (row, col))` and `(data, indices, indptr)` are coordinates and CSR.
    shape : tuple of int or None
        Of a matrix that is given as a tuple; by default as small as coordinates allow.
    request : Request

    Raises
    ------
    TypeError, ValueError, RuntimeError
    """
    if isinstance(A, (str, os.PathLike)):
        raise TypeError(f"A is {str(A)!r}; a matrix is needed; read it with dasp.load_matrix")
    if isinstance(A, tuple):
        return from_tuple(A, shape, request)
    if shape is not None and _check.shape(shape) != tuple(getattr(A, "shape", np.shape(A))):
        raise ValueError(f"shape is {shape}; A has shape {np.shape(A)}; leave shape out")
    if type(A).__module__.startswith("cupyx.scipy.sparse"):
        return from_cupy(A, request)
    if scipy.sparse.issparse(A):
        return from_scipy(A, request)
    return from_dense(A, request)


def from_tuple(A: tuple[Any, ...], shape: tuple[int, int] | None, request: Request) -> Entries:
    """Convert coordinates or the three arrays of a CSR matrix."""
    if len(A) == 3:
        data, indices, indptr = A
        if shape is None:
            raise ValueError("shape is None; A is (data, indices, indptr), so shape=(m, n) is needed")
        size = _check.shape(shape)
        arrays = Compressed(
            data=_arrays.values("data", data),
            indices=_arrays.index("indices", indices),
            indptr=_arrays.index("indptr", indptr),
        )
        check_compressed("CSR", size, *arrays)
        return _compress(size, arrays, request)
    if len(A) != 2 or not isinstance(A[1], (tuple, list)) or len(A[1]) != 2:
        raise TypeError(f"A is a tuple of {len(A)}; (data, (row, col)) or (data, indices, indptr) is needed")
    data, (row, col) = A
    if shape is None:
        row, col = _arrays.index("row", row), _arrays.index("col", col)
        shape = int(row.max(initial=-1)) + 1, int(col.max(initial=-1)) + 1
    return from_coo(data, (row, col), shape, request)


def from_scipy(A: sparray | spmatrix, request: Request) -> Entries:
    """Convert a SciPy sparse matrix; see `dasp.SpMatrix.from_scipy`."""
    if not scipy.sparse.issparse(A):
        planned = hasattr(A, "to_scipy")
        remedy = "pass A.to_scipy()" if planned else "use from_dense, from_coo or from_cupy for others"
        raise TypeError(f"A is {_check.kind_of(A)}; a scipy.sparse matrix is needed; {remedy}")
    on_cpu = request.packing_device(A.shape) == "cpu"
    return _compress(A.shape, take_sparse(A, checks=on_cpu), request)


def from_cupy(A: Any, request: Request) -> Entries:
    """Convert a sparse matrix of CuPy; see `dasp.SpMatrix.from_cupy`."""
    if not type(A).__module__.startswith("cupyx.scipy.sparse") or not hasattr(A, "get"):
        raise TypeError(f"A is {_check.kind_of(A)}; a cupyx.scipy.sparse matrix is needed")
    shape = int(A.shape[0]), int(A.shape[1])
    where = request.packing_device(shape)
    if A.format != "csr" or where != f"cuda:{A.data.device.id}":
        return from_scipy(A.get(), request)
    return Csr(shape, *devices.find(where).as_csr(A)), None


def from_dense(A: Any, request: Request) -> Entries:
    """Convert the entries of a dense matrix of NumPy or CuPy that are not zero."""
    if _arrays.is_cupy(A) and A.ndim == 2:
        where = request.packing_device(A.shape)
        if where == f"cuda:{A.device.id}":
            return Csr(A.shape, *devices.find(where).entries_of(A)), None
        A = A.get()
    dense = _arrays.take("A", A)
    if dense.ndim != 2:
        raise ValueError(f"A has shape {dense.shape}; a matrix with 2 dimensions is needed")
    _dtypes.stored(dense.dtype)  # refused before anything is made of it
    rows, columns = np.nonzero(dense)
    return from_coo(dense[rows, columns], (rows, columns), dense.shape, request)


def from_coo(
    data: ArrayLike, coords: tuple[ArrayLike, ArrayLike], shape: tuple[int, int], request: Request
) -> Entries:
    """Convert a matrix given by its entries; see `dasp.SpMatrix.from_coo`."""
    size = _check.shape(shape)
    if not isinstance(coords, (tuple, list)) or len(coords) != 2:
        raise TypeError("coords is not a pair; (row, col) is needed")
    return _compress(size, take_coordinates(size, data, *coords), request)


def _compress(shape: tuple[int, int], arrays: Compressed | Coordinates, request: Request) -> Entries:
    """Return checked arrays as CSR; MemoryError if the CPU packs them and has no room for the rows."""
    order = None
    if request.packing_device(shape) == "cpu":
        refuse_oversize(
            f"A with {shape[0]:,} rows", BYTES_PER_ROW * float(shape[0]), "leave out rows without entries"
        )
    if isinstance(arrays, Coordinates):
        if (arrays.rows[1:] < arrays.rows[:-1]).any():
            order = sort_by_row(shape[0], arrays.rows)[1]
        arrays = Compressed(*csr_from_coo(shape[0], *arrays))
    return Csr((int(shape[0]), int(shape[1])), *arrays), order
