"""Verify every row of a planned matrix's product by an error bound, then time it beside baselines.

A floating-point dot product of n entries in any order satisfies
|got - want| <= gamma(n) sum_j |a_ij x_j| with gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 3.1). The check allows gamma(n_i + 2), two more since a product may
be scaled by alpha and added to beta y, and an absolute term for products that underflow. Each part of a
complex product is a dot product of 2 n real numbers. A product in half precision is summed in float32 and
rounded once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dasp.cli.devices import Makers, TimedDevice
from dasp.cli.timing import Candidate, Timing
from dasp.runtime.arrays import to_host
from dasp.runtime.dtypes import TABLE, real_type, sum_type
from dasp.runtime.types import DTypeLike

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dasp.matrix.matrix import SpMatrix

OURS = "dasp"
"""The name of the timing of `A.matvec(x, out=y)`, which is the one that is compared."""

OURS_NEW = "dasp_new"
"""The name of the timing of `A @ x`, which is called from Python and makes a new y, as in SciPy and CuPy."""

BY_A_CALL = ("scipy", "cupy")
"""Baselines that are called from Python and make a new y; `pays_after` compares them with `OURS_NEW`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The timings of a product and of baselines for the same matrix, on one device.

    Attributes
    ----------
    verified : Verification
        The check of dasp's product; if it failed, nothing was timed.
    timings : dict of str to Timing
        By name: dasp's, then the baselines'.
    setup_ms : dict of str to float
        Milliseconds that each baseline needs once.
    missing : dict of str to str
        By name, why a baseline was not timed: it did not run, or was wrong.
    """

    verified: Verification
    timings: dict[str, Timing] = field(default_factory=dict)
    setup_ms: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def us(self, name: str) -> float:
        """Return the microseconds that are compared for a timing; NaN if it is missing."""
        return self.timings[name].us if name in self.timings else math.nan

    @property
    def baselines(self) -> list[str]:
        """The baselines that were timed."""
        return [name for name in self.timings if name not in (OURS, OURS_NEW)]

    @property
    def best_baseline(self) -> str:
        """The fastest baseline, or an empty string."""
        return min(self.baselines, key=self.us, default="")

    def pays_after(self, plan_ms: float, name: str) -> float:
        """Return the number of products after which a plan has paid, against a baseline that was timed."""
        ours = self.us(OURS_NEW if name in BY_A_CALL else OURS)
        return break_even(plan_ms, ours, self.setup_ms.get(name, 0.0), self.us(name))


def compare(
    operator: SpMatrix,
    csr: csr_array,
    device: TimedDevice,
    make: Callable[[Any], Makers],
    *,
    seed: int = 0,
    samples: int | None = None,
) -> Comparison:
    """Verify every row of a planned matrix's product, then time it beside baselines.

    Parameters
    ----------
    operator : SpMatrix
    csr : scipy.sparse.csr_array, shape (m, n)
        The same matrix.
    device : TimedDevice
    make : callable
        Takes x, shape (n,), on the device; returns the makers of the baselines.
    seed : int
        Seed of x, which is drawn from the standard normal distribution.
    samples : int, optional
        Timed samples of each candidate; by default the device chooses their number.

    Returns
    -------
    Comparison
        Has timings only if dasp's product is right in every row. A baseline that is wrong is missing.
    """
    given = random_vector(csr.shape[1], csr.dtype, seed)
    reference = reference_product(csr.data, csr.indices, csr.indptr, given)
    x, y = device.vector(given), device.vector(np.zeros(csr.shape[0], csr.dtype))
    ours = [
        Candidate(OURS, lambda: operator.matvec(x, out=y), y, cooldown_seconds=0.02),
        Candidate(OURS_NEW, lambda: operator @ x, cooldown_seconds=0.02),
    ]
    checks = [check_rows(to_host(candidate.product()), reference) for candidate in ours]
    verified = max(checks, key=lambda check: (check.rows_failed, check.worst))
    if not verified.passed:
        return Comparison(verified=verified)
    others, missing = _make_right(make(x), reference)
    timings = device.time([*ours, *others], samples)
    for other in others:
        if other.close is not None:
            with suppress(RuntimeError):
                other.close()
    return Comparison(
        verified=verified,
        timings=timings,
        setup_ms={each.name: each.setup_ms for each in others},
        missing=missing,
    )


def _make_right(makers: Makers, reference: Reference) -> tuple[list[Candidate], dict[str, str]]:
    """Make the baselines; return those whose every row is right, and the reasons why others are missing."""
    right, missing = [], {}
    for name, make in makers.items():
        try:
            candidate = make()
            check = check_rows(to_host(candidate.product()), reference)
        except (RuntimeError, ValueError, MemoryError) as error:  # CuPy's CUDA errors are RuntimeErrors
            missing[name] = str(error)
            continue
        if check.passed:
            right.append(candidate)
        else:
            missing[name] = f"wrong in {check.rows_failed} rows"
    return right, missing


# ---- planning --------------------------------------------------------------------------------------------

PLAN_TRIES = 100

PLAN_SECONDS = 0.5
"""Planning is timed twice, as the first may compile, then for this long or up to `PLAN_TRIES` times in all;
the best time counts."""


def best_ms(make: Callable[[], Any], device: TimedDevice, tries: int = PLAN_TRIES) -> tuple[Any, float]:
    """Call `make` several times; return its last result and the best time in ms."""
    best, begun, made = math.inf, 0.0, None
    for nth in range(tries):
        if nth > 1 and time.perf_counter() - begun > PLAN_SECONDS:
            break
        made = None  # free the last result first
        started = time.perf_counter()
        made = make()
        device.synchronize()
        best = min(best, time.perf_counter() - started)
        begun = begun or time.perf_counter()
    return made, 1e3 * best


def break_even(plan_ms: float, ours_us: float, setup_ms: float, theirs_us: float) -> float:
    """Return the number of products after which planning has paid, with the baseline's set-up counted.

    Examples
    --------
    >>> break_even(plan_ms=10.0, ours_us=5.0, setup_ms=2.0, theirs_us=25.0)
    400.0
    >>> break_even(1.0, 5.0, 2.0, 25.0), break_even(10.0, 5.0, 0.0, 4.0)
    (0.0, inf)
    """
    if math.isnan(plan_ms + ours_us + setup_ms + theirs_us):
        return math.nan
    if not ours_us < theirs_us:
        return math.inf
    return max(1e3 * (plan_ms - setup_ms) / (theirs_us - ours_us), 0.0)


# ---- is every row right? ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """The result of checking one product.

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
    """The product in long double and each row's error bound, complex for both parts; shape (m,)."""

    want: NDArray[Any]
    bound: NDArray[Any]


CHUNK_ENTRIES = 1 << 17
"""Entries per chunk of the reference: its long-double temporaries, 2 MiB each, stay in the cache."""


def reference_product(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], x: NDArray[Any]
) -> Reference:
    """Multiply a CSR matrix in long double and bound each row's error.

    Parameters
    ----------
    data, indices, indptr : numpy.ndarray
        The CSR matrix: values (nnz,), columns (nnz,), row offsets (m + 1,).
    x : numpy.ndarray
        Shape (n,), same dtype as `data`, a type of `dasp.runtime.dtypes.TABLE`; the bound has its u.

    Returns
    -------
    Reference
        The bound includes the reference's own error, as long double may be no wider than the dtype.

    Notes
    -----
    Works in chunks of whole rows and takes about 45 ns an entry on one core.
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
    """Return |a_ij x_j|; for complex numbers, the sizes of the real products that each part sums."""
    if values.dtype.kind != "c":
        return np.asarray(np.abs(values * there))
    (a, b), (c, d) = ((abs(numbers.real), abs(numbers.imag)) for numbers in (values, there))
    return np.asarray(a * c + b * d + 1j * (a * d + b * c))


def _bound_errors(
    lengths: NDArray[Any], scale: NDArray[Any], want: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return gamma(n_i + 2) sum |a_ij x_j|, plus the errors that underflow and the reference may add."""
    total = real_type(sum_type(dtype))
    limits, unit = np.finfo(total), TABLE[total.name].unit_roundoff
    # CuPy compiles with -ftz=true, so a float32 product below the smallest normal number becomes zero.
    lost = limits.smallest_normal if limits.bits < 64 else limits.smallest_subnormal
    count = (lengths + 2) * (2 if dtype.kind == "c" else 1)
    factor = _gamma(count, unit) + _gamma(count, float(np.finfo(np.longdouble).eps) / 2)
    absolute = np.longdouble(lost) * count * (1 + 1j if dtype.kind == "c" else 1)
    bound = np.asarray(factor * scale + absolute)
    if total.itemsize > real_type(dtype).itemsize:  # half precision, rounded at the end
        least = np.longdouble(float(ml_dtypes.finfo(dtype).smallest_subnormal))  # type: ignore[no-untyped-call]
        bound = bound + TABLE[dtype.name].unit_roundoff * (np.abs(want) + bound) + least
    return bound


def _gamma(count: NDArray[Any], unit: float) -> NDArray[Any]:
    """Return n u / (1 - n u) for each n in `count`, in long double."""
    scaled = count.astype(np.longdouble) * np.longdouble(unit)
    return np.asarray(scaled / (1 - scaled))


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
    wide = reference.want.dtype  # a complex number is compared part by part
    parts = 2 if wide.kind == "c" else 1
    given, want, bound = (
        array.astype(wide).view(np.longdouble).reshape(rows, parts)
        for array in (got, reference.want, reference.bound)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(given - want)
        within = error <= bound
        ratio = np.where(error == 0, 0.0, error / bound)
    ratio = np.where(within, ratio, np.where(ratio > 1, ratio, np.inf))
    failed = rows - np.count_nonzero(within.all(axis=1))
    return Verification(int(failed), float(ratio.max(initial=0.0)))


# ---- matrices and vectors of a type ----------------------------------------------------------------------


def as_float(csr: csr_array, dtype: DTypeLike = np.float64, seed: int = 0) -> csr_array:
    """Return the matrix in CSR, with values of `dtype` and with 32-bit indices where they suffice.

    Parameters
    ----------
    csr : scipy.sparse matrix or array
    dtype : dtype
        A type of `dasp.runtime.dtypes.TABLE`. Real values get random imaginary parts for a complex type;
        complex values keep only their real parts for a real one. For float16, values beyond 256 are scaled
        by a power of two, so that sums stay in its range.
    seed : int
        Seed of the imaginary parts.
    """
    import scipy.sparse

    matrix, kind = scipy.sparse.csr_array(csr), np.dtype(dtype)
    data = matrix.data
    if kind.kind == "c" != data.dtype.kind:
        size = np.abs(data).max(initial=0) or 1
        data = data + 1j * size * np.random.default_rng(seed).standard_normal(len(data))
    if data.dtype.kind == "c" != kind.kind:
        data = data.real
    if kind == np.float16 and np.abs(data).max(initial=0) > 256:
        data = np.ldexp(data, 8 - math.frexp(float(np.abs(data).max()))[1])
    # SciPy has no half precision, but keeps the arrays that it is given.
    matrix = scipy.sparse.csr_array(
        (data.astype(kind, copy=False), matrix.indices, matrix.indptr), shape=matrix.shape
    )
    if max(matrix.nnz, *matrix.shape) < 2**31 and matrix.indices.dtype != np.int32:
        matrix = scipy.sparse.csr_array(
            (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)), shape=matrix.shape
        )
    return matrix


def random_vector(size: int, dtype: DTypeLike, seed: int) -> np.ndarray[Any, Any]:
    """Return a vector of a type; its numbers, or their two parts, are drawn from the standard normal."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(size)
    return x.astype(dtype)
