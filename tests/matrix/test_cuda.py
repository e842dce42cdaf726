"""What only a real GPU can show: arrays, streams, graphs and the first call."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from dasp.models import generate
from dasp.runtime.cuda import driver
from dasp.solvers import cg
from tests.support import sanitizer
from tests.support.gallery import GALLERY, from_lengths
from tests.support.planned import Tuned
from tests.support.reference import assert_close, assert_same_entries
from tests.support.threads import products_in_threads

pytestmark = pytest.mark.cuda

SPLIT = [Tuned("dasp", segment=64), Tuned("sell", steps=2)]
"""Policies that give long rows to several warps."""


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def skewed():
    """Rows of every category, among them long ones of several segments."""
    return from_lengths([3000] * 5 + [300] * 3 + list(range(60)) * 3 + [0] * 40, 1000)


@pytest.mark.parametrize("name", GALLERY)
def test_a_plan_comes_back_from_the_gpu(name):
    planned = SpMatrix.from_scipy(GALLERY[name], device="cpu").to_device("cuda")
    assert planned.device == "cuda:0"
    assert_same_entries(planned.to_scipy(), GALLERY[name])
    assert_same_entries(planned.to_device("cpu").to_scipy(), GALLERY[name])


def test_a_matrix_may_be_dropped_while_its_product_is_on_its_way(cupy, skewed):
    """What it worked in goes to no other matrix that does not wait for it."""
    text = (
        'extern "C" __global__ void late(long long n) { for (long long t = clock64(); clock64() - t < n;); }'
    )
    late, csr = cupy.RawKernel(text, "late"), sp.csr_array(generate("fem3:6"))
    csr.data = np.random.default_rng(1).standard_normal(csr.nnz)
    x, other = cupy.ones((csr.shape[1], 16)), cupy.ones((skewed.shape[1], 16))
    for cycles in (1, 50_000_000):
        A = SpMatrix.from_scipy(csr, device="cuda")
        B = SpMatrix.from_scipy(skewed, policy=SPLIT[1], device="cuda")
        want, out = (A @ x).get(), cupy.empty((csr.shape[0], 16))
        assert A._product.nbytes  # row blocks, which were made for the product
        late((1,), (1,), (np.int64(cycles),))
        A.matvec(x, out=out)
        del A
        gc.collect()
        B @ other  # the first one takes memory
        np.testing.assert_array_equal(out.get(), want)


def test_steps_of_planning_that_run_beside_each_other_make_the_plan_of_the_cpu(cupy):
    from dasp.formats.cost import H200
    from dasp.formats.csr.matrix import Csr
    from dasp.formats.plan import arrays_of
    from dasp.formats.sell import SELL
    from dasp.formats.sell.cpu import primitives as cpu
    from dasp.formats.sell.cuda.primitives import find_primitives

    rng = np.random.default_rng(4)
    lengths = np.where(rng.random(300_000) < 1e-4, 2000, rng.integers(0, 3, 300_000))
    lengths[::9000] = 100  # two digits of six bits
    matrix = from_lengths(lengths, 9000)
    matrix.sort_indices()
    csr = Csr(matrix.shape, matrix.indptr, matrix.indices, matrix.data)
    want = SELL.pack(csr, SELL.options(), H200, cpu)
    numbers = want.pattern.headers[: want.pattern.segments, 1].astype(int)
    assert (np.diff(numbers) < 0).any()  # segments are sorted, too
    there = Csr(csr.shape, *(cupy.asarray(array) for array in csr[1:]))
    for _ in range(10):
        got = SELL.pack(there, SELL.options(), H200, find_primitives(0))
        assert got.pattern.choice == want.pattern.choice
        for one, other in zip(arrays_of(got), arrays_of(want), strict=True):
            np.testing.assert_array_equal(one.get(), other)


def test_auto_takes_the_gpu(skewed):
    assert SpMatrix.from_scipy(skewed).device == "cuda:0"


def test_cupy_in_and_out(cupy, skewed):
    import cupyx.scipy.sparse

    x = np.random.default_rng(0).standard_normal(1000)
    planned = SpMatrix.from_cupy(cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(skewed)))
    y = planned @ cupy.asarray(x)
    assert isinstance(y, cupy.ndarray)
    assert_close(y.get(), skewed, x)
    many = np.random.default_rng(1).standard_normal((1000, 3))
    assert_close((planned @ cupy.asarray(many))[:, 2].get(), skewed, many[:, 2])
    assert_close((planned @ cupy.asarray(np.repeat(x, 2))[::2]).get(), skewed, x)
    out = cupy.full(2 * skewed.shape[0], cupy.nan)
    planned.matvec(cupy.asarray(x), out=out[::2])
    assert_close(out[::2].get(), skewed, x)
    assert bool(cupy.isnan(out[1::2]).all())


def test_host_vectors_are_refused(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    with pytest.raises(TypeError, match=r"x is a numpy\.ndarray and A is on cuda:0"):
        planned @ np.ones(1000)
    with pytest.raises(TypeError, match="out is an ndarray"):
        planned.matvec(cupy.ones(1000), out=np.ones(skewed.shape[0]))
    with pytest.raises(TypeError, match="x is on a GPU and A on the CPU"):
        planned.to_device("cpu") @ cupy.ones(1000)
    with pytest.raises(ValueError, match="device is 'cuda:99'"):
        planned.to_device("cuda:99")


@pytest.mark.parametrize("policy", SPLIT)
def test_a_captured_product_replays(cupy, skewed, policy):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1000))
    y = cupy.full(skewed.shape[0], cupy.nan)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(5):
            planned.matvec(x, out=y)
        graph = stream.end_capture()
    for scale in (1.0, -3.0):
        x *= scale
        y.fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        for _ in range(3):
            graph.launch(stream)
        planned.matvec(x)  # on another stream, at the same time
        stream.synchronize()
        assert_close(y.get(), skewed, x.get())


CAPTURED_FIRST = """
import sys
import cupy
import dasp
S = dasp.models.generate("poisson2d:40")
x, y = cupy.ones(1600), cupy.empty(1600)
cupy.cuda.Device().synchronize()
A = dasp.SpMatrix.from_scipy(S, device="cuda")
if sys.argv[1] == "torch":
    import torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        A.matvec(x, out=y)
    graph.replay()
    torch.cuda.synchronize()
else:
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        A.matvec(x, out=y)
        stream.end_capture().launch(stream)
        stream.synchronize()
assert abs(y.get() - S @ x.get()).max() <= 1e-12
"""


@pytest.mark.parametrize("by", ["cupy", "torch"])
def test_the_first_product_may_be_captured_while_its_kernel_is_compiled(by, tmp_path):
    """A capture in CUDA's global mode, in a process that finds no compiled kernel, and in one that does."""
    if by == "torch":
        pytest.importorskip("torch")
    environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", CAPTURED_FIRST, by], env=environment, timeout=120, check=True)


def ended(seconds=5.0):
    """Whether CUDA has said of each graph that kept scratch that it has ended; it does so when it likes."""
    deadline = time.monotonic() + seconds
    while driver._kept and time.monotonic() < deadline:
        gc.collect()
        driver.drop_ended()
    return not driver._kept


@pytest.mark.parametrize("policy", SPLIT)
def test_scratch_of_a_captured_product_ends_with_its_graph(cupy, skewed, policy, request):
    if request.config.getoption(sanitizer.FLAG):
        pytest.skip("compute-sanitizer does not let graphs end")
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    x, y = cupy.ones(1000), cupy.empty(skewed.shape[0])
    planned.matvec(x, out=y)
    assert ended()
    stream = cupy.cuda.Stream(non_blocking=True)
    used = []
    for _ in range(20):
        with stream:
            stream.begin_capture()
            planned.matvec(x, out=y)
            planned.matvec(x, out=y)
            graph = stream.end_capture()
            driver.drop_ended()
            assert len(driver._kept) == 1
            graph.launch(stream)
        del graph
        stream.synchronize()
        assert ended()
        used.append(cupy.get_default_memory_pool().used_bytes())
    assert used[-1] == used[1]
    assert_close(y.get(), skewed, np.ones(1000))


@pytest.mark.parametrize("policy", SPLIT)
def test_a_captured_product_on_two_branches_of_a_graph(cupy, skewed, policy):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    xs = [cupy.asarray(np.random.default_rng(k).standard_normal(1000)) for k in range(2)]
    ys = [cupy.full(skewed.shape[0], cupy.nan) for _ in xs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]
    planned @ xs[0]
    cupy.cuda.Device().synchronize()
    streams[0].begin_capture()
    streams[1].wait_event(streams[0].record())
    for _ in range(10):
        for stream, x, y in zip(streams, xs, ys, strict=True):
            with stream:
                planned.matvec(x, out=y)
    streams[0].wait_event(streams[1].record())
    graph = streams[0].end_capture()
    for _ in range(20):
        graph.launch(streams[0])
    streams[0].synchronize()
    for x, y in zip(xs, ys, strict=True):
        assert_close(y.get(), skewed, x.get())


BEHIND_PYTHON = """
import cupy, dasp, time
A = dasp.SpMatrix.from_scipy(dasp.models.generate("poisson2d:30").astype(float), device="cuda")
x, y = cupy.ones(900), cupy.empty(900)
A.matvec(x, out=y)
with cupy.cuda.Stream(non_blocking=True) as stream:
    stream.launch_host_func(lambda _: time.sleep(0.1), None)
    for _ in range(5000):
        A.matvec(x, out=y)
    stream.synchronize()
"""


def test_products_wait_for_a_python_function_of_their_stream():
    """More products than the stream's queue holds: their launches must not keep Python from the function."""
    subprocess.run([sys.executable, "-c", BEHIND_PYTHON], timeout=60, check=True)


ENDING = """
import cupy, numpy, dasp, sys, threading
from tests.support.planned import Tuned
A = dasp.SpMatrix.from_scipy(dasp.models.generate("spikes:2000:5:2000"), device="cuda",
                             policy=Tuned("sell", steps=2))
assert A.plan.pattern.segments
xs = [cupy.asarray(numpy.random.default_rng(k).standard_normal(2000)) for k in range(8)]
wants = [A @ x for x in xs]
ys = [cupy.empty_like(want) for want in wants]

def multiply(k):
    with cupy.cuda.Stream.ptds if sys.argv[1] == "threads" else cupy.cuda.Stream(non_blocking=True):
        for _ in range(20 - k):
            A.matvec(xs[k], out=ys[k])

for _ in range(20):
    for y in ys:
        y.fill(numpy.nan)
    cupy.cuda.Device().synchronize()
    for k in range(8):
        if sys.argv[1] == "threads":
            thread = threading.Thread(target=multiply, args=(k,))
            thread.start()
            thread.join()
        else:
            multiply(k)
    cupy.cuda.Device().synchronize()
    assert all(bool((y == want).all()) for y, want in zip(ys, wants))
"""


@pytest.mark.parametrize("what", ["streams", "threads"])
def test_what_ends_with_products_pending_shares_no_scratch_with_what_comes_after(what):
    """CUDA gives the handle of such a stream again, Python a thread's identity: rows would wait for ever."""
    subprocess.run([sys.executable, "-c", ENDING, what], timeout=120, check=True)


@pytest.mark.parametrize("captured", [False, True])
def test_a_strided_x_and_out_in_a_graph(cupy, skewed, captured):
    """The copies of them belong to the graph: nothing that the pool gives out later is written to."""
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    wide, rows = cupy.ones(2000), cupy.full(2 * skewed.shape[0], cupy.nan)
    allocator = cupy.cuda.malloc_async if captured else cupy.get_default_memory_pool().malloc
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with cupy.cuda.using_allocator(allocator):
            planned.matvec(wide[::2], out=rows[::2])
            planned.matvec(wide.reshape(1000, 2), out=rows.reshape(-1, 2))
        graph = stream.end_capture()
        others = [cupy.full(2**k, 7.0) for k in range(3, 14) for _ in range(3)]
        for scale in (1.0, -3.0):
            wide[...] = scale
            for _ in range(2):
                graph.launch(stream)
            assert_close(rows[::2].get(), skewed, np.full(1000, scale))
        assert all(bool((other == 7).all()) for other in others)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("policy", [None, *SPLIT])
def test_the_first_product_by_columns_may_be_captured(cupy, skewed, policy, order):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    x = cupy.array(np.random.default_rng(5).standard_normal((1000, 16)), order=order)
    y = cupy.full((skewed.shape[0], 16), cupy.nan, order=order)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        planned.matvec(x, out=y)
        stream.end_capture().launch(stream)
        for j in range(16):
            assert_close(y[:, j].get(), skewed, x[:, j].get())


@pytest.mark.parametrize("policy", [None, *SPLIT])
def test_the_caller_chooses_a_stream_and_keeps_it(cupy, skewed, policy):
    stream, before = cupy.cuda.Stream(non_blocking=True), cupy.cuda.get_current_stream()
    stream.use()
    try:
        planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
        x = cupy.asarray(np.random.default_rng(7).standard_normal((1000, 16)))
        planned @ x[:, 0].copy(), planned @ x, planned @ cupy.asfortranarray(x)
        planned.with_values(cupy.asarray(skewed.data), out=planned)
        planned.T @ cupy.ones(skewed.shape[0])
        cg(SpMatrix.from_scipy(generate("poisson2d:20"), device="cuda"), cupy.ones(400))
        assert cupy.cuda.get_current_stream() == stream
    finally:
        before.use()


@pytest.mark.parametrize("k", [16, 32])
def test_matrices_of_different_sizes_by_columns_by_turns(cupy, k):
    """Kernels are shared by matrices, and blocks of each have as much shared memory as they need."""
    specs = "poisson3d:40", "fem3:12", "triangles:20000", "poisson3d:30", "stencil27:20"
    matrices = [generate(spec).astype(np.float32) for spec in specs]
    planned = [SpMatrix.from_scipy(matrix, device="cuda") for matrix in matrices]
    xs = [np.random.default_rng(6).standard_normal((A.shape[1], k)).astype("f4") for A in planned]
    for _ in range(2):
        for A, matrix, x in zip(planned, matrices, xs, strict=True):
            y = (A @ cupy.asarray(x)).get()
            for j in (0, k - 1):
                assert_close(y[:, j].copy(), matrix, x[:, j].copy())


@pytest.mark.parametrize("policy", [*SPLIT, Policy(format="sell")])
def test_out_is_filled_with_the_same_bits_whichever_way(cupy, skewed, policy):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    x = cupy.asarray(np.random.default_rng(4).standard_normal(1000))
    want = (planned @ x).get().view(np.uint64)
    m = skewed.shape[0]
    wide = cupy.full((m, 2), cupy.nan)
    for out in (cupy.full(m, cupy.nan), wide[:, 0], cupy.full(2 * m, cupy.nan)[::-2]):
        assert planned.matvec(x, out=out) is out
        np.testing.assert_array_equal(out.get().view(np.uint64), want)
    assert bool(cupy.isnan(wide[:, 1]).all())
    backwards = cupy.ascontiguousarray(x[::-1])[::-1]
    np.testing.assert_array_equal((planned @ backwards).get().view(np.uint64), want)


def test_a_scale_that_float32_cannot_hold_is_infinite_as_on_the_cpu(cupy):
    matrix = from_lengths([5] * 40, 30, dtype=np.float32)
    x = np.random.default_rng(0).standard_normal(30).astype(np.float32)
    with np.errstate(over="ignore"):
        want = SpMatrix.from_scipy(matrix, device="cpu").matvec(x, alpha=1e300)
        got = SpMatrix.from_scipy(matrix, device="cuda").matvec(cupy.asarray(x), alpha=1e300)
    np.testing.assert_array_equal(got.get(), want)


@pytest.mark.parametrize("policy", SPLIT)
@pytest.mark.parametrize("own_streams", [False, True])
def test_threads_share_a_matrix(cupy, skewed, policy, own_streams):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    vectors = [np.random.default_rng(k).standard_normal(1000) for k in range(8)]
    streams = (lambda: cupy.cuda.Stream(non_blocking=True)) if own_streams else lambda: cupy.cuda.Stream.ptds
    for x, results in zip(vectors, products_in_threads(planned, vectors, 300, streams), strict=True):
        for y in results:
            assert_close(y, skewed, x)


def test_another_device_may_be_current(cupy, skewed):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    planned = SpMatrix.from_scipy(skewed, device="cuda:1")
    with cupy.cuda.Device(1):
        x, out = cupy.ones(1000), cupy.empty(skewed.shape[0])
    with cupy.cuda.Device(0):
        y = planned @ x
        planned.matvec(x, out=out)
        assert cupy.cuda.Device().id == 0
    assert y.device.id == 1
    for got in (y, out):
        with cupy.cuda.Device(1):
            assert_close(got.get(), skewed, np.ones(1000))
    with cupy.cuda.Device(0), pytest.raises(TypeError, match="on cuda:0 and A is on cuda:1"):
        planned @ cupy.ones(1000)


def test_products_follow_the_stream(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1000))
    cupy.cuda.Device().synchronize()
    for _ in range(10):
        with cupy.cuda.Stream(non_blocking=True):
            y = x
            for _ in range(20):
                y = planned.matvec(y[:1000] if y.size >= 1000 else x) * 1.0
            got = (planned @ x).get()
        assert_close(got, skewed, x.get())


def test_linear_operator_serves_cupys_solvers(cupy):
    import cupyx.scipy.sparse.linalg

    from dasp import models

    A = models.generate("poisson2d:30").astype(float)
    operator = SpMatrix.from_scipy(A, device="cuda").as_linear_operator()
    b = cupy.ones(900)
    x, failed = cupyx.scipy.sparse.linalg.cg(operator, b, rtol=1e-10)
    assert not failed
    assert np.linalg.norm(A @ x.get() - 1) <= 1e-9 * 30


def test_a_result_keeps_its_memory_as_long_as_anybody_holds_it(cupy):
    from dasp import models

    A = models.generate("poisson2d:30").astype(float)
    planned = SpMatrix.from_scipy(A, device="cuda")
    x = [cupy.full(900, float(k)) for k in range(6)]
    wanted = [A @ np.full(900, float(k)) for k in range(6)]
    cupy.cuda.Device().synchronize()  # the stream does not wait for the vectors
    planned @ x[0]
    held = [planned @ x[1], (planned @ x[2])[3:], cupy.from_dlpack(planned @ x[3])]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        held.append(planned @ x[4])
    for _ in range(20):
        planned @ x[5]
        last = planned @ x[5]
    stream.synchronize()
    for k, (y, start) in enumerate(zip(held, (0, 3, 0, 0), strict=True), 1):
        np.testing.assert_array_equal(y.get(), wanted[k][start:])
    np.testing.assert_array_equal(last.get(), wanted[5])
    with cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
        spare = {(planned @ x[0]).data.ptr for _ in range(20)}
    assert len(spare) <= 2


def test_no_memory_is_taken_per_call(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    x, y = cupy.ones(1000), cupy.empty(skewed.shape[0])
    planned.matvec(x, out=y)
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    for _ in range(10):
        planned.matvec(x, out=y)
    assert pool.used_bytes() == before


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("policy", SPLIT)
def test_each_product_waits_for_what_comes_before_it(cupy, policy, captured):
    """The start of a product overlaps the kernel before it, be that a product or another kernel."""
    rng = np.random.default_rng(3)
    lengths = rng.permutation([2000] * 6 + [300] * 20 + list(range(60)) * 200)
    matrix = from_lengths(lengths, len(lengths))
    matrix.data /= abs(matrix).sum(axis=1).max()
    planned = SpMatrix.from_scipy(matrix, policy=policy, device="cuda")
    start = rng.standard_normal(matrix.shape[1])
    first, second = cupy.asarray(start), cupy.empty(matrix.shape[0])

    def chain():
        for _ in range(10):
            planned.matvec(first, out=second)
            planned.matvec(second, out=first)
            first.__iadd__(second)

    want = start.copy()
    for _ in range(10):
        one = matrix @ want
        want = matrix @ one + one
    chain()  # compiles what the capture needs
    first.set(start)
    cupy.cuda.Device().synchronize()  # the next stream does not wait for this one
    with cupy.cuda.Stream(non_blocking=True) as stream:
        if captured:
            stream.begin_capture()
            chain()
            graph = stream.end_capture()
            graph.launch(stream)
        else:
            chain()
        stream.synchronize()
    np.testing.assert_allclose(first.get(), want, rtol=1e-9, atol=1e-12 * np.abs(want).max())
