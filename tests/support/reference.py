"""The product in long double, the bound on another product's error, and a comparison that no error passes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from scipy.sparse import csr_array

from dasp.runtime.dtypes import TABLE, real_type, sum_type


def entries_of(matrix: Any) -> csr_array:
    """Return a matrix in CSR with every entry kept; SciPy sums duplicates when it converts COO."""
    if matrix.format == "csr":
        return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    if matrix.format != "coo":
        return csr_array(matrix.tocsr())
    order = np.argsort(matrix.coords[0], kind="stable")
    indices = matrix.coords[1][order]
    indptr = np.searchsorted(matrix.coords[0][order], np.arange(matrix.shape[0] + 1)).astype(indices.dtype)
    return csr_array((matrix.data[order], indices, indptr), shape=matrix.shape)


def _row_sums(matrix: csr_array, terms: Any) -> Any:
    """Sum terms by row in long double; empty rows give 0."""
    sums = np.zeros(matrix.shape[0], terms.dtype)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if len(filled):
        sums[filled] = np.add.reduceat(terms, matrix.indptr[filled])
    return sums


def product(matrix: Any, x: Any, alpha: complex = 1.0, beta: complex = 0.0, y: Any = None) -> tuple[Any, Any]:
    """Return alpha A x + beta y in long double, and sum_j |alpha a_ij x_j| + |beta y_i|.

    For complex products the second is complex: its parts bound the errors of the real and imaginary part.
    """
    matrix = entries_of(matrix)
    if "c" in matrix.data.dtype.kind + x.dtype.kind:
        return _complex_product(matrix, x, alpha, beta, y)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = (
            np.longdouble(alpha) * matrix.data.astype(np.longdouble) * x.astype(np.longdouble)[matrix.indices]
        )
        want, size = _row_sums(matrix, terms), _row_sums(matrix, abs(terms))
        if beta != 0:
            want, size = want + np.longdouble(beta) * y, size + abs(np.longdouble(beta) * y)
    return want, size


def _complex_product(matrix: csr_array, x: Any, alpha: complex, beta: complex, y: Any) -> tuple[Any, Any]:
    def parts(numbers: Any) -> Any:
        wide = np.asarray(numbers).astype(np.clongdouble)
        return abs(wide.real) + 1j * abs(wide.imag)

    def times(a: Any, b: Any) -> Any:  # the product of sizes: no part is subtracted
        return (a.real * b.real + a.imag * b.imag) + 1j * (a.real * b.imag + a.imag * b.real)

    a, gathered = matrix.data.astype(np.clongdouble), x.astype(np.clongdouble)[matrix.indices]
    want = np.clongdouble(alpha) * _row_sums(matrix, a * gathered)
    size = times(parts(alpha), _row_sums(matrix, times(parts(a), parts(gathered))))
    if beta != 0:
        wide = np.asarray(y).astype(np.clongdouble)
        want, size = want + np.clongdouble(beta) * wide, size + times(parts(beta), parts(wide))
    return want, size


def gamma(n: Any, dtype: Any) -> Any:
    """Higham's gamma_n = n u / (1 - n u) for n roundings in `dtype`."""
    n_u = np.asarray(n, np.longdouble) * TABLE[np.dtype(dtype).name].unit_roundoff
    return n_u / (1 - n_u)


def bound_of(lengths: Any, size: Any, want: Any, dtype: Any, *, is_complex: bool = False) -> Any:
    """Return the bound of the error of each row of a product in `dtype`, or of one of its parts.

    Each term is rounded once, and alpha and beta add one rounding each; for complex numbers these counts
    double. A product below the normal range may also lose half the least subnormal. Half precisions are
    summed in float32, and rounded once.
    """
    total = real_type(sum_type(np.dtype(dtype)))
    count = (2 if is_complex else 1) * (lengths + 2)
    bound = gamma(count, total) * size + count * np.finfo(total).smallest_subnormal
    if total != real_type(np.dtype(dtype)):
        u = TABLE[np.dtype(dtype).name].unit_roundoff
        bound = bound + u * (abs(want) + bound) + ml_dtypes.finfo(dtype).smallest_subnormal.astype(float)
    return bound


def assert_close(
    got: Any, matrix: Any, x: Any, alpha: complex = 1.0, beta: complex = 0.0, y: Any = None
) -> None:
    """Hold every row of alpha A x + beta y to its bound, and non-finite rows to the same infinity or NaN."""
    want, size = product(matrix, x, alpha, beta, y)
    assert got.shape == want.shape
    lengths = np.diff(entries_of(matrix).indptr)
    if got.dtype.kind == "c":
        for part in ("real", "imag"):
            _assert_within(*(getattr(each, part) for each in (got, want, size)), lengths, is_complex=True)
    else:
        _assert_within(got, want, size, lengths)


def _assert_within(got: Any, want: Any, size: Any, lengths: Any, *, is_complex: bool = False) -> None:
    bound = bound_of(lengths, size, want, got.dtype, is_complex=is_complex)
    most = np.inf
    if got.dtype.itemsize == 2:
        most, got = float(ml_dtypes.finfo(got.dtype).max), got.astype(np.float32)
    finite = np.isfinite(want)
    with np.errstate(invalid="ignore"):
        good = abs(got - want) <= bound
        good |= (abs(want) + bound > most) & (got == np.copysign(np.inf, want))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(~np.where(finite, good, same))
    assert not len(wrong), (
        f"row {wrong[0]}: got {got[wrong[0]]!r}, want {want[wrong[0]]!r} +- {bound[wrong[0]]!r}"
    )


def assert_same_entries(got: Any, want: Any) -> None:
    """Hold two matrices to the same entries, bit for bit, up to the order inside a row."""
    got, want = entries_of(got), entries_of(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.indptr, want.indptr)
    assert got.data.dtype == want.data.dtype
    rows = np.repeat(np.arange(want.shape[0]), np.diff(want.indptr))

    def words(matrix: csr_array) -> Any:
        size = min(matrix.data.dtype.itemsize, 8)
        return matrix.data.view(f"u{size}").reshape(matrix.nnz, matrix.data.dtype.itemsize // size)

    orders = [np.lexsort((*words(m).T, m.indices, rows)) for m in (got, want)]
    np.testing.assert_array_equal(got.indices[orders[0]], want.indices[orders[1]])
    np.testing.assert_array_equal(words(got)[orders[0]], words(want)[orders[1]])
