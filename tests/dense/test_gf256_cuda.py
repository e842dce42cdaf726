"""The CUDA ladder over GF(2^8): every rung in the emulator, in the compiler, and on a GPU if there is one."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from dasp.dense import gf256
from dasp.dense.gf256 import cuda
from dasp.dense.gf256.field import EXP, LOG, multiply
from tests.simt import compile_kernels, poisoned
from tests.support.bytes_field import product, random_bytes

pytestmark = pytest.mark.simt

RUNGS = {kernel.name: kernel for kernel in gf256.kernels("cuda")}


def memory(array):
    """The contiguous array that a view with padded rows was cut from."""
    whole = array if array.flags.c_contiguous else array.base
    assert whole.flags.c_contiguous
    assert whole.ctypes.data == array.ctypes.data
    return whole


def launch_on_arrays(launch, a, b, out):
    """One launch in the emulator. What it writes counts as unwritten before."""
    rows = slice(launch.first_row, None)
    arrays = {"a": a[rows], "b": memory(b), "out": poisoned(memory(out[rows])), "logs": LOG, "powers": EXP}
    arguments = [arrays[x] if isinstance(x, str) else x for x in launch.arguments]
    module = compile_kernels(launch.source, dict(launch.defines))
    module.launch(launch.kernel, launch.grid, launch.block, arguments, shared_bytes=launch.shared_bytes)


def emulate(name, a, b, out=None, processors=1):
    """What the launcher launches, on the emulator."""
    if out is None:
        out = np.full((a.shape[0], b.shape[1]), 0xA5, np.uint8)
    kernel, found = RUNGS[name], []

    def launch_all(columns, b, out):
        sizes = cuda.Sizes(*a.shape, columns, b.strides[0], out.strides[0], processors)
        for launch in cuda.launches(kernel, sizes, a if kernel.reads_coefficients else None):
            found.append(launch)
            launch_on_arrays(launch, a, b, out)

    cuda.launch_words(kernel, b, out, launch_all)
    return out, found


# m, k, n: the benchmark's a; fewer rows than a tile; more rows and columns than one tile; single elements.
SHAPES = [(4, 10, 528), (1, 3, 48), (9, 14, 80), (1, 1, 1), (5, 2, 37)]


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_multiplies(name):
    for m, k, n in SHAPES:
        a, b = random_bytes(1, m, k), random_bytes(2, k, n)
        a[0, 0] = 0
        b[:, 0] = 0
        got, launches = emulate(name, a, b)
        assert launches
        np.testing.assert_array_equal(got, product(a, b))


@pytest.mark.parametrize("name", RUNGS)
def test_every_product_of_two_bytes(name):
    b = np.arange(256, dtype=np.uint8)[None, :]
    a = np.array([0, 1, 2, 3, 29, 127, 128, 255], np.uint8)[:, None]
    np.testing.assert_array_equal(emulate(name, a, b)[0], product(a, b))


@pytest.mark.parametrize(
    ("name", "shared_bytes", "depth"),
    [("general_tiles", 3 * 256 * 4, 3), ("packed_8", 384, 3), ("byte_permute", 160, 2)],
)
def test_tiles_less_deep_than_a(name, shared_bytes, depth, monkeypatch):
    # Shared memory for two or three columns of a, and one block, which has to stage again and again.
    monkeypatch.setattr(cuda, "FEW_BLOCKS", 1)
    monkeypatch.setattr(cuda, "MANY_BLOCKS", 1)
    monkeypatch.setattr(cuda, "SHARED_BYTES", shared_bytes)
    a, b = random_bytes(3, 4, 7), random_bytes(4, 7, 16400)
    got, launches = emulate(name, a, b)
    assert launches[0].arguments[-1] == depth
    assert launches[0].grid == (1, 1)
    np.testing.assert_array_equal(got, multiply(a, b))


@pytest.mark.parametrize("name", RUNGS)
def test_rows_apart_are_read_and_written_in_place(name):
    a = random_bytes(5, 3, 5)
    wide_b, wide_out = random_bytes(6, 5, 160), np.full((3, 96), 7, np.uint8)
    _, launches = emulate(name, a, wide_b[:, :64], wide_out[:, :64])
    assert len(launches) == 1
    np.testing.assert_array_equal(wide_out[:, :64], product(a, wide_b[:, :64]))
    assert (wide_out[:, 64:] == 7).all()


def test_columns_that_fill_no_word_are_staged():
    a, b = random_bytes(7, 2, 3), random_bytes(8, 3, 100)
    got, launches = emulate("byte_permute", a, b)  # rows of 100 bytes: the second is not aligned
    assert len(launches) == 1
    assert launches[0].arguments[5] == 7  # 112 columns in words of 16, the last ones padding
    np.testing.assert_array_equal(got, product(a, b))
    wide = random_bytes(9, 3, 112)
    out = np.zeros((2, 112), np.uint8)
    _, launches = emulate("packed_16", a, wide[:, :100], out[:, :100])  # aligned: 96 columns and then 4
    assert [launch.arguments[5] for launch in launches] == [6, 1]
    np.testing.assert_array_equal(out[:, :100], product(a, wide[:, :100]))
    assert not out[:, 100:].any()


def test_staging_goes_in_pieces(monkeypatch):
    monkeypatch.setattr(cuda, "STAGED_COLUMNS", 64)
    a, b = random_bytes(10, 2, 3), random_bytes(11, 3, 201)
    got, launches = emulate("packed_4", a, b)
    assert len(launches) == 4
    np.testing.assert_array_equal(got, product(a, b))


def test_many_rows_take_several_launches(monkeypatch):
    monkeypatch.setattr(cuda, "MOST_GRID_ROWS", 3)
    a, b = random_bytes(12, 8, 2), random_bytes(13, 2, 32)
    for name in ("naive", "schedule"):
        got, launches = emulate(name, a, b)
        assert len(launches) == 3
        np.testing.assert_array_equal(got, product(a, b))


def test_a_schedule_skips_zero_coefficients():
    a = np.zeros((3, 14), np.uint8)
    a[0] = 1
    a[2, 13] = 0x80
    b = random_bytes(14, 14, 64)
    np.testing.assert_array_equal(emulate("schedule", a, b)[0], product(a, b))


def test_empty_shapes_launch_nothing(fake_gpu):
    FakeLaunch.made = 0
    for m, k, n in ((0, 3, 5), (3, 0, 5), (3, 5, 0)):
        got = gf256.matmul(np.zeros((m, k), np.uint8), fake_gpu(np.zeros((k, n), np.uint8)))
        assert not FakeLaunch.made
        assert got.shape == (m, n)
        assert not got.any()


@pytest.mark.parametrize("name", RUNGS)
def test_launches_fit_a_gpu(name):
    """Those of the benchmark's shape: 4 x 10 times 10 x 64 Mi bytes."""
    sizes = cuda.Sizes(4, 10, 64 << 20, 64 << 20, 64 << 20, 132)
    for launch in RUNGS[name].launches(sizes, random_bytes(15, 4, 10)):
        assert launch.block[0] * launch.block[1] <= 1024
        assert launch.grid[0] < 2**31
        assert launch.grid[1] <= cuda.MOST_GRID_ROWS
        assert launch.shared_bytes <= 48 << 10


# ---- the launcher, with NumPy in CuPy's place ---------------------------------------------------------


class OnFakeGpu(np.ndarray):
    """A NumPy array that answers what the launcher asks of a CuPy array."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.__array_interface__["data"][0], device_id=0)

    def get(self):
        return np.array(self)


def at(address, rows, columns, stride):
    """The rows of bytes at an address."""
    low = min(0, (rows - 1) * stride)
    size = abs((rows - 1) * stride) + columns
    memory = (ctypes.c_char * size).from_address(address + low)
    return np.ndarray((rows, columns), np.uint8, memory, -low, (stride, 1))


class FakeLaunch:
    """Multiplies from the addresses and numbers of the launches alone."""

    made = 0

    def __init__(self, steps, device, arrays, row_bytes):
        assert device == 0
        FakeLaunch.made += 1
        self.steps, self.arrays, self.row_bytes = steps, arrays, row_bytes

    def __call__(self, stream, *addresses):
        assert stream == 7
        found = dict(zip(self.arrays, addresses, strict=True))
        for step in self.steps:
            starts = {x: found[x] + step.first_row * self.row_bytes.get(x, 0) for x in self.arrays}
            arguments = [starts[x] if isinstance(x, str) else x.item() for x in step.arguments]
            if step.kernel == "dasp_gf256_schedule":
                b, out, vectors, b_stride, out_stride = arguments
                defines = dict(step.defines)
                m, k = int(defines["DASP_ROWS"]), int(defines["DASP_DEPTH"])
                a = np.array(defines["DASP_COEFFICIENTS"].split(","), np.uint8).reshape(m, k)
                columns = 16 * vectors
            elif step.kernel == "dasp_gf256_square_tiles":
                a, b, out, logs, powers, m, k, columns, b_stride, out_stride = arguments
                np.testing.assert_array_equal(at(logs, 1, 256, 256)[0], LOG)
                np.testing.assert_array_equal(at(powers, 1, 510, 510)[0], EXP)
                a = at(a, m, k, k)
            else:
                m = step.grid[1] if step.kernel == "dasp_gf256_naive" else arguments[3]
                a, b, out, k, units, b_stride, out_stride = (arguments[:3] + arguments[-4:])[:7]
                if step.kernel != "dasp_gf256_naive":
                    k, units, b_stride, out_stride = arguments[4:8]
                word = {"dasp_gf256_byte_permute": 16}.get(step.kernel, 1)
                columns = units * int(dict(step.defines).get("DASP_BYTES", word))
                a = at(a, m, k, k)
            at(out, m, columns, out_stride)[...] = multiply(a, at(b, k, columns, b_stride))


@pytest.fixture
def fake_gpu(monkeypatch):
    from dasp.dense import launch_cuda
    from dasp.runtime import arrays as _arrays

    def make(values):
        return np.asarray(values).view(OnFakeGpu)

    capturing = []
    stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
    runtime = SimpleNamespace(getDevice=lambda: 0, streamIsCapturing=lambda _: bool(capturing))
    fake = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream),
        empty=lambda shape, dtype: make(np.full(shape, 0xA5, dtype)),
        zeros=lambda shape, dtype: make(np.zeros(shape, dtype)),
        asarray=make,
        ascontiguousarray=lambda array: make(np.ascontiguousarray(array)),
        may_share_memory=np.may_share_memory,
    )
    monkeypatch.setattr(_arrays, "is_cupy", lambda array: isinstance(array, OnFakeGpu))
    monkeypatch.setattr(_arrays, "namespace", lambda x: fake if isinstance(x, OnFakeGpu) else np)
    monkeypatch.setattr(launch_cuda, "load_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "load_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "PreparedCalls", FakeLaunch)
    monkeypatch.setattr(cuda, "processors", lambda device: 132)
    monkeypatch.setattr(cuda, "_read_by_graphs", {})
    make.capturing = capturing
    for cached in (cuda._prepare, cuda._upload_once, cuda._upload_tables):
        cached.cache_clear()
    yield make
    for cached in (cuda._prepare, cuda._upload_once, cuda._upload_tables):
        cached.cache_clear()


@pytest.mark.parametrize("name", [*RUNGS, "auto"])
def test_the_launcher_finds_every_byte(name, fake_gpu, monkeypatch):
    monkeypatch.setattr(cuda, "MOST_GRID_ROWS", 3)  # several launches for 20 and 4 rows, one for 2
    for m, k, n in ((4, 10, 256), (20, 3, 100), (1, 1, 1), (2, 5, 4097), (0, 2, 3), (2, 0, 3)):
        a, b = random_bytes(m, m, k), random_bytes(n, k, n)
        want = multiply(a, b)
        for left in (a, fake_gpu(a), fake_gpu(np.asfortranarray(a))):
            for right in (b, np.asfortranarray(b), np.pad(b, ((0, 0), (3, 9)))[:, 3 : 3 + n]):
                np.testing.assert_array_equal(gf256.matmul(left, fake_gpu(right), kernel=name), want)
        wide = fake_gpu(np.full((m, 2 * n + 5), 9, np.uint8))
        for out in (wide[:, :n], wide[:, 5 : 5 + 2 * n : 2], wide[::-1, :n]):
            wide[...] = 9
            assert gf256.matmul(a, fake_gpu(b), out=out, kernel=name) is out
            np.testing.assert_array_equal(out, want)
            assert (wide == 9).sum() >= m * (n + 5)
    square, both = fake_gpu(random_bytes(1, 4, 4)), fake_gpu(random_bytes(2, 4, 1024))
    want = multiply(np.array(square), np.array(both))
    np.testing.assert_array_equal(gf256.matmul(square, both, out=both, kernel=name), want)
    want = multiply(np.array(square), np.array(square))
    np.testing.assert_array_equal(gf256.matmul(square, square, out=square, kernel=name), want)


def test_a_product_is_prepared_once(fake_gpu):
    FakeLaunch.made = 0
    a, d = random_bytes(1, 4, 10), random_bytes(2, 10, 1024)
    for i in range(5):
        out = gf256.matmul(a.copy(), fake_gpu(np.roll(d, i, 1)))
        np.testing.assert_array_equal(out, multiply(a, np.roll(d, i, 1)))
        other = random_bytes(10 + i, 4, 10)  # other coefficients in the same launch
        np.testing.assert_array_equal(gf256.matmul(other, fake_gpu(d)), multiply(other, d))
    assert FakeLaunch.made == 1
    gf256.matmul(a, fake_gpu(d), kernel="schedule")
    gf256.matmul(other, fake_gpu(d), kernel="schedule")  # compiled for its coefficients
    assert FakeLaunch.made == 3


def test_what_a_graph_reads_outlives_the_cache(fake_gpu):
    d = fake_gpu(random_bytes(2, 3, 64))
    first = random_bytes(1, 2, 3)
    gf256.matmul(first, d)
    assert not cuda._read_by_graphs
    fake_gpu.capturing.append(True)
    gf256.matmul(first, d)
    fake_gpu.capturing.clear()
    for i in range(2 * cuda._upload_once.cache_info().maxsize):
        gf256.matmul(np.full((1, 3), i % 256, np.uint8) ^ np.uint8([[i // 256, 0, 0]]), d)
    (kept,) = cuda._read_by_graphs.values()
    np.testing.assert_array_equal(kept, first)


def test_wrong_arguments_on_a_gpu(fake_gpu):
    a, b = random_bytes(1, 2, 3), fake_gpu(random_bytes(2, 3, 4))
    for error, message, call in (
        (TypeError, "a is on the GPU and b on the CPU", lambda: gf256.matmul(fake_gpu(a), np.array(b))),
        (TypeError, "a cupy.ndarray is needed", lambda: gf256.matmul(a, b, out=np.array(b))),
        (TypeError, "out has dtype int8", lambda: gf256.matmul(a, b, out=fake_gpu(np.zeros((2, 4), "i1")))),
        (ValueError, r"out has shape \(3, 4\)", lambda: gf256.matmul(a, b, out=fake_gpu(np.array(b)))),
        (ValueError, "kernel is 'affine_64'; on this", lambda: gf256.matmul(a, b, kernel="affine_64")),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.cuda
def test_a_captured_product_outlives_the_cache():
    import cupy

    a, b = random_bytes(21, 4, 10), cupy.asarray(random_bytes(22, 10, 4096))
    out = cupy.zeros((4, 4096), np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gf256.matmul(a, b, out=out)
        stream.begin_capture()
        gf256.matmul(a, b, out=out)
        graph = stream.end_capture()
        for i in range(600):
            gf256.matmul(np.uint8([[i % 256, i // 256] * 5]), b)
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), multiply(a, cupy.asnumpy(b)))


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*RUNGS, "auto"])
def test_matmul_on_the_gpu(name):
    import cupy

    for m, k, n in [*SHAPES, (4, 10, 1_000_003), (20, 300, 4096), (0, 1, 2), (1, 0, 2)]:
        a, b = random_bytes(16, m, k), random_bytes(17, k, n)
        want = gf256.matmul(a, b)
        got = gf256.matmul(cupy.asarray(a), cupy.asarray(b), kernel=name)
        np.testing.assert_array_equal(cupy.asnumpy(got), want)
        out = cupy.full((m, 2 * n), 9, np.uint8)
        assert gf256.matmul(a, cupy.asarray(b), out=out[:, ::2], kernel=name).base is out
        np.testing.assert_array_equal(cupy.asnumpy(out[:, ::2]), want)
        assert bool((out[:, 1::2] == 9).all())


@pytest.mark.cuda
def test_operands_that_overlap_on_the_gpu():
    import cupy

    a, b = random_bytes(18, 4, 4), random_bytes(19, 4, 1024)
    both = cupy.asarray(b)
    gf256.matmul(a, both, out=both)
    np.testing.assert_array_equal(cupy.asnumpy(both), multiply(a, b))


@pytest.mark.cuda
@pytest.mark.parametrize("n", [100, 1 << 20])
def test_reed_solomon_on_the_gpu(n):
    import cupy

    code = gf256.ReedSolomon(10, 4)
    d = random_bytes(20, 10, n)
    parity = code.encode(cupy.asarray(d))
    np.testing.assert_array_equal(cupy.asnumpy(parity), code.encode(d))
    shards = [*cupy.asarray(d), *parity]
    assert code.verify(shards)
    lost = [None if i in (0, 3, 11, 13) else shard for i, shard in enumerate(shards)]
    for got, want in zip(code.reconstruct(lost), shards, strict=True):
        assert bool((got == want).all())
    shards[2] = shards[2].copy()
    shards[2][n // 2] ^= 1
    assert not code.verify(shards)
