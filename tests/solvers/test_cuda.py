"""Solvers on the GPU's way: the kernels in the emulator, driven by the code that drives a GPU; and on a
GPU."""

from __future__ import annotations

import importlib
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from dasp import SpMatrix
from dasp.preconditioners import base, jacobi
from dasp.preconditioners import chebyshev as polynomial
from dasp.preconditioners.base import RECENT
from dasp.solvers import Workspace, bicgstab, cg, chebyshev, gmres, minres
from dasp.solvers import system as system_module
from dasp.solvers.arguments import make_limits
from dasp.solvers.bicgstab import BiconjugateGradientsStabilized
from dasp.solvers.cg import ConjugateGradients, PipelinedConjugateGradients
from dasp.solvers.cuda import loop as cuda_loop
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.minres import MinimalResiduals
from dasp.solvers.operator import device_of
from dasp.solvers.system import solve
from tests.support.simt_device import EmulatedDevice, emulate
from tests.support.systems import (
    TYPES,
    check,
    helmholtz,
    hermitian,
    model,
    numbers,
    poisson,
    tolerance,
)

pytestmark = pytest.mark.simt

FORMS: list[Any] = [ConjugateGradients, PipelinedConjugateGradients]
METHODS: list[Any] = [cg, bicgstab, minres, gmres]


@pytest.fixture
def emulated(monkeypatch):
    """Every solve without a matrix on a named device runs as on a GPU, in the emulator."""
    return emulate(monkeypatch)


def operator(A: Any) -> Any:
    return sla.aslinearoperator(A)


# ---- methods ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", ["A", "M"])
def test_products_that_cannot_be_captured_are_not(monkeypatch, foreign):
    noted: list[bool] = []

    class Noting(EmulatedDevice):
        def repeat(self, function: Any, numbers: Any, *, captured: bool) -> Any:
            noted.append(captured)
            return super().repeat(function, numbers, captured=captured)

        def record(self, function: Any) -> Any:
            noted.append(True)
            return super().record(function)

    emulate(monkeypatch, Noting())
    A, b = poisson(5), np.random.default_rng(3).standard_normal(25)
    planned = SpMatrix.from_scipy(A, device="cpu")
    other = operator(A if foreign == "A" else sp.diags_array(1 / A.diagonal()))
    for _ in range(2):
        M = None if foreign == "A" else SpMatrix.from_scipy(sp.csr_array(sp.eye_array(25)), device="cpu")
        cg(planned, b, M=M)
        assert noted
        assert all(noted)
        noted.clear()
        for _ in range(2):
            given = {"A": other} if foreign == "A" else {"A": planned, "M": other}
            _, stats = cg(b=b, workspace=Workspace(), **given)
            assert stats.converged
        assert not any(noted)
        noted.clear()


@pytest.mark.parametrize(
    ("method", "kind", "dtype", "preconditioned"),
    [
        (cg, "definite", "f8", False),
        (cg, "definite", "f4", True),
        (cg, "definite", "c16", False),
        (minres, "indefinite", "f8", False),
        (minres, "definite", "f8", True),
        (minres, "indefinite", "c16", False),
        (chebyshev, "definite", "f8", True),
        (chebyshev, "definite", "c16", False),
        (bicgstab, "general", "f8", False),
        (bicgstab, "general", "c16", True),
        (gmres, "general", "f8", False),
        (gmres, "general", "c8", True),
    ],
)
def test_the_same_as_on_the_cpu(monkeypatch, method, kind, dtype, preconditioned):
    A, b, rtol = model(kind, 7, dtype), numbers(49, 3, dtype), tolerance(dtype)
    turned = np.exp(0.05j) if np.dtype(dtype).kind == "c" else 1.0
    M = sp.diags_array(np.linspace(0.2, 0.3, 49) * turned).astype(dtype) if preconditioned else None
    want, told = method(A, b, rtol=rtol, M=M)
    device, workspace = emulate(monkeypatch), Workspace()
    x, stats = method(A, b, rtol=rtol, M=M, workspace=workspace)
    again, _ = method(A, b, rtol=rtol, M=M, workspace=workspace)
    assert stats.converged, stats.reason
    launched = "dasp_basis_take" if method is gmres else "dasp_fused"
    assert device.launches.count(launched) > stats.iterations
    check(A, x, b, stats, rtol)
    assert abs(stats.iterations - told.iterations) <= 2
    np.testing.assert_allclose(stats.residuals[:8], told.residuals[:8], rtol=1e3 * np.finfo(dtype).eps)
    np.testing.assert_allclose(x, want, atol=1e3 * rtol * abs(want).max())
    np.testing.assert_array_equal(x, again)


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_minres_stops_where_the_residual_is_the_least(monkeypatch, dtype):
    A = sp.csr_array(sp.csgraph.laplacian(sp.csr_array(4 * sp.eye_array(49) - poisson(7)))).astype(dtype)
    b, answers = numbers(49, 3, dtype), []
    limits = make_limits(A, 1e-5, 0.0, 100, None, None, False)
    for device in (None, EmulatedDevice()):
        if device is not None:
            emulate(monkeypatch, device)
        answers.append(solve(A, b, None, limits, None, None, MinimalResiduals))
    (want, told), (x, stats) = answers
    assert device is not None
    assert device.launches.count("dasp_fused") > stats.iterations
    assert "b out of its reach" in stats.reason
    assert abs(stats.iterations - told.iterations) <= 2
    assert abs(stats.residual - abs(b.sum()) / 7) <= 1e-3 * stats.residual
    np.testing.assert_allclose(x, want, atol=0.05 * abs(want).max())


@pytest.mark.parametrize(
    ("n", "dtype", "restart"),
    [(2101, "f8", 11), (2101, "f4", 4), (1, "f8", 1), (1051, "c16", 11), (2101, "c8", 4), (3, "c16", 30)],
)
def test_gmres_finds_the_least_residual_of_every_space(emulated, n, dtype, restart):
    """After each step of the first cycle, against a basis made by Householder; also for odd lengths."""
    rng, b, rtol = np.random.default_rng(n), numbers(n, dtype=dtype), tolerance(dtype)
    A = sp.random_array((n, n), density=min(1.0, 5 / n), random_state=rng) * numbers(1, 1, dtype)[0]
    A = sp.csr_array(A + sp.diags_array(np.linspace(2, 9, n) * numbers(1, 2, dtype)[0])).astype(dtype)
    x, stats = gmres(A, b, rtol=rtol, restart=restart)
    assert stats.converged, stats.reason
    wide = b.astype(np.result_type(dtype, np.float64))
    assert np.linalg.norm(wide - A @ x.astype(wide.dtype)) <= 1.01 * rtol * np.linalg.norm(wide)
    krylov, wanted, basis = wide, [], np.empty((n, 0))
    for _ in range(min(restart, n, stats.iterations)):
        basis = np.linalg.qr(np.column_stack([basis, krylov]))[0]
        krylov, image = A @ basis[:, -1], A @ basis
        y = np.linalg.lstsq(image, b, rcond=None)[0]
        wanted.append(float(np.linalg.norm(b - image @ y)))
    bound = 64 * np.finfo(dtype).eps * float(np.linalg.norm(b)) * restart
    np.testing.assert_array_less(abs(np.array(stats.residuals[1 : len(wanted) + 1]) - wanted), bound)


@pytest.mark.parametrize(("dtype", "most"), [(float, 1499), (complex, 749)])
def test_a_basis_has_its_limit_on_a_gpu(emulated, dtype, most):
    with pytest.raises(ValueError, match=f"restart is {most + 1}; on a GPU at most {most}"):
        gmres(model("definite", 40, dtype), numbers(1600, dtype=dtype), restart=most + 1)


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


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_conjugate_gradients(emulated, form):
    A, b = poisson(5), np.random.default_rng(4).standard_normal(25)
    for rtol in (1e-6, 1e-12, 0.0):
        limits = make_limits(A, rtol, 0.0, 60, None, None, False)
        x, stats = solve(A, b, None, limits, None, None, form)
        check(A, x, b, stats, rtol)
        assert stats.converged == (rtol > 0)
        assert len(stats.residuals) == stats.iterations + 1
    limits = make_limits(A, 1e-8, 0.0, 7, None, None, False)
    x, stats = solve(A, b, np.ones(25), limits, None, None, form)
    assert (stats.info, stats.iterations) == (7, 7)
    assert stats.residual == pytest.approx(np.linalg.norm(b - A @ x), rel=1e-12)
    assert stats.residuals[-1] == pytest.approx(stats.residual, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("A", "b", "words"),
    [
        (np.diag([1.0, -1.0, 2.0]), np.ones(3), "not positive definite"),
        (np.diag([1.0, np.nan, 2.0]), np.ones(3), "NaN"),
        (np.eye(3), np.array([1.0, np.nan, 1.0]), "NaN"),
        (np.eye(3), np.array([1.0, np.inf, 1.0]), "NaN"),
        (np.eye(3), np.zeros(3), "b is zero"),
        (np.eye(3), np.full(3, 1e-180), "small enough"),
        (np.eye(3), np.full(3, 1e180), "small enough"),
    ],
)
def test_how_it_ends(emulated, form, A, b, words):
    limits = make_limits(A, 1e-8, 0.0, None, None, None, False)
    x, stats = solve(A, b, None, limits, None, None, form)
    assert words in stats.reason
    with np.errstate(all="ignore"):
        if stats.converged:
            check(A, x, b, stats, 1e-8)


@pytest.mark.parametrize(("form", "passes"), list(zip(FORMS, (3, 1), strict=True)))
def test_the_launches_of_an_iteration(emulated, form, passes):
    """Three passes beside the product, or one; none of them for scalars alone."""
    A = poisson(8)
    system = system_module.System(A, None, np.dtype(float), "cpu", form)
    system.vectors["b"][...] = np.random.default_rng(0).standard_normal(64)
    counts = []
    for most in (16, 32):
        system.loop.start("zero", {"rtol": 1e-14, "atol": 0.0, "margin": 1.0})
        emulated.launches.clear()
        report = system.loop.advance(most, finish=False)
        assert len(report.residuals) == most
        counts.append(emulated.launches.count("dasp_fused"))
    assert counts[1] - counts[0] == 16 * passes


def test_passes_over_long_vectors_have_few_blocks():
    space = CudaSpace("cuda:0", np.dtype(float), EmulatedDevice(processors=2))
    assert [space.blocks(n) for n in (1, 512, 513, 1_000_000)] == [1, 1, 2, 8]


@pytest.mark.parametrize("history", [7, 8])
@pytest.mark.parametrize("form", FORMS)
def test_a_solve_goes_on_when_the_history_is_full(emulated, form, history, monkeypatch):
    """With the same bits, whether it stops there after an odd number of iterations or an even one."""
    A, b = poisson(8), np.random.default_rng(0).standard_normal(64)
    found = []
    for _ in range(2):
        limits = make_limits(A, 1e-9, 0.0, 64, None, None, False)
        found.append(solve(A, b, None, limits, None, None, form))
        monkeypatch.setattr(cuda_loop, "HISTORY", history)
    (x, stats), (same, cut) = found
    assert stats.converged
    assert stats.iterations > 2 * history
    assert cut.residuals == stats.residuals
    np.testing.assert_array_equal(same, x)


@pytest.mark.parametrize("method", [cg, minres, bicgstab])
@pytest.mark.parametrize("every", [1, 3, 4])
def test_callbacks_stop_the_loop_now_and_then(emulated, method, every):
    """After odd numbers of iterations too, where a method's vectors have swapped their names."""
    A, b = poisson(6), np.arange(36.0)
    seen: list[Any] = []
    x, stats = method(operator(A), b, rtol=1e-9, callback=lambda x: seen.append(x.copy()), check_every=every)
    assert len(seen) == -(-stats.iterations // every)
    np.testing.assert_array_equal(seen[-1], x)
    same, without = method(operator(A), b, rtol=1e-9)
    assert without.iterations == stats.iterations
    np.testing.assert_array_equal(same, x)


class Dotted:
    """A matrix whose product leaves a dot product, as those of slices do on a GPU."""

    takes_out = True

    def __init__(self, A: Any, blocks: int = 3) -> None:
        self.A, self.shape, self.dtype, self.blocks, self.asked = A, A.shape, A.dtype, blocks, 0

    def __matmul__(self, x):
        return self.A @ x

    def matvec(self, x, out=None):
        out[...] = self.A @ x
        return out

    def prepare_with_dot(self, x, out, w, *, square=False):
        sums = np.full((1 + square) * self.blocks, np.nan)
        self.asked += 1

        def call():
            self.matvec(x, out=out)
            for place, other in enumerate([w, out][: 1 + square]):
                for k in range(self.blocks):
                    part = slice(k, None, self.blocks)
                    sums[place * self.blocks + k] = other[part] @ out[part]

        return call, sums


@pytest.mark.parametrize(
    ("form", "passes", "asked"),
    [
        (ConjugateGradients, 2, 1),
        (MinimalResiduals, 2, 2),  # one for each phase
        (BiconjugateGradientsStabilized, 3, 2),  # two at once
    ],
)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_dot_products_that_come_with_the_product(emulated, form, passes, asked, preconditioned):
    """A pass for dot products alone becomes part of the product before it, and nothing else changes."""
    A, b = poisson(8), np.random.default_rng(0).standard_normal(64)
    M = sp.diags_array(np.linspace(0.2, 0.3, 64)) if preconditioned else None
    limits = make_limits(A, 1e-10, 0.0, None, None, None, False)
    matrix = Dotted(A)
    x, stats = solve(matrix, b, None, limits, M, None, form)
    assert matrix.asked == asked
    check(A, x, b, stats, 1e-10)
    _, plain = solve(operator(A), b, None, limits, M, None, form)
    assert stats.converged
    assert abs(stats.iterations - plain.iterations) <= 1
    np.testing.assert_allclose(stats.residuals[:10], plain.residuals[:10], rtol=1e-8)
    if preconditioned:
        return
    system = system_module.System(Dotted(poisson(20)), None, np.dtype(float), "cpu", form)
    system.vectors["b"][...] = np.random.default_rng(0).standard_normal(400)
    counts = []  # the first time some turns are made while the loop is captured
    for most in (16, 16, 32):
        system.loop.start("zero", {"rtol": 1e-14, "atol": 0.0, "margin": 1.0})
        emulated.launches.clear()
        assert len(system.loop.advance(most, finish=False).residuals) == most
        counts.append(emulated.launches.count("dasp_fused"))
    assert counts[2] - counts[1] == 16 * passes


def test_starts_and_ends_are_captured_when_they_come_again(emulated, monkeypatch):
    """A solve that is the only one launches them; equal bits either way, and no third capture."""
    captured: list[Any] = []
    monkeypatch.setattr(emulated, "record", lambda function: (captured.append(function), function)[1])
    A, b, workspace = Dotted(poisson(6)), np.arange(36.0), Workspace()
    found = []
    for most in (0, 2, 2):
        x, stats = cg(A, b, rtol=1e-9, workspace=workspace)
        assert stats.converged
        assert len(captured) == most
        found.append(x.tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_captured_is_not(emulated, monkeypatch, method):
    """Also where the product comes into it with a start that is not the first: CuPy's matrices refuse."""
    capturing: list[Any] = []

    def record(function: Any) -> Any:
        capturing.append(function)
        function()
        capturing.pop()
        return function

    def multiply(x: Any) -> Any:
        assert not capturing
        return poisson(6) @ x

    monkeypatch.setattr(emulated, "record", record)
    A: Any = sla.LinearOperator((36, 36), multiply, dtype=float)
    more, workspace = {"restart": 6} if method is gmres else {}, Workspace()
    for _ in range(3):
        _, stats = method(A, np.arange(36.0), rtol=1e-9, workspace=workspace, **more)
        assert stats.converged


def test_a_callback_costs_no_turn(emulated):
    """Where the host asks after each iteration, two are launched for it, not a turn."""
    A, b = poisson(6), np.arange(36.0)
    _, stats = cg(operator(A), b, rtol=1e-9, callback=lambda x: None)
    assert emulated.launches.count("dasp_fused") <= 2 * 3 * stats.iterations + 8


@pytest.mark.parametrize("costly", [False, True])
def test_a_costly_preconditioner_is_applied_few_times_in_vain(emulated, costly):
    A, b = poisson(6), np.arange(36.0)

    class Counted:
        shape, dtype, device, takes_out, calls = (36, 36), np.dtype(np.float64), "cpu", True, 0

        def matvec(self, x, out):
            self.calls += 1
            out[...] = x / 4

        def __matmul__(self, x):
            raise NotImplementedError

    M = Counted()
    M.costly = costly
    _, stats = cg(operator(A), b, rtol=1e-9, M=M)
    assert stats.converged
    in_vain = M.calls - stats.iterations
    assert in_vain <= 2 + (3 if costly else 15)


def test_the_quick_forms_fall_back(emulated, monkeypatch):
    """Where the form with few passes can do no more, the plain one goes on from its x."""
    module = importlib.import_module("dasp.solvers.cg")
    monkeypatch.setattr(module, "find_device_and_type", lambda A, b, M: ("cuda:0", np.dtype(float)))
    A = sp.diags_array(np.logspace(0, 5, 16), format="csr")
    b = np.random.default_rng(0).standard_normal(16)
    x, stats = cg(A, b, rtol=1e-13, maxiter=200)
    check(A, x, b, stats, 1e-13)
    assert len(stats.residuals) == stats.iterations + 1


def test_where_things_are():
    """Arrays and sparse matrices of CuPy say which GPU; a `device` that raises is not asked."""

    class Array:
        device = SimpleNamespace(id=3)

    class Matrix:
        data = Array()

        @property
        def device(self) -> Any:
            raise NotImplementedError

    Array.__module__, Matrix.__module__ = "cupy", "cupyx.scipy.sparse._csr"
    Operator = type("LinearOperator", (), {"__module__": "cupyx.scipy.sparse.linalg"})
    assert [device_of(one) for one in (Array(), Matrix(), Operator())] == ["cuda:3", "cuda:3", None]
    assert [device_of(one) for one in (np.ones(2), sp.eye_array(2), SimpleNamespace())] == [
        "cpu",
        "cpu",
        None,
    ]
    assert device_of(SimpleNamespace(device="cuda:1")) == "cuda:1"


class Kept:
    """Stands for an array that a launch uses."""


def with_programs(M: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a preconditioner make programs that do nothing; returns weak references to what each keeps."""
    made: list[Any] = []

    def program(function: Any) -> Any:
        one = Kept()
        made.append(weakref.ref(one))
        return lambda one=one: None

    monkeypatch.setattr(M.vectors, "bind", lambda name, array: True)
    M.space = SimpleNamespace(program=program)
    return made


def test_a_graph_keeps_the_program_of_a_preconditioner(monkeypatch):
    """And nobody else does: the program keeps the vectors of the system that the graph is for."""
    M = jacobi(sp.eye_array(4, format="csr") * 2.0)
    made = with_programs(M, monkeypatch)
    shape = {"shape": (4,), "strides": (8,), "dtype": np.dtype(np.float64)}
    arrays = [SimpleNamespace(data=SimpleNamespace(ptr=k), **shape) for k in range(2 * RECENT + 4)]
    first = M.prepare(*arrays[:2])
    for r, z in zip(arrays[2::2], arrays[3::2], strict=True):
        M.prepare(r, z)
    assert [one() is not None for one in made] == [True] + [False] * (RECENT + 1)
    assert M.prepare(*arrays[:2]) is first
    first()


def test_a_preconditioner_keeps_few_programs_of_its_callers(monkeypatch):
    M = jacobi(sp.eye_array(4, format="csr") * 2.0)
    made = with_programs(M, monkeypatch)
    monkeypatch.setattr(base, "is_array", lambda array: True)
    monkeypatch.setattr(base, "operand", lambda name, array: array)
    shape = {"shape": (4,), "dtype": np.dtype(np.float64)}
    arrays = [
        SimpleNamespace(data=SimpleNamespace(ptr=k // 2), strides=(8 + k % 2,), **shape)
        for k in range(2 * RECENT + 4)
    ]
    for r, z in zip(arrays[::2], arrays[1::2], strict=True):
        M.matvec(r, out=z)
    assert [one() is not None for one in made] == [False, False] + [True] * RECENT
    M.matvec(arrays[-2], out=arrays[-1])
    assert len(made) == RECENT + 2
    apart = SimpleNamespace(data=arrays[-2].data, strides=(16,), **shape)  # begins where another does
    M.matvec(apart, out=arrays[-1])
    assert len(made) == RECENT + 3


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["f8", *TYPES])
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (cg, "definite"),
        (minres, "indefinite"),
        (chebyshev, "definite"),
        (bicgstab, "general"),
        (gmres, "general"),
    ],
)
def test_on_a_gpu(method, kind, dtype):
    import cupy
    import cupyx.scipy.sparse

    A, b, rtol = model(kind, 30, dtype), numbers(900, dtype=dtype), tolerance(dtype)
    planned, right, workspace = SpMatrix.from_scipy(A, device="cuda"), cupy.asarray(b), Workspace()
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
@pytest.mark.parametrize("method", METHODS)
def test_a_real_matrix_and_a_complex_b_on_a_gpu(method):
    import cupy

    A, b = poisson(20), numbers(400)
    planned = SpMatrix.from_scipy(A, device="cuda")
    for M in (None, jacobi(planned), polynomial(planned)):
        for _ in range(2):
            x, stats = method(planned, cupy.asarray(b), rtol=1e-9, M=M)
            assert stats.converged, stats.reason
            check(A, x.get(), b, stats, 1e-9)


@pytest.mark.cuda
@pytest.mark.parametrize("method", [cg, minres])
def test_what_is_told_on_a_gpu(method):
    planned = SpMatrix.from_scipy(helmholtz(12), device="cuda")
    _, stats = method(planned, numbers(144))
    assert "not Hermitian" in stats.reason
    planned = SpMatrix.from_scipy(hermitian(12), device="cuda")
    for b, words in ((np.zeros(144, complex), "b is zero"), (numbers(144) * np.nan, "NaN")):
        assert words in method(planned, b)[1].reason
    x, stats = method(planned, 1e-180 * numbers(144), rtol=1e-9)
    assert stats.converged, stats.reason
    np.testing.assert_allclose(hermitian(12) @ (x * 1e180), numbers(144), atol=1e-6)
