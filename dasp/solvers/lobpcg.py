"""LOBPCG: a few extreme eigenpairs of a symmetric or Hermitian matrix.

With an orthonormal basis of the three blocks, as Hetmaniuk and Lehoucq (2006), doi:10.1016/j.jcp.2006.02.007,
and Duersch et al. (2018), doi:10.1137/17M1129830, found to be needed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dasp.solvers.arguments import check_square, make_limits, place_and_type, vectors_of
from dasp.solvers.blocks import (
    OVERFLOW,
    Breakdown,
    column_scales,
    columns,
    multiply,
    multiply_columns,
    norms,
    orthonormal,
    squared_lengths,
    squares_of,
    wide,
)
from dasp.solvers.hermitian import SKEW
from dasp.solvers.operator import as_operator
from dasp.solvers.space import Space
from dasp.solvers.spaces import refuse_ranks, space_for
from dasp.solvers.stats import Stats
from dasp.solvers.system import BREAKDOWN, scale_for

Array = Any


def lobpcg(
    A: Any,
    X: Any,
    *,
    largest: bool = True,
    rtol: float = 1e-6,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[np.ndarray[Any, Any], Any, Stats]:
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
        Done when for every pair norm(A x - lambda x) <= max(rtol * |lambda|, atol); x has norm 1.
    maxiter : int, optional
        Iterations at most, of k products each; 200 by default.
    M : matrix or linear operator, shape (n, n), optional
        Approximates the inverse of A, for the least eigenvalues.

    Returns
    -------
    values : numpy.ndarray, shape (k,)
        From the end inwards: falling if `largest`, else rising.
    X : array, shape (n, k), of the kind and place of X
        Orthonormal.
    stats : Stats
        `residual` is the largest norm of A x - lambda x; where converged is claimed, of products anew.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.

    Notes
    -----
    Memory: 11 k vectors of length n.

    References
    ----------
    Knyazev (2001), doi:10.1137/S1064827500366124.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import lobpcg
    >>> values, X, stats = lobpcg(np.diag(np.arange(1.0, 31.0)), np.random.default_rng(0).random((30, 2)))
    >>> values.round(6), stats.converged
    (array([30., 29.]), True)
    """
    began = time.perf_counter()
    check_square(A, M)
    refuse_ranks(A, "lobpcg")
    device, dtype = place_and_type(A, X, M)
    n = int(A.shape[0])
    limits = make_limits(n, rtol, atol, 200 if maxiter is None else maxiter, None, None, False)
    X = vectors_of("X", X, n)
    if not 1 <= X.shape[1] <= n // 3:
        raise ValueError(
            f"X has shape {X.shape}; A has {n} rows, so ({n}, k) is needed, with 1 <= k <= {n // 3}"
            + ("; numpy.linalg.eigh takes so small a matrix" if n < 3 else "")
        )
    space, operator = space_for(device, dtype), as_operator(A, device)
    preconditioner = None if M is None else as_operator(M, device, "M")
    solver = _Lobpcg(space, operator, preconditioner, largest)
    found = columns(space, *X.shape)
    found[...] = space.asarray(X)
    try:
        with np.errstate(all="ignore"):
            multiply_columns(found, column_scales(space, found)[0])
            found, _ = orthonormal(space, found)
            rank = int(np.count_nonzero(squared_lengths(space, found) > 0.5))
        if rank < X.shape[1]:
            raise ValueError(f"X has {X.shape[1]} columns of rank {rank}; independent ones are needed")
        values, found, stats = solver.solve(found, limits.rtol, limits.atol, limits.maxiter)
    except Breakdown as error:
        values = np.full(X.shape[1], np.nan)
        stats = Stats(False, 0, [], float("nan"), str(error), 0.0, BREAKDOWN)
    if isinstance(X, np.ndarray):
        found = space.download(found)
    return values, found, stats.timed(time.perf_counter() - began)


class _Lobpcg:
    """The iteration, on one space."""

    def __init__(self, space: Space, operator: Any, preconditioner: Any, largest: bool) -> None:
        self.space, self.operator, self.preconditioner = space, operator, preconditioner
        self.sign = -1.0 if largest else 1.0
        self.scale = 1.0
        """The power of two by which products with A are multiplied, so that norms of them can be squared."""

    def times(self, operator: Any, X: Array) -> Array:
        """Return an operator times a block."""
        inside, outside = (columns(self.space, *X.shape) for _ in range(2))
        inside[...] = X
        multiply(operator, inside, outside)
        return outside

    def times_A(self, X: Array) -> Array:
        """Return A times a block, scaled."""
        product = self.times(self.operator, X)
        if self.scale != 1.0:
            product *= self.scale
        return product

    def ritz(self, S: Array, AS: Array, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the k outermost Ritz values of an orthonormal block, and their coefficients."""
        projected = wide(self.space.download(S.conj().T @ AS))
        if not np.isfinite(projected).all():
            raise Breakdown(OVERFLOW)
        skew = abs(projected - projected.conj().T).max() if projected.dtype.kind == "c" else 0.0
        if skew > 2 * SKEW.get(self.space.dtype.name, 0.0) * abs(projected).max():
            raise Breakdown("x' A x is not Hermitian, so A is not; SciPy's eigs takes such matrices")
        values, vectors = np.linalg.eigh(self.sign * (projected + projected.conj().T) / 2)
        # A column of zeros, which stands for a lost direction, must not be taken for an eigenvector.
        used = squared_lengths(self.space, S) > 0.5
        if not used.all():
            values, vectors = _on(projected * self.sign, used)
        return self.sign * values[:k], vectors[:, :k]

    def solve(
        self, X: Array, rtol: float, atol: float, most: int
    ) -> tuple[np.ndarray[Any, Any], Array, Stats]:
        """Iterate, from orthonormal columns."""
        space, k = self.space, X.shape[1]
        residuals: list[float] = []
        with np.errstate(all="ignore"):
            AX = self.times_A(X)
            self.scale = scale_for(space.largest(AX), squares_of(space))
            AX *= self.scale
            atol *= self.scale
            values, C = self.ritz(X, AX, k)
            X, AX = X @ space.asarray(C), AX @ space.asarray(C)
            P = None
            for made in range(most + 1):
                R, norms = self._residuals(X, AX, values)
                wanted = np.maximum(rtol * abs(values), atol)
                if (norms <= wanted).all():  # of products that were combined, which may have drifted
                    AX = self.times_A(X)
                    R, norms = self._residuals(X, AX, values)
                residuals.append(float(norms.max()) / self.scale)
                if (norms <= wanted).all():
                    return values / self.scale, X, self._done(made, residuals)
                if made == most or not np.isfinite(norms).all():
                    break
                X, AX, P, values = self._advance(X, R, P, k)
        words = f"{made} iterations were made: the largest residual is {residuals[-1]:.3g}"
        failed = Stats(False, made, residuals, residuals[-1], words, 0.0, max(1, made))
        return values / self.scale, X, failed

    def _residuals(
        self, X: Array, AX: Array, values: np.ndarray[Any, Any]
    ) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return A X - X diag(values), and the norms of its columns."""
        R = AX - X * self.space.asarray(values)
        return R, norms(self.space, R)

    def _advance(
        self, X: Array, R: Array, P: Array | None, k: int
    ) -> tuple[Array, Array, Array, np.ndarray[Any, Any]]:
        """Make the best of the space of X, the residuals and the last directions."""
        space = self.space
        W = R if self.preconditioner is None else self.times(self.preconditioner, R)
        blocks = [X]
        for block in [W] if P is None else [W, P]:
            for _ in range(2):
                for before in blocks:
                    block = block - before @ (before.conj().T @ block)
                block, _C = orthonormal(space, block / space.asarray(_lengths(space, block)))
            blocks.append(block)
        S = columns(space, X.shape[0], sum(block.shape[1] for block in blocks))
        for number, block in enumerate(blocks):
            S[:, number * k : (number + 1) * k] = block
        AS = self.times_A(S)
        values, C = self.ritz(S, AS, k)
        coefficients = space.asarray(C)
        rest = np.array(C)
        rest[:k] = 0
        return S @ coefficients, AS @ coefficients, S @ space.asarray(rest), values

    @staticmethod
    def _done(made: int, residuals: list[float]) -> Stats:
        words = f"the largest residual is {residuals[-1]:.3g}, small enough, after {made} iterations"
        return Stats(True, made, residuals, residuals[-1], words, 0.0, 0)


def _lengths(space: Space, block: Array) -> np.ndarray[Any, Any]:
    """The norms of columns, 1 for zeros, so that all count alike in a Gram matrix."""
    lengths = np.sqrt(squared_lengths(space, block))
    return np.where(lengths > 0, lengths, 1.0)


def _on(
    matrix: np.ndarray[Any, Any], used: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Eigenpairs of the rows and columns that are used, with zeros for the others."""
    inner = matrix[np.ix_(used, used)]
    values, vectors = np.linalg.eigh((inner + inner.conj().T) / 2)
    whole = np.zeros((len(used), len(values)), vectors.dtype)
    whole[used] = vectors
    return values, whole
