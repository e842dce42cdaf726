"""What solves that are given no workspace leave to later ones on a GPU."""

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
from dasp.solvers import bicgstab, cg, gmres, leastsquares, lsmr, lsqr, minres
from dasp.solvers import chebyshev as chebyshev_method
from dasp.solvers import system as system_module
from dasp.solvers import workspace_cache as idle
from dasp.solvers.cuda import loop
from dasp.solvers.cuda.space import CudaSpace
from tests.solvers.test_solvers import poisson
from tests.support.simt_device import EmulatedDevice

pytestmark = pytest.mark.simt

given_bounds = partial(chebyshev_method, bounds=(0.05, 8.0), maxiter=2000)
METHODS: list[Any] = [cg, bicgstab, minres, gmres, given_bounds]
PRECONDITIONERS: list[Any] = [None, jacobi, partial(block_jacobi, block=5), chebyshev]


@pytest.fixture
def device(monkeypatch):
    """Solves run as on a GPU, in the emulator; nothing is left from other tests."""
    device = EmulatedDevice()
    monkeypatch.setattr(loop, "_KNOWN", {})
    monkeypatch.setattr(idle, "_left", {})
    for module in (system_module, leastsquares, base):
        monkeypatch.setattr(module, "space_for", lambda name, dtype: CudaSpace(name, dtype, device))
    return device


def planned(side: int = 5, factor: float = 1.0) -> SpMatrix:
    return SpMatrix.from_scipy(poisson(side) * factor, device="cpu")


@pytest.mark.parametrize("make", PRECONDITIONERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_later_solve_finds_what_the_first_one_made(device, monkeypatch, method, make):
    A = planned()
    M = None if make is None else make(A)
    rng = np.random.default_rng(0)
    first, other = rng.standard_normal((2, 25))
    x, stats = method(A, first, M=M, rtol=1e-6)
    assert stats.converged
    (left,) = idle._left.values()
    vectors = [one.vectors for one in left.workspace._made.values()]
    monkeypatch.setattr(device, "zeros", None)
    y, _ = method(A, other, M=M, rtol=1e-6)
    again, same = method(A, first, M=M, rtol=1e-6)
    np.testing.assert_array_equal(again, x)
    assert same.residuals == stats.residuals
    assert np.linalg.norm(other - poisson(5) @ y) <= 1.1e-6 * np.linalg.norm(other)
    (left,) = idle._left.values()
    assert all(one.vectors is old for one, old in zip(left.workspace._made.values(), vectors, strict=True))


@pytest.mark.parametrize("make", PRECONDITIONERS)
@pytest.mark.parametrize("method", [cg, gmres])
def test_it_goes_with_the_matrix_or_the_preconditioner_without_the_collector(device, method, make):
    gc.disable()
    try:
        for of_A in (True, False):
            A = planned()
            M = None if make is None else make(A)
            method(A, np.ones(25), M=M)
            (left,) = idle._left.values()
            watched = [weakref.ref(one.vectors) for one in left.workspace._made.values()]
            held = weakref.ref(A)
            del left
            assert all(one() is not None for one in watched)
            if not of_A:
                M = None
                assert (len(idle._left) == 1) == (make is None)
            del A
            if make is not chebyshev or M is None:  # a polynomial multiplies by its matrix
                assert held() is None
                assert not idle._left
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
        (left,) = idle._left.values()
        watched = weakref.ref(left.workspace)
        del left
        if symmetric:  # until it is not
            A.with_values(csr.data * np.arange(1, csr.nnz + 1), out=A)
            assert A.T is not A
        held = weakref.ref(A)
        del A
        assert held() is None
        assert watched() is None
    finally:
        gc.enable()


def test_few_are_left_and_small_ones(device, monkeypatch):
    many = [planned(4, 1.0 + k) for k in range(idle.MOST + 2)]
    for A in many:
        cg(A, np.ones(16))
    assert [key[0] for key in idle._left] == [id(A) for A in many[2:]]
    cg(many[2], np.ones(16))
    cg(many[0], np.ones(16))
    assert [key[0] for key in idle._left] == [id(A) for A in [*many[4:], many[2], many[0]]]
    size = next(iter(idle._left.values())).workspace.nbytes
    monkeypatch.setattr(idle, "BYTES", 3 * size)
    cg(many[1], np.ones(16))
    assert [key[0] for key in idle._left] == [id(A) for A in (many[2], many[0], many[1])]
    monkeypatch.setattr(idle, "BYTES", size - 1)
    cg(many[3], np.ones(16))
    assert id(many[3]) not in [key[0] for key in idle._left]


def test_a_matrix_leaves_few_systems(device):
    A = planned(4)
    for k in range(idle.MOST):
        gmres(A, np.ones(16), restart=k + 2)
    assert len(idle._left) == 1
    gmres(A, np.ones(16), restart=idle.MOST + 2)
    assert not idle._left


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

    assert len(idle._left) == 1
    with pytest.raises(KeyError):
        cg(A, b, callback=fail)
    assert not idle._left
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


def test_what_may_change_leaves_nothing(device):
    A, M = planned(), jacobi(planned())
    cg(A.shifted(1.0), np.ones(25))
    cg(poisson(5), np.ones(25))
    cg(A, np.ones(25), M=np.eye(25))
    assert not idle._left
    cg(A, np.ones(25), M=M)
    assert len(idle._left) == 1


def test_the_next_one_waits_for_the_last(device, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(device, "mark", lambda: said.append("left") or (lambda: said.append("taken")))
    A = planned()
    for _ in range(2):
        cg(A, np.ones(25))
    assert said == ["left", "taken", "left"]


def test_a_cpu_leaves_nothing(monkeypatch):
    monkeypatch.setattr(idle, "_left", {})
    A = planned()
    cg(A, np.ones(25))
    assert not idle._left


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
