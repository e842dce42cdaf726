"""Complex preconditioners and multigrid cycles, in solves and by themselves."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import preconditioners
from dasp.preconditioners import base
from dasp.solvers import Workspace, bicgstab, cg, gmres, minres
from dasp.solvers.cuda.space import CudaSpace
from tests.solvers.test_complex import TYPES, helmholtz, hermitian, numbers, tolerance
from tests.solvers.test_solvers import check, poisson
from tests.support.simt_device import EmulatedDevice, hold_emulated

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


# ---- multigrid --------------------------------------------------------------------------------------


def aggregated(A: Any, symmetry: str = "hermitian", **options: Any) -> Any:
    """PyAMG's hierarchy of a matrix."""
    pyamg = pytest.importorskip("pyamg")
    return pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), symmetry=symmetry, **options)


def in_field(side: int, **options: Any) -> Any:
    """The hierarchy of `hermitian(side)`: the vector that it nearly maps to 0 has these phases."""
    phases = np.exp(-0.3j * np.cumsum(np.arange(side)))
    return aggregated(hermitian(side), B=np.kron(phases, phases)[:, None], **options)


def matrix_of(M: Any) -> np.ndarray:
    return np.column_stack([M @ column for column in np.eye(M.shape[0], dtype=complex)])


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("smoother", ["chebyshev", "jacobi", "gauss-seidel"])
def test_a_multigrid_cycle_is_hermitian_and_definite(smoother, cycle):
    A, ml = hermitian(18), in_field(18, max_coarse=6)
    M = preconditioners.multigrid(ml, smoother=smoother, cycle=cycle, device="cpu")
    assert M.dtype == np.complex128
    dense = matrix_of(M)
    np.testing.assert_allclose(dense, dense.conj().T, atol=1e-11 * abs(dense).max())
    assert abs(dense.imag).max() > 0.01 * abs(dense).max()
    assert np.linalg.eigvalsh(dense)[0] > 0
    b = numbers(324)
    _, plain = cg(A, b, rtol=1e-9)
    for one in (M, M.astype(np.complex64)):
        x, stats = cg(A, b, M=one, rtol=1e-9)
        assert stats.converged
        assert stats.iterations < plain.iterations / 3
        check(A, x, b, stats, 1e-9)


@pytest.mark.parametrize("cycle", ["V", "W", "F"])
def test_a_complex_cycle_is_pyamgs(cycle):
    pyamg, ml = pytest.importorskip("pyamg"), in_field(30, max_coarse=10)
    pyamg.relaxation.smoothing.change_smoothers(
        ml, ("gauss_seidel", {"sweep": "forward"}), ("gauss_seidel", {"sweep": "backward"})
    )
    M, r = preconditioners.multigrid(ml, smoother="gauss-seidel", cycle=cycle, device="cpu"), numbers(900)
    want = ml.solve(r, cycle=cycle, maxiter=1, tol=1e-30)
    np.testing.assert_allclose(M @ r, want, rtol=0, atol=1e-9 * abs(want).max())


@pytest.mark.parametrize("smoother", ["chebyshev", "jacobi", "gauss-seidel"])
def test_the_last_complex_levels_are_one_matrix(smoother, monkeypatch):
    module = importlib.import_module("dasp.multigrid.hierarchy")
    ml, r, answers = in_field(24, max_coarse=4), numbers(576), []
    for rows in (0, 100, 1000):
        monkeypatch.setattr(module, "DENSE_ROWS", rows)
        answers.append(preconditioners.multigrid(ml, smoother=smoother, sweeps=2, device="cpu") @ r)
    for one in answers[1:]:
        np.testing.assert_allclose(one, answers[0], rtol=0, atol=1e-9 * abs(answers[0]).max())


@pytest.mark.parametrize("dtype", TYPES)
def test_kernels_of_complex_cycles_do_the_same(monkeypatch, dtype):
    module = importlib.import_module("dasp.multigrid.hierarchy")
    monkeypatch.setattr(module, "DENSE_ROWS", 4)
    ml, r = in_field(7, max_coarse=3), numbers(49)

    def made() -> list[Any]:
        options: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
        return [preconditioners.multigrid(ml, smoother=one, **options) for one in ("chebyshev", "jacobi")]

    hold_emulated(monkeypatch, made, r, dtype)


@pytest.mark.parametrize("method", [gmres, bicgstab])
def test_a_shifted_laplacian_helps_with_helmholtz(method):
    """The hierarchy is of another matrix, which is further from singular."""
    A, b = sp.csr_array(poisson(24) - (0.09 - 0.002j) * sp.eye_array(576)), numbers(576)
    shifted = sp.csr_array(poisson(24) - (0.09 - 0.045j) * sp.eye_array(576))
    M = preconditioners.multigrid(aggregated(shifted, "symmetric", max_coarse=10), device="cpu")
    x, stats = method(A, b, M=M, rtol=1e-8)
    assert stats.converged, stats.reason
    check(A, x, b, stats, 1e-8)
    assert stats.iterations < method(A, b, rtol=1e-8, maxiter=2000)[1].iterations / 3


def test_real_levels_stay_real_and_a_cycle_has_the_type_of_its_matrices():
    """A real prolongation is not kept as complex numbers; any complex matrix makes the cycle complex."""
    A = hermitian(20, 0.1)
    ml = aggregated(poisson(20))
    mixed = SimpleNamespace(levels=[SimpleNamespace(A=A, P=ml.levels[0].P, R=ml.levels[0].R)])
    coarse = (mixed.levels[0].R @ A @ mixed.levels[0].P).tocsr()
    mixed.levels.append(SimpleNamespace(A=coarse))
    M: Any = preconditioners.multigrid(mixed, device="cpu")
    assert M.dtype == np.complex128
    assert [one._A.dtype for one in (*M._P, *M._R)] == [np.float64] * 2
    b = numbers(400)
    assert cg(A, b, M=M, rtol=1e-9)[1].converged
    assert preconditioners.multigrid(ml, device="cpu").dtype == np.float64
    with pytest.raises(ValueError, match="dtype is float32; complex64 or complex128 is needed"):
        preconditioners.multigrid(mixed, dtype=np.float32)
    with pytest.raises(ValueError, match="dtype is complex64; float32 or float64 is needed"):
        preconditioners.multigrid(ml, dtype=np.complex64)


@pytest.mark.cuda
def test_complex_multigrid_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    A, ml, b = hermitian(60), in_field(60), numbers(3600)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    for smoother in ("chebyshev", "jacobi"):
        _, told = cg(A, b, M=preconditioners.multigrid(ml, smoother=smoother, device="cpu"), rtol=1e-9)
        M, workspace = preconditioners.multigrid(ml, smoother=smoother), Workspace()
        for one in (M, M.astype(np.complex64)):
            x, stats = cg(planned, cupy.asarray(b), M=one, rtol=1e-9, workspace=workspace)
            again, _ = cg(planned, cupy.asarray(b), M=one, rtol=1e-9, workspace=workspace)
            assert stats.converged
            assert abs(stats.iterations - told.iterations) <= 3
            assert np.linalg.norm(b - A @ x.get()) <= 1.0001e-9 * np.linalg.norm(b)
            np.testing.assert_array_equal(x.get(), again.get())


@pytest.mark.parametrize("dtype", TYPES)
def test_triangles_through_the_kernels(monkeypatch, dtype):
    A, r = hermitian(6).astype(dtype), numbers(36).astype(dtype)
    want = preconditioners.ilu0(A) @ r
    device = EmulatedDevice()
    monkeypatch.setattr(base, "space_for", lambda name, dtype: CudaSpace(name, dtype, device))
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
