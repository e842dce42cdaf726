"""Complex systems on the GPU's way: the kernels in the emulator, and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import preconditioners
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
from tests.support.simt_device import emulate
from tests.support.systems import (
    SQUARE,
    TYPES,
    check,
    helmholtz,
    hermitian,
    numbers,
    poisson,
    tolerance,
)

pytestmark = pytest.mark.simt


@pytest.fixture
def emulated(monkeypatch):
    """Every solve of a matrix without a device runs as on a GPU, in the emulator."""
    return emulate(monkeypatch)


@pytest.mark.parametrize(
    ("method", "A", "dtype"),
    [
        (cg, hermitian(7), np.complex64),
        (cg, hermitian(7), np.complex128),
        (minres, hermitian(7, -1.1), np.complex128),
        (chebyshev, hermitian(7), np.complex128),
        (bicgstab, helmholtz(7), np.complex128),
        (gmres, helmholtz(7), np.complex64),
        (lsqr, helmholtz(7), np.complex128),
        (lsmr, helmholtz(7), np.complex128),
    ],
)
def test_the_kernels_do_the_same(monkeypatch, method, A, dtype):
    A, b, rtol = A.astype(dtype), numbers(49).astype(dtype), tolerance(dtype)
    diagonal = sp.diags_array(np.linspace(0.2, 0.3, 49) * np.exp(0.05j))
    M = {"M": diagonal.astype(dtype)} if method in (bicgstab, gmres) else {}
    _, told = method(A, b, rtol=rtol, **M)
    device = emulate(monkeypatch)
    workspace = Workspace()
    x, stats = method(A, b, rtol=rtol, workspace=workspace, **M)
    assert stats.converged, stats.reason
    launched = "dasp_basis_take" if method is gmres else "dasp_fused"
    assert device.launches.count(launched) > stats.iterations
    check(A, x, b, stats, rtol)
    assert abs(stats.iterations - told.iterations) <= 2
    np.testing.assert_allclose(stats.residuals[:8], told.residuals[:8], rtol=1e3 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(method(A, b, rtol=rtol, workspace=workspace, **M)[0], x)


@pytest.mark.parametrize(
    ("n", "dtype", "restart"), [(1051, "c16", 11), (2101, "c8", 4), (3, "c16", 30), (1, "c8", 1)]
)
def test_gmres_finds_the_least_residual_of_every_space(emulated, n, dtype, restart):
    """After each step of the first cycle, against a basis made by Householder; also for odd lengths."""
    rng = np.random.default_rng(n)
    A = sp.random_array((n, n), density=min(1.0, 5 / n), random_state=rng) * np.exp(1j)
    A = sp.csr_array(A + sp.diags_array(np.linspace(2, 9, n) * np.exp(1j * np.linspace(0, 1, n)))).astype(
        dtype
    )
    b = numbers(n).astype(dtype)
    rtol = tolerance(dtype)
    x, stats = gmres(A, b, rtol=rtol, restart=restart)
    assert stats.converged, stats.reason
    wide = b.astype(np.complex128)
    assert np.linalg.norm(wide - A @ x.astype(np.complex128)) <= 1.01 * rtol * np.linalg.norm(wide)
    krylov, wanted, basis = wide, [], np.empty((n, 0))
    for _ in range(min(restart, n, stats.iterations)):
        basis = np.linalg.qr(np.column_stack([basis, krylov]))[0]
        krylov, image = A @ basis[:, -1], A @ basis
        y = np.linalg.lstsq(image, b, rcond=None)[0]
        wanted.append(float(np.linalg.norm(b - image @ y)))
    bound = 64 * np.finfo(dtype).eps * float(np.linalg.norm(b)) * restart
    np.testing.assert_array_less(abs(np.array(stats.residuals[1 : len(wanted) + 1]) - wanted), bound)


def test_a_complex_basis_has_its_limit_on_a_gpu(emulated):
    with pytest.raises(ValueError, match="restart is 750; on a GPU at most 749"):
        gmres(hermitian(30), numbers(900), restart=750)


@pytest.mark.parametrize("method", [cg, minres])
def test_the_kernels_tell_of_a_matrix_that_is_not_hermitian(emulated, method):
    _, stats = method(helmholtz(5), numbers(25))
    assert "not Hermitian" in stats.reason
    for b, words in ((np.zeros(25, complex), "b is zero"), (numbers(25) * np.nan, "NaN")):
        assert words in method(hermitian(5), b)[1].reason


def test_numbers_beyond_squares_through_the_kernels(emulated):
    A = hermitian(4)
    for scale in (1e-180, 1e180):
        for method in (cg, bicgstab):
            x, stats = method(A, scale * numbers(16), rtol=1e-9)
            assert stats.converged, stats.reason
            np.testing.assert_allclose(A @ (x / scale), numbers(16), atol=1e-8)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("method", "A"),
    [
        (cg, hermitian(30)),
        (minres, hermitian(30, -1.1)),
        (chebyshev, hermitian(30)),
        (bicgstab, helmholtz(30)),
        (gmres, helmholtz(30)),
        (lsqr, helmholtz(30)),
        (lsmr, helmholtz(30)),
    ],
)
def test_on_a_gpu(method, A, dtype):
    import cupy
    import cupyx.scipy.sparse

    A, b, rtol = A.astype(dtype), numbers(900).astype(dtype), tolerance(dtype)
    planned, right, workspace = dasp.SpMatrix.from_scipy(A, device="cuda"), cupy.asarray(b), Workspace()
    x, stats = method(planned, right, rtol=rtol, workspace=workspace)
    again, _ = method(planned, right, rtol=rtol, workspace=workspace)
    assert isinstance(x, cupy.ndarray)
    assert x.dtype == dtype
    assert stats.converged, stats.reason
    check(A, x.get(), b, stats, rtol)
    np.testing.assert_array_equal(x.get(), again.get())
    host, _ = method(planned, b, rtol=rtol)
    np.testing.assert_array_equal(host, x.get())
    foreign, loose = method(cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(A)), right, rtol=rtol)
    assert loose.converged, loose.reason
    check(A, foreign.get(), b, loose, rtol)
    assert abs(loose.iterations - stats.iterations) <= 0.1 * stats.iterations + 2


@pytest.mark.cuda
@pytest.mark.parametrize("method", SQUARE)
def test_a_real_matrix_and_a_complex_b_on_a_gpu(method):
    import cupy

    A, b = poisson(20), numbers(400)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    for M in (None, preconditioners.jacobi(planned), preconditioners.chebyshev(planned)):
        for _ in range(2):
            x, stats = method(planned, cupy.asarray(b), rtol=1e-9, M=M)
            assert stats.converged, stats.reason
            check(A, x.get(), b, stats, 1e-9)


@pytest.mark.cuda
def test_several_right_hand_sides_and_eigenpairs_on_a_gpu():
    import cupy

    A, B = hermitian(15), np.column_stack([numbers(225, seed) for seed in range(3)])
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    X, stats = block_cg(planned, cupy.asarray(B), rtol=1e-9)
    assert stats.converged, stats.reason
    assert np.linalg.norm(B - A @ X.get()) <= 3e-9 * np.linalg.norm(B)
    values, _, stats = lobpcg(planned, cupy.asarray(B), rtol=1e-7)
    assert stats.converged, stats.reason
    exact = np.linalg.eigvalsh(A.toarray())[::-1][:3]
    assert (abs(values - exact) <= 1e-7 * exact).all()


@pytest.mark.cuda
@pytest.mark.parametrize("method", [cg, minres])
def test_what_is_told_on_a_gpu(method):
    planned = dasp.SpMatrix.from_scipy(helmholtz(12), device="cuda")
    _, stats = method(planned, numbers(144))
    assert "not Hermitian" in stats.reason
    planned = dasp.SpMatrix.from_scipy(hermitian(12), device="cuda")
    for b, words in ((np.zeros(144, complex), "b is zero"), (numbers(144) * np.nan, "NaN")):
        assert words in method(planned, b)[1].reason
    x, stats = method(planned, 1e-180 * numbers(144), rtol=1e-9)
    assert stats.converged, stats.reason
    np.testing.assert_allclose(hermitian(12) @ (x * 1e180), numbers(144), atol=1e-6)
