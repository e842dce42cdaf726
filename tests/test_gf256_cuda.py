"""The CUDA ladder over GF(2^8): every rung in the emulator, in the compiler, and on a GPU if there is one."""

import galois
import numpy as np
import pytest

from dasp.dense import gf256
from dasp.dense.gf256 import cuda
from dasp.dense.gf256.field import EXP, LOG, multiply
from tests.simt import compile_kernels, poisoned

RUNGS = {kernel.name: kernel for kernel in gf256.kernels("cuda")}
FIELD = galois.GF(2**8, irreducible_poly=0x11D)


def memory(array):
    """The contiguous array that a view with padded rows was cut from."""
    whole = array if array.flags.c_contiguous else array.base
    assert whole.flags.c_contiguous
    assert whole.ctypes.data == array.ctypes.data
    return whole


def emulate(name, a, b, out=None, processors=1):
    """What the launcher launches, on the emulator. Results count as unwritten before."""
    if out is None:
        out = np.full((a.shape[0], b.shape[1]), 0xA5, np.uint8)
    launches = []

    def execute(launch, a, b, out):
        launches.append(launch)
        arrays = {"a": a, "b": memory(b), "out": poisoned(memory(out)), "logs": LOG, "powers": EXP}
        arguments = [arrays[x] if isinstance(x, str) else x for x in launch.arguments]
        module = compile_kernels(launch.source, launch.defines)
        module.launch(launch.kernel, launch.grid, launch.block, arguments, shared_bytes=launch.shared_bytes)

    coefficients = a if RUNGS[name].reads_coefficients else None
    cuda.multiply(np, RUNGS[name], a, coefficients, b, out, processors, execute)
    return out, launches


def product(a, b):
    return np.asarray(FIELD(a) @ FIELD(b)) if a.size and b.size else multiply(a, b)


def random_bytes(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# m, k, n: the benchmark's a; fewer rows than a tile; more rows and columns than one tile; single elements.
SHAPES = [(4, 10, 528), (1, 3, 48), (9, 14, 80), (1, 1, 1), (5, 2, 37)]


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rung_multiplies(name, shape):
    m, k, n = shape
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
    np.testing.assert_array_equal(emulate(name, a, b)[0], np.asarray(FIELD(a) * FIELD(b)))


@pytest.mark.parametrize(
    ("name", "shared_bytes", "depth"),
    [("general_tiles", 3 * 256 * 4, 3), ("packed_8", 384, 3), ("byte_permute", 160, 2)],
)
def test_tiles_less_deep_than_a(name, shared_bytes, depth, monkeypatch):
    # Shared memory for two or three columns of a, and one block, which has to stage again and again.
    monkeypatch.setattr(cuda, "RESIDENT_BLOCKS", 1)
    monkeypatch.setattr(cuda, "QUICK_BLOCKS", 1)
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


@pytest.mark.parametrize("name", RUNGS)
def test_empty_shapes_launch_nothing(name):
    for m, k, n in ((0, 3, 5), (3, 0, 5), (3, 5, 0)):
        got, launches = emulate(name, np.zeros((m, k), np.uint8), np.zeros((k, n), np.uint8))
        assert not launches
        assert got.shape == (m, n)
        assert not got.any()


def launches_for(name):
    """The launches of the benchmark's shape: 4 x 10 times 10 x 64 Mi bytes."""
    sizes = cuda.Sizes(4, 10, 64 << 20, 64 << 20, 64 << 20, 132)
    return list(RUNGS[name].launches(sizes, random_bytes(15, 4, 10)))


@pytest.mark.parametrize("name", RUNGS)
def test_launches_fit_a_gpu(name):
    for launch in launches_for(name):
        assert launch.block[0] * launch.block[1] <= 1024
        assert launch.grid[0] < 2**31
        assert launch.grid[1] <= cuda.MOST_GRID_ROWS
        assert launch.shared_bytes <= 48 << 10


def test_the_ladder_says_what_each_rung_is():
    assert list(RUNGS) == [
        *("naive", "square_tiles", "general_tiles", "packed_4", "packed_8", "packed_16"),
        *("byte_permute", "schedule"),
    ]
    assert all(kernel.summary and kernel.needs for kernel in RUNGS.values())


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*RUNGS, "auto"])
@pytest.mark.parametrize(
    "shape", [*SHAPES, (4, 10, 1_000_003), (20, 300, 4096), (0, 1, 2), (1, 0, 2)], ids=str
)
def test_matmul_on_the_gpu(name, shape):
    import cupy

    m, k, n = shape
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
