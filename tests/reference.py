"""The slow product, the bound on its rival's error, and the comparison that nothing wrong passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array


def entries_of(matrix: Any) -> csr_array:
    """The CSR form with every entry kept; SciPy sums duplicates when it converts COO."""
    if matrix.format != "coo":
        return csr_array(matrix.tocsr())
    order = np.argsort(matrix.coords[0], kind="stable")
    indptr = np.searchsorted(matrix.coords[0][order], np.arange(matrix.shape[0] + 1))
    return csr_array((matrix.data[order], matrix.coords[1][order], indptr), shape=matrix.shape)


def _row_sums(matrix: csr_array, terms: Any) -> Any:
    """Sum terms by row in long double; empty rows give 0."""
    sums = np.zeros(matrix.shape[0], np.longdouble)
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if len(filled):
        sums[filled] = np.add.reduceat(terms, matrix.indptr[filled])
    return sums


def product(matrix: Any, x: Any, alpha: float = 1.0, beta: float = 0.0, y: Any = None) -> tuple[Any, Any]:
    """Return alpha A x + beta y in long double, and sum_j |alpha a_ij x_j| + |beta y_i|."""
    matrix = entries_of(matrix)
    with np.errstate(invalid="ignore", over="ignore"):
        terms = (
            np.longdouble(alpha) * matrix.data.astype(np.longdouble) * x.astype(np.longdouble)[matrix.indices]
        )
        want, size = _row_sums(matrix, terms), _row_sums(matrix, abs(terms))
        if beta != 0:
            want, size = want + np.longdouble(beta) * y, size + abs(np.longdouble(beta) * y)
    return want, size


def gamma(n: Any, dtype: Any) -> Any:
    """Higham's gamma_n = n u / (1 - n u) for n roundings in `dtype`."""
    n_u = np.asarray(n, np.longdouble) * np.finfo(dtype).eps / 2
    return n_u / (1 - n_u)


def assert_close(got: Any, matrix: Any, x: Any, alpha: float = 1.0, beta: float = 0.0, y: Any = None) -> None:
    """Hold every row of alpha A x + beta y to its bound, and non-finite rows to what they must be."""
    want, size = product(matrix, x, alpha, beta, y)
    assert got.shape == want.shape
    lengths = np.diff(entries_of(matrix).indptr)
    # One rounding for each term, one for alpha, one for beta; where products fall below the normal
    # range each of them may also lose half the least subnormal.
    bound = gamma(lengths + 2, got.dtype) * size + (lengths + 2) * np.finfo(got.dtype).smallest_subnormal
    finite = np.isfinite(want)
    with np.errstate(invalid="ignore"):
        good = abs(got - want) <= bound
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(~np.where(finite, good, same))
    assert not len(wrong), (
        f"row {wrong[0]}: got {got[wrong[0]]!r}, want {want[wrong[0]]!r} +- {bound[wrong[0]]!r}"
    )


def assert_same_entries(got: Any, want: Any) -> None:
    """Hold two matrices to have the same entries, bit for bit, up to the order inside a row."""
    got, want = entries_of(got), entries_of(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.indptr, want.indptr)
    assert got.data.dtype == want.data.dtype
    rows = np.repeat(np.arange(want.shape[0]), np.diff(want.indptr))
    bits = f"u{want.data.dtype.itemsize}"
    orders = [np.lexsort((m.data.view(bits), m.indices, rows)) for m in (got, want)]
    for name in ("indices", "data"):
        left, right = getattr(got, name)[orders[0]], getattr(want, name)[orders[1]]
        np.testing.assert_array_equal(
            left.view(bits) if name == "data" else left, right.view(bits) if name == "data" else right
        )
