"""Ranks on GPUs: their kernels in the emulator, driven by the code that drives a GPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import solvers
from dasp.distributed import SpMatrix
from dasp.distributed import space_cuda as ranks_cuda
from dasp.distributed.halo_cuda import (
    ADD,
    ADD_DOT,
    PACK,
    count_blocks,
    define_scalar,
    find_steps,
    prepare_addition,
    prepare_packing,
)
from dasp.distributed.space_cuda import RanksCudaSpace, RanksDevice
from dasp.models import generate
from dasp.runtime.cuda.device import CudaDevice
from dasp.solvers.arguments import make_limits
from dasp.solvers.cg import ConjugateGradients, HermitianConjugateGradients, PipelinedConjugateGradients
from dasp.solvers.cuda import loop as cuda_loop
from dasp.solvers.cuda.passes import BLOCKS_PER_PROCESSOR, THREADS
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.driver import drive
from dasp.solvers.gmres import GeneralizedMinimalResiduals, gmres
from dasp.solvers.system import System
from tests.solvers.test_cuda import Dotted
from tests.support.ranks import run_ranks
from tests.support.simt_device import EmulatedDevice
from tests.support.systems import helmholtz, hermitian, numbers

pytestmark = [pytest.mark.simt, pytest.mark.ranks]


class SharedDevice(EmulatedDevice):
    """One emulator for ranks that are threads: one launch at a time, and a turn in vain as on a GPU."""

    lock = threading.Lock()

    def beside(self, add: Any) -> None:
        add()

    def prepare_launch(self, *given: Any, **more: Any) -> Any:
        with self.lock:
            ready = super().prepare_launch(*given, **more)

        def launch(*values: Any) -> None:
            with self.lock:
                ready(*values)

        return launch

    def repeat(self, function: Any, numbers: np.ndarray, *, captured: bool) -> Any:
        run = super().repeat(function, numbers, captured=captured)
        return lambda: (run(), function())


@pytest.mark.parametrize(
    ("dtype", "shape"), [("f4", (500,)), ("f8", (500, 3)), ("bfloat16", (500, 3)), ("c16", (500,))]
)
def test_halo_values_are_packed_and_products_added(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = (
        rng.standard_normal((500, 6)).astype(dtype)[:, :: 6 // shape[1]][:, : shape[1]]
        if len(shape) == 2
        else (rng.standard_normal(1000).astype(dtype)[::2])
    )
    places = rng.integers(0, 500, 700)
    columns = shape[1] if len(shape) == 2 else 1
    packed = np.full((700, *shape[1:]), np.nan, dtype)
    on, types = EmulatedDevice(), {"Scalar": np.dtype(dtype)}
    fixed = {"places": places, "count": 700, "columns": columns, "packed": packed}
    row, column = find_steps(x)
    base = np.lib.stride_tricks.as_strided(x, (1 + 499 * row + (columns - 1) * column,), (x.itemsize,))
    arguments = fixed | {"x": base, "row": row, "column": column}
    on.prepare_launch(PACK, define_scalar(np.dtype(dtype)), arguments, 3, THREADS, types)()
    np.testing.assert_array_equal(packed, x[places])

    rows = rng.permutation(500)[:200]
    product = np.asfortranarray(rng.standard_normal((200, *shape[1:])).astype(dtype))
    y = rng.standard_normal(shape).astype(dtype)
    want = y.copy()
    want[rows] += product
    fixed = {"rows": rows, "count": 200, "columns": columns}
    flat = product.reshape(-1, order="F")
    arguments = fixed | {"product": flat, "y": y, "row": find_steps(y)[0], "column": find_steps(y)[1]}
    on.prepare_launch(
        ADD, define_scalar(np.dtype(dtype)), arguments, count_blocks(200 * columns), THREADS, types
    )()
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("count", "before"), [(0, 600), (1, 1), (700, 600)])
@pytest.mark.parametrize(("dtype", "dots"), [("f4", 1), ("f8", 2)])
def test_what_is_added_counts_in_dot_products(dtype: str, count: int, before: int, dots: int) -> None:
    rng = np.random.default_rng(6)
    rows, product = rng.permutation(900)[:count], rng.standard_normal(count).astype(dtype)
    y, w = rng.integers(-9, 9, (2, 900)).astype(dtype)
    product, left = np.round(product * 8), rng.integers(-99, 99, dots * before).astype(float)
    sums, was, want = np.full(dots * 5, np.nan), y.astype(float), y.copy()
    want[rows] += product
    arguments = {"rows": rows, "count": count, "product": product, "y": y, "w": w}
    arguments |= {"left": left, "before": before, "sums": sums}
    types = {"Scalar": np.dtype(dtype)}
    constants = define_scalar(np.dtype(dtype)) | {"DASP_DOT": str(dots)}
    EmulatedDevice().prepare_launch(ADD_DOT, constants, arguments, 5, THREADS, types)()
    np.testing.assert_array_equal(y, want)
    more = [float(w[rows].astype(float) @ product.astype(float)), float(y.astype(float) @ y - was @ was)]
    assert (sums.reshape(dots, 5).sum(axis=1) == left.reshape(dots, -1).sum(axis=1) + more[:dots]).all()


@pytest.mark.cuda
def test_places_may_be_beyond_what_32_bits_hold() -> None:
    """Of x, of y and of their elements, which are 3 apart."""
    cupy = pytest.importorskip("cupy")
    rows = cupy.asarray([2**31 + 1, 5, 2**32 // 3 + 7, 2**31 - 1])
    x, y = (cupy.zeros(3 * 2**31 + 9, np.float16)[::3] for _ in range(2))
    x[rows], y[rows] = cupy.asarray([1, 2, 3, 4], np.float16), np.float16(8)
    cupy.cuda.Device().synchronize()
    packed, stream = cupy.zeros(4, np.float16), cupy.cuda.get_current_stream().ptr
    prepare_packing(rows, packed)(stream, x)
    np.testing.assert_array_equal(packed.get(), [1, 2, 3, 4])
    prepare_addition(rows, packed)(stream, y)
    np.testing.assert_array_equal(y[rows].get(), [9, 10, 11, 12])


class DottedRanks(Dotted):
    """A matrix over ranks whose product leaves dot products of each rank's rows."""

    def __init__(self, D: SpMatrix) -> None:
        super().__init__(D)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.A, name)


def solve_emulated(A: Any, b: Any, ranks: int, method: Any, *options: int, wrap: Any = None) -> Any:
    """Solve with traced passes in the emulator; return x, and what each rank answered."""

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        space = RanksCudaSpace(comm, "cpu", b.dtype, SharedDevice(), comm)
        D.solver_space = lambda dtype: space
        operator = D if wrap is None else wrap(D)
        system = System(operator, None, b.dtype, "cpu", method, *options)
        system.take(b[D.rows.first : D.rows.first + D.rows.count], None)
        limits = make_limits(b, 1e-9, 0.0, None, None, None, False)
        answer = drive(system, limits)
        return system.vectors["x"].copy(), answer

    found = run_ranks(ranks, run)
    assert all(answer.info == 0 for _, answer in found)
    assert all(answer.residuals == found[0][1].residuals for _, answer in found)
    return np.concatenate([x for x, _ in found]), found


@pytest.mark.parametrize(
    ("method", "wrap"),
    [
        (ConjugateGradients, None),
        (ConjugateGradients, DottedRanks),
        (PipelinedConjugateGradients, DottedRanks),
    ],
)
def test_a_traced_iteration_sums_over_ranks(method: Any, wrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it goes on after so many iterations as the GPU tells of at once, and turns in vain."""
    A = generate("poisson2d:7")
    b = np.random.default_rng(2).standard_normal(49)
    x, found = solve_emulated(A, b, 2, method, wrap=wrap)
    assert np.linalg.norm(b - A @ x) <= 1.0001e-9 * np.linalg.norm(b)
    monkeypatch.setattr(cuda_loop, "HISTORY", 7)
    again, cut = solve_emulated(A, b, 2, method, wrap=wrap)
    assert cut[0][1].residuals == found[0][1].residuals
    np.testing.assert_array_equal(again, x)


def test_a_krylov_basis_sums_over_ranks() -> None:
    A = generate("poisson2d:11") + sp.diags_array(
        np.full(120, 0.7), offsets=1, shape=(121, 121), format="csr"
    )
    b = np.random.default_rng(4).standard_normal(121)
    x, found = solve_emulated(A, b, 3, GeneralizedMinimalResiduals, 20)
    assert np.linalg.norm(b - A @ x) <= 1.0001e-9 * np.linalg.norm(b)
    _, alone = gmres(A, b, rtol=1e-9, restart=20)
    assert abs(found[0][1].iterations - alone.iterations) <= 2


@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_traced_complex_iterations_sum_over_ranks(name: str) -> None:
    """Both parts of every dot product, and of those of a Krylov basis."""
    A, b = hermitian(8) if name == "cg" else helmholtz(8), numbers(64)
    how = (HermitianConjugateGradients,) if name == "cg" else (GeneralizedMinimalResiduals, 20)
    x, found = solve_emulated(A, b, 2, *how)
    assert np.linalg.norm(b - A @ x) <= 1.0001e-9 * np.linalg.norm(b)
    more = {"restart": 20} if name == "gmres" else {}
    _, alone = getattr(solvers, name)(A, b, rtol=1e-9, **more)
    assert abs(found[0][1].iterations - alone.iterations) <= 2


def test_turns_and_blocks_are_those_of_all_ranks() -> None:
    """Else one would go on alone, and wait for the others for ever."""

    def run(comm: Any) -> Any:
        space = RanksCudaSpace(comm, "cpu", np.dtype(float), SharedDevice(2 + comm.rank), comm)
        return *(space.turn(products, costly=comm.rank == 0) for products in (1, 2, 9)), space.blocks(7)

    length = CudaSpace("cpu", np.dtype(float), EmulatedDevice()).turn(1, costly=False)
    assert run_ranks(3, run) == [(length, length // 2, 2, 2 * BLOCKS_PER_PROCESSOR)] * 3


class Number:
    """The first of some numbers, as a GPU would leave it turn by turn."""

    def __init__(self, codes: list[float]) -> None:
        self._codes = codes

    def __getitem__(self, part: slice) -> Number:
        return self

    def get(self, out: np.ndarray, *, blocking: bool) -> None:
        assert not blocking
        out[0] = self._codes.pop(0)


class Beside(contextlib.nullcontext):
    """A branch that writes down what it is asked for."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.begin, self.end, self.join = (lambda: log.append("branch")), int, (lambda: log.append("join"))


def fake_device(log: list[str]) -> Any:
    """A rank's device whose streams, events and graphs write down what they are asked for."""
    device = object.__new__(RanksDevice)
    device._device, device._seen = contextlib.nullcontext(), np.full(2, np.nan)
    device._looked = [SimpleNamespace(record=lambda on, k=k: log.append(f"look {k}")) for k in range(2)]
    wait = {id(event): f"wait {k}" for k, event in enumerate(device._looked)}
    device._transport = SimpleNamespace(wait=lambda event: log.append(wait[id(event)]), check=int, count=0)
    stream = contextlib.nullcontext(SimpleNamespace(ptr=7))
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=1), Stream=lambda **_: stream)
    device._cupy = SimpleNamespace(cuda=cuda)
    device._sum_travels, device._branch = False, Beside(log)
    return device


def test_the_host_looks_at_a_turn_while_the_next_one_runs() -> None:
    log: list[str] = []
    run = fake_device(log).repeat(lambda: log.append("turn"), Number([0.0, 0.0, 3.0, 3.0]), captured=False)
    run()
    assert [one for one in log if not one.startswith("look")] == [
        "turn", "turn", "wait 0", "turn", "wait 1", "turn", "wait 0",
    ]  # fmt: skip
    assert [one for one in log if one.startswith("look")] == ["look 0", "look 1", "look 0", "look 1"]


def test_a_sum_travels_until_a_launch_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    device = fake_device(log)
    monkeypatch.setattr(CudaDevice, "prepare_launch", lambda *_, **__: lambda *values: log.append("kernel"))
    launch = device.prepare_launch()
    device.beside(lambda: log.append("sum"))
    log.append("product")
    launch()
    launch()
    assert log == ["branch", "sum", "product", "join", "kernel", "kernel"]


def test_a_graph_ends_with_the_sum_that_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps what its launches use, since it has their addresses alone."""
    log: list[str] = []
    device = fake_device(log)
    monkeypatch.setattr(ranks_cuda, "on_stream", lambda stream: stream)
    graph = SimpleNamespace(launch=lambda stream: log.append(f"graph on {stream}"))
    monkeypatch.setattr(ranks_cuda, "PriorityGraph", lambda stream, function: (function(), graph)[1])

    kept = Number([])

    def function(kept: Any = kept) -> None:
        device.beside(lambda: log.append("sum"))

    device.beside(lambda: log.append("earlier"))
    watched, launch = weakref.ref(kept), device.record(function)
    del kept, function
    gc.collect()
    assert watched() is not None
    launch()
    assert log == ["branch", "earlier", "join", "branch", "sum", "join", "graph on 1"]
