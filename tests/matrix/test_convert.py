"""A matrix of SciPy and of coordinates: its entries taken in exactly, or refused in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import dasp
from dasp.matrix import convert
from tests.runtime.test_arrays import REAL_TYPES, one_line

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"]


def to_dense(matrix: Any) -> np.ndarray:
    """The dense matrix that is read, summed here and not by SciPy."""
    (shape, indptr, indices, data), _ = convert.read_sparse(matrix)
    dense = np.zeros(shape, data.dtype)
    np.add.at(dense, (np.repeat(np.arange(shape[0]), np.diff(indptr)), indices), data)
    return dense


@st.composite
def sparse_matrices(draw: st.DrawFn) -> tuple[np.ndarray, Any]:
    shape = draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    name = draw(st.sampled_from(REAL_TYPES))
    dense = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 3))).astype(np.dtype(name))
    return dense, draw(st.sampled_from(FORMATS))


@given(sparse_matrices())
def test_every_format_and_type_is_read_as_it_is(drawn: tuple[np.ndarray, str]) -> None:
    dense, form = drawn
    # SciPy makes no sparse matrix of these types itself, but keeps the array that it is given.
    matrix = sp.coo_array(dense.astype(np.float64)).asformat(form)
    if form in ("csr", "csc", "coo", "bsr", "dia"):
        matrix.data = matrix.data.astype(dense.dtype)
    taken = to_dense(matrix)
    assert taken.dtype in (np.float16, np.float32, np.float64)
    np.testing.assert_array_equal(taken, dense.astype(np.float64))


@pytest.mark.parametrize("index", [">i4", ">i8", "u8", "u4", "i2"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_every_type_of_index_is_read_exactly(form: str, index: str) -> None:
    matrix = sp.random_array((8, 6), density=0.4, random_state=np.random.default_rng(1)).asformat(form)
    want = matrix.toarray()
    for name in ("indptr", "indices", "offsets"):
        if hasattr(matrix, name) and (name != "offsets" or not index.startswith("u")):
            setattr(matrix, name, getattr(matrix, name).astype(index))
    if form == "coo":
        matrix.coords = tuple(axis.astype(index) for axis in matrix.coords)
    np.testing.assert_array_equal(to_dense(matrix), want)


def test_duplicates_explicit_zeros_and_order_are_kept() -> None:
    csr = sp.csr_array((np.array([1.0, 2.0, 0.0]), np.array([2, 2, 0]), np.array([0, 3, 3])), shape=(2, 3))
    taken, order = convert.read_sparse(csr)
    assert [array.tolist() for array in taken[1:]] == [[0, 3, 3], [2, 2, 0], [1, 2, 0]]
    assert np.shares_memory(taken.data, csr.data)
    assert order is None
    coo, order = convert.read_sparse(csr.tocoo())
    assert coo.data.tolist() == [1, 2, 0]
    assert order is None


def test_coordinates_are_sorted_by_row_and_remember_their_order() -> None:
    entries = np.array([1.0, 2.0, 3.0, 4.0]), (np.array([2, 0, 2, 0]), np.array([1, 3, 0, 3]))
    taken, order = convert.read_sparse(sp.coo_array(entries, shape=(3, 4)))
    assert [array.tolist() for array in taken[1:]] == [[0, 2, 2, 4], [3, 3, 1, 0], [2, 4, 1, 3]]
    assert order is not None
    assert order.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("m", [2**40, 2**62])
def test_more_rows_than_memory_holds_are_refused_in_a_line(m: int) -> None:
    entries = np.ones(1), (np.array([m - 1]), np.array([0]))
    for read in (
        lambda: dasp.SpMatrix.from_coo(*entries, (m, 1), device="cpu"),
        lambda: dasp.SpMatrix.from_scipy(sp.coo_array(entries, shape=(m, 1)), device="cpu"),
        lambda: dasp.SpMatrix.from_scipy(sp.coo_array(entries, shape=(m, 1)).tocsc(), device="cpu"),
    ):
        with pytest.raises(ValueError, match=r"indptr of a matrix of shape \(\d+, 1\) would take about"):
            read()
    wide = dasp.SpMatrix.from_coo(entries[0], entries[1][::-1], (1, m), device="cpu")
    with pytest.raises(ValueError, match=r"indptr of a matrix of shape \(\d+, 1\) would take about"):
        wide.T  # noqa: B018


def wrong(form: str, **changes: Any) -> Any:
    """A small matrix of a format whose arrays were changed after SciPy had looked at them."""
    matrix = sp.csr_array(np.arange(1.0, 17).reshape(4, 4)).asformat(form)
    if form == "bsr":
        matrix = matrix.tobsr((2, 2))
    for name, change in changes.items():
        value = change(getattr(matrix, name).copy())
        setattr(matrix, name, value)
    return matrix


def put(place: Any, value: Any) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


COMPRESSED_FAULTS: list[dict[str, Any]] = [
    {"indices": put(-1, 10**9)},
    {"indices": put(0, -(10**9))},
    {"indices": put(0, -1)},
    {"indices": put(0, 7)},
    {"indices": lambda a: a[:1]},
    {"indices": lambda a: a.astype(float)},
    {"indices": lambda a: a.reshape(1, -1)},
    {"indices": lambda a: a.astype(object)},
    {"indices": lambda a: np.ma.masked_array(a, a == a[0])},
    {"indices": lambda a: a.astype("u8") + np.uint64(2**63)},
    {"indptr": put(-1, 10**9)},
    {"indptr": put(0, 1)},
    {"indptr": put(0, -5)},
    {"indptr": put(1, 10**6)},
    {"indptr": put(1, -3)},
    {"indptr": lambda a: a[:-1]},
    {"indptr": lambda a: a[:0]},
    {"indptr": lambda a: a.astype(float)},
    {"data": lambda a: a[:1]},
    {"data": lambda a: a.astype(object)},
    {"data": lambda a: a.astype(str)},
    {"data": lambda a: np.ma.masked_array(a, a == 2)},
    {"data": lambda a: np.stack([a, a])},
    {"data": lambda a: a.ravel()[0]},
]


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("fault", range(len(COMPRESSED_FAULTS)))
def test_compressed_matrices_are_checked_before_they_are_converted(form: str, fault: int) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        convert.read_sparse(wrong(form, **COMPRESSED_FAULTS[fault]))
    assert len(one_line(error)) < 300


@pytest.mark.parametrize(
    ("form", "faults"),
    [
        ("coo", {"data": lambda a: a[:3]}),
        ("coo", {"data": lambda a: np.ma.masked_array(a)}),
        ("coo", {"data": lambda a: a.astype(object)}),
        ("dia", {"offsets": lambda a: a[:2]}),
        ("dia", {"offsets": lambda a: np.zeros_like(a)}),
        ("dia", {"offsets": lambda a: a.astype(float)}),
        ("dia", {"data": lambda a: a[0]}),
        ("dia", {"data": lambda a: a[:2]}),
        ("lil", {"rows": put(1, [9, 10**9])}),
        ("lil", {"rows": put(1, [0])}),
        ("lil", {"rows": put(1, [0.5, 1, 2, 3])}),
        ("lil", {"rows": put(1, 5)}),
        ("lil", {"rows": put(1, [-1, 1, 2, 3])}),
        ("lil", {"rows": lambda a: a[:2]}),
        ("lil", {"data": put(1, [1.0])}),
        ("lil", {"data": put(1, [1.0, "x", 2.0, 3.0])}),
        ("lil", {"data": lambda a: a[:2]}),
        ("dok", {"_dict": lambda d: {**d, (9, 10**9): 1.0}}),
        ("dok", {"_dict": lambda d: {**d, (-1, 0): 1.0}}),
        ("dok", {"_dict": lambda d: {**d, (0.5, 0): 1.0}}),
        ("dok", {"_dict": lambda d: {**d, (0,): 1.0}}),
        ("dok", {"_dict": lambda d: {**d, "key": 1.0}}),
        ("dok", {"_dict": lambda d: {**d, (0, 0): "word"}}),
    ],
)
def test_other_formats_are_checked_before_they_are_converted(form: str, faults: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        convert.read_sparse(wrong(form, **faults))
    assert len(one_line(error)) < 300


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("value", [-1, 4, 10**9, -(10**9)])
def test_coordinates_lie_within_the_shape(axis: int, value: int) -> None:
    matrix = wrong("coo")
    matrix.coords[axis][3] = value
    with pytest.raises(ValueError, match="holds"):
        convert.read_sparse(matrix)


def test_diagonals_outside_the_matrix_hold_nothing() -> None:
    matrix = wrong("dia")
    want = matrix.toarray()
    want[np.eye(4, k=matrix.offsets[0]) > 0] = 0
    for far in (10**9, -(10**9), 4, -4):
        matrix.offsets = np.array([far, *matrix.offsets[1:]])
        np.testing.assert_array_equal(to_dense(matrix), want)


@pytest.mark.parametrize("kind", [sp.csc_array, sp.bsr_array, sp.dia_array, sp.csc_matrix])
def test_a_subclass_with_a_constructor_of_its_own_is_converted(kind: Any) -> None:
    class Named(kind):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            super().__init__(kind(np.eye(4)))
            self.name = name

    np.testing.assert_array_equal(to_dense(Named("mass")), np.eye(4))


def test_a_matrix_has_two_dimensions_and_a_known_format() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        convert.read_sparse(sp.coo_array([1.0, 2.0]))
    odd = SimpleNamespace(ndim=2, shape=(1, 1), format="xyz")
    with pytest.raises(TypeError, match="'xyz'"):
        convert.read_sparse(odd)
