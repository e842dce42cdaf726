"""Conjugate gradients for several right-hand sides at once, which share one Krylov space.

The residuals are kept as an orthonormal block times a small matrix, so that right-hand sides that depend on
each other do no harm. With a preconditioner M the block is orthonormal in the inner product of M.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.solvers.arguments import check_square, make_limits, place_and_type, vectors_of
from dasp.solvers.blocks import (
    RANK,
    Breakdown,
    column_scales,
    conjugate,
    multiply_columns,
    new_block,
    pseudo_inverse,
    squared_lengths,
)
from dasp.solvers.driver import BEYOND, BREAKDOWN, GAIN, HIDDEN, STAGNATION
from dasp.solvers.hermitian import SKEW
from dasp.solvers.operator import Operator, as_operator
from dasp.solvers.space import Space
from dasp.solvers.spaces import refuse_ranks, space_for
from dasp.solvers.stats import Stats

Array = Any


def block_cg(
    A: Any,
    B: Any,
    X0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], None] | None = None,
) -> tuple[Any, Stats]:
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
    began = time.perf_counter()
    refuse_ranks(A, "block_cg")
    check_square(A, M)
    device, dtype = place_and_type(A, B, M)
    n = int(A.shape[0])
    limits = make_limits(n, rtol, atol, maxiter, None, callback, False)
    B = vectors_of("B", B, n)
    X0 = None if X0 is None else vectors_of("X0", X0, n)
    if X0 is not None and X0.shape != B.shape:
        raise ValueError(f"X0 has shape {X0.shape}; B has shape {B.shape}, and X0 must have the same")
    space, operator = space_for(device, dtype), as_operator(A, device)
    preconditioner = None if M is None else as_operator(M, device, "M")
    right, X, T = (new_block(space, n, B.shape[1]) for _ in range(3))
    right[...] = space.asarray(B)
    if X0 is not None and X0.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"X0 has dtype {X0.dtype}; A, B and M are real, so a real dtype is needed")
    X[...] = 0 if X0 is None else space.asarray(X0)
    with np.errstate(all="ignore"):
        scales = _scale(space, right, X)
        given = scales, limits.rtol, limits.atol, limits.maxiter, callback
        stats = _solve(space, operator, preconditioner, right, X, T, *given)
        multiply_columns(X, 1.0 / scales)
    result = space.download(X) if isinstance(B, np.ndarray) else X
    return result, stats.timed(time.perf_counter() - began)


def _norms(space: Space, R: Array, scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.sqrt(squared_lengths(space, R)) / scales)


def _scale(space: Space, B: Array, X: Array) -> np.ndarray[Any, Any]:
    """Return the powers of two by which columns of B and X were multiplied, so that their norms can be
    squared; where one of B is zero, that of X is cleared."""
    scales, largest = column_scales(space, B)
    for block in (B, X):
        multiply_columns(block, scales)
    for k in np.flatnonzero(largest == 0):
        X[:, k] = 0
    return scales


def _solve(
    space: Space,
    operator: Operator,
    preconditioner: Operator | None,
    B: Array,
    X: Array,
    T: Array,
    scales: np.ndarray[Any, Any],
    rtol: float,
    atol: float,
    most: int,
    callback: Callable[[Any], None] | None,
) -> Stats:
    """Iterate; start again from X where the residuals that are carried along had drifted.

    Columns of B and X are multiplied by `scales`; norms are those of the system as it was given.
    """
    wanted = np.maximum(rtol * _norms(space, B, scales), atol)
    residuals: list[float] = []
    made, before, words = 0, math.inf, ""
    while True:
        operator.multiply_block(X, T)
        R = B - T
        norms = _norms(space, R, scales)
        largest = float(norms.max(initial=0.0))
        if not residuals:
            residuals.append(largest)
        elif not (norms <= wanted).all() and made < most and not largest <= GAIN * before:
            return _stuck(made, residuals, norms, words)
        if not np.isfinite(norms).all():
            return Stats(False, made, residuals, largest, "A or B holds NaN or infinity", 0.0, BREAKDOWN)
        if (norms <= wanted).all():
            if not _have_room(space, operator, (B, X, T), scales, wanted):
                return Stats(False, made, residuals, largest, BEYOND, 0.0, BREAKDOWN)
            if not math.isfinite(space.largest(X)):
                return Stats(False, made, residuals, largest, HIDDEN, 0.0, BREAKDOWN)
            reason = f"the largest residual is {largest:.3g}, small enough, after {made} iterations"
            return Stats(True, made, residuals, largest, reason, 0.0, 0)
        if made >= most:
            reason = f"{made} iterations were made: the largest residual is {largest:.3g}"
            return Stats(False, made, residuals, largest, reason, 0.0, made)
        before = largest
        todo = wanted, scales, most - made, residuals, callback
        try:
            words, count = _iterate(space, operator, preconditioner, R, X, T, *todo)
        except Breakdown as error:
            words, count = str(error), 1
        made += count


def _have_room(
    space: Space,
    operator: Operator,
    blocks: tuple[Array, Array, Array],
    scales: np.ndarray[Any, Any],
    wanted: np.ndarray[Any, Any],
) -> bool:
    """Whether X still solves the system when its numbers are rounded to what they are without the scales."""
    if (scales == 1.0).all():
        return True
    B, X, T = blocks
    multiply_columns(X, 1.0 / scales)
    multiply_columns(X, scales)
    operator.multiply_block(X, T)
    return bool((_norms(space, B - T, scales) <= wanted).all())


def _stuck(made: int, residuals: list[float], norms: np.ndarray[Any, Any], words: str) -> Stats:
    largest = float(norms.max())
    reason = words or f"the largest residual stays at {largest:.3g}: no more can be had; ask for less"
    return Stats(False, made, residuals, largest, reason, 0.0, BREAKDOWN if words else STAGNATION)


def _iterate(
    space: Space,
    operator: Operator,
    preconditioner: Operator | None,
    R: Array,
    X: Array,
    T: Array,
    wanted: np.ndarray[Any, Any],
    scales: np.ndarray[Any, Any],
    most: int,
    residuals: list[float],
    callback: Callable[[Any], None] | None,
) -> tuple[str, int]:
    """Iterate from the residuals R until the carried ones are small; R and T are overwritten.

    Returns
    -------
    str
        What went wrong, or nothing.
    int
        The iterations made.
    """
    S = new_block(space, *R.shape)
    Z = R if preconditioner is None else new_block(space, *R.shape)

    def conjugate_residuals() -> np.ndarray[Any, Any]:
        if preconditioner is not None:
            preconditioner.multiply_block(R, Z)
        return conjugate(space, R, Z)

    # Columns count alike in a Gram matrix only if they are of one length; a column of zeros stays one.
    lengths = np.sqrt(squared_lengths(space, R))
    R /= space.asarray(np.where(lengths > 0, lengths, 1.0))
    C = conjugate_residuals() * lengths
    skew = SKEW.get(space.dtype.name, 0.0)
    S[...] = Z
    for made in range(1, most + 1):
        operator.multiply_block(S, T)
        curvature = space.gram(S, T)
        if not np.isfinite(curvature).all():
            return "A holds NaN or infinity", made
        if (
            curvature.dtype.kind == "c"
            and abs(curvature - curvature.conj().T).max() > 2 * skew * abs(curvature).max()
        ):
            return "p' A p is not Hermitian, so A is not; gmres and bicgstab take such matrices", made
        inverse, least = pseudo_inverse(curvature)
        if least < -RANK:
            return "p' A p is negative, so A is not positive definite", made
        space.set_product(X, S, inverse @ C, plus=X)
        space.set_product(R, T, -inverse, plus=R)
        zeta = conjugate_residuals()
        C = zeta @ C
        space.set_product(S, S, zeta.conj().T, plus=Z)
        norms = np.linalg.norm(C, axis=0) / scales
        if preconditioner is not None:
            space.set_product(T, R, C)
            norms = _norms(space, T, scales)
        residuals.append(float(norms.max()))
        if callback is not None:
            seen = X.copy()
            multiply_columns(seen, 1.0 / scales)
            callback(seen)
        if (norms <= wanted).all():
            break
    return "", made
