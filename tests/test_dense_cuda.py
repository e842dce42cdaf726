"""The CUDA ladder of dense products in the emulator, and on a GPU where there is one.

The emulator runs what `dasp.dense.cuda.launches` says: the same sources, constants, grids and arguments.
"""

import functools
import json
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasp.dense import gemm, kernels
from dasp.dense.cuda import EITHER_ORDER, LADDER, LAST, Layout, choose, launches, source_of
from dasp.dense.ladder import HALF
from dasp.dense.settings import SIZES, Setting, candidates, default, entry, find, size_class
from tests.simt import compile_kernels, poisoned
from tests.test_dense_gemm import assert_product, spread

# Small tiles of every rung, so that a few results already have several blocks, warps, pieces and stages.
SMALL = {
    "column_4": Setting(16, 32, 8, tm=4, tn=1),
    "column_8": Setting(32, 32, 16, tm=8, tn=1),
    "square_4": Setting(32, 32, 8, tm=4, tn=4),
    "square_8": Setting(64, 64, 8),
    "vector": Setting(32, 32, 8, tm=4, tn=4),
    "tuned": Setting(32, 64, 16, tm=4, tn=8),
    "warp": Setting(32, 32, 8, tm=4, tn=4, wm=32, wn=16),
    "double": Setting(32, 32, 8, tm=4, tn=4, wm=16, wn=32),
    "async": Setting(32, 64, 8, tm=4, tn=8, wm=32, wn=32, stages=3, group=2),
    "split": Setting(32, 32, 8, tm=4, tn=4, wm=16, wn=32, stages=4, group=3, parts=3),
    "tensor": Setting(32, 32, 16, wm=16, wn=32, stages=3, group=2, parts=2),
    "tensor_half": Setting(32, 64, 32, wm=16, wn=32, stages=3, group=2),
}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
RUNGS = [(rung.name, dtype) for rung in LADDER for dtype in rung.dtypes]


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
    layout = Layout(m, n, k, *lds, *along, aligned)
    steps = launches(rung, dtype, layout, setting or SMALL.get(rung, Setting()), alpha, beta)
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


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
@pytest.mark.parametrize(
    ("sizes", "aligned"), [((37, 45, 50), False), ((72, 40, 24), True), ((1, 1, 1), False)]
)
def test_each_rung(rung, dtype, sizes, aligned):
    emulate(rung, dtype, sizes, aligned=aligned, alpha=1.5, beta=-0.5)


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
def test_each_rung_with_its_usual_tiles(rung, dtype):
    emulate(rung, dtype, (136, 72, 40), setting=default(rung, dtype), alpha=-2, beta=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("along", [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("aligned", [True, False])
def test_last_rungs_take_either_memory_order(dtype, along, aligned):
    for rung in EITHER_ORDER:
        if (rung, dtype) in RUNGS:
            emulate(rung, dtype, (40, 72, 48), along=along, aligned=aligned, beta=2)


@pytest.mark.parametrize("depth", [0, 4, 8, 16])
def test_every_float64_instruction(depth):
    emulate("tensor", "float64", (33, 47, 37), setting=Setting(32, 32, 32, wm=16, wn=16, mma_k=depth), beta=1)


@settings(max_examples=60)
@given(
    which=st.sampled_from(RUNGS),
    sizes=st.tuples(*[st.integers(1, 80)] * 3),
    along=st.tuples(st.booleans(), st.booleans()),
    aligned=st.booleans(),
    alpha=st.sampled_from([1.0, -0.5]),
    beta=st.sampled_from([0.0, 1.0, -2.0]),
    seed=st.integers(0, 1000),
)
def test_any_size(which, sizes, along, aligned, alpha, beta, seed):
    rung, dtype = which
    along = along if rung in EITHER_ORDER else (True, False)
    options = dict(along=along, aligned=aligned, alpha=alpha, beta=beta, seed=seed)
    assert emulate(rung, dtype, sizes, **options) == emulate(rung, dtype, sizes, **options)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_split_shares_any_depth(parts):
    setting = Setting(32, 32, 8, tm=4, tn=4, wm=16, wn=32, stages=3, parts=parts)
    for k in (1, 8, 9, 39, 41):
        emulate("split", "float32", (33, 35, k), setting=setting, beta=1)


def test_the_search_proposes_only_sets_that_run():
    rng = np.random.default_rng(5)
    for rung, dtype in (
        ("tuned", "float32"),
        ("warp", "float32"),
        ("split", "float32"),
        ("tensor", "float64"),
    ):
        proposed = list(candidates(rung, dtype))
        assert len(proposed) > 10
        small = [s for s in proposed if s.bm * s.bn <= 64 * 64]
        for i in rng.choice(len(small), 2, replace=False):
            emulate(rung, dtype, (67, 69, 33), setting=small[i], beta=1)


@pytest.mark.parametrize("rung", [name for name in SMALL if name not in ("square_8",)])
def test_settings_describe_what_they_launch(rung):
    """The search's own arithmetic (threads, shared memory) agrees with the compiled kernel's."""
    dtype = "float16" if rung == "tensor_half" else "float64" if rung == "tensor" else "float32"
    setting = SMALL[rung]
    layout = Layout(64, 64, 64, 64, 64, 64, 64)
    step = launches(rung, dtype, layout, setting, 1.0, 0.0)[0]
    compiled = module(step.source, step.defines)
    assert step.block[0] == setting.threads(rung)
    static = compiled.static_shared_bytes
    assert static + step.shared_bytes == setting.shared_bytes(rung, dtype, True, False)


def test_size_classes_and_parts():
    assert [size_class((s, s, s)) for s in SIZES] == list(SIZES)
    assert size_class((1, 1, 1)) == SIZES[0]
    assert size_class((10**5,) * 3) == SIZES[-1]
    tall = find("split", "float32", (64, 64, 100_000), "no such GPU")
    assert tall.parts > 8
    assert find("split", "float32", (8192, 8192, 64), "no such GPU").parts == 1
    assert entry("no such GPU", "float32", (64, 64, 64)) is None


def test_every_kernel_file_is_a_rung():
    from dasp import _source

    there = {path.relative_to(_source.find()).as_posix() for path in _source.find().rglob("dense/gemm_*.cu")}
    assert there == {source_of(rung.name) for rung in LADDER} | {"dense/gemm_reduce.cu"}


# ---- on a GPU ----------------------------------------------------------------------------------------


def on_gpu(values, dtype):
    import cupy

    return cupy.asarray(values).astype(dtype if dtype != "bfloat16" else cupy.dtype("bfloat16"))


@pytest.mark.cuda
@pytest.mark.parametrize("orders", [("C", "C", "C"), ("F", "backwards", "gaps")])
@pytest.mark.parametrize("sizes", [(37, 45, 50), (256, 256, 256), (300, 1, 700), (64, 65, 9000)])
@pytest.mark.parametrize(("rung", "dtype"), [(r, d) for r, d in RUNGS if d != "bfloat16"])
def test_each_rung_on_the_gpu(rung, dtype, sizes, orders):
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
        assert choose(dtype, max(m, 1), n, max(k, 1))[0] in {
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

    from dasp.dense import cublas_cuda

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
            assert cublas_cuda.multiply(left, right, got, alpha), "cuBLAS was not called directly"
            assert (
                cupy.asnumpy(got).tobytes()
                == cupy.asnumpy(gemm(left, right, alpha=alpha, kernel="vendor")).tobytes()
            )


# ---- the launcher, with NumPy in CuPy's place ----------------------------------------------------------


class OnFakeGpu(np.ndarray):
    """A NumPy array that answers what the launcher asks of a CuPy array."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])


OnFakeGpu.__module__ = "cupy"


class FakeKernel:
    """Computes what a launch asks for from its addresses, strides and constants alone."""

    sums = None
    launched = ()

    def __init__(self, source, defines, kernel, shared, device):
        self.source, self.defines, self.kernel = source, dict(defines), kernel
        FakeKernel.launched = (*FakeKernel.launched, source)

    def __call__(self, grid, block, arguments, shared_mem):
        if self.kernel == "dasp_gemm_reduce":
            m, n, _, alpha, _, beta, c, ldc, d, ldd = arguments
            self.update(m, n, FakeKernel.sums, alpha, beta, c, ldc, d, ldd)
            return
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, d, ldd, *rest = arguments
        along_a = self.defines.get("DASP_ALONG_A", "1") == "1"
        along_b = self.defines.get("DASP_ALONG_B", "0") == "1"
        left = self.matrix(a, m, k, lda, 1) if along_a else self.matrix(a, m, k, 1, lda)
        right = self.matrix(b, k, n, 1, ldb) if along_b else self.matrix(b, k, n, ldb, 1)
        if self.defines.get("DASP_ALIGNED") == "1":
            assert all(x.data.ptr % 16 == 0 for x in (a, b, c, d))
            assert all(x * d.itemsize % 16 == 0 for x in (lda, ldb, ldc, ldd))
        product = np.asarray(left) @ np.asarray(right)
        if len(rest) == 2 and grid[1] > 1:
            FakeKernel.sums = product
        else:
            self.update(m, n, product, alpha, beta, c, ldc, d, ldd)

    @staticmethod
    def matrix(array, rows, columns, row_step, column_step):
        strides = (int(row_step) * array.itemsize, int(column_step) * array.itemsize)
        return np.lib.stride_tricks.as_strided(array, (int(rows), int(columns)), strides)

    def update(self, m, n, product, alpha, beta, c, ldc, d, ldd):
        old = np.asarray(self.matrix(c, m, n, ldc, 1))
        self.matrix(d, m, n, ldd, 1)[...] = alpha * product if beta == 0 else alpha * product + beta * old


@pytest.fixture
def fake_gpu(monkeypatch):
    from dasp.dense import cuda

    def make(values):
        return np.asarray(values).view(OnFakeGpu)

    device = types.SimpleNamespace(Device=lambda: types.SimpleNamespace(id=0))
    fake = types.SimpleNamespace(
        cuda=device,
        empty=lambda shape, dtype: make(np.empty(shape, dtype)),
        ascontiguousarray=lambda x: make(np.ascontiguousarray(x)),
        shares_memory=np.shares_memory,
    )
    monkeypatch.setattr(cuda, "_cupy", lambda: fake)
    monkeypatch.setattr(cuda, "_capturing", lambda: False)
    monkeypatch.setattr(cuda, "_loaded", FakeKernel)
    monkeypatch.setattr(cuda, "_name_of", lambda device: "no such GPU")
    monkeypatch.setattr(cuda, "_capability", lambda device: (9, 0))
    return make


ORDERS = st.sampled_from(["C", "F", "gaps", "backwards"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from([("auto", "float32"), *((r, d) for r, d in RUNGS if d not in HALF)]),
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
    from dasp.dense import cuda

    monkeypatch.setattr(cuda._cupy(), "ascontiguousarray", None)
    rng = np.random.default_rng(2)
    a, b = (fake_gpu(rng.standard_normal((40, 40))) for _ in range(2))
    for trans_a, trans_b in ((False, False), (True, False), (False, True), (True, True)):
        for out in (fake_gpu(np.empty((40, 40))), fake_gpu(np.empty((40, 40)).T)):
            gemm(a, b, trans_a=trans_a, trans_b=trans_b, out=out, kernel="tensor")
            assert_product(
                np.asarray(out),
                np.asarray(a.T if trans_a else a),
                np.asarray(b.T if trans_b else b),
                None,
                1,
                0,
            )


def test_a_captured_product_keeps_what_it_works_in(fake_gpu, monkeypatch):
    from dasp.dense import cuda

    held = []
    monkeypatch.setattr(cuda, "_held_by_graphs", held)
    a = fake_gpu(np.ones((40, 4000)))
    gemm(a, a, trans_b=True, kernel="split")
    assert held == []
    monkeypatch.setattr(cuda, "_capturing", lambda: True)
    out = gemm(a[::-1], a[:, ::-1], trans_b=True, kernel="split")
    assert (np.asarray(out) == 4000).all()
    ((right, sums),) = held  # the copy of an operand that runs backwards, and the parts' sums
    assert right.shape == (4000, 40)
    assert sums.size >= 2 * 40 * 40


def test_a_gpu_too_old_is_named(fake_gpu, monkeypatch):
    from dasp.dense import cuda

    monkeypatch.setattr(cuda, "_capability", lambda device: (7, 5))
    a = fake_gpu(np.ones((3, 3)))
    with pytest.raises(RuntimeError, match="this GPU is sm_75; kernel 'tensor' needs sm_80"):
        gemm(a, a, kernel="tensor")
    with pytest.raises(TypeError, match="a is on the cuda and b on the cpu; move one"):
        gemm(a, np.ones((3, 3)))
    with pytest.raises(TypeError, match="kernel 'tensor_half' multiplies float16 or bfloat16"):
        gemm(a, a, kernel="tensor_half")


# ---- the table ---------------------------------------------------------------------------------------


def test_a_users_table_goes_first(fake_gpu, monkeypatch, tmp_path):
    from dasp.dense import explain, settings

    winner = dict(bm=64, bn=64, bk=16, tm=4, tn=8, wm=32, wn=32, stages=3, parts=2)
    lines = {"256": {"kernel": "split", "note": "measured", "settings": {"split": winner}}}
    lines["1024"] = {"kernel": "vendor", "note": "cuBLAS wins", "settings": {}}
    (tmp_path / "table.json").write_text(json.dumps({"no such GPU": {"float32": lines}}))
    monkeypatch.setenv("DASP_TUNED", str(tmp_path / "table.json"))
    settings.forget()
    try:
        assert settings.find("split", "float32", (256, 256, 256), "no such GPU") == Setting(**winner)
        assert settings.find("async", "float32", (256, 256, 256), "no such GPU").parts == 1
        assert settings.find("split", "float32", (4000, 4000, 2), "no such GPU").parts == 1
        said = explain((256, 256), (256, 256), device="cuda")
        assert (said.kernel, said.why) == (
            "split",
            "no such GPU's autotuned table for float32, size class 256: measured",
        )
        assert explain((1000, 1000), (1000, 1100), device="cuda").kernel == "vendor"
        assert "no autotuned table" in explain((9, 9), (9, 9), "float64", device="cuda").why
    finally:
        monkeypatch.undo()
        settings.forget()


def test_the_shipped_table_holds_valid_sets():
    from dasp.dense import settings

    path = Path(settings.__file__).with_name("tuned.json")
    if not path.is_file():
        pytest.skip("no table is shipped yet")
    for dtypes in json.loads(path.read_text()).values():
        for dtype, lines in dtypes.items():
            for size, line in lines.items():
                assert int(size) in SIZES
                assert line["kernel"] in {"vendor", *line["settings"]}
                for rung, values in line["settings"].items():
                    assert Setting(**values).problem(rung, dtype) is None
