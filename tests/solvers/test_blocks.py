"""Chebyshev iteration, block conjugate gradients, LOBPCG."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.solvers import Workspace, block_cg, cg, chebyshev, lobpcg
from tests.support.systems import (
    check,
    helmholtz,
    model,
    numbers,
    poisson,
    residual_bound,
    system,
    true_residual,
)

pytestmark = pytest.mark.simt


@pytest.mark.parametrize("bounds", [None, "exact", "wide"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_chebyshev_solves(bounds, preconditioned):
    A = poisson(15)
    b = np.random.default_rng(0).standard_normal(225)
    d = 1 / (A.diagonal() * np.linspace(1, 3, 225))
    M = sp.diags_array(d, format="csr") if preconditioned else None
    root = np.sqrt(d) if preconditioned else np.ones(225)
    values = np.linalg.eigvalsh(root[:, None] * A.toarray() * root)
    given_bounds = {"exact": (values[0], values[-1]), "wide": (values[0] / 4, 2 * values[-1])}.get(bounds)
    workspace = Workspace()
    x, stats = chebyshev(A, b, bounds=given_bounds, M=M, rtol=1e-9, workspace=workspace)
    assert stats.converged, stats.reason
    check(A, x, b, stats, 1e-9)
    assert workspace.vectors == (6 if preconditioned else 5)
    # The bound of the error polynomial: 2 / (c^k + c^-k) in the norm of the residual, of a normal matrix.
    if bounds == "exact" and not preconditioned:
        low, high = given_bounds
        c = (np.sqrt(high) + np.sqrt(low)) / (np.sqrt(high) - np.sqrt(low))
        for k, norm in enumerate(stats.residuals):
            assert norm <= 2 / (c**k + c**-k) * stats.residuals[0] * (1 + 1e-6) + 1e-12


def test_chebyshev_tells_of_wrong_bounds():
    A, b = poisson(10), np.random.default_rng(0).standard_normal(100)
    _, stats = chebyshev(A, b, bounds=(0.1, 2.0), rtol=1e-9)
    assert not stats.converged
    assert "pass bounds" in stats.reason
    for odd in (np.diag([1e200, 1.0, 1e-200]), np.diag([1.0, np.nan, 1.0]), -np.eye(3), np.zeros((3, 3))):
        with pytest.raises(ValueError, match="no bounds of the spectrum are found"):
            chebyshev(odd, np.ones(3))
    with pytest.raises(ValueError, match="bounds are"):
        chebyshev(A, b, bounds=(2.0, 1.0))
    with pytest.raises(ValueError, match="not positive definite"):
        chebyshev(-A, b)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["definite", "indefinite", "singular", "nan", "diagonal"]),
    n=st.integers(1, 12),
    k=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    rtol=st.sampled_from([1e-3, 1e-9, 0.0]),
    dependent=st.booleans(),
)
def test_block_cg_none_wrongly_converged_none_endless(kind, n, k, seed, rtol, dependent):
    A, _ = system(kind, n, seed)
    B = np.random.default_rng(seed).standard_normal((n, k))
    if dependent:
        B[:, -1] = B[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X, stats = block_cg(A, B, rtol=rtol, maxiter=40)
    assert stats.iterations <= 40
    assert stats.converged == (stats.info == 0)
    if stats.converged:
        for x, b in zip(X.T, B.T, strict=True):
            assert true_residual(A, x, b) <= rtol * np.linalg.norm(b) * (1 + 1e-6) + residual_bound(A, x, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_block_cg_takes_columns_of_any_size(dtype):
    """Whose squares are no numbers; a zero column has a zero solution, whatever was given for it."""
    A, single = poisson(6).astype(dtype), dtype == np.float32
    sizes = np.array([1e-30, 1.0, 1e30, 0.0] if single else [1e-250, 1.0, 1e250, 0.0])
    B = (np.random.default_rng(0).standard_normal((36, 4)) * sizes).astype(dtype)
    seen: list[np.ndarray] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X, stats = block_cg(A, B, rtol=1e-4, callback=lambda X: seen.append(X.copy()))
        zero, told = block_cg(A * 0, B[:, 3:], np.ones((36, 1), dtype))
    assert stats.converged, stats.reason
    assert told.converged
    assert not zero.any()
    np.testing.assert_array_equal(seen[-1], X)
    for k in range(3):
        scaled = np.ascontiguousarray(X[:, k] / sizes[k])
        check(A, scaled, (B[:, k] / sizes[k]).astype(dtype), stats, 1e-4)
    assert not X[:, 3].any()


@pytest.mark.parametrize("M", [None, sp.eye_array(100)])
@pytest.mark.parametrize("size", [1e-9, 1e-40, 0.0])
def test_a_small_column_costs_block_cg_no_iterations(size, M):
    """Beside others it is below the rank of their Gram matrix, and a zero one must stay zero."""
    A, B = poisson(10), np.random.default_rng(0).standard_normal((100, 4))
    _, alone = block_cg(A, B, M=M)
    small = B * np.array([1.0, size, 1.0, 1.0])
    X, stats = block_cg(A, small, M=M)
    assert stats.converged, stats.reason
    assert stats.iterations <= alone.iterations + 2  # one vector fewer shares the space where one is zero
    for k in range(4):
        assert np.linalg.norm(small[:, k] - A @ X[:, k]) <= 1.001e-5 * np.linalg.norm(small[:, k])


def test_block_cg_takes_lists_and_no_masks():
    A, B = poisson(3), np.random.default_rng(0).standard_normal((9, 2))
    want, _ = block_cg(A, B)
    for right in (B.tolist(), B.astype(">f8")):
        np.testing.assert_array_equal(block_cg(A, right, np.zeros((9, 2)).tolist())[0], want)
    masked = np.ma.masked_array(B, B > 0)
    for call in (lambda: block_cg(A, masked), lambda: block_cg(A, B, masked), lambda: lobpcg(A, masked)):
        with pytest.raises(TypeError, match="masked array"):
            call()
    with pytest.raises(ValueError, match=r"X0 has shape \(2, 9\); A has 9 rows"):
        block_cg(A, B, B.T)


@pytest.mark.parametrize(("size", "right"), [(1e-80, 1e250), (1e80, 1e-250)])
def test_an_x_that_its_type_does_not_hold_is_no_solution(size, right):
    _, stats = block_cg(size * np.diag([1.0, 2.0]), np.array([[1.0, right], [2.0, right]]))
    assert not stats.converged
    assert "too large or too small for its type" in stats.reason


def test_block_cg_calls_no_x_with_nan_converged():
    A = sp.csr_array(([1.0, 2.0], ([0, 1], [0, 1])), shape=(3, 3))
    _, stats = block_cg(A, np.array([[1.0], [1.0], [0.0]]), np.array([[0], [0], [np.nan]]), atol=10.0)
    assert not stats.converged
    assert "x0 or M gave it" in stats.reason


@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("k", [1, 2])
def test_block_cg_solves_no_column_that_is_not_finite(k, odd):
    B = np.ones((3, k))
    B[:, -1] = odd
    _, stats = block_cg(np.diag([1.0, 2.0, 3.0]), B)
    assert not stats.converged
    assert not np.isfinite(stats.residual)
    assert np.isnan(stats.relative)
    assert "B or X0 holds NaN or infinity" in stats.reason


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_block_cg_shares_the_space(dtype):
    A = model("definite", 20, dtype)
    B = numbers(2400, dtype=dtype).reshape(400, 6)
    planned = dasp.SpMatrix.from_scipy(A, device="cpu")
    X, stats = block_cg(planned, B, rtol=1e-9)
    assert stats.converged
    np.testing.assert_allclose(X, sla.spsolve(A.tocsc(), B), atol=1e-7)
    assert stats.iterations < cg(A, B[:, 0], rtol=1e-9)[1].iterations
    spoilt, more = block_cg(planned, B, rtol=1e-9, callback=lambda X: X.fill(np.nan))
    np.testing.assert_array_equal(spoilt, X)
    again, more = block_cg(A, B, X, rtol=1e-8)
    assert more.iterations == 0
    np.testing.assert_array_equal(again, X)
    with pytest.raises(ValueError, match="B has shape"):
        block_cg(A, B[:, 0])
    _, told = block_cg(-A, B)
    assert "not positive definite" in told.reason
    if dtype == np.complex128:
        dependent = np.column_stack([B, 1j * B[:, 0]])
        X, stats = block_cg(A, dependent, rtol=1e-10)
        assert stats.converged
        np.testing.assert_allclose(X[:, 6], 1j * X[:, 0], atol=1e-8)
        _, told = block_cg(helmholtz(20), B)
        assert (told.converged, "not Hermitian" in told.reason) == (False, True)
        with pytest.raises(TypeError, match="X0 has dtype complex128"):
            block_cg(A.real, B.real, B)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("k", "dtype"), [(1, np.float64), (5, np.float64), (3, np.complex128)])
def test_lobpcg_finds_the_outermost(largest, k, dtype):
    A = model("definite", 12, dtype) + sp.diags_array(np.linspace(0, 1, 144))
    X = numbers(144 * k, dtype=dtype).reshape(144, k)
    values, vectors, stats = lobpcg(A, X, largest=largest, rtol=1e-9, maxiter=500)
    assert stats.converged, stats.reason
    every = np.linalg.eigvalsh(A.toarray())
    want = every[::-1][:k] if largest else every[:k]
    np.testing.assert_allclose(values, want, rtol=1e-9)
    assert values.dtype == np.float64
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(k), atol=1e-10)
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=1e-7)


def test_lobpcg_with_a_preconditioner_and_wrong_arguments():
    A = poisson(16)
    X = np.random.default_rng(0).standard_normal((256, 3))
    M: Any = sla.LinearOperator(A.shape, matvec=sla.factorized(A.tocsc()), dtype=float)
    values, _, stats = lobpcg(A, X, largest=False, M=M, rtol=1e-8)
    plain = lobpcg(A, X, largest=False, rtol=1e-8)[2]
    assert stats.converged
    assert plain.converged
    assert stats.iterations < plain.iterations / 2
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.toarray())[:3], rtol=1e-9)
    with pytest.raises(ValueError, match="1 <= k <= 3"):
        lobpcg(np.eye(9), np.ones((9, 4)))
    with pytest.raises(ValueError, match=r"X is an int; .* \(256, k\)"):
        lobpcg(A, 3)
    with pytest.raises(ValueError, match="maxiter is 0"):
        lobpcg(A, X, maxiter=0)
    with pytest.raises(ValueError, match="X has 3 columns of rank 2"):
        lobpcg(A, X[:, [0, 1, 0]])
    with pytest.raises(ValueError, match="X has 2 columns of rank 0"):
        lobpcg(A, np.zeros((256, 2)))
    values, _, stats = lobpcg(np.full((9, 9), np.nan), np.ones((9, 1)))
    assert not stats.converged
    _, _, stats = lobpcg(helmholtz(16), X)
    assert (stats.converged, "not Hermitian" in stats.reason) == (False, True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_lobpcg_takes_numbers_of_any_size(dtype):
    """Squares of the residuals of a tiny matrix are 0, which says nothing."""
    single = dtype == np.float32
    A = (poisson(6) + sp.diags_array(np.linspace(0, 1, 36))).astype(dtype)
    X = np.random.default_rng(0).standard_normal((36, 2)).astype(dtype)
    rtol = 1e-3 if single else 1e-8
    want = np.linalg.eigvalsh(A.toarray().astype(complex))[::-1][:2]
    for power in (-80, 80) if single else (-800, 800):
        size = dtype(2.0**power)
        for matrix, start, scale in ((A * size, X, 2.0**power), (A, X * size, 1.0)):
            values, V, stats = lobpcg(matrix, start, rtol=rtol)
            assert stats.converged, stats.reason
            np.testing.assert_allclose(values / scale, want, rtol=10 * rtol)
            np.testing.assert_allclose(V.conj().T @ V, np.eye(2), atol=1e-4 if single else 1e-10)
        _, _, told = lobpcg(A * size, X, rtol=rtol, maxiter=1)
        assert not told.converged
    values, _, stats = lobpcg(A * dtype(2.0**-80), X, rtol=0.0, atol=1e-3 * 2.0**-80, maxiter=400)
    assert stats.converged
    assert stats.residual <= 1e-3 * 2.0**-80
    np.testing.assert_allclose(values * 2.0**80, want, atol=1e-2)


def test_lobpcg_reports_residuals_whose_squares_are_lost():
    diagonal = np.concatenate([np.ones(3), 1e-25 * np.arange(1, 7)])
    A, X = np.diag(diagonal).astype(np.float32), np.zeros((9, 2), np.float32)
    X[0, 0], X[3:, 1] = 1, 6**-0.5
    values, V, stats = lobpcg(A, X, maxiter=1, rtol=0)
    error = A.astype(np.longdouble) @ V - V.astype(np.longdouble) * values
    true = np.linalg.norm(error.astype(float), axis=0).max()
    assert true > 0
    assert abs(stats.residual - true) <= 1e-3 * true


def test_lobpcg_claims_true_residuals_alone():
    """Of an eigenvalue that is small beside others; products that were combined had drifted for some."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        scale = np.diag(10.0 ** rng.uniform(-3, 3, 3))
        parts = rng.uniform(-1, 1, (3, 3)) + 1j * rng.uniform(-1, 1, (3, 3))
        half = np.tril(scale @ (np.eye(3) * 3 + parts) @ scale).astype(np.complex64)
        A = half + np.tril(half, -1).conj().T
        np.fill_diagonal(A, half.diagonal().real)
        X = rng.standard_normal((3, 1)).astype(np.complex64)
        wide = A.astype(complex)
        atol = 1e-2 * abs(np.linalg.eigvalsh(wide)[0])
        values, X, stats = lobpcg(A, X, largest=False, rtol=0.0, atol=atol)
        assert stats.converged, stats.reason
        x = X.astype(complex)
        rounding = 100 * 2.0**-24 * np.linalg.norm(abs(wide) @ abs(x))
        assert np.linalg.norm(wide @ x - x * values) <= 1.02 * atol + rounding


@pytest.mark.parametrize("seed", range(3))
def test_lobpcg_keeps_its_vectors_orthonormal(seed):
    """All eigenvalues but one are equal, so that soon only rounding is left of residuals and directions."""
    rng = np.random.default_rng(seed)
    u, X = rng.standard_normal(16), rng.standard_normal((16, 3))
    A, M = np.eye(16) + 4 * np.outer(u, u) / (u @ u), np.diag(10.0 ** rng.uniform(-2, 2, 16))
    values, V, stats = lobpcg(A, X, M=M, rtol=1e-6, maxiter=300)
    assert stats.converged, stats.reason
    np.testing.assert_allclose(V.T @ V, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(values, [5, 1, 1], atol=1e-6)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_lobpcg_stops_on_the_laplacian_of_a_graph(preconditioned):
    """Its least eigenvalue is 0; of two parts that nothing joins, twice."""
    part = sp.csgraph.laplacian(abs(poisson(12)).sign())
    A = sp.block_diag([part, part], format="csr")
    M = sp.diags_array(1 / A.diagonal()) if preconditioned else None
    X = np.random.default_rng(0).standard_normal((A.shape[0], 3))
    values, V, stats = lobpcg(A, X, largest=False, M=M, rtol=1e-7)
    assert stats.converged, stats.reason
    norm = np.linalg.norm(A.toarray(), 2)
    assert np.linalg.norm(A @ V - V * values, axis=0).max() <= 1e-7 * norm
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.toarray())[:3], atol=1e-7 * norm)


@pytest.mark.parametrize("kind", ["any", "complex", "eigenvectors"])
def test_lobpcg_with_constraints(kind):
    """The pairs are those of the projected matrix; eigenvectors that are known are not found again."""
    rng = np.random.default_rng(0)
    A, X, Y = poisson(9), rng.standard_normal((81, 2)), rng.standard_normal((81, 3))
    if kind == "complex":
        A, Y = A.astype(np.complex128), Y + 1j * rng.standard_normal((81, 3))
    if kind == "eigenvectors":
        Y = np.linalg.eigh(A.toarray())[1][:, :3] @ rng.standard_normal((3, 3))
    Q = np.linalg.qr(Y)[0]
    outside = scipy.linalg.null_space(Q.conj().T)
    want = np.linalg.eigvalsh(outside.conj().T @ A @ outside)
    for largest, ends in ((False, want[:2]), (True, want[:-3:-1])):
        values, V, stats = lobpcg(A, X, Y=Y, largest=largest, rtol=1e-8, maxiter=400)
        assert stats.converged, stats.reason
        np.testing.assert_allclose(values, ends, rtol=1e-10)
        np.testing.assert_allclose(Q.conj().T @ V, 0, atol=1e-12)
        left = A @ V - V * values
        left -= Q @ (Q.conj().T @ left)
        assert np.linalg.norm(left, axis=0).max() <= 1.001e-8 * 8


def test_lobpcg_refuses_wrong_constraints():
    A, X = poisson(3), np.random.default_rng(0).standard_normal((9, 2))
    with pytest.raises(ValueError, match=r"9 rows and Y 4 columns, so \(9, k\) is needed, with 1 <= k <= 1"):
        lobpcg(A, X, Y=np.eye(9)[:, :4])
    with pytest.raises(ValueError, match="Y has shape"):
        lobpcg(A, X, Y=np.ones((8, 1)))
    with pytest.raises(TypeError, match="Y has dtype complex128"):
        lobpcg(A, X, Y=1j * X[:, :1])


def test_lobpcg_takes_no_name_of_an_end():
    with pytest.raises(TypeError, match="largest is 'SM'; True or False is needed"):
        lobpcg(poisson(3), np.eye(9, 2), largest="SM")


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_lobpcg_tells_of_what_is_no_number(odd):
    A, X = poisson(6), np.random.default_rng(0).standard_normal((36, 2))
    wrong = X.copy()
    wrong[3, 1] = odd
    M = sp.diags_array(np.where(np.arange(36) == 7, odd, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _, _, stats in (lobpcg(A, wrong), lobpcg(A, X, M=M), lobpcg(sp.csr_array(M), X)):
            assert not stats.converged
            assert "NaN" in stats.reason


def test_lobpcg_ends_as_other_methods_do():
    """At a limit it has the residual of its X and says where it was; where M breaks down too."""
    A, X = poisson(6), np.random.default_rng(0).standard_normal((36, 2))
    values, V, stats = lobpcg(A, X, maxiter=2)
    true = np.linalg.norm(A @ V - V * values, axis=0).max()
    assert (stats.info, stats.iterations, len(stats.residuals)) == (2, 2, 3)
    assert abs(stats.residual - true) <= 1e-12 * true
    assert stats.reason == f"2 iterations were made: the largest residual is {true:.3g}"
    M = sp.diags_array(np.where(np.arange(36) == 7, np.nan, 1.0))
    values, V, stats = lobpcg(A, X, M=M)
    true = np.linalg.norm(A @ V - V * values, axis=0).max()
    assert (stats.info, stats.iterations) == (-1, 1)
    assert abs(stats.residual - true) <= 1e-12 * true
    assert stats.reason.startswith("iteration 1: NaN or infinity came up")


@pytest.mark.parametrize("dependent", [False, True])
def test_a_preconditioned_block(dependent):
    """As cg does, it takes fewer iterations with a good M, and the same x; M may be indefinite by mistake."""
    scale = sp.diags_array(np.logspace(0, 1.5, 144))
    A = sp.csr_array(scale @ poisson(12) @ scale)
    B = np.random.default_rng(3).standard_normal((144, 3))
    if dependent:
        B[:, 2] = B[:, 0] - 2 * B[:, 1]
    M = sp.diags_array(1 / A.diagonal())
    plain = block_cg(A, B, rtol=1e-9, maxiter=2000)[1]
    X, stats = block_cg(A, B, rtol=1e-9, M=M)
    assert stats.converged, stats.reason
    assert stats.iterations < plain.iterations / 2
    for k in range(3):
        check(A, np.ascontiguousarray(X[:, k]), B[:, k], stats, 1e-9)
    _, same = block_cg(A, B, rtol=1e-9, M=sp.eye_array(144), maxiter=2000)
    assert abs(same.iterations - plain.iterations) <= 0.05 * plain.iterations + 1
    _, told = block_cg(A, B, M=-M)
    assert (told.converged, "M is not positive definite" in told.reason) == (False, True)
    with np.errstate(all="ignore"):
        _, told = block_cg(A, B, M=sp.diags_array(np.full(144, np.nan)))
    assert (told.converged, "M gave NaN" in told.reason) == (False, True)
    with pytest.raises(ValueError, match="M has shape"):
        block_cg(A, B, M=np.eye(3))


def test_block_methods_multiply_all_columns_at_once():
    widths: list[int] = []

    class Counted:
        """A matrix that takes no column alone."""

        shape, dtype, device, takes_out = (144, 144), np.dtype(np.float64), "cpu", True
        csr = poisson(12)

        def matvec(self, x, out):
            raise NotImplementedError

        __matmul__ = matvec

        def matmat(self, X, out):
            widths.append(X.shape[1])
            out[...] = self.csr @ X

    B = np.random.default_rng(0).standard_normal((144, 3))
    assert block_cg(Counted(), B)[1].converged
    assert set(widths) == {3}
    assert lobpcg(Counted(), B)[2].converged
    assert 9 in widths
    assert set(widths) <= {3, 5, 7, 9}


def test_a_preconditioner_takes_columns_and_serves_scipys_lobpcg():
    A, B = poisson(12), np.random.default_rng(0).standard_normal((144, 3))
    M = dasp.preconditioners.ic0(A)
    want = np.column_stack([M @ column for column in B.T])
    out = np.full((144, 3), np.nan)
    assert M.matmat(B, out=out) is out
    for got in (out, M @ B, M(B), M.matmat(np.asfortranarray(B))):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match=r"R has shape \(3, 144\); \(144, k\)"):
        M.matmat(B.T)
    with pytest.raises(ValueError, match=r"out is .* shape of R"):
        M.matmat(B, out=out[:, :2])
    values, _ = sla.lobpcg(A, B, M=M, largest=False, tol=1e-8, maxiter=100)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(A.toarray())[:3], rtol=1e-9)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_on_a_gpu(dtype):
    import cupy

    A, B = model("definite", 24, dtype), numbers(2304, 7, dtype).reshape(576, 4)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    x, stats = chebyshev(planned, cupy.asarray(B[:, 0]), rtol=1e-9)
    assert stats.converged, stats.reason
    check(A, x.get(), B[:, 0], stats, 1e-9)
    X, stats = block_cg(planned, cupy.asarray(B), rtol=1e-9)
    assert isinstance(X, cupy.ndarray)
    assert stats.converged, stats.reason
    for k in range(4):
        wanted = 1e-9 * np.linalg.norm(B[:, k])
        got = X[:, k].get()
        assert true_residual(A, got, B[:, k]) <= wanted * (1 + 1e-6) + residual_bound(A, got, B[:, k])
    X, told = block_cg(planned, cupy.asarray(B), M=dasp.preconditioners.ic0(planned), rtol=1e-9)
    assert told.converged, told.reason
    assert told.iterations < stats.iterations
    values, V, stats = lobpcg(planned, cupy.asarray(B[:, :3]), rtol=1e-7)
    assert stats.converged, stats.reason
    exact = np.linalg.eigvalsh(A.toarray())[::-1][:3]
    # An eigenvalue lies within the residual's norm of each Ritz value.
    assert (abs(values - exact) <= 1e-7 * exact).all()
    assert V.shape == (576, 3)


@pytest.mark.parametrize("M", [None, np.eye(5)])
def test_a_matrix_of_zeros_is_called_singular_at_once(M):
    X, stats = block_cg(np.zeros((5, 5)), np.ones((5, 2)), M=M)
    assert not stats.converged
    assert stats.iterations == 1
    assert "A is singular" in stats.reason
    np.testing.assert_array_equal(X, 0)


def test_lobpcg_takes_null_vectors_of_a_hermitian_matrix():
    """Their products with A are rounding, which is not Hermitian."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((30, 30)) + 1j * rng.standard_normal((30, 30)))[0]
    A = (Q * np.r_[2.0, np.zeros(29)]) @ Q.conj().T
    values, _, stats = lobpcg((A + A.conj().T) / 2, Q[:, 1:4], largest=False)
    assert stats.converged, stats.reason
    assert abs(values).max() < 1e-12
