"""Workspaces: what they hold, and the one that a matrix keeps between two solves."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import dasp
from dasp import Policy, SpMatrix
from dasp.preconditioners import block_jacobi, chebyshev, jacobi
from dasp.solvers import Workspace, bicgstab, cg, gmres, lsmr, lsqr, minres, workspace
from dasp.solvers import chebyshev as chebyshev_method
from tests.support.simt_device import emulate
from tests.support.systems import (
    SQUARE,
    STORAGE,
    check,
    poisson,
)

pytestmark = pytest.mark.simt

given_bounds = partial(chebyshev_method, bounds=(0.05, 8.0), maxiter=2000)
METHODS: list[Any] = [cg, bicgstab, minres, gmres, given_bounds]
PRECONDITIONERS: list[Any] = [None, jacobi, partial(block_jacobi, block=5), chebyshev]
PAIRS = [(cg, make) for make in PRECONDITIONERS] + list(zip(METHODS[1:], PRECONDITIONERS, strict=True))
"""Each way in which cg meets a preconditioner, and each other method with one of them."""


@pytest.fixture
def device(monkeypatch):
    """Solves run as on a GPU, in the emulator."""
    return emulate(monkeypatch)


def kept(A: SpMatrix) -> Any:
    """Return the workspace that a matrix keeps, or None."""
    return vars(A).get(workspace.KEPT)


def planned(side: int = 5, factor: float = 1.0) -> SpMatrix:
    return SpMatrix.from_scipy(poisson(side) * factor, device="cpu")


@pytest.mark.parametrize(("method", "make"), PAIRS)
def test_a_later_solve_finds_what_the_first_one_made(device, monkeypatch, method, make):
    A = planned()
    M = None if make is None else make(A)
    rng = np.random.default_rng(0)
    first, other = rng.standard_normal((2, 25))
    x, stats = method(A, first, M=M, rtol=1e-6)
    assert stats.converged
    vectors = [one.vectors for one in kept(A)._made.values()]
    monkeypatch.setattr(device, "zeros", None)
    y, _ = method(A, other, M=M, rtol=1e-6)
    again, same = method(A, first, M=M, rtol=1e-6)
    np.testing.assert_array_equal(again, x)
    assert same.residuals == stats.residuals
    assert np.linalg.norm(other - poisson(5) @ y) <= 1.1e-6 * np.linalg.norm(other)
    assert all(one.vectors is old for one, old in zip(kept(A)._made.values(), vectors, strict=True))


@pytest.mark.parametrize(("method", "make"), [*PAIRS[:4], (gmres, None), (gmres, chebyshev)])
def test_it_goes_with_the_matrix_without_the_collector(device, method, make):
    gc.disable()
    try:
        A = planned()
        M = None if make is None else make(A)
        method(A, np.ones(25), M=M)
        watched = [weakref.ref(one.vectors) for one in kept(A)._made.values()]
        held, held_M = weakref.ref(A), None if M is None else weakref.ref(M)
        assert all(one() is not None for one in watched)
        del M
        assert held_M is None or held_M() is None
        del A
        assert held() is None
        assert not any(one() for one in watched)
    finally:
        gc.enable()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", [lsqr, lsmr])
def test_least_squares_too(device, monkeypatch, method, symmetric):
    csr = poisson(4) if symmetric else sp.csr_array(poisson(4) + sp.diags_array(np.ones(15), offsets=1))
    gc.disable()
    try:
        A, b = SpMatrix.from_scipy(csr, device="cpu", policy=Policy(narrow=False)), np.arange(16.0)
        assert (A.T is A) == symmetric
        x, _ = method(A, b)
        with monkeypatch.context() as patch:
            patch.setattr(device, "zeros", None)
            np.testing.assert_array_equal(method(A, b)[0], x)
        watched = weakref.ref(kept(A))
        if symmetric:  # until it is not
            A.with_values(csr.data * np.arange(1, csr.nnz + 1), out=A)
            assert A.T is not A
        held = weakref.ref(A)
        del A
        assert held() is None
        assert watched() is None
    finally:
        gc.enable()


def test_a_matrix_keeps_a_small_workspace_of_few_systems(device, monkeypatch):
    A = planned(4)
    monkeypatch.setattr(workspace, "MOST_SYSTEMS", 2)  # each is compiled for its restart
    for restart in (4, 6):
        gmres(A, np.ones(16), restart=restart)
    assert kept(A).systems == 2
    gmres(A, np.ones(16), restart=3)
    assert kept(A) is None
    cg(A, np.ones(16))
    monkeypatch.setattr(workspace, "MOST_BYTES", kept(A).nbytes - 1)
    cg(A, np.ones(16))
    assert kept(A) is None


def test_another_preconditioner_takes_the_place_of_the_last(device):
    A = planned()
    M, other = jacobi(A), jacobi(A)
    cg(A, np.ones(25), M=M)
    watched = weakref.ref(next(iter(kept(A)._made.values())).vectors)
    cg(A, np.ones(25), M=other)
    assert kept(A).systems == 1
    assert watched() is None


def test_nobody_shares_one(device):
    """Not a solve within a solve, nor a thread; and one that failed leaves nothing."""
    A, inner = planned(), []
    b = np.arange(25.0)
    want, _ = cg(A, b, rtol=1e-9)

    def within(x: Any) -> None:
        inner.append(cg(A, 2 * b, rtol=1e-9)[0])

    x, _ = cg(A, b, rtol=1e-9, callback=within, check_every=4)
    np.testing.assert_array_equal(x, want)
    assert all((one == 2 * want).all() for one in inner)

    def fail(x: Any) -> None:
        raise KeyError

    assert kept(A) is not None
    with pytest.raises(KeyError):
        cg(A, b, callback=fail)
    assert kept(A) is None
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda k=k: results.append((k, cg(A, k * b, rtol=1e-9)[0])))
        for k in (1, 2, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one == k * want).all() for k, one in results)
    assert len(results) == 3


def test_nothing_is_kept_for_what_may_change(device):
    A, M = planned(), jacobi(planned())
    cg(A.shifted(1.0), np.ones(25))
    cg(poisson(5), np.ones(25))
    cg(A, np.ones(25), M=np.eye(25))
    assert kept(A) is None
    cg(A, np.ones(25), M=M)
    assert kept(A) is not None


@pytest.mark.parametrize("given", [False, True])
def test_a_solve_that_ends_has_left_its_workspace(device, monkeypatch, given):
    """The next one may be on another stream."""
    waits: list[str] = []
    monkeypatch.setattr(device, "wait", lambda: waits.append("ended"))
    A, more = planned(), {"workspace": Workspace()} if given else {}

    def fail(x: Any) -> None:
        raise KeyError

    for _ in range(2):
        cg(A, np.ones(25), **more)
    assert len(waits) == 2
    with pytest.raises(KeyError):
        cg(A, np.ones(25), callback=fail, **more)
    assert len(waits) == 2
    if given:
        assert more["workspace"].systems == 0


def test_on_a_cpu_too():
    A, b = planned(), np.arange(25.0)
    x, _ = cg(A, b)
    before = kept(A)
    y, _ = cg(A, b)
    assert kept(A) is before
    np.testing.assert_array_equal(x, y)


@pytest.mark.cuda
@pytest.mark.parametrize("make", PRECONDITIONERS)
@pytest.mark.parametrize("method", METHODS)
def test_on_a_gpu(method, make):
    import cupy

    A = SpMatrix.from_scipy(poisson(40), device="cuda")
    M = None if make is None else make(A)
    rng, pool = np.random.default_rng(0), cupy.get_default_memory_pool()
    first, other = (cupy.asarray(rng.standard_normal(1600)) for _ in range(2))
    x, stats = method(A, first, M=M, rtol=1e-9)
    used = []
    for _ in range(3):
        with cupy.cuda.Stream(non_blocking=True):
            method(A, other, M=M, rtol=1e-9)
        again, same = method(A, first, M=M, rtol=1e-9)
        np.testing.assert_array_equal(again.get(), x.get())
        assert same.residuals == stats.residuals
        used.append(pool.used_bytes())
    assert len(set(used)) == 1
    np.testing.assert_array_equal(method(A, first.get(), M=M, rtol=1e-9)[0], x.get())
    del A, M
    gc.collect()
    assert pool.used_bytes() < used[0]


@pytest.mark.parametrize("method", SQUARE)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_storage_is_as_said(method, preconditioned):
    A = dasp.SpMatrix.from_scipy(poisson(150), device="cpu")
    M = dasp.SpMatrix.from_scipy(sp.eye_array(22500, format="csr"), device="cpu") if preconditioned else None
    b, workspace = np.ones(22500), Workspace()
    limits = {"maxiter": 30, "M": M, "workspace": workspace}
    method(A, b, **{**limits, "workspace": Workspace()})
    tracemalloc.start()
    try:
        method(A, b, **limits)
        first, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        method(A, b, **limits)
        second, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    count, passes = STORAGE[method][preconditioned], 700_000 if method is gmres else 60_000
    assert workspace.vectors == count
    assert count * b.nbytes <= workspace.nbytes <= first <= count * b.nbytes + passes
    assert second - first < 20_000
    # x is returned twice over: a copy of the workspace's, which becomes the caller's.
    assert peak - first <= 2 * b.nbytes + 20_000


@pytest.mark.parametrize("method", [cg, lsqr])
def test_a_workspace_serves_one_solve_at_a_time(method):
    """A callback that solved in it would leave its own x to the solve that called it."""
    A, workspace = poisson(6), Workspace()
    b = np.random.default_rng(0).standard_normal(36)
    want = method(A, b)[0]
    for inner in (cg, method):
        with pytest.raises(ValueError, match="workspace is in use"):
            method(
                A, b, workspace=workspace, callback=lambda x, inner=inner: inner(A, -b, workspace=workspace)
            )
        np.testing.assert_array_equal(method(A, b, workspace=workspace)[0], want)


def test_a_workspace_serves_whatever_comes():
    workspace = Workspace()
    A, B = poisson(6), poisson(7)
    for _ in range(2):
        for matrix in (A, B):
            for method in SQUARE:
                b = np.ones(matrix.shape[0])
                x, stats = method(matrix, b, workspace=workspace, rtol=1e-9)
                assert stats.converged
                check(matrix, x, b, stats, 1e-9)
    kept = cg(A, np.ones(36), workspace=workspace)[0]
    before = kept.copy()
    cg(A, np.arange(36.0), workspace=workspace)
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("method", SQUARE)
def test_a_workspace_serves_after_an_error(method):
    """One that a callback raised, or the matrix."""
    A, b, workspace = poisson(8), np.random.default_rng(0).standard_normal(64), Workspace()
    calls = [0]

    def multiply(x: np.ndarray) -> np.ndarray:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError("the matrix is gone")
        return A @ x

    def look(x: np.ndarray) -> None:
        raise OSError("enough")

    operator: Any = sla.LinearOperator(A.shape, matvec=multiply, dtype=float)
    for more in ({}, {"callback": look}):
        with pytest.raises(OSError, match=r"gone|enough"):
            method(operator, b, rtol=1e-9, workspace=workspace, **more)
    x, stats = method(operator, b, rtol=1e-9, workspace=workspace)
    want, told = method(A, b, rtol=1e-9)
    np.testing.assert_array_equal(x, want)
    assert stats.iterations == told.iterations


@pytest.mark.parametrize("where", ["cpu", "gpu"])
@pytest.mark.parametrize("method", [*SQUARE, lsqr])
def test_a_workspace_gives_its_memory_back_without_the_collector(method, where, request):
    """When it goes, and when it is asked for another matrix; after a trace, and after a trace repeated."""
    if where == "gpu":
        request.getfixturevalue("device")
    A, b = sla.aslinearoperator(poisson(5)), np.ones(25)
    gc.disable()
    try:
        for _ in range(2):
            workspace, watched = Workspace(), []
            for matrix in (A, sla.aslinearoperator(poisson(5) * 2.0)):
                assert method(matrix, b, workspace=workspace)[1].converged
                (made,) = workspace._made.values()
                watched += [weakref.ref(made.vectors), weakref.ref(made.loop)]
                del made
                assert [one() is None for one in watched] == [True] * (len(watched) - 2) + [False] * 2
            del workspace
            assert not any(one() for one in watched)
    finally:
        gc.enable()
