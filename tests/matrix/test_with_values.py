"""Other values for a pattern: the order of entries, codings, and matrices whose values change in place."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array, random_array

import dasp
from dasp import Policy, SpMatrix
from dasp.formats.plan import arrays_of
from dasp.formats.sell.pattern import Coding
from tests.support.gallery import GALLERY, matrices
from tests.support.reference import assert_same_entries, entries_of

FORMATS = ["sell", "dasp"]


def numbered(matrix: csr_array) -> csr_array:
    """The matrix with 1, 2, 3, ... as values, in the order of its entries."""
    return csr_array((1.0 + np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", GALLERY)
def test_every_value_finds_its_entry(name, layout):
    matrix = entries_of(GALLERY[name])
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device="cpu")
    want = numbered(matrix)
    B = A.with_values(want.data)
    assert_same_entries(B.to_scipy(), want)
    assert_same_entries(A.to_scipy(), matrix)
    assert B.plan.pattern is A.plan.pattern
    C = B.with_values(matrix.data)
    assert_same_entries(C.to_scipy(), matrix)


@pytest.mark.slow
@given(matrices(), st.sampled_from(FORMATS), st.randoms(use_true_random=False))
def test_any_order_of_coordinates_is_kept(matrix, layout, random):
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    turn = np.array(random.sample(range(matrix.nnz), matrix.nnz), int)
    coords = rows[turn], matrix.indices[turn]
    data = 1.0 + np.arange(matrix.nnz)
    A = SpMatrix.from_coo(matrix.data[turn], coords, matrix.shape, policy=Policy(format=layout), device="cpu")
    want = entries_of(coo_array((data, coords), shape=matrix.shape))
    assert_same_entries(A.with_values(data).to_scipy(), want)
    again = pickle.loads(pickle.dumps(A))
    assert_same_entries(again.with_values(data).to_scipy(), want)


@pytest.mark.parametrize("form", ["csc", "bsr", "dia", "lil"])
def test_values_of_other_formats_come_row_by_row(form):
    matrix = random_array((6, 8), density=0.4, random_state=np.random.default_rng(3), format="csr")
    brought = matrix.tobsr((2, 2)) if form == "bsr" else matrix.asformat(form)
    csr = brought.tocsr()
    csr.data = np.arange(1.0, csr.nnz + 1)
    A = SpMatrix.from_scipy(brought, device="cpu").with_values(csr.data)
    np.testing.assert_array_equal(A.toarray(), csr.toarray())


def test_products_have_the_bits_of_a_matrix_planned_with_the_values():
    matrix = dasp.models.generate("rmat:9")
    rng = np.random.default_rng(0)
    A = SpMatrix.from_scipy(matrix, policy=Policy(narrow=False), device="cpu")
    data, x = rng.standard_normal(matrix.nnz), rng.standard_normal(matrix.shape[1])
    other = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    planned = SpMatrix.from_scipy(other, policy=Policy(narrow=False), device="cpu")
    np.testing.assert_array_equal(A.with_values(data) @ x, planned @ x)


VALUES = {
    Coding.PLAIN: lambda rng, n: rng.standard_normal(n),
    Coding.SINGLE: lambda rng, n: rng.standard_normal(n).astype(np.float32),
    Coding.BYTE: lambda rng, n: rng.integers(-128, 128, n),
    Coding.DICTIONARY: lambda rng, n: rng.integers(0, 40, n) / 3,
    Coding.EQUAL: lambda rng, n: np.full(n, 0.1),
}


ALSO = {
    Coding.SINGLE: (Coding.BYTE,),
    Coding.DICTIONARY: (Coding.EQUAL,),
}
"""Values of which other codings each holds, beside its own and what holds any."""


@pytest.mark.parametrize("after", VALUES)
@pytest.mark.parametrize("before", VALUES)
def test_values_are_coded_anew_and_fit_in_place_or_leave_it_as_it_was(before, after):
    matrix, rng = dasp.models.generate("spikes:300:2:290"), np.random.default_rng(1)
    matrix.data = VALUES[before](rng, matrix.nnz).astype(float)
    A = SpMatrix.from_scipy(matrix, device="cpu")
    assert A.plan.values.coding is before
    data = VALUES[after](rng, matrix.nnz).astype(float)
    want = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    B = A.with_values(data)
    assert B.plan.values.coding is after
    assert_same_entries(B.to_scipy(), want)

    arrays = list(arrays_of(A.plan))
    old = [array.copy() for array in arrays]
    if before in (after, Coding.PLAIN) or after in ALSO.get(before, ()):
        assert A.with_values(data, out=A) is A
        assert_same_entries(A.to_scipy(), want)
    else:
        with pytest.raises(
            ValueError, match=r"out stores its values as \w+, which does not hold the new ones"
        ):
            A.with_values(data, out=A)
        for now, then in zip(arrays, old, strict=True):
            np.testing.assert_array_equal(now, then)
    for array, now in zip(arrays, arrays_of(A.plan), strict=True):
        assert array is now  # in place, and read-only as before
        assert not array.flags.writeable


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("coding", [Coding.EQUAL, Coding.DICTIONARY])
def test_products_follow_a_table_that_is_written_in_place(coding, dtype):
    """On a CPU that of half precisions is a copy in float32."""
    matrix, rng = dasp.models.generate("rmat:6"), np.random.default_rng(2)
    matrix.data = VALUES[coding](rng, matrix.nnz)
    A = SpMatrix.from_scipy(matrix, device="cpu").astype(dtype)
    assert A.plan.values.coding is coding
    x = rng.standard_normal(A.shape[1]).astype(np.float32)
    want = -(A @ x)
    assert A.with_values(-matrix.data.astype(dtype), out=A) is A
    np.testing.assert_array_equal(A @ x, want)


@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_a_matrix_out_of_a_pickle_takes_values_in_place(layout):
    """Its arrays lie in the memory of the pickle, which nobody may write."""
    A = SpMatrix([[0.5, 2.0], [3.0, 4.0]], "cpu", policy=Policy(format=layout))
    B = pickle.loads(pickle.dumps(A, protocol=5))
    assert B.T is not B
    assert B.with_values([5.0, 6.0, 7.0, 8.5], out=B) is B
    np.testing.assert_array_equal(B @ np.ones(2), [11.0, 15.5])
    np.testing.assert_array_equal(B.T @ np.ones(2), [12.0, 14.5])
    np.testing.assert_array_equal(A @ np.ones(2), [2.5, 7.0])


def test_a_dictionary_in_place_may_have_other_values_but_no_more():
    values = np.arange(300) % 7 / 3
    matrix = csr_array((values, np.zeros(300, int), np.arange(301)), shape=(300, 1))
    A = SpMatrix.from_scipy(matrix, device="cpu")
    A.with_values(values % 2 + 0.25, out=A)
    np.testing.assert_array_equal(A @ np.ones(1), values % 2 + 0.25)
    with pytest.raises(ValueError, match="DICTIONARY"):
        A.with_values(np.arange(300) % 8 / 3, out=A)


@pytest.mark.parametrize("layout", FORMATS)
def test_another_type_makes_another_matrix(layout):
    matrix = dasp.models.generate("rmat:7")
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device="cpu")
    B = A.with_values(matrix.data.astype(np.float32))
    assert (A.dtype, B.dtype) == (np.float64, np.float32)
    assert_same_entries(B.to_scipy(), matrix.astype(np.float32))
    with pytest.raises(TypeError, match="out has dtype float64 and data float32"):
        A.with_values(matrix.data.astype(np.float32), out=A)


def test_what_is_wrong_is_named():
    matrix = dasp.models.generate("rmat:6")
    A, B = (SpMatrix.from_scipy(matrix, device="cpu") for _ in range(2))
    with pytest.raises(
        ValueError, match=f"data has 3 values; A has {matrix.nnz} entries; as many are needed"
    ):
        A.with_values(np.ones(3))
    with pytest.raises(ValueError, match="out has another pattern"):
        A.with_values(matrix.data, out=B)
    with pytest.raises(TypeError, match="out is an ndarray; an SpMatrix is needed"):
        A.with_values(matrix.data, out=matrix.data)
    with pytest.raises(TypeError, match="dtype object"):
        A.with_values(matrix.data.astype(object))


def test_what_is_kept_for_values_is_counted():
    rows, columns = np.array([2, 0, 1, 0]), np.array([0, 1, 2, 0])
    A = SpMatrix.from_coo(np.arange(4.0), (rows, columns), (3, 3), device="cpu")
    before = A.nbytes
    assert [line.split()[0] for line in repr(A).splitlines()[2:]] == ["slices", "order"]
    A.with_values(np.ones(4))
    assert A.nbytes == before + 4 * 4
    lines = [line.split() for line in repr(A).splitlines()[2:]]
    assert [line[0] for line in lines] == ["slices", "order", "slots"]
    assert sum(int(line[-1]) for line in lines) == A.nbytes
    B = SpMatrix.from_scipy(A.to_scipy(), device="cpu")
    before = B.nbytes
    B.with_values(np.ones(4))
    assert B.nbytes == before + 8 * 3 + 40  # of three rows, and of one slice


def test_the_order_is_kept_in_files(tmp_path):
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(0, 30, 200), rng.integers(0, 40, 200)
    A = SpMatrix.from_coo(rng.standard_normal(200), (rows, columns), (30, 40), device="cpu")
    assert A.plan.order is not None
    dasp.save_plan(tmp_path / "plan", A.plan)
    B = SpMatrix(dasp.load_plan(tmp_path / "plan"), "cpu")
    data = rng.standard_normal(200)
    assert_same_entries(B.with_values(data).to_scipy(), A.with_values(data).to_scipy())


@pytest.mark.cuda
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", GALLERY)
def test_on_a_gpu_every_value_finds_its_entry(name, layout):
    import cupy

    matrix = entries_of(GALLERY[name])
    A = SpMatrix.from_scipy(matrix, policy=Policy(format=layout), device="cuda")
    want = numbered(matrix)
    B = A.with_values(cupy.asarray(want.data))
    assert_same_entries(B.to_scipy(), want)
    assert_same_entries(A.to_scipy(), matrix)


@pytest.mark.cuda
@pytest.mark.parametrize("each", [100, 200, 256])
def test_on_a_gpu_blocks_may_each_see_few_values_and_all_of_them_many(each):
    """More than the table of distinct values has room for, and all blocks come there at a time."""
    import cupy

    numbers, rng = np.arange(132 * 4096), np.random.default_rng(1)
    many = numbers // 4096 * 256 + numbers % each + 0.1
    few = rng.choice(rng.standard_normal(200), len(numbers))
    columns, starts = numbers % 1000, np.arange(0, len(numbers) + 1, 8)
    matrix = csr_array((few, columns, starts), shape=(len(numbers) // 8, 1000))
    A = SpMatrix.from_scipy(matrix, device="cuda")
    with pytest.raises(ValueError, match="DICTIONARY"):
        A.with_values(cupy.asarray(many), out=A)
    assert_same_entries(A.to_scipy(), matrix)
    assert A.with_values(cupy.asarray(few[::-1].copy()), out=A) is A
    matrix.data = few[::-1].copy()
    assert_same_entries(A.to_scipy(), matrix)
    matrix.data = many
    assert SpMatrix.from_scipy(matrix, device="cuda").plan.values.coding is Coding.PLAIN


@pytest.mark.cuda
@pytest.mark.parametrize("before", VALUES)
def test_on_a_gpu_values_fit_in_place_or_leave_it_as_it_was(before):
    import cupy

    matrix, rng = dasp.models.generate("spikes:300:2:290"), np.random.default_rng(1)
    matrix.data = VALUES[before](rng, matrix.nnz).astype(float)
    A = SpMatrix.from_scipy(matrix, device="cuda")
    now = matrix
    for after in (*VALUES, *VALUES):  # a second time with launches that are prepared
        data = VALUES[after](rng, matrix.nnz).astype(float)
        if before in (after, Coding.PLAIN) or after in ALSO.get(before, ()):
            assert A.with_values(cupy.asarray(data), out=A) is A
            now = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
        else:
            with pytest.raises(ValueError, match="does not hold the new ones"):
                A.with_values(cupy.asarray(data), out=A)
        assert_same_entries(A.to_scipy(), now)


@pytest.mark.cuda
@pytest.mark.parametrize("policy", [Policy(narrow=False), Policy.dasp()])
def test_a_captured_product_goes_on_with_new_values(policy):
    """What the capture takes is the graph's: nothing that CuPy's pool gives out later is written to."""
    import cupy

    matrix, rng = dasp.models.generate("poisson2d:60"), np.random.default_rng(0)
    A = SpMatrix.from_scipy(matrix, policy=policy, device="cuda")
    x, y = cupy.asarray(rng.standard_normal(matrix.shape[1])), cupy.empty(matrix.shape[0])
    twice = cupy.asarray(np.repeat(matrix.data, 2))
    data = twice[::2]
    A.with_values(data, out=A)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        A.matvec(x, out=y)
        stream.begin_capture()
        A.with_values(data, out=A)
        A.matvec(x, out=y)
        graph = stream.end_capture()
        others = [cupy.full(2**k, 7.0) for k in range(3, 18) for _ in range(3)]
    for _ in range(2):
        values = rng.standard_normal(matrix.nnz)
        twice.set(np.repeat(values, 2))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        fresh = csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
        planned = SpMatrix.from_scipy(fresh, policy=policy, device="cuda")
        cupy.testing.assert_array_equal(y, planned @ x)
    assert all(bool((other == 7).all()) for other in others)


@pytest.mark.cuda
@pytest.mark.parametrize("spec", ["poisson2d:20", "poisson2d:500"])
def test_coded_values_are_not_written_in_a_capture_and_that_is_said(spec):
    import cupy

    matrix, stream = dasp.models.generate(spec), cupy.cuda.Stream(non_blocking=True)
    A = SpMatrix.from_scipy(matrix, device="cuda")
    data = cupy.ones(matrix.nnz)
    A.with_values(data, out=A)
    assert A.plan.values.coding != Coding.PLAIN
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match=r"plan the matrix with Policy\(narrow=False\)"):
            A.with_values(data, out=A)
        with contextlib.suppress(RuntimeError):  # CuPy's, where the error has ended the capture
            stream.end_capture()
    values = np.arange(matrix.nnz) % 2 + 1.0
    A.with_values(cupy.asarray(values), out=A)
    now = csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert_same_entries(A.to_scipy(), now)


@pytest.mark.cuda
@pytest.mark.parametrize("columns", [(), (16,)])
@pytest.mark.parametrize("coding", VALUES)
def test_products_right_behind_new_values_have_them(coding, columns):
    """A product may start before the kernel in front of it has ended, and nothing waits in between."""
    import cupy

    matrix, rng = dasp.models.generate("spikes:60000:5:20000"), np.random.default_rng(3)
    matrix.data = np.maximum(VALUES[coding](rng, matrix.nnz), -127).astype(float)
    matrix.data[matrix.data == 0] = 1  # its opposite is no int8
    A = SpMatrix.from_scipy(matrix, device="cuda")
    assert A.plan.values.coding is coding
    given = cupy.asarray(matrix.data), cupy.asarray(-matrix.data)
    x = cupy.asarray(rng.standard_normal((matrix.shape[1], *columns)))
    y = A @ x
    wants = y.copy(), -y
    A.with_values(given[0], out=A)
    cupy.cuda.Device().synchronize()
    wrong = 0
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for turn in range(40):
            A.with_values(given[turn % 2], out=A)
            A.matvec(x, out=y)
            wrong += (y != wants[turn % 2]).any()
        if coding is Coding.PLAIN:
            data = given[0].copy()
            stream.begin_capture()
            A.with_values(data, out=A)
            A.matvec(x, out=y)
            graph = stream.end_capture()
            for turn in range(40):
                cupy.copyto(data, given[turn % 2])
                graph.launch(stream)
                wrong += (y != wants[turn % 2]).any()
        assert int(wrong) == 0
