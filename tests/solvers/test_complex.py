"""Complex systems: every method against dense solutions, and none wrongly converged."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.runtime.cpu import threads as _threads
from dasp.solvers import (
    Workspace,
    bicgstab,
    block_cg,
    cg,
    chebyshev,
    gmres,
    lobpcg,
    lsmr,
    lsqr,
    minres,
)
from tests.support.systems import (
    SQUARE,
    STORAGE,
    TYPES,
    check,
    helmholtz,
    hermitian,
    hold_to_the_truth,
    numbers,
    poisson,
    tolerance,
)

pytestmark = pytest.mark.slow

FOR_HERMITIAN = (cg, minres, chebyshev)


# ---- against dense solutions ------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "planned"), list(zip(TYPES, (False, True), strict=True)))
@pytest.mark.parametrize(
    ("method", "matrix"),
    [
        (cg, "definite"),
        (minres, "definite"),
        (minres, "indefinite"),
        (chebyshev, "definite"),
        (bicgstab, "definite"),
        (bicgstab, "helmholtz"),
        (gmres, "definite"),
        (gmres, "helmholtz"),
    ],
)
def test_every_method_solves_to_its_tolerance(method, matrix, planned, dtype):
    A = {"definite": hermitian(12), "indefinite": hermitian(12, -1.1), "helmholtz": helmholtz(12)}[matrix]
    A, b, rtol = A.astype(dtype), numbers(144).astype(dtype), tolerance(dtype)
    x, stats = method(dasp.SpMatrix.from_scipy(A, device="cpu") if planned else A, b, rtol=rtol)
    assert stats.converged, stats.reason
    assert x.dtype == dtype
    assert len(stats.residuals) == stats.iterations + 1
    assert stats.residual <= rtol * np.linalg.norm(b)
    check(A, x, b, stats, rtol)
    again, more = method(A, b, x, rtol=2 * rtol)
    assert more.iterations <= 1
    check(A, again, b, more, 2 * rtol)


@pytest.mark.parametrize(
    ("method", "A"), [(cg, hermitian(14)), (bicgstab, helmholtz(14)), (gmres, helmholtz(14))]
)
def test_as_many_iterations_as_scipys(method, A):
    b, counted = numbers(196), [0]
    more = {"restart": 30, "callback_type": "pr_norm", "maxiter": 100} if method is gmres else {}
    getattr(sla, method.__name__)(
        A, b, rtol=1e-9, callback=lambda _: counted.__setitem__(0, counted[0] + 1), **more
    )
    _, stats = method(A, b, rtol=1e-9)
    assert stats.converged
    assert abs(stats.iterations - counted[0]) <= 0.15 * counted[0] + 1


@pytest.mark.parametrize("method", [lsqr, lsmr])
@pytest.mark.parametrize("shape", [(40, 15), (15, 40), (30, 30)])
def test_least_squares_agree_with_numpys(method, shape):
    rng = np.random.default_rng(3)
    A = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    b = numbers(shape[0], 1)
    want = np.linalg.lstsq(A, b)[0]
    operators = [
        A,
        sp.csr_array(A),
        sp.csr_matrix(A),  # whose H is deprecated
        dasp.SpMatrix.from_scipy(sp.csr_array(A), device="cpu"),
        sla.aslinearoperator(A),
        sla.LinearOperator(shape, lambda x: A @ x, lambda x: A.conj().T @ x, dtype=complex),
    ]
    for operator in operators:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(operator, b, rtol=1e-12, maxiter=1000)
        assert stats.converged, stats.reason
        np.testing.assert_allclose(x, want, atol=1e-7 * np.linalg.norm(want))
        gradient = np.linalg.norm(A.conj().T @ (b - A @ x))
        assert gradient <= 1e-9 * np.linalg.norm(A) * np.linalg.norm(b)
    again, more = method(A, b, x, rtol=1e-10)
    assert more.iterations <= 3
    np.testing.assert_allclose(again, x, atol=1e-7 * np.linalg.norm(want))


def test_several_right_hand_sides():
    A, B = hermitian(10), np.column_stack([numbers(100, seed) for seed in range(3)])
    X, stats = block_cg(dasp.SpMatrix.from_scipy(A, device="cpu"), B, rtol=1e-10)
    assert stats.converged, stats.reason
    assert stats.iterations < cg(A, B[:, 0], rtol=1e-10)[1].iterations
    for x, b in zip(X.T, B.T, strict=True):
        check(A, np.ascontiguousarray(x), b, stats, 1e-10)
    M = sp.diags_array(np.linspace(0.2, 0.3, 100))
    X, stats = block_cg(A, B, rtol=1e-10, M=M)
    assert stats.converged
    assert np.linalg.norm(B - A @ X) <= 3e-10 * np.linalg.norm(B)
    dependent = np.column_stack([B, 1j * B[:, 0]])
    X, stats = block_cg(A, dependent, rtol=1e-10)
    assert stats.converged
    np.testing.assert_allclose(X[:, 3], 1j * X[:, 0], atol=1e-8)
    _, stats = block_cg(helmholtz(10), B, rtol=1e-10)
    assert (stats.converged, "not Hermitian" in stats.reason) == (False, True)
    with pytest.raises(TypeError, match="X0 has dtype complex128"):
        block_cg(A.real, B.real, B)


@pytest.mark.parametrize("largest", [False, True])
def test_lobpcg_finds_eigenpairs_of_hermitian_matrices(largest):
    A = hermitian(10) + sp.diags_array(np.linspace(0, 1, 100))
    X = np.column_stack([numbers(100, seed) for seed in range(3)])
    values, vectors, stats = lobpcg(A, X, largest=largest, rtol=1e-9, maxiter=500)
    assert stats.converged, stats.reason
    assert values.dtype == np.float64
    every = np.linalg.eigvalsh(A.toarray())
    np.testing.assert_allclose(values, every[::-1][:3] if largest else every[:3], rtol=1e-9)
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=1e-7)
    _, _, stats = lobpcg(helmholtz(10), X)
    assert (stats.converged, "not Hermitian" in stats.reason) == (False, True)


# ---- types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SQUARE)
def test_types_of_results(method):
    """x has the type of numbers of A, b and M together; single precision where A and b both are."""
    A, b, M = poisson(5), np.ones(25), sp.eye_array(25, format="csr")
    for of_a, of_b, of_m, want in (
        ("f8", "c16", "f8", "c16"),
        ("c16", "f8", "f8", "c16"),
        ("f4", "c8", "f4", "c8"),
        ("c8", "f4", "f8", "c8"),
        ("c8", "f8", "f8", "c16"),
        ("f4", "c16", "f4", "c16"),
        ("f8", "f8", "c16", "c16"),
        ("f4", "f4", "c16", "c8"),
    ):
        x, stats = method(A.astype(of_a), b.astype(of_b), M=M.astype(of_m), rtol=1e-4)
        assert stats.converged
        assert x.dtype == np.dtype(want)
        np.testing.assert_allclose(A @ x, b, atol=1e-2)


@pytest.mark.parametrize("method", [*SQUARE, chebyshev, lsqr, lsmr])
@pytest.mark.parametrize("planned", [True, False])
def test_a_real_matrix_and_a_complex_b(method, planned):
    """Solves both parts at once, though its path is not that of either."""
    A, b = poisson(8), numbers(64)
    operator = dasp.SpMatrix.from_scipy(A, device="cpu") if planned else A
    x, stats = method(operator, b, rtol=1e-10)
    assert stats.converged, stats.reason
    assert x.dtype == np.complex128
    check(A, x, b, stats, 1e-10)
    np.testing.assert_allclose(x, sla.spsolve(A.tocsc().astype(complex), b), atol=1e-6)
    listed, _ = method(A, b.tolist(), rtol=1e-10)
    np.testing.assert_allclose(listed, x, atol=1e-6)
    start = numbers(64, 5)
    further, more = method(operator, b, start, rtol=1e-10)
    assert more.converged
    check(A, further, b, more, 1e-10)
    with pytest.raises(TypeError, match="x0 has dtype complex128; A, b and M are real"):
        method(operator, b.real, start)


@pytest.mark.parametrize("method", [cg, minres])
def test_a_matrix_that_is_not_hermitian_is_told(method):
    for A in (helmholtz(8), hermitian(8) * 1j, hermitian(8) * np.exp(0.1j)):
        for dtype in TYPES:
            _, stats = method(A.astype(dtype), numbers(64).astype(dtype), rtol=1e-6)
            assert not stats.converged
            assert "not Hermitian" in stats.reason
            assert stats.info < 0


@pytest.mark.parametrize("method", [cg, minres])
@pytest.mark.parametrize("dtype", TYPES)
def test_rounding_is_not_taken_for_an_imaginary_part(method, dtype):
    """Hermitian matrices of bad condition, and an x along their least eigenvector: words, if any, are
    others."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((40, 40)) + 1j * rng.standard_normal((40, 40)))[0]
        A = (Q * np.logspace(0, 10 if dtype == np.complex128 else 4, 40)) @ Q.conj().T
        A = ((A + A.conj().T) / 2).astype(dtype)
        for b in (numbers(40, seed), Q[:, 0] + 1e-4 * Q[:, 1]):
            _, stats = method(A, b.astype(dtype), rtol=1e-12, maxiter=400)
            assert "Hermitian" not in stats.reason


def test_an_operator_that_lies_about_its_type_is_told():
    A: Any = sla.LinearOperator((3, 3), matvec=lambda x: 1j * x, dtype=float)
    with pytest.raises(TypeError, match="A @ x has dtype complex128 for a real x"):
        gmres(A, np.ones(3))


# ---- systems of every kind --------------------------------------------------------------------------

KINDS = (
    "definite",
    "indefinite",
    "singular",
    "general",
    "normal",
    "nilpotent",
    "nan",
    "huge",
    "tiny",
    "real",
)


def system(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    B = (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))) * (rng.random((n, n)) < 0.6)
    Q = np.linalg.qr(rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n)))[0]
    eigenvalues = rng.uniform(0.1, 10, n) * rng.choice([-1, 1], n)
    definite = B @ B.conj().T + rng.uniform(1e-6, 1) * np.eye(n)
    rest = (np.arange(n) > n // 3).astype(float)
    matrices = {
        "definite": lambda: definite,
        "indefinite": lambda: (Q * eigenvalues) @ Q.conj().T,
        "singular": lambda: (Q * (eigenvalues * rest)) @ Q.conj().T,
        "general": lambda: B + n * np.eye(n) * rng.choice([0, 1]),
        "normal": lambda: (Q * np.exp(2j * np.pi * rng.random(n))) @ Q.conj().T,
        "nilpotent": lambda: np.triu(B, 1),
        "nan": lambda: np.where(rng.random((n, n)) < 1 / n, np.nan, definite),
        "huge": lambda: 1e150 * definite,
        "tiny": lambda: 1e-150 * definite,
        "real": lambda: definite.real + definite.real.T,
    }
    A = matrices[kind]()
    if kind in ("definite", "indefinite", "singular"):
        A = (A + A.conj().T) / 2
    scales = {"huge": rng.choice([1.0, 1e200]), "tiny": rng.choice([1.0, 1e-250])}
    return A, numbers(n, seed) * scales.get(kind, 1.0)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-5, 1e-10, 1e-15, 0.0]),
    right=st.sampled_from(["random", "zero", "reachable", "unit", "nan", "real"]),
    start=st.booleans(),
    preconditioner=st.sampled_from(["none", "real", "complex"]),
)
def test_none_wrongly_converged_none_endless(kind, n, seed, rtol, right, start, preconditioner):
    A, b = system(kind, n, seed)
    rights = {"zero": np.zeros(n, complex), "unit": 1j * np.eye(n)[0], "real": b.real}
    b = rights.get(right, b)
    if right == "reachable":
        with np.errstate(all="ignore"):
            b = A @ b
    elif right == "nan":
        b[seed % n] = complex(0, np.nan)
    x0 = numbers(n, seed + 1) if start and A.dtype.kind + b.dtype.kind != "ff" else None
    with np.errstate(all="ignore"):
        d = 1 / np.where(np.diag(A).real > 0, np.diag(A).real, 1.0)
    M = {"none": None, "real": np.diag(d), "complex": np.diag(d * np.exp(0.1j))}[preconditioner]
    hold_to_the_truth(A, b, x0, M, rtol, right, check_any)


def check_any(A: np.ndarray, x: np.ndarray, b: np.ndarray, stats: Any, rtol: float) -> None:
    """`check`, of numbers whose squares are none too."""
    scale = abs(b).max() if np.isfinite(b).all() and b.any() else 1.0
    check(A, x / scale, b / scale, stats, rtol)


@settings(max_examples=80, deadline=None)
@given(
    rank=st.sampled_from(["full", "low", "zero", "nan"]),
    m=st.integers(1, 12),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-8, 1e-14, 0.0]),
    right=st.sampled_from(["random", "zero", "reachable", "nan", "huge"]),
    start=st.booleans(),
)
def test_least_squares_none_wrongly_converged_none_endless(rank, m, n, seed, rtol, right, start):
    rng = np.random.default_rng(seed)
    k = max(1, min(m, n) // 2)
    A = rng.standard_normal((m, n)) + 1j * rng.standard_normal((m, n))
    if rank == "low":
        A = A[:, :k] @ (rng.standard_normal((k, n)) + 1j * rng.standard_normal((k, n)))
    elif rank == "zero":
        A *= 0
    elif rank == "nan":
        A[0, 0] = np.nan
    rights = {"zero": np.zeros(m, complex), "huge": 1e200 * numbers(m, seed)}
    with np.errstate(all="ignore"):
        b = A @ numbers(n, seed) if right == "reachable" else rights.get(right, numbers(m, seed))
    if right == "nan":
        b[0] = np.nan
    scale = abs(b).max() if np.isfinite(b).all() and b.any() else 1.0
    for method in (lsqr, lsmr):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(A, b, numbers(n, seed) if start else None, rtol=rtol, maxiter=80)
        assert stats.iterations <= 80
        assert stats.converged == (stats.info == 0)
        if not stats.converged:
            continue
        if right == "zero":
            assert not x.any()
            continue
        assert right != "nan"
        assert np.isfinite(x).all()
        r, size = (b - A @ x) / scale, np.linalg.norm(A)
        rounding = 100 * np.finfo(float).eps * (size * np.linalg.norm(x / scale) + np.linalg.norm(b / scale))
        small = np.linalg.norm(r) <= rtol * np.linalg.norm(b / scale) + rounding
        least = np.linalg.norm(A.conj().T @ r) <= rtol * size * np.linalg.norm(r) + size * rounding
        assert small or least


# ---- storage, threads, bits ------------------------------------------------------------------------


@pytest.mark.parametrize("method", SQUARE)
def test_storage_is_as_said(method):
    A, b, workspace = hermitian(90, 0.1), numbers(8100), Workspace()
    for _ in range(2):
        method(A, b, maxiter=20, workspace=workspace)
        assert workspace.vectors == STORAGE[method][0]
        assert 0 <= workspace.nbytes - workspace.vectors * b.nbytes < 0.02 * workspace.nbytes + 5000


@pytest.mark.parametrize("method", [*SQUARE, lsqr])
def test_bits_do_not_depend_on_threads_or_time(method):
    A = dasp.SpMatrix.from_scipy(hermitian(150), device="cpu")
    b, answers = numbers(22500), []
    try:
        for threads in (1, 2, 3, 2):
            _threads.set_num_threads(threads)
            answers.append(method(A, b, maxiter=10)[0])
    finally:
        _threads.set_num_threads(None)
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0], other)


@pytest.mark.parametrize("method", SQUARE)
def test_callbacks_and_limits(method):
    A, b, seen = hermitian(8), numbers(64), []
    x, stats = method(A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()))
    assert stats.converged
    np.testing.assert_array_equal(seen[-1], x)
    x, stats = method(A, b, rtol=1e-12, maxiter=3)
    assert (stats.converged, stats.info, stats.iterations) == (False, 3, 3)
    assert stats.residual == pytest.approx(np.linalg.norm(b - A @ x))
