"""SpMatrix as a SciPy user meets it: what it takes, what it gives, and what it says when it will not."""

from __future__ import annotations

import copy
import logging
import operator
import os
import pickle
from decimal import Decimal

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

import dasp
from dasp import Policy, SpMatrix
from dasp.formats.plan import arrays_of, with_arrays
from dasp.runtime.cuda import gpus
from tests.conftest import gpu
from tests.support.gallery import GALLERY, from_lengths
from tests.support.planned import Tuned
from tests.support.reference import assert_close, assert_same_entries
from tests.support.threads import products_in_threads

FORMATS = ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"]


@pytest.fixture
def matrix():
    return sp.random_array((50, 40), density=0.2, random_state=np.random.default_rng(7), format="csr")


@pytest.fixture
def planned(matrix):
    return SpMatrix.from_scipy(matrix, device="cpu")


@pytest.fixture
def x():
    return np.random.default_rng(3).standard_normal(40)


def no_gpu() -> bool:
    return not gpu()[0]


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", FORMATS)
def test_any_format_and_flavour(form, kind, matrix, x):
    given = getattr(sp, f"{form}_{kind}")(matrix)
    planned = SpMatrix.from_scipy(given, device="cpu")
    assert_close(planned @ x, matrix, x)
    assert_same_entries(planned.to_scipy(), matrix)


@pytest.mark.parametrize("name", GALLERY)
def test_round_trip(name):
    matrix = GALLERY[name]
    before = copy.deepcopy(matrix)
    planned = SpMatrix.from_scipy(matrix, device="cpu")
    assert_same_entries(planned.to_scipy(), matrix)
    assert (planned.shape, planned.nnz) == (matrix.shape, matrix.nnz)
    for now, then in zip(vars(matrix).values(), vars(before).values(), strict=True):
        if isinstance(then, np.ndarray):
            np.testing.assert_array_equal(now, then, err_msg="the caller's matrix was modified")


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.longdouble, np.float64),
        (bool, np.float64),
        *((kind, np.float64) for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64)),
    ],
)
def test_any_real_dtype(given, stored, x):
    matrix = sp.csr_array((np.arange(40) % 3 * np.ones((30, 40))).astype(given))
    planned = SpMatrix.from_scipy(matrix, device="cpu")
    assert planned.dtype == stored
    assert_close(planned @ x, matrix.astype(stored), x)


def test_other_byte_orders(matrix, x):
    swapped = sp.csr_array(matrix)
    swapped.data = swapped.data.astype(">f8")
    assert_close(SpMatrix.from_scipy(swapped, device="cpu") @ x.astype(">f8"), matrix, x)


def test_coordinates_keep_duplicates_and_zeros():
    data, row, col = [1.0, 2.0, 0.0, 4.0], [1, 1, 0, 1], [2, 2, 0, 2]
    planned = SpMatrix.from_coo(data, (row, col), (3, 3), device="cpu")
    assert planned.nnz == 4
    assert_same_entries(planned.to_scipy(), sp.coo_array((data, (row, col)), shape=(3, 3)))
    np.testing.assert_array_equal(planned @ [1.0, 1.0, 1.0], [0.0, 7.0, 0.0])


def test_dense_matrices_give_their_entries():
    dense = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, np.nan]])
    planned = SpMatrix.from_dense(dense, device="cpu")
    assert planned.nnz == 3
    np.testing.assert_array_equal(planned.to_scipy().toarray(), dense)


def test_attributes_say_what_it_is_and_cannot_be_set(planned, matrix):
    assert (planned.ndim, planned.device, planned.dtype) == (2, "cpu", np.float64)
    plan = planned.plan
    assert plan.values.codes.nbytes < planned.nbytes == sum(array.nbytes for array in arrays_of(plan))
    for name in ("shape", "device"):
        with pytest.raises(AttributeError):
            setattr(planned, name, getattr(planned, name))


def test_a_plan_shows_what_it_is_and_no_arrays(planned):
    of = f"50 x 40, {planned.nnz} entries, float64, as {planned.plan.format}, {planned.plan.nbytes} bytes"
    assert repr(planned.plan) == f"<Plan of {of}>"


def test_the_repr_is_a_table(planned, matrix):
    lines = repr(planned).splitlines()
    assert lines[0] == f"<SpMatrix 50 x 40, {planned.nnz} entries, float64, on cpu>"
    assert lines[1].split() == ["part", "rows", "entries", "slots", "fill", "bytes"]
    table = {cells[0]: cells[1:] for cells in (line.split() for line in lines[2:])}
    assert list(table) == ["slices"]
    tiled = SpMatrix.from_scipy(matrix, policy=Policy.dasp(), device="cpu")
    parts = [line.split() for line in repr(tiled).splitlines()[2:]]
    assert [cells[0] for cells in parts] == ["long", "regular", "irregular", "short", "empty"]
    for rows, of in ((table.items(), planned), ([(cells[0], cells[1:]) for cells in parts], tiled)):
        assert sum(int(cells[1]) for _, cells in rows) == of.nnz
        assert sum(int(cells[4]) for _, cells in rows) == of.nbytes


def test_one_column_and_many(planned, matrix, x):
    assert (planned @ x[:, None]).shape == (50, 1)
    many = np.random.default_rng(0).standard_normal((40, 3))
    for given in (many, np.asfortranarray(many), many[:, ::-1]):
        got = planned @ given
        for k in range(3):
            assert_close(got[:, k], matrix, np.ascontiguousarray(given[:, k]))
    assert (planned @ np.empty((40, 0))).shape == (50, 0)


def test_any_vector_a_scipy_user_passes(planned, matrix, x):
    for given in (x[::-1], np.repeat(x, 2)[::2], x.astype(np.float32), list(x), np.arange(40), x > 0):
        assert_close(planned @ given, matrix, np.asarray(given))
    read_only = x.copy()
    read_only.flags.writeable = False
    assert_close(planned @ read_only, matrix, x)
    assert_close(planned.dot(x), matrix, x)
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(float)
    assert_close(planned @ shifted, matrix, x)


@pytest.mark.parametrize("policy", [Policy(), Policy.dasp()], ids=["sell", "dasp"])
@pytest.mark.parametrize("name", ["lengths shuffled", "17 rows of 5", "one dense row"])
def test_a_matrix_of_read_only_arrays(name, policy, tmp_path, caplog):
    """Such as joblib and memory-mapped files give: nothing is compiled for them, or written into them."""
    matrix = GALLERY[name]
    kept = matrix.copy()
    for part in ("data", "indices", "indptr"):
        np.save(tmp_path / f"{part}.npy", getattr(matrix, part))
        setattr(kept, part, np.load(tmp_path / f"{part}.npy", mmap_mode="r"))
    x, y = np.ones(matrix.shape[1]), np.ones(matrix.shape[0])
    products = []
    for each in (matrix, kept):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "dasp"):
            A = SpMatrix(each, device="cpu", policy=policy)
            found = [A @ x, A.T @ y, A.with_values(each.data) @ x]
            A.with_values(each.data, out=A)
        products.append(np.concatenate([*found, A @ x, A.T @ y]))
    np.testing.assert_array_equal(products[1], products[0])
    assert not [record for record in caplog.records if "compiled" in record.getMessage()]
    np.testing.assert_array_equal(kept.data, matrix.data)


def test_out_alpha_beta(planned, matrix, x):
    y = np.full(50, np.nan)
    assert planned.matvec(x, out=y) is y
    assert_close(y, matrix, x)
    start = np.random.default_rng(1).standard_normal(50)
    y = start.copy()
    planned.matvec(x, out=y, alpha=-2, beta=np.float32(0.5))
    assert_close(y, matrix, x, -2, 0.5, start)
    strided = np.full(100, np.nan)
    planned.matvec(x, out=strided[::2])
    assert_close(strided[::2], matrix, x)
    assert np.isnan(strided[1::2]).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda A, x: A @ np.ones(99), ValueError, r"x has shape \(99,\); A has shape \(50, 40\), so x must"),
        (lambda A, x: A @ np.ones((40, 2, 2)), ValueError, "x has shape"),
        (lambda A, x: A @ 3.0, ValueError, r"x has shape \(\)"),
        (lambda A, x: A.matvec(x, alpha=1j), TypeError, "alpha is 1j and the product has dtype float64"),
        (lambda A, x: A @ x.astype(np.longdouble), TypeError, "x has dtype"),
        (lambda A, x: A @ np.array(["a"] * 40), TypeError, "x has dtype"),
        (lambda A, x: A @ np.array([None] * 40), TypeError, "x has dtype object"),
        (lambda A, x: A @ sp.eye_array(40, format="csr"), TypeError, "x is a sparse csr_array"),
        (lambda A, x: A.matvec(x, beta=1), ValueError, "beta is 1.0 and out is None"),
        (lambda A, x: A.matvec(x, alpha="2"), TypeError, "alpha is a str"),
        (lambda A, x: A.matvec(x, alpha=1j), TypeError, "alpha is 1j"),
        (lambda A, x: A.matvec(x, out=np.ones(49)), ValueError, r"out has shape \(49,\)"),
        (lambda A, x: A.matvec(x, out=np.ones(50, "f")), TypeError, "out has dtype float32"),
        (lambda A, x: A.matvec(x, out=[0.0] * 50), TypeError, "out is a list"),
        (lambda A, x: A.matvec(x, out=np.broadcast_to(0.0, 50)), ValueError, "out is read-only"),
        (lambda A, x: np.ones(49) @ A, ValueError, r"x has shape \(49,\); A has shape \(50, 40\), so x must"),
        (lambda A, x: A.rmatvec(x), ValueError, r"so x must have shape \(50,\) on the left of A"),
        (lambda A, x: A.rmatmat(np.ones((40, 2))), ValueError, r"x must have shape \(50, k\) on the left"),
        (lambda A, x: sp.eye_array(50, format="csr") @ A, (TypeError, ValueError), None),
        (lambda A, x: x * A, TypeError, None),
        (lambda A, x: np.ones((50, 3)) @ A, ValueError, r"x must have shape \(k, 50\) on the left of A"),
        (lambda A, x: np.ones((2, 2, 50)) @ A, ValueError, "x has shape"),
        (lambda A, x: "ab" @ A, TypeError, "x is a str"),
        (lambda A, x: np.dot(np.ones(50), A), TypeError, None),
        (lambda A, x: A.to_device("tpu"), ValueError, "device is 'tpu'"),
        (lambda A, x: A.to_device(0), TypeError, "device is 0"),
        (lambda A, x: A.scaled(right=["a"] * 40), TypeError, "right is a list; an array of numbers"),
        (lambda A, x: SpMatrix(np.ones(3)), ValueError, r"A has shape \(3,\)"),
        (lambda A, x: SpMatrix(([1.0], [0])), TypeError, r"A is a tuple of 2; \(data, \(row, col\)\) or"),
        (lambda A, x: SpMatrix(([1.0], [9], [0, 1]), shape=(1, 3)), ValueError, "indices hold 9 to 9"),
        (
            lambda A, x: SpMatrix(np.eye(3), shape=(4, 4)),
            ValueError,
            r"shape is \(4, 4\); A has shape \(3, 3\)",
        ),
        (lambda A, x: SpMatrix(A.plan, policy=Policy()), TypeError, "policy or shape is given with a plan"),
        (lambda A, x: len(A), TypeError, r"'SpMatrix' has no len"),
        (lambda A, x: bool(A), ValueError, "a matrix has no truth value"),
        (lambda A, x: list(A), TypeError, r"A\[...\] was asked"),
        (lambda A, x: A[0, 1], TypeError, r"A\[...\] was asked"),
        (lambda A, x: operator.setitem(A, (0, 1), 2.0), TypeError, r"= value was asked; .*with_values"),
        (
            lambda A, x: A.indices,
            AttributeError,
            r"'indices'; A.to_scipy\(\).indices is SciPy's",
        ),
        (lambda A, x: A.power(2), AttributeError, r"no attribute 'power'; A.to_scipy\(\).power is SciPy's"),
        (
            lambda A, x: A.getrow(0),
            AttributeError,
            r"; scipy.sparse.csr_matrix\(A.to_scipy\(\)\).getrow is SciPy's",
        ),
        (lambda A, x: A.to("cuda"), AttributeError, "an SpMatrix has no attribute 'to'$"),
        (lambda A, x: SpMatrix("a.mtx"), TypeError, "A is 'a.mtx'; .* dasp.load_matrix"),
        (lambda A, x: A + A, TypeError, "a sum of A and an SpMatrix was asked; .* A.shifted"),
        (lambda A, x: A - 1, TypeError, "a sum of A and an int was asked"),
        (lambda A, x: A**2, TypeError, "unsupported operand"),
        (lambda A, x: A * x, TypeError, "with x an ndarray; .* for the product .* use A @ x"),
        (lambda A, x: A.multiply(A), TypeError, "with x an SpMatrix; a number is needed"),
        (lambda A, x: A / x, TypeError, "A / x was asked with x an ndarray"),
        (lambda A, x: A * "2", TypeError, "with x a str"),
        (lambda A, x: A * np.str_("2"), TypeError, "with x a str_"),
        (lambda A, x: A * Decimal(2), TypeError, "with x a Decimal"),
        (lambda A, x: A * 10**400, ValueError, "with x beyond float64"),
        (lambda A, x: A.with_values(3.0), ValueError, r"data has shape \(\); one dimension is needed"),
        (lambda A, x: A.with_values(A.to_scipy()), TypeError, "data is a sparse csr_array; .* pass its data"),
        (lambda A, x: A @ x[None, :], ValueError, r"so x must have shape \(40, k\); pass x.T"),
        (lambda A, x: A.scaled(left=x), ValueError, r"left has shape \(40,\); .* so \(50,\) is needed"),
        (lambda A, x: A.scaled(right=np.ones((40, 1))), ValueError, r"right has shape \(40, 1\)"),
        (lambda A, x: A.shifted(1.0), ValueError, r"A has shape \(50, 40\); a square matrix is needed"),
        (lambda A, x: A.sum(2), ValueError, "axis is 2; None, 0 or 1 is needed"),
        (lambda A, x: A.sum(np.array([0, 1])), ValueError, r"axis is array\(\[0, 1\]\); None, 0 or 1"),
        (lambda A, x: SpMatrix(A, shape=(4, 4)), ValueError, r"shape is \(4, 4\); A has shape \(50, 40\)"),
        (lambda A, x: A.astype("int32"), TypeError, "dtype is int32; one of float64, "),
        (lambda A, x: A.astype(object()), TypeError, "dtype is <object"),
        (lambda A, x: np.asarray(A), TypeError, "A is an SpMatrix and no array"),
        (lambda A, x: sp.eye_array(100) @ A, TypeError, r"that need the entries take A.to_scipy"),
        (lambda A, x: sp.tril(A), TypeError, r"that need the entries take A.to_scipy"),
        (lambda A, x: A @ A, TypeError, r"x is a sparse SpMatrix; .*A.tocsr\(\) by x.tocsr\(\)"),
        (lambda A, x: A @ A.to_scipy(), TypeError, "x is a sparse csr_array; .*A.tocsr"),
        (lambda A, x: A @ np.ma.masked_array(x), TypeError, "x is a masked array"),
        (lambda A, x: A @ x.astype(object), TypeError, "x has dtype object"),
        (lambda A, x: A.matvec(x, alpha=10**400), ValueError, "alpha is beyond float64"),
        (lambda A, x: A.matvec(x, out=np.asmatrix(x)), TypeError, "out is a matrix"),
        (lambda A, x: A.matvec(x, out=np.ma.zeros(10)), TypeError, "out is a MaskedArray"),
        (
            lambda A, x: SpMatrix.from_coo([1.0], ([0], [1]), (10**13, 3)),
            ValueError,
            r"shape \(10{13}, 3\) would",
        ),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0], [1]), (2**70, 3)), ValueError, "sizes below 2.63"),
        (lambda A, x: SpMatrix.from_scipy(np.eye(3)), TypeError, "A is an ndarray; .* use from_dense"),
        (lambda A, x: SpMatrix.from_scipy(A), TypeError, r"A is an SpMatrix; .* pass A.to_scipy\(\)"),
        (lambda A, x: SpMatrix.from_scipy(sp.coo_array([1.0, 2.0])), ValueError, "A has shape"),
        (lambda A, x: SpMatrix.from_scipy(A.to_scipy(), policy="auto"), TypeError, "policy is a str"),
        (lambda A, x: SpMatrix.from_cupy(A.to_scipy()), TypeError, "a cupyx.scipy.sparse matrix is needed"),
        (lambda A, x: SpMatrix.from_dense(np.ones(3)), ValueError, r"A has shape \(3,\)"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([5], [0]), (3, 3)), ValueError, r"row holds 5; .* 0 to 2 is"),
        (
            lambda A, x: SpMatrix.from_coo([1.0], ([0], [-1]), (3, 3)),
            ValueError,
            "col holds -1; numbers from 0",
        ),
        (lambda A, x: SpMatrix(([1.0], ([-1], [0]))), ValueError, "row holds -1; numbers from 0 are needed"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0], [0]), (0, 3)), ValueError, "0; .* which has no row"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0.5], [1]), (3, 3)), TypeError, "row has dtype float64"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0, 1], [1]), (3, 3)), ValueError, "one length"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0], [1]), (3, -3)), ValueError, "shape is"),
        (lambda A, x: SpMatrix.from_coo([1.0], ([0], [1]), 3), TypeError, "shape is 3"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(planned, x, call, error, words):
    with pytest.raises(error, match=words):
        call(planned, x)


def test_out_that_overlaps_x_is_refused():
    square = SpMatrix.from_scipy(sp.eye_array(10, format="csr"), device="cpu")
    x = np.ones(15)
    with pytest.raises(ValueError, match="out overlaps x"):
        square.matvec(x[:10], out=x[5:])


@pytest.mark.parametrize("broken", ["indices", "negative", "indptr", "start"])
def test_a_broken_csr_is_refused_before_any_work(broken, matrix):
    bad = sp.csr_array(matrix)
    if broken == "indices":
        bad.indices[3] = 40
    elif broken == "negative":
        bad.indices[3] = -1
    elif broken == "indptr":
        bad.indptr[5] = bad.indptr[6] + 1
    else:
        bad.indptr[0] = 1
    with pytest.raises(ValueError, match=r"indices hold|indptr"):
        SpMatrix.from_scipy(bad, device="cpu")


def test_a_csr_with_room_to_spare(matrix, x):
    roomy = sp.csr_array(matrix)
    roomy.data = np.concatenate([roomy.data, [np.nan] * 9])
    roomy.indices = np.concatenate([roomy.indices, np.full(9, 999, roomy.indices.dtype)])
    assert_close(SpMatrix.from_scipy(roomy, device="cpu") @ x, matrix, x)


def test_linear_operator_serves_scipys_solvers():
    A = dasp.models.generate("poisson2d:20").astype(float)
    operator = SpMatrix.from_scipy(A, device="cpu").as_linear_operator()
    assert isinstance(operator, LinearOperator)
    assert (operator.shape, operator.dtype) == (A.shape, np.float64)
    b = np.ones(400)
    solution, failed = cg(operator, b, rtol=1e-10)
    assert not failed
    assert np.linalg.norm(A @ solution - b) <= 1e-9 * np.linalg.norm(b)
    many = np.random.default_rng(0).standard_normal((400, 2))
    for got, x in zip((operator @ many).T, many.T, strict=True):
        assert_close(got, A, x)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda A: pickle.loads(pickle.dumps(A))])
def test_copies_multiply_alike(again, planned, x):
    other = again(planned)
    np.testing.assert_array_equal(other @ x, planned @ x)
    assert repr(other) == repr(planned)


def test_arrays_of_a_pickled_matrix_are_read_only(planned):
    """Compiled code that takes writable arrays is other code: a product would compile anew."""
    other = pickle.loads(pickle.dumps(planned))
    assert not any(array.flags.writeable for array in arrays_of(other.plan))


def test_a_plan_of_mapped_files_multiplies(planned, x, tmp_path):
    """joblib gives its workers the large arrays of an argument as `numpy.memmap`."""

    def map_array(number, array):
        np.save(tmp_path / f"{number}.npy", array)
        return np.load(tmp_path / f"{number}.npy", mmap_mode="r") if array.size else array

    arrays = [map_array(*each) for each in enumerate(arrays_of(planned.plan))]
    other = SpMatrix(with_arrays(planned.plan, iter(arrays)), device="cpu")
    np.testing.assert_array_equal(other @ x, planned @ x)
    np.testing.assert_array_equal(other.T @ (other @ x), planned.T @ (planned @ x))
    assert_same_entries(other.to_scipy(), planned.to_scipy())


def test_several_threads_use_one_matrix():
    # Large enough for worker threads, and with long rows, whose partial sums need memory of their own.
    matrix = from_lengths([5000] * 40 + [30] * 4000 + [3] * 3000 + [0] * 10, 5000)
    planned = SpMatrix.from_scipy(matrix, device="cpu")
    vectors = [np.random.default_rng(k).standard_normal(5000) for k in range(8)]
    for x, results in zip(vectors, products_in_threads(planned, vectors, 20), strict=True):
        for y in results:
            assert_close(y, matrix, x)


def test_a_forked_child_multiplies_too(tmp_path):
    import os

    planned = SpMatrix.from_scipy(from_lengths([30] * 4000, 500), device="cpu")
    x = np.ones(500)
    want = planned @ x
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(planned @ x, want) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_out_that_is_not_plain_is_written_too_or_refused():
    matrix = sp.csr_array(np.arange(1.0, 13.0).reshape(3, 4))
    planned, x = SpMatrix.from_scipy(matrix, device="cpu"), np.arange(4.0)
    want = matrix @ x
    plain, strided = np.full(3, np.nan), np.full(6, np.nan)
    assert planned.matvec(x, out=plain) is plain
    np.testing.assert_array_equal(plain, want)
    np.testing.assert_array_equal(planned.matvec(x, out=strided[::2]), want)
    np.testing.assert_array_equal(strided[::2], want)
    np.testing.assert_array_equal(planned.matvec(x[::-1], out=plain), matrix @ x[::-1])
    square = SpMatrix.from_scipy(sp.csr_array(np.eye(4)), device="cpu")
    for wrong in (x, np.empty(3), np.empty(4, np.float32), np.empty((4, 1)), [0.0] * 4):
        with pytest.raises((TypeError, ValueError)):
            square.matvec(x, out=wrong)


@pytest.mark.parametrize("index", [list, np.uint8, np.uint64, ">i4"])
def test_coordinates_alone_give_the_smallest_shape(index):
    row, col = [2, 0], [0, 3]
    if index is not list:
        row, col = np.array(row).astype(index), np.array(col).astype(index)
    A = SpMatrix(([1.0, 2.0], (row, col)), device="cpu")
    np.testing.assert_array_equal(A.toarray(), [[0, 0, 0, 2], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert SpMatrix(([], ([], [])), device="cpu").shape == (0, 0)
    with pytest.raises(ValueError, match=r"below 2\^63"):
        SpMatrix(([1.0], (np.array([2**63], np.uint64), [0])), device="cpu")


def test_set_num_threads_is_checked_and_kept():
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="threads is"):
            dasp.set_num_threads(wrong)
    dasp.set_num_threads(np.int64(2))
    assert type(dasp.get_num_threads()) is int
    dasp.set_num_threads(3)
    try:
        assert dasp.get_num_threads() == 3
    finally:
        dasp.set_num_threads(None)


def test_threads_follow_the_environment(monkeypatch):
    for requested, threads in (("5", 5), ("many", None), ("0", None)):
        monkeypatch.setenv("OMP_NUM_THREADS", requested)
        dasp.set_num_threads(None)
        assert dasp.get_num_threads() == (threads or len(os.sched_getaffinity(0)))
    monkeypatch.undo()
    dasp.set_num_threads(None)


def test_show_config_says_what_was_found_and_why(capsys):
    dasp.show_config()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["dasp"] == dasp.__version__
    works, reason = gpus.try_gpu()
    assert lines["cuda"] == f"{'works' if works else 'does not work'}: {reason}"
    assert lines["auto"] == ("takes cuda" if works else "takes cpu")


@pytest.mark.skipif("not no_gpu()", reason="a GPU works here")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(planned):
    assert SpMatrix.from_scipy(sp.eye_array(3)).device == "cpu"
    for device in ("cuda", "cuda:0"):
        with pytest.raises(RuntimeError, match=f"device is '{device}'; a working GPU is needed; CuPy"):
            planned.to_device(device)
    assert planned.to_device("auto") is planned


def test_without_cupy_the_reason_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    gpus.try_gpu.cache_clear()
    try:
        works, reason = gpus.try_gpu()
        assert not works
        assert reason == "CuPy is not installed; pip install 'cupy-cuda13x[ctk]' (or cupy-cuda12x)"
        assert SpMatrix.from_scipy(sp.eye_array(3)).device == "cpu"
    finally:
        gpus.try_gpu.cache_clear()


def test_policies_change_the_plan_but_not_the_matrix(matrix, x):
    for policy in (Tuned("dasp", long_row=4), Tuned("dasp", fill=1.0), Policy(format="sell")):
        planned = SpMatrix.from_scipy(matrix, policy=policy, device="cpu")
        assert_same_entries(planned.to_scipy(), matrix)
        assert_close(planned @ x, matrix, x)
