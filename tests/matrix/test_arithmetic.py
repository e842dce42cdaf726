"""What a SciPy user types: each method against SciPy's, on values whose results are exact or bounded."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import Policy, SpMatrix, formats
from dasp.formats.plan import arrays_of
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.dtypes import real_type
from tests.support.gallery import GALLERY
from tests.support.reference import assert_close, assert_same_entries, entries_of
from tests.support.typed_program import program

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def whole(shape=(30, 20), seed=3):
    """A matrix of small integers with unsorted columns, duplicates and zeros: sums are exact in any order."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, shape[0], 150), rng.integers(0, shape[1], 150)
    return sp.coo_array((rng.integers(-4, 5, 150).astype(float), (rows, columns)), shape=shape)


def planned(matrix, device="cpu", **choices):
    return SpMatrix(matrix, device=device, policy=Policy(**choices) if choices else None)


def here(array):
    return array.get() if hasattr(array, "get") else array


def same(got, want):
    """Equal entries: those of a planned matrix and those of a SciPy matrix."""
    assert isinstance(got, SpMatrix)
    assert_same_entries(got.to_scipy(), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_other_forms_have_the_same_entries_on_the_same_device(device, layout):
    matrix = whole()
    A = planned(matrix, device, format=layout)
    for form in ("csr", "csc", "coo"):
        got = getattr(A, f"to{form}")()
        assert got.format == form
        assert type(got).__module__.partition(".")[0] == ("scipy" if device == "cpu" else "cupyx")
        assert got.nnz == matrix.nnz
        np.testing.assert_array_equal(here(got.toarray()), matrix.toarray())
    np.testing.assert_array_equal(here(A.toarray()), matrix.toarray())
    for k in (0, 1, -3, 19):
        np.testing.assert_array_equal(here(A.diagonal(k)), matrix.diagonal(k))
    assert A.trace() == matrix.trace()
    assert A.trace(2) == matrix.trace(2)
    for axis in (0, 1, -1, -2, None):
        np.testing.assert_array_equal(here(A.sum(axis)), matrix.toarray().sum(axis))


@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_indices_go_out_as_narrow_as_scipy_makes_them(layout):
    for matrix in (whole().tocsr(), sp.csr_array((0, 5)), sp.csr_array((5, 0))):
        A = planned(matrix, format=layout)
        for got in (A.to_scipy(), A.tocsr(), A.T.to_scipy()):
            assert got.indices.dtype == got.indptr.dtype == np.int32
    wide = sp.coo_array(([1.0], ([0], [2**40])), shape=(2, 2**41))
    assert planned(wide).to_scipy().indices.dtype == np.int64


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["sell", "dasp"])
def test_scalars_and_scalings(device, layout):
    matrix = whole()
    A, want = planned(matrix, device, format=layout), entries_of(matrix)
    same(-A, -want)
    same(A * 2, want * 2)
    same(np.float64(0.5) * A, want * 0.5)
    same(A / 4, want / 4)
    same(A.multiply(np.array(3)), want * 3)
    turned = want.copy()
    turned.data = abs(want.data)
    same(abs(A), turned)
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(30), rng.standard_normal(20)
    rows = np.repeat(np.arange(30), np.diff(want.indptr))
    for scale_left, scale_right in ((left, right), (left, None), (None, right), (None, None)):
        scaled = want.copy()
        if scale_left is not None:
            scaled.data = scaled.data * left[rows]
        if scale_right is not None:
            scaled.data = scaled.data * right[want.indices]
        put = (None if each is None else A.asarray(each) for each in (scale_left, scale_right))
        same(A.scaled(*put), scaled)
    same(A, want)
    assert (A * 2).plan.pattern is A.plan.pattern
    data = A.asarray(rng.standard_normal(A.nnz))
    same((A * 2).with_values(data), A.with_values(data).to_scipy())


@pytest.mark.parametrize("layout", ["sell", "dasp"])
@pytest.mark.filterwarnings("error")
def test_absolute_values_of_complex_numbers_are_real(layout):
    matrix = sp.csr_array(whole().toarray() * (1 + 2j))
    for narrow in (True, False) if layout == "sell" else (True,):
        A = abs(planned(matrix, format=layout, narrow=narrow))
        assert A.dtype == np.float64
        np.testing.assert_array_equal(A.to_scipy().toarray(), abs(matrix).toarray())


VALUES = {
    "equal": lambda rng, n: np.full(n, 1.5),
    "bytes": lambda rng, n: rng.choice([-128, -3, 1, 127], n),
    "bytes and zeros": lambda rng, n: rng.integers(-3, 4, n),
    "few": lambda rng, n: rng.choice([0.1, -0.0, 0.0, np.inf, np.nan, -7e4], n),
    "singles": lambda rng, n: rng.standard_normal(n).astype(np.float32) * np.float32(1e-39),
    "any": lambda rng, n: np.where(
        np.arange(n) % 300 < 3, [-0.0, 0.0, -np.inf][n % 3], rng.standard_normal(n)
    ),
    "complex singles": lambda rng, n: rng.standard_normal(2 * n).astype(np.float32).view(np.complex64),
}
FUNCTIONS = {
    "-A": lambda A: -A,
    "abs": abs,
    "A * 2": lambda A: A * 2.0,
    "A * -0.1": lambda A: A * -0.1,
    "A * 0": lambda A: A * 0.0,
    "A * inf": lambda A: A * np.inf,
    "A / 3": lambda A: A / 3.0,
    "A / 0": lambda A: A / 0.0,
    "A * 1j": lambda A: A * 1j,
    "A * float64": lambda A: A * np.float64(0.3),
}


def by_numpy(function, values):
    """What a function makes of values, of bfloat16 in float32."""
    if values.dtype != "bfloat16":
        return function(values)
    found = function(values.astype(np.float32))
    return found.astype(values.dtype) if found.dtype == np.float32 else found


def assert_same_numbers(got, want, exactly, rounded_in=None):
    """Equal numbers of equal signs, NaN apart, of which each machine has its own; or equal up to rounding."""
    got, want = (here(each) for each in (got, want))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if exactly:
        parts = [each.view(real_type(each.dtype)).astype(np.float64) for each in (got, want)]
        np.testing.assert_array_equal(*parts)
        numbers = ~np.isnan(parts[0])
        np.testing.assert_array_equal(*(np.signbit(part)[numbers] for part in parts))
    else:
        eps = np.finfo(real_type(rounded_in or got.dtype)).eps
        size = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, rtol=4 * eps, atol=1000 * eps * size)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("layout", "dtype", "kind"),
    [
        *itertools.product(["sell"], ["float64"], list(VALUES)[:-1]),
        # Types of other precision hold the same codings with other limits.
        *itertools.product(["sell"], ["complex128"], ["few", "any", "complex singles"]),
        *itertools.product(["sell"], ["float32"], ["bytes and zeros", "singles"]),
        *itertools.product(["sell"], ["float16", "bfloat16"], ["bytes and zeros", "few"]),
        ("sell", "complex64", "few"),
        *itertools.product(["dasp"], ["float64", "float16"], ["few"]),  # it has one coding
    ],
)
def test_functions_of_values_are_numpys(layout, dtype, kind, device):
    lengths = np.tile([0, 1, 2, 3, 4, 7, 33, 300], 3)
    indptr = np.append(0, np.cumsum(lengths))
    columns = np.concatenate([np.random.default_rng(k).permutation(310)[:k] for k in lengths])
    data = VALUES[kind](np.random.default_rng(0), indptr[-1]).astype(dtype)
    pattern = sp.csr_array((np.ones(len(data)), columns, indptr), shape=(24, 310))
    x = np.random.default_rng(1).standard_normal(310).astype(dtype if data.dtype.kind == "c" else float)
    if device == "cuda" and kind == "singles" and real_type(data.dtype).name in ("float32", "bfloat16"):
        pytest.skip("a GPU's arithmetic in float32 takes subnormal numbers for zero")
    A = planned(pattern, device, format=layout)
    A = A.with_values(A.asarray(data))
    for name, function in FUNCTIONS.items():
        if device == "cuda" and kind == "complex singles" and name == "A / 0":
            continue  # CuPy has NaN there, NumPy infinity
        want = A.with_values(A.asarray(by_numpy(function, data)))
        got = function(A)
        assert got.dtype == want.dtype, name
        assert got.plan.pattern is A.plan.pattern
        assert got.plan.nbytes <= want.plan.nbytes + 4096  # of a table
        formats.find(layout).check(got.to_device("cpu").plan)
        # A GPU divides complex numbers in its own way, and adds up in an order that may hang on the coding.
        exactly = device == "cpu"
        assert_same_numbers(got._values(), want._values(), exactly or data.dtype.kind != "c")
        if got.dtype == A.dtype:  # products of other types would be compiled for this test alone
            rounded_in = got.dtype if data.dtype.kind == "c" else None
            assert_same_numbers(got @ A.asarray(x), want @ A.asarray(x), exactly, rounded_in)
        mine = [array for array in arrays_of(got.plan.values) if array.size]
        assert not any(np.may_share_memory(here(a), here(b)) for a in mine for b in arrays_of(A.plan.values))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GALLERY)
def test_every_diagonal_has_the_bits_of_scipys(name, device):
    matrix = entries_of(GALLERY[name])
    A = planned(matrix, device)
    m, n = matrix.shape
    for k in (0, 1, -1, 2, n - 1, 1 - m, n, -m, 10**6):
        got, want = here(A.diagonal(k)), matrix.diagonal(k)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got.view(np.uint64), want.view(np.uint64))


def test_the_sum_of_few_entries_in_many_columns():
    wide = sp.coo_array(([1.0, 2.5, -0.5], ([0, 1, 2], [5, 2**33 - 1, 7])), shape=(3, 2**33))
    for matrix in (wide, wide.astype(np.float32)):
        A = planned(matrix)
        assert A.sum() == 3.0
        assert A.sum().dtype == matrix.dtype
        np.testing.assert_array_equal(A.diagonal(5), [1.0, 0.0, -0.5])
        assert A.diagonal(10**30).size == A.diagonal(-(10**30)).size == 0


@pytest.mark.parametrize("name", sorted(GALLERY))
def test_the_sum_of_all_is_that_of_the_rows_sums(name, monkeypatch):
    """A plan is unpacked only where it has fewer entries than columns."""
    matrix = GALLERY[name]
    A = planned(matrix)
    if matrix.shape[1] <= matrix.nnz:
        monkeypatch.setattr(SpMatrix, "_values", None)
    size = abs(matrix.data).sum(dtype=np.longdouble)
    error = abs(A.sum() - matrix.data.sum(dtype=np.longdouble))
    assert error <= (matrix.nnz + sum(matrix.shape)) * np.finfo(A.dtype).eps * size


def test_numpys_sum_takes_axis_dtype_and_out():
    matrix = whole()
    A, out = planned(matrix), np.zeros(20)
    assert np.sum(A) == matrix.sum()
    np.testing.assert_array_equal(np.sum(A, axis=1, dtype=np.float32), matrix.toarray().sum(1))
    assert A.sum(0, out=out) is out
    np.testing.assert_array_equal(out, matrix.toarray().sum(0))
    with pytest.raises(ValueError, match=r"axis is 1\.0; None, 0 or 1 is needed"):
        A.sum(1.0)
    with pytest.raises(TypeError, match=r"k is 1\.5; a whole number is needed"):
        A.diagonal(1.5)


def test_what_would_do_nothing_is_refused():
    A = planned(whole())
    for name in ("data", "indices", "indptr"):
        with pytest.raises(AttributeError, match=rf"A.{name} was assigned; .*A.with_values\(values, out=A\)"):
            setattr(A, name, np.ones(A.nnz))
    for other in (2, 2.5j, np.float32(1), np.ones(20), whole()):
        for compare in (operator.eq, operator.ne):
            with pytest.raises(TypeError, match=r"A was compared with an? .*; use A.tocsr\(\)"):
                compare(A, other)
    assert A == A.T.T
    assert A.copy() != A
    assert A not in (None, "A", A.T)
    assert len({A, A.T, A.T.T}) == 2


def test_types_follow_numpy():
    single = entries_of(whole()).astype(np.float32)
    A = planned(single)
    assert (A * 2.0).dtype == (A / 3).dtype == np.float32
    assert (A * np.float64(2)).dtype == np.float64
    assert (A * np.array(2.0)).dtype == np.float64
    assert (A * True).dtype == (A * 10**30).dtype == np.float32
    same(A * Fraction(1, 2), single * np.float32(0.5))
    assert A.astype(np.float32) is A
    B = A.astype("float64")
    same(B, single.astype(float))
    assert B.plan.pattern is A.plan.pattern
    assert A.conj() is A
    assert A.conjugate() is A


def test_a_copy_has_values_of_its_own():
    matrix = entries_of(whole())
    A = planned(matrix, narrow=False)
    B, C, D = A.copy(), SpMatrix(A, device="cpu"), copy.copy(A)
    data = np.random.default_rng(0).standard_normal(A.nnz)
    A.with_values(data, out=A)
    for other in (B, C, D):
        same(other, matrix)
        assert other.plan.pattern is A.plan.pattern
    B.with_values(data, out=B)
    assert_same_entries(A.to_scipy(), B.to_scipy())


@pytest.mark.parametrize("name", ["duplicates", "0 x n", "n x 0", "all rows empty", "explicit zeros"])
def test_odd_shapes_are_summed_and_scaled(name):
    matrix = entries_of(GALLERY[name])
    A = planned(matrix)
    np.testing.assert_array_equal(A.toarray(), matrix.toarray())
    assert_close(A.sum(0), A.T.to_scipy(), np.ones(matrix.shape[0]))
    assert_close(A.sum(1), matrix, np.ones(matrix.shape[1]))
    same(A * 1.0, matrix)
    same(A.scaled(np.ones(matrix.shape[0]), np.ones(matrix.shape[1])), matrix)
    assert A.trace() == pytest.approx(matrix.trace(), rel=1e-15)


# ---- the constructor -----------------------------------------------------------------------------------


def test_the_constructor_takes_what_scipys_does():
    matrix = whole()
    csr, dense = entries_of(matrix), matrix.toarray()
    for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil"):
        np.testing.assert_array_equal(SpMatrix(sp.coo_array(dense).asformat(form), "cpu").toarray(), dense)
    same(SpMatrix((csr.data, csr.indices, csr.indptr), "cpu", shape=csr.shape), csr)
    same(SpMatrix((matrix.data, matrix.coords), "cpu", shape=matrix.shape), csr)
    same(
        SpMatrix((csr.data, csr.indices, csr.indptr), "cpu"),
        sp.csr_array((csr.data, csr.indices, csr.indptr)),
    )
    same(SpMatrix(([], [], [0, 0, 0]), "cpu"), sp.csr_array((2, 0)))
    same(SpMatrix((matrix.data, np.array(matrix.coords)), "cpu", shape=matrix.shape), csr)
    same(SpMatrix.from_coo(matrix.data, np.array(matrix.coords), matrix.shape, device="cpu"), csr)
    same(SpMatrix(([5.0, 6.0], ([0, 2], [1, 0])), "cpu"), sp.csr_array([[0, 5.0], [0, 0], [6.0, 0]]))
    np.testing.assert_array_equal(SpMatrix(dense, "cpu").toarray(), dense)
    np.testing.assert_array_equal(SpMatrix(dense.tolist(), "cpu").toarray(), dense)
    assert SpMatrix(csr, device="cpu", policy=Policy.dasp()).plan.format == "dasp"
    assert SpMatrix(SpMatrix(csr, "cpu"), "cpu", policy=Policy.dasp()).plan.format == "dasp"
    A = SpMatrix(csr, "cpu")
    assert SpMatrix(A.plan, "cpu").plan is A.plan
    with pytest.raises(TypeError, match="shape is 3; a pair of ints is needed"):
        SpMatrix(csr, "cpu", shape=3)
    for coords in (np.array([0, 1]), np.zeros((3, 2), int), ([0], [1], [2]), None, "ab"):
        with pytest.raises(TypeError, match=r"\(row, col\).* is needed"):
            SpMatrix.from_coo([1.0, 2.0], coords, (3, 3), device="cpu")
        with pytest.raises(TypeError, match=r"\(row, col\).* is needed"):
            SpMatrix(([1.0, 2.0], coords), "cpu")
    for arrays in (([1.0], [0], []), ([1.0], [0], [0]), ([1.0], [-3], [0, 1]), ([1.0], [0], [[0, 1]])):
        with pytest.raises(ValueError, match=r"need|valid|equal"):
            SpMatrix(arrays, "cpu")


class Named(SpMatrix):
    """A class of a user's."""


def test_what_is_made_of_a_matrix_has_its_class():
    A = Named(whole(), "cpu")
    for B in (A.T, -A, A.copy(), A.astype("f4"), pickle.loads(pickle.dumps(A)), copy.deepcopy(A)):
        assert type(B) is Named


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
def test_the_entries_of_a_dense_matrix_keep_all_bits(dtype):
    rng, kind = np.random.default_rng(1), _dtypes.named(dtype)
    tiny = float(np.finfo(np.float16).smallest_subnormal) if kind.itemsize == 2 else 1e-44
    for shape in ((0, 3), (3, 0), (1, 1), (7, 40)):
        drawn = rng.choice([0.0, -0.0, np.nan, np.inf, tiny, 1.0], (2, *shape))
        dense = np.zeros(shape, kind)
        with np.errstate(invalid="ignore"):
            dense[...] = drawn[0] if kind.kind != "c" else drawn[0] + 1j * drawn[1]
        rows, columns = np.nonzero(dense)
        for given in (dense, np.asfortranarray(dense), np.repeat(dense, 2, axis=1)[:, ::2]):
            got = SpMatrix.from_dense(given, device="cpu")
            made = got.to_scipy()
            np.testing.assert_array_equal(made.indptr, np.searchsorted(rows, np.arange(shape[0] + 1)))
            np.testing.assert_array_equal(made.indices, columns)
            want = dense[rows, columns].astype(made.dtype)
            np.testing.assert_array_equal(made.data.view(np.uint8), want.view(np.uint8))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64"])
def test_a_dense_matrix_on_a_gpu_is_planned_as_one_on_the_host(dtype):
    import cupy

    rng = np.random.default_rng(2)
    dense = np.where(rng.random((40, 3000)) < 0.5, rng.standard_normal((40, 3000)), 0).astype(dtype)
    if dtype == "float32":
        dense[3, ::7] = 1e-44
    for A in (SpMatrix(cupy.asarray(dense)), SpMatrix.from_dense(cupy.asarray(dense))):
        assert A.device == "cuda:0"
        B = SpMatrix(dense, "cuda")
        for ours, theirs in zip(arrays_of(A.plan), arrays_of(B.plan), strict=True):
            np.testing.assert_array_equal(ours.view(np.uint8).get(), theirs.view(np.uint8).get())
        for ours, theirs in zip(A.coordinates(), np.nonzero(dense), strict=True):
            np.testing.assert_array_equal(ours.get(), theirs)


@pytest.mark.cuda
def test_the_constructor_takes_what_lies_on_a_gpu():
    import cupy
    import cupyx.scipy.sparse as cusp

    dense = whole().toarray()
    for given in (
        cupy.asarray(dense),
        cusp.csr_matrix(cupy.asarray(dense)),
        cusp.coo_matrix(cupy.asarray(dense)),
    ):
        A = SpMatrix(given)
        assert A.device == "cuda:0"
        np.testing.assert_array_equal(A.toarray().get(), dense)
    B = SpMatrix(A, device="cpu")
    assert B.device == "cpu"
    np.testing.assert_array_equal(B.toarray(), dense)


def test_saved_and_loaded(tmp_path):
    matrix = entries_of(whole())
    A = planned(matrix)
    A.save(tmp_path / "a.npz")
    B = SpMatrix.load(tmp_path / "a.npz", device="cpu")
    same(B, matrix)
    assert B.device == "cpu"
    with pytest.raises(dasp.io.MatrixFileError):
        SpMatrix.load(tmp_path / "b.npz")


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_go_where_the_matrix_is(device):
    A = planned(whole(), device)
    for given in ([1, 2], np.arange(2.0), np.float32(3)):
        got = A.asarray(given, np.float64)
        assert type(got).__module__ == ("numpy" if device == "cpu" else "cupy")
        assert got.dtype == np.float64
        np.testing.assert_array_equal(here(got), given)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(here(A.asarray(torch.arange(3))), [0, 1, 2])


def test_the_table_of_a_notebook():
    A = planned(whole())
    assert A.T.shape == (20, 30)
    table = A._repr_html_()
    assert "<p>SpMatrix 30 x 20, 150 entries, float64, on cpu</p>" in table
    assert table.count("<tr>") == table.count("</tr>") == len(repr(A).splitlines()) - 1
    for line in repr(A).splitlines()[1:]:
        for cell in line.split():
            assert f">{cell}</t" in table


# ---- A + sigma I ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_shift_is_one_more_entry_of_each_row(device):
    matrix = entries_of(whole((30, 30)))
    A = planned(matrix, device)
    S = A.shifted(0.3)
    n, rows = 30, np.repeat(np.arange(30), np.diff(matrix.indptr))
    coords = (np.r_[rows, np.arange(n)], np.r_[matrix.indices, np.arange(n)])
    explicit = entries_of(sp.coo_array((np.r_[matrix.data, np.full(n, 0.3)], coords), shape=(n, n)))
    turned = entries_of(sp.coo_array((np.r_[matrix.data, np.full(n, 0.3)], coords[::-1]), shape=(n, n)))
    x, y = np.random.default_rng(0).standard_normal((2, n))
    given = A.asarray(x)
    before = [array.copy() for array in arrays_of(A.plan)]
    assert_close(here(S @ given), explicit, x)
    out = A.asarray(np.full(n, np.nan))
    assert S.matvec(given, out=out) is out
    assert_close(here(out), explicit, x)
    out = A.asarray(y.copy())
    S.matvec(given, out=out, alpha=-2.0, beta=0.5)
    assert_close(here(out), explicit, x, -2.0, 0.5, y)
    for got in (given @ S, S.T @ given, S.H @ given, S.rmatvec(given), S.as_linear_operator().rmatvec(given)):
        assert_close(here(got), turned, x)
    X = A.asarray(np.stack([x, y], 1))
    for got in (S @ X, S.matmat(X), S.as_linear_operator().matmat(X)):
        assert_close(here(got)[:, 1], explicit, y)
    for now, then in zip(arrays_of(A.plan), before, strict=True):
        np.testing.assert_array_equal(here(now), here(then))
    assert S.T.T.matrix is A


@pytest.mark.parametrize("device", DEVICES)
def test_a_shift_of_halves_is_summed_in_float32(device):
    A = planned(sp.csr_array(np.zeros((3, 3), np.float32)), device).astype("float16")
    x = A.asarray(np.array([1e-3, 2e-3, 0.0], np.float16))
    want = (np.float32(2e5) * here(x)).astype(np.float16)
    np.testing.assert_array_equal(here(A.shifted(2e5) @ x), want)


def test_rows_on_the_left_of_a_shift_may_be_a_list():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    A = SpMatrix([[0.0, 5.0], [6.0, 0.0]], device="cpu")
    np.testing.assert_array_equal(rows @ A.shifted(10.0), rows @ (A.toarray() + 10 * np.eye(2)))
    with pytest.raises(ValueError, match=r"x must have shape \(k, 2\) on the left of A"):
        np.ones((2, 3)) @ A.shifted(1.0)


@pytest.mark.parametrize("layout", ["sell", "dasp"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_added_in_float32(device, dtype, layout):
    A = planned(sp.csr_array(np.ones((1, 1024), np.float32)), device, format=layout).astype(dtype)
    assert (A.sum(), A.sum(1)[0]) == (1024, 1024)
    assert A.sum().dtype == A.dtype
    rows = planned(sp.csr_array(np.full((64, 1), 1 + 2**-6, np.float32)), device, format=layout)
    assert rows.astype(dtype).sum() == 65, "a row's sum is not rounded to a half before it is added"


@pytest.mark.parametrize("device", DEVICES)
def test_solvers_take_a_shifted_matrix(device):
    matrix = dasp.models.generate("poisson2d:15").astype(float)
    A, b = planned(matrix, device), np.random.default_rng(0).standard_normal(225)
    shifted = matrix + 2.0 * sp.eye_array(225)
    for solve in (dasp.solvers.cg, dasp.solvers.minres, dasp.solvers.lsqr):
        x, _ = solve(A.shifted(2.0), A.asarray(b), rtol=1e-10)
        assert np.linalg.norm(shifted @ here(x) - b) <= 1e-8 * np.linalg.norm(b)


def test_a_program_with_types_runs() -> None:
    assert program().converged


def test_names_that_python_offers_are_the_public_ones() -> None:
    assert set(dir(dasp)) == {*dasp.__all__, "__version__"}
    assert all(hasattr(dasp, name) for name in dir(dasp))


def test_rooms_that_the_reference_names_need_no_import_of_their_own() -> None:
    code = "import dasp; dasp.io.MatrixFileError; dasp.interop; assert not hasattr(dasp.interop, 'jax')"
    subprocess.run([sys.executable, "-c", code], check=True)
