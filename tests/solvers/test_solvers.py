"""Solvers: what converges is true, and what does not ends and says why."""

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
from dasp.solvers import Workspace, bicgstab, cg, chebyshev, gmres, lsmr, lsqr, minres
from dasp.solvers.driver import BREAKDOWN
from tests.support.systems import (
    ALL_TYPES,
    KINDS,
    SQUARE,
    STORAGE,
    TYPES,
    check,
    helmholtz,
    hermitian,
    hold_to_the_truth,
    model,
    numbers,
    poisson,
    system,
    tolerance,
    true_residual,
)

# ---- systems of every kind --------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([np.float64, np.complex128]),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-5, 1e-10, 1e-15, 0.0]),
    right=st.sampled_from(["random", "zero", "reachable", "unit", "nan", "real"]),
    start=st.booleans(),
    preconditioner=st.sampled_from(["none", "real", "complex"]),
)
def test_none_wrongly_converged_none_endless(kind, dtype, n, seed, rtol, right, start, preconditioner):
    A, b = system(kind, n, seed, dtype)
    rights = {"zero": 0 * b, "unit": np.eye(n)[0] * (1j if dtype == np.complex128 else 1)}
    with np.errstate(all="ignore"):
        b = {**rights, "reachable": A @ b, "real": b.real}.get(right, b)
        d = 1 / np.where(np.diag(A).real > 0, np.diag(A).real, 1.0)
    if right == "nan":
        b[seed % n] = dtype(np.nan)
    M = {"none": None, "real": np.diag(d), "complex": np.diag(d * np.exp(0.1j))}[preconditioner]
    is_complex = any(np.iscomplexobj(one) for one in (A, b, M) if one is not None)
    x0 = numbers(n, seed + 1, complex if is_complex else float) if start else None
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


@pytest.mark.slow
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


@pytest.mark.parametrize("method", [*SQUARE, lsqr, lsmr])
def test_the_residual_is_that_of_the_x_that_is_returned(method):
    """The x that was found is about 1e-450, so zeros are returned."""
    x, stats = method(1e150 * np.diag([1.0, 2.0]), np.array([3e-300, 4e-300]), rtol=0, maxiter=1)
    assert not x.any()
    assert not stats.converged
    assert stats.residual == pytest.approx(5e-300, rel=1e-12)


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
    for asked in ({"rtol": 1.0}, {"atol": 10.0}):
        assert not method(A, np.ones(2), **asked)[1].converged


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


@pytest.mark.parametrize(("dtype", "planned"), list(zip(ALL_TYPES, (True, False, False, True), strict=True)))
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (cg, "definite"),
        (chebyshev, "definite"),
        (minres, "definite"),
        (minres, "indefinite"),
        (bicgstab, "general"),
        (gmres, "general"),
    ],
)
def test_every_method_solves_to_its_tolerance(method, kind, dtype, planned):
    A, b, rtol = model(kind, 14, dtype), numbers(196, dtype=dtype), tolerance(dtype)
    x, stats = method(dasp.SpMatrix.from_scipy(A, device="cpu") if planned else A, b, rtol=rtol)
    assert stats.converged, stats.reason
    assert x.dtype == dtype
    assert len(stats.residuals) == stats.iterations + 1
    assert stats.residual <= rtol * np.linalg.norm(b)
    check(A, x, b, stats, rtol)
    again, more = method(A, b, x, rtol=2 * rtol)
    assert more.iterations <= 1
    check(A, again, b, more, 2 * rtol)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("method", "kind"), [(cg, "definite"), (bicgstab, "general"), (gmres, "general")])
def test_as_many_iterations_as_scipys(method, kind, dtype):
    A, b, counted = model(kind, 14, dtype), numbers(196, dtype=dtype), [0]
    more = {"restart": 30, "callback_type": "pr_norm", "maxiter": 100} if method is gmres else {}
    getattr(sla, method.__name__)(
        A, b, rtol=1e-9, callback=lambda _: counted.__setitem__(0, counted[0] + 1), **more
    )
    _, stats = method(A, b, rtol=1e-9)
    assert stats.converged
    assert abs(stats.iterations - counted[0]) <= 0.15 * counted[0] + 1


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


# ---- types ----------------------------------------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_iterations_run_out(method, dtype):
    A, b = model("definite", 15, dtype), np.ones(225, dtype)
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


@pytest.mark.parametrize("seed", [2, 4])
def test_a_right_hand_side_out_of_reach_is_said_to_be_that(seed):
    W = sp.random_array((5, 5), density=1.0, random_state=np.random.default_rng(seed))
    A = sp.csr_array(sp.csgraph.laplacian(W + W.T))
    x, stats = cg(A, np.random.default_rng(9).standard_normal(5))
    assert not stats.converged
    assert "singular" in stats.reason, x


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


@pytest.mark.parametrize("right", ["ones", "rising"])
def test_bicgstab_solves_convection_and_diffusion(right):
    """The residual soon has a cosine of 1e-15 with the first one, and SciPy's bicgstab goes on as well."""
    wind = sp.diags_array([-5.0, 5.0], offsets=[-1, 1], shape=(30, 30))
    A = sp.csr_array(poisson(30) + sp.kron(sp.eye_array(30), wind))
    b = np.ones(900) if right == "ones" else np.arange(1.0, 901.0)
    x, stats = bicgstab(dasp.SpMatrix(A, device="cpu"), b, rtol=1e-8)
    assert stats.converged
    assert np.linalg.norm(b - A @ x) <= 1.001e-8 * np.linalg.norm(b)


def test_words_for_an_indefinite_matrix():
    _, stats = cg(np.diag([1.0, -1.0]), np.ones(2))
    assert "not positive definite" in stats.reason
    assert stats.info < 0
    _, stats = cg(np.diag([1.0, 2.0]), np.ones(2), M=-np.eye(2))
    assert "M is not positive definite" in stats.reason
    for M in (-np.eye(2), np.zeros((2, 2)), 1j * np.eye(2)):
        _, stats = minres(np.diag([1.0, 2.0]), np.ones(2), M=M)
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
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_callbacks_and_checks(method, dtype):
    A, b = model("definite", 10, dtype), np.ones(100, dtype)
    seen: list[np.ndarray] = []
    x, stats = method(A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()), check_every=3)
    assert len(seen) == len(stats.residuals) - 1 == -(-stats.iterations // 3)
    np.testing.assert_array_equal(seen[-1], x)
    plain, same = method(A, b, rtol=1e-8)
    assert same.iterations == stats.iterations
    np.testing.assert_array_equal(plain, x)
    each, third = (method(A, b, rtol=1e-8, check_every=every)[1].residuals for every in (1, 3))
    assert third == stats.residuals == [*each[:-1:3], each[-1]]


def test_progress_is_shown(capsys):
    cg(poisson(10), np.ones(100), progress=True)
    assert "residual" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("method", SQUARE)
def test_storage_is_as_said(method):
    A, b, workspace = hermitian(90, 0.1), numbers(8100), Workspace()
    for _ in range(2):
        method(A, b, maxiter=20, workspace=workspace)
        assert workspace.vectors == STORAGE[method][0]
        assert 0 <= workspace.nbytes - workspace.vectors * b.nbytes < 0.02 * workspace.nbytes + 5000


@pytest.mark.parametrize(
    ("method", "dtype"),
    [*((method, np.float64) for method in SQUARE), *((method, np.complex128) for method in (*SQUARE, lsqr))],
)
def test_bits_do_not_depend_on_threads_or_time(method, dtype):
    A, answers = dasp.SpMatrix.from_scipy(model("definite", 170, dtype), device="cpu"), []
    try:
        for threads in (1, 2, 3, 2):
            _threads.set_num_threads(threads)
            answers.append(method(A, numbers(28900, dtype=dtype), maxiter=12)[0])
    finally:
        _threads.set_num_threads(None)
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0], other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_minres_stops_near_the_least_residual_of_a_singular_system(dtype, preconditioned):
    """Rounding lets a vector of the null space, by which no residual changes, grow without end."""
    grid = sp.csgraph.laplacian(sp.csr_array(-poisson(20) + 4 * sp.eye_array(400)))
    A = sp.csr_array(grid).astype(dtype)
    b = np.random.default_rng(0).standard_normal(400).astype(dtype)
    least = abs(b.sum()) / 20  # the part along the vector of ones
    M = sp.diags_array(1 / A.diagonal()).tocsr() if preconditioned else None
    x, stats = minres(A, b, M=M)
    assert (stats.converged, stats.info) == (False, BREAKDOWN)
    assert "b out of its reach" in stats.reason
    assert stats.residual <= (1.2 if preconditioned else 1.001) * least  # M has a norm of its own
    assert np.linalg.norm(x) < 1e4
    x, stats = dasp.solve(A, b, device="cpu")
    assert "then minres" in stats.choice
    assert stats.residual <= 1.2 * least
    assert np.linalg.norm(x) < 1e4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spectrum", [[-1.0, 1.0], [-1.0, 2.0, 5.0], np.geomspace(0.05, 5, 60)])
def test_minres_finds_the_least_residual_of_a_small_singular_system(dtype, spectrum):
    """With three distinct eigenvalues, one of them 0, three iterations leave a null vector as residual."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(5, 60))
        Q, values = np.linalg.qr(rng.standard_normal((n, n)))[0], rng.choice(spectrum, n)
        values[0] = 0
        A, b = ((Q * values) @ Q.T).astype(dtype), rng.standard_normal(n).astype(dtype)
        _, stats = minres(((A + A.T) / 2).astype(dtype), b)
        assert stats.residual <= abs(Q[:, 0] @ b) + 2e-3 * np.linalg.norm(b), (seed, stats)


def test_a_residual_that_grew_until_the_last_iteration_is_called_divergence():
    n = 50
    A = sp.csr_array(sp.csgraph.laplacian(sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(n, n))))
    b = 1 + np.random.default_rng(1).random(n)  # out of reach of the singular A
    _, stats = cg(A, b)
    assert (stats.converged, stats.info) == (False, stats.iterations)
    assert stats.residual > 1e6 * stats.residuals[0]
    assert stats.reason.endswith("so the method diverges; try another one, or a preconditioner")
    _, stats = cg(A, b, maxiter=3)
    assert stats.reason.endswith("of norm(b)")
