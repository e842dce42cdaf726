"""Systems for tests of solvers, what holds of an answer, and what a pass over vectors leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dasp.solvers import bicgstab, cg, gmres, minres

SQUARE: list[Callable[..., Any]] = [cg, bicgstab, minres, gmres]
STORAGE = {cg: (5, 6), bicgstab: (7, 9), minres: (8, 10), gmres: (35, 36)}
"""Vectors of length n that a method takes, without a preconditioner and with one."""


def poisson(side: int) -> sp.csr_array:
    line = sp.diags_array([[-1.0] * (side - 1), [2.0] * side, [-1.0] * (side - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line))


TYPES = [np.complex64, np.complex128]


def hermitian(side: int, shift: float = 0.0) -> sp.csr_array:
    """A Laplacian in a magnetic field (Peierls phases), definite for a shift of at least 0."""
    line = sp.diags_array(np.exp(0.3j * np.arange(1, side)) * -1.0, offsets=1, shape=(side, side))
    step = sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line)
    return sp.csr_array(step + step.conj().T + (4.0 + shift) * sp.eye_array(side**2))


def helmholtz(side: int) -> sp.csr_array:
    """A damped Helmholtz operator: symmetric, not Hermitian."""
    return sp.csr_array(poisson(side) - (0.3 - 0.4j) * sp.eye_array(side**2))


def numbers(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) + 1j * rng.standard_normal(n)


def tolerance(dtype: Any) -> float:
    return 1e-10 if np.dtype(dtype) == np.complex128 else 1e-4


KINDS = (
    "definite",
    "indefinite",
    "singular",
    "general",
    "skew",
    "nilpotent",
    "nan",
    "diagonal",
    "huge",
    "tiny",
)


def system(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((n, n)) * (rng.random((n, n)) < 0.6)
    b = rng.standard_normal(n)
    eigenvalues = rng.uniform(0.1, 10, n) * rng.choice([-1, 1], n)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    matrices = {
        "definite": lambda: B @ B.T + rng.uniform(1e-6, 1) * np.eye(n),
        "indefinite": lambda: Q @ np.diag(eigenvalues) @ Q.T,
        "singular": lambda: Q @ np.diag(eigenvalues * (np.arange(n) > n // 3)) @ Q.T,
        "general": lambda: B + n * np.eye(n) * rng.choice([0, 1]),
        "skew": lambda: B - B.T,
        "nilpotent": lambda: np.triu(B, 1),
        "nan": lambda: np.where(rng.random((n, n)) < 1 / n, np.nan, B @ B.T + np.eye(n)),
        "diagonal": lambda: np.diag(eigenvalues),
        "huge": lambda: 1e150 * (B @ B.T + np.eye(n)),
        "tiny": lambda: 1e-150 * (B @ B.T + np.eye(n)),
    }
    A = matrices[kind]()
    if kind in ("indefinite", "singular"):
        A = (A + A.T) / 2
    scales = {"huge": rng.choice([1.0, 1e200]), "tiny": rng.choice([1.0, 1e-250])}
    return A, b * scales.get(kind, 1.0)


MOST_DENSE = 2000
"""Rows up to which a solution is compared with a dense one: the singular values of 8,000 take minutes."""


def check(A: Any, x: Any, b: Any, stats: Any, rtol: float, atol: float = 0.0) -> None:
    """What is called converged is; what is not has words and an integer other than 0."""
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


def hold_to_the_truth(
    A: np.ndarray, b: np.ndarray, x0: Any, M: Any, rtol: float, right: str, judge: Callable[..., None] = check
) -> None:
    """Every method ends in time, claims nothing wrong or hopeless, and leaves A and b as they were."""
    kept = A.copy(), b.copy()
    for method in SQUARE:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(A, b, x0, rtol=rtol, M=M, maxiter=60)
        assert stats.iterations <= 60
        with np.errstate(all="ignore"):
            judge(np.nan_to_num(A) if right == "zero" else A, x, b, stats, rtol)
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
    """How far rounding may move a computed norm of b - A x, as norms of rows (Higham, section 3.1)."""
    size = abs(np.asarray(A.todense() if sp.issparse(A) else A)).astype(np.longdouble)
    u = np.finfo(np.result_type(x, b)).eps
    each = 2 * (2 if np.iscomplexobj(x) else 1)  # terms that a product of two numbers adds to a sum, twice
    return float(each * (A.shape[1] + 4) * u * np.linalg.norm(size @ abs(x) + abs(b)))


def long(array: np.ndarray) -> np.ndarray:
    """In long double, real or complex."""
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
    """What a pass leaves in vectors, in double precision."""
    found = dict(vectors)
    for update in updates:
        out, right = update.split(" = ")
        for factor in factors:
            right = right.replace(f"{factor} ", f"{factor} * ")
        found[out] = np.zeros(len(vectors[out])) + eval(right, {}, {**found, **factors})
    return found
