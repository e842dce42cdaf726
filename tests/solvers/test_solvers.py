"""Solvers: what converges is true, and what does not ends and says why."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.runtime.cpu import threads as _threads
from dasp.solvers import Workspace, bicgstab, cg, gmres, lsmr, lsqr, minres
from tests.support.systems import (
    KINDS,
    SQUARE,
    check,
    hold_to_the_truth,
    poisson,
    system,
    true_residual,
)

# ---- systems of every kind --------------------------------------------------------------------------


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
