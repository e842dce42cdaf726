"""Every type of values: what a product's type is, how exact it is, and what is refused."""

from __future__ import annotations

import pickle
import re
from itertools import product as pairs
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from benchmarks.bench import results
from dasp import Policy, SpMatrix, formats
from dasp.formats.cost import H200
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import arrays_of
from dasp.formats.sell.cpu import primitives as cpu
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.formats.sell.pattern import Coding
from dasp.matrix import planning
from dasp.runtime.cpu.operands import store_rounded, widen
from dasp.runtime.dtypes import BFLOAT16, TABLE, bits_type, find_arithmetic, named, real_type, result_type
from tests.formats.sell.test_columns import multiply as by_columns
from tests.support.executors import EXECUTORS, multiply
from tests.support.gallery import GALLERY, MILLION, from_lengths, matrices
from tests.support.pack_device import PackingDevice
from tests.support.planned import Tuned
from tests.support.reference import assert_close, assert_same_entries, entries_of

pytestmark = pytest.mark.simt

TYPES = tuple(TABLE)
NEW = tuple(name for name in TYPES if name not in ("float64", "float32"))

# Each new type by itself, and mixes that take every way through the kernels. Two half precisions meet in
# float32, for which x is converted.
MIXES = [
    *((name, name) for name in NEW),
    ("float16", "bfloat16"),
    ("bfloat16", "complex64"),
    ("complex64", "complex128"),
    ("complex128", "float64"),
]
SHAPES = "one dense row", "every row long", "lengths around every threshold", "explicit zeros", "1 x 1"
DASP = Tuned("dasp", segment=64)


def numbers(name, count, seed=1):
    """Random numbers of a type; products of a hundred stay within float16."""
    rng = np.random.default_rng(seed)
    dtype = named(name)
    parts = rng.standard_normal((count, 2 if dtype.kind == "c" else 1)).astype(real_type(dtype))
    return parts.view(dtype).ravel()


def typed(matrix, name, seed=2):
    """A matrix with this pattern and random values of a type, which SciPy need not know."""
    matrix = entries_of(matrix)
    return sp.csr_array((numbers(name, matrix.nnz, seed), matrix.indices, matrix.indptr), shape=matrix.shape)


every_executor = pytest.mark.parametrize("executor", EXECUTORS)


# ---- types of results --------------------------------------------------------------------------------


def test_results_have_numpys_types():
    for one, other in pairs(TYPES, TYPES):
        if {one, other} == {"float16", "bfloat16"}:
            wanted = np.dtype(np.float32)
        else:
            wanted = np.result_type(named(one), named(other))
        assert result_type(named(one), named(other)) == wanted
        assert find_arithmetic(named(one), named(other)).y == wanted
    for name in ("?", "i1", "u1", "i2", "u2", "i4", "i8", "u8"):
        for one in TYPES:
            if one != "bfloat16":
                assert result_type(named(one), np.dtype(name)) == np.result_type(named(one), np.dtype(name))
        like = np.result_type(np.float16, np.dtype(name))
        assert result_type(BFLOAT16, np.dtype(name)) == (BFLOAT16 if like == np.float16 else like)


def test_no_matrix_is_cast_and_real_numbers_stay_real():
    for one, other in pairs(TYPES, TYPES):
        kinds = find_arithmetic(named(one), named(other))
        assert kinds.value == named(one)
        assert (kinds.x.kind == "c") == (named(other).kind == "c")
        assert kinds.sum.itemsize >= max(4, kinds.y.itemsize)
        assert (kinds.sum.kind == "c") == (kinds.y.kind == "c")


@pytest.mark.parametrize("kind", ["g", "G", "O", "S3", "M8[s]"])
def test_x_of_other_types_is_refused(kind):
    with pytest.raises(TypeError, match="x has dtype"):
        find_arithmetic(named("float64"), np.dtype(kind))


# ---- products ----------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize(("value", "x"), MIXES)
def test_every_mix_is_within_its_bound(executor, value, x):
    lengths = np.concatenate([np.random.default_rng(0).integers(0, 40, 70), [2500, 3, 700]])
    matrix = typed(from_lengths(lengths, 300), value)
    vector = numbers(x, 300, 5)
    got = multiply(executor, matrix, vector)
    assert got.dtype == result_type(named(value), named(x))
    assert_close(got, matrix, vector)
    alpha, beta = (0.3 - 2j, 0.5j) if got.dtype.kind == "c" else (0.3, -1.5)
    y = numbers(got.dtype.name, len(lengths), 6)
    got = multiply(executor, matrix, vector, y=y, alpha=alpha, beta=beta)
    assert_close(got, matrix, vector, alpha, beta, y)


@every_executor
@pytest.mark.parametrize("value", ["bfloat16", "complex128"])
@pytest.mark.parametrize("name", SHAPES)
def test_gallery(executor, value, name):
    matrix = typed(GALLERY[name], value)
    x = numbers(value, matrix.shape[1])
    assert_close(multiply(executor, matrix, x), matrix, x)


@pytest.mark.parametrize("executor", ["cpu", EXECUTORS[-1]])
@pytest.mark.parametrize("value", ["float16", "complex64"])
def test_a_row_of_a_million(executor, value):
    matrix = typed(MILLION, value)
    x = numbers(value, matrix.shape[1])
    assert_close(multiply(executor, matrix, x), matrix, x)


def of_coding(name, kind, count, seed):
    """Values of a type that a coding holds."""
    rng = np.random.default_rng(seed)
    dtype = named(name)
    parts = np.zeros((count, 2 if dtype.kind == "c" else 1), real_type(dtype))
    parts[:, 0] = {
        "equal": np.full(count, 2.5),
        "bytes": rng.integers(-128, 128, count),
        "few": rng.integers(0, 9, count) / 7,
        "singles": rng.standard_normal(count).astype(np.float32),
        "any": rng.standard_normal(count),
    }[kind]
    return parts.view(dtype).ravel()


CODINGS = {
    "equal": dict.fromkeys(TYPES, Coding.EQUAL),
    "bytes": dict.fromkeys(TYPES, Coding.BYTE)
    | dict.fromkeys(("complex64", "complex128"), Coding.DICTIONARY),
    "few": dict.fromkeys(TYPES, Coding.DICTIONARY),
    "singles": dict.fromkeys(TYPES, Coding.PLAIN) | dict.fromkeys(("float64", "complex128"), Coding.SINGLE),
    "any": dict.fromkeys(TYPES, Coding.PLAIN),
}
"""The coding of values of each kind, by the type of the matrix."""

MULTIPLIED = ("bfloat16", "few"), ("complex128", "few"), ("complex128", "singles")
"""Of which a product is made, too."""


@pytest.mark.parametrize("kind", CODINGS)
@pytest.mark.parametrize("value", NEW)
def test_values_are_stored_in_the_fewest_bits_that_hold_them(value, kind):
    pattern = from_lengths(np.random.default_rng(3).integers(0, 40, 60), 200)
    data = of_coding(value, kind, pattern.nnz, 4)
    matrix = sp.csr_array((data, pattern.indices, pattern.indptr), shape=pattern.shape)
    coding = CODINGS[kind][value]
    A = SpMatrix.from_scipy(matrix, device="cpu")
    assert A.plan.values.coding == coding
    indptr, indices, values = formats.find(A.plan.format).unpack(A.plan, cpu)
    assert_same_entries(sp.csr_array((values, indices, indptr)), matrix)
    x = numbers(value, 200)
    for executor in ("cpu", "simt") if (value, kind) in MULTIPLIED else ():
        assert_close(multiply(executor, matrix, x), matrix, x)


def test_parts_that_are_no_positive_zero_are_kept():
    for few, coding in ((1, Coding.DICTIONARY), (300, Coding.SINGLE)):
        parts = np.zeros((300, 2))
        parts[:, 0] = np.arange(300) % few + 1
        parts[17:19, 1] = -0.0, np.nan
        A = SpMatrix.from_dense(np.diag(parts.view(np.complex128).ravel()), device="cpu")
        assert A.plan.values.coding == coding
        data = A.to_scipy().data
        np.testing.assert_array_equal(data.view(np.uint64), parts.ravel().view(np.uint64))


@settings(max_examples=8, deadline=None)
@given(
    matrix=matrices(20),
    name=st.sampled_from(["bfloat16", "complex64", "complex128"]),
    kind=st.sampled_from(list(CODINGS)),
    seed=st.integers(0, 2**32 - 1),
    spoilt=st.sampled_from([None, "nan", "inf", "-0"]),
)
def test_both_devices_make_the_same_plan(matrix, name, kind, seed, spoilt):
    data = of_coding(name, kind, matrix.nnz, seed)
    words = data.view(f"u{real_type(data.dtype).itemsize}")
    if spoilt and len(words):
        bad = {"nan": np.nan, "inf": np.inf, "-0": -0.0}[spoilt]
        data.view(real_type(data.dtype))[seed % len(words)] = bad
        words[seed % len(words)] ^= spoilt == "nan"  # another payload
    csr = Csr(matrix.shape, matrix.indptr, matrix.indices, data)
    plans = [planning.make_plan(csr, Policy(), H200, on) for on in (cpu, CudaPrimitives(PackingDevice()))]
    formats.find(plans[0].format).check(plans[0])
    for one, other in zip(*map(arrays_of, plans), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    for on in (cpu, CudaPrimitives(PackingDevice())):
        indptr, indices, values = formats.find(plans[0].format).unpack(plans[0], on)
        assert_same_entries(
            sp.csr_array((values, indices, indptr), shape=matrix.shape),
            sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape),
        )


@settings(max_examples=15, deadline=None)
@given(matrix=matrices(30), mix=st.sampled_from(MIXES[::3]), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_any_matrix_of_any_mix(matrix, mix, seed, data):
    matrix = typed(matrix, mix[0], seed)
    x = numbers(mix[1], matrix.shape[1], seed + 1)
    executor = data.draw(st.sampled_from(["cpu", "simt"]))
    alpha = data.draw(st.sampled_from([1.0, -2.0, 0.0]))
    policy = Tuned("sell", narrow=data.draw(st.booleans()), steps=data.draw(st.sampled_from([None, 1, 3])))
    got = multiply(executor, matrix, x, policy=policy, alpha=alpha)
    assert_close(got, matrix, x, alpha)


@every_executor
def test_an_infinite_number_of_x_gives_no_nan_by_a_part_that_is_not_there(executor):
    matrix = sp.csr_array(np.array([[2.0, 0.0], [0.0, 3.0]]))
    x = np.array([complex(np.inf, 1.0), 1j])
    np.testing.assert_array_equal(multiply(executor, matrix, x), [complex(np.inf, 2.0), 3j])


@every_executor
def test_a_nan_in_a_part_of_x_reaches_the_rows_that_use_it_alone(executor):
    matrix = typed(from_lengths(np.random.default_rng(3).integers(0, 9, 100), 50), "complex128")
    x = numbers("complex128", 50)
    x[13] = complex(1.0, np.nan)
    uses = np.zeros(100, bool)
    uses[np.repeat(np.arange(100), np.diff(matrix.indptr))[matrix.indices == 13]] = True
    np.testing.assert_array_equal(np.isnan(multiply(executor, matrix, x)), uses)


@every_executor
@pytest.mark.parametrize("kind", ["few", "equal", "single"])
def test_real_values_of_a_complex_matrix_times_a_real_x(executor, kind):
    matrix, rng = from_lengths([0, 1, 5, 33, 40, 2], 50), np.random.default_rng(0)
    n = matrix.nnz
    numbers = {"few": np.arange(n) % 3 / 3, "equal": np.full(n, 0.1)}
    data = numbers.get(kind, rng.standard_normal(n).astype(np.float32))
    whole = sp.csr_array((data.astype(complex), matrix.indices, matrix.indptr), shape=matrix.shape)
    x = rng.standard_normal(50)
    got = multiply(executor, whole, x)
    assert got.dtype == np.complex128
    assert_close(got, whole, x)


def test_half_precision_is_summed_in_float32_and_rounded_once():
    ones = sp.csr_array(np.ones((1, 5000), np.float32))
    for name in ("float16", "bfloat16"):
        A = SpMatrix.from_scipy(ones, device="cpu").astype(name)
        got = A @ np.ones(5000, named(name))
        assert got.dtype == named(name)
        assert got[0] == np.float32(5000).astype(named(name))  # in float16 the sum would stop at 2048
    A = SpMatrix.from_scipy(sp.csr_array(np.full((1, 3), 60000.0, np.float32)), device="cpu").astype(
        "float16"
    )
    with np.errstate(over="ignore"):
        assert np.isinf((A @ np.ones(3, np.float16))[0])
    assert (A @ np.ones(3, np.float32))[0] == 180000


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_widened_exactly_and_rounded_as_numpy_rounds(name):
    every = np.arange(1 << 16, dtype=np.uint16).view(named(name))
    with np.errstate(all="ignore"):
        want = every.astype(np.float32)
    if name == "float16":  # NumPy widens bfloat16
        numbers, got = ~np.isnan(want), widen(every)
        np.testing.assert_array_equal(np.isnan(got), ~numbers)
        np.testing.assert_array_equal(got.view(np.uint32)[numbers], want.view(np.uint32)[numbers])
    bits = want.view(np.uint32)
    middle = np.uint32(1 << (12 if name == "float16" else 15))
    near = [bits, bits + 1, bits - 1, bits | middle, (bits | middle) + 1, (bits | middle) - 1]
    wide = np.concatenate([*near, np.random.default_rng(1).integers(0, 1 << 32, 10**6, np.uint32)])
    wide = wide.view(np.float32)
    rounded = np.empty(len(wide), named(name))
    store_rounded(wide, rounded)
    with np.errstate(all="ignore"):
        want = wide.astype(named(name))
    numbers = ~np.isnan(wide)
    assert np.isnan(rounded[~numbers].astype(np.float32)).all()
    np.testing.assert_array_equal(rounded.view(np.uint16)[numbers], want.view(np.uint16)[numbers])


def test_vectors_of_any_stride_and_matrices_of_columns():
    half = SpMatrix.from_scipy(typed(from_lengths([3, 0, 7, 40], 50), "float16"), device="cpu")
    there = np.zeros((4, 2), np.float16)
    x = numbers("float16", 100)[::2]
    half.matvec(x, out=there[:, 1])
    np.testing.assert_array_equal(there[:, 1], half @ x.copy())
    A = SpMatrix.from_scipy(typed(from_lengths([3, 0, 7, 40], 50), "complex64"), device="cpu")
    X = numbers("complex64", 200).reshape(50, 4)
    whole = np.column_stack([A @ np.ascontiguousarray(X[:, k]) for k in range(4)])
    np.testing.assert_array_equal(A @ X, whole)
    y = np.zeros((4, 2), np.complex64)
    A.matvec(X[::, 2], out=y[:, 1])
    np.testing.assert_array_equal(y[:, 1], whole[:, 2])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_equal_columns_or_rows_may_lie_in_one_place(name, axis):
    A = SpMatrix.from_scipy(typed(from_lengths([3, 0, 7, 40], 50), name), device="cpu")
    one = numbers(name, 3)[None] if axis == 0 else numbers(name, 50)[:, None]
    X = np.broadcast_to(one, (50, 3))
    assert X.strides[axis] == 0
    np.testing.assert_array_equal(A @ X, A @ X.copy())


# ---- the matrix --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_astype_shares_the_pattern(name):
    A = SpMatrix.from_scipy(from_lengths([3, 0, 7, 40], 50), device="cpu")
    B = A.astype(name)
    assert B.dtype == named(name)
    assert (B is A) == (name == "float64")
    assert B.plan.pattern is A.plan.pattern
    want = sp.csr_array(A.to_scipy())
    want.data = want.data.astype(named(name)).astype(B.to_scipy().dtype)
    assert_same_entries(B.to_scipy(), want)


def test_astype_refuses_what_loses_a_part_and_what_is_no_type():
    A = SpMatrix.from_dense(np.eye(2) * 1j, device="cpu")
    with pytest.raises(TypeError, match="A has dtype complex128 and dtype is float64"):
        A.astype(np.float64)
    for given_type in ("int32", np.longdouble, "nothing"):
        with pytest.raises(TypeError, match="float64, float32"):
            A.astype(given_type)


@pytest.mark.parametrize("name", NEW)
def test_every_way_in_keeps_the_type(name):
    data = numbers(name, 3)
    A = SpMatrix.from_coo(data, ([0, 1, 2], [2, 0, 1]), (3, 3), device="cpu")
    assert A.dtype == data.dtype
    dense = np.zeros((3, 3), data.dtype)
    dense[[0, 1, 2], [2, 0, 1]] = data
    B = SpMatrix.from_dense(dense, device="cpu")
    for made in (A, B, pickle.loads(pickle.dumps(A)), A.with_values(data), A.T.T):
        assert made.dtype == data.dtype
        x = numbers(name, 3, 9)
        np.testing.assert_array_equal((made @ x).view(bits_type(x.dtype)), (A @ x).view(bits_type(x.dtype)))
    assert name in repr(A)
    assert A.to_scipy().dtype == (np.float32 if data.dtype.itemsize == 2 else data.dtype)
    np.testing.assert_array_equal(A.to_scipy().toarray(), dense.astype(A.to_scipy().dtype))


@pytest.mark.parametrize("policy", [Policy(narrow=False), DASP], ids=["sell", "dasp"])
@pytest.mark.parametrize("name", NEW)
def test_values_can_be_written_in_place(name, policy):
    matrix = typed(from_lengths([300, 0, 1, 2, 3, 3, 4, 7, 40], 50), name)
    A = SpMatrix.from_scipy(matrix, policy=policy, device="cpu")
    other = numbers(name, A.nnz, 8)
    B = A.with_values(A._values(), out=A)
    assert B is A
    A.with_values(other, out=A)
    np.testing.assert_array_equal(
        A._values().view(bits_type(other.dtype)), other.view(bits_type(other.dtype))
    )
    with pytest.raises(TypeError, match="these must be equal"):
        A.with_values(np.ones(A.nnz), out=A)


def test_the_adjoint_of_a_complex_matrix_is_conjugated():
    matrix = typed(from_lengths([3, 0, 7, 40, 2], 6), "complex128")
    A = SpMatrix.from_scipy(matrix, device="cpu")
    z = numbers("complex128", 5)
    dense = sp.csr_array(matrix).toarray()
    np.testing.assert_allclose(A.H @ z, dense.conj().T @ z)
    np.testing.assert_allclose(A.rmatvec(z), dense.conj().T @ z)
    np.testing.assert_allclose(A.T @ z, dense.T @ z)
    np.testing.assert_allclose(z @ A, z @ dense)
    assert A.H.H is A
    A.with_values(2j * A._values(), out=A)
    np.testing.assert_allclose(A.H @ z, (2j * dense).conj().T @ z)
    np.testing.assert_allclose(A.T @ z, (2j * dense).T @ z)


def test_alpha_and_beta_are_complex_where_the_product_is():
    A = SpMatrix.from_dense(np.eye(2), device="cpu")
    x = np.ones(2)
    with pytest.raises(TypeError, match="alpha is 1j and the product has dtype float64; a real number"):
        A.matvec(x, alpha=1j)
    np.testing.assert_array_equal(A.matvec(x + 0j, alpha=1j), [1j, 1j])
    with pytest.raises(TypeError, match="beta is a str; a number"):
        A.matvec(x + 0j, out=x + 0j, beta="b")


@every_executor
@pytest.mark.parametrize(("value", "x"), [("bfloat16", "complex64"), ("complex128", "complex128")])
def test_types_in_the_format_of_the_paper(executor, value, x):
    """A vector, alpha and beta, and columns with the bits of the products by them."""
    lengths = [700, 3, 129] + [1] * 40 + [3] * 20 + [2] * 19 + [4] * 9 + [0, 0] + [5, 9, 31] * 12 + [40] * 9
    matrix, X = typed(from_lengths(lengths, 300), value), numbers(x, 1500, 5).reshape(300, 5)
    vectors = np.ascontiguousarray(X.T)
    want = np.stack([multiply(executor, matrix, vector, policy=DASP) for vector in vectors], axis=1)
    assert want.dtype == result_type(named(value), named(x))
    assert_close(want[:, 0], matrix, vectors[0])
    alpha, beta = (0.3 - 2j, 0.5j) if want.dtype.kind == "c" else (0.3, -1.5)
    y = numbers(want.dtype.name, len(lengths), 6)
    got = multiply(executor, matrix, vectors[0], policy=DASP, y=y, alpha=alpha, beta=beta)
    assert_close(got, matrix, vectors[0], alpha, beta, y)
    if executor != "simt":  # no kernel takes several columns: they are one product after the other
        assert by_columns(executor, matrix, X, DASP).tobytes() == want.tobytes()
    if named(value).kind != "c" and named(x).kind == "c":
        vector = vectors[0].copy()
        vector[7] = complex(np.inf, 1.0)
        got = multiply(executor, matrix, vector, policy=DASP)
        assert not np.isnan(got.imag).any(), "the infinite real part met an imaginary one that is not there"


@pytest.mark.parametrize("name", NEW)
def test_plans_in_the_format_of_the_paper_keep_every_type(name, tmp_path):
    matrix = typed(from_lengths([300, 0, 1, 2, 3, 3, 4, 7, 40], 50), name)
    A = SpMatrix.from_scipy(matrix, policy=DASP, device="cpu")
    formats.find("dasp").check(A.plan)
    A.save(tmp_path / "A.npz")
    for made in (A, SpMatrix.load(tmp_path / "A.npz", device="cpu"), A.astype(np.complex128), A.T.T):
        want = A._values().astype(made.dtype)
        np.testing.assert_array_equal(
            made._values().view(bits_type(made.dtype)), want.view(bits_type(made.dtype))
        )


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_solvers_take_matrices_in_half_precision(name):
    n = 50
    poisson = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr()  # exact in both
    A = SpMatrix.from_scipy(poisson, device="cpu").astype(name)
    for dtype, tolerance in ((np.float32, 1e-4), (np.float64, 1e-10)):
        b = poisson.astype(dtype) @ np.ones(n, dtype)
        x, stats = dasp.solvers.cg(A, b, rtol=tolerance)
        assert stats.converged
        assert x.dtype == dtype
        assert dasp.solvers.cg(A, b.astype(name))[0].dtype == np.float32
        assert np.linalg.norm(poisson @ x - b) <= 2 * tolerance * np.linalg.norm(b)


def test_bfloat16_is_that_of_ml_dtypes():
    assert BFLOAT16 == np.dtype(ml_dtypes.bfloat16) == np.dtype("bfloat16")


def test_the_page_tells_what_was_measured():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "dtypes.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \((\S+)\) \|$", page, re.M)
    rows = results.read(root / "benchmarks" / "results" / "dtypes_h200.csv")
    assert {name for name, *_ in told} == {row["dtype"] for row in rows}
    for name, count, mean, least, matrix in told:
        mine = [row for row in rows if row["dtype"] == name]
        ratios = np.array([float(row["speedup_best"]) for row in mine])
        assert all(row["verified"] == "yes" for row in mine)
        assert (int(count), float(mean)) == (len(mine), round(float(np.exp(np.log(ratios).mean())), 2))
        assert (float(least), matrix) == (round(float(ratios.min()), 2), mine[int(ratios.argmin())]["matrix"])
