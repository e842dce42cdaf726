"""Conjugate gradients for several right-hand sides at once, which share one Krylov space.

The residuals are kept as an orthonormal block times a small matrix, so that right-hand sides that depend on
each other do no harm. With a preconditioner M the block is orthonormal in the inner product of M.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    BROKEN,
    RANK,
    BlockSolve,
    Breakdown,
    check_hermitian,
    column_scales,
    conjugate,
    multiply_columns,
    new_block,
    project,
    pseudo_inverse,
    squared_lengths,
)
from dasp.solvers.driver import answer
from dasp.solvers.operator import DeviceOperator, Matrix, as_operator
from dasp.solvers.space import Space
from dasp.solvers.stats import Stats


@one_call(ranks=False)
def block_cg(
    A: Matrix,
    B: Array,
    X0: Array | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Matrix | None = None,
    callback: Callable[[Any], None] | None = None,
) -> tuple[Array, Stats]:
    """Solve A X = B for the k columns of B together, for A symmetric or Hermitian, and positive definite.

    Parameters
    ----------
    A : SpMatrix, matrix or linear operator, shape (n, n)
    B : array, shape (n, k)
        NumPy, or CuPy for a matrix on a GPU.
    X0 : array, shape (n, k), optional
        Where to start; zeros by default.
    rtol, atol : float
        Done when for every column norm(b - A x) <= max(rtol * norm(b), atol).
    maxiter : int, optional
        Iterations at most, of k products each; 10 n by default.
    M : matrix or linear operator, shape (n, n), optional
        Approximates the inverse of A; symmetric (Hermitian) and positive definite.
    callback : callable, optional
        Called with X after each iteration.

    Returns
    -------
    X : array, shape (n, k), of the kind and place of B
    stats : Stats
        `residual` and `residuals` are the largest norms over the columns.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or value.

    Notes
    -----
    Memory: 6 k vectors of length n, 7 k with a preconditioner. In exact arithmetic it needs at most n / k
    iterations.

    References
    ----------
    O'Leary (1980), doi:10.1016/0024-3795(80)90247-5; in the form of Dubrulle (2001), Retooling the method of
    block conjugate gradients, ETNA 12.

    Examples
    --------
    >>> import numpy as np
    >>> from dasp.solvers import block_cg
    >>> X, stats = block_cg(np.diag([1.0, 2.0, 4.0]), np.eye(3))
    >>> X.round(9).diagonal(), stats.converged, stats.iterations
    (array([1.  , 0.5 , 0.25]), True, 1)
    """
    check_square(A, M)
    device, dtype = find_device_and_type(A, B, M)
    n = int(A.shape[0])
    limits = make_limits(A, rtol, atol, maxiter, None, callback, False)
    B = check_vectors("B", B, n)
    X0 = None if X0 is None else check_vectors("X0", X0, n)
    if X0 is not None and X0.shape != B.shape:
        raise ValueError(f"X0 has shape {X0.shape}; B has shape {B.shape}, and X0 must have the same")
    if X0 is not None and X0.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"X0 has dtype {X0.dtype}; A, B and M are real, so a real dtype is needed")
    operator, preconditioner = as_operator(A, device), None if M is None else as_operator(M, device, "M")
    with np.errstate(all="ignore"):
        solve = BlockConjugateGradients(make_space(device, dtype), operator, preconditioner, B, X0)
        return answer(solve, limits, B)


class BlockConjugateGradients(BlockSolve):
    """One solve for a block B.

    Columns of B and X are multiplied by powers of two, `_scales`, so that their norms can be squared. Norms
    are those of the system as it was given.
    """

    restarts = frozenset({BROKEN})
    no_start = "A, B or X0 holds NaN or infinity, or their products overflow"

    def __init__(
        self,
        space: Space,
        operator: DeviceOperator,
        preconditioner: DeviceOperator | None,
        B: Array,
        X0: Array | None,
    ) -> None:
        super().__init__()
        self.space, self.from_zero = space, X0 is None
        self._operator, self._preconditioner = operator, preconditioner
        self._B, self._X, self._R, self._S, self._T = (new_block(space, *B.shape) for _ in range(5))
        self._Z = self._R if preconditioner is None else new_block(space, *B.shape)
        self._B[...] = space.asarray(B)
        self._X[...] = 0 if X0 is None else space.asarray(X0)
        self._scales, largest = column_scales(space, self._B)
        for block in (self._B, self._X):
            multiply_columns(block, self._scales)
        for k in np.flatnonzero(largest == 0):
            self._X[:, k] = 0
        self._sizes = self._norms_of(self._B)
        self._measure()

    def copy_x(self) -> Array:
        """Return X for the caller's system."""
        X = self._X.copy()
        multiply_columns(X, 1.0 / self._scales)
        return X

    def is_zero(self, s: Mapping[str, float]) -> bool:
        """Return True if B is zero."""
        return not self._sizes.any()

    def clear_x(self) -> None:
        """Set X to zero."""
        self._X[...] = 0

    def round_x(self) -> bool:
        """Round X to the numbers that the caller gets; return True if a column had been multiplied."""
        multiply_columns(self._X, 1.0 / self._scales)
        multiply_columns(self._X, self._scales)
        return bool((self._scales != 1.0).any())

    def hides_nan(self, s: Mapping[str, float]) -> bool:
        """Return True if X holds NaN or infinity, which no residual shows where A has no entries."""
        return not math.isfinite(self.space.largest(self._X))

    def _norms_of(self, block: Array) -> np.ndarray[Any, Any]:
        return np.asarray(np.sqrt(squared_lengths(self.space, block)) / self._scales)

    def _measure(self) -> None:
        self._operator.multiply_block(self._X, self._T)
        self._R[...] = self._B - self._T
        self._norms = self._norms_of(self._R)

    def _begin(self) -> None:
        # Columns count alike in a Gram matrix only if they are equally long; a column of zeros stays zero.
        lengths = np.sqrt(squared_lengths(self.space, self._R))
        self._R /= self.space.asarray(np.where(lengths > 0, lengths, 1.0))
        self._C = self._conjugate() * lengths
        self._S[...] = self._Z

    def _conjugate(self) -> np.ndarray[Any, Any]:
        """Make R a basis of the residuals, and Z = M R; return the coefficients."""
        if self._preconditioner is not None:
            self._preconditioner.multiply_block(self._R, self._Z)
        return conjugate(self.space, self._R, self._Z)

    def _iterate(self) -> None:
        space, R, S, T = self.space, self._R, self._S, self._T
        self._operator.multiply_block(S, T)
        curvature = project(space, S, T)
        check_hermitian(space, curvature, "gmres and bicgstab take such matrices")
        if not curvature.any():
            raise Breakdown("p' A p is zero, so A is singular, and B out of its reach; minres takes such A")
        inverse, least = pseudo_inverse(curvature)
        if least < -RANK:
            raise Breakdown("p' A p is negative, so A is not positive definite")
        space.set_product(self._X, S, inverse @ self._C, plus=self._X)
        space.set_product(R, T, -inverse, plus=R)
        zeta = self._conjugate()
        self._C = zeta @ self._C
        space.set_product(S, S, zeta.conj().T, plus=self._Z)
        if self._preconditioner is None:
            self._norms = np.linalg.norm(self._C, axis=0) / self._scales
        else:
            space.set_product(T, R, self._C)
            self._norms = self._norms_of(T)
