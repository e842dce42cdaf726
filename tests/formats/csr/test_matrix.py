"""Operations on matrices: on the CPU and in the emulator they give what NumPy does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dasp.formats.csr import cpu
from dasp.formats.csr.cuda import CudaOperations, sort
from dasp.formats.csr.matrix import Csr, equal, slice_columns, slice_rows
from tests.support.gallery import matrices
from tests.support.pack_device import PackingDevice

pytestmark = pytest.mark.simt


def csr_of(matrix: csr_array, kind: type = np.int64) -> Csr:
    return Csr(matrix.shape, matrix.indptr.astype(kind), matrix.indices.astype(kind), matrix.data)


def devices(seed: int | None = None) -> tuple[object, CudaOperations]:
    return cpu, CudaOperations(PackingDevice(seed))


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want, strict=True)


@settings(max_examples=20, deadline=None)
@given(matrix=matrices(), kind=st.sampled_from([np.int32, np.int64]), seed=st.none() | st.integers(0, 99))
def test_columns_are_sorted_stably(matrix, kind, seed):
    csr = csr_of(matrix, kind)
    want = np.lexsort((csr.indices, np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))))
    for on in devices(seed):
        got, order = on.sort_columns(csr)
        assert_same(order, want.astype(np.int32))
        assert_same(got.indices, csr.indices[want])


@pytest.mark.parametrize("length", [1024, 1025, 5000])
def test_long_rows_are_merged(length):
    rng = np.random.default_rng(length)
    lengths = np.array([3, length, 0, length // 2, 40])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    csr = Csr((5, 300), indptr, rng.integers(0, 300, indptr[-1]).astype(np.int32), np.ones(indptr[-1]))
    want = np.lexsort((csr.indices, np.repeat(np.arange(5), lengths)))
    for on in devices(0):
        assert_same(on.sort_columns(csr)[1], want.astype(np.int32))


def test_columns_too_far_apart_for_digits_are_sorted():
    columns = np.array([1 << 40, 3, 1 << 40, 0, 7, 5, 1 << 33])
    csr = Csr((3, (1 << 40) + 1), np.array([0, 4, 4, 7]), columns, np.ones(7))
    got, order = cpu.sort_columns(csr)
    assert_same(order, np.array([3, 1, 0, 2, 5, 4, 6], np.int32))
    assert_same(got.indices, columns[order])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 30_000])
def test_prefix_sums(count, kind):
    numbers = np.random.default_rng(count).integers(0, 9, count).astype(kind)
    want = np.concatenate([[0], np.cumsum(numbers)]).astype(kind)
    for on in devices(0):
        assert_same(on.scan(numbers), want)


@pytest.mark.parametrize(("count", "bits"), [(1, 0), (8192, 6), (8193, 7), (20_000, 31)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_elements_are_sorted_by_their_keys(count, bits, kind):
    keys = np.random.default_rng(count).integers(0, 1 << bits, count).astype(kind)
    order = np.empty(count, np.int32)
    sort(devices(0)[1], keys, bits, order, order.dtype)
    assert_same(order, np.argsort(keys, kind="stable").astype(np.int32))


@settings(max_examples=20, deadline=None)
@given(matrix=matrices(), data=st.data())
def test_rows_and_columns_are_sliced(matrix, data):
    m, n = matrix.shape
    rows, columns = (sorted(data.draw(st.tuples(*2 * [st.integers(0, size)]))) for size in (m, n))
    csr = csr_of(matrix)
    starts = csr.indptr[rows[0] : rows[1] + 1]
    part = slice(starts[0], starts[-1])
    got = slice_rows(csr, *rows)
    assert equal(got, Csr((rows[1] - rows[0], n), starts - starts[0], csr.indices[part], csr.data[part]))
    kept = (csr.indices >= columns[0]) & (csr.indices < columns[1])
    lengths = [kept[a:b].sum() for a, b in zip(csr.indptr, csr.indptr[1:], strict=False)]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    want = Csr((m, columns[1] - columns[0]), indptr, csr.indices[kept] - columns[0], csr.data[kept])
    for on in devices():
        assert equal(slice_columns(on, csr, *columns), want)


def test_equal_compares_bits():
    csr = Csr((2, 2), np.array([0, 1, 2]), np.array([0, 1]), np.array([0.0, 1.0]))
    assert equal(csr, csr._replace(data=csr.data.copy()))
    assert not equal(csr, csr._replace(data=np.array([-0.0, 1.0])))
    assert not equal(csr, csr._replace(indices=np.array([0, 0])))
    assert not equal(csr, csr._replace(indptr=np.array([0, 2, 2])))
    assert not equal(csr, csr._replace(shape=(2, 3)))
