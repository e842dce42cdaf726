"""The CUDA ladder of dense products in the emulator, and on a GPU where there is one.

The emulator runs what `dasp.dense.gemm.cuda.launches` says: the same sources, constants, grids and arguments.
"""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp.cli import tune_gemm
from dasp.dense import gemm, kernels
from dasp.dense.gemm.ladder import HALF
from dasp.dense.gemm.rungs_cuda import (
    BY_NAME,
    LAST,
    RUNGS,
    SIZES,
    OperandLayout,
    TileSizes,
    entry,
    launches,
    nearest,
)
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
    emulate(rung, dtype, (37, 45, 50), aligned=False, alpha=1.5, beta=-0.5)


@pytest.mark.parametrize(("rung", "dtype"), EACH)
def test_each_rung_with_its_usual_tiles(rung, dtype):
    row = BY_NAME[rung]
    for setting in row.usual[row.dtypes.index(dtype)]:
        assert rung not in tune_gemm.SPACES or tune_gemm.find_problem(row, setting, dtype) is None
        emulate(rung, dtype, (136, 72, 40), setting=setting, alpha=-2, beta=0)
        emulate(rung, dtype, (72, 40, 24), setting=setting, alpha=1.5, beta=-0.5)


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


@settings(max_examples=30)
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
