"""The CUDA ladder of dense products in the emulator, and on a GPU where there is one.

The emulator runs what `dasp.dense.gemm.cuda.launches` says: the same sources, constants, grids and arguments.
"""

import contextlib
import ctypes
import functools
import json
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasp.cli import tune_gemm
from dasp.dense import gemm, kernels
from dasp.dense.gemm.ladder import HALF
from dasp.dense.gemm.rungs_cuda import BY_NAME, LAST, RUNGS, OperandLayout, launches
from dasp.dense.gemm.settings import SIZES, TileSizes, entry, nearest
from tests.dense.test_gemm import assert_product, spread
from tests.simt import compile_kernels, poisoned

pytestmark = pytest.mark.simt

# Small tiles of every rung, so that a few results already have several blocks, warps, pieces and stages.
SMALL = {
    "column_4": TileSizes(16, 32, 8, tm=4, tn=1),
    "column_8": TileSizes(32, 32, 16, tm=8, tn=1),
    "square_4": TileSizes(32, 32, 8, tm=4, tn=4),
    "square_8": TileSizes(64, 64, 8),
    "vector": TileSizes(32, 32, 8, tm=4, tn=4),
    "tuned": TileSizes(32, 64, 16, tm=4, tn=8),
    "warp": TileSizes(32, 32, 8, tm=4, tn=4, wm=32, wn=16),
    "double": TileSizes(32, 32, 8, tm=4, tn=4, wm=16, wn=32),
    "async": TileSizes(32, 64, 8, tm=4, tn=8, wm=32, wn=32, stages=3, group=2),
    "split": TileSizes(32, 32, 8, tm=4, tn=4, wm=16, wn=32, stages=4, group=3, parts=3),
    "tensor": TileSizes(32, 32, 16, wm=16, wn=32, stages=3, group=2, parts=2),
    "tensor_half": TileSizes(32, 64, 32, wm=16, wn=32, stages=3, group=2),
}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
EACH = [(rung.name, dtype) for rung in RUNGS for dtype in rung.dtypes]


@functools.cache
def module(source, defines):
    return compile_kernels(source, dict(defines))


def to_bits(values, dtype):
    """Float32 values that the dtype holds exactly, as the kernel's elements."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype).view(np.uint16) if dtype == "float16" else values.astype(dtype)


def from_bits(bits, dtype):
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16) if dtype == "float16" else bits


def random(rng, shape, dtype):
    """Values that the dtype holds exactly."""
    values = rng.standard_normal(shape)
    return from_bits(to_bits(values.astype(np.float32) if dtype in HALF else values, dtype), dtype)


def padded(values, dtype, width):
    """The matrix in rows of `width`, what is past its own columns unreadable; returns (array, poisoned)."""
    rows = poisoned(np.zeros((values.shape[0], width), to_bits(values[:0], dtype).dtype))
    rows.array[:, : values.shape[1]] = to_bits(values, dtype)
    rows._bytes.reshape(*rows.array.shape, rows.array.itemsize)[:, : values.shape[1]] = 1
    return rows


def emulate(
    rung, dtype, sizes, *, setting=None, along=(True, False), aligned=True, alpha=1.0, beta=0.0, seed=0
):
    """Run a rung in the emulator and hold its result to the bound; returns the bits of D."""
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a, b, c = (random(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    piece = 16 // np.dtype("f8" if dtype == "float64" else "f2" if dtype in HALF else "f4").itemsize
    width = lambda length: -(-length // piece) * piece if aligned else length + 1  # noqa: E731
    stored = [a if along[0] else a.T, b.T if along[1] else b, c]
    rows = [padded(x, dtype, width(x.shape[1])) for x in stored]
    if beta == 0:
        rows[2] = poisoned(rows[2].array)  # reading it is an error
    d = poisoned(np.zeros_like(rows[2].array))
    lds = [x.array.shape[1] for x in (*rows, d)]
    layout = OperandLayout(m, n, k, *lds, *along, aligned)
    row = BY_NAME[rung]
    setting = setting or SMALL.get(rung) or row.default(dtype)
    steps = launches(row, dtype, layout, setting, alpha, beta)
    sums = poisoned(np.zeros(max(1, steps[0].sums), "f8" if dtype == "float64" else "f4"))
    arrays = {"a": rows[0], "b": rows[1], "c": rows[2], "d": d, "sums": sums}
    for step in steps:
        arguments = [arrays[x] if isinstance(x, str) else x for x in step.arguments]
        module(step.source, step.defines).launch(
            step.kernel, grid=step.grid, block=step.block, args=arguments, shared_bytes=step.shared_bytes
        )
    assert d.written[:, :n].all()
    assert not d.written[:, n:].any()
    check(from_bits(d.array[:, :n].copy(), dtype), a, b, c, alpha, beta, dtype)
    return d.array.tobytes()


def check(got, a, b, c, alpha, beta, dtype):
    """The bound of the sums, in float32 for half precisions, and one rounding to the result's dtype."""
    if dtype not in HALF:
        assert_product(got, a, b, c, alpha, beta)
        return
    a, b, c = (x.astype(np.longdouble) for x in (a, b, c))
    want, scale = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if beta != 0:
        want, scale = want + beta * c, scale + abs(beta) * np.abs(c)
    terms = (a.shape[1] + 3) * UNIT["float32"]
    bound = terms / (1 - terms) * scale
    assert (np.abs(got.astype(np.longdouble) - want) <= bound + UNIT[dtype] * (np.abs(want) + bound)).all()


@pytest.mark.parametrize(("rung", "dtype"), EACH)
def test_each_rung_is_right_at_its_edges(rung, dtype):
    for sizes, aligned in (((37, 45, 50), False), ((72, 40, 24), True)):
        emulate(rung, dtype, sizes, aligned=aligned, alpha=1.5, beta=-0.5)


@pytest.mark.parametrize(("rung", "dtype"), EACH)
def test_each_rung_with_its_usual_tiles(rung, dtype):
    row = BY_NAME[rung]
    for setting in row.usual[row.dtypes.index(dtype)]:
        assert rung not in tune_gemm.SPACES or tune_gemm.find_problem(row, setting, dtype) is None
        emulate(rung, dtype, (136, 72, 40), setting=setting, alpha=-2, beta=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("along", "aligned"), [((True, True), False), ((False, False), False), ((False, True), True)]
)
def test_last_rungs_take_either_memory_order(dtype, along, aligned):
    for rung in RUNGS:
        if rung.tiles.staged and dtype in rung.dtypes:
            emulate(rung.name, dtype, (40, 72, 48), along=along, aligned=aligned, beta=2)


@pytest.mark.parametrize("depth", [0, 4, 8, 16])
def test_every_float64_instruction(depth):
    emulate(
        "tensor", "float64", (33, 47, 37), setting=TileSizes(32, 32, 32, wm=16, wn=16, mma_k=depth), beta=1
    )


@settings(max_examples=60)
@given(
    which=st.sampled_from(EACH),
    sizes=st.tuples(*[st.integers(1, 80)] * 3),
    memory=st.sampled_from([((True, False), True), ((True, False), False), ((False, True), True)]),
    alpha=st.sampled_from([1.0, -0.5]),
    beta=st.sampled_from([0.0, 1.0, -2.0]),
    seed=st.integers(0, 1000),
)
def test_any_size_is_right_and_has_equal_bits_twice(which, sizes, memory, alpha, beta, seed):
    (rung, dtype), (along, aligned) = which, memory
    along = along if BY_NAME[rung].tiles.staged else (True, False)
    options = dict(along=along, aligned=aligned, alpha=alpha, beta=beta, seed=seed)
    assert emulate(rung, dtype, sizes, **options) == emulate(rung, dtype, sizes, **options)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_split_shares_any_depth(parts):
    setting = TileSizes(32, 32, 8, tm=4, tn=4, wm=16, wn=32, stages=3, parts=parts)
    for k in (1, 8, 9, 39, 41):
        emulate("split", "float32", (33, 35, k), setting=setting, beta=1)


@pytest.mark.parametrize(
    ("rung", "dtype"),
    [("tuned", "float32"), ("split", "float32"), ("tensor", "float64"), ("tensor_half", "float16")],
)
def test_the_search_proposes_only_sets_that_run(rung, dtype):
    row, rng = BY_NAME[rung], np.random.default_rng(5)
    proposed = tune_gemm.list_candidates(row, dtype)
    assert len(proposed) > 10
    small = [s for s in proposed if s.bm * s.bn <= 64 * 64]
    for i in rng.choice(len(small), 2, replace=False):
        emulate(rung, dtype, (67, 69, 33), setting=small[i], beta=1)
        layout = OperandLayout(64, 64, 64, 64, 64, 64, 64)
        step = launches(row, dtype, layout, small[i], 1.0, 0.0)[0]
        used = module(step.source, step.defines).static_shared_bytes + step.shared_bytes
        assert used <= tune_gemm.count_shared_bytes(row, small[i], dtype)
        if rung in ("tuned", "split"):  # whose shared memory is the same in every memory order
            assert used == tune_gemm.count_shared_bytes(row, small[i], dtype)


def test_the_search_has_the_best_rungs():
    assert tune_gemm.SPACES.keys() == {"tuned", *LAST.values()}


@pytest.mark.parametrize("rung", [name for name in SMALL if name not in ("square_8",)])
def test_settings_describe_what_they_launch(rung):
    """A launch asks for as much shared memory as the compiled kernel uses."""
    dtype = "float16" if rung == "tensor_half" else "float64" if rung == "tensor" else "float32"
    layout, tiles = OperandLayout(64, 64, 64, 64, 64, 64, 64), BY_NAME[rung].tiles
    step = launches(BY_NAME[rung], dtype, layout, SMALL[rung], 1.0, 0.0)[0]
    assert step.block[0] == tiles.threads(SMALL[rung])
    assert (step.shared_bytes > 0) == tiles.staged
    assert (module(step.source, step.defines).static_shared_bytes == 0) == tiles.staged


def test_size_classes_and_parts():
    assert [nearest(list(SIZES), (s, s, s)) for s in SIZES] == list(SIZES)
    assert nearest(list(SIZES), (1, 1, 1)) == SIZES[0]
    assert nearest(list(SIZES), (10**5,) * 3) == SIZES[-1]
    assert nearest([100, 1000], (317,) * 3) == 1000
    assert entry("no such GPU", "float32", (64, 64, 64)) is None


def test_tiles_grow_with_the_product():
    """Small tiles, whose dot products several blocks share, where larger ones leave multiprocessors idle."""
    find = BY_NAME["split"].find
    tall = find("float32", (64, 64, 100_000), "no such GPU", 132)
    assert tall.parts > 8
    found = [find("float32", (size,) * 3, "no such GPU", 132) for size in (64, 512, 1024, 2048, 8192)]
    assert [setting.bn for setting in found] == [64, 64, 128, 256, 256]
    assert [setting.parts for setting in found[1:]] == [1, 1, 1, 1]
    assert find("float32", (1024,) * 3, "no such GPU", 20).bn == 256
    assert BY_NAME["async"].find("float32", (64, 64, 100_000), "no such GPU", 132).parts == 1


def test_every_kernel_file_is_a_rung():
    from dasp.runtime.cuda import source as _source

    there = {path.relative_to(_source.find()).as_posix() for path in _source.find().rglob("dense/gemm_*.cu")}
    assert there == {rung.source for rung in RUNGS} | {"dense/gemm_reduce.cu"}


# ---- on a GPU ----------------------------------------------------------------------------------------


def on_gpu(values, dtype):
    import cupy

    return cupy.asarray(values).astype(dtype if dtype != "bfloat16" else cupy.dtype("bfloat16"))


@pytest.mark.cuda
@pytest.mark.parametrize("orders", [("C", "C", "C"), ("F", "backwards", "gaps")])
@pytest.mark.parametrize(("rung", "dtype"), [(r, d) for r, d in EACH if d != "bfloat16"])
def test_each_rung_on_the_gpu(rung, dtype, orders):
    for sizes in ((37, 45, 50), (256, 256, 256), (300, 1, 700), (64, 65, 9000)):
        multiply_on_the_gpu(rung, dtype, sizes, orders)


def multiply_on_the_gpu(rung, dtype, sizes, orders):
    import cupy

    m, n, k = sizes
    rng = np.random.default_rng(3)
    host = [random(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n))]
    a, b, c = (spread_gpu(x, order) for x, order in zip(host, orders, strict=True))
    for beta in (0, -0.5):
        c[...] = cupy.asarray(host[2]) if beta else cupy.nan
        out = spread_gpu(np.full((m, n), np.nan, dtype), orders[2])
        got = gemm(a, b, c, alpha=1.5, beta=beta, out=out, kernel=rung)
        assert got is out
        check(cupy.asnumpy(out), *host, 1.5, beta, dtype)
        again = gemm(a, b, c, alpha=1.5, beta=beta, kernel=rung)
        assert cupy.asnumpy(again).tobytes() == cupy.asnumpy(cupy.ascontiguousarray(out)).tobytes()


def spread_gpu(values, order):
    """A copy on the GPU in a memory order of `spread`."""
    import cupy

    like = spread(np.random.default_rng(0), values.shape, values.dtype.name, order)
    if order == "C":
        return cupy.asarray(values)
    if order == "F":
        return cupy.asfortranarray(cupy.asarray(values))
    assert like.shape == values.shape
    if order == "gaps":
        wide = cupy.full((2 * values.shape[0], 3 * values.shape[1]), cupy.nan, values.dtype)
        wide[::2, ::3] = cupy.asarray(values)
        return wide[::2, ::3]
    return cupy.asarray(values[::-1, ::-1].copy())[::-1, ::-1]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", list(LAST))
def test_auto_on_the_gpu(dtype):
    import cupy

    from dasp.dense.gemm import cuda

    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(4)
    for m, n, k in ((100, 90, 80), (1000, 1000, 1000), (17, 3000, 200), (0, 5, 3), (4, 5, 0)):
        a, b = on_gpu(rng.standard_normal((m, k)), dtype), on_gpu(rng.standard_normal((n, k)), dtype)
        got = gemm(a, b, trans_b=True)
        assert isinstance(got, cupy.ndarray)
        assert got.dtype == a.dtype
        host = [cupy.asnumpy(x.astype("float64")) for x in (a, b.T)]
        result = got if dtype in ("float32", "float64") else got.astype("float64")
        check(cupy.asnumpy(result), *host, np.zeros((m, n)), 1, 0, dtype)
        assert cuda.choose(dtype, max(m, 1), n, max(k, 1))[0] in {
            "vendor",
            *(rung.name for rung in kernels("cuda")),
        }


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("kernel", "dtype"), [("split", "f"), ("vendor", "f"), ("vendor", "float16"), ("tensor_half", "float16")]
)
def test_a_product_can_be_captured_in_a_graph(kernel, dtype):
    import cupy

    rng = np.random.default_rng(6)
    a, b = (cupy.asarray(rng.standard_normal((500, 500)).astype(dtype)) for _ in range(2))
    out = cupy.empty_like(a)
    want = cupy.asnumpy(gemm(a, b, kernel=kernel))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gemm(a, b, out=out, kernel=kernel)
        stream.begin_capture()
        gemm(a, b, out=out, kernel=kernel)
        graph = stream.end_capture()
        out[...] = cupy.nan
        graph.launch(stream)
    stream.synchronize()
    assert cupy.asnumpy(out).tobytes() == want.tobytes()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", list(LAST))
def test_the_vendors_library_takes_any_order(dtype):
    import cupy

    from dasp.dense.gemm import cublas_cuda
    from dasp.dense.gemm.ladder import DenseProduct

    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(8)
    for m, n, k in ((70, 50, 30), (64, 64, 4096), (1, 9, 5), (9, 1, 5), (9, 5, 1), (1, 1, 1)):
        a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
        for order_a, order_b, alpha in (("C", "C", 1), ("F", "C", 2), ("C", "F", -1), ("F", "F", 1)):
            left, right = (
                cupy.asarray(on_gpu(x, dtype), order=order) for x, order in ((a, order_a), (b, order_b))
            )
            got = gemm(left, right, alpha=alpha, kernel="vendor")
            host = cupy.asnumpy(got if dtype != "bfloat16" else got.astype("float32"))
            check(host, a, b, np.zeros((m, n)), alpha, 0, dtype)
            assert cublas_cuda.multiply(DenseProduct(left, right, None, got, alpha, 0.0), 0, 0), (
                "cuBLAS was not called directly"
            )
            assert (
                cupy.asnumpy(got).tobytes()
                == cupy.asnumpy(gemm(left, right, alpha=alpha, kernel="vendor")).tobytes()
            )


# ---- the launcher, with NumPy in CuPy's place ----------------------------------------------------------


class OnFakeGpu(np.ndarray):
    """A NumPy array that answers what the launcher asks of a CuPy array."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0], device_id=0)

    def copy(self, order="C"):
        return np.array(self, order=order).view(OnFakeGpu)


class FakeLaunch:
    """Computes what launches ask for from their addresses, strides and constants alone."""

    launched = ()
    streams = ()

    def __init__(self, steps, device, arrays):
        self.steps, self.arrays = steps, arrays

    def __call__(self, stream, *addresses):
        FakeLaunch.streams = (*FakeLaunch.streams, stream)
        memory = dict(zip(self.arrays, addresses, strict=True))
        for step in self.steps:
            FakeLaunch.launched = (*FakeLaunch.launched, step.source)
            self.run(step, [memory[x] if isinstance(x, str) else x.item() for x in step.arguments])

    def run(self, step, arguments):
        defines = dict(step.defines)
        real = np.float64 if defines.get("DASP_REAL", "double") == "double" else np.float32
        if step.kernel == "dasp_gemm_reduce":
            m, n, _, alpha, sums, beta, c, ldc, d, ldd = arguments
            self.update(real, m, n, matrix(real, sums, m, n, n, 1), alpha, beta, c, ldc, d, ldd)
            return
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, d, ldd, *rest = arguments
        along_a, along_b = defines.get("DASP_ALONG_A", "1") == "1", defines.get("DASP_ALONG_B", "0") == "1"
        left = matrix(real, a, m, k, lda, 1) if along_a else matrix(real, a, m, k, 1, lda)
        right = matrix(real, b, k, n, 1, ldb) if along_b else matrix(real, b, k, n, ldb, 1)
        if defines.get("DASP_ALIGNED") == "1":
            assert all(x % 16 == 0 for x in (a, b, c, d))
            assert all(x * np.dtype(real).itemsize % 16 == 0 for x in (lda, ldb, ldc, ldd))
        if rest and step.grid[1] > 1:
            matrix(real, rest[1], m, n, n, 1)[...] = left @ right
        else:
            self.update(real, m, n, left @ right, alpha, beta, c, ldc, d, ldd)

    @staticmethod
    def update(real, m, n, product, alpha, beta, c, ldc, d, ldd):
        out = matrix(real, d, m, n, ldd, 1)
        out[...] = alpha * product if beta == 0 else alpha * product + beta * matrix(real, c, m, n, ldc, 1)


def matrix(real, address, rows, columns, row_step, column_step):
    """The elements at an address."""
    item = np.dtype(real).itemsize
    steps = row_step * item * (rows - 1), column_step * item * (columns - 1)
    low, size = sum(min(step, 0) for step in steps), sum(map(abs, steps)) + item
    memory = np.frombuffer((ctypes.c_char * size).from_address(address + low), np.uint8)
    return np.ndarray((rows, columns), real, memory, -low, (row_step * item, column_step * item))


def forget():
    """Read the table of tile sizes again at the next product."""
    from dasp.dense.gemm import cuda, product, settings

    for cached in (settings._read_table, settings.entry, cuda._prepare, product._decide):
        cached.cache_clear()


@pytest.fixture
def fake_gpu(monkeypatch):
    from dasp.dense.gemm import cuda
    from dasp.runtime import arrays as _arrays

    def make(values):
        return np.asarray(values).view(OnFakeGpu)

    def alloc(size):
        memory = np.empty(size, np.uint8)
        return types.SimpleNamespace(ptr=memory.ctypes.data, memory=memory)

    stream = types.SimpleNamespace(ptr=7)
    runtime = types.SimpleNamespace(getDevice=lambda: 0, streamIsCapturing=lambda stream: False)
    fake = types.SimpleNamespace(
        cuda=types.SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream, alloc=alloc),
        empty=lambda shape, dtype: make(np.empty(shape, dtype)),
    )
    monkeypatch.setattr(_arrays, "is_cupy", lambda array: isinstance(array, OnFakeGpu))
    monkeypatch.setattr(cuda, "_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "PreparedCalls", FakeLaunch)
    monkeypatch.setattr(cuda, "_find_name", lambda device: "no such GPU")
    monkeypatch.setattr(cuda, "_find_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda, "processors", lambda device: 132)
    forget()
    yield make
    forget()


ORDERS = st.sampled_from(["C", "F", "gaps", "backwards"])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from([("auto", "float32"), *((r, d) for r, d in EACH if d not in HALF)]),
    sizes=st.tuples(*[st.one_of(st.integers(0, 9), st.sampled_from([16, 64, 300]))] * 3),
    orders=st.tuples(ORDERS, ORDERS, ORDERS, ORDERS),
    transposed=st.tuples(st.booleans(), st.booleans()),
    beta=st.sampled_from([0, -0.5]),
)
def test_the_launcher_finds_every_element(fake_gpu, which, sizes, orders, transposed, beta):
    (rung, dtype), (m, n, k) = which, sizes
    rng = np.random.default_rng(1)
    shapes = ((k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), (m, n), (m, n))
    a, b, c, out = (
        fake_gpu(spread(rng, shape, dtype, order)) for shape, order in zip(shapes, orders, strict=True)
    )
    out[...] = np.nan
    if beta == 0:
        c[...] = np.nan
    options = dict(alpha=1.5, beta=beta, trans_a=transposed[0], trans_b=transposed[1], kernel=rung)
    left, right = np.asarray(a.T if transposed[0] else a), np.asarray(b.T if transposed[1] else b)
    assert gemm(a, b, c, out=out, **options) is out
    assert_product(np.asarray(out), left, right, np.asarray(c), 1.5, beta)
    fresh = gemm(a, b, c, **options)
    assert isinstance(fresh, OnFakeGpu)
    assert_product(np.asarray(fresh), left, right, np.asarray(c), 1.5, beta)


def test_the_launcher_copies_nothing_that_the_last_rungs_can_read(fake_gpu, monkeypatch):
    monkeypatch.setattr(OnFakeGpu, "copy", None)
    rng = np.random.default_rng(2)
    a, b = (fake_gpu(rng.standard_normal((40, 40))) for _ in range(2))
    for trans_a, trans_b in ((False, False), (True, False), (False, True), (True, True)):
        for out in (fake_gpu(np.empty((40, 40))), fake_gpu(np.empty((40, 40)).T)):
            gemm(a, b, trans_a=trans_a, trans_b=trans_b, out=out, kernel="tensor")
            left, right = np.asarray(a.T if trans_a else a), np.asarray(b.T if trans_b else b)
            assert_product(np.asarray(out), left, right, None, 1, 0)
    assert set(FakeLaunch.streams) == {7}


def test_what_a_captured_product_works_in_comes_from_its_graph(fake_gpu, monkeypatch):
    """The graph's allocator is the current one while anything of ours is taken and given back."""
    from dasp.dense.gemm import cuda

    taken, inside = [], []

    @contextlib.contextmanager
    def using_allocator(allocator):
        assert allocator is cuda._cupy().cuda.malloc_async
        inside.append(1)
        yield
        inside.pop()

    alloc = (library := cuda._cupy()).cuda.alloc

    def seen(size):
        taken.append((size, bool(inside)))
        return alloc(size)

    library.cuda.alloc = seen
    library.cuda.malloc_async, library.cuda.using_allocator = object(), using_allocator
    a = fake_gpu(np.ones((40, 4000)))
    gemm(a, a, trans_b=True, kernel="split")
    assert [within for _, within in taken] == [False]
    library.cuda.runtime.streamIsCapturing = lambda stream: stream == 7
    taken.clear()
    out = gemm(a[:, ::-1], a[:, ::-1], trans_b=True, kernel="split")
    assert (np.asarray(out) == 4000).all()
    ((size, within),) = taken
    assert size >= 2 * 40 * 40 * 8
    assert within
    assert not inside


def test_arrays_of_several_gpus_and_odd_addresses_are_refused(fake_gpu, monkeypatch):
    a = fake_gpu(np.ones((4, 4)))
    odd = fake_gpu(np.zeros(4 * 4 * 8 + 4, np.uint8)[4:].view("f8").reshape(4, 4))
    if odd.data.ptr % 8:
        with pytest.raises(ValueError, match="starts at a multiple of 4 bytes; one of 8 is needed"):
            gemm(a, odd, kernel="tensor")

    class Elsewhere(OnFakeGpu):
        @property
        def data(self):
            return types.SimpleNamespace(ptr=0, device_id=1)

    with pytest.raises(ValueError, match="arrays lie on the GPUs 0 and 1; one is needed"):
        gemm(a, a.view(Elsewhere))
    with pytest.raises(ValueError, match=r"strides \(0, 8\); each of its elements"):
        gemm(a, a, out=np.lib.stride_tricks.as_strided(a, (4, 4), (0, 8), subok=True))
    with pytest.raises(TypeError, match="out has dtype float32; the product has dtype float64"):
        gemm(a, a, out=a.astype("f"))


def test_cublas_takes_every_order_of_memory():
    """Which matrix comes first, transposed or not, and with which leading dimension: out^T = b^T a^T."""
    from dasp.dense.gemm.cublas_cuda import Form

    rng = np.random.default_rng(3)
    for shape in ((5, 7), (1, 7), (5, 1), (1, 1)):
        for order in ("C", "F"):
            x = spread(rng, shape, "float64", order)
            kind, leading = Form(x.shape, x.strides).order(8)
            seen = np.asarray(x.T if kind else x)
            again = matrix(np.float64, x.ctypes.data, *seen.shape, leading, 1)
            assert np.array_equal(again, seen)
        for order in ("gaps", "backwards"):
            x = spread(rng, shape, "float64", order)
            assert Form(x.shape, x.strides).order(8) is None or 1 in shape


def test_a_gpu_too_old_is_named(fake_gpu, monkeypatch):
    from dasp.dense.gemm import cuda

    monkeypatch.setattr(cuda, "_find_capability", lambda device: (7, 5))
    a = fake_gpu(np.ones((3, 3)))
    with pytest.raises(RuntimeError, match="this GPU is sm_75; kernel 'tensor' needs sm_80"):
        gemm(a, a, kernel="tensor")
    with pytest.raises(TypeError, match="a is on the cuda and b on the cpu; move one"):
        gemm(a, np.ones((3, 3)))
    with pytest.raises(TypeError, match="kernel 'tensor_half' multiplies float16 or bfloat16"):
        gemm(a, a, kernel="tensor_half")


# ---- the table ---------------------------------------------------------------------------------------


def write_table(path, lines, machine="no such GPU"):
    path.write_text(json.dumps({machine: {"float32": lines}}))


def test_a_users_table_goes_first(fake_gpu, monkeypatch, tmp_path):
    from dasp.dense import explain

    winner = dict(bm=64, bn=64, bk=16, tm=4, tn=8, wm=32, wn=32, stages=3, parts=2)
    times = {"split": 3.0, "vendor": 4.0}
    lines = {"256": {"kernel": "split", "microseconds": times, "settings": {"split": winner | {"older": 1}}}}
    lines["1024"] = {"kernel": "vendor", "settings": {}}
    write_table(tmp_path / "table.json", lines)
    monkeypatch.setenv("DASP_TUNED", str(tmp_path / "table.json"))
    forget()
    split = BY_NAME["split"]
    assert split.find("float32", (256, 256, 256), "no such GPU", 132) == TileSizes(**winner)
    assert split.find("float32", (4000, 4000, 2), "no such GPU", 132).parts == 1
    said = explain((256, 256), (256, 256), device="cuda")
    why = "no such GPU's autotuned table for float32, size class 256: split 3 us and vendor 4 us"
    assert (said.kernel, said.why) == ("split", why)
    assert explain((1000, 1000), (1000, 1100), device="cuda").kernel == "vendor"
    assert explain((9, 9), (9, 9), "float64", device="cuda").kernel == "vendor"


def test_a_kernel_whose_last_turn_is_nearly_empty_gives_way(fake_gpu, monkeypatch, tmp_path):
    """132 multiprocessors, tiles of 128 x 128: 11 x 12 fill one turn of them, 11 x 13 leave most idle."""
    from dasp.dense import explain

    tiles = dict(bm=128, bn=128, bk=8, tm=8, tn=8, wm=64, wn=32, parts=1)
    assert TileSizes(**tiles).busy(11 * 128, 12 * 128, 132) == 1
    assert TileSizes(**tiles).busy(11 * 128, 13 * 128, 132) == pytest.approx(143 / 264)
    line = {"kernel": "split", "microseconds": {"split": 10.0, "vendor": 10.5}, "settings": {"split": tiles}}
    write_table(tmp_path / "table.json", {"2048": line})
    monkeypatch.setenv("DASP_TUNED", str(tmp_path / "table.json"))
    forget()
    whole = explain((22 * 128, 2048), (2048, 12 * 128), device="cuda")
    assert whole.kernel == "split"
    partly = explain((22 * 128, 2048), (2048, 13 * 128), device="cuda")
    assert partly.kernel == "vendor"
    assert "tiles of 128 x 128 keep no such GPU 72% busy" in partly.why
    odd = explain((22 * 128, 2047), (2047, 12 * 128), device="cuda")
    assert odd.kernel == "vendor"
    assert "rows of 2047 and 1536 elements are not made of whole pieces of 16 bytes" in odd.why
    assert explain((0, 2048), (2048, 13), device="cuda").kernel == "split"
