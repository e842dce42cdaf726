"""The product on a GPU, all but the GPU: CuPy's arrays over host memory, launches into the emulator."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from dasp import Policy, SpMatrix
from dasp.formats import product_cuda as product
from dasp.formats.cost import H200
from dasp.formats.plan import diagonal_rows
from dasp.formats.sell.cuda import columns, row_blocks
from dasp.formats.sell.cuda import product as of_slices
from dasp.formats.sell.cuda import vector as by_vector
from dasp.formats.sell.cuda.column_rules import read_sectors
from dasp.models import generate
from dasp.runtime.cuda import driver
from tests.support.gallery import GALLERY, LENGTHS, from_lengths
from tests.support.planned import MODELS, Tuned, plan_of, widened, with_model
from tests.support.reference import assert_close, entries_of

cupy = pytest.importorskip("cupy")
from tests.simt import SimtError  # noqa: E402
from tests.simt.gpu import Gpu  # noqa: E402

pytestmark = pytest.mark.simt

POLICIES = {
    "sell": Tuned("sell", warps=4),
    "split sell": Tuned("sell", steps=2, warps=4),
    "dasp": Tuned("dasp", segment=64),
}
PLAIN = {
    "sell": Tuned("sell", warps=4, narrow=False),
    "split sell": Tuned("sell", steps=2, warps=4, narrow=False),
    "dasp": POLICIES["dasp"],
}
"""The same, with values of one coding in all plans."""
SPLIT = ["split sell", "dasp"]


def launch_at_once(monkeypatch):
    """Plan for a GPU whose launches take no time, so that small X and Y are transposed, too."""
    monkeypatch.setitem(MODELS, "gpu", dataclasses.replace(H200, launch_bytes=0.0))


@pytest.fixture
def gpu(monkeypatch):
    stand_in = Gpu()
    with cupy.cuda.using_allocator(stand_in.allocate):
        stand_in.attach(monkeypatch)
        launch_at_once(monkeypatch)
        yield stand_in
    for graph in list(stand_in.destructors):
        stand_in.end(graph)
    driver.drop_ended()
    assert not driver._kept


@pytest.fixture
def matrix():
    return from_lengths([700, 3, 129] + [5] * 40 + [0, 0], 300)


def planned(matrix, policy):
    return SpMatrix(plan_of(matrix, POLICIES[policy]), "cuda:0")


def vector(n, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


@pytest.fixture
def counted(monkeypatch):
    """How often a product went the long way."""
    calls = []
    from dasp.formats.product_cuda import CudaProduct

    multiply = CudaProduct.multiply

    def count(*args):
        calls.append(1)
        multiply(*args)

    monkeypatch.setattr(CudaProduct, "multiply", count)
    return calls


@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_vector_and_a_given_one_come_the_short_way(gpu, matrix, policy, counted):
    A, x = planned(matrix, policy), vector(300)
    y = gpu.put(np.full(matrix.shape[0], np.nan))
    assert A.matvec(gpu.put(x), out=y) is y
    z = A @ gpu.put(x)
    assert not counted
    assert_close(gpu.get(y), matrix, x)
    np.testing.assert_array_equal(gpu.get(z).view(np.uint64), gpu.get(y).view(np.uint64))


@pytest.mark.parametrize("policy", ["sell", "split sell"])
@pytest.mark.parametrize("name", GALLERY)
def test_diagonals(gpu, policy, name):
    """Duplicates sum; of a row that is cut, two segments with an entry leave it to who unpacks the plan."""
    matrix = entries_of(GALLERY[name])
    A = SpMatrix(plan_of(GALLERY[name], POLICIES[policy]), "cuda:0")
    m, n = A.shape
    rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
    for k in {0, 1, -2, n - 1, 1 - m}:
        found = A._product.diagonal(k)
        kept = matrix.indices == rows + k
        times = np.bincount(rows[kept], minlength=m)
        if found is None:
            assert (times > 1).any()
            assert policy != "sell"
            continue
        first, count = diagonal_rows((m, n), k)
        want = np.bincount(rows[kept], matrix.data[kept], m)[first : first + count]
        np.testing.assert_array_equal(gpu.get(found), want)  # in the order of the entries


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", GALLERY)
def test_vectors_keep_to_the_memory_that_they_were_given(gpu, policy, name):
    matrix, A = entries_of(GALLERY[name]), SpMatrix(plan_of(GALLERY[name], POLICIES[policy]), "cuda:0")
    x = vector(matrix.shape[1])
    y, wide = A @ gpu.put(x), gpu.put(np.repeat(x, 2))
    assert_close(gpu.get(y), matrix, x)
    A.matvec(wide[::2], out=y, alpha=0.5, beta=0.5)
    assert_close(gpu.get(y), matrix, x)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_needs_more_goes_the_long_way_and_is_right(gpu, matrix, policy, counted):
    A, x, m = planned(matrix, policy), vector(300), matrix.shape[0]
    wide = gpu.put(np.repeat(x, 2))
    outs = [gpu.put(np.full((m, 2), np.nan))[:, 1], gpu.put(np.full(m, np.nan))[::-1]]
    for out in outs:
        assert A.matvec(gpu.put(x), out=out) is out
        assert_close(gpu.get(out), matrix, x)
    assert_close(gpu.get(A @ wide[::2]), matrix, x)
    assert_close(gpu.get(A @ gpu.put(x.astype(np.float32))), matrix, x.astype(np.float32))
    assert_close(gpu.get(A @ gpu.put(x[:, None]))[:, 0], matrix, x)
    y = gpu.put(np.zeros(m))
    A.matvec(gpu.put(x), out=y, alpha=0.5, beta=1.0)
    assert_close(2 * gpu.get(y), matrix, x)
    assert len(counted) == 6  # alpha and beta go the short way


@pytest.mark.parametrize("policy", ["sell", "split sell"])
@pytest.mark.parametrize(
    ("dtype", "turns", "square", "run"),
    [
        *(
            (np.float64, turns, *how)
            for turns in (False, True)
            for how in ((False, 0), (False, 3), (True, 2))
        ),
        (np.float32, False, False, 0),
        (np.float32, True, True, 2),
    ],
)
def test_dot_products_that_a_product_leaves(gpu, matrix, policy, dtype, turns, square, run, monkeypatch):
    """Within the bound of a dot product in float64 of what y holds; also where warps take slices by turns."""
    if turns:
        monkeypatch.setattr(by_vector, "limit_dot_blocks", lambda plan: gpu.resident_blocks)
        monkeypatch.setattr(by_vector, "take_turns", lambda plan: True)
    if turns or run:
        matrix = from_lengths([3, 12, 0, 7] * 400 + [1] * 5, 300)
    matrix = matrix.astype(dtype)
    A, m = planned(matrix, policy), matrix.shape[0]
    x, w, y = vector(300, 1, dtype), vector(m, 2, dtype), gpu.put(np.full(m, np.nan, dtype))
    launch, sums = A.__dasp_product__.prepare_with_dot(gpu.put(x), y, gpu.put(w), square=square, run=run)
    seen = []
    for _ in range(3):
        gpu.get(sums)[...] = np.nan
        gpu.get(y)[...] = np.nan
        launch()
        assert_close(gpu.get(y), matrix, x)
        made = gpu.get(y).astype(np.longdouble)
        for other, total in zip([w, made], gpu.get(sums).reshape(1 + square, -1).sum(axis=1), strict=False):
            bound = (m + sums.size) * 2.0**-53 * (np.abs(other) @ np.abs(made))
            assert abs(total - other @ made) <= bound
        seen.append(gpu.get(sums).tobytes())
    assert len(set(seen)) == 1
    if turns or run:
        blocks = -(-A._product._blocks // run) if run else gpu.resident_blocks
        assert sums.size == (1 + square) * blocks
        assert blocks < A._product._blocks


def test_where_a_product_leaves_no_dot_product(gpu, matrix, monkeypatch):
    x, m = gpu.put(vector(300)), matrix.shape[0]
    y, w = gpu.put(np.zeros(m)), gpu.put(np.zeros(m))
    assert not hasattr(planned(matrix, "dasp").__dasp_product__, "prepare_with_dot")
    single = gpu.put(np.zeros(m, np.float32))
    assert planned(matrix, "sell").__dasp_product__.prepare_with_dot(x, y, single) is None
    on_cpu = SpMatrix.from_scipy(matrix, device="cpu")
    assert not hasattr(on_cpu.__dasp_product__, "prepare_with_dot")
    nothing = planned(from_lengths([], 300), "sell").__dasp_product__
    assert nothing.prepare_with_dot(x, y[:0], w[:0]) is None
    long = from_lengths([40] * m, 300)
    assert planned(long, "sell").__dasp_product__.prepare_with_dot(x, y, w) is not None
    alone = SpMatrix(plan_of(long, Tuned("sell", steps=40)), "cuda:0").__dasp_product__
    assert alone.prepare_with_dot(x, y, w) is None  # slices of 40 steps
    assert alone.prepare_with_dot(x, y, w, run=2) is not None
    monkeypatch.setattr(by_vector, "limit_dot_blocks", lambda plan: 0)
    assert planned(matrix, "sell").__dasp_product__.prepare_with_dot(x, y, w) is None  # it has segments


class _Filling:
    """Primitives that keep what they are given, and say of it what they are told."""

    def __init__(self):
        self.given, self.fits = [], True

    def recode_values(self, data, slots, values):
        self.given.append(data)
        return self.fits


def test_plain_values_are_written_the_short_way_and_no_others(gpu, matrix, monkeypatch):
    filling, data = _Filling(), gpu.put(np.ones(matrix.nnz))
    monkeypatch.setattr(of_slices, "find_primitives", lambda number: filling)
    A = planned(matrix, "sell")
    assert not A._product.write_if_plain(data, None)  # nobody asked where entries are
    A._shared.slots = filling
    assert A.with_values(data, out=A) is A
    assert filling.given == [data]
    filling.fits = False
    assert not A._product.write_if_plain(data, filling)
    wide = gpu.put(np.ones((matrix.nnz, 2)))
    for other in (data[1:], wide[:, 0], wide[:, :1], gpu.put(np.ones(matrix.nnz, np.float32)), [1.0]):
        assert not A._product.write_if_plain(other, filling)
    gpu.device = 1
    assert not A._product.write_if_plain(data, filling)
    gpu.device = 0
    assert not planned(matrix, "dasp")._product.write_if_plain(data, filling)
    assert len(filling.given) == 2


@pytest.mark.parametrize("offset", [-1, 0, 1, 299])
def test_an_out_that_overlaps_x_is_refused(gpu, offset):
    A = planned(from_lengths([5] * 300, 300), "sell")
    memory = gpu.put(np.ones(900))
    x = memory[300:600]
    with pytest.raises(ValueError, match="out overlaps x"):
        A.matvec(x, out=memory[300 + offset : 600 + offset])
    for start in (0, 600):
        A.matvec(x, out=memory[start : start + 300])


def test_a_wrong_out_is_refused(gpu, matrix):
    A, x, m = planned(matrix, "sell"), gpu.put(vector(300)), matrix.shape[0]
    for out, error in (
        (gpu.put(np.ones(m, np.float32)), "dtype"),
        (gpu.put(np.ones(m + 1)), "shape"),
        (gpu.put(np.ones((m, 1))), "shape"),
        (np.ones(m), "a cupy.ndarray there is needed"),
    ):
        with pytest.raises((TypeError, ValueError), match=error):
            A.matvec(x, out=out)
    assert not gpu.launches


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_shapes_with_a_zero(gpu, shape):
    A = planned(from_lengths([0] * shape[0], shape[1]), "sell")
    y = A @ gpu.put(np.ones(shape[1]))
    np.testing.assert_array_equal(gpu.get(y), np.zeros(shape[0]))


@pytest.mark.parametrize("policy", SPLIT)
def test_streams_and_threads_that_may_run_at_once_share_no_scratch(gpu, matrix, policy):
    A, x = planned(matrix, policy), gpu.put(vector(300))

    def run(stream):
        gpu.stream = stream
        with cupy.cuda.using_allocator(gpu.allocate):  # CuPy asks each thread anew
            A @ x
        A.matvec(x, out=gpu.put(np.ones(matrix.shape[0])))

    for stream in (7, 8, 7):
        run(stream)
    for _ in range(2):
        thread = threading.Thread(target=run, args=(2,))  # the default stream of each thread
        thread.start()
        thread.join()
    used = [(stream, partials) for stream, _, partials in gpu.launches]
    assert [stream for stream, _ in used] == [7, 7, 8, 8, 7, 7, 2, 2, 2, 2]
    of_seven, of_eight = {p for s, p in used if s == 7}, {p for s, p in used if s == 8}
    assert len(of_seven) == len(of_eight) == 1
    assert not of_seven & of_eight
    assert not {p for s, p in used if s == 2} & (of_seven | of_eight)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_caller_chooses_a_stream_and_keeps_it(gpu, matrix, policy, order):
    A, x = planned(matrix, policy), gpu.put(vector(300))
    columns = gpu.put(np.asarray(np.ones((300, 5)), order=order))
    sys.modules["cupy"].cuda.Stream(non_blocking=True).use()
    mine = gpu.stream
    for multiply in (lambda: A @ x, lambda: A @ columns, lambda: A @ columns):
        gpu.launches.clear()
        multiply()
        assert gpu.stream == mine
        assert {stream for stream, *_ in gpu.launches} == {mine}


@pytest.mark.parametrize("policy", SPLIT)
def test_a_capture_has_scratch_of_its_own_that_ends_with_its_graph(gpu, matrix, policy):
    A, x = planned(matrix, policy), vector(300)
    y = gpu.put(np.full(matrix.shape[0], np.nan))
    A.matvec(gpu.put(x), out=y)
    for number in (1, 2):
        gpu.graphs[7] = number, 0x100 + number
        gpu.launches.clear()
        for _ in range(3):
            A.matvec(gpu.put(x), out=y)
        gpu.graphs[8] = number, 0x100 + number  # another branch of the same capture
        gpu.stream = 8
        A.matvec(gpu.put(x), out=y)
        gpu.stream = 7
        gpu.graphs.clear()
        partials = [address for _, _, address in gpu.launches]
        assert len(set(partials[:3])) == 1
        assert partials[3] != partials[0]
        assert len(driver._kept) == 2
        A.matvec(gpu.put(x), out=y)
        assert gpu.launches[-1][2] not in partials
        gpu.end(0x100 + number)
        driver.drop_ended()
        gc.collect()
        assert not driver._kept
    assert_close(gpu.get(y), matrix, x)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_waits_for_no_kernel_and_a_product_says_that_it_does_not_compile(
    gpu, matrix, policy, monkeypatch
):
    begun, wanted, compile_product = [], [], product.compile_product

    def fail(*given):
        raise RuntimeError("the kernel does not compile")

    def compile_as_wanted(kernel, plan, kinds):
        wanted.append((kernel.SIGNATURE.source, product.define_constants(kernel, plan, kinds)))
        return compile_product(kernel, plan, kinds)

    monkeypatch.setattr(product, "begin_loading", begun.extend)
    monkeypatch.setattr(product, "compile_product", fail)
    A = planned(matrix, policy)
    x = gpu.put(vector(matrix.shape[1]))
    for multiply in (A.__matmul__, A.matvec, A.__matmul__):
        with pytest.raises(RuntimeError, match="the kernel does not compile"):
            multiply(x)
    monkeypatch.setattr(product, "compile_product", compile_as_wanted)
    assert_close(gpu.get(A @ x), matrix, gpu.get(x))
    assert begun == wanted


def test_plans_without_segments_ask_nothing_of_a_capture(gpu):
    matrix = from_lengths([5] * 40, 30)
    A, x = planned(matrix, "sell"), vector(30)
    gpu.graphs[7] = 1, 0x101
    assert_close(gpu.get(A @ gpu.put(x)), matrix, x)
    assert not driver._kept


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cut", [np.s_[:300, :8], np.s_[:300, 3:11], np.s_[::2, ::5], np.s_[299::-1, :8]])
def test_several_columns_and_views_of_them(gpu, matrix, policy, cut, turns, monkeypatch):
    monkeypatch.setattr(columns, "pays_to_transpose", lambda *_: turns)
    A, m = planned(matrix, policy), matrix.shape[0]
    large = np.random.default_rng(1).standard_normal((600, 40))
    for order in "CF":
        x = gpu.put(np.asarray(large, order=order)) if order == "C" else gpu.put(large.T.copy()).T
        room = gpu.put(np.full((m, 20), np.nan))
        x, out = x[cut], room[:, 1 : 1 + large[cut].shape[1]]
        assert A.matvec(x, out=out) is out
        for j in range(x.shape[1]):
            assert_close(gpu.get(out)[:, j], matrix, large[cut][:, j])
        assert np.isnan(gpu.get(room)).sum() == room.size - out.size
        y = A @ x
        np.testing.assert_array_equal(gpu.get(y), gpu.get(out))
        if x.flags.forc:
            assert (y.flags.c_contiguous, y.flags.f_contiguous) == (order == "C", order == "F")


def test_a_float32_matrix_of_columns_is_widened(gpu, matrix):
    A, x = planned(matrix, "sell"), np.random.default_rng(1).standard_normal((300, 4)).astype(np.float32)
    y = A @ gpu.put(x)
    assert y.dtype == np.float64
    for j in range(4):
        assert_close(gpu.get(y)[:, j], matrix, x[:, j])


@pytest.mark.parametrize("policy", SPLIT)
def test_columns_that_overlap_are_refused(gpu, policy):
    A = planned(from_lengths([5] * 300, 300), policy)
    memory = gpu.put(np.ones((300, 9)))
    with pytest.raises(ValueError, match="out overlaps x"):
        A.matvec(memory[:, :4], out=memory[:, 3:7])
    assert not gpu.launches


@pytest.mark.parametrize(
    ("k", "beta", "dtype"), [(1, 0.0, "f8"), (7, 0.0, "f4"), (33, 0.0, "f8"), (5, 0.5, "f8"), (5, 0.5, "f4")]
)
def test_columns_that_are_turned_have_the_same_bits(gpu, dtype, k, beta, monkeypatch):
    matrix = from_lengths([40, 3, 12] + [5] * 60 + [0, 0], 70).astype(dtype)
    x, y = (np.random.default_rng(n).standard_normal((k, n)).astype(dtype) for n in (70, matrix.shape[0]))
    results = []
    for turns in (False, True):
        monkeypatch.setattr(columns, "pays_to_transpose", lambda *_, turns=turns: turns)
        out = gpu.put(y).T
        planned(matrix, "sell").matvec(gpu.put(x).T, out=out, beta=beta)
        results.append(gpu.get(out).copy())
        if k > 1:
            kernels = [kernel for _, kernel, _ in gpu.launches]
            in_order = not len(planned(matrix, "sell").plan.pattern.rows)
            assert kernels.count("dasp_transpose") == turns * (
                1 if beta or k <= (8 if in_order else 4) else 2
            )
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("policy", ["sell", "split sell"])
@pytest.mark.parametrize("k", [3, 11])
@pytest.mark.parametrize(("x_order", "y_order"), ["CC", "CF", "FC", "FF"])
def test_no_column_that_is_added_to_even_rows_is_read_or_written_where_there_is_none(
    gpu, matrix, policy, k, x_order, y_order, monkeypatch
):
    """Neither behind X, where Y alone has them, nor behind the sums of segments."""
    monkeypatch.setattr(columns, "pays_to_transpose", lambda *_: True)
    x = np.random.default_rng(k).standard_normal((300, k)).astype(np.float32)
    given, out = (
        gpu.put(array) if order == "C" else gpu.put(array.T).T
        for array, order in ((x, x_order), (np.full((matrix.shape[0], k), np.nan), y_order))
    )
    planned(matrix, policy).matvec(given, out=out)
    for j in range(k):
        assert_close(gpu.get(out)[:, j], matrix, x[:, j])


@pytest.mark.parametrize(
    ("k", "item", "numbers"), [(3, 4, 4), (5, 8, 8), (16, 4, 16), (17, 4, 24), (5, 16, 6)]
)
def test_even_rows_are_powers_of_two_or_whole_sectors(k, item, numbers):
    assert columns.round_row(k, item) == numbers


def test_columns_are_transposed_where_rows_are_long_and_far_apart_and_much_is_read(monkeypatch):
    near, far = (plan_of(from_lengths([length] * 64, n)) for length, n in ((3, 64), (60, 800)))
    assert not columns.pays_to_transpose(far, read_sectors(far), 64)
    assert columns.pays_to_transpose(far, read_sectors(far), 64_000)
    launch_at_once(monkeypatch)
    near, far = (plan_of(from_lengths([length] * 64, n)) for length, n in ((3, 64), (60, 800)))
    assert not columns.pays_to_transpose(near, read_sectors(near), 64)
    assert columns.pays_to_transpose(far, read_sectors(far), 64)


@pytest.mark.parametrize(("policy", "kept"), [("split sell", 1), ("dasp", 1 + 4)])
def test_captured_columns_keep_what_they_work_in_with_the_graph(gpu, matrix, policy, kept):
    """What columns share, and in the format of the paper the copies of each column."""
    A, x = planned(matrix, policy), gpu.put(np.random.default_rng(1).standard_normal((300, 4)))
    y = gpu.put(np.full((matrix.shape[0], 4), np.nan))
    A.matvec(x, out=y)
    assert not driver._kept
    gpu.graphs[7] = 1, 0x101
    A.matvec(x, out=y)
    gpu.graphs.clear()
    assert len(driver._kept) == kept
    gpu.end(0x101)
    driver.drop_ended()
    assert not driver._kept


@pytest.mark.parametrize(
    ("policy", "name", "launches"),
    [("sell", "dasp_slices", ["dasp_slices_columns"]), ("dasp", "dasp_spmv", 8 * ["dasp_spmv"])],
)
def test_columns_without_segments_launch_once_in_slices_and_once_each_in_the_format_of_the_paper(
    gpu, policy, name, launches
):
    matrix = from_lengths([5] * 40, 30)
    A = planned(matrix, policy)
    A @ gpu.put(np.ones((30, 8)))
    assert [kernel for _, kernel, _ in gpu.launches] == launches
    gpu.launches.clear()
    A @ gpu.put(np.ones((30, 1)))
    assert [kernel for _, kernel, _ in gpu.launches] == [name]
    assert (A @ gpu.put(np.ones((30, 0)))).shape == (40, 0)
    assert len(gpu.launches) == 1


# ---- memory --------------------------------------------------------------------------------------

PLANS = {
    "cut": lambda: (from_lengths([700, 3, 129] + [5] * 40 + [0, 0], 300), "split sell"),
    "one long row": lambda: (from_lengths([900], 30), "split sell"),
    "no row in slices": lambda: (from_lengths([300] * 20, 40), "split sell"),
    "one column": lambda: (from_lengths([1, 0, 3, 1] * 9, 1), "sell"),
    "one row": lambda: (from_lengths([40], 30), "sell"),
    "rows of 9": lambda: (from_lengths([9] * 70, 64), "sell"),
    "empty": lambda: (from_lengths([0] * 7, 4), "sell"),
    "every category": lambda: (from_lengths([*LENGTHS, 700, 0], 100), "dasp"),
    "short rows": lambda: (from_lengths([1, 3, 2, 2, 4] * 9, 30), "dasp"),
    "row blocks": lambda: (entries_of(generate("fem3:3")), "sell"),
    "a grid": lambda: (entries_of(generate("poisson3d:6")), "sell"),
}
"""Matrices, and policies that they are planned by."""

VIEWS = {
    "C": lambda put, m, k: (whole := put((m, k)), whole),
    "F": lambda put, m, k: (whole := put((k, m)), whole.T),
    "columns": lambda put, m, k: (whole := put((m, k + 3)), whole[:, 2 : 2 + k]),
    "aligned columns": lambda put, m, k: (whole := put((m, k // 8 * 8 + 24)), whole[:, 8 : 8 + k]),
    "rows": lambda put, m, k: (whole := put((2 * m + 1, k)), whole[1::2]),
    "backwards": lambda put, m, k: (whole := put((m, k)), whole[::-1]),
}
"""Arrays of m rows and k columns, and what they are a part of."""

CHOICES = {"as measured": None, "rows": True, "as they lie": False}
"""Whether X and Y in columns are worked on in rows."""


def numbers(rng, shape, dtype):
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "names", "counts", "seed"),
    [
        *(("float64", list(PLANS), (2, 11, 33), seed) for seed in range(len(PLANS))),
        *(("float32", ["cut", "row blocks", "every category"], (5, 8), seed) for seed in range(4)),
        *(("complex64", ["cut", "short rows"], (3,), seed) for seed in range(2)),
        *(("float16", ["cut", "rows of 9"], (3,), seed) for seed in range(2)),
    ],
)
def test_columns_keep_to_the_memory_that_they_were_given(gpu, dtype, names, counts, seed, monkeypatch):
    """The emulator holds them to what is allocated; beside a part of it nothing is used, or written."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    some = list(VIEWS)
    name, k, x_view, y_view = names[seed % len(names)], *map(rng.choice, (counts, some, some))
    chosen = CHOICES[rng.choice(list(CHOICES))]
    if chosen is not None:
        monkeypatch.setattr(columns, "pays_to_transpose", lambda *_: chosen)
    alpha, beta = [(1.0, 0.0), (0.5, -2.0)][seed % 2]
    matrix, policy = PLANS[name]()
    matrix.data = numbers(rng, matrix.nnz, dtype)
    (m, n), put = matrix.shape, lambda shape: gpu.put(np.full(shape, np.nan, dtype))
    (_, x), (room, y) = VIEWS[x_view](put, n, k), VIEWS[y_view](put, m, k)
    given, before = numbers(rng, (n, k), dtype), numbers(rng, (m, k), dtype)
    gpu.get(x)[...] = given
    if beta:
        gpu.get(y)[...] = before
    plan = plan_of(matrix, PLAIN[policy])
    if seed % 4 == 3 and dtype == np.float64:
        plan = widened(plan)
    if rng.integers(2):
        gpu.graphs[gpu.stream] = 1, 0x100
    SpMatrix(plan, "cuda:0").matvec(x, out=y, alpha=alpha, beta=beta)
    got = gpu.get(y).copy()
    for j in range(k):
        assert_close(got[:, j], matrix, given[:, j], alpha, beta, before[:, j])
    gpu.get(y)[...] = np.nan
    assert np.isnan(gpu.get(room)).all()


@pytest.mark.parametrize("name", ["cut", "row blocks", "every category"])
def test_memory_that_products_took_goes_to_nobody_who_would_not_wait_for_them(gpu, name):
    """CuPy's pool gives it to who comes next on the stream that it was taken on; others wait for nothing."""
    matrix, policy = PLANS[name]()
    A = planned(matrix, policy)
    for shape in (matrix.shape[1], (matrix.shape[1], 16)):
        A @ gpu.put(np.ones(shape))
    del A
    gc.collect()
    assert set(gpu.given_back()) == {gpu.stream}


def test_a_launch_is_told_of_no_memory_that_was_given_back(gpu, matrix):
    """The stand-in sees that, as it sees where an array ends."""
    launch = planned(matrix, "sell")._product._find_own_launch(gpu.stream)
    x, y = gpu.put(np.ones(300)), gpu.put(np.ones(matrix.shape[0]))
    short, lost = gpu.put(np.ones(299)), gpu.put(np.ones(matrix.shape[0])).data.ptr
    launch(gpu.stream, x.data.ptr, y.data.ptr, 1.0, 0.0)
    with pytest.raises(AssertionError, match="given back"):
        launch(gpu.stream, x.data.ptr, lost, 1.0, 0.0)
    with pytest.raises(SimtError, match="out of bounds"):
        launch(gpu.stream, short.data.ptr, y.data.ptr, 1.0, 0.0)


# ---- row blocks --------------------------------------------------------------------------------------


@pytest.fixture
def eights():
    """A matrix whose rows have the same columns by threes, and the same without tensor cores."""
    from scipy.sparse import csr_array

    from dasp.io import load_matrix

    csr = csr_array(load_matrix("fem3:3"))
    return csr, *(SpMatrix(plan_of(csr, Policy(mma=mma)), "cuda:0") for mma in (True, False))


@pytest.mark.parametrize("k", [21, 40])
def test_rows_with_the_same_columns_are_multiplied_by_eights(gpu, eights, k):
    csr, a, plain = eights
    x = np.random.default_rng(0).standard_normal((csr.shape[1], k))
    before = a.nbytes
    for planned in (a, plain):
        gpu.launches.clear()
        y = gpu.get(planned @ gpu.put(x))
        kernels = {kernel for _, kernel, _ in gpu.launches}
        assert kernels == {"dasp_row_blocks" if planned is a else "dasp_slices_columns"}
        for j in range(k):
            assert_close(y[:, j], csr, x[:, j])
    assert a.nbytes > before
    assert plain.nbytes == before
    assert "row blocks" in str(a)


def test_fewer_columns_and_other_types_come_in_slices(gpu, eights):
    _, a, _ = eights
    for k, dtype in ((4, np.float64), (16, np.complex128)):
        gpu.launches.clear()
        a @ gpu.put(np.ones((a.shape[1], k), dtype))
        assert {kernel for _, kernel, _ in gpu.launches} == {"dasp_slices_columns"}


def test_values_written_in_place_reach_row_blocks(gpu, eights):
    csr, a, _ = eights
    x = np.random.default_rng(0).standard_normal((csr.shape[1], 16))
    a @ gpu.put(x)
    csr.data[:] = np.random.default_rng(1).standard_normal(csr.nnz)
    other = plan_of(csr, Policy())
    gpu.get(a.plan.values.codes)[...] = other.values.codes
    a._product.refresh()
    y = gpu.get(a @ gpu.put(x))
    for j in range(16):
        assert_close(y[:, j], csr, x[:, j])


@pytest.fixture
def overwritten(gpu, eights, monkeypatch):
    """Gives a matrix with row blocks other values in place, and returns it and its CSR of then."""

    def overwrite():
        csr, a, _ = eights
        csr.data[:] = np.random.default_rng(1).standard_normal(csr.nnz)
        codes = plan_of(csr, Policy()).values.codes

        def recode_values(data, slots, values):
            gpu.get(values.codes)[...] = codes
            return True

        writing = SimpleNamespace(recode_values=recode_values)
        monkeypatch.setattr(of_slices, "find_primitives", lambda number: writing)
        a._shared.slots = "found"
        assert a.with_values(gpu.put(csr.data), out=a) is a
        return a, csr

    return overwrite


def test_no_row_blocks_are_made_of_values_that_a_graph_overwrites(gpu, overwritten):
    """It was captured before there were any, so that it would leave them as they are."""
    gpu.graphs[gpu.stream] = 1, 0x100
    a, _ = overwritten()
    gpu.graphs.clear()
    gpu.launches.clear()
    a @ gpu.put(np.ones((a.shape[1], 16)))
    assert {kernel for _, kernel, _ in gpu.launches} == {"dasp_slices_columns"}


@pytest.mark.parametrize("captured", [False, True])
def test_values_written_in_place_have_come_before_a_product_may_start_early(
    gpu, eights, overwritten, monkeypatch, captured
):
    """The kernel that waits for all before it follows the last one that writes, which fills row blocks."""
    eights[1] @ gpu.put(np.ones((eights[1].shape[1], 16)))
    fill = row_blocks.LazyRowBlocks.refresh

    def marked(*given):
        fill(*given)
        gpu.launches.append((gpu.stream, "row blocks", 0))

    monkeypatch.setattr(row_blocks.LazyRowBlocks, "refresh", marked)
    if captured:
        gpu.graphs[gpu.stream] = 1, 0x100
    overwritten()
    assert [entry for _, entry, _ in gpu.launches[-2:]] == ["row blocks", "dasp_settle"]
    assert gpu.launches[-1][0] == gpu.stream


def test_row_blocks_are_made_once_wanted_by_enough_columns(gpu, eights):
    csr, a, _ = eights
    tiles = row_blocks.build(row_blocks.find_primitives(0), a.plan, 0)[0]
    asked = ((8, 16, a.nnz / (tiles + 1)), (8, 8, a.nnz / (tiles - 1)))
    a = SpMatrix(with_model(plan_of(csr, Policy()), dataclasses.replace(H200, tile_entries=asked)), "cuda:0")
    for k, kernel in ((8, "dasp_slices_columns"), (16, "dasp_row_blocks"), (8, "dasp_slices_columns")):
        gpu.launches.clear()
        a @ gpu.put(np.ones((a.shape[1], k)))
        assert {name for _, name, _ in gpu.launches} == {kernel}
    assert a._product.nbytes > 0


def test_where_memory_is_short_of_row_blocks_slices_multiply(gpu, eights, monkeypatch):
    csr, a, _ = eights

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(row_blocks, "build", fails)
    x = np.random.default_rng(0).standard_normal((csr.shape[1], 16))
    y = gpu.get(a @ gpu.put(x))
    assert {kernel for _, kernel, _ in gpu.launches} == {"dasp_slices_columns"}
    assert_close(y[:, 3], csr, x[:, 3])


def test_a_stream_keeps_its_handle_while_scratch_is_known_by_it(gpu, monkeypatch):
    """CUDA would give the handle of one that was destroyed to the next, though products are pending."""

    class Stream:
        def __init__(self, ptr):
            self.ptr, self.done = ptr, False

    matrix = from_lengths([700, 3, 4], 50)
    a = SpMatrix(plan_of(matrix, Tuned("sell", steps=2)), "cuda:0")
    monkeypatch.setattr(sys.modules["cupy"].cuda, "ExternalStream", int)
    x, y = gpu.put(np.ones(50)), gpu.put(np.zeros(3))
    streams = [Stream(0x100 + k) for k in range(2 * product.MOST_STREAMS)]
    seen = [weakref.ref(stream) for stream in streams]

    def multiply(stream):
        a._product._current_stream = lambda: stream
        a.matvec(x, out=y)

    for stream in streams[:-1]:
        multiply(stream)
    last = streams[-1]
    streams[0].done = streams[1].done = True
    held = streams[1]
    del stream, streams
    multiply(last)
    assert [ref() is None for ref in seen] == [True] + (len(seen) - 1) * [False]
    assert set(a._product._own) == {ref().ptr for ref in seen[2:]}
    multiply(held)  # which somebody has, and gets new scratch
    assert held.ptr in a._product._own
