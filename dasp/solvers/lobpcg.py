"""LOBPCG: a few extreme eigenpairs of a symmetric or Hermitian matrix.

With an orthonormal basis of the three blocks, as Hetmaniuk and Lehoucq (2006), doi:10.1016/j.jcp.2006.02.007,
and Duersch et al. (2018), doi:10.1137/17M1129830, found to be needed.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from dasp.runtime.types import Array
from dasp.solvers.arguments import check_square, make_limits, one_rank, place_and_type, space_for, vectors_of
from dasp.solvers.blocks import (
    OVERFLOW,
    Breakdown,
    column_scales,
    multiply_columns,
    new_block,
    norms,
    orthonormalize,
    squares_of,
)
from dasp.solvers.driver import BREAKDOWN
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator
from dasp.solvers.plain import SKEW
from dasp.solvers.space import Space
from dasp.solvers.stats import Stats
from dasp.solvers.system import scale_for


@one_rank
def lobpcg(
    A: Matrix,
    X: Array,
    *,
    largest: bool = True,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Matrix | None = None,
    Y: Array | None = None,
) -> tuple[np.ndarray[Any, Any], Array, Stats]:
    """Find the k largest or least eigenvalues of a symmetric or Hermitian matrix, and their vectors.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (n, n)
        Symmetric or Hermitian.
    X : array, shape (n, k), k at most n / 3
        Where to start: k independent columns, such as random ones. NumPy, or CuPy for a matrix on a GPU.
    largest : bool
        Which end of the spectrum.
    rtol, atol : float
        Done when for every pair norm(A x - lambda x) <= max(rtol * norm(A), atol), where x has norm 1. The
        largest Ritz value so far, at most norm(A), stands for it: an eigenvalue of 0, such as that of a
        graph's Laplacian, needs no `atol`.
    maxiter : int, optional
        Iterations at most, of k products each; 200 by default.
    M : matrix or linear operator, shape (n, n), optional
        Approximates the inverse of A, for the least eigenvalues.
    Y : array, shape (n, m), optional
        Constraints: x is sought among the vectors that are orthogonal to the columns of Y, such as
        eigenvectors that are known. `A x - lambda x` counts as far as it is orthogonal to them too. k is at
        most (n - m) / 3 then. NumPy, or CuPy for a matrix on a GPU.

    Returns
    -------
    values : numpy.ndarray, shape (k,)
        From the end inwards: falling if `largest`, else rising.
    X : array, shape (n, k), of the kind and place of X
        Orthonormal.
    stats : Stats
        `residual` is the largest norm of A x - lambda x. It is computed anew before convergence is claimed.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.

    Notes
    -----
    Memory: 8 k vectors of length n, and m.

    References
    ----------
    Knyazev (2001), doi:10.1137/S1064827500366124.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import lobpcg
    >>> A, X = np.diag(np.arange(1.0, 31.0)), np.random.default_rng(0).random((30, 2))
    >>> values, X, stats = lobpcg(A, X)
    >>> values.round(6), stats.converged
    (array([30., 29.]), True)
    """
    began = time.perf_counter()
    check_square(A, M)
    device, dtype = place_and_type(A, X, M)
    n = int(A.shape[0])
    limits = make_limits(n, rtol, atol, 200 if maxiter is None else maxiter, None, None, False)
    X = vectors_of("X", X, n)
    Y = X[:, :0] if Y is None else vectors_of("Y", Y, n)
    if Y.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"Y has dtype {Y.dtype}; A, X and M are real, so a real dtype is needed")
    most = max(0, n - Y.shape[1]) // 3
    if not 1 <= X.shape[1] <= most:
        beside = f" and Y {Y.shape[1]} columns" if Y.shape[1] else ""
        raise ValueError(
            f"X has shape {X.shape}; A has {n} rows{beside}, so ({n}, k) is needed, with 1 <= k <= {most}"
            + ("; numpy.linalg.eigh takes so small a matrix" if n < 3 else "")
        )
    space, operator = space_for(device, dtype), as_operator(A, device)
    preconditioner = None if M is None else as_operator(M, device, "M")
    solver = _Lobpcg(space, operator, preconditioner, largest)
    m, k = Y.shape[1], X.shape[1]
    basis = new_block(space, n, m + 3 * k)
    found = basis[:, m : m + k]
    try:
        with np.errstate(all="ignore"):
            for block, start in ((basis[:, :m], Y), (found, X)):
                block[...] = space.asarray(start)
                multiply_columns(block, column_scales(space, block)[0])
            if m:
                orthonormalize(space, basis, 0, m)
            rank = int(orthonormalize(space, basis, m, m + k).sum())
        if rank < k:
            raise ValueError(f"X has {k} columns of rank {rank}; independent ones are needed")
        values, found, stats = solver.solve(basis, m, k, limits.rtol, limits.atol, limits.maxiter)
    except Breakdown as error:
        values = np.full(X.shape[1], np.nan)
        stats = Stats(False, 0, [], float("nan"), str(error), 0.0, BREAKDOWN)
    if isinstance(X, np.ndarray):
        found = space.download(found)
    return values, found, stats.timed(time.perf_counter() - began)


class _Lobpcg:
    """The iteration, on one space."""

    def __init__(
        self, space: Space, operator: DeviceOperator, preconditioner: DeviceOperator | None, largest: bool
    ) -> None:
        self.space, self.operator, self.preconditioner = space, operator, preconditioner
        self.sign = -1.0 if largest else 1.0
        self.norm = 0.0
        """The largest Ritz value so far, of products as they are scaled: at most the norm of A."""
        self.scale = 1.0
        """The power of two by which products with A are multiplied, so that norms of them can be squared."""

    def multiply_scaled(self, X: Array, AX: Array) -> None:
        """Set AX to A times a block, scaled."""
        self.operator.multiply_block(X, AX)
        if self.scale != 1.0:
            AX *= self.scale

    def ritz(
        self, S: Array, AS: Array, k: int, used: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the k outermost Ritz values of a block, and their coefficients.

        The columns in `used` are orthonormal; the others are zeros, which stand for lost directions and must
        not be taken for eigenvectors.
        """
        projected = self.space.gram(S, AS)
        if not np.isfinite(projected).all():
            raise Breakdown(OVERFLOW)
        skew = abs(projected - projected.conj().T).max() if projected.dtype.kind == "c" else 0.0
        if skew > 2 * SKEW.get(self.space.dtype.name, 0.0) * abs(projected).max():
            raise Breakdown("x' A x is not Hermitian, so A is not; SciPy's eigs takes such matrices")
        values, vectors = np.linalg.eigh(self.sign * (projected + projected.conj().T) / 2)
        if not used.all():
            values, vectors = _on(projected * self.sign, used)
        self.norm = max(self.norm, float(abs(values).max()))
        return self.sign * values[:k], vectors[:, :k]

    def solve(
        self, basis: Array, m: int, k: int, rtol: float, atol: float, most: int
    ) -> tuple[np.ndarray[Any, Any], Array, Stats]:
        """Iterate; a basis has m orthonormal columns of constraints, k to begin with, and room for 2 k."""
        space = self.space
        residuals: list[float] = []
        Y, S, AS = basis[:, :m], basis[:, m:], new_block(space, len(basis), 3 * k)
        X, R, P = S[:, :k], S[:, k : 2 * k], S[:, 2 * k :]
        AX, used = AS[:, :k], np.ones(3 * k, np.bool_)
        with np.errstate(all="ignore"):
            self.multiply_scaled(X, AX)
            self.scale = scale_for(space.largest(AX), squares_of(space))
            AX *= self.scale
            atol *= self.scale
            values, C = self.ritz(X, AX, k, used[:k])
            space.set_product(X, X, C)
            space.set_product(AX, AX, C)
            for made in range(most + 1):
                lengths = self._residuals(X, AX, values, R, Y)
                wanted = max(rtol * self.norm, atol)
                if (lengths <= wanted).all():  # of products that were combined, which may have drifted
                    self.multiply_scaled(X, AX)
                    lengths = self._residuals(X, AX, values, R, Y)
                residuals.append(float(lengths.max()) / self.scale)
                if (lengths <= wanted).all():
                    return values / self.scale, X.copy(), self._report(made, residuals, converged=True)
                if made == most or not np.isfinite(lengths).all():
                    break
                if self.preconditioner is not None:
                    self.preconditioner.multiply_block(R.copy(), R)
                for block in range(1, 3):
                    first, last = block * k, (block + 1) * k
                    used[first:last] = orthonormalize(space, basis, m + first, m + last)
                self.multiply_scaled(S, AS)
                values, C = self.ritz(S, AS, k, used)
                space.set_product(P, S[:, k:], C[k:])
                space.set_product(X, X, C[:k], plus=P)
                space.set_product(AX, AS, C)
        return values / self.scale, X.copy(), self._report(made, residuals, converged=False)

    def _residuals(
        self, X: Array, AX: Array, values: np.ndarray[Any, Any], R: Array, Y: Array
    ) -> np.ndarray[Any, Any]:
        """Set R to what of A X - X diag(values) is orthogonal to Y; return the norms of its columns."""
        self.space.set_product(R, X, np.diag(-values), plus=AX)
        if Y.shape[1]:
            self.space.set_product(R, Y, -self.space.gram(Y, R), plus=R)
        return norms(self.space, R)

    def _report(self, made: int, residuals: list[float], *, converged: bool) -> Stats:
        residual, size = residuals[-1], self.norm / self.scale
        words = f"the largest residual is {residual:.3g}"
        reason = (
            f"{words}, small enough, after {made} iterations"
            if converged
            else f"{made} iterations were made: {words}"
        )
        info, relative = 0 if converged else max(1, made), residual / size if size > 0 else math.nan
        return Stats(converged, made, residuals, residual, reason, 0.0, info, relative=relative)


def _on(
    matrix: np.ndarray[Any, Any], used: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Eigenpairs of the rows and columns that are used, with zeros for the others."""
    inner = matrix[np.ix_(used, used)]
    values, vectors = np.linalg.eigh((inner + inner.conj().T) / 2)
    whole = np.zeros((len(used), len(values)), vectors.dtype)
    whole[used] = vectors
    return values, whole
