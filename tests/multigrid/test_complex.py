"""Multigrid cycles of complex hierarchies, and of some that are complex in part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp.multigrid import hierarchy
from dasp.preconditioners import multigrid
from dasp.solvers import Workspace, bicgstab, cg, gmres
from tests.support.simt_device import hold_emulated
from tests.support.systems import TYPES, check, hermitian, numbers, poisson

pyamg = pytest.importorskip("pyamg")


@pytest.fixture(autouse=True)
def many_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices have several levels that are smoothed."""
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", 10)


def aggregated(A: Any, symmetry: str = "hermitian", **options: Any) -> Any:
    """PyAMG's hierarchy of a matrix."""
    return pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), symmetry=symmetry, **options)


def in_field(side: int, **options: Any) -> Any:
    """The hierarchy of `hermitian(side)`: the vector that it nearly maps to 0 has these phases."""
    phases = np.exp(-0.3j * np.cumsum(np.arange(side)))
    return aggregated(hermitian(side), B=np.kron(phases, phases)[:, None], **options)


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("smoother", ["chebyshev", "jacobi", "gauss-seidel"])
def test_a_cycle_is_hermitian_and_definite(smoother, cycle):
    A, ml = hermitian(18), in_field(18, max_coarse=6)
    M = multigrid(ml, smoother=smoother, cycle=cycle, device="cpu")
    assert M.dtype == np.complex128
    dense = np.column_stack([M @ column for column in np.eye(324, dtype=complex)])
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
    ml = in_field(30, max_coarse=10)
    pyamg.relaxation.smoothing.change_smoothers(
        ml, ("gauss_seidel", {"sweep": "forward"}), ("gauss_seidel", {"sweep": "backward"})
    )
    M, r = multigrid(ml, smoother="gauss-seidel", cycle=cycle, device="cpu"), numbers(900)
    want = ml.solve(r, cycle=cycle, maxiter=1, tol=1e-30)
    np.testing.assert_allclose(M @ r, want, rtol=0, atol=1e-9 * abs(want).max())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.simt
def test_kernels_of_complex_cycles_do_the_same(monkeypatch, dtype):
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", 4)
    ml, r = in_field(7, max_coarse=3), numbers(49)

    def made() -> list[Any]:
        options: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
        return [multigrid(ml, smoother=one, **options) for one in ("chebyshev", "jacobi")]

    hold_emulated(monkeypatch, made, r, dtype)


@pytest.mark.parametrize("method", [gmres, bicgstab])
def test_a_shifted_laplacian_helps_with_helmholtz(method):
    """The hierarchy is of another matrix, which is further from singular."""
    A, b = sp.csr_array(poisson(24) - (0.09 - 0.002j) * sp.eye_array(576)), numbers(576)
    shifted = sp.csr_array(poisson(24) - (0.09 - 0.045j) * sp.eye_array(576))
    M = multigrid(aggregated(shifted, "symmetric", max_coarse=10), device="cpu")
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
    M: Any = multigrid(mixed, device="cpu")
    assert M.dtype == np.complex128
    assert [one._A.dtype for one in (*M._P, *M._R)] == [np.float64] * 2
    b = numbers(400)
    assert cg(A, b, M=M, rtol=1e-9)[1].converged
    assert multigrid(ml, device="cpu").dtype == np.float64
    with pytest.raises(ValueError, match="dtype is float32; complex64 or complex128 is needed"):
        multigrid(mixed, dtype=np.float32)
    with pytest.raises(ValueError, match="dtype is complex64; float32 or float64 is needed"):
        multigrid(ml, dtype=np.complex64)


@pytest.mark.cuda
def test_complex_multigrid_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    A, ml, b = hermitian(60), in_field(60), numbers(3600)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    for smoother in ("chebyshev", "jacobi"):
        _, told = cg(A, b, M=multigrid(ml, smoother=smoother, device="cpu"), rtol=1e-9)
        M, workspace = multigrid(ml, smoother=smoother), Workspace()
        for one in (M, M.astype(np.complex64)):
            x, stats = cg(planned, cupy.asarray(b), M=one, rtol=1e-9, workspace=workspace)
            again, _ = cg(planned, cupy.asarray(b), M=one, rtol=1e-9, workspace=workspace)
            assert stats.converged
            assert abs(stats.iterations - told.iterations) <= 3
            assert np.linalg.norm(b - A @ x.get()) <= 1.0001e-9 * np.linalg.norm(b)
            np.testing.assert_array_equal(x.get(), again.get())
