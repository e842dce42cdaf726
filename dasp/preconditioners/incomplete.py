"""Incomplete factors with the pattern of the matrix: ILU(0), and for symmetric matrices IC(0).

Meijerink and van der Vorst (1977), doi:10.1090/S0025-5718-1977-0438681-4; Saad, Iterative Methods for
Sparse Linear Systems, second edition, algorithm 10.4. The triangular solves go level by level: the rows of
a level need only rows of earlier ones. Or they are approximated by some sweeps of Jacobi's iteration, each a
product and a pass (Anzt, Chow, Dongarra 2015, doi:10.1007/978-3-662-48096-0_50).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import (
    MOST_STEPS,
    Preconditioner,
    cast,
    cast_matrix,
    computing_type,
    host_matrix,
    place,
    wide_type,
)
from dasp.runtime import check as _check
from dasp.runtime.cpu.compile import jit
from dasp.solvers.operator import Matrix, as_operator
from dasp.solvers.space import Triangle

Vector = np.ndarray[Any, Any]


@jit(nogil=True, error_model="numpy")
def _factorize(indptr, indices, data, diagonal):  # type: ignore[no-untyped-def]
    """Replace the entries of a matrix, sorted by rows, by its factors; return the first row without a
    pivot."""
    n = len(indptr) - 1
    position = np.full(n, -1, np.int64)
    for row in range(n):
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
def _levels(indptr, indices, forward):  # type: ignore[no-untyped-def]
    """Return the level of each row of a strict triangle: one more than the highest of those it needs."""
    n = len(indptr) - 1
    level = np.zeros(n, np.int32)
    for k in range(n):
        row = k if forward else n - 1 - k
        for entry in range(indptr[row], indptr[row + 1]):
            level[row] = max(level[row], level[indices[entry]] + 1)
    return level


def _triangle(strict: Any, inverse: Vector, forward: bool) -> Triangle:
    indptr, indices = strict.indptr.astype(np.int32), strict.indices.astype(np.int32)
    level = _levels(indptr, indices, forward)
    rows = np.argsort(level, kind="stable").astype(np.int32)
    cuts = np.concatenate([[0], np.cumsum(np.bincount(level))])
    return Triangle(indptr, indices, strict.data, inverse, rows, cuts)


class Incomplete(Preconditioner):
    """Two triangular solves."""

    def __init__(self, lower: Triangle, upper: Triangle, dtype: np.dtype[Any], device: str) -> None:
        def again(other: np.dtype[Any]) -> Incomplete:
            return Incomplete(lower, upper, other, device)

        super().__init__(len(lower.inverse), dtype, device, ("y",), again)
        for one in (lower, upper):
            cast(one.inverse, self.dtype, diagonal=True)
            cast(one.data, self.dtype)
        self._solves: list[Callable[[Any, Any], None]] = [
            self.space.triangular(one) for one in (lower, upper)
        ]

    def apply(self) -> None:
        """Solve with the lower, then with the upper factor."""
        self._solves[0](self.vectors["b"], self.vectors["y"])
        self._solves[1](self.vectors["y"], self.vectors["x"])


class Swept(Preconditioner):
    """Two triangular solves by Jacobi sweeps: with L = I + N, x = b and then x = b - N x, again and again.

    For incomplete Cholesky factors M stays symmetric and positive definite: as many sweeps with the upper
    factor are the transpose of those with the lower one.
    """

    def __init__(
        self, lower: Any, upper: Any, inverse: Vector, sweeps: int, dtype: np.dtype[Any], device: str
    ) -> None:
        def again(other: np.dtype[Any]) -> Swept:
            return Swept(lower, upper, inverse, sweeps, other, device)

        super().__init__(len(inverse), dtype, device, ("d", "y", "q"), again)
        self.vectors["d"][...] = self.space.asarray(cast(inverse, self.dtype, diagonal=True))
        self._sweeps = sweeps
        self._lower, self._upper = (
            as_operator(SpMatrix.from_scipy(cast_matrix(one, dtype), device=device), device)
            for one in (lower, upper)
        )
        fuse = self.vectors.fuse
        self._first, self._forward = fuse("y = b"), fuse("y = b - q")
        self._divide, self._backward = fuse("x = d*y"), fuse("q = y - q", "x = d*q")

    def apply(self) -> None:
        """Sweep with the lower, then with the upper factor."""
        self._first()
        for _ in range(self._sweeps):
            self.space.apply(self._lower, self.vectors["y"], self.vectors["q"])
            self._forward()
        self._divide()
        for _ in range(self._sweeps):
            self.space.apply(self._upper, self.vectors["x"], self.vectors["q"])
            self._backward()


def ilu0(A: Matrix, *, sweeps: int | None = None, device: str | None = None) -> Preconditioner:
    """Return the incomplete LU factors of A with the pattern of A: ILU(0).

    Parameters
    ----------
    A : SpMatrix, SciPy or CuPy matrix, shape (n, n)
        With entries on the whole diagonal. Factorized on the host. Values that are written into A later do
        not reach the factors: make them anew.
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
    _check_sweeps(sweeps)
    matrix = host_matrix(A)
    factors, dtype = matrix.astype(wide_type(matrix)), computing_type(matrix)
    diagonal = np.zeros(matrix.shape[0], np.int64)
    failed = _factorize(factors.indptr, factors.indices, factors.data, diagonal)
    if failed >= 0:
        raise ValueError(
            f"row {failed} has no usable pivot; A needs another order of rows, or jacobi is needed"
        )
    return _from_factors(factors, factors.data[diagonal], sweeps, dtype, place(A, device))


def ic0(A: Matrix, *, sweeps: int | None = None, device: str | None = None) -> Preconditioner:
    """Return the incomplete Cholesky factors of A with the pattern of A: IC(0).

    A is symmetric or Hermitian, and positive definite. Parameters, results and errors are those of `ilu0`; it
    can be used in `cg`.

    Raises
    ------
    ValueError
        If A is not symmetric or Hermitian, or a pivot is not positive (which a definite A may have; an
        M-matrix has none).

    Examples
    --------
    >>> import dasp, numpy as np
    >>> csr = dasp.models.generate("poisson2d:30")
    >>> A, M = dasp.SpMatrix(csr, device="cpu"), dasp.preconditioners.ic0(csr)
    >>> plain, quick = (dasp.solvers.cg(A, np.ones(900), M=each)[1] for each in (None, M))
    >>> quick.converged, quick.iterations < plain.iterations
    (True, True)
    """
    _check_sweeps(sweeps)
    matrix = host_matrix(A)
    difference = abs(matrix - matrix.conj().T)
    if difference.nnz and difference.max() > 1e-12 * abs(matrix).max():
        kind = "Hermitian" if matrix.dtype.kind == "c" else "symmetric"
        raise ValueError(f"A is not {kind}; ilu0 takes such matrices")
    factors, dtype = matrix.astype(wide_type(matrix)), computing_type(matrix)
    diagonal = np.zeros(matrix.shape[0], np.int64)
    failed = _factorize(factors.indptr, factors.indices, factors.data, diagonal)
    if failed < 0:
        pivots = factors.data[diagonal].real  # as they are by theory
        failed = next(iter(np.flatnonzero(~(pivots > 0))), -1)
    if failed >= 0:
        raise ValueError(f"the pivot of row {failed} is not positive; jacobi or chebyshev is needed")
    return _from_factors(factors, pivots, sweeps, dtype, place(A, device))


def _check_sweeps(sweeps: Any) -> None:
    if sweeps is not None:
        _check.count("sweeps", sweeps, ", or None for exact solves", MOST_STEPS)


def _from_factors(
    factors: Any, pivots: Vector, sweeps: int | None, dtype: np.dtype[Any], device: str
) -> Preconditioner:
    from scipy.sparse import tril, triu

    lower, upper = tril(factors, -1, format="csr"), triu(factors, 1, format="csr")
    with np.errstate(all="ignore"):
        inverse = 1.0 / pivots
        bad = np.flatnonzero(~np.isfinite(inverse.astype(dtype)))
    if len(bad):
        raise ValueError(f"the pivot of row {bad[0]} is too small to divide by; scale A")
    if sweeps is not None:
        return Swept(lower, upper, inverse, int(sweeps), dtype, device)
    return Incomplete(
        _triangle(lower, np.ones(len(pivots)), True), _triangle(upper, inverse, False), dtype, device
    )
