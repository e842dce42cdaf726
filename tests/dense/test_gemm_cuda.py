"""The launcher of dense products with NumPy in CuPy's place, and the user's table of tile sizes."""

import contextlib
import ctypes
import json
import re
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasp.dense import gemm, launch_cuda
from dasp.dense.gemm.ladder import HALF
from dasp.dense.gemm.rungs_cuda import BY_NAME, TileSizes
from dasp.runtime.cuda import gpus
from tests.dense.test_gemm import assert_product, spread
from tests.dense.test_gemm_rungs import EACH


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
    from dasp.dense.gemm import cuda, product, rungs_cuda

    for cached in (rungs_cuda._read_table, rungs_cuda.entry, cuda._prepare, product._decide):
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
        may_share_memory=np.may_share_memory,
    )
    monkeypatch.setattr(_arrays, "is_cupy", lambda array: isinstance(array, OnFakeGpu))
    monkeypatch.setattr(_arrays, "namespace", lambda x: fake if isinstance(x, OnFakeGpu) else np)
    monkeypatch.setattr(launch_cuda, "load_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "load_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "PreparedCalls", FakeLaunch)
    monkeypatch.setattr(cuda, "_find_name", lambda device: "no such GPU")
    monkeypatch.setattr(cuda, "_find_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda, "processors", lambda device: 132)
    monkeypatch.setattr(gpus, "resolve", lambda device: device)
    forget()
    yield make
    forget()


ORDERS = st.sampled_from(["C", "F", "gaps", "backwards"])


@pytest.mark.slow
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
        assert allocator is cuda.load_cupy().cuda.malloc_async
        inside.append(1)
        yield
        inside.pop()

    alloc = (library := cuda.load_cupy()).cuda.alloc

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
    for text, why in {"[]": "it holds []; an object of GPUs", '{"': "Unterminated string"}.items():
        (tmp_path / "table.json").write_text(text)
        forget()
        with pytest.raises(ValueError, match=re.escape(why)) as error:
            explain((256, 256), (256, 256), device="cuda")
        assert str(error.value).startswith(f"{tmp_path / 'table.json'} is no table of tile sizes: ")
    monkeypatch.setenv("DASP_TUNED", str(tmp_path / "no" / "table.json"))
    forget()
    assert explain((256, 256), (256, 256), device="cuda").kernel == "split"


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
