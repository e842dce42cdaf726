"""Matrices and vectors of a type, to be measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dasp.runtime.dtypes import bits_type
from dasp.runtime.types import Array, DTypeLike

if TYPE_CHECKING:
    from scipy.sparse import csr_array

HALF_MOST = 256.0
"""The largest value of a matrix that is not scaled for float16."""


def as_float(csr: csr_array, dtype: DTypeLike = np.float64, seed: int = 0) -> csr_array:
    """Return the matrix as it is multiplied: CSR, 32-bit indices where they fit, values of `dtype`.

    Parameters
    ----------
    csr : scipy.sparse matrix or array
    dtype : dtype
        A type of `dasp.runtime.dtypes.TABLE`. Real values become complex ones by imaginary parts that are
        drawn, complex ones real ones by their real parts, and values beyond 256 are scaled by a power of
        two for float16, so that sums stay in its range.
    seed : int
        Of the imaginary parts.
    """
    import scipy.sparse

    matrix, kind = scipy.sparse.csr_array(csr), np.dtype(dtype)
    data = matrix.data
    if kind.kind == "c" != data.dtype.kind:
        size = np.abs(data).max(initial=0) or 1
        data = data + 1j * size * np.random.default_rng(seed).standard_normal(len(data))
    if data.dtype.kind == "c" != kind.kind:
        data = data.real
    if kind == np.float16 and np.abs(data).max(initial=0) > HALF_MOST:
        data = np.ldexp(data, 8 - math.frexp(float(np.abs(data).max()))[1])
    # SciPy has no halves, but keeps the arrays that it is given.
    matrix = scipy.sparse.csr_array(
        (data.astype(kind, copy=False), matrix.indices, matrix.indptr), shape=matrix.shape
    )
    if max(matrix.nnz, *matrix.shape) < 2**31 and matrix.indices.dtype != np.int32:
        matrix = scipy.sparse.csr_array(
            (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)), shape=matrix.shape
        )
    return matrix


def random_vector(size: int, dtype: DTypeLike, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers of a type whose parts are drawn from the standard normal distribution."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(size)
    return x.astype(dtype)


def fill(y: Array, number: float) -> None:
    """Write a number into every element of an array of NumPy or CuPy, by its bits: CuPy fills no bfloat16."""
    bits = bits_type(y.dtype)
    y.view(bits).fill(np.array(number, y.dtype).view(bits)[()])
