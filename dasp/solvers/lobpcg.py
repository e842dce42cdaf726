"""LOBPCG: a few extreme eigenpairs of a symmetric or Hermitian matrix.

The basis of the three blocks is orthonormal, which Hetmaniuk and Lehoucq (2006),
doi:10.1016/j.jcp.2006.02.007, and Duersch et al. (2018), doi:10.1137/17M1129830, found to be needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dasp.runtime.types import Array
from dasp.solvers.arguments import (
    check_square,
    check_vectors,
    find_device_and_type,
    make_limits,
    make_space,
    one_call,
)
from dasp.solvers.blocks import (
    BlockSolve,
    Breakdown,
    check_hermitian,
    column_scales,
    gram,
    multiply_columns,
    new_block,
    norms,
    orthonormalize,
    project,
    squares_of,
)
from dasp.solvers.driver import answer
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator
from dasp.solvers.scalars import CLAIMED
from dasp.solvers.space import Space
from dasp.solvers.stats import Stats
from dasp.solvers.system import scale_for


@one_call(ranks=False)
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
        largest Ritz value so far, at most norm(A), stands for norm(A): an eigenvalue of 0, such as that of
        a graph's Laplacian, needs no `atol`.
    maxiter : int, optional
        Iterations at most, of 3 k products each, or fewer where some pairs have converged; 200 by default.
    M : matrix or linear operator, shape (n, n), optional
        Approximates the inverse of A, for the least eigenvalues.
    Y : array, shape (n, m), optional
        Constraints: x is sought among the vectors that are orthogonal to the columns of Y, such as
        eigenvectors that are known. Of `A x - lambda x` only the part orthogonal to them counts. k is then at
        most (n - m) / 3. NumPy, or CuPy for a matrix on a GPU.

    Returns
    -------
    values : numpy.ndarray, shape (k,)
        From the end of the spectrum inwards: falling if `largest`, else rising.
    X : array, shape (n, k), of the kind and place of X
        Orthonormal.
    stats : Stats
        `residual` is the largest norm of A x - lambda x, computed from X at the end.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.

    Notes
    -----
    Memory: 8 k + m vectors of length n.

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
    check_square(A, M)
    device, dtype = find_device_and_type(A, X, M)
    n = int(A.shape[0])
    limits = make_limits(A, rtol, atol, 200 if maxiter is None else maxiter, None, None, False)
    if not isinstance(largest, (bool, np.bool_)):
        raise TypeError(f"largest is {largest!r}; True or False is needed")
    X = check_vectors("X", X, n)
    Y = X[:, :0] if Y is None else check_vectors("Y", Y, n)
    if Y.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"Y has dtype {Y.dtype}; A, X and M are real, so a real dtype is needed")
    most = max(0, n - Y.shape[1]) // 3
    if not 1 <= X.shape[1] <= most:
        beside = f" and Y {Y.shape[1]} columns" if Y.shape[1] else ""
        raise ValueError(
            f"X has shape {X.shape}; A has {n} rows{beside}, so ({n}, k) is needed, with 1 <= k <= {most}"
            + ("; numpy.linalg.eigh takes so small a matrix" if n < 3 else "")
        )
    operator, preconditioner = as_operator(A, device), None if M is None else as_operator(M, device, "M")
    with np.errstate(all="ignore"):
        solve = Lobpcg(make_space(device, dtype), operator, preconditioner, X, Y, largest=largest)
        vectors, stats = answer(solve, limits, X)
    return solve.values, vectors, stats


class Lobpcg(BlockSolve):
    """One search. Norms are those for A times the power of two `factor`, so that they can be squared."""

    from_zero = False

    def __init__(
        self,
        space: Space,
        operator: DeviceOperator,
        preconditioner: DeviceOperator | None,
        X: Array,
        Y: Array,
        *,
        largest: bool,
    ) -> None:
        super().__init__()
        self.space, self._operator, self._preconditioner = space, operator, preconditioner
        self._sign = -1.0 if largest else 1.0
        (n, k), self._m = X.shape, Y.shape[1]
        self._k, self._basis, self._AS = k, new_block(space, n, self._m + 3 * k), new_block(space, n, 3 * k)
        self._Y, self._S = self._basis[:, : self._m], self._basis[:, self._m :]
        self._X, self._P, self._R = (self._S[:, first : first + k] for first in (0, k, 2 * k))
        self._AX = self._AS[:, :k]
        self._ritz_values = self._norms = np.full(k, np.nan)
        self._sizes = np.zeros(k)
        for block, start in ((self._Y, Y), (self._X, X)):
            block[...] = space.asarray(start)
            multiply_columns(block, column_scales(space, block)[0])
        try:
            self._set_up()
        except Breakdown as error:
            self.no_start = str(error)

    @property
    def values(self) -> np.ndarray[Any, Any]:
        """The Ritz values of the caller's A, from the end of the spectrum inwards."""
        return self._ritz_values / self.factor

    def copy_x(self) -> Array:
        """Return a copy of X."""
        return self._X.copy()

    def is_zero(self, s: Mapping[str, float]) -> bool:
        """Return False: there is no right-hand side."""
        return False

    def may_improve(self, code: int, *, gained: bool, first: bool) -> bool:
        """Return True if the updated A X had drifted: the search goes on with A X computed from X."""
        return code == CLAIMED

    def _set_up(self) -> None:
        """Make Y and X orthonormal, find the scale of A, and turn X into Ritz vectors.

        Raises
        ------
        ValueError
            If columns of X depend on each other, or on Y.
        Breakdown
            If a number is not finite.
        """
        space, X, AX, m, k = self.space, self._X, self._AX, self._m, self._k
        if m:
            orthonormalize(space, self._basis, 0, m)
        rank = int(orthonormalize(space, self._basis, m, m + k).sum())
        if rank < k:
            raise ValueError(f"X has {k} columns of rank {rank}; independent ones are needed")
        self._multiply(X, AX)
        self.factor = scale_for(space.largest(AX), squares_of(space))
        AX *= self.factor
        C = self._find_ritz_vectors(X, AX, np.ones(k, np.bool_))
        space.set_product(X, X, C)
        space.set_product(AX, AX, C)
        self._find_residuals()

    def _multiply(self, X: Array, AX: Array) -> None:
        self._operator.multiply_block(X, AX)
        if self.factor != 1.0:
            AX *= self.factor

    def _measure(self) -> None:
        self._multiply(self._X, self._AX)
        self._find_residuals()

    def _iterate(self) -> None:
        """Improve X over the span of X, and of M R and P for the columns of X whose residuals are too large.

        The other columns stay in the span, so they go on improving. Knyazev et al. (2007),
        doi:10.1137/060661624, call it soft locking.
        """
        space, m, k = self.space, self._m, self._k
        large = np.flatnonzero(self._are_large(self._margin))
        middle, end = k + len(large), k + 2 * len(large)
        if end < 3 * k:
            for block, first in ((self._P, k), (self._R, middle)):
                for to, column in enumerate(large, first):
                    self._S[:, to] = block[:, column]
        S, AS = self._S[:, :end], self._AS[:, :end]
        if self._preconditioner is not None:
            self._preconditioner.multiply_block(S[:, middle:].copy(), S[:, middle:])
        # X too: its error grows from one iteration to the next once residuals are near rounding.
        used = [orthonormalize(space, self._basis, m + first, m + last) for first, last in ((0, k), (k, end))]
        self._multiply(S, AS)
        C = self._find_ritz_vectors(S, AS, np.concatenate(used))
        C_without_X = np.vstack([np.zeros_like(C[:k]), C[k:]])
        space.set_product(self._S[:, : 2 * k], S, np.hstack([C, C_without_X]))
        space.set_product(self._AX, AS, C)
        self._find_residuals()

    def _find_residuals(self) -> None:
        """Set R to the part of A X - X diag(values) that is orthogonal to Y, and measure its columns."""
        self.space.set_product(self._R, self._X, np.diag(-self._ritz_values), plus=self._AX)
        if self._m:
            self.space.set_product(self._R, self._Y, -gram(self.space, self._Y, self._R), plus=self._R)
        self._norms = norms(self.space, self._R)

    def _find_ritz_vectors(self, S: Array, AS: Array, used: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Find the k outermost Ritz values of a block; return the coefficients of their vectors.

        The columns in `used` are orthonormal. The others are zeros in place of dependent directions, and must
        not be taken for eigenvectors.
        """
        projected = project(self.space, S, AS)
        if self._sizes.any():  # the first X may be null vectors, whose products are rounding
            check_hermitian(self.space, projected, "SciPy's eigs takes such matrices")
        inner = self._sign * projected[np.ix_(used, used)]
        values, vectors = np.linalg.eigh((inner + inner.conj().T) / 2)
        # The largest Ritz value so far is at most the norm of A.
        self._sizes = np.maximum(self._sizes, abs(values).max())
        self._ritz_values = self._sign * values[: self._k]
        C = np.zeros((len(used), self._k), vectors.dtype)
        C[used] = vectors[:, : self._k]
        return C
