"""The product's promises, held by every executor: the CPU, the emulated GPU, and a real GPU (-m cuda)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dasp import Policy, SpMatrix, load_matrix, set_num_threads
from tests.formats.test_plan import policies
from tests.support.executors import EXECUTORS, emulate, multiply
from tests.support.gallery import GALLERY, MILLION, from_lengths, matrices
from tests.support.planned import Tuned, plan_of, widened
from tests.support.reference import assert_close, entries_of, product

pytestmark = pytest.mark.simt

EXAMPLES = 15

every_executor = pytest.mark.parametrize("executor", EXECUTORS)
scales = st.sampled_from([0.0, 1.0, -1.0, 0.3, 1e10])
seeds = st.integers(0, 2**32 - 1)


def vector(n: int, seed: int = 1, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


POLICIES = Policy(format="sell"), Policy.dasp(), Policy.dasp(mma=False)


@every_executor
@pytest.mark.parametrize("policy", POLICIES, ids=["sell", "dasp", "dasp by FMA"])
@pytest.mark.parametrize("name", GALLERY)
def test_gallery(executor, name, policy):
    matrix = GALLERY[name]
    x = vector(matrix.shape[1])
    assert_close(multiply(executor, matrix, x, policy=policy), matrix, x)


@pytest.mark.parametrize("executor", ["cpu", EXECUTORS[-1]])
def test_a_row_of_a_million(executor):
    x = vector(MILLION.shape[1])
    assert_close(multiply(executor, MILLION, x), MILLION, x)


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), policy=policies, alpha=scales, beta=scales, seed=seeds)
def test_every_row_is_within_its_bound(executor, matrix, policy, alpha, beta, seed):
    x, y = vector(matrix.shape[1], seed), vector(matrix.shape[0], seed + 1)
    got = multiply(executor, matrix, x, policy=policy, y=y, alpha=alpha, beta=beta)
    assert_close(got, matrix, x, alpha, beta, y)


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), seed=seeds, types=st.sampled_from(["ff", "fd", "df"]))
def test_results_of_single_precision_are_within_their_bound(executor, matrix, seed, types):
    x = vector(matrix.shape[1], seed, np.dtype(types[1]))
    matrix = matrix.astype(np.dtype(types[0]))
    got = multiply(executor, matrix, x)
    assert got.dtype == np.result_type(matrix.dtype, x.dtype)
    assert_close(got, matrix, x)


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), policy=policies, data=st.data())
def test_a_nan_or_inf_in_x_reaches_only_rows_that_use_it(executor, matrix, policy, data):
    x = vector(matrix.shape[1])
    for column in data.draw(st.lists(st.integers(0, matrix.shape[1] - 1), min_size=1, max_size=3)):
        x[column] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    got = multiply(executor, matrix, x, policy=policy)
    spoilt = np.zeros(matrix.shape[0], bool)
    spoilt[np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[~np.isfinite(x)[matrix.indices]]] = (
        True
    )
    np.testing.assert_array_equal(~np.isfinite(got), spoilt)
    assert_close(got, matrix, x)


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), policy=policies, data=st.data())
def test_a_nan_or_inf_in_a_stays_in_its_row(executor, matrix, policy, data):
    if not matrix.nnz:
        return
    for entry in data.draw(st.lists(st.integers(0, matrix.nnz - 1), min_size=1, max_size=5)):
        matrix.data[entry] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    x = vector(matrix.shape[1])
    assert_close(multiply(executor, matrix, x, policy=policy), matrix, x)


@every_executor
@pytest.mark.parametrize("policy", [Policy.dasp(), Tuned("sell", window=0)])
@pytest.mark.parametrize("first", [np.nan, np.inf])
def test_pads_do_not_read_the_first_x(executor, policy, first):
    # Row lengths that leave pads in every part; no row uses column 0.
    matrix = from_lengths([1] * 3 + [2] * 5 + [3] * 9 + [7] * 11 + [15] * 8 + [300] * 2, 60)
    matrix.indices[:] = np.maximum(matrix.indices, 1)
    x = vector(60)
    x[0] = first
    assert np.isfinite(multiply(executor, matrix, x, policy=policy)).all()


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), policy=policies)
def test_equal_inputs_give_equal_bits(executor, matrix, policy):
    x = vector(matrix.shape[1])
    first, second = (multiply(executor, matrix, x, policy=policy) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint64), second.view(np.uint64))


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), seed=seeds)
def test_permuting_rows_permutes_y(executor, matrix, seed):
    order = np.random.default_rng(seed).permutation(matrix.shape[0])
    x = vector(matrix.shape[1])
    permuted = csr_array(matrix[order]) if matrix.shape[0] else matrix
    got = np.empty(matrix.shape[0])
    got[order] = multiply(executor, permuted, x)
    assert_close(got, matrix, x)


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices(), a=scales, b=scales)
def test_the_product_is_linear(executor, matrix, a, b):
    u, v = vector(matrix.shape[1], 2), vector(matrix.shape[1], 3)
    left = multiply(executor, matrix, a * u + b * v)
    right = a * multiply(executor, matrix, u) + b * multiply(executor, matrix, v)
    size = product(matrix, abs(a * u) + abs(b * v))[1]
    lengths = np.diff(matrix.indptr)
    assert (abs(left - right) <= 4 * (lengths + 4) * np.finfo(float).eps * size).all()


@every_executor
@settings(max_examples=EXAMPLES)
@given(matrix=matrices())
def test_the_transpose_is_the_adjoint(executor, matrix):
    x, z = vector(matrix.shape[1], 4), vector(matrix.shape[0], 5)
    transposed = csr_array(matrix.T.tocsr())
    left = z @ multiply(executor, matrix, x)
    right = x @ multiply(executor, transposed, z)
    size = float(abs(z) @ product(matrix, x)[1].astype(float))
    assert abs(left - right) <= 4 * (sum(matrix.shape) + 300) * np.finfo(float).eps * size + 1e-300


@given(matrices(), policies, st.integers(1, 7))
def test_the_number_of_threads_changes_no_bit(matrix, policy, threads):

    x = vector(matrix.shape[1])
    results = []
    operator = SpMatrix(plan_of(matrix, policy), "cpu")._product
    operator._work = operator._seconds = 10**9  # as if large enough for several threads
    operator._is_tiny = False
    try:
        for count in (1, threads):
            set_num_threads(count)
            y = np.full(matrix.shape[0], np.nan)
            operator.multiply(x, y, 1.0, 0.0)
            results.append(y.view(np.uint64))
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(*results)


@settings(max_examples=EXAMPLES)
@given(matrices(), policies, st.integers(0, 1000))
def test_the_order_of_blocks_changes_no_bit(matrix, policy, seed):
    plan = plan_of(matrix, policy)
    x = vector(matrix.shape[1])
    results = []
    for order in (None, seed):
        y = np.full(matrix.shape[0], np.nan)
        emulate(plan, x, y, seed=order)
        results.append(y.view(np.uint64))
    np.testing.assert_array_equal(*results)


@settings(max_examples=EXAMPLES)
@given(matrices(), policies)
def test_wide_types_give_the_same_bits_in_the_kernel(matrix, policy):
    x = vector(matrix.shape[1])
    results = []
    plan = plan_of(matrix, policy)
    for one in (plan, widened(plan)):
        y = np.full(matrix.shape[0], np.nan)
        emulate(one, x, y)
        results.append(y.view(np.uint64))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("layout", ["sell", "dasp"])
@pytest.mark.parametrize("name", GALLERY)
def test_wide_types_give_the_same_bits_on_the_cpu(name, layout):
    """Of values as they are: what stands for a value has nothing to do with where it lies."""
    matrix = entries_of(GALLERY[name])
    x = vector(matrix.shape[1])
    results = []
    plan = plan_of(matrix, Policy(format=layout, narrow=False))
    for one in (plan, widened(plan)):
        y = np.full(matrix.shape[0], np.nan)
        SpMatrix(one, "cpu")._product.multiply(x, y, 1.0, 0.0)
        results.append(y.view(np.uint64))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("executor", ["cpu", EXECUTORS[-1]])
def test_products_of_real_matrices_are_within_their_bound(executor, matrices):
    files = sorted([*matrices.glob("*.npz"), *matrices.glob("*.mtx*")])
    assert files, f"{matrices} holds no matrix"
    for path in files:
        matrix = load_matrix(path).astype(float)
        x = vector(matrix.shape[1])
        assert_close(multiply(executor, matrix, x), matrix, x)
