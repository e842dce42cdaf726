"""What a caller may pass as an array: taken in exactly, or refused in one line before any work."""

from __future__ import annotations

import itertools
import sys
import types
import warnings
import weakref
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes

REAL_TYPES = ["f2", "f4", "f8", "g", ">f4", ">f8", ">f2", "?", "i1", "u1", ">i2", "u4", "i8", ">u8"]


class OnGpu:
    """Stands for an array of a library that keeps it on a GPU."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class Unwilling:
    """Stands for an object that refuses to become an array, as a tensor that records gradients."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("call\ndetach first")


def matrix_of(x: Any) -> np.ndarray:
    """A numpy.matrix, without NumPy's advice against it."""
    with warnings.catch_warnings(action="ignore"):
        return np.asmatrix(x)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


# Whose array


def test_libraries_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class CupyArray:
        def get(self) -> np.ndarray:
            return np.arange(3)

    cupy = types.ModuleType("cupy")
    cupy.ndarray = CupyArray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert _arrays.is_array(CupyArray())
    assert _arrays.namespace(CupyArray()) is cupy
    assert _arrays.to_host(CupyArray()).tolist() == [0, 1, 2]
    assert _arrays.operand("a", passed := CupyArray()) is passed
    for array in (np.zeros(2), np.rec.array([1.0]), np.ma.zeros(2)):
        assert _arrays.is_array(array)
        assert _arrays.namespace(array) is np
    assert not _arrays.is_array([1.0])
    monkeypatch.delitem(sys.modules, "cupy")
    assert not _arrays.is_array(CupyArray())


# Taken in


@given(
    array=arrays.arrays(
        st.sampled_from([np.dtype(name) for name in [*REAL_TYPES, "c8", ">c16"]]),
        arrays.array_shapes(max_dims=3, max_side=4),
    )
)
def test_numbers_are_taken_bit_for_bit_in_native_order(array: np.ndarray) -> None:
    taken = _arrays.take("x", array)
    assert type(taken) is np.ndarray
    assert taken.dtype.isnative
    assert taken.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(taken, array)
    assert not array.dtype.isnative or np.shares_memory(taken, array) or not array.size


def test_what_is_plain_already_is_not_copied() -> None:
    x = np.ones((3, 4))[:, ::2]
    assert _arrays.take("x", x) is x
    assert np.shares_memory(_arrays.take("x", matrix_of(x)), x)
    assert type(_arrays.take("x", matrix_of(x))) is np.ndarray
    assert _arrays.take("x", [1, 2.5]).tolist() == [1, 2.5]
    assert _arrays.take("x", 3).shape == ()


NO_NUMBERS: list[tuple[Any, type[Exception], str]] = [
    (np.ma.masked_array([1.0, 2.0], [True, False]), TypeError, "masked"),
    (OnGpu(), TypeError, "GPU"),
    (sp.eye_array(3), TypeError, "sparse"),
    (np.array([1.0, None]), TypeError, "dtype object"),
    (np.array(["1.0"]), TypeError, "dtype <U3"),
    (np.array(["2020-01-01"], "M8[D]"), TypeError, "datetime64"),
    (np.zeros(2, [("a", "f8")]), TypeError, "dtype"),
    ([[1.0, 2.0], [3.0]], ValueError, "list"),
    ({1: 2}, TypeError, "dict"),
    (None, TypeError, "x is None"),
    ("1.0", TypeError, "str"),
    (Unwilling(), TypeError, "call detach first"),
]


@pytest.mark.parametrize(("thing", "kind", "words"), NO_NUMBERS)
def test_what_is_not_made_of_numbers_is_refused(thing: Any, kind: type[Exception], words: str) -> None:
    for function in (_arrays.take, _arrays.values, _arrays.index):
        with pytest.raises(kind) as error:
            function("x", thing)
        assert words in one_line(error)
        assert one_line(error).startswith("x ")


@pytest.mark.parametrize("thing", [[1.0], 2.0, OnGpu(), sp.eye_array(2), np.ma.zeros(3)])
def test_operands_are_arrays_of_numpy_or_cupy(thing: Any) -> None:
    with pytest.raises(TypeError) as error:
        _arrays.operand("a", thing)
    assert "a is a" in one_line(error)


@pytest.mark.parametrize("name", REAL_TYPES)
def test_real_values_keep_a_type_that_products_have(name: str) -> None:
    given = np.array([0, 1, 1], name)
    kept = np.dtype(name).kind == "f" and np.dtype(name).itemsize <= 8
    want = np.dtype(name).newbyteorder("=") if kept else np.float64
    for array in (given, given[::-1], np.frombuffer(b"x" + given.tobytes(), given.dtype, offset=1)):
        taken = _arrays.values("data", array)
        assert taken.dtype == want
        assert taken.dtype.isnative
        assert taken.flags.carray or (taken.flags.c_contiguous and taken.flags.aligned)
        assert taken.tolist() == [float(value) for value in array]


@pytest.mark.parametrize("given", [np.ones(2, object), np.ones((2, 1)), matrix_of([1.0, 2.0]), 1.0])
def test_values_are_a_vector_of_numbers(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        _arrays.values("data", given)
    one_line(error)


@pytest.mark.parametrize(
    "name", ["i1", "u1", ">i2", "u2", "i4", ">i4", "u4", ">u4", "i8", ">i8", "u8", ">u8"]
)
def test_indices_keep_every_number(name: str) -> None:
    limits = np.iinfo(np.dtype(name))
    given = np.array([limits.min, 5, min(limits.max, 2**63 - 1)], name)
    taken = _arrays.index("row", given)
    assert taken.dtype == (np.int32 if np.dtype(name).itemsize < 4 or name.endswith("i4") else np.int64)
    assert taken.tolist() == given.tolist()


def test_empty_lists_are_indices_and_other_kinds_are_not() -> None:
    assert _arrays.index("row", []).dtype == np.int32
    for thing in ([0.5], [1.0], np.zeros(0), [True], [1j], np.zeros((2, 2), int), [2**63], [2**70], 3):
        with pytest.raises((TypeError, ValueError)) as error:
            _arrays.index("row", thing)
        assert one_line(error).startswith("row ")


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400, 3)])
def test_a_scale_that_no_float_holds_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="alpha is beyond float64"):
        _check.scale("alpha", value, np.dtype(float))
    assert _check.scale("beta", Fraction(1, 3), np.dtype(float)) == 1 / 3


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (3, "an int"),
        (1.5, "a float"),
        ("1", "a str"),
        (None, "None"),
        (object(), "an object"),
        (np.ones(2), "an ndarray"),
        (np.uint8(1), "a uint8"),
        (list, "the class list"),
    ],
)
def test_what_a_thing_is_called_has_its_article(thing: Any, words: str) -> None:
    assert _check.kind_of(thing) == words


def test_a_thing_of_a_library_is_called_with_it() -> None:
    assert _check.kind_of(np.ones(2), library=True) == "a numpy.ndarray"
    assert _check.kind_of([1], library=True) == "a list"


# Written to


def test_a_result_is_written_where_each_element_has_its_own_memory() -> None:
    dtype, shape = np.dtype(np.float64), (3, 2)
    for good in (
        np.empty(shape),
        np.empty((2, 3)).T,
        np.empty((9, 8))[::-3, 1:6:4],
        np.empty((3, 2, 5))[:, :, 2],
    ):
        _arrays.check_result(good, shape, dtype)
    read_only = np.empty(shape)
    read_only.flags.writeable = False
    for bad, kind, words in (
        ([[0.0] * 2] * 3, TypeError, "list"),
        (np.ma.zeros(shape), TypeError, "MaskedArray"),
        (matrix_of(np.zeros(shape)), TypeError, "matrix"),
        (np.zeros(shape, ">f8"), TypeError, ">f8"),
        (np.zeros(shape, "f4"), TypeError, "float32"),
        (np.zeros((2, 3)), ValueError, "shape"),
        (read_only, ValueError, "read-only"),
        (np.lib.stride_tricks.as_strided(np.zeros(2), shape, (0, 8)), ValueError, "strides"),
        (np.lib.stride_tricks.as_strided(np.zeros(9), shape, (8, 8)), ValueError, "strides"),
        (np.lib.stride_tricks.as_strided(np.zeros(9), shape, (16, 4)), ValueError, "strides"),
    ):
        with pytest.raises(kind) as error:
            _arrays.check_result(bad, shape, dtype)
        assert words in one_line(error)


@pytest.mark.parametrize("name", sorted(_dtypes.TABLE))
def test_a_read_only_input_is_seen_as_one_that_can_be_written(name: str) -> None:
    array = np.frombuffer(bytes(range(64)), np.uint8).view(_dtypes.TABLE[name].dtype)[1:]
    view = _arrays.as_input(array)
    assert (view.dtype, view.shape, _arrays.address(view)) == (
        array.dtype,
        array.shape,
        _arrays.address(array),
    )
    assert view.flags.writeable
    assert not array.flags.writeable
    bits, shown = array.tobytes(), weakref.ref(array)
    del array
    assert shown() is not None, "the view keeps the memory"
    assert view.tobytes() == bits
    assert _arrays.as_input(view) is view


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([-2, -1, 1, 2])), min_size=1, max_size=3),
    st.permutations(range(3)),
    st.integers(0, 3),
)
def test_sliced_and_transposed_views_do_not_overlap_themselves(
    axes: list[tuple[int, int]], order: list[int], trim: int
) -> None:
    array = np.zeros([size * abs(step) for size, step in axes])
    view = array[tuple(slice(None, None, step) for _, step in axes)][trim:]
    view = view.transpose([axis for axis in order if axis < view.ndim])
    assert not _arrays.overlaps_itself(view)


@given(st.tuples(*[st.integers(1, 4)] * 2), st.tuples(*[st.sampled_from([-24, -8, 0, 4, 8, 16, 24, 32])] * 2))
def test_what_overlaps_itself_is_found(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    view = np.lib.stride_tricks.as_strided(np.zeros(99)[50:], shape, strides)
    starts = sorted(strides[0] * i + strides[1] * j for i in range(shape[0]) for j in range(shape[1]))
    shared = any(b - a < 8 for a, b in itertools.pairwise(starts))
    # Never overlooked; the strides alone may give a false alarm for views that nothing but as_strided makes.
    assert _arrays.overlaps_itself(view) or not shared


def test_columns_of_one_table_do_not_overlap() -> None:
    table = np.zeros((5, 4))
    assert not _arrays.overlap(table[:, 0], table[:, 1])
    assert _arrays.overlap(table[:, 0], table[2])
    assert _arrays.overlap(table, table)
