"""Multigrid cycles: PyAMG's, in solves and by themselves, and of new values."""

from __future__ import annotations

import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp.multigrid import cycle as cycle_module
from dasp.multigrid import hierarchy
from dasp.preconditioners import multigrid
from dasp.solvers import Workspace, bicgstab, cg, gmres
from tests.preconditioners.test_preconditioners import levels, rescaled
from tests.support.simt_device import hold_emulated
from tests.support.systems import check, hermitian, numbers, poisson

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


@pytest.mark.parametrize(("cycle", "complex"), [("V", False), ("W", True), ("F", False), ("F", True)])
def test_multigrid_is_pyamgs(cycle, complex):
    """With PyAMG's own smoother: the same cycle."""
    ml = in_field(30, max_coarse=10) if complex else levels(poisson(30), max_coarse=10)
    pyamg.relaxation.smoothing.change_smoothers(
        ml, ("gauss_seidel", {"sweep": "forward"}), ("gauss_seidel", {"sweep": "backward"})
    )
    M = multigrid(ml, smoother="gauss-seidel", cycle=cycle, device="cpu")
    r = numbers(900) if complex else numbers(900).real
    want = ml.solve(r, cycle=cycle, maxiter=1, tol=1e-30)
    np.testing.assert_allclose(M @ r, want, rtol=0, atol=1e-9 * abs(want).max())


def test_multigrid_needs_as_many_iterations_as_pyamgs():
    A, b = poisson(60), np.ones(3600)
    for make in (pyamg.ruge_stuben_solver, pyamg.smoothed_aggregation_solver):
        ml = make(sp.csr_matrix(A))
        residuals: list[float] = []
        smoother = ("jacobi", {"omega": 4 / 3, "iterations": 1})
        pyamg.relaxation.smoothing.change_smoothers(ml, smoother, smoother)
        ml.solve(b, tol=1e-8, accel="cg", residuals=residuals)
        _, stats = cg(A, b, M=multigrid(ml, smoother="jacobi", device="cpu"), rtol=1e-8)
        assert stats.converged
        assert stats.iterations <= len(residuals) - 1 + 2
        _, plain = cg(A, b, rtol=1e-8)
        assert stats.iterations < plain.iterations / 3


def test_multigrid_of_a_matrix_is_of_smoothed_aggregation(monkeypatch):
    A, b = poisson(20), np.ones(400)
    want = multigrid(A, device="cpu") @ b
    theirs = multigrid(pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)), device="cpu") @ b
    np.testing.assert_allclose(theirs, want, rtol=0.05)  # PyAMG's depends on the state of NumPy's generator
    S = dasp.SpMatrix.from_scipy(A, device="cpu", policy=dasp.Policy(narrow=False))
    for made in (multigrid(sp.coo_array(A), device="cpu"), M := multigrid(S)):
        np.testing.assert_array_equal(made @ b, want)
    S.with_values(2 * A.data, out=S)
    M.update(S)
    np.testing.assert_allclose(2 * (M @ b), want, rtol=1e-12)
    monkeypatch.setitem(sys.modules, "pyamg", None)
    with pytest.raises(RuntimeError, match="PyAMG is not installed; pip install pyamg"):
        multigrid(A)


@pytest.mark.parametrize(
    "options", [{}, {"smoother": "jacobi"}, {"smoother": "gauss-seidel"}, {"cycle": "W"}]
)
def test_multigrid_takes_a_matrix_or_a_hierarchy(options):
    A, b = poisson(24), np.random.default_rng(0).standard_normal(576)
    B = rescaled(A)
    M = multigrid(pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)), device="cpu", **options)
    old = cg(B, b, M=M, rtol=1e-8)[1].iterations
    M.update(B)
    x, stats = cg(B, b, M=M, rtol=1e-8)
    check(B, x, b, stats, 1e-8)
    assert stats.iterations < old / 2
    theirs = pyamg.smoothed_aggregation_solver(sp.csr_matrix(B))
    M.update(theirs)
    np.testing.assert_array_equal(M @ b, multigrid(theirs, device="cpu", **options) @ b)
    M.update(pyamg.ruge_stuben_solver(sp.csr_matrix(B), max_coarse=3))
    assert cg(B, b, M=M, rtol=1e-8)[1].converged
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        M.update(B * np.nan)


@pytest.mark.parametrize(("smoother", "cycle"), [("chebyshev", "V"), ("jacobi", "W"), ("gauss-seidel", "V")])
def test_a_complex_cycle_is_hermitian_and_definite(smoother, cycle):
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


def neumann(side: int) -> sp.csr_array:
    """Poisson's matrix with rows that sum up to 0."""
    A = poisson(side)
    return sp.csr_array(A - sp.diags_array(A @ np.ones(side * side)))


@pytest.mark.parametrize(
    ("cycle", "rows", "dtype"),
    [("V", 10, np.float64), ("V", 150, np.float32), ("W", 150, np.float64), ("F", 10, np.float32)],
)
def test_the_first_small_level_is_inverted_though_singular(monkeypatch, cycle, rows, dtype):
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", rows)
    A, b = neumann(24), np.random.default_rng(0).standard_normal(576)
    b -= b.mean()
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(A, dtype=dtype), max_coarse=10)
    M: Any = multigrid(ml, device="cpu", cycle=cycle)
    sizes = [level.A.shape[0] for level in ml.levels]
    assert M._setup.rows == [size for size in sizes if size > rows] + [max(s for s in sizes if s <= rows)]
    x, stats = cg(A, b, M=M, rtol=1e-8)
    check(A, x, b, stats, 1e-8)
    assert stats.iterations <= 12


@pytest.mark.parametrize("spec", ["poisson3d:12", "poisson3d:20", "poisson2d:50"])
def test_rounding_in_a_singular_level_is_not_inverted(spec):
    A = dasp.models.generate(spec)
    A = sp.csr_array(A - sp.diags_array(A @ np.ones(A.shape[0])))
    M: Any = multigrid(pyamg.smoothed_aggregation_solver(A), device="cpu")
    assert abs(M._setup.inverse).max() < 1e4
    ones = np.ones(A.shape[0])
    assert ones @ (M @ ones) > 0


@pytest.mark.parametrize("n", [6, 9, 40])
def test_the_inverse_of_a_semidefinite_level_is_semidefinite(n):
    A = sp.csr_array(sp.csgraph.laplacian(sp.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(n, n))))
    M = multigrid(SimpleNamespace(levels=[SimpleNamespace(A=A)]), device="cpu")
    assert np.linalg.eigvalsh(M.matmat(np.eye(n)))[0] > -1e-9
    assert np.ones(n) @ (M @ np.ones(n)) > 0


@pytest.mark.parametrize("seed", range(6))
def test_rounding_in_a_smoothed_level_is_not_divided_by(monkeypatch, seed):
    """The row of an aggregate that is a whole chain cancels on a level above the last one."""
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", 20)
    rng = np.random.default_rng(seed)
    chains = [sp.diags_array(rng.random(n), offsets=1, shape=(n + 1, n + 1)) for n in (3, 4, 5, 300)]
    graph = sp.csr_array(sp.block_diag(chains))
    A = sp.csr_array(sp.csgraph.laplacian(graph + graph.T))
    M = multigrid(pyamg.smoothed_aggregation_solver(sp.csr_matrix(A)), device="cpu")
    values = np.linalg.eigvalsh(M.matmat(np.eye(A.shape[0])))
    assert 0 < values[0] < values[-1] < 1e6
    b = A @ rng.standard_normal(A.shape[0])
    x, stats = cg(A, b, M=M, rtol=1e-8)
    check(A, x, b, stats, 1e-8)


@pytest.mark.parametrize("skew", [0.0, 0.3])
@pytest.mark.parametrize("field", [0.0, 0.3j])
def test_a_small_matrix_is_inverted(skew, field):
    side = sp.diags_array([skew - 1 + field, 2.5, -1 - skew - field], offsets=[-1, 0, 1], shape=(9, 9))
    A = sp.csr_array(sp.block_diag([side, sp.csr_array((1, 1))]))
    M, r = multigrid(SimpleNamespace(levels=[SimpleNamespace(A=A)]), device="cpu"), np.ones(10)
    np.testing.assert_allclose(M @ r, np.linalg.pinv(A.toarray()) @ r, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rank", [0, 5, 12])
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [float, complex])
def test_a_small_matrix_of_any_rank_is_inverted(rank, hermitian, dtype):
    rng = np.random.default_rng(rank)
    left, right = (rng.standard_normal((12, rank, 2)) @ [1, 1j if dtype is complex else 1] for _ in range(2))
    A = left @ (left if hermitian else right).conj().T
    G = hierarchy._invert(sp.csr_array(A), A.diagonal())
    np.testing.assert_allclose(A @ G @ A, A, atol=1e-11)
    assert (G == G.conj().T).all() or not hermitian


@pytest.mark.parametrize("smoother", ["chebyshev", "gauss-seidel"])
def test_a_large_last_level_is_smoothed_and_not_inverted(monkeypatch, smoother):
    monkeypatch.setattr("dasp.multigrid.hierarchy.MOST_INVERSE_ROWS", 30)
    A = poisson(40)
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(A), max_levels=2)
    monkeypatch.setattr("dasp.multigrid.hierarchy._invert", None)
    for one in (ml, SimpleNamespace(levels=ml.levels[1:])):
        matrix = sp.csr_array(one.levels[0].A)
        M = multigrid(one, device="cpu", smoother=smoother)
        _, stats = cg(matrix, np.ones(matrix.shape[0]), M=M, rtol=1e-8)
        assert stats.converged, stats.reason
        assert stats.iterations <= 40


@pytest.mark.parametrize(("smoother", "cycle"), [("chebyshev", "V"), ("jacobi", "W"), ("gauss-seidel", "V")])
def test_rows_of_zeros_are_passed_by_on_coarse_levels(smoother, cycle, monkeypatch):
    """Aggregates with fewer unknowns than modes leave such rows."""
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", 6)
    A = poisson(20)
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), max_coarse=5)
    levels = [
        SimpleNamespace(A=level.A, P=getattr(level, "P", None), R=getattr(level, "R", None))
        for level in ml.levels
    ]
    for k, level in enumerate(levels):  # a coarse unknown more on each level, of which no other depends
        if k:
            level.A = sp.block_diag([level.A, sp.csr_array((1, 1))], format="csr")
        if level.P is not None:
            level.P = sp.hstack([level.P, sp.csr_array((level.P.shape[0], 1))], format="csr")
            level.R = sp.vstack([level.R, sp.csr_array((1, level.R.shape[1]))], format="csr")
        if k and level.P is not None:
            level.P = sp.vstack([level.P, sp.csr_array((1, level.P.shape[1]))], format="csr")
            level.R = sp.hstack([level.R, sp.csr_array((level.R.shape[0], 1))], format="csr")
    r = np.random.default_rng(0).standard_normal(400)
    want = multigrid(ml, device="cpu", smoother=smoother, cycle=cycle) @ r
    got = multigrid(SimpleNamespace(levels=levels), device="cpu", smoother=smoother, cycle=cycle) @ r
    # The largest eigenvalue is estimated from another first vector, as there are more rows.
    bound = (1e-12 if smoother == "gauss-seidel" else 1e-3) * abs(want).max()
    np.testing.assert_array_less(abs(got - want), bound)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_matrix_with_nan_is_refused_before_pyamg_reads_it(wrong):
    matrix = poisson(6)
    matrix.data[3] = wrong
    with pytest.raises(ValueError, match="A holds NaN or infinity"):
        multigrid(matrix, device="cpu")


def test_a_matrix_whose_inverse_overflows_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="PyAMG makes no hierarchy of A"):
            multigrid(1e-310 * poisson(20), device="cpu")
        with pytest.raises(ValueError, match="of level 0 of ml holds NaN or infinity"):
            multigrid(1e-310 * poisson(2), device="cpu")


def test_a_hierarchy_with_nan_is_refused():
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(poisson(12)), max_coarse=10)
    ml.levels[-1].A.data[0] = np.nan
    with pytest.raises(ValueError, match=f"A of level {len(ml.levels) - 1} of ml holds NaN or infinity"):
        multigrid(ml, device="cpu")


@pytest.mark.parametrize("threads", [1, 2])
def test_nan_on_a_diagonal_is_refused_as_nan(threads):
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(poisson(36)), max_coarse=10)
    A = ml.levels[0].A
    A.data[A.indices == np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))] = np.nan
    dasp.set_num_threads(threads)
    try:
        with pytest.raises(ValueError, match="A of level 0 of ml holds NaN or infinity"):
            multigrid(ml, device="cpu")
    finally:
        dasp.set_num_threads(None)


def test_a_cycle_in_another_type_shares_patterns_and_estimates(monkeypatch):
    M = multigrid(levels(poisson(12)), device="cpu")
    r = np.random.default_rng(0).standard_normal(144)
    want = multigrid(levels(poisson(12)), device="cpu", dtype=np.float32) @ r
    with monkeypatch.context() as patch:
        for module, name in ((cycle_module, "set_up"), (cycle_module, "spectral_radius")):
            patch.setattr(module, name, None)
        patch.setattr(dasp.SpMatrix, "from_scipy", None)
        single = M.astype(np.float32)
    np.testing.assert_allclose(single @ r, M @ r, atol=1e-5)
    np.testing.assert_allclose(single @ r, want, atol=1e-5)
    np.testing.assert_array_equal(single.astype(np.float64) @ r, M @ r)  # planned anew, from the hierarchy
    M.update(rescaled(poisson(12)))
    np.testing.assert_allclose(single @ r, want, atol=1e-5)


def test_plans_may_be_ready_in_any_order_and_take_no_more_threads_than_are_set(monkeypatch):
    ml, r, planning = levels(poisson(40)), np.random.default_rng(0).standard_normal(1600), set[int]()
    want, plan = multigrid(ml, device="cpu") @ r, cycle_module.PlannedPart

    def noted(*arguments: Any) -> Any:
        planning.add(threading.get_ident())
        return plan(*arguments)

    monkeypatch.setattr(cycle_module, "PlannedPart", noted)
    before = dasp.get_num_threads()
    try:
        dasp.set_num_threads(1)  # the calling thread, which begins with the last one
        np.testing.assert_array_equal(multigrid(ml, device="cpu") @ r, want)
    finally:
        dasp.set_num_threads(before)
    assert planning == {threading.get_ident()}


def test_arrays_of_a_hierarchy_are_planned_as_they_are():
    """Blocks of one entry are no copy; unsorted columns and duplicates are the same matrix."""
    ml, r = levels(poisson(40)), np.random.default_rng(0).standard_normal(1600)
    want = multigrid(ml, device="cpu") @ r
    bsr = sp.bsr_array(ml.levels[0].A, blocksize=(1, 1))
    assert np.shares_memory(hierarchy.as_csr(bsr).data, bsr.data)

    def twice(matrix: Any) -> sp.csr_array:
        """Every entry as two halves, the columns of a row in the other direction."""
        rows, columns = (np.repeat(one, 2)[::-1] for one in matrix.tocoo().coords)
        order = np.argsort(rows, kind="stable")
        values = np.repeat(matrix.tocoo().data / 2, 2)[::-1][order]
        return sp.csr_array((values, columns[order], 2 * matrix.tocsr().indptr), matrix.shape)

    for change in (lambda matrix: sp.bsr_array(matrix, blocksize=(1, 1)), twice):
        changed = [
            SimpleNamespace(
                **{name: change(sp.csr_array(getattr(one, name))) for name in "APR" if hasattr(one, name)}
            )
            for one in ml.levels
        ]
        got = multigrid(SimpleNamespace(levels=changed), device="cpu") @ r
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12 * abs(want).max())


@pytest.mark.simt
def test_kernels_of_complex_cycles_do_the_same(monkeypatch):
    """In single precision, to which r is rounded; the test of real preconditioners has both precisions."""
    monkeypatch.setattr(hierarchy, "DENSE_ROWS", 4)
    ml, r, dtype = in_field(7, max_coarse=3), numbers(49), np.dtype(np.complex64)

    def made() -> list[Any]:
        options: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
        return [multigrid(ml, smoother=one, **options) for one in ("chebyshev", "jacobi")]

    hold_emulated(monkeypatch, made, r, dtype)


@pytest.mark.slow
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
