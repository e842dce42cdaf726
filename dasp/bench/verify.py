"""Is every row of a product right? A bound for each row, no tolerance.

A floating-point dot product of n entries in any order satisfies
|got - want| <= gamma(n) sum_j |a_ij x_j| with gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 3.1). The check allows gamma(n_i + 2), the two more for a product
that is scaled by alpha and added to beta y, and an absolute term for products that underflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_ENTRIES = 1 << 17
"""Entries per chunk of the reference: its long-double temporaries, 2 MiB each, stay in the cache."""


@dataclass(frozen=True)
class Verification:
    """What the check of one product found.

    Attributes
    ----------
    rows_failed : int
        Rows whose error is above the bound, or is not a number.
    worst : float
        The largest error / bound; at most 1 when every row is right, infinity when a row is not a number.
    worst_row : int
        The row of `worst`; -1 when there are no rows.
    """

    rows_failed: int
    worst: float
    worst_row: int

    @property
    def passed(self) -> bool:
        """Whether every row is within its bound."""
        return self.rows_failed == 0


@dataclass(frozen=True)
class Reference:
    """The product in long double, and the bound of each row; both of shape (m,), long double."""

    want: NDArray[Any]
    bound: NDArray[Any]


def gamma(count: NDArray[Any], unit: float) -> NDArray[Any]:
    """n u / (1 - n u) for each n in `count`, in long double."""
    scaled = count.astype(np.longdouble) * np.longdouble(unit)
    return np.asarray(scaled / (1 - scaled))


def reference_product(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], x: NDArray[Any]
) -> Reference:
    """Multiply a CSR matrix in long double and bound each row's error.

    Parameters
    ----------
    data, indices, indptr : numpy.ndarray
        The CSR matrix: values (nnz,), columns (nnz,), row offsets (m + 1,).
    x : numpy.ndarray
        Shape (n,), same dtype as `data`: its u is the one in the bound.

    Returns
    -------
    Reference
        Where long double is no wider than the dtype, the bound is widened by the reference's own error.

    Notes
    -----
    In chunks of whole rows, about 45 ns an entry on one core.
    """
    rows = len(indptr) - 1
    lengths = np.diff(indptr)
    want = np.zeros(rows, dtype=np.longdouble)
    scale = np.zeros(rows, dtype=np.longdouble)
    chunk_start = 0
    while chunk_start < rows:
        limit = int(indptr[chunk_start]) + CHUNK_ENTRIES
        chunk_stop = max(chunk_start + 1, int(np.searchsorted(indptr, limit, side="right")) - 1)
        chunk_stop = min(chunk_stop, rows)
        first, last = int(indptr[chunk_start]), int(indptr[chunk_stop])
        filled = np.flatnonzero(lengths[chunk_start:chunk_stop])
        if filled.size:
            products = data[first:last].astype(np.longdouble)
            products *= x[indices[first:last]]
            starts = indptr[chunk_start:chunk_stop][filled] - first
            want[chunk_start + filled] = np.add.reduceat(products, starts)
            scale[chunk_start + filled] = np.add.reduceat(np.abs(products, out=products), starts)
        chunk_start = chunk_stop
    return Reference(want, _bound(lengths, scale, x.dtype))


def _bound(lengths: NDArray[Any], scale: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """gamma(n_i + 2) sum |a_ij x_j|, with what underflow and the reference itself may add."""
    limits = np.finfo(dtype)
    # CuPy compiles with -ftz=true, so a float32 product below the smallest normal number becomes zero.
    lost = limits.smallest_normal if limits.bits < 64 else limits.smallest_subnormal
    factor = gamma(lengths + 2, float(limits.eps) / 2)
    factor += gamma(lengths + 2, float(np.finfo(np.longdouble).eps) / 2)
    return np.asarray(factor * scale + lengths * np.longdouble(lost))


def check_rows(got: NDArray[Any], reference: Reference) -> Verification:
    """Hold each row of a product against its bound; NaN, infinity and a wrong shape fail.

    Parameters
    ----------
    got : numpy.ndarray
        The product, shape (m,). Any other shape fails every row.
    reference : Reference
        From `reference_product`.
    """
    rows = len(reference.want)
    if np.shape(got) != (rows,):
        return Verification(rows_failed=max(rows, 1), worst=float("inf"), worst_row=-1)
    if rows == 0:
        return Verification(0, 0.0, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got.astype(np.longdouble) - reference.want)
        within = error <= reference.bound
        ratio = np.where(error == 0, 0.0, error / reference.bound)
    ratio = np.where(within, ratio, np.where(ratio > 1, ratio, np.inf))
    worst_row = int(np.argmax(ratio))
    return Verification(int(rows - np.count_nonzero(within)), float(ratio[worst_row]), worst_row)
