"""Systems for tests of solvers, checks of an answer, and the results of passes over vectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dasp.solvers import bicgstab, cg, gmres, minres

SQUARE: list[Callable[..., Any]] = [cg, bicgstab, minres, gmres]
STORAGE = {cg: (5, 6), bicgstab: (7, 9), minres: (8, 10), gmres: (35, 36)}
"""Vectors of length n that a method stores, without a preconditioner and with one."""


def poisson(side: int) -> sp.csr_array:
    line = sp.diags_array([[-1.0] * (side - 1), [2.0] * side, [-1.0] * (side - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line))


TYPES = [np.complex64, np.complex128]
ALL_TYPES = [np.float32, np.float64, *TYPES]


def hermitian(side: int, shift: float = 0.0) -> sp.csr_array:
    """Return a Laplacian in a magnetic field (Peierls phases), definite for a shift of at least 0."""
    line = sp.diags_array(np.exp(0.3j * np.arange(1, side)) * -1.0, offsets=1, shape=(side, side))
    step = sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line)
    return sp.csr_array(step + step.conj().T + (4.0 + shift) * sp.eye_array(side**2))


def helmholtz(side: int) -> sp.csr_array:
    """Return a damped Helmholtz operator: symmetric, not Hermitian."""
    return sp.csr_array(poisson(side) - (0.3 - 0.4j) * sp.eye_array(side**2))


def model(kind: str, side: int, dtype: Any) -> sp.csr_array:
    """Return a matrix of a grid, real or complex: definite, indefinite, or not symmetric (Hermitian)."""
    if np.dtype(dtype).kind == "c":
        A = helmholtz(side) if kind == "general" else hermitian(side, -1.1 if kind == "indefinite" else 0.0)
        return A.astype(dtype)
    more = {
        "definite": sp.csr_array((side**2, side**2)),
        "indefinite": -1.1 * sp.eye_array(side**2),
        "general": sp.diags_array([-0.5, 0.5], offsets=[-1, 1], shape=(side**2, side**2)),
    }
    return sp.csr_array(poisson(side) + more[kind]).astype(dtype)


def numbers(n: int, seed: int = 0, dtype: Any = complex) -> np.ndarray:
    rng = np.random.default_rng(seed)
    real = rng.standard_normal(n)
    return (real + 1j * rng.standard_normal(n) if np.dtype(dtype).kind == "c" else real).astype(dtype)


def tolerance(dtype: Any) -> float:
    return 1e-10 if np.finfo(dtype).eps < 1e-10 else 1e-4


KINDS = (
    "definite",
    "indefinite",
    "singular",
    "general",
    "skew",
    "normal",
    "nilpotent",
    "nan",
    "diagonal",
    "huge",
    "tiny",
    "real",
)


def system(kind: str, n: int, seed: int, dtype: Any = float) -> tuple[np.ndarray, np.ndarray]:
    """Return a small dense matrix of a kind and a right-hand side; of kind "real" it is real in any type."""
    rng = np.random.default_rng(seed)
    B, basis = (numbers(n * n, seed + k, dtype).reshape(n, n) for k in range(2))
    B *= rng.random((n, n)) < 0.6
    Q, eigenvalues = np.linalg.qr(basis)[0], rng.uniform(0.1, 10, n) * rng.choice([-1, 1], n)
    definite = B @ B.conj().T + rng.uniform(1e-6, 1) * np.eye(n)
    A = {
        "definite": lambda: definite,
        "indefinite": lambda: (Q * eigenvalues) @ Q.conj().T,
        "singular": lambda: (Q * (eigenvalues * (np.arange(n) > n // 3))) @ Q.conj().T,
        "general": lambda: B + n * np.eye(n) * rng.choice([0, 1]),
        "skew": lambda: B - B.conj().T,
        "normal": lambda: Q,
        "nilpotent": lambda: np.triu(B, 1),
        "nan": lambda: np.where(rng.random((n, n)) < 1 / n, np.nan, definite),
        "diagonal": lambda: np.diag(eigenvalues).astype(dtype),
        "huge": lambda: 1e150 * definite,
        "tiny": lambda: 1e-150 * definite,
        "real": lambda: definite.real + definite.real.T,
    }[kind]()
    if kind in ("definite", "indefinite", "singular"):
        A = (A + A.conj().T) / 2
    scales = {"huge": rng.choice([1.0, 1e200]), "tiny": rng.choice([1.0, 1e-250])}
    return A, numbers(n, seed + 2, dtype) * scales.get(kind, 1.0)


MOST_DENSE = 2000
"""Most rows for which a solution is compared with a dense one: singular values of 8,000 take minutes."""


def check(A: Any, x: Any, b: Any, stats: Any, rtol: float, atol: float = 0.0) -> None:
    """Hold a converged answer to its residual and error, and any other to a reason and a nonzero `info`."""
    assert x.shape == b.shape
    assert stats.reason
    assert stats.converged == (stats.info == 0)
    if stats.converged:
        assert np.isfinite(x).all()
        wanted = max(rtol * float(np.linalg.norm(long(b))), atol)
        assert true_residual(A, x, b) <= wanted * (1 + 1e-6) + residual_bound(A, x, b)
        if not 0 < A.shape[0] <= MOST_DENSE:
            return
        dense = np.asarray(A.todense() if sp.issparse(A) else A)
        dense = dense.astype(np.result_type(dense, np.float64))
        if np.linalg.cond(dense) < 1e8:
            error = np.linalg.norm(x - np.linalg.solve(dense, b))
            least = np.linalg.svd(dense, compute_uv=False)[-1]
            assert error <= 1.01 * (wanted + residual_bound(A, x, b)) / least + 1e-12 * np.linalg.norm(
                x
            ) * np.linalg.cond(dense)
    else:
        assert stats.info != 0


def hold_to_the_truth(A: np.ndarray, b: np.ndarray, x0: Any, M: Any, rtol: float, right: str) -> None:
    """Hold that every method ends in time, claims nothing false, and leaves A and b as they were."""
    kept, size = (A.copy(), b.copy()), abs(b).max() if np.isfinite(b).all() and b.any() else 1.0
    for method in SQUARE:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(A, b, x0, rtol=rtol, M=M, maxiter=60)
        assert stats.iterations <= 60
        with np.errstate(all="ignore"):
            check(np.nan_to_num(A) if right == "zero" else A, x / size, b / size, stats, rtol)
        if right == "zero":
            assert stats.converged
            assert not x.any()
        elif right == "nan" or np.isnan(A).any(axis=1).all():
            assert not stats.converged
    np.testing.assert_array_equal(A, kept[0])
    np.testing.assert_array_equal(b, kept[1])


def true_residual(A: Any, x: np.ndarray, b: np.ndarray) -> float:
    dense = long(np.asarray(A.todense() if sp.issparse(A) else A))
    r = long(b) - dense @ long(x)
    scale = abs(r).max(initial=0) or np.longdouble(1)
    return float(scale * np.sqrt(np.sum(abs(r / scale) ** 2)))


def residual_bound(A: Any, x: np.ndarray, b: np.ndarray) -> float:
    """Return how far rounding may move a computed norm of b - A x, by rows (Higham, section 3.1)."""
    size = abs(np.asarray(A.todense() if sp.issparse(A) else A)).astype(np.longdouble)
    u = np.finfo(np.result_type(x, b)).eps
    each = 2 * (2 if np.iscomplexobj(x) else 1)  # terms that a product of two numbers adds to a sum, twice
    return float(each * (A.shape[1] + 4) * u * np.linalg.norm(size @ abs(x) + abs(b)))


def long(array: np.ndarray) -> np.ndarray:
    """Return an array in long double, real or complex."""
    return array.astype(np.clongdouble if np.iscomplexobj(array) else np.longdouble)


PASSES = [
    ("x = 0",),
    ("x = y",),
    ("x = - y",),
    ("x = a x",),
    ("x = x + a y",),
    ("x = a y - b z",),
    ("x = a y + x - b z",),
    ("x = y*z",),
    ("x = - b y*z + a x",),
    ("x = y + z + a w + b y*w",),
    ("x = x + a y", "y = z + b y", "w = x"),
]


def updated(
    vectors: dict[str, np.ndarray], updates: Iterable[str], **factors: complex
) -> dict[str, np.ndarray]:
    """Return the vectors that a pass leaves, in double precision."""
    found = dict(vectors)
    for update in updates:
        out, right = update.split(" = ")
        for factor in factors:
            right = right.replace(f"{factor} ", f"{factor} * ")
        found[out] = np.zeros(len(vectors[out])) + eval(right, {}, {**found, **factors})
    return found
