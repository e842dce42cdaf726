"""Attack the methods for several vectors, least squares and eigenpairs with systems of any scale; seeded.

    python -m tests.attack.methods --seconds 600 --seed 7

It runs on a GPU if one works, else on the CPU. Columns differ in length by hundreds of orders of magnitude,
depend on each other or are zero; matrices are badly scaled, of low rank, or near the ends of their type. A
method that says that it converged is held to its claim for every column, in long double; its arguments must
not change.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dasp import SpMatrix, preconditioners, solvers
from tests.attack._cases import DEVICE, Counts, Draws, attack_by_command, attack_with, xp

DTYPES = "float64", "float64", "float32", "complex128", "complex64"
SINGLE = "float32", "complex64"
PRECONDITIONERS = (
    preconditioners.jacobi,
    preconditioners.chebyshev,
    preconditioners.ic0,
    partial(preconditioners.block_jacobi, block=3),
)
SHAPES = (1, 1), (5, 3), (3, 5), (60, 20), (20, 60), (200, 80), (80, 200), (100, 100)


class Problem:
    """A source of random numbers and matrices of a type, and the tolerance of a solve."""

    def __init__(self, rng: Draws) -> None:
        self.rng, self.draw = rng, np.random.default_rng(rng.getrandbits(32))
        self.kind = np.dtype(rng.choice(DTYPES))
        self.single = self.kind.name in SINGLE
        self.rtol = rng.choice((1e-2, 1e-4) if self.single else (1e-3, 1e-6, 1e-10))

    def numbers(self, *shape: int) -> Any:
        parts = self.draw.standard_normal(shape)
        if self.kind.kind == "c":
            parts = parts + 1j * self.draw.standard_normal(shape)
        return parts.astype(self.kind)

    def sparse(self, m: int, n: int) -> Any:
        matrix = sp.random_array(
            (m, n), density=self.rng.choice((0.02, 0.1, 0.4)), random_state=self.draw
        ).tocsr()
        matrix = matrix.astype(self.kind)
        matrix.data = self.numbers(matrix.nnz)
        return matrix

    def far(self, powers: tuple[int, ...], single: tuple[int, ...]) -> Any:
        """Return 1, or sometimes a power of two far from it."""
        return self.kind.type(2.0 ** (self.rng.choice(single if self.single else powers)))

    def definite(self, n: int) -> Any:
        """Return a matrix whose diagonal outweighs the rest of each row, perhaps badly scaled."""
        lower = sp.csr_array(sp.tril(self.sparse(n, n), -1))
        others = abs(lower + lower.conj().T).sum(axis=1)
        diagonal = np.asarray(others).ravel() * self.rng.choice((1.001, 1.5)) + self.rng.choice((0.01, 1))
        scale = np.ones(n)
        if self.rng.random() < 0.4:
            scale = 10.0 ** self.draw.uniform(-3, 3, n)
        size = self.far((0, 0, 0, -900, -400, 400, 900), (0, 0, 0, -60, 60))
        scaled = sp.diags_array(scale) @ lower @ sp.diags_array(scale)
        lower = sp.csr_array(scaled.astype(self.kind) * size)
        middle = sp.diags_array((diagonal * scale**2).astype(self.kind) * size)
        return sp.csr_array(lower + lower.conj().T + middle).astype(self.kind)

    def rounding(self, matrix: Any, x: Any) -> Any:
        """Return how much rounding may add to a residual of x."""
        return 100 * np.finfo(self.kind).eps * length(abs(matrix) @ abs(x))


def wide(array: Any) -> Any:
    """Return numbers in long double, on the host."""
    array = array.get() if hasattr(array, "get") else np.asarray(array)
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def length(vector: Any) -> Any:
    largest = abs(vector).max(initial=0)
    return largest and largest * np.sqrt((abs(vector / largest) ** 2).sum())


def systems(rng: Draws, counts: Counts) -> None:
    """Solve for several right-hand sides at once, or for one by Chebyshev's iteration."""
    problem, n = Problem(rng), rng.choice((1, 2, 5, 30, 120, 300))
    matrix = problem.definite(n)
    A, M = SpMatrix(matrix, device=DEVICE), None
    if rng.random() < 0.4:
        try:
            M = rng.choice(PRECONDITIONERS)(A)
        except ValueError:
            counts["preconditioners refused"] += 1
    B = problem.numbers(n, rng.choice((1, 1, 2, 3, 5, 8, 17)))
    orders = rng.choice((0, 3, 30 if problem.single else 300))
    B = (B * 10.0 ** problem.draw.uniform(-orders, orders, B.shape[1])).astype(problem.kind)
    if B.shape[1] > 2 and rng.random() < 0.5:
        B[:, 0], B[:, 2] = 3 * B[:, 1], 0
    given = xp.asarray(np.asfortranarray(B) if rng.random() < 0.2 else B)
    if rng.random() < 0.2:
        given = given[:, 0].copy()
        try:
            X, stats = solvers.chebyshev(A, given, rtol=problem.rtol, maxiter=3000, M=M)
        except ValueError as error:
            if "not positive definite" not in str(error):
                raise
            return
        X, B = X[:, None], B[:, :1]
    else:
        X0 = xp.asarray(problem.numbers(*B.shape)) if rng.random() < 0.3 else None
        callback = (lambda x: x.fill(np.nan)) if rng.random() < 0.3 else None
        X, stats = solvers.block_cg(A, given, X0, rtol=problem.rtol, M=M, maxiter=2000, callback=callback)
    np.testing.assert_array_equal(wide(given).reshape(B.shape), wide(B))
    assert (type(X), X.shape, X.dtype) == (type(given), B.shape, problem.kind)
    counts["systems that converged" if stats.converged else "systems that did not"] += 1
    if not stats.converged:
        return
    least = np.finfo(problem.kind).tiny
    dense = wide(matrix.toarray())
    for x, b in zip(wide(X).T, wide(B).T, strict=True):
        residual = length(b - dense @ x)
        bound = 1.02 * problem.rtol * length(b) + problem.rounding(dense, x) + least
        assert residual <= bound, f"residual {residual:.3g} of {bound:.3g}: {stats}"


def least_squares(rng: Draws, counts: Counts) -> None:
    """Solve systems of any shape and rank, solvable or not, by least squares."""
    problem = Problem(rng)
    m, n = rng.choice(SHAPES)
    matrix = problem.sparse(m, n) * problem.far((0, 0, -600, -300, 300, 500), (0, 0, -40, 40))
    if n > 2 and rng.random() < 0.3:
        dense = matrix.toarray()
        dense[:, 0] = dense[:, 1]
        matrix = sp.csr_array(dense)
    matrix, A = sp.csr_array(matrix), SpMatrix(matrix, device=DEVICE)
    b = problem.numbers(m)
    if rng.random() < 0.4:
        b = (matrix @ problem.numbers(n)).astype(problem.kind)
    x0 = xp.asarray(problem.numbers(n)) if rng.random() < 0.3 else None
    method = rng.choice((solvers.lsqr, solvers.lsmr))
    x, stats = method(A, xp.asarray(b), x0, rtol=problem.rtol)
    counts["least squares that converged" if stats.converged else "least squares that did not"] += 1
    if not stats.converged or not b.any():
        return
    dense, x, b = wide(matrix.toarray()), wide(x), wide(b)
    residual, rounding, norm = b - dense @ x, problem.rounding(dense, x), length(dense.ravel())
    gradient = length(dense.conj().T @ residual)
    estimate = norm * np.sqrt(2.0 * stats.iterations + 1)  # which grows with iterations
    error = rounding + 100 * np.finfo(problem.kind).eps * length(residual)
    solved = length(residual) <= 1.02 * problem.rtol * length(b) + rounding
    least = gradient <= 1.02 * problem.rtol * estimate * length(residual) + norm * error
    assert solved or least, f"neither solved nor least: {stats}"


def eigenpairs(rng: Draws, counts: Counts) -> None:
    """Find the outermost eigenvalues of matrices that are definite or have few distinct eigenvalues."""
    problem, n = Problem(rng), rng.choice((3, 10, 60, 200))
    k, largest = rng.choice([k for k in (1, 2, 4, 8) if 3 * k <= n]), rng.random() < 0.5
    matrix = problem.definite(n)
    if rng.random() < 0.3:
        several = problem.draw.standard_normal(n)[problem.draw.integers(0, max(1, n // 4), n)]
        matrix = sp.csr_array(sp.diags_array(several.astype(problem.kind)))
    X = xp.asarray(problem.numbers(n, k))
    values, X, stats = solvers.lobpcg(SpMatrix(matrix, device=DEVICE), X, largest=largest, rtol=problem.rtol)
    counts["eigenpairs that converged" if stats.converged else "eigenpairs that did not"] += 1
    if not stats.converged:
        return
    X, dense = wide(X), wide(matrix.toarray())
    skew = abs(X.conj().T @ X - np.eye(k)).max()
    assert skew <= 1e4 * np.finfo(problem.kind).eps, f"not orthonormal by {skew:.3g}"
    steps = np.diff(values) * (-1 if largest else 1)
    assert (steps >= -1e-3 * abs(values[1:])).all(), f"in no order: {values}"
    lost = np.finfo(problem.kind).eps ** 2 * abs(dense).max()
    norm = abs(dense).sum(axis=1).max()  # at least that of the spectrum, which is estimated from below
    for value, x in zip(values, X.T, strict=True):
        residual = length(dense @ x - x * np.longdouble(value))
        bound = 1.02 * problem.rtol * norm + problem.rounding(dense, x) + lost
        assert residual <= bound, f"residual {residual:.3g} of {bound:.3g}: {stats}"


CASES = ((systems, 2.0), (least_squares, 1.0), (eigenpairs, 1.0))

if __name__ == "__main__":
    warnings.simplefilter("error")
    sys.exit(attack_by_command("methods", __doc__, attack_with(CASES)))
