"""Is every row of a product right? A bound for each row, no tolerance.

A floating-point dot product of n entries in any order satisfies
|got - want| <= gamma(n) sum_j |a_ij x_j| with gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 3.1). The check allows gamma(n_i + 2), the two more for a product
that is scaled by alpha and added to beta y, and an absolute term for products that underflow. Each part of
a complex product is a dot product of 2 n real numbers; one in half precision is summed in float32, and
rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dasp.runtime.dtypes import TABLE, real_type, sum_type

CHUNK_ENTRIES = 1 << 17
"""Entries per chunk of the reference: its long-double temporaries, 2 MiB each, stay in the cache."""


@dataclass(frozen=True)
class Verification:
    """The result of the check of one product.

    Attributes
    ----------
    rows_failed : int
        Rows whose error is above the bound, or is not a number.
    worst : float
        The largest error / bound; at most 1 when every row is right, infinity when a row is not a number.
    """

    rows_failed: int
    worst: float

    @property
    def passed(self) -> bool:
        """True if every row is within its bound."""
        return self.rows_failed == 0


@dataclass(frozen=True)
class Reference:
    """The product in long double and the bound of each row, complex for both parts; shape (m,)."""

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
        Shape (n,), same dtype as `data`, a type of `dasp.runtime.dtypes.TABLE`: its u is in the bound.

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
    wide = np.clongdouble if x.dtype.kind == "c" else np.longdouble
    want, scale = np.zeros(rows, wide), np.zeros(rows, wide)
    chunk_start = 0
    while chunk_start < rows:
        limit = int(indptr[chunk_start]) + CHUNK_ENTRIES
        chunk_stop = max(chunk_start + 1, int(np.searchsorted(indptr, limit, side="right")) - 1)
        chunk_stop = min(chunk_stop, rows)
        first, last = int(indptr[chunk_start]), int(indptr[chunk_stop])
        filled = np.flatnonzero(lengths[chunk_start:chunk_stop])
        if filled.size:
            starts = indptr[chunk_start:chunk_stop][filled] - first
            values, there = data[first:last].astype(wide), x[indices[first:last]].astype(wide)
            want[chunk_start + filled] = np.add.reduceat(values * there, starts)
            scale[chunk_start + filled] = np.add.reduceat(_measure_sizes(values, there), starts)
        chunk_start = chunk_stop
    return Reference(want, _bound_errors(lengths, scale, want, x.dtype))


def _measure_sizes(values: NDArray[Any], there: NDArray[Any]) -> NDArray[Any]:
    """|a_ij x_j|; of complex numbers, for each part the products of real numbers that make it up."""
    if values.dtype.kind != "c":
        return np.asarray(np.abs(values * there))
    (a, b), (c, d) = ((abs(numbers.real), abs(numbers.imag)) for numbers in (values, there))
    return np.asarray(a * c + b * d + 1j * (a * d + b * c))


def _bound_errors(
    lengths: NDArray[Any], scale: NDArray[Any], want: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """gamma(n_i + 2) sum |a_ij x_j|, with what underflow and the reference itself may add."""
    total = real_type(sum_type(dtype))
    limits, unit = np.finfo(total), TABLE[total.name].unit_roundoff
    # CuPy compiles with -ftz=true, so a float32 product below the smallest normal number becomes zero.
    lost = limits.smallest_normal if limits.bits < 64 else limits.smallest_subnormal
    count = (lengths + 2) * (2 if dtype.kind == "c" else 1)
    factor = gamma(count, unit) + gamma(count, float(np.finfo(np.longdouble).eps) / 2)
    absolute = np.longdouble(lost) * count * (1 + 1j if dtype.kind == "c" else 1)
    bound = np.asarray(factor * scale + absolute)
    if total.itemsize > real_type(dtype).itemsize:  # a half, rounded at the end
        least = np.longdouble(float(ml_dtypes.finfo(dtype).smallest_subnormal))  # type: ignore[no-untyped-call]
        bound = bound + TABLE[dtype.name].unit_roundoff * (np.abs(want) + bound) + least
    return bound


def check_rows(got: NDArray[Any], reference: Reference) -> Verification:
    """Compare each row of a product with its bound; NaN, infinity and a wrong shape fail.

    Parameters
    ----------
    got : numpy.ndarray
        The product, shape (m,). Any other shape fails every row.
    reference : Reference
        From `reference_product`.
    """
    rows = len(reference.want)
    if np.shape(got) != (rows,):
        return Verification(rows_failed=max(rows, 1), worst=float("inf"))
    if rows == 0:
        return Verification(0, 0.0)
    if reference.want.dtype.kind == "c":
        wide = got.astype(np.clongdouble)
        parts = [(getattr(wide, part), *_take_part(reference, part)) for part in ("real", "imag")]
        found = [_compare(*part) for part in parts]
        within = found[0][0] & found[1][0]
        ratio = np.maximum(found[0][1], found[1][1])
    else:
        within, ratio = _compare(got.astype(np.longdouble), reference.want, reference.bound)
    ratio = np.where(within, ratio, np.where(ratio > 1, ratio, np.inf))
    return Verification(int(rows - np.count_nonzero(within)), float(ratio.max()))


def _take_part(reference: Reference, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    return getattr(reference.want, part), getattr(reference.bound, part)


def _compare(got: NDArray[Any], want: NDArray[Any], bound: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a mask of the numbers within their bounds, and error over bound."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - want)
        return error <= bound, np.where(error == 0, 0.0, error / bound)
