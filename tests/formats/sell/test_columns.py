"""The product by several columns at once: its promises on every executor, and what is launched for what."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dasp import Policy, SpMatrix, set_num_threads
from dasp.formats.cost import H200
from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.column_blocks import cut_columns
from dasp.formats.sell.cpu.product import MOST_JOBS, SellCpuProduct
from dasp.formats.sell.cuda import columns as cuda
from dasp.formats.sell.cuda import row_blocks
from dasp.formats.sell.cuda.column_rules import (
    BLOCKS,
    Gathering,
    Rule,
    Strides,
    choose_column_blocks,
    choose_parts,
    find_gathering,
    find_strides,
    read_sectors,
)
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.models import generate
from dasp.runtime.cpu import threads
from dasp.runtime.cpu.operands import transpose
from dasp.runtime.dtypes import find_arithmetic, find_arithmetic_into
from tests.support.executors import EXECUTORS, emulate, emulate_columns
from tests.support.executors import multiply as by_vector
from tests.support.gallery import GALLERY, from_lengths, matrices
from tests.support.pack_device import PackingDevice
from tests.support.planned import Tuned, plan_of, widened, with_model
from tests.support.reference import assert_close

pytestmark = pytest.mark.simt

SPLIT = Tuned("sell", steps=2)
"""Gives long rows to several warps."""

COUNTS = (0, 1, 3, 8, 33)

every_executor = pytest.mark.parametrize("executor", EXECUTORS)


def columns(n, k, seed=1, dtype=np.float64, order="C"):
    return np.asarray(np.random.default_rng(seed).standard_normal((n, k)).astype(dtype), order=order)


def multiply(executor, matrix, x, policy=None, out=None, alpha=1.0, beta=0.0):
    """Return alpha A X + beta out as a NumPy array; without out, of NaN in the order of X."""
    dtype = find_arithmetic(matrix.dtype, x.dtype).y
    if out is None:
        order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
        out = np.full((matrix.shape[0], x.shape[1]), np.nan, dtype, order=order)
    if executor == "simt":
        if x.shape[1]:
            plan = plan_of(matrix, policy)
            read = x.astype(find_arithmetic_into(plan.dtype, x.dtype, dtype).x, order="K")
            emulate_columns(plan, read, out, alpha, beta)
        return out
    planned = SpMatrix.from_scipy(matrix, policy=policy, device=executor)
    if executor == "cpu":
        return planned.matvec(x, out=out, alpha=alpha, beta=beta)
    import cupy

    return planned.matvec(cupy.asarray(x), out=cupy.asarray(out), alpha=alpha, beta=beta).get()


def assert_columns_close(got, matrix, x, alpha=1.0, beta=0.0, y=None):
    assert got.shape == (matrix.shape[0], x.shape[1])
    for j in range(x.shape[1]):
        assert_close(got[:, j], matrix, x[:, j], alpha, beta, None if y is None else y[:, j])


def bits(array):
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def find_spoilt(matrix, x):
    """Whether a row uses a number of a column of X that is not finite, by row and column."""
    spoilt = np.zeros((matrix.shape[0], x.shape[1]), bool)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    for j in range(x.shape[1]):
        spoilt[rows[~np.isfinite(x[matrix.indices, j])], j] = True
    return spoilt


def hold_that_specials_stay(executor, matrix, policy, data):
    """NaN and Inf in X spoil no other column, and no row that does not use them."""
    x = columns(matrix.shape[1], 8, order=data.draw(st.sampled_from("CF")))
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = data.draw(st.integers(0, matrix.shape[1] - 1)), data.draw(st.integers(0, 7))
        x[i, j] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    got = multiply(executor, matrix, x, policy)
    np.testing.assert_array_equal(~np.isfinite(got), find_spoilt(matrix, x))
    assert_columns_close(got, matrix, x)


def hold_to_bits_of_vectors(executor, matrix, policy, counts):
    """So many columns, in such an order in memory, have the bits of the products by each of them alone."""
    x = columns(300, 8)
    want = np.stack([by_vector(executor, matrix, x[:, j].copy(), policy=policy) for j in range(8)], axis=1)
    for k, order in counts:
        got = multiply(executor, matrix, np.asarray(x[:, :k], order=order), policy)
        np.testing.assert_array_equal(bits(got), bits(want[:, :k]))


def hold_to_views(executor, planned, matrix, large, cut, order):
    """Views of larger arrays are read and written, and nothing beside the result."""
    m = matrix.shape[0]
    module = np if executor == "cpu" else pytest.importorskip("cupy")
    x = module.asarray(np.asarray(large, order=order))[cut]
    room = module.full((3 * m, 40), module.nan)
    out = room[::3, 1::5] if order == "C" else room[:m, 8:16][:, ::-1]
    planned.matvec(x, out=out)
    host = (x, out) if executor == "cpu" else (x.get(), out.get())
    assert_columns_close(host[1], matrix, host[0])
    assert int(module.isnan(room).sum()) == room.size - out.size, "more than the result was written"


def hold_threads_to_bits(product, x, threads):
    """So many threads give the bits that one does."""
    results = []
    try:
        for count in (1, threads):
            set_num_threads(count)
            y = np.full(
                (product.plan.shape[0], x.shape[1]), np.nan, order="F" if x.flags.f_contiguous else "C"
            )
            product.multiply(x, y, 1.0, 0.0)
            results.append(bits(y))
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(*results)


def emulated_bits(plan, x, **how):
    y = np.full((plan.shape[0], x.shape[1]), np.nan)
    emulate_columns(plan, x, y, **how)
    return bits(y)


@every_executor
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", GALLERY)
def test_gallery(executor, name, order):
    matrix = GALLERY[name]
    x = columns(matrix.shape[1], 5, order=order)
    for policy in (Policy(format="sell", narrow=False), dataclasses.replace(SPLIT, narrow=False)):
        assert_columns_close(multiply(executor, matrix, x, policy), matrix, x)


@every_executor
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("k", COUNTS)
def test_every_number_of_columns(executor, k, order):
    matrix = from_lengths([700, 3, 129] + [5] * 40 + [0, 0] + [40] * 9, 300)
    x = columns(300, k, order=order)
    for policy in (None, SPLIT) if k < 3 else (SPLIT,):
        assert_columns_close(multiply(executor, matrix, x, policy), matrix, x)


@every_executor
@settings(max_examples=8)
@given(
    matrix=matrices(),
    k=st.sampled_from([2, 8, 17]),
    split=st.booleans(),
    orders=st.sampled_from(["CC", "CF", "FC", "FF"]),
    alpha=st.sampled_from([1.0, -0.3, 0.0]),
    beta=st.sampled_from([0.0, 0.7, -1.0]),
)
def test_every_row_is_within_its_bound(executor, matrix, k, split, orders, alpha, beta):
    x = columns(matrix.shape[1], k, order=orders[0])
    y = columns(matrix.shape[0], k, 2, order=orders[1])
    policy = SPLIT if split else Policy(format="sell")
    got = multiply(executor, matrix, x, policy, y.copy("K"), alpha, beta)
    assert_columns_close(got, matrix, x, alpha, beta, y)


@every_executor
@pytest.mark.parametrize(("types", "order"), [("ff", "C"), ("ff", "F"), ("fd", "C"), ("df", "F")])
def test_results_by_columns_have_numpys_types(executor, types, order):
    matrix = from_lengths([100, 3, 12] + [5] * 40 + [0, 0], 30).astype(np.dtype(types[0]))
    x = columns(30, 8, dtype=np.dtype(types[1]), order=order)
    got = multiply(executor, matrix, x)
    assert got.dtype == np.result_type(matrix.dtype, x.dtype)
    assert_columns_close(got, matrix, x)


def numbers(rng, size, dtype):
    parts = rng.standard_normal((*size, 2))
    return (parts @ [1, 1j] if dtype.kind == "c" else parts[..., 0]).astype(dtype)


def of_type(dtype, only_real=False):
    """A matrix of numbers of a type in COO, as `from_coo` takes it; its first row comes in segments."""
    shape, rng = from_lengths([100, 3, 12] + [5] * 40 + [0, 0], 30), np.random.default_rng(0)
    rows = np.repeat(np.arange(shape.shape[0]), np.diff(shape.indptr))
    data = numbers(rng, (shape.nnz,), np.dtype(dtype))
    return (data.real.astype(dtype) if only_real else data), (rows, shape.indices), shape.shape


@pytest.mark.parametrize(
    ("value", "other"), [("complex128", "complex128"), ("float64", "complex128"), ("bfloat16", "float32")]
)
def test_other_types_have_the_bits_of_the_product_by_a_vector(value, other):
    kinds = find_arithmetic(np.dtype(value), np.dtype(other))
    plan = SpMatrix.from_coo(*of_type(kinds.value), policy=SPLIT, device="cpu").plan
    x = numbers(np.random.default_rng(1), (30, 5), kinds.x)
    y = np.zeros((plan.shape[0], 5), kinds.y)
    emulate_columns(plan, x, y)
    for j in range(5):
        want = np.zeros(plan.shape[0], kinds.y)
        emulate(plan, np.ascontiguousarray(x[:, j]), want)
        assert np.ascontiguousarray(y[:, j]).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("value", "other", "k", "order"),
    [
        ("complex128", "complex128", 11, "C"),
        ("complex128", "complex128", 11, "F"),
        ("float64", "complex128", 3, "C"),
        ("real complex128", "float64", 3, "C"),
        ("float16", "float16", 3, "F"),
    ],
)
def test_other_types_on_a_cpu_have_the_bits_of_the_product_by_a_vector(value, other, k, order):
    *only_real, dtype = value.split()
    x = np.asarray(numbers(np.random.default_rng(1), (30, k), np.dtype(other)), order=order)
    for policy in (SPLIT, Policy(format="sell")):
        planned = SpMatrix.from_coo(*of_type(np.dtype(dtype), bool(only_real)), policy=policy, device="cpu")
        got = planned @ x
        assert got.flags.f_contiguous == (order == "F")
        for j in range(k):
            want = planned @ np.ascontiguousarray(x[:, j])
            assert np.ascontiguousarray(got[:, j]).tobytes() == want.tobytes()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("alpha", [2.0, 0.5 - 1j])
@pytest.mark.parametrize("beta", [0.0, -1.0, 1j])
def test_complex_columns_with_alpha_and_beta(order, alpha, beta):
    rng, kind = np.random.default_rng(2), np.dtype(np.complex128)
    planned = SpMatrix.from_coo(*of_type(kind), policy=SPLIT, device="cpu")
    x = np.asarray(numbers(rng, (30, 11), kind), order=order)
    out = np.asarray(numbers(rng, (planned.shape[0], 11), kind), order=order)
    want = np.empty_like(out)
    for j in range(11):
        want[:, j] = planned.matvec(x[:, j].copy(), out=out[:, j].copy(), alpha=alpha, beta=beta)
    got = planned.matvec(x, out=out, alpha=alpha, beta=beta)
    if beta == 0:
        np.testing.assert_array_equal(got, want)
    bound = 16 * np.finfo(np.float64).eps * (np.abs(want) + np.abs(alpha) * np.linalg.norm(x, np.inf) * 100)
    assert (np.abs(got - want) <= bound).all()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_out_may_hold_nan_if_it_is_not_read(beta):
    """In columns that two blocks share, and in those that only one has."""
    matrix = from_lengths([70, 3, 129] + [5] * 40 + [0, 0], 300)
    planned = SpMatrix.from_scipy(matrix, policy=SPLIT, device="cpu")
    for k in (3, 7, 33):
        x, out = columns(300, k), np.full((matrix.shape[0], k), np.nan)
        assert np.isnan(planned.matvec(x, out=out, alpha=2.0, beta=beta)).all() == (beta != 0)


@pytest.mark.parametrize("item", [4, 8, 16])
def test_column_blocks_on_a_cpu_cover_every_column_once(item):
    for k in range(2, 100):
        blocks = cut_columns(k, item)
        written = [j for one in blocks for j in range(one.begin + one.done, one.begin + one.columns)]
        assert written == list(range(k))
        for one in blocks:
            assert one.begin >= 0
            assert 0 <= one.done < one.columns
            assert one.columns in (2, 4, 8, 16, 32)
            assert one.columns * item <= 256
            assert one.columns <= k


def test_products_by_many_strides_keep_few_jobs():
    planned = SpMatrix.from_scipy(GALLERY["lengths shuffled"], device="cpu")
    n, found = planned.shape[1], []
    for k in range(2, 2 * MOST_JOBS):
        found.append(planned @ np.ones((n, k))[:, :2])
        assert len(planned._product._jobs) <= MOST_JOBS
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.parametrize("shape", [(0, 5), (1, 700), (16, 700), (5, 9001), (700, 9), (17, 4096)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("count", [1, 3])
def test_matrices_are_turned(monkeypatch, shape, dtype, count):
    monkeypatch.setattr(threads, "SERIAL_ENTRIES", 100)
    large = numbers(np.random.default_rng(3), (shape[0], shape[1] + 7), np.dtype(dtype))
    room = np.zeros((shape[1], shape[0] + 3), dtype)
    try:
        set_num_threads(count)
        transpose(large[:, 3 : 3 + shape[1]], room[:, 2 : 2 + shape[0]])
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(room[:, 2 : 2 + shape[0]], large[:, 3 : 3 + shape[1]].T)
    room[:, 2 : 2 + shape[0]] = 0
    assert not room.any(), "more than the target was written"


CODED = {
    "equal": lambda rng, n: np.full(n, 0.1),
    "bytes": lambda rng, n: rng.integers(-100, 100, n).astype(float),
    "singles": lambda rng, n: rng.standard_normal(n).astype(np.float32).astype(float),
    "dictionary": lambda rng, n: rng.choice(np.array([0.1, 0.3, 0.7, -1.1]), n),
    "plain": lambda rng, n: rng.standard_normal(n),
}


@every_executor
@pytest.mark.parametrize("coding", CODED)
def test_values_of_every_coding_are_multiplied(executor, coding):
    matrix = from_lengths([70, 3, 129] + [5] * 40 + [0, 0] + [7] * 9, 300)
    matrix.data[:] = CODED[coding](np.random.default_rng(3), matrix.nnz)
    x = columns(300, 4)
    assert_columns_close(multiply(executor, matrix, x), matrix, x)


@every_executor
def test_a_pad_whose_code_stands_for_inf_adds_nothing_to_columns(executor):
    matrix = from_lengths([70, 3, 129] + [5] * 40 + [0, 0] + [7] * 9, 300)
    matrix.sort_indices()
    matrix.data[:] = np.random.default_rng(3).choice([-0.1, -0.3], matrix.nnz)
    matrix.data[0] = np.inf  # its bits are the least, so that it has code 0, which is also the code of pads
    x = columns(300, 4)
    got = multiply(executor, matrix, x)
    assert np.isfinite(got[1:]).all()
    assert_columns_close(got, matrix, x)


@every_executor
@settings(max_examples=8)
@given(matrix=matrices(), data=st.data())
def test_a_nan_or_inf_in_x_reaches_only_its_column_and_rows_that_use_it(executor, matrix, data):
    hold_that_specials_stay(executor, matrix, Policy(format="sell"), data)


@every_executor
@pytest.mark.parametrize("policy", [Policy(format="sell", mma=False), Tuned("sell", steps=2, mma=False)])
def test_a_column_has_the_bits_that_the_product_by_it_has(executor, policy):
    """Whatever the number of columns, their order in memory, and the other columns."""
    matrix = from_lengths([700, 3, 129] + [5] * 40 + [0, 0] + [40] * 9 + [2] * 70, 300)
    hold_to_bits_of_vectors(executor, matrix, policy, itertools.product((2, 5, 8), "CF"))


@every_executor
def test_views_of_larger_arrays(executor):
    if executor == "simt":
        pytest.skip("the emulator takes whole arrays; test_gpu_product.py has views")
    matrix = from_lengths([100, 3, 12] + [5] * 40 + [0, 0], 30)
    planned = SpMatrix.from_scipy(matrix, policy=SPLIT, device=executor)
    for cut in (np.s_[:30, 3:11], np.s_[::3, ::5], np.s_[29::-1, 16:8:-1], np.s_[:30, :8]):
        for order in "CF":
            hold_to_views(executor, planned, matrix, columns(90, 40), cut, order)


SMALL = dataclasses.replace(
    BLOCKS, c_order=(Rule(32, 8, 2, 4, 64, warps=2),), f_order=(Rule(32, 32, 3, 4, 64, warps=2),)
)


@settings(max_examples=8)
@given(matrices(), st.integers(0, 1000), st.integers(1, 3))
def test_the_order_of_blocks_and_who_has_which_tile_change_no_bit(matrix, seed, parts):
    x, plan = columns(matrix.shape[1], 17), plan_of(matrix, SPLIT)
    small = emulated_bits(plan, x, table=SMALL, parts=parts)
    np.testing.assert_array_equal(emulated_bits(plan, x, table=BLOCKS, parts=1), small)


@pytest.mark.parametrize(("share", "loads"), [(2, 16), (8, 4)])
@settings(max_examples=6)
@given(matrix=matrices(), split=st.booleans())
def test_warps_that_share_a_slice_change_no_bit(share, loads, matrix, split):
    assume(matrix.shape[0])
    shared = dataclasses.replace(SMALL, c_order=(Rule(128, 16, 4, loads, 64, share),))
    x = columns(matrix.shape[1], 40)
    plan = plan_of(matrix, Tuned("sell", steps=2 if split else None, narrow=False, mma=False))
    np.testing.assert_array_equal(emulated_bits(plan, x, table=shared), emulated_bits(plan, x, table=SMALL))


@pytest.mark.parametrize(("k", "order"), [(4, "F"), (8, "C")])
def test_slots_that_are_loaded_together_change_no_bit(k, order):
    """With as many loads of a lane in flight as there are steps, with fewer and with more."""
    matrix = from_lengths([700, 3, 129] + [5] * 40 + [0, 0] + [40] * 9, 300)
    plan, x = plan_of(matrix, SPLIT), columns(300, k, order=order)
    want = emulated_bits(plan, x)
    for steps in (1, 3, 8):
        np.testing.assert_array_equal(emulated_bits(plan, x, steps=steps), want)


@settings(max_examples=8)
@given(matrices(), st.booleans(), st.integers(2, 7), st.sampled_from([2, 5, 16]), st.sampled_from("CF"))
def test_the_number_of_threads_changes_no_bit(matrix, split, threads, k, order):
    operator = SellCpuProduct(plan_of(matrix, SPLIT if split else Policy(format="sell")))
    operator._seconds = 10**9  # as if large enough for several threads
    hold_threads_to_bits(operator, columns(matrix.shape[1], k, order=order), threads)


def test_wide_types_give_the_same_bits_in_the_kernel():
    matrix = GALLERY["lengths around every threshold"]
    plan, x = plan_of(matrix, SPLIT), columns(matrix.shape[1], 4)
    np.testing.assert_array_equal(emulated_bits(plan, x), emulated_bits(widened(plan), x))


# ---- what is launched ----------------------------------------------------------------------------

TOY = dataclasses.replace(
    BLOCKS,
    c_order=(Rule(128, 32, 4, 8, 168, where="wide"), Rule(64, 16, 8, 8, 128, warps=16)),
    f_order=(Rule(64, 64, 4, 8, 64, warps=8),),
)

BUSY = dataclasses.replace(H200, wave_slices=100)

HALF = np.dtype(np.float16)
SINGLE, DOUBLE = (find_arithmetic(np.dtype(name), np.dtype(name)) for name in ("float32", "float64"))


def choose(k, kinds, x, y=None, table=BLOCKS, **plan):
    return choose_column_blocks(table, k, kinds, x, y or x, Gathering(**plan), H200)


def test_strides_say_how_many_numbers_are_read_at_once():
    def of(array):
        return find_strides(array.shape, array.strides, array.itemsize, 0)

    assert of(np.ones((9, 8))) == Strides(8, 1, 2)
    assert of(np.ones((9, 8), np.float32)) == Strides(8, 1, 4)
    assert of(np.ones((9, 6), np.float32)) == Strides(6, 1, 2)
    assert of(np.ones((9, 5))) == Strides(5, 1, 1)
    assert of(np.ones((9, 8), order="F")) == Strides(1, 9, 1)
    assert of(np.ones((9, 8))[::2]) == Strides(16, 1, 2)
    assert of(np.ones((9, 7))[:, :4]) == Strides(7, 1, 1)
    assert of(np.ones((9, 8))[:, ::2]) == Strides(8, 2, 1)
    assert of(np.ones((9, 8))[::-1]) is None
    assert find_strides((9, 8), (64, 8), 8, 8) == Strides(8, 1, 1)
    assert find_strides((9, 8), (65, 8), 8, 0) is None
    assert find_strides((9, 2), (8 * 2**31, 8), 8, 0) is None


@pytest.mark.parametrize("item", [4, 8])
@pytest.mark.parametrize("order", "CF")
def test_passes_cover_every_column_once(item, order):
    dtype = np.dtype(f"f{item}")
    for k in range(1, 70):
        x = np.empty((50, k), dtype, order)
        at = find_strides(x.shape, x.strides, item, 0)
        passes = choose(k, find_arithmetic(dtype, dtype), at, table=BLOCKS)
        assert len(passes) <= 2
        assert [j for one in passes for j in range(one.first, one.first + one.columns)] == list(range(k))
        for one in passes:
            block = one.block
            assert one.first % block.pack == one.columns % block.pack == 0
            assert block.whole == (one.columns % block.columns == 0)
            assert block.columns % (block.lanes * block.pack) == 0
            assert block.pack == 1 or at.column == 1
            assert block.columns * item <= (128 if order == "F" or item == 4 else 256)


def test_column_blocks_of_a_toy_machine():
    near, far = Strides(32, 1, 2), Strides(1, 1000, 1)
    large, small = choose(40, DOUBLE, near, table=TOY, steps=7)
    assert large == (0, 32, (16, 4, 2, 2, 1, 4, 8, 168, 128, 1))
    assert small == (32, 8, (8, 4, 2, 2, 1, 7, 8, 128, 512, 1))
    (one,) = choose(32, DOUBLE, far, near, table=TOY)
    assert one == (0, 32, (8, 1, 1, 1, 1, 4, 8, 64, 256, 1))
    (one,) = choose(32, SINGLE, Strides(32, 1, 4), table=TOY)
    assert one == (0, 32, (16, 4, 4, 4, 1, 8, 8, 128, 512, 1))


def test_the_last_block_is_more_than_half_full_or_has_the_columns_that_are_left():
    (one,) = choose(13, DOUBLE, Strides(13, 1, 1), table=TOY)
    assert (one.columns, one.block.columns, one.block.whole) == (13, 16, 0)
    whole, rest = choose(19, DOUBLE, Strides(1, 1000, 1))
    assert (whole.columns, rest.first, rest.columns, rest.block.columns) == (16, 16, 3, 3)
    assert whole.block.whole == rest.block.whole == 1


def test_a_lane_has_two_loads_of_a_row_at_most_and_as_many_bytes_in_flight():
    wide, narrow = (choose(32, SINGLE, Strides(32, 1, pack))[0].block for pack in (4, 1))
    assert (wide.lanes, wide.loads) == (8, 8)
    assert (narrow.lanes, narrow.loads) == (16, 32)


def test_a_few_columns_are_read_by_lone_lanes_where_columns_lie_near_and_by_two_lanes_where_far():
    def lanes(k, kinds, at, **plan):
        (one,) = choose(k, kinds, at, **plan)
        return one.block.columns, one.block.lanes

    assert lanes(5, DOUBLE, Strides(5, 1, 1), sectors=0.3) == (5, 1)
    assert lanes(5, DOUBLE, Strides(8, 1, 2), sectors=0.3) == (6, 1)
    assert lanes(7, DOUBLE, Strides(7, 1, 1), sectors=0.5)[1] > 1
    assert lanes(4, DOUBLE, Strides(4, 1, 2), sectors=0.9) == (4, 2)
    assert lanes(4, DOUBLE, Strides(4, 1, 2), sectors=0.3) == (4, 1)
    assert lanes(8, SINGLE, Strides(8, 1, 4), sectors=0.9) == (8, 2)
    assert lanes(8, SINGLE, Strides(8, 1, 4), sectors=0.3) == (8, 1)


def test_no_warps_share_one_of_many_slices_to_read_rows_of_128_bytes():
    def shares(k, kinds=SINGLE, pack=4):
        at = Strides(k, 1, pack)
        return [choose(k, kinds, at, slices=slices)[0].block.share for slices in (100, 10_000)]

    assert shares(24) == shares(32) == [4, 1]
    assert shares(16) == [2, 2]
    assert shares(31, pack=1) == [4, 4]
    assert shares(32, DOUBLE, 2) == [2, 2]


def test_warps_share_slices_of_many_steps_and_whole_rows():
    at = Strides(16, 1, 4)
    many, few, cut = (
        choose(16, SINGLE, at, steps=steps, alike=alike)[0].block
        for steps, alike in ((8, True), (4, True), (8, False))
    )
    assert many.share > few.share == cut.share == 1
    assert many.threads == WARP * many.share
    assert many.steps % many.share == 0
    full, ragged = (choose(k, DOUBLE, Strides(k, 1, 1))[0].block for k in (8, 7))
    assert full.share > ragged.share == 1
    (half,) = choose(32, find_arithmetic(HALF, HALF), Strides(32, 1, 8))
    assert half.block.share == 1
    long, mixed, short = (
        plan_of(from_lengths([2000] * long + [5] * short, 3000))
        for long, short in ((3, 40), (3, 400), (0, 400))
    )
    assert [find_gathering(plan, 1.0).alike for plan in (long, mixed, short)] == [True, False, True]


def test_tiles_are_shared_out_where_slices_are_few():
    assert choose_parts(BUSY, slices=1000, blocks=4) == 1
    assert choose_parts(BUSY, slices=20, blocks=4) == 2
    assert choose_parts(BUSY, slices=1, blocks=4) == 4
    assert choose_parts(BUSY, slices=0, blocks=4) == 4


def test_the_kernels_take_what_their_signatures_say():
    for signature, varying in ((cuda.SIGNATURE, cuda.VARYING), (cuda.FINISH, cuda.FINISH_VARYING)):
        names = [p.name for p in signature.parameters]
        assert tuple(names[-len(varying) :]) == varying


def test_sectors_of_what_a_step_reads():
    rows, n = 320, 4096
    near = sp.diags_array(np.ones((3, rows)), offsets=[0, 64, 128], shape=(rows, n)).tocsr()
    far = near[:, np.random.default_rng(0).permutation(n)].tocsr()
    equal = sp.csr_array((np.ones(4 * rows), np.tile([3, 4, 5, 6], rows), np.arange(rows + 1) * 4))
    short = Tuned("sell", steps=16)
    assert read_sectors(plan_of(near, short)) == pytest.approx(0.25, abs=0.01)
    assert 0.8 < read_sectors(plan_of(far, short)) <= 1
    assert read_sectors(plan_of(equal, short)) == 1 / 32
    assert read_sectors(plan_of(from_lengths([0] * 40, 9))) == 1
    assert read_sectors(plan_of(from_lengths([500], 600), Tuned("sell", steps=2))) == 1


# ---- row blocks --------------------------------------------------------------------------------------

EIGHTS = dataclasses.replace(H200, tile_entries=((4, 1, 1e-9),))
"""Multiplies in row blocks whatever can be."""


def in_row_blocks(matrix, x, alpha=1.0, beta=0.0, y=None, order="C", policy=None):
    """Return alpha A X + beta y of a matrix in row blocks, from the emulator."""
    plan = with_model(plan_of(matrix, policy or Tuned("sell", steps=32)), EIGHTS)
    out = np.full((matrix.shape[0], x.shape[1]), np.nan, x.dtype, order=order) if y is None else y.copy("K")
    emulate_columns(plan, x, out, alpha, beta)
    return out


@settings(max_examples=12)
@given(
    matrices(),
    st.sampled_from([8, 17, 32]),
    st.sampled_from("CF"),
    st.sampled_from([1.0, -0.3]),
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([np.float64, np.float32]),
)
def test_row_blocks_are_within_the_bound_of_every_row(matrix, k, order, alpha, beta, dtype):
    matrix = matrix.astype(dtype)
    x = columns(matrix.shape[1], k, dtype=dtype)
    y = columns(matrix.shape[0], k, 2, dtype=dtype, order=order)
    got = in_row_blocks(matrix, x, dtype(alpha), dtype(beta), y)
    assert_columns_close(got, matrix, x, dtype(alpha), dtype(beta), y)


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_row_blocks_of_every_coding(coding, dtype):
    matrix = from_lengths([7, 3, 0, 12] + [5] * 40 + [0, 0, 1], 60)
    matrix.data = CODED[coding](np.random.default_rng(3), matrix.nnz)
    matrix, x = matrix.astype(dtype), columns(60, 16, dtype=dtype)
    assert_columns_close(in_row_blocks(matrix, x), matrix, x)


@settings(max_examples=15)
@given(
    matrices(),
    st.data(),
    st.sampled_from([np.float64, np.float32]),
)
def test_row_blocks_keep_nans_to_the_rows_that_use_them(matrix, data, dtype):
    assume(0 not in matrix.shape)
    matrix, x = matrix.astype(dtype), columns(matrix.shape[1], 16, dtype=dtype)
    clean = in_row_blocks(matrix, x)
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = data.draw(st.integers(0, matrix.shape[1] - 1)), data.draw(st.integers(0, 15))
        x[i, j] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    got = in_row_blocks(matrix, x)
    np.testing.assert_array_equal(~np.isfinite(got), find_spoilt(matrix, x))
    untouched = np.isfinite(x).all(axis=0)
    np.testing.assert_array_equal(bits(got[:, untouched]), bits(clean[:, untouched]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_row_blocks_of_wide_integers_give_the_same_bits(dtype):
    matrix = from_lengths([7, 3, 0, 12] + [5] * 40, 60).astype(dtype)
    plan, x = plan_of(matrix, Policy(format="sell")), columns(60, 16, dtype=dtype)
    results = []
    for one in (plan, widened(plan)):
        y = np.full((44, 16), np.nan, dtype)
        emulate_columns(with_model(one, EIGHTS), x, y)
        results.append(bits(y))
    np.testing.assert_array_equal(*results)


def lattice(shape, far):
    """Return a matrix with random values between the points of a grid at most 1 apart along each line, and
    at most `far` lines: 1, a cross; more, a box."""
    points = np.indices(shape).reshape(len(shape), -1).T
    apart = np.abs(points[:, None] - points[None])
    near = (apart.max(2) <= 1) & (apart.sum(2) <= far)
    matrix = sp.csr_array(near.astype(float))
    matrix.data = np.random.default_rng(0).standard_normal(matrix.nnz)
    return matrix


def offsets_of(matrix):
    return [
        frozenset(int(j) - i for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]] if j > i)
        for i in range(matrix.shape[0])
    ]


@pytest.mark.parametrize("far", [1, 3])
@pytest.mark.parametrize("shape", [(4, 5, 6), (5, 7, 9), (2, 5, 8), (9, 12), (8, 5)])
def test_a_grid_is_known_by_its_offsets(shape, far):
    plane = int(np.prod(shape[-2:]))
    assert row_blocks.find_grid(offsets_of(lattice(shape, far)), int(np.prod(shape))) == (shape[-1], plane)


def test_what_is_no_grid_keeps_the_order_of_its_rows():
    box = offsets_of(lattice((5, 6, 7), 3))
    assert row_blocks.find_grid(box, 211) == (0, 0)  # no whole number of planes
    assert row_blocks.find_grid([frozenset()] * 4, 4) == (0, 0)
    assert row_blocks.find_grid([frozenset({1, 2, 3, 40})] * 16, 400) == (40, 400)
    assert row_blocks.find_grid([frozenset({2, 40})] * 16, 400) == (0, 0)  # nothing along a line
    assert row_blocks.find_grid([frozenset({1})] * 16, 400) == (0, 0)  # one line
    assert row_blocks.find_grid([frozenset({1, 5, 25, 125})] * 16, 625) == (0, 0)  # four dimensions
    other = [frozenset({1, 20}), frozenset({1, 21})]
    assert row_blocks.find_grid(other * 8, 400) == (0, 0)  # rows that have different columns


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(4, 5, 6), (5, 7, 9), (11, 13), (1, 16, 3)])
def test_row_blocks_of_a_grid_are_boxes(shape, dtype):
    matrix = lattice(shape, 3).astype(dtype)
    x = columns(matrix.shape[1], 16, dtype=dtype)
    assert_columns_close(in_row_blocks(matrix, x), matrix, x)


def test_boxes_of_a_grid_have_fewer_tiles_and_every_row_once():
    matrix = lattice((6, 8, 10), 3)
    plan, on = plan_of(matrix, Tuned("sell", steps=32)), CudaPrimitives(PackingDevice())
    count, boxes = row_blocks.build(on, plan, 1e9)
    assert sorted(boxes.rows.tolist()) == list(range(480))
    mixed = matrix[np.random.default_rng(0).permutation(480)]
    assert count < row_blocks.build(on, plan_of(mixed, Tuned("sell", steps=32)), 1e9)[0] / 2
    lines = sum(-(-len(np.unique(matrix[i : i + 8].indices)) // 4) for i in range(0, 480, 8))
    assert count < 0.85 * lines
    assert boxes.tiles == count


@pytest.mark.parametrize("model", ["stencil27:16", "fem1:15"])
def test_a_grid_is_found_whatever_its_size_and_elements(model):
    """Rows at equal distances would all begin a line of 16; tetrahedra reach to one side."""
    matrix = generate(model)
    made_of, plan = CudaPrimitives(PackingDevice()), plan_of(matrix, Policy(format="sell"))
    sample, n = row_blocks.sample_offsets(made_of, plan, made_of.unpack_codes(plan)), int(model[-2:])
    assert row_blocks.find_grid(sample, n**3) == (n, n * n)


def test_several_unknowns_of_a_point_are_no_points_of_a_grid():
    made_of, plan = CudaPrimitives(PackingDevice()), plan_of(generate("fem3:6"), Policy(format="sell"))
    sample = row_blocks.sample_offsets(made_of, plan, made_of.unpack_codes(plan))
    assert row_blocks.find_grid(sample, 3 * 6**3) == (0, 0)
