"""The product by several columns in the published format: its promises on every executor, its launches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp import Policy, SpMatrix
from dasp.backends.cpu.product import Product
from dasp.backends.cuda import published_columns as cuda
from dasp.formats.cost import H200, Panels
from dasp.formats.dasp.cpu import product as cpu
from dasp.formats.sell.cuda.columns import VARYING, layout_of
from dasp.runtime.dtypes import arithmetic
from tests.executors import EXECUTORS
from tests.gallery import GALLERY, from_lengths, matrices
from tests.planned import plan_of, widened
from tests.test_columns import (
    assert_columns_close,
    columns,
    emulated_bits,
    hold_that_specials_stay,
    hold_threads_to_bits,
    hold_to_bits_of_vectors,
    hold_to_views,
    multiply,
)

pytestmark = pytest.mark.simt

SPLIT = Policy.published(segment=64)
"""Gives long rows to several warps."""

POLICIES = {
    "usual": Policy.published(),
    "no tensor cores": Policy.published(segment=64, mma=False),
    "two row blocks": Policy.published(fill=1.0, row_blocks_2=0),
    "four row blocks": Policy.published(long_row=1000, row_blocks_2=0, row_blocks_4=0),
}

MIXED = from_lengths(
    [700, 3, 129] + [1] * 40 + [3] * 20 + [2] * 19 + [4] * 9 + [0, 0] + [5, 9, 31] * 12 + [40] * 9, 300
)
"""Rows of every kind."""

policies = st.builds(
    Policy.published,
    long_row=st.sampled_from([4, 20, 256, 100_000]),
    fill=st.sampled_from([0.01, 0.5, 0.75, 1.0]),
    segment=st.sampled_from([64, 128, 1024]),
)

every_executor = pytest.mark.parametrize("executor", EXECUTORS)


@every_executor
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", GALLERY)
def test_gallery(executor, name, order):
    matrix = GALLERY[name]
    x = columns(matrix.shape[1], 5, order=order)
    assert_columns_close(multiply(executor, matrix, x, SPLIT), matrix, x)


@every_executor
@pytest.mark.parametrize(
    ("k", "order"),
    [(0, "C"), (1, "C"), (2, "F"), (3, "C"), (5, "F"), (8, "C"), (16, "F"), (20, "C"), (35, "C")],
)
def test_every_number_of_columns(executor, k, order):
    x = columns(300, k, order=order)
    assert_columns_close(multiply(executor, MIXED, x, SPLIT), MIXED, x)


@every_executor
@settings(max_examples=15)
@given(
    matrix=matrices(),
    policy=policies,
    k=st.sampled_from([2, 8]),
    orders=st.sampled_from(["CC", "CF", "FC", "FF"]),
    alpha=st.sampled_from([1.0, -0.3, 0.0]),
    beta=st.sampled_from([0.0, 0.7, -1.0]),
)
def test_every_row_is_within_its_bound(executor, matrix, policy, k, orders, alpha, beta):
    x = columns(matrix.shape[1], k, order=orders[0])
    y = columns(matrix.shape[0], k, 2, order=orders[1])
    got = multiply(executor, matrix, x, policy, y.copy("K"), alpha, beta)
    assert_columns_close(got, matrix, x, alpha, beta, y)


@every_executor
@pytest.mark.parametrize(
    ("types", "k", "order"), [("ff", 32, "C"), ("ff", 5, "F"), ("fd", 8, "C"), ("df", 8, "C")]
)
def test_results_have_numpys_types(executor, types, k, order):
    matrix = MIXED.astype(np.dtype(types[0]))
    x = columns(300, k, dtype=np.dtype(types[1]), order=order)
    got = multiply(executor, matrix, x, SPLIT)
    assert got.dtype == np.result_type(matrix.dtype, x.dtype)
    assert_columns_close(got, matrix, x)


@every_executor
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_column_has_the_bits_that_the_product_by_it_has(executor, policy):
    """Whatever the number of columns, their order in memory, and the other columns."""
    hold_to_bits_of_vectors(executor, MIXED, policy, ((8, "C"), (5, "F")))


@every_executor
@settings(max_examples=12)
@given(matrix=matrices(), policy=policies, data=st.data())
def test_a_nan_or_inf_in_x_reaches_only_its_column_and_rows_that_use_it(executor, matrix, policy, data):
    hold_that_specials_stay(executor, matrix, policy, data)


SMALL = dataclasses.replace(H200, published_panels=(Panels(32, 8, 1, 4, 64, 1),))


@settings(max_examples=12)
@given(matrices(), st.integers(1, 3))
def test_panels_and_who_has_which_change_no_bit(matrix, parts):
    x, plan = columns(matrix.shape[1], 17), plan_of(matrix, SPLIT)
    small = emulated_bits(plan, x, machine=SMALL, parts=parts)
    np.testing.assert_array_equal(emulated_bits(plan, x, machine=H200, parts=1), small)


@settings(max_examples=12)
@given(matrices(), policies, st.integers(2, 7), st.sampled_from([2, 5, 16]), st.sampled_from("CF"))
def test_the_number_of_threads_changes_no_bit(matrix, policy, threads, k, order):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "SERIAL_SLOTS", 0)
        x = columns(matrix.shape[1], k, order=order)
        hold_threads_to_bits(Product(plan_of(matrix, policy)), x, threads)


@pytest.mark.parametrize("executor", ["cpu", EXECUTORS[-1]])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("cut", [np.s_[:300, 3:11], np.s_[::2, ::5], np.s_[299::-1, 16:8:-1]])
def test_views_of_larger_arrays(executor, order, cut):
    planned = SpMatrix.from_scipy(MIXED, policy=SPLIT, device=executor)
    hold_to_views(executor, planned, MIXED, columns(600, 40), cut, order)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_out_may_hold_nan_if_it_is_not_read(beta):
    """In columns that two panels share, and in those that only one has."""
    planned = SpMatrix.from_scipy(MIXED, policy=SPLIT, device="cpu")
    for k in (3, 7):
        x, out = columns(300, k), np.full((MIXED.shape[0], k), np.nan)
        assert np.isnan(planned.matvec(x, out=out, alpha=2.0, beta=beta)).all() == (beta != 0)


def test_wide_integers_give_the_same_bits_in_the_kernel():
    plan, x = plan_of(MIXED, SPLIT), columns(300, 8)
    np.testing.assert_array_equal(emulated_bits(plan, x), emulated_bits(widened(plan), x))


# ---- what is launched ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 70))
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", "CF")
def test_passes_cover_every_column_once(k, dtype, order):
    x = np.empty((50, k), dtype, order)
    at, kinds = layout_of(x.shape, x.strides, x.itemsize, 0), arithmetic(np.dtype(dtype), np.dtype(dtype))
    passes = cuda.choose_passes(H200, k, kinds, at, at)
    most = 128 // x.itemsize
    assert len(passes) == (k // most > 0) + (k % most > 0), "the plan is read more often than it must be"
    assert [j for one in passes for j in range(one.first, one.first + one.columns)] == list(range(k))
    for one in passes:
        panel = one.panel
        assert one.first % panel.pack == one.columns % panel.pack == 0
        assert panel.whole == (one.columns % panel.columns == 0)
        assert panel.columns % (4 * panel.pack) == 0
        assert panel.columns * x.itemsize <= 128
        assert panel.pack == 1 or at.column == 1


def test_the_kernel_takes_what_its_signature_says():
    names = [p.name for p in cuda.SIGNATURE.parameters]
    assert tuple(names[-len(VARYING) :]) == VARYING


def test_sectors_of_what_the_rows_of_a_tile_read():
    def sectors(matrix):
        return cuda.read_sectors(plan_of(matrix, SPLIT))

    near = from_lengths(np.full(320, 8), 4096)
    near.indices[:] = (np.arange(320)[:, None] + np.arange(0, 512, 64)).ravel()
    far = from_lengths(np.full(320, 8), 10**6)
    assert sectors(near) == pytest.approx(2 / 8)
    assert sectors(far) > 0.9
    assert sectors(from_lengths(np.full(64, 4), 10**6, seed=1)) > 0.9
    assert sectors(from_lengths([0] * 40, 9)) == sectors(from_lengths([1] * 40, 9)) == 1
    assert sectors(from_lengths([500], 600)) == 1
