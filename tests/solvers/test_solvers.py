"""Solvers: what converges is true, what does not ends and says why; storage; kinds of arguments."""

from __future__ import annotations

import re
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.runtime.cpu import threads as _threads
from dasp.solvers import Workspace, bicgstab, block_cg, cg, gmres, lsmr, lsqr, minres
from dasp.solvers.cpu.space import CpuSpace

SQUARE: list[Callable[..., Any]] = [cg, bicgstab, minres, gmres]
STORAGE = {cg: (5, 6), bicgstab: (7, 9), minres: (8, 10), gmres: (35, 36)}


MOST_DENSE = 2000
"""Rows up to which a solution is compared with a dense one: the singular values of 8,000 take minutes."""


def poisson(side: int) -> sp.csr_array:
    line = sp.diags_array([[-1.0] * (side - 1), [2.0] * side, [-1.0] * (side - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line))


def residual_bound(A: Any, x: np.ndarray, b: np.ndarray) -> float:
    """How far rounding may move a computed norm of b - A x, as norms of rows (Higham, section 3.1)."""
    size = abs(np.asarray(A.todense() if sp.issparse(A) else A)).astype(np.longdouble)
    u = np.finfo(np.result_type(x, b)).eps
    each = 2 * (2 if np.iscomplexobj(x) else 1)  # terms that a product of two numbers adds to a sum, twice
    return float(each * (A.shape[1] + 4) * u * np.linalg.norm(size @ abs(x) + abs(b)))


def true_residual(A: Any, x: np.ndarray, b: np.ndarray) -> float:
    dense = long(np.asarray(A.todense() if sp.issparse(A) else A))
    r = long(b) - dense @ long(x)
    scale = abs(r).max(initial=0) or np.longdouble(1)
    return float(scale * np.sqrt(np.sum(abs(r / scale) ** 2)))


def long(array: np.ndarray) -> np.ndarray:
    """In long double, real or complex."""
    return array.astype(np.clongdouble if np.iscomplexobj(array) else np.longdouble)


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


# ---- systems of every kind --------------------------------------------------------------------------

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


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-5, 1e-10, 1e-15, 0.0]),
    right=st.sampled_from(["random", "zero", "reachable", "unit", "nan"]),
    start=st.booleans(),
    jacobi=st.booleans(),
)
def test_none_wrongly_converged_none_endless(kind, n, seed, rtol, right, start, jacobi):
    A, b = system(kind, n, seed)
    if right == "zero":
        b = np.zeros(n)
    elif right == "reachable":
        with np.errstate(all="ignore"):
            b = A @ b
    elif right == "unit":
        b = np.eye(n)[0]
    elif right == "nan":
        b[seed % n] = np.nan
    x0 = np.random.default_rng(seed).standard_normal(n) if start else None
    M = sp.diags_array(1 / np.where(np.diag(A) > 0, np.diag(A), 1.0)) if jacobi else None
    hold_to_the_truth(A, b, x0, M, rtol, right)


RIGHTS = ("random", "zero", "unit", "reachable", "nan", "inf", "huge", "tiny")
STARTS = ("none", "random", "solution", "nan", "inf", "huge")
DIAGONALS = ("none", "jacobi", "indefinite", "zero", "nan", "inf", "huge", "tiny", "not symmetric")


def right_hand_side(kind: str, A: np.ndarray, seed: int) -> np.ndarray:
    n = len(A)
    b = np.random.default_rng(seed).standard_normal(n)
    sizes = {"zero": 0.0, "huge": 1e30, "tiny": 1e-30} if A.dtype == np.float32 else {
        "zero": 0.0, "huge": 1e250, "tiny": 1e-250
    }  # fmt: skip
    if kind == "reachable":
        b = A @ b
    elif kind == "unit":
        b = np.eye(n)[0]
    elif kind in ("nan", "inf"):
        b[seed % n] = float(kind)
    return (b * sizes.get(kind, 1.0)).astype(A.dtype)


def first_guess(kind: str, A: np.ndarray, b: np.ndarray, seed: int) -> np.ndarray | None:
    x = np.random.default_rng(seed + 1).standard_normal(len(A))
    if kind == "none":
        return None
    if kind == "solution" and np.isfinite(A).all():
        x = np.linalg.pinv(A.astype(float)) @ b
    elif kind in ("nan", "inf"):
        x[seed % len(A)] = float(kind)
    elif kind == "huge":
        x *= 1e30
    return x.astype(A.dtype)


def diagonal_preconditioner(kind: str, A: np.ndarray, seed: int) -> np.ndarray | None:
    rng, n = np.random.default_rng(seed + 2), len(A)
    d = 1 / np.where(np.diag(A) > 1e-3, np.diag(A), 1.0)
    if kind == "none":
        return None
    if kind == "indefinite":
        d = d * rng.choice([-1, 1], n)
    elif kind in ("nan", "inf"):
        d[seed % n] = float(kind)
    elif kind in ("zero", "huge", "tiny"):
        d = d.astype(float) * {"zero": 0.0, "huge": 1e200, "tiny": 1e-200}[kind]
    return np.diag(d) + (0.3 * np.triu(rng.standard_normal((n, n)), 1) if kind == "not symmetric" else 0)


@settings(max_examples=120, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_whatever_a_user_brings(data, seed):
    """Systems one after the other in a workspace, of which some fail: each has the bits that it has alone."""
    kind = data.draw(st.sampled_from([*KINDS[:8], "nearly symmetric", "nothing"]))
    n, dtype = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([np.float32, np.float64]))
    A = np.zeros((n, n)) if kind == "nothing" else system(kind if kind in KINDS else "definite", n, seed)[0]
    if kind == "nearly symmetric":
        A = A + 10.0 ** -data.draw(st.integers(1, 9)) * np.random.default_rng(seed).standard_normal((n, n))
    A = A.astype(dtype)
    plan = data.draw(st.booleans())
    operator = dasp.SpMatrix.from_scipy(sp.csr_array(A), device="cpu") if plan else A
    M = diagonal_preconditioner(data.draw(st.sampled_from(DIAGONALS)), A, seed)
    rtol, atol = data.draw(
        st.sampled_from([(1e-3, 0.0), (1e-12, 0.0), (0.0, 0.0), (0.0, 1.0), (2.0, 0.0), (0.0, 1e300)])
    )
    options = {"rtol": rtol, "atol": atol, "maxiter": data.draw(st.sampled_from([1, 2, 60])), "M": M}
    pairs = st.tuples(st.sampled_from(RIGHTS), st.sampled_from(STARTS))
    with np.errstate(all="ignore"):
        brought = []
        for k, (right, start) in enumerate(data.draw(st.lists(pairs, min_size=2, max_size=3))):
            b = right_hand_side(right, A, seed + k)
            brought.append((b, first_guess(start, A, b, seed)))
    for method in SQUARE:
        workspace = Workspace()
        for b, x0 in brought:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                x, stats = method(operator, b, x0, workspace=workspace, **options)
                alone, same = method(operator, b, x0, **options)
            assert stats.iterations == same.iterations <= options["maxiter"]
            assert stats.reason == same.reason
            np.testing.assert_array_equal(x, alone)
            if not b.any():
                assert stats.converged
                assert not x.any()
            elif stats.converged:  # what `check` measures with squares numbers
                size = dtype(2.0 ** np.frexp(abs(b).max())[1])
                with np.errstate(all="ignore"):
                    assert np.isfinite(x).all()
                    if np.isfinite(x / size).all():
                        check(A, x / size, b / size, stats, rtol, atol / float(size))
            assert np.isfinite(b).all() or not stats.converged


@pytest.mark.parametrize("method", SQUARE)
def test_a_tiny_b_is_not_taken_for_zero(method):
    """Also where M shows that it is none before anything else, and where x0 is so large that it is no use."""
    A, b = np.diag([1.0, 2.0, 3.0]), np.array([1e-250, 2e-250, 3e-250])
    for M in (None, -np.eye(3), np.diag([1.0, -1.0, 1.0])):
        x, stats = method(A, b, M=M, rtol=1e-8)
        assert "b is zero" not in stats.reason
        check(A, x, b, stats, 1e-8)
    x, stats = method(A, b, np.ones(3), rtol=1e-8)
    assert stats.converged, stats.reason
    np.testing.assert_allclose(x, np.full(3, 1e-250), rtol=1e-7)


@pytest.mark.parametrize("method", [*SQUARE, lsqr, lsmr])
@pytest.mark.parametrize(("size", "right"), [(1e-80, 1e250), (1e80, 1e-250)])
def test_an_x_that_its_type_does_not_hold_is_no_solution(method, size, right):
    A, b = size * np.diag([1.0, 2.0]), np.array([right, right])
    stats = method(A, b)[1]
    assert not stats.converged
    assert "too large or too small for its type" in stats.reason


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 1e14), (np.float32, 1e7), (np.complex128, 1e90)])
@pytest.mark.parametrize("method", SQUARE)
def test_b_may_be_much_larger_or_smaller_than_a(method, dtype, size):
    A = np.diag([1.0, 2.0, 3.0]).astype(dtype)
    for b in (np.array([size, 1.0, 2.0], dtype), np.array([1.0, 2.0, 3.0], dtype) / dtype(size)):
        x, stats = method(A, b, rtol=1e-4)
        check(A, x, b, stats, 1e-4)
        assert stats.converged, stats.reason


@pytest.mark.parametrize("method", SQUARE)
def test_zero_is_no_solution_where_a_holds_nan(method):
    A = np.diag([1.0, np.nan])
    for tolerance in ({"rtol": 1.0}, {"atol": 10.0}):
        assert not method(A, np.ones(2), **tolerance)[1].converged


@pytest.mark.parametrize("method", SQUARE)
def test_no_x_with_nan_is_called_converged(method):
    """A has no entry in the last column, so that the residual does not show what x0 or M put there."""
    A = sp.csr_array(np.diag([1.0, 2.0, 0.0]))
    A.eliminate_zeros()
    b = np.array([1.0, 1.0, 0.0])
    for odd in (np.nan, np.inf):
        _, stats = method(A, b, np.array([0.0, 0.0, odd]), atol=1e-3)
        assert not stats.converged
        assert "x0 or M gave it" in stats.reason or "NaN" in stats.reason


@pytest.mark.parametrize("method", SQUARE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("planned", [True, False])
def test_poisson_as_scipy_solves_it(method, dtype, planned):
    A = poisson(20).astype(dtype)
    b = np.random.default_rng(1).standard_normal(400).astype(dtype)
    operator = dasp.SpMatrix.from_scipy(A, device="cpu") if planned else A
    rtol = 1e-5 if dtype == np.float32 else 1e-10
    x, stats = method(operator, b, rtol=rtol)
    assert stats.converged, stats.reason
    assert x.dtype == dtype
    check(A, x, b, stats, rtol)
    assert len(stats.residuals) == stats.iterations + 1
    counted = [0]
    if dtype == np.float64 and method in (cg, bicgstab):  # SciPy's minres has a criterion of its own
        getattr(sla, method.__name__)(
            A, b, rtol=rtol, callback=lambda _: counted.__setitem__(0, counted[0] + 1)
        )
        assert abs(stats.iterations - counted[0]) <= 0.1 * counted[0] + 2


@pytest.mark.parametrize("method", SQUARE)
def test_a_preconditioner_may_be_anything_that_multiplies(method):
    A = poisson(12) + sp.diags_array(np.linspace(0, 50, 144))
    b, d = np.ones(144), 1 / A.diagonal()
    forms = [
        sp.diags_array(d, format="csr"),
        sla.LinearOperator((144, 144), matvec=lambda r: d * r, dtype=float),
        dasp.SpMatrix.from_scipy(sp.diags_array(d, format="csr"), device="cpu"),
        np.diag(d),
    ]
    answers = [method(A, b, M=M, rtol=1e-9) for M in forms]
    plain = method(A, b, rtol=1e-9)[1]
    for x, stats in answers:
        assert stats.converged
        check(A, x, b, stats, 1e-9)
        assert stats.iterations < plain.iterations
    assert len({stats.iterations for _, stats in answers}) == 1


# ---- when it stops ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SQUARE)
def test_the_tolerance_is_scipys(method):
    A, b = poisson(15), np.arange(225.0)
    for rtol, atol in ((1e-2, 0.0), (0.0, 5.0), (1e-12, 50.0), (1e-4, 1e-12)):
        _, stats = method(A, b, rtol=rtol, atol=atol)
        wanted = max(rtol * np.linalg.norm(b), atol)
        assert stats.converged
        assert stats.residual <= wanted
        assert stats.residuals[-1] <= wanted < stats.residuals[-2] * (1 + 1e-9)


@pytest.mark.parametrize("method", SQUARE)
def test_iterations_run_out(method):
    A, b = poisson(15), np.ones(225)
    x, stats = method(A, b, rtol=1e-12, maxiter=5)
    assert (stats.converged, stats.info, stats.iterations) == (False, 5, 5)
    assert "5 iterations" in stats.reason
    assert stats.residual == pytest.approx(np.linalg.norm(b - A @ x))
    again, more = method(A, b, x, rtol=1e-12)
    assert more.converged
    check(A, again, b, more, 1e-12)


@pytest.mark.parametrize("method", SQUARE)
def test_no_more_digits_than_there_are(method):
    A = sp.diags_array(np.logspace(0, 3, 60), format="csr")
    b = np.ones(60)
    _, stats = method(A, b, rtol=1e-30)
    assert not stats.converged
    assert stats.iterations < 600
    assert "no more can be had in" in stats.reason
    assert stats.residual < 1e-12


def test_a_residual_that_drifted_is_found_out():
    """The carried residual goes to 0 while the true one stays: SciPy's cg calls that converged."""
    rng = np.random.default_rng(5)
    Q = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    A = Q @ np.diag(np.logspace(0, 12, 40)) @ Q.T
    A, b = (A + A.T) / 2, rng.standard_normal(40)
    x, stats = cg(A, b, rtol=1e-8, maxiter=5000)
    check(A, x, b, stats, 1e-8)
    if not stats.converged:
        assert true_residual(A, x, b) > 1e-8 * np.linalg.norm(b)


def test_words_for_an_indefinite_matrix():
    _, stats = cg(np.diag([1.0, -1.0]), np.ones(2))
    assert "not positive definite" in stats.reason
    assert stats.info < 0
    _, stats = cg(np.diag([1.0, 2.0]), np.ones(2), M=-np.eye(2))
    assert "M is not positive definite" in stats.reason
    _, stats = minres(np.diag([1.0, 2.0]), np.ones(2), M=-np.eye(2))
    assert "M is not positive definite" in stats.reason
    _, stats = minres(np.diag([1.0, 0.0]), np.ones(2))
    assert "singular" in stats.reason


def test_gmres_calls_back_after_each_cycle():
    A, b = poisson(10), np.random.default_rng(1).standard_normal(100)
    seen: list[np.ndarray] = []
    x, stats = gmres(A, b, rtol=1e-8, restart=8, callback=lambda x: seen.append(x.copy()))
    assert len(seen) == len(stats.residuals) - 1 == -(-stats.iterations // 8)
    np.testing.assert_array_equal(seen[-1], x)
    _, whole = gmres(A, b, rtol=1e-8, restart=100)
    assert whole.iterations < stats.iterations
    _, scipys = [0], [0]
    sla.gmres(A, b, rtol=1e-8, restart=8, callback=lambda _: scipys.append(0), callback_type="pr_norm")
    assert abs(stats.iterations - len(scipys) + 1) <= 8
    with pytest.raises(ValueError, match="restart is 0"):
        gmres(A, b, restart=0)


@pytest.mark.parametrize("method", [cg, bicgstab, minres])
def test_callbacks_and_checks(method):
    A, b = poisson(10), np.ones(100)
    seen: list[np.ndarray] = []
    x, stats = method(A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()), check_every=3)
    assert len(seen) == len(stats.residuals) - 1 == -(-stats.iterations // 3)
    np.testing.assert_array_equal(seen[-1], x)
    plain, same = method(A, b, rtol=1e-8)
    assert same.iterations == stats.iterations
    np.testing.assert_array_equal(plain, x)
    assert method(A, b, check_every=3)[1].residuals[1] == method(A, b)[1].residuals[3]


def test_progress_is_shown(capsys):
    cg(poisson(10), np.ones(100), progress=True)
    assert "residual" in capsys.readouterr().err


# ---- storage, threads, bits -------------------------------------------------------------------------


@pytest.mark.parametrize("method", SQUARE)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_storage_is_as_said(method, preconditioned):
    A = dasp.SpMatrix.from_scipy(poisson(150), device="cpu")
    M = dasp.SpMatrix.from_scipy(sp.eye_array(22500, format="csr"), device="cpu") if preconditioned else None
    b, workspace = np.ones(22500), Workspace()
    limits = {"maxiter": 30, "M": M, "workspace": workspace}
    method(A, b, **{**limits, "workspace": Workspace()})
    tracemalloc.start()
    try:
        method(A, b, **limits)
        first, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        method(A, b, **limits)
        second, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    count, passes = STORAGE[method][preconditioned], 700_000 if method is gmres else 60_000
    assert workspace.vectors == count
    assert count * b.nbytes <= workspace.nbytes <= first <= count * b.nbytes + passes
    assert second - first < 20_000
    # x is returned twice over: a copy of the workspace's, which becomes the caller's.
    assert peak - first <= 2 * b.nbytes + 20_000


@pytest.mark.parametrize("method", [cg, lsqr])
def test_a_workspace_serves_one_solve_at_a_time(method):
    """A callback that solved in it would leave its own x to the solve that called it."""
    A, workspace = poisson(6), Workspace()
    b = np.random.default_rng(0).standard_normal(36)
    want = method(A, b)[0]
    for inner in (cg, method):
        with pytest.raises(ValueError, match="workspace is in use"):
            method(
                A, b, workspace=workspace, callback=lambda x, inner=inner: inner(A, -b, workspace=workspace)
            )
        np.testing.assert_array_equal(method(A, b, workspace=workspace)[0], want)


def test_a_workspace_serves_whatever_comes():
    workspace = Workspace()
    A, B = poisson(6), poisson(7)
    for _ in range(2):
        for matrix in (A, B):
            for method in SQUARE:
                b = np.ones(matrix.shape[0])
                x, stats = method(matrix, b, workspace=workspace, rtol=1e-9)
                assert stats.converged
                check(matrix, x, b, stats, 1e-9)
    kept = cg(A, np.ones(36), workspace=workspace)[0]
    before = kept.copy()
    cg(A, np.arange(36.0), workspace=workspace)
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("method", SQUARE)
def test_a_workspace_serves_after_an_error(method):
    """One that a callback raised, or the matrix."""
    A, b, workspace = poisson(8), np.random.default_rng(0).standard_normal(64), Workspace()
    calls = [0]

    def multiply(x: np.ndarray) -> np.ndarray:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError("the matrix is gone")
        return A @ x

    def look(x: np.ndarray) -> None:
        raise OSError("enough")

    operator: Any = sla.LinearOperator(A.shape, matvec=multiply, dtype=float)
    for more in ({}, {"callback": look}):
        with pytest.raises(OSError, match=r"gone|enough"):
            method(operator, b, rtol=1e-9, workspace=workspace, **more)
    x, stats = method(operator, b, rtol=1e-9, workspace=workspace)
    want, told = method(A, b, rtol=1e-9)
    np.testing.assert_array_equal(x, want)
    assert stats.iterations == told.iterations


@pytest.mark.parametrize("method", SQUARE)
def test_bits_do_not_depend_on_threads_or_time(method):
    A = dasp.SpMatrix.from_scipy(poisson(200), device="cpu")
    b = np.random.default_rng(0).standard_normal(40000)
    answers = []
    try:
        for threads in (1, 2, 3, 2):
            _threads.set_num_threads(threads)
            answers.append(method(A, b, maxiter=12)[0])
    finally:
        _threads.set_num_threads(None)
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0], other)


# ---- passes -----------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("updates", PASSES, ids="; ".join)
@pytest.mark.parametrize(
    ("n", "dtype"), [(0, "f8"), (1, "f4"), (7, "f8"), (1024, "f4"), (5000, "f4"), (5000, "f8")]
)
def test_a_pass_does_what_it_says(updates, n, dtype):
    vectors = CpuSpace(np.dtype(dtype)).vectors(n, "x", "y", "z", "w")
    rng = np.random.default_rng(n)
    want = {}
    for name in "xyzw":
        vectors[name][...] = rng.integers(-8, 8, n)
        want[name] = vectors[name].copy()
    sums = vectors.fuse(*updates, dots=("x y", "z z"))(a=0.5, b=2.0)
    want = updated(want, updates, a=0.5, b=2.0)
    for name in "xyzw":
        np.testing.assert_array_equal(vectors[name], want[name])
    assert sums == (want["x"].astype(float) @ want["y"], want["z"].astype(float) @ want["z"])


@pytest.mark.parametrize("text", ["x", "x y = z", "x = a b y", "x = y + x*z", "x = x + x", "x = 2 y"])
def test_a_pass_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="an update reads"):
        CpuSpace(np.dtype(float)).vectors(3, "x", "y", "z").fuse(text)


# ---- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SQUARE)
def test_kinds_of_arguments(method):
    A, b = poisson(5), np.ones(25)
    want = method(A, b)[0]
    for other in (
        A.tocsc(),
        A.todense(),
        sla.aslinearoperator(A),
        sp.csr_matrix(A),
        A.astype(int),
        A.tocoo(),
        np.asmatrix(A.toarray()),
    ):
        np.testing.assert_allclose(method(other, b)[0], want, rtol=1e-3)
    assert method(A, b.astype(int))[0].dtype == np.float64
    assert method(A, list(b))[0].shape == (25,)
    assert method(A, b[:, None])[0].shape == (25, 1)
    x, stats = method(np.zeros((0, 0)), np.zeros(0))
    assert (x.shape, stats.converged) == ((0,), True)


@pytest.mark.parametrize("method", SQUARE)
def test_wrong_arguments_are_told(method):
    A, b = np.eye(3), np.ones(3)
    with pytest.raises(ValueError, match=r"b has shape \(2,\); A has 3 rows"):
        method(A, np.ones(2))
    with pytest.raises(ValueError, match=r"A has shape \(2, 3\); a square matrix"):
        method(np.ones((2, 3)), b)
    with pytest.raises(ValueError, match=r"M has shape \(2, 2\)"):
        method(A, b, M=np.eye(2))
    with pytest.raises(ValueError, match=r"x0 has shape"):
        method(A, b, np.ones((3, 3)))
    with pytest.raises(TypeError, match="x0 has dtype complex128; A, b and M are real"):
        method(A, b, b * 1j)
    with pytest.raises(TypeError, match="a real or complex dtype"):
        method(A, b.astype(object))
    with pytest.raises(TypeError, match="A is a list"):
        method([[1]], [1])
    with pytest.raises(ValueError, match="rtol is -1"):
        method(A, b, rtol=-1)
    with pytest.raises(ValueError, match="maxiter is 0"):
        method(A, b, maxiter=0)
    with pytest.raises(TypeError, match=r"M is a function; .*LinearOperator"):
        method(A, b, M=lambda r: r)
    with pytest.raises(TypeError, match=r"rtol is .*a real number is needed"):
        method(A, b, rtol=np.complex64(1))
    with pytest.raises(TypeError, match="b is a masked array"):
        method(A, np.ma.masked_array(b, [True, False, False]))
    with pytest.raises(TypeError, match="workspace is a dict"):
        method(A, b, workspace={})
    with pytest.raises(TypeError, match="callback"):
        method(A, b, callback=3)


def test_a_method_that_diverges_until_numbers_overflow_says_so():
    rng = np.random.default_rng(3)
    Q, spectrum = np.linalg.qr(rng.standard_normal((30, 30)))[0], np.geomspace(1e-6, 1.0, 30)
    spectrum[0] = 0.0
    A = (Q * spectrum @ Q.T).astype(np.float32)
    stats = bicgstab(A, rng.standard_normal(30).astype(np.float32), rtol=1e-6, maxiter=20_000)[1]
    assert not stats.converged
    assert re.search(r"the residual had grown from .* to .*e\+.*, so the method diverges", stats.reason)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("scale", "b"), [(1e-270, 1e241), (1e-160, 1e200), (1e-30, 1e300)])
@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "gmres", "chebyshev", "lsqr", "lsmr"])
def test_an_x_that_its_type_does_not_hold_is_told_in_the_reason_alone(name, scale, b, dtype):
    A = (scale * np.diag(np.arange(1.0, 6.0))).astype(dtype)
    seen: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stats = getattr(dasp.solvers, name)(A, np.full(5, b, dtype), maxiter=50, callback=seen.append)[1]
    assert not stats.converged
    assert stats.reason


@pytest.mark.parametrize(("name", "argument", "meant"), [
    ("cg", "tol", "rtol is meant"), ("lsqr", "btol", "rtol is meant"), ("lobpcg", "tol", "rtol is meant"),
    ("gmres", "restrt", "restart is meant"), ("lsmr", "iter_lim", "maxiter is meant"),
    ("block_cg", "colour", "it has A, B, X0, rtol"),
])  # fmt: skip
def test_an_argument_of_scipys_is_told_by_its_name_here(name, argument, meant):
    with pytest.raises(TypeError, match=f"{name} has no argument {argument}; {meant}"):
        getattr(dasp.solvers, name)(poisson(3), np.ones(9), **{argument: 1})


def test_a_method_is_told_where_it_is():
    assert {"Stats", "Workspace"} == set(dasp.solvers.__all__) - dasp._METHODS
    with pytest.raises(AttributeError, match=r"dasp\.solvers\.cg is meant"):
        dasp.cg  # noqa: B018
    assert not hasattr(dasp, "solver")


def test_stats_have_the_relative_residual_a_table_and_a_plot():
    A, b = poisson(8), np.arange(64.0)
    for method in (cg, minres, bicgstab, gmres, lsqr):
        x, stats = method(A, b, rtol=1e-6)
        assert stats.relative == pytest.approx(np.linalg.norm(b - A @ x) / np.linalg.norm(b), rel=1e-3)
    assert cg(A, 0 * b)[1].relative == 0
    B = np.stack([b, 1e-3 * b[::-1], 0 * b], axis=1)
    X, stats = block_cg(A, B, rtol=1e-6)
    shares = np.linalg.norm(B - A @ X, axis=0)[:2] / np.linalg.norm(B, axis=0)[:2]
    assert stats.relative == pytest.approx(shares.max(), rel=1e-3)
    html = replace(stats, reason="a < b")._repr_html_()
    assert "<th>relative residual</th>" in html
    assert "a &lt; b" in html
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = stats.plot()
    assert stats.plot(axes) is axes
    assert axes.get_yscale() == "log"
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), stats.residuals)


def test_stats_are_one_line_with_the_relative_residual():
    b = 1e6 * np.random.default_rng(0).standard_normal(81)
    _, stats = cg(poisson(9), b)
    share = f"{stats.residual / np.linalg.norm(b):.2g} of norm(b)"
    assert share in stats.reason
    assert repr(stats).startswith("<converged in ")
    assert share in repr(stats)
    _, stats = cg(poisson(9), b, maxiter=2)
    assert repr(stats).startswith("<not converged in ")
    assert "\n" not in repr(stats)
