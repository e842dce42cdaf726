"""Conjugate gradients in one launch: the kernel in the emulator, driven by the code that drives a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from dasp.preconditioners import jacobi
from dasp.solvers import Workspace, cg, persistent
from dasp.solvers.arguments import make_limits
from dasp.solvers.cg import PipelinedConjugateGradients
from dasp.solvers.driver import BREAKDOWN, Solve
from dasp.solvers.persistent import Chip, find_recipe, make_recipe
from dasp.solvers.system import solve
from tests.support.simt_device import emulate
from tests.support.systems import check, poisson

pytestmark = pytest.mark.simt


@pytest.fixture(autouse=True)
def _few_threads(monkeypatch):
    """A GPU has blocks of more threads, which take longer here."""
    monkeypatch.setattr(persistent, "THREADS", 64)


class Planned:
    """A matrix whose plan the kernel multiplies by; its own product is not used."""

    takes_out = True

    def __init__(self, A: Any, policy: Policy | None = None, blocks: int = 3) -> None:
        self.chip = Chip(blocks, 227 * 1024)
        self.plan = SpMatrix.from_scipy(A, device="cpu", policy=policy)._product.plan
        self.shape, self.dtype, self.A, self.recipes = A.shape, A.dtype, A, {}

    def __matmul__(self, x):
        return self.A @ x

    def matvec(self, x, out=None):
        raise AssertionError("the kernel makes the products")

    def recipe(self, *, diagonal):
        recipe = make_recipe(self.plan, self.chip, diagonal=diagonal)
        return self.recipes.setdefault((self.chip, diagonal), recipe)


def run(A, b, x0=None, M=None, workspace=None, rtol=1e-10, maxiter=None, check_every=None, callback=None):
    limits = make_limits(A, rtol, 0.0, maxiter, check_every, callback, False)
    recipe = A.recipe(diagonal=M is not None)
    return solve(A, b, x0, limits, M, workspace, PipelinedConjugateGradients, recipe.make_loop)


def stretched(n: int) -> sp.csr_array:
    """Return a definite matrix with rows of many lengths, so that they are sorted."""
    rng = np.random.default_rng(n)
    lower = sp.random_array((n, n), density=0.05, random_state=rng, format="csr")
    lower += sp.csr_array((rng.random(n // 2), (np.full(n // 2, n // 3), np.arange(n // 2))), (n, n))
    A = sp.csr_array(lower + lower.T)
    return sp.csr_array(A + sp.diags_array(abs(A).sum(axis=1) * rng.uniform(1.01, 3, n) + 1e-3))


@pytest.mark.parametrize("blocks", [1, 20])
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize(
    ("make", "stored"),
    [(lambda: poisson(11), "f8"), (lambda: stretched(110), "f4"), (lambda: poisson(3), "f8")],
)
def test_one_launch_solves(monkeypatch, make, preconditioned, stored, blocks):
    device = emulate(monkeypatch)
    A, b = make().astype(stored), np.random.default_rng(0).standard_normal(make().shape[0])
    x, stats = run(Planned(A, blocks=blocks), b, M=jacobi(A) if preconditioned else None)
    check(A, x, b, stats, 1e-10)
    assert device.launches == ["dasp_persistent"]
    assert x.dtype == b.dtype
    assert len(stats.residuals) == stats.iterations + 1


def test_x0_is_where_it_starts(monkeypatch):
    emulate(monkeypatch)
    A, b = poisson(9), np.ones(81)
    near = np.linalg.solve(A.toarray(), b) * (1 + 1e-7)
    kept = near.copy()
    x, stats = run(Planned(A), b, near, rtol=1e-9)
    check(A, x, b, stats, 1e-9)
    assert stats.iterations < 10
    np.testing.assert_array_equal(near, kept)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_launches_that_go_on_give_the_same_bits_as_one(monkeypatch, preconditioned):
    device = emulate(monkeypatch)
    A, b, seen = stretched(130), np.random.default_rng(1).standard_normal(130), []
    M = jacobi(A) if preconditioned else None
    x, stats = run(Planned(A), b, M=M)
    assert len(device.launches) == 1
    again, more = run(Planned(A), b, M=M, check_every=3, callback=lambda x: seen.append(x.copy()))
    np.testing.assert_array_equal(again, x)
    assert more.iterations == stats.iterations
    assert more.residuals == [*stats.residuals[::3], *stats.residuals[-1:] * (stats.iterations % 3 > 0)]
    assert len(seen) == -(-stats.iterations // 3)
    monkeypatch.setattr(persistent, "HISTORY", 5)  # the host reads it as often as it is full
    again, more = run(Planned(A), b, M=M)
    np.testing.assert_array_equal(again, x)
    assert more.residuals == stats.residuals


def test_a_second_solve_allocates_nothing(monkeypatch):
    device = emulate(monkeypatch)
    A, workspace = Planned(poisson(10)), Workspace()
    first, stats = run(A, np.ones(100), workspace=workspace)
    assert workspace.vectors == 8
    assert workspace.nbytes == 8 * 128 * 8
    monkeypatch.setattr(device, "zeros", None)
    second, again = run(A, np.ones(100), workspace=workspace)
    np.testing.assert_array_equal(first, second)
    assert again.residuals == stats.residuals
    third, _ = run(A, np.arange(100.0), workspace=workspace)
    assert np.linalg.norm(np.arange(100.0) - A.A @ third) <= 1e-10 * np.linalg.norm(np.arange(100.0))


def test_iterations_that_are_used_up(monkeypatch):
    emulate(monkeypatch)
    A, b = poisson(12), np.ones(144)
    x, stats = run(Planned(A), b, maxiter=7)
    assert (stats.info, stats.iterations, stats.converged) == (7, 7, False)
    np.testing.assert_allclose(stats.residual, np.linalg.norm(b - A @ x), rtol=1e-10)


def test_what_cannot_be_solved_is_said_in_words(monkeypatch):
    emulate(monkeypatch)
    A = poisson(8)
    b = np.random.default_rng(0).standard_normal(64)
    x, stats = run(Planned(sp.csr_array(A - 3 * sp.eye_array(64))), b)
    assert (stats.info, stats.converged) == (BREAKDOWN, False)
    assert "not positive definite" in stats.reason
    _, stats = run(Planned(A), b, M=sp_diagonal(-np.ones(64)))
    assert "M is not positive definite" in stats.reason
    _, stats = run(Planned(A), np.where(np.arange(64) == 5, np.nan, b))
    assert (stats.info, stats.reason) == (BREAKDOWN, Solve.no_start)
    wrong = sp.csr_array(A * 1.0)
    wrong.data[7] = np.inf
    _, stats = run(Planned(wrong), b)
    assert (stats.info, stats.converged) == (BREAKDOWN, False)
    x, stats = run(Planned(A), np.zeros(64))
    assert stats.converged
    assert stats.reason == "b is zero, and so is x"
    assert not x.any()


@pytest.mark.parametrize("size", [1e-170, 1e170])
def test_a_b_whose_norm_cannot_be_squared(monkeypatch, size):
    emulate(monkeypatch)
    A, b = poisson(8), size * np.random.default_rng(0).standard_normal(64)
    x, stats = run(Planned(A), b)
    assert stats.converged
    assert np.linalg.norm((b - A @ x) / size) <= 1e-9 * np.linalg.norm(b / size)


def sp_diagonal(values):
    M = jacobi(sp.eye_array(len(values), format="csr"))
    M.diagonal_of_inverse[...] = values
    return M


def test_where_it_is_used():
    A, double = Planned(poisson(5)), np.dtype(float)
    assert A.recipe(diagonal=False)
    assert A.recipe(diagonal=True)
    assert not find_recipe(A.A, None, double)
    assert not find_recipe(SpMatrix.from_scipy(A.A, device="cpu"), None, double)
    A.chip = Chip(0, 1 << 20)
    assert not A.recipe(diagonal=False)
    A.chip = Chip(1, 20_000)
    assert not A.recipe(diagonal=False)
    assert [Planned(poisson(n), blocks=5).recipe(diagonal=False).blocks for n in (3, 9, 40)] == [1, 3, 5]


def test_a_share_is_no_larger_than_it_may_be(monkeypatch):
    """Slices of very different sizes, with as little room as is promised to be enough."""
    emulate(monkeypatch)
    A, b = stretched(300), np.ones(300)
    for blocks in (2, 7):
        x, stats = run(Planned(A, blocks=blocks), b)
        check(A, x, b, stats, 1e-10)


@pytest.mark.cuda
@pytest.mark.parametrize("preconditioned", [False, True])
def test_on_a_gpu(preconditioned):
    import cupy

    for A in (poisson(40), poisson(1), poisson(90).astype("f4")):
        b = np.random.default_rng(3).standard_normal(A.shape[0])
        planned, right, workspace = SpMatrix.from_scipy(A, device="cuda"), cupy.asarray(b), Workspace()
        M = jacobi(planned) if preconditioned else None
        assert find_recipe(planned, M, b.dtype)
        assert not find_recipe(planned, M, np.dtype("f4"))
        assert not find_recipe(planned, sp.eye_array(A.shape[0]), b.dtype)
        x, stats = cg(planned, right, rtol=1e-9, M=M, workspace=workspace)
        check(A, x.get(), b, stats, 1e-9)
        assert stats.converged
        again, _ = cg(planned, right, rtol=1e-9, M=M, workspace=workspace)
        np.testing.assert_array_equal(x.get(), again.get())
        parts, _ = cg(planned, right, rtol=1e-9, M=M, check_every=7, callback=lambda x: None)
        np.testing.assert_array_equal(x.get(), parts.get())
        near, _ = cg(planned, right, x * (1 + 1e-3), rtol=1e-9, M=M)
        assert np.linalg.norm(b - A @ near.get()) <= 1.01e-9 * np.linalg.norm(b)


@pytest.mark.cuda
def test_systems_of_different_sizes_by_turns_on_a_gpu():
    """The kernel is one, and each takes as much shared memory as it needs."""
    import cupy

    systems = [(A, SpMatrix.from_scipy(A, device="cuda"), Workspace()) for A in map(poisson, (70, 20, 50))]
    for _ in range(3):
        for A, planned, workspace in systems:
            b = np.random.default_rng(5).standard_normal(A.shape[0])
            for given in (workspace, None):
                x, stats = cg(planned, cupy.asarray(b), rtol=1e-9, workspace=given)
                check(A, x.get(), b, stats, 1e-9)
                assert stats.converged
