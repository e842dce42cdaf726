"""The workspace that a matrix keeps between two solves."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from dasp.preconditioners import base, block_jacobi, chebyshev, jacobi
from dasp.solvers import Workspace, bicgstab, cg, gmres, leastsquares, lsmr, lsqr, minres, workspace
from dasp.solvers import chebyshev as chebyshev_method
from dasp.solvers import system as system_module
from dasp.solvers.cuda.space import CudaSpace
from tests.solvers.test_solvers import poisson
from tests.support.simt_device import EmulatedDevice

pytestmark = pytest.mark.simt

given_bounds = partial(chebyshev_method, bounds=(0.05, 8.0), maxiter=2000)
METHODS: list[Any] = [cg, bicgstab, minres, gmres, given_bounds]
PRECONDITIONERS: list[Any] = [None, jacobi, partial(block_jacobi, block=5), chebyshev]
PAIRS = [(cg, make) for make in PRECONDITIONERS] + list(zip(METHODS[1:], PRECONDITIONERS, strict=True))
"""Each way in which cg meets a preconditioner, and each other method with one of them."""


@pytest.fixture
def device(monkeypatch):
    """Solves run as on a GPU, in the emulator."""
    device = EmulatedDevice()
    for module in (system_module, leastsquares, base):
        monkeypatch.setattr(module, "space_for", lambda name, dtype: CudaSpace(name, dtype, device))
    return device


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
    for k in range(workspace.MOST_SYSTEMS):
        gmres(A, np.ones(16), restart=k + 2)
    assert kept(A).systems == workspace.MOST_SYSTEMS
    gmres(A, np.ones(16), restart=workspace.MOST_SYSTEMS + 2)
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
def test_a_solve_waits_for_the_last_one_in_its_workspace(device, monkeypatch, given):
    said: list[str] = []
    monkeypatch.setattr(device, "fence", lambda: said.append("ended") or (lambda: said.append("begun")))
    A, more = planned(), {"workspace": Workspace()} if given else {}

    def fail(x: Any) -> None:
        raise KeyError

    for _ in range(2):
        cg(A, np.ones(25), **more)
    assert said == ["ended", "begun", "ended"]
    with pytest.raises(KeyError):
        cg(A, np.ones(25), callback=fail, **more)
    assert said[3:] == ["begun", "ended"]


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
