"""A.T and what multiplies by it: right, kept, shared where A is symmetric, and never stale."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import dasp
from dasp import Policy, SpMatrix
from dasp.formats.sell.pattern import Coding
from tests.support.gallery import GALLERY, matrices
from tests.support.reference import assert_close, assert_same_entries, entries_of

FORMATS = ["sell", "dasp"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def flipped(matrix):
    """The transpose with every entry kept: duplicates in their order, explicit zeros."""
    matrix = entries_of(matrix)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.argsort(matrix.indices, kind="stable")
    indptr = np.searchsorted(matrix.indices[order], np.arange(matrix.shape[1] + 1))
    return csr_array((matrix.data[order], rows[order], indptr), shape=matrix.shape[::-1])


def there(array, device):
    if device == "cpu":
        return array
    import cupy

    return cupy.asarray(array)


def here(array):
    return array if isinstance(array, np.ndarray) else array.get()


def symmetric():
    return dasp.models.generate("poisson2d:12").astype(float)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", GALLERY)
def test_products_from_the_left(name, layout, device):
    matrix = entries_of(GALLERY[name])
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device=device)
    want = flipped(matrix)
    assert_same_entries(A.T.to_scipy(), want)
    assert (A.T.shape, A.T.device, A.T.plan.format) == (want.shape, A.device, layout)
    x = np.random.default_rng(1).standard_normal(matrix.shape[0])
    given = there(x, device)
    y = there(np.full(matrix.shape[1], np.nan), device)
    assert A.rmatvec(given, out=y) is y
    assert_close(here(y), want, x)
    for got in (given @ A, A.T @ given, A.H @ given, A.rmatvec(given), A.transpose().matvec(given)):
        np.testing.assert_array_equal(here(got), here(y))


@given(matrices(), st.sampled_from(FORMATS))
def test_the_inner_product_is_the_same_from_both_sides(matrix, layout):
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device="cpu")
    assert A.T.T is A
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal(matrix.shape[1]), rng.standard_normal(matrix.shape[0])
    left, right = np.dot(A @ x, z), np.dot(x, z @ A)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    size = abs(z[rows] * matrix.data * x[matrix.indices]).sum()
    assert abs(left - right) <= 2 * (matrix.nnz + sum(matrix.shape) + 2) * np.finfo(float).eps * size


@pytest.mark.parametrize("count", [3, 128])  # as many vectors as rows: no shape tells X from its transpose
def test_several_vectors_from_the_left(count):
    matrix = dasp.models.generate("rmat:7")
    A, rng = SpMatrix.from_scipy(matrix, device="cpu"), np.random.default_rng(0)
    X = rng.standard_normal((matrix.shape[0], count))
    for x in (X, np.asfortranarray(X), X[:, ::-1]):
        got, turned = A.rmatmat(x), x.T @ A
        assert (got.shape, turned.shape) == ((matrix.shape[1], count), (count, matrix.shape[1]))
        for k in range(count):
            assert_close(got[:, k], flipped(matrix), x[:, k])
            np.testing.assert_array_equal(turned[k], got[:, k])
    x = X[:, 0]
    y = rng.standard_normal(matrix.shape[1])
    got = A.rmatvec(x, out=y.copy(), alpha=-2, beta=0.5)
    assert_close(got, flipped(matrix), x, -2, 0.5, y)
    np.testing.assert_array_equal(list(x) @ A, x @ A)


def test_it_is_planned_once_and_counted():
    A = SpMatrix.from_scipy(dasp.models.generate("rmat:7"), device="cpu")
    before = A.nbytes
    assert "transpose" not in repr(A)
    T = A.T
    assert A.T is T
    assert T.T is A
    assert A.nbytes == before + T.nbytes
    lines = [line.split() for line in repr(A).splitlines()[2:]]
    assert [line[0] for line in lines] == ["slices", "transpose"]
    assert sum(int(line[-1]) for line in lines) == A.nbytes
    assert T.nbytes == sum(int(line.split()[-1]) for line in repr(T).splitlines()[2:])


@pytest.mark.parametrize("choices", [{"format": "dasp", "mma": False}, {"narrow": False}])
def test_what_the_policy_allows_holds_for_the_transpose(choices):
    A = SpMatrix.from_scipy(dasp.models.generate("rmat:7"), policy=Policy(**choices), device="cpu")
    T = pickle.loads(pickle.dumps(A)).T
    kept = T.plan.pattern if "mma" in choices else T.plan.pattern.choice
    assert all(getattr(kept, name) == value for name, value in choices.items() if name != "format")


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_given_back_at_once(device):
    gc.disable()
    try:
        A = SpMatrix.from_scipy(dasp.models.generate("rmat:7"), device=device)
        T, gone = A.T, weakref.ref(A)
        x = there(np.random.default_rng(0).standard_normal(A.shape[1]), device)
        y = here(A @ x)
        del A
        assert gone() is None
        np.testing.assert_array_equal(here(T.T @ x), y)
        assert T.T.T is T
        gone = weakref.ref(T)
        del T
        assert gone() is None
        S = SpMatrix.from_scipy(symmetric(), device=device)
        gone = weakref.ref(S.T)
        del S
        assert gone() is None
    finally:
        gc.enable()


def refused(A, data):
    B = A.with_values(0 * data + 3)
    with contextlib.suppress(ValueError):
        B.with_values(data, out=B)
    gone = weakref.ref(B)
    del B
    assert gone() is None


USES = {
    "a product": lambda A, data: A @ there(np.ones(A.shape[1]), A.device),
    "a product by columns": lambda A, data: A @ there(np.ones((A.shape[1], 9)), A.device),
    "a product from the left": lambda A, data: there(np.ones(A.shape[0]), A.device) @ A,
    "a diagonal": lambda A, data: A.diagonal(),
    "other values": lambda A, data: A.with_values(data),
    "values in place": lambda A, data: A.with_values(data, out=A),
    "values in place of it and of its transpose": lambda A, data: (A.T, A.with_values(data, out=A)),
    "a product behind new values": lambda A, data: (
        A.with_values(data, out=A) @ there(np.ones(A.shape[1]), A.device)
    ),
    "values that do not fit": refused,
    "a scaled matrix": lambda A, data: (A * 2).T,
    "another type": lambda A, data: A.astype(np.float32),
    "a shift": lambda A, data: A.shifted(2.0) @ there(np.ones(A.shape[1]), A.device),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", FORMATS)
def test_a_matrix_that_was_used_is_given_back_at_once(layout, device):
    """Without a search for circles: memory of a GPU is what runs out, and Python does not know of it."""
    matrix = dasp.models.generate("rmat:7").astype(float)
    matrix.data = np.random.default_rng(0).standard_normal(matrix.nnz)
    data = there(2.5 * matrix.data, device)
    SpMatrix.from_scipy(
        matrix, policy=Policy(format=layout), device=device
    )  # what is imported first has circles
    gc.collect()
    gc.disable()
    try:
        for use in USES:
            A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device=device)
            USES[use](A, data)
            gone = weakref.ref(A), weakref.ref(A.plan), weakref.ref(A._product)
            del A
            assert [each() is None for each in gone] == [True] * 3, use
    finally:
        gc.enable()


def test_a_symmetric_matrix_is_its_own_transpose():
    matrix = symmetric()
    A = SpMatrix.from_scipy(matrix, device="cpu")
    before = A.nbytes
    assert A.T is A
    assert A.nbytes == before
    for change in (1.0 + 2**-52, 0.0):
        near = matrix.copy()
        near[0, 1] *= change
        B = SpMatrix.from_scipy(near, device="cpu")
        assert B.T is not B
        assert_same_entries(B.T.to_scipy(), flipped(near))
    zeros = csr_array(([0.0, -0.0], [1, 0], [0, 1, 2]), shape=(2, 2))
    Z = SpMatrix.from_scipy(zeros, device="cpu")
    assert Z.T is not Z


@pytest.mark.slow
@given(matrices(), st.sampled_from(FORMATS), st.randoms(use_true_random=False))
def test_other_values_have_their_own_transpose(matrix, layout, random):
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    turn = np.array(random.sample(range(matrix.nnz), matrix.nnz), int)
    coords = rows[turn], matrix.indices[turn]
    A = SpMatrix.from_coo(matrix.data[turn], coords, matrix.shape, policy=Policy(format=layout), device="cpu")
    if random.random() < 0.5:
        assert A.T.T is A
    data = np.random.default_rng(0).standard_normal(matrix.nnz)
    B = A.with_values(data)
    want = SpMatrix.from_coo(data, coords, matrix.shape, device="cpu").to_scipy()
    assert_same_entries(B.T.to_scipy(), flipped(want))
    assert B.T.T is B
    assert_same_entries(A.T.to_scipy(), flipped(A.to_scipy()))
    assert_same_entries(A.T.with_values(data).to_scipy(), flipped(want))
    assert_same_entries(pickle.loads(pickle.dumps(A.T)).with_values(data).to_scipy(), flipped(want))
    if A.T is not A:
        assert B.T.plan.pattern is A.T.plan.pattern


def test_other_values_of_a_symmetric_matrix():
    A = SpMatrix.from_scipy(symmetric(), device="cpu")
    assert A.T is A
    data = np.random.default_rng(0).standard_normal(A.nnz)
    first, second = A.with_values(data), A.with_values(2 * data)
    assert_same_entries(first.T.to_scipy(), flipped(first.to_scipy()))
    assert_same_entries(second.T.to_scipy(), flipped(second.to_scipy()))
    assert second.T.plan.pattern is first.T.plan.pattern
    assert A.T is A


@pytest.mark.parametrize("layout", FORMATS)
def test_values_written_in_place_reach_the_transpose_and_its_maker(layout):
    matrix, rng = dasp.models.generate("rmat:7"), np.random.default_rng(0)
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device="cpu")
    A = A.with_values(rng.standard_normal(A.nnz))
    T = A.T
    for into in (A, T):
        data = rng.standard_normal(A.nnz)
        assert into.with_values(data, out=into) is into
        assert A.T is T
        assert T.T is A
        want = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
        assert_same_entries(A.to_scipy(), want)
        assert_same_entries(T.to_scipy(), flipped(want))


def written_while_made(monkeypatch, matrix, name, method, known):
    """A matrix with twice its values, written by one thread while another has just made a relative of it."""
    A = SpMatrix.from_scipy(matrix, policy=Policy(narrow=False), device="cpu")
    if known:
        A.with_values(matrix.data, out=A)
    make, read, written = getattr(SpMatrix, method), threading.Event(), threading.Event()

    def slowly(self):
        made = make(self)
        read.set()
        written.wait(0.2)  # which does not come before the relative is known
        return made

    monkeypatch.setattr(SpMatrix, method, slowly)
    maker = threading.Thread(target=lambda: getattr(A, name))
    maker.start()
    assert read.wait(60)
    A.with_values(2 * matrix.data, out=A)
    written.set()
    maker.join()
    return A


@pytest.mark.parametrize("known", [False, True])
def test_values_that_come_while_the_transpose_is_planned_reach_it(monkeypatch, known):
    """Both by the way of a first call, and by that of a pattern whose slots are known."""
    matrix = sp.random_array((60, 50), density=0.1, random_state=np.random.default_rng(0), format="csr")
    A = written_while_made(monkeypatch, matrix, "T", "_make_transpose", known)
    assert_same_entries(A.T.to_scipy(), flipped(2 * matrix))


def test_a_transpose_that_cannot_hold_values_written_in_place_is_let_go():
    matrix, rng = dasp.models.generate("rmat:7"), np.random.default_rng(0)
    A = SpMatrix.from_scipy(matrix, device="cpu").with_values(rng.standard_normal(matrix.nnz))
    A.with_values(np.full(A.nnz, 3.0), out=A)
    T = A.T
    assert (A.plan.values.coding, T.plan.values.coding) == (Coding.PLAIN, Coding.EQUAL)
    threes = A.to_scipy()
    data = rng.standard_normal(A.nnz)
    A.with_values(data, out=A)
    assert A.T is not T
    assert_same_entries(A.T.to_scipy(), flipped(A.to_scipy()))
    assert A.T.T is A
    assert_same_entries(T.to_scipy(), flipped(threes))
    assert_same_entries(T.T.to_scipy(), threes)


def test_a_symmetric_matrix_may_become_another_in_place():
    A = SpMatrix.from_scipy(symmetric(), policy=Policy(narrow=False), device="cpu")
    assert A.T is A
    A.with_values(np.random.default_rng(0).standard_normal(A.nnz), out=A)
    assert A.T is not A
    assert_same_entries(A.T.to_scipy(), flipped(A.to_scipy()))


def test_several_threads_get_one_transpose():
    A = SpMatrix.from_scipy(dasp.models.generate("rmat:10"), device="cpu")
    found, barrier = [], threading.Barrier(6)

    def work():
        barrier.wait()
        found.append(A.T)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(each is A.T for each in found)


def test_half_a_million_columns_with_few_entries():
    matrix = csr_array((np.arange(1.0, 4.0), [499_999, 0, 7], [0, 2, 2, 3]), shape=(3, 500_000))
    A = SpMatrix.from_scipy(matrix, device="cpu")
    x = np.array([1.0, np.nan, 3.0])
    assert_close(x @ A, flipped(matrix), x)


# ---- complex matrices ----------------------------------------------------------------------------------


def complex_matrix(m=37, n=29, seed=4):
    matrix = sp.random_array((m, n), density=0.2, random_state=np.random.default_rng(seed), format="csr")
    return matrix + 1j * sp.random_array(
        (m, n), density=0.1, random_state=np.random.default_rng(seed + 1), format="csr"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_adjoint_is_conjugated_and_the_transpose_is_not(dtype, device):
    matrix = complex_matrix().astype(dtype)
    A, rng = SpMatrix.from_scipy(matrix, device=device), np.random.default_rng(0)
    x = (rng.standard_normal(37) + 1j * rng.standard_normal(37)).astype(dtype)
    given = there(x, device)
    turned = flipped(matrix)
    assert_close(here(given @ A), turned, x)
    assert_close(here(A.T @ given), turned, x)
    for got in (A.H @ given, A.rmatvec(given), A.as_linear_operator().rmatvec(given)):
        assert_close(here(got), turned.conj(), x)
    assert A.H is A.H
    assert A.H.H is A
    assert A.T.T is A
    assert A.H is not A.T
    lines = [line.split() for line in repr(A).splitlines()[2:]]
    assert [line[0] for line in lines][-2:] == ["transpose", "adjoint"]
    assert sum(int(line[-1]) for line in lines) == A.nbytes


def test_complex_values_written_in_place_reach_all_relatives():
    matrix, rng = complex_matrix(), np.random.default_rng(0)
    A = SpMatrix.from_scipy(matrix, policy=Policy(narrow=False), device="cpu")
    T, H = A.T, A.H
    for into, of in ((A, lambda d: d), (T, lambda d: d), (H, np.conj)):
        data = rng.standard_normal(A.nnz) + 1j * rng.standard_normal(A.nnz)
        into.with_values(of(data), out=into)
        want = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
        assert_same_entries(A.to_scipy(), want)
        assert_same_entries(T.to_scipy(), flipped(want))
        assert_same_entries(H.to_scipy(), flipped(want).conj())
        assert (A.T, A.H, H.H) == (T, H, A)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("method", ["_make_transpose", "conj"])
def test_values_that_come_while_the_adjoint_is_made_reach_it(monkeypatch, method, known, symmetric):
    matrix = complex_matrix(20, 20)
    matrix = (matrix + matrix.T).tocsr() if symmetric else matrix
    A = written_while_made(monkeypatch, matrix, "H", method, known)
    assert_same_entries(A.H.to_scipy(), flipped(2 * matrix).conj())
    assert_same_entries(A.T.to_scipy(), flipped(2 * matrix))


def test_a_complex_symmetric_matrix_is_its_own_transpose_but_not_its_adjoint():
    half = complex_matrix(20, 20)
    A = SpMatrix.from_scipy((half + half.T).tocsr(), device="cpu")
    assert A.T is A
    assert A.H is not A
    x = np.ones(20) * (1 - 2j)
    assert_close(A.rmatvec(x), flipped(A.to_scipy()).conj(), x)


@pytest.mark.parametrize("written", ["A", "H"])
def test_a_complex_symmetric_matrix_may_become_another_in_place(written):
    half, rng = complex_matrix(20, 20), np.random.default_rng(0)
    A = SpMatrix.from_scipy((half + half.T).tocsr(), policy=Policy(narrow=False), device="cpu")
    H = A.H
    into = A if written == "A" else H
    into.with_values(rng.standard_normal(A.nnz) + 1j * rng.standard_normal(A.nnz), out=into)
    for each in (A, H):
        assert_same_entries(each.T.to_scipy(), flipped(each.to_scipy()))
        assert_same_entries(each.H.to_scipy(), flipped(each.to_scipy()).conj())
        assert each.H.H is each
