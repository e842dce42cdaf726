"""Incomplete factors with the pattern of the matrix: ILU(0), and for symmetric matrices IC(0).

Meijerink and van der Vorst (1977), doi:10.1090/S0025-5718-1977-0438681-4; Saad, Iterative Methods for
Sparse Linear Systems, second edition, algorithm 10.4. The triangular solves go level by level: the rows of
a level need only rows of earlier ones. Sweeps of Jacobi's iteration, each a product and a pass, may
approximate them instead (Anzt, Chow, Dongarra 2015, doi:10.1007/978-3-662-48096-0_50).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, tril, triu

from dasp.preconditioners.base import (
    MOST_STEPS,
    PlannedPart,
    Preconditioner,
    cast,
    choose_device,
    computing_type,
    host_matrix,
    wide_type,
)
from dasp.runtime import check as _check
from dasp.runtime.cpu.compile import jit
from dasp.solvers.operator import Matrix
from dasp.solvers.space import Triangle

Vector = np.ndarray[Any, Any]

Factorize = Callable[[csr_array, np.dtype[Any]], "_Factors"]
"""Factorizes a SciPy matrix in CSR, given the type in which M computes."""

SKEW = 4096
"""The most by which a_ij and the conjugate of a_ji may differ, in rounding errors of the largest entry."""


@jit(nogil=True, error_model="numpy")
def _factorize(indptr, indices, data, diagonal, position):  # type: ignore[no-untyped-def]
    """Replace the entries of a matrix with sorted columns by its factors, and set `diagonal` to the places of
    the pivots. Return the first row without a usable pivot, or -1.

    `position`, one number for each column, is -1 before. The caller makes it, because Numba compiles
    allocations slowly.
    """
    for row in range(len(indptr) - 1):
        diagonal[row] = -1
        for entry in range(indptr[row], indptr[row + 1]):
            position[indices[entry]] = entry
            if indices[entry] == row:
                diagonal[row] = entry
        if diagonal[row] < 0:
            return row
        for entry in range(indptr[row], diagonal[row]):
            column = indices[entry]
            data[entry] /= data[diagonal[column]]
            for other in range(diagonal[column] + 1, indptr[column + 1]):
                place = position[indices[other]]
                if place >= 0:
                    data[place] -= data[entry] * data[other]
        for entry in range(indptr[row], indptr[row + 1]):
            position[indices[entry]] = -1
        pivot = data[diagonal[row]]
        if not (pivot != 0 and abs(pivot) < np.inf):
            return row
    return -1


@jit(nogil=True, error_model="numpy")
def _find_levels(indptr, indices, forward, level):  # type: ignore[no-untyped-def]
    """Raise the level of each row of a strict triangle, 0 before, above the levels of all rows it needs."""
    n = len(indptr) - 1
    for k in range(n):
        row = k if forward else n - 1 - k
        for entry in range(indptr[row], indptr[row + 1]):
            if level[row] <= level[indices[entry]]:
                level[row] = level[indices[entry]] + 1


def _make_triangle(strict: csr_array, inverse: Vector, forward: bool) -> Triangle:
    indptr, indices = strict.indptr.astype(np.int32), strict.indices.astype(np.int32)
    level = np.zeros(len(indptr) - 1, np.int32)
    _find_levels(indptr, indices, forward, level)
    rows = np.argsort(level, kind="stable").astype(np.int32)
    cuts = np.concatenate([[0], np.cumsum(np.bincount(level))])
    return Triangle(indptr, indices, strict.data, inverse, rows, cuts)


class _Factors(NamedTuple):
    """The strict triangles of incomplete factors, in CSR, and the inverse of the pivots."""

    lower: csr_array
    upper: csr_array
    inverse: Vector


class _Incomplete(Preconditioner):
    """A solve with two triangular factors, which `factorize` makes of a matrix on the host."""

    def __init__(
        self,
        factors: _Factors,
        factorize: Factorize,
        names: tuple[str, ...],
        dtype: np.dtype[Any],
        device: str,
    ) -> None:
        super().__init__(len(factors.inverse), dtype, device, names)
        self._factors, self._factorize = factors, factorize

    def _read(self, A: Matrix) -> _Factors:
        """Return the factors of a matrix."""
        factors = self._factorize(host_matrix(A), self.dtype)
        for old, new in zip(self._factors[:2], factors[:2], strict=True):
            if not (np.array_equal(old.indptr, new.indptr) and np.array_equal(old.indices, new.indices)):
                raise ValueError("A has another pattern than the matrix of M; make another M of A")
        return factors


class Incomplete(_Incomplete):
    """Two exact triangular solves, level by level."""

    def __init__(self, factors: _Factors, factorize: Factorize, dtype: np.dtype[Any], device: str) -> None:
        super().__init__(factors, factorize, ("y",), dtype, device)
        self._check(factors)
        lower, upper, inverse = factors
        ones = np.ones_like(inverse)
        self._lower = self.space.triangular(_make_triangle(lower, ones, True))
        self._upper = self.space.triangular(_make_triangle(upper, inverse, False))

    def _check(self, factors: _Factors) -> None:
        for numbers in (factors.lower.data, factors.upper.data):
            cast(numbers, self.dtype)
        cast(factors.inverse, self.dtype, diagonal=True)

    def _load(self, numbers: _Factors) -> bool:
        """Take factors of the same pattern."""
        self._check(numbers)
        self._factors = numbers
        self._lower.load(numbers.lower.data, np.ones_like(numbers.inverse))
        self._upper.load(numbers.upper.data, numbers.inverse)
        return True

    def _in_type(self, dtype: np.dtype[Any]) -> Incomplete:
        """Return the same preconditioner, computing in a type."""
        return Incomplete(self._factors, self._factorize, dtype, self.device)

    def apply(self) -> None:
        """Solve with the lower, then with the upper factor."""
        self._lower(self.vectors["b"], self.vectors["y"])
        self._upper(self.vectors["y"], self.vectors["x"])


class Swept(_Incomplete):
    """Two triangular solves by Jacobi sweeps: for L = I + N, start from x = b and repeat x = b - N x.

    For incomplete Cholesky factors M stays symmetric and positive definite: equally many sweeps with the
    upper factor are the transpose of those with the lower one.
    """

    def __init__(
        self, factors: _Factors, factorize: Factorize, sweeps: int, dtype: np.dtype[Any], device: str
    ) -> None:
        super().__init__(factors, factorize, ("d", "y", "q"), dtype, device)
        self._sweeps = sweeps
        self._load_diagonal(factors.inverse)
        self._lower, self._upper = (PlannedPart(one, dtype, device) for one in factors[:2])
        fuse = self.vectors.fuse
        self._first, self._forward = fuse("y = b"), fuse("y = b - q")
        self._divide, self._backward = fuse("x = d*y"), fuse("q = y - q", "x = d*q")

    def _load(self, numbers: _Factors) -> bool:
        """Take factors of the same pattern."""
        self._load_diagonal(numbers.inverse)
        self._factors = numbers
        same = self._lower.load(numbers.lower), self._upper.load(numbers.upper)
        return all(same)

    def _in_type(self, dtype: np.dtype[Any]) -> Swept:
        """Return the same preconditioner, computing in a type."""
        return Swept(self._factors, self._factorize, self._sweeps, dtype, self.device)

    def apply(self) -> None:
        """Sweep with the lower, then with the upper factor."""
        self._first()
        for _ in range(self._sweeps):
            self.space.apply(self._lower.operator, self.vectors["y"], self.vectors["q"])
            self._forward()
        self._divide()
        for _ in range(self._sweeps):
            self.space.apply(self._upper.operator, self.vectors["x"], self.vectors["q"])
            self._backward()


def ilu0(A: Matrix, *, sweeps: int | None = None, device: str | None = None) -> Preconditioner:
    """Return the incomplete LU factors of A with the pattern of A: ILU(0).

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        With entries on the whole diagonal; it is factorized on the host. Values that are written into A later
        reach the factors by `update`.
    sweeps : int, optional
        Approximate each triangular solve by this many sweeps of Jacobi's iteration, 3 for example, over all
        rows at once. By default the solves are exact, level by level.
    device : {"cpu", "cuda", "cuda:N"}, optional
        Where it works; by default where A is.

    Returns
    -------
    Preconditioner
        On a GPU each level of rows is a launch, so exact solves pay where levels are few and wide; a sweep
        is two launches.

    Raises
    ------
    TypeError, ValueError
        If `sweeps` is no positive int, a row has no diagonal entry, or a pivot is zero, not finite or so
        small that its inverse is not.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from dasp.preconditioners import ilu0
    >>> A = sp.csr_array(np.array([[4.0, 1.0], [1.0, 3.0]]))
    >>> (A @ (ilu0(A) @ np.ones(2))).round(12)
    array([1., 1.])
    """
    return _make(A, _factorize_lu, sweeps, device)


def ic0(A: Matrix, *, sweeps: int | None = None, device: str | None = None) -> Preconditioner:
    """Return the incomplete Cholesky factors of A with the pattern of A: IC(0).

    A is symmetric or Hermitian, and positive definite. Parameters, results and errors are those of `ilu0`;
    the preconditioner can be used in `cg`.

    Raises
    ------
    ValueError
        If A is not symmetric or Hermitian, up to rounding in its type, or a pivot is not positive, which may
        happen for a definite A but never for an M-matrix.

    Examples
    --------
    >>> import dasp, numpy as np
    >>> csr = dasp.models.generate("poisson2d:30")
    >>> A, M = dasp.SpMatrix(csr, device="cpu"), dasp.preconditioners.ic0(csr)
    >>> plain, quick = (dasp.solvers.cg(A, np.ones(900), M=each)[1] for each in (None, M))
    >>> quick.converged, quick.iterations < plain.iterations
    (True, True)
    """
    return _make(A, _factorize_cholesky, sweeps, device)


def _make(A: Matrix, factorize: Factorize, sweeps: int | None, device: str | None) -> Preconditioner:
    """Return the preconditioner of incomplete factors; the arguments are those of `ilu0`."""
    if sweeps is not None:
        _check.count("sweeps", sweeps, ", or None for exact solves", MOST_STEPS)
    matrix = host_matrix(A)
    dtype = computing_type(matrix.dtype)
    factors, where = factorize(matrix, dtype), choose_device(A, device)
    if sweeps is not None:
        return Swept(factors, factorize, int(sweeps), dtype, where)._remember_source(A)
    return Incomplete(factors, factorize, dtype, where)._remember_source(A)


def _factorize_lu(matrix: csr_array, dtype: np.dtype[Any]) -> _Factors:
    """Return the incomplete LU factors of a matrix; the inverse pivots must be finite in the type."""
    factors, pivots, failed = _factorize_in_place(matrix)
    if failed >= 0:
        raise ValueError(
            f"row {failed} has no usable pivot; A needs another order of rows, or jacobi is needed"
        )
    return _split(factors, pivots, dtype)


def _factorize_cholesky(matrix: csr_array, dtype: np.dtype[Any]) -> _Factors:
    """Return the incomplete Cholesky factors of a matrix, as LU factors with positive pivots."""
    difference = abs(matrix - matrix.conj().T)
    rounding = SKEW * np.finfo(computing_type(matrix.dtype)).eps
    if difference.nnz and difference.max() > rounding * abs(matrix).max():
        kind = "Hermitian" if matrix.dtype.kind == "c" else "symmetric"
        raise ValueError(f"A is not {kind}; ilu0 takes such matrices")
    factors, pivots, failed = _factorize_in_place(matrix)
    pivots = pivots.real  # real, but for rounding
    if failed < 0:
        failed = int(next(iter(np.flatnonzero(~(pivots > 0))), -1))
    if failed >= 0:
        raise ValueError(f"the pivot of row {failed} is not positive; jacobi or chebyshev is needed")
    return _split(factors, pivots, dtype)


def _factorize_in_place(matrix: csr_array) -> tuple[csr_array, Vector, int]:
    """Return both factors in one matrix, the pivots, and the first row without a usable one, or -1."""
    factors, rows = matrix.astype(wide_type(matrix.dtype)), matrix.shape[0]
    diagonal, position = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    failed = int(_factorize(factors.indptr, factors.indices, factors.data, diagonal, position))
    return factors, factors.data[diagonal] if failed < 0 else np.zeros(0), failed


def _split(factors: csr_array, pivots: Vector, dtype: np.dtype[Any]) -> _Factors:
    """Return the strict triangles of factors, and the inverse pivots."""
    with np.errstate(all="ignore"):
        inverse = 1.0 / pivots
        bad = np.flatnonzero(~np.isfinite(inverse.astype(dtype)))
    if len(bad):
        raise ValueError(f"the pivot of row {bad[0]} is too small to divide by; scale A")
    return _Factors(tril(factors, -1, format="csr"), triu(factors, 1, format="csr"), inverse)
