"""Every type on a GPU: products by columns in both orders, adjoints, other types of a matrix, captures."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import SpMatrix
from dasp.formats.sell.cuda import columns
from dasp.runtime.dtypes import bits_type, named, result_type
from tests.matrix.test_dtypes import MIXES, TYPES, numbers, typed
from tests.support.gallery import from_lengths
from tests.support.planned import Tuned
from tests.support.reference import assert_close

pytestmark = pytest.mark.cuda

LENGTHS = [700, 3, 129] + [5] * 40 + [0, 0] + [40] * 9
SPLIT = Tuned("sell", steps=2, mma=False)


def bits(array):
    """A CuPy or NumPy array as the bits of its numbers, on the host."""
    array = np.ascontiguousarray(array if isinstance(array, np.ndarray) else array.get())
    return array.view(bits_type(array.dtype))


def poisoned(cupy, shape, dtype, order="C"):
    """A new array, each of whose bytes says NaN."""
    array = cupy.empty(shape, dtype, order=order)
    cupy.cuda.runtime.memset(array.data.ptr, 0xFF, array.nbytes)
    return array


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(("value", "x"), [(name, name) for name in TYPES[:2]] + MIXES)
def test_columns_have_the_bits_of_the_products_by_each(value, x, order, turned, monkeypatch):
    import cupy

    if order == "C" and turned:
        pytest.skip("rows are not turned")
    monkeypatch.setattr(columns, "pays_to_transpose", lambda *_: turned)
    matrix = typed(from_lengths(LENGTHS, 300), value)
    A = SpMatrix.from_scipy(matrix, policy=SPLIT, device="cuda")
    for k in (5, 16, 33):
        host = numbers(x, 300 * k, k).reshape(300, k)
        given = cupy.array(host, order=order)
        out = poisoned(cupy, (len(LENGTHS), k), result_type(named(value), named(x)), order)
        A.matvec(given, out=out)
        for j in range(k):
            want = A @ cupy.ascontiguousarray(given[:, j])
            np.testing.assert_array_equal(bits(out[:, j].copy()), bits(want))
            if j in (0, k - 1):
                assert_close(want.get(), matrix, np.ascontiguousarray(host[:, j]))


@pytest.mark.parametrize("name", TYPES)
def test_astype_and_the_entries_of_it(name):
    import cupy

    matrix = from_lengths(LENGTHS, 300)
    made = [SpMatrix.from_scipy(matrix, device=device).astype(name) for device in ("cpu", "cuda")]
    np.testing.assert_array_equal(*(bits(A._values()) for A in made))
    x = numbers(name, 300)
    data = matrix.data.astype(named(name))
    wanted = sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert_close((made[1] @ cupy.asarray(x)).get(), wanted, x)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_transposes_and_adjoints_of_complex_matrices(name):
    import cupy

    matrix = typed(from_lengths(LENGTHS, 300), name)
    A = SpMatrix.from_scipy(matrix, device="cuda")
    z = numbers(name, matrix.shape[0], 4)
    adjoint = matrix.T.conj().tocsr()
    assert_close((A.H @ cupy.asarray(z)).get(), adjoint, z)
    assert_close((A.T @ cupy.asarray(z)).get(), matrix.T.tocsr(), z)
    A.with_values(2j * A._values(), out=A)
    matrix.data[:] = 2j * matrix.data
    assert_close((A.H @ cupy.asarray(z)).get(), matrix.T.conj().tocsr(), z)


@pytest.mark.parametrize("k", [None, 1, 6])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", ["float16", "bfloat16", "complex64"])
def test_a_captured_product_of_another_type_replays(name, order, k):
    import cupy

    matrix = typed(from_lengths(LENGTHS, 300), name)
    A = SpMatrix.from_scipy(matrix, policy=SPLIT, device="cuda")
    shape = (300,) if k is None else (300, k)
    count = int(np.prod(shape))
    x = cupy.array(numbers(name, count).reshape(shape), order=order)
    y = poisoned(cupy, (matrix.shape[0], *shape[1:]), x.dtype, order)
    stream = cupy.cuda.Stream(non_blocking=True)
    A.matvec(x, out=y)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        A.matvec(x, out=y)
        graph = stream.end_capture()
    for seed in (7, 8):
        x[...] = cupy.array(numbers(name, count, seed).reshape(shape), order=order)
        want = A @ x
        cupy.cuda.runtime.memset(y.data.ptr, 0xFF, y.nbytes)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(bits(y), bits(want))
