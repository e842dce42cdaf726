"""LSQR and LSMR: least squares of any shape, on the CPU and through the kernels."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.solvers import Workspace, lsmr, lsqr
from tests.support.simt_device import emulate
from tests.support.systems import long, numbers, residual_bound, tolerance, true_residual

METHODS: list[Any] = [lsqr, lsmr]


def matrix(kind: str, m: int, n: int, seed: int, dtype: Any = float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    A = numbers(m * n, seed, dtype).reshape(m, n) * (rng.random((m, n)) < 0.7)
    if kind == "low rank":
        k = max(1, min(m, n) // 2)
        A = numbers(m * k, seed, dtype).reshape(m, k) @ numbers(k * n, seed + 1, dtype).reshape(k, n)
    elif kind == "zero":
        A *= 0
    elif kind == "nan":
        A[rng.integers(m), rng.integers(n)] = np.nan
    elif kind == "scaled":
        A *= 10.0 ** rng.integers(-3, 4, n)
    return A


def check(A: np.ndarray, x: np.ndarray, b: np.ndarray, stats: Any, rtol: float) -> None:
    """What is called converged solves the system, or has a residual orthogonal to the columns."""
    assert stats.converged == (stats.info == 0)
    if not stats.converged:
        return
    assert np.isfinite(x).all()
    scale = np.linalg.norm(b, np.inf) or 1.0
    bound = scale * residual_bound(A, x / scale, b / scale)
    norm = true_residual(A, x, b)
    if norm <= rtol * np.linalg.norm(long(b)) * (1 + 1e-6) + bound:
        return
    r = long(b) - long(A) @ long(x)
    # What norms of A are estimated by grows beyond Frobenius' by the largest one for each iteration.
    size = max(np.linalg.norm(A), stats.iterations**0.5 * np.linalg.norm(A, 2))
    gradient = np.linalg.norm((A.conj().T @ (r / scale)).astype(A.dtype))
    assert gradient <= rtol * size * (norm / scale) * (1 + 1e-6) + 20 * size * (bound / scale)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("of_A", [1, -330, 330, -660, 660, -990, 990])
@pytest.mark.parametrize("of_b", [1, -990, 990])
def test_sizes_whose_squares_are_lost(method, of_A, of_b):
    rng = np.random.default_rng(abs(of_A))
    A, x0 = matrix("full", 9, 5, 1), rng.standard_normal(5)
    large, size = math.ldexp(1.0, of_A), math.ldexp(1.0, of_b)
    with np.errstate(all="ignore"):
        start = rng.standard_normal(5) * (size / large)
    for b in (A @ x0, rng.standard_normal(9)):
        for begin in (None, start):
            seen: list[Any] = []
            x, stats = method(A * large, b * size, begin, rtol=1e-10, callback=seen.append)
            if abs(of_b - of_A) > 1000:  # no float64 holds such an x
                assert not stats.converged
                continue
            assert stats.converged, stats.reason
            want = np.linalg.lstsq(A, b, rcond=None)[0]
            np.testing.assert_allclose(x * (large / size), want, atol=1e-7 * np.linalg.norm(want))
            np.testing.assert_allclose(seen[-1] * (large / size), want, atol=1e-7 * np.linalg.norm(want))
            want = np.linalg.norm(b - A @ want)
            assert abs(stats.residual / size - want) <= 1e-7 * np.linalg.norm(b)


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from([np.float32, np.float64, np.complex64]),
    of_A=st.floats(-1, 1),
    of_b=st.floats(-1, 1),
    start=st.sampled_from([None, 0.0, 1e-30, 1.0, 1e30]),
    m=st.integers(3, 5),
)
def test_a_claimed_x_is_right_at_any_size(dtype, of_A, of_b, start, m):
    """Where products with A are no numbers of its type too; no x is claimed that the type does not hold."""
    ends, rtol = np.finfo(dtype), 1e-3
    most = np.log2(float(ends.max)) - 4
    large, size = dtype(2.0 ** int(most * of_A)), dtype(2.0 ** int(most * of_b))
    diagonal = np.array([1, 2, 3], dtype)
    A, b = np.zeros((m, 3), dtype), np.full(m, size, dtype)
    np.fill_diagonal(A, diagonal * large)
    want = np.longdouble(size.real) / np.longdouble(large.real) / diagonal.real
    x0 = None if start is None else np.full(3, start, dtype)
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(A, b, x0, rtol=rtol)
        assert stats.reason
        if stats.converged:
            # b - A x is at most rtol times b's norm, or A' r at most that of A (4) and r.
            error = abs(x.astype(np.clongdouble) - want)
            assert (error <= 5 * rtol * np.sqrt(m) * want[0] + float(ends.smallest_subnormal)).all()
        elif x0 is None:
            assert not float(ends.tiny) * 1e4 <= want[0] <= float(ends.max) / 1e4


@pytest.mark.parametrize("method", METHODS)
def test_no_rows_no_columns_no_numbers(method):
    for b, norm in ((np.ones(3), 3**0.5), (np.full(3, 1e-200), 3**0.5 * 1e-200)):
        x, stats = method(np.zeros((3, 0)), b)
        assert (x.shape, stats.converged) == ((0,), True)
        assert abs(stats.residual - norm) <= 1e-15 * norm
    x, stats = method(np.zeros((0, 3)), np.ones(0))
    assert (x.tolist(), stats.converged, stats.residual) == ([0, 0, 0], True, 0.0)
    for odd in (np.nan, np.inf):
        for A in (np.zeros((3, 0)), np.zeros((3, 2)), np.eye(3)):
            assert not method(A, np.full(3, odd))[1].converged


@pytest.mark.parametrize("method", METHODS)
def test_a_workspace_sees_values_that_are_no_longer_symmetric(method):
    rng = np.random.default_rng(0)
    N, b = rng.standard_normal((12, 12)) + 4 * np.eye(12), rng.standard_normal(12)
    A = dasp.SpMatrix.from_scipy(sp.csr_array(N + N.T), device="cpu", policy=dasp.Policy(narrow=False))
    assert A.T is A
    workspace = Workspace()
    assert method(A, b, workspace=workspace)[1].converged
    A.with_values(sp.csr_array(N).data, out=A)
    x, stats = method(A, b, rtol=1e-9, workspace=workspace)
    assert stats.converged
    assert np.linalg.norm(b - N @ x) <= 1.1e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("method", METHODS)
def test_zeros_are_solved_and_no_iterations_refused(method):
    assert method(np.zeros((3, 2)), np.ones(3))[1].converged
    with pytest.raises(ValueError, match="maxiter is 0"):
        method(np.eye(3), np.ones(3), maxiter=0)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(["full", "low rank", "zero", "nan", "scaled"]),
    dtype=st.sampled_from([np.float64, np.complex128]),
    m=st.integers(1, 12),
    n=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-8, 1e-14, 0.0]),
    right=st.sampled_from(["random", "zero", "reachable", "nan", "tiny", "huge"]),
    start=st.booleans(),
)
def test_none_wrongly_converged_none_endless(kind, dtype, m, n, seed, rtol, right, start):
    A, b = matrix(kind, m, n, seed, dtype), numbers(m, seed + 2, dtype)
    if right == "zero":
        b[:] = 0
    elif right == "reachable":
        with np.errstate(all="ignore"):
            b = A @ numbers(n, seed + 3, dtype)
    elif right == "nan":
        b[0] = np.nan
    elif right in ("tiny", "huge"):
        b *= 1e-200 if right == "tiny" else 1e200
    x0 = numbers(n, seed + 4, dtype) if start else None
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(A, b, x0, rtol=rtol, maxiter=80)
        assert stats.iterations <= 80
        with np.errstate(all="ignore"):
            check(np.nan_to_num(A) if not b.any() else A, x, b, stats, rtol)
        if right == "nan":
            assert not stats.converged


@pytest.mark.parametrize("method", METHODS)
def test_no_x_with_nan_is_called_least(method):
    A = sp.csr_array(([1.0, 2.0], ([0, 1], [0, 1])), shape=(4, 3))
    _, stats = method(A, np.ones(4), np.array([0.0, 0.0, np.nan]))
    assert not stats.converged
    assert stats.reason


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(40, 15), (15, 40), (30, 30)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_the_least_solution(method, shape, dtype):
    """Of all that has an adjoint, and without a warning."""
    A, b = matrix("full", *shape, 3, dtype), numbers(shape[0], 1, dtype)
    want = np.linalg.lstsq(A, b)[0]
    operators = [
        A,
        sp.csr_matrix(A),  # whose H is deprecated
        dasp.SpMatrix.from_scipy(sp.csr_array(A), device="cpu"),
        sla.aslinearoperator(A),
        sla.LinearOperator(shape, lambda x: A @ x, lambda x: A.conj().T @ x, dtype=dtype),
    ]
    for operator in operators:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, stats = method(operator, b, rtol=1e-12, maxiter=1000)
        assert stats.converged, stats.reason
        np.testing.assert_allclose(x, want, atol=1e-7 * np.linalg.norm(want))
    most = {"iter_lim" if method is lsqr else "maxiter": 1000}
    theirs = getattr(sla, method.__name__)(A, b, atol=1e-12, btol=1e-12, conlim=0, **most)[0]
    np.testing.assert_allclose(x, theirs, atol=1e-6 * np.linalg.norm(want))
    again, more = method(A, b, x, rtol=1e-10)
    assert more.iterations <= 3
    np.testing.assert_allclose(again, x, atol=1e-7 * np.linalg.norm(want))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((12, 7), np.float64), ((7, 12), np.complex128), ((9, 9), np.float64)]
)
def test_the_kernels_do_the_same(monkeypatch, method, shape, dtype):
    A, b = matrix("full", *shape, 5, dtype), numbers(shape[0], 1, dtype)
    want, told = method(A, b, rtol=1e-9)
    device = emulate(monkeypatch)
    x, stats = method(A, b, rtol=1e-9)
    assert stats.converged
    assert device.launches.count("dasp_fused") > 3 * stats.iterations
    check(A, x, b, stats, 1e-9)
    assert abs(stats.iterations - told.iterations) <= 2
    np.testing.assert_allclose(x, want, atol=1e-6 * np.linalg.norm(want))


@pytest.mark.parametrize("method", METHODS)
def test_wrong_arguments_are_refused_and_an_adjoint_is_needed(method):
    A, b = matrix("full", 6, 4, 0), np.ones(6)
    with pytest.raises(TypeError, match="transpose"):
        method(sla.LinearOperator((6, 4), matvec=lambda x: A @ x, dtype=float), b)
    with pytest.raises(ValueError, match=r"b has shape \(4,\); A has 6 rows"):
        method(A, np.ones(4))
    with pytest.raises(ValueError, match=r"x0 has shape \(6,\); A has 4 columns"):
        method(A, b, np.ones(6))
    x, stats = method(np.zeros((3, 0)), np.ones(3))
    assert (x.shape, stats.converged) == ((0,), True)
    workspace = Workspace()
    for k in range(6):
        np.testing.assert_array_equal(
            method(A, np.eye(6)[k], workspace=workspace)[0], method(A, np.eye(6)[k])[0]
        )
    assert workspace.vectors == {lsqr: 7, lsmr: 8}[method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [1, 3])
def test_callbacks_and_progress(method, every, capsys):
    A, b, seen = np.random.default_rng(2).standard_normal((40, 12)), np.arange(40.0), []
    x, stats = method(A, b, rtol=1e-10, callback=lambda x: seen.append(x.copy()), check_every=every)
    assert len(seen) == len(stats.residuals) - 1 == -(-stats.iterations // every)
    np.testing.assert_array_equal(seen[-1], x)
    y, same = method(A, b, rtol=1e-10, progress=True)
    np.testing.assert_array_equal(x, y)
    assert same.iterations == stats.iterations
    assert "iterations" in capsys.readouterr().err
    with pytest.raises(TypeError, match="callback is an int"):
        method(A, b, callback=3)


@pytest.mark.cuda
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128])
def test_on_a_gpu(method, dtype):
    import cupy

    A = sp.random_array((700, 260), density=0.05, random_state=np.random.default_rng(5), format="csr")
    A = sp.csr_array(A * numbers(1, 7, dtype)[0] + sp.eye_array(700, 260)).astype(dtype)
    b, rtol = numbers(700, 6, dtype), 1e2 * tolerance(dtype)
    planned, right, workspace = dasp.SpMatrix.from_scipy(A, device="cuda"), cupy.asarray(b), Workspace()
    x, stats = method(planned, right, rtol=rtol, workspace=workspace)
    again, _ = method(planned, right, rtol=rtol, workspace=workspace)
    assert isinstance(x, cupy.ndarray)
    assert stats.converged, stats.reason
    check(A.toarray(), x.get(), b, stats, rtol)
    np.testing.assert_array_equal(x.get(), again.get())
    _, told = method(A, b, rtol=rtol)
    assert abs(told.iterations - stats.iterations) <= 2
    host, _ = method(planned, b, rtol=rtol)
    np.testing.assert_array_equal(host, x.get())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(40, 20), (20, 40)])
@pytest.mark.parametrize("scale", [1.0, 1e-170])
@pytest.mark.parametrize("start", [False, True])
def test_damp_solves_the_system_with_a_multiple_of_the_unit_matrix_below(
    method: Any, shape: tuple[int, int], scale: float, start: bool
) -> None:
    m, n = shape
    rng = np.random.default_rng(m)
    A, b = matrix("dense", m, n, 3) * scale, rng.standard_normal(m) * scale
    damp = 0.7 * scale
    x0 = rng.standard_normal(n) if start else None
    x, stats = method(dasp.SpMatrix.from_dense(A, device="cpu"), b, x0, damp=damp, rtol=1e-12)
    assert stats.converged
    below = np.zeros(n) if x0 is None else damp * x0
    whole, right = np.vstack([A, damp * np.eye(n)]) / scale, np.concatenate([b, below]) / scale
    check(whole, x, right, stats, 1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_an_x_that_scaling_rounds_is_not_called_least(method: Any) -> None:
    """A needs a power of two by which damp overflows, and x loses digits."""
    A, b, x0 = (
        np.full(shape, size, np.float32) for shape, size in (((1, 1), 1.2e-39), (1, -4e-43), (1, 2.2e-5))
    )
    x, stats = method(A, b, x0, damp=1.0, rtol=1e-3)
    assert not stats.converged or abs(x - x0)[0] <= 1e-3 * x0[0], (x, stats)


@pytest.mark.parametrize("method", METHODS)
def test_damp_is_a_finite_number_that_is_not_negative(method: Any) -> None:
    for damp, error in ((-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="damp is"):
            method(np.eye(3), np.ones(3), damp=damp)
    x, stats = method(np.eye(3), np.ones(3), damp=0)
    assert stats.converged
    assert (x == 1).all()


@pytest.mark.parametrize("method", [lsqr, lsmr])
def test_a_matrix_of_one_row_in_any_format(method):
    row = np.array([[1.0, 2.0, 0.0, 2.0]])
    for form in (sp.coo_array(row), sp.csr_array(row), sp.csc_array(row), row):
        x, stats = method(form, np.ones(1))
        assert stats.converged
        np.testing.assert_allclose(x, row[0] / 9, rtol=1e-12)
