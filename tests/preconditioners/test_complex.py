"""Complex preconditioners and multigrid cycles, in solves and by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import preconditioners
from dasp.solvers import bicgstab, cg, gmres, minres
from tests.support.simt_device import emulate
from tests.support.systems import TYPES, check, helmholtz, hermitian, numbers, poisson, tolerance

pytestmark = pytest.mark.simt

KINDS = ["jacobi", "block", "chebyshev", "ilu0", "ic0", "swept"]


# ---- preconditioners --------------------------------------------------------------------------------


def made(kind: str, A: Any) -> Any:
    return {
        "jacobi": lambda: preconditioners.jacobi(A),
        "block": lambda: preconditioners.block_jacobi(A, block=4),
        "chebyshev": lambda: preconditioners.chebyshev(A),
        "ilu0": lambda: preconditioners.ilu0(A),
        "ic0": lambda: preconditioners.ic0(A),
        "swept": lambda: preconditioners.ilu0(A, sweeps=4),
    }[kind]()


def graded(A: sp.csr_array) -> sp.csr_array:
    """Rows and columns scaled, which a diagonal undoes."""
    scale = sp.diags_array(np.logspace(0, 1.5, A.shape[0]))
    return sp.csr_array(scale @ A @ scale)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, np.complex128) for kind in KINDS), ("block", np.complex64), ("swept", np.complex64)],
)
def test_complex_preconditioners(kind, dtype):
    A, b = graded(hermitian(12)).astype(dtype), numbers(144).astype(dtype)
    M, rtol = made(kind, A), tolerance(dtype)
    assert M.dtype == dtype
    for method in (cg, minres, bicgstab, gmres):
        x, stats = method(A, b, M=M, rtol=rtol, maxiter=4000)
        assert stats.converged, stats.reason
        check(A, x, b, stats, rtol)
        plain = method(A, b, rtol=rtol, maxiter=4000)[1]
        assert stats.iterations < 0.6 * plain.iterations or not plain.converged
    single = M.astype(np.complex64)
    _, stats = gmres(A.astype(complex), b.astype(complex), M=single, rtol=1e-10, maxiter=4000)
    assert stats.converged
    with pytest.raises(ValueError, match="complex64 or complex128 is needed"):
        M.astype(np.float32)


@pytest.mark.parametrize("kind", ["jacobi", "block", "ilu0", "swept"])
def test_preconditioners_of_a_matrix_that_is_not_hermitian(kind):
    A = graded(helmholtz(12))
    M, b = made(kind, A), numbers(144)
    for method in (bicgstab, gmres):
        x, stats = method(A, b, M=M, rtol=1e-10, maxiter=4000)
        assert stats.converged, stats.reason
        check(A, x, b, stats, 1e-10)
    if kind == "ilu0":
        with pytest.raises(ValueError, match="A is not Hermitian; ilu0"):
            preconditioners.ic0(A)
    elif kind == "jacobi":
        np.testing.assert_allclose(M @ b, b / A.diagonal(), rtol=8 * np.finfo(float).eps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_preconditioner_takes_complex_vectors(kind):
    A, r = graded(poisson(10)), numbers(100)
    M = made(kind, A)
    z = M @ r
    assert z.dtype == np.complex128
    np.testing.assert_array_equal(z, (M @ r.real) + 1j * (M @ r.imag))
    out = np.full(100, np.nan, complex)
    assert M.matvec(r, out=out) is out
    np.testing.assert_array_equal(out, z)
    np.testing.assert_array_equal(M @ np.column_stack([r, r]), np.column_stack([z, z]))
    for method in (cg, gmres):
        x, stats = method(A, r, M=M, rtol=1e-10)
        assert stats.converged, stats.reason
        check(A, x, r, stats, 1e-10)


def test_a_complex_preconditioner_and_real_vectors():
    M, r = preconditioners.jacobi(hermitian(4) * 1j), np.ones(16)
    np.testing.assert_array_equal(M @ r, r / 4j)
    np.testing.assert_array_equal(M @ np.column_stack([r, r]), np.full((16, 2), 1 / 4j))
    assert (M @ r.astype(np.float32)).dtype == np.complex64
    with pytest.raises(TypeError, match="out has dtype float64; M r is complex"):
        M.matvec(r, out=np.empty(16))


def matrix_of(M: Any) -> np.ndarray:
    return np.column_stack([M @ column for column in np.eye(M.shape[0], dtype=complex)])


@pytest.mark.parametrize("dtype", TYPES)
def test_triangles_through_the_kernels(monkeypatch, dtype):
    A, r = hermitian(6).astype(dtype), numbers(36).astype(dtype)
    want = preconditioners.ilu0(A) @ r
    device = emulate(monkeypatch)
    got = preconditioners.ilu0(A) @ r
    assert "dasp_triangular" in device.launches
    np.testing.assert_allclose(got, want, rtol=1e2 * np.finfo(dtype).eps)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_preconditioners_on_a_gpu(kind, dtype):
    import cupy

    A, b, rtol = graded(hermitian(12)).astype(dtype), numbers(144).astype(dtype), tolerance(dtype)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    M = made(kind, planned)
    for method in (cg, bicgstab, gmres):
        x, stats = method(planned, cupy.asarray(b), M=M, rtol=rtol, maxiter=2000)
        assert stats.converged, stats.reason
        check(A, x.get(), b, stats, rtol)
