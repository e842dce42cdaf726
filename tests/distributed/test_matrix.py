"""Matrices over ranks: products, transposes, values, and wrong arguments. Ranks are threads here."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp import solvers
from dasp.distributed import Parts, RankError, SpMatrix, agree
from dasp.distributed.launch import find_rank_device
from dasp.distributed.partition import cut_rows
from dasp.distributed.pieces import split
from dasp.formats.csr.matrix import Csr
from dasp.models import generate
from tests.support import gallery, reference
from tests.support.ranks import ThreadCommunicator, assert_within, everywhere, rows_of, run_ranks
from tests.support.systems import numbers

pytestmark = pytest.mark.ranks


SIZES = (1, 2, 3)


def product(matrix: Any, starts: Any, x: Any, cuts: Any = None, **options: Any) -> np.ndarray:
    """The product, put together of what each rank has."""

    def work(comm: Any) -> np.ndarray:
        held = None if cuts is None else int(cuts[comm.rank + 1] - cuts[comm.rank])
        local = rows_of(matrix, starts, comm.rank)
        D = SpMatrix.from_local_rows(local, comm, columns=held, device="cpu")
        assert D.shape == matrix.shape
        assert D.nnz == matrix.nnz
        return D.matvec(x[D.columns.first : D.columns.first + D.columns.count], **options)

    return np.concatenate(run_ranks(len(starts) - 1, work))


@st.composite
def cut(draw: st.DrawFn, m: int) -> np.ndarray:
    """Where ranks' rows begin: any cuts, ranks without rows among them."""
    size = draw(st.sampled_from(SIZES))
    inner = sorted(draw(st.lists(st.integers(0, m), min_size=size - 1, max_size=size - 1)))
    return np.array([0, *inner, m])


@given(st.data())
@settings(max_examples=10)
def test_any_product_is_that_of_one_rank(data: st.DataObject) -> None:
    matrix = data.draw(gallery.matrices(most_rows=40))
    starts, cuts = data.draw(cut(matrix.shape[0])), None
    if data.draw(st.booleans()):
        size = len(starts) - 1
        inner = st.lists(st.integers(0, matrix.shape[1]), min_size=size - 1, max_size=size - 1)
        cuts = np.array([0, *sorted(data.draw(inner)), matrix.shape[1]])
    k = data.draw(st.sampled_from([None, 1, 3]))
    shape = matrix.shape[1] if k is None else (matrix.shape[1], k)
    x = np.random.default_rng(1).standard_normal(shape)
    first = product(matrix, starts, x, cuts)
    assert_within(first, matrix, x)
    assert product(matrix, starts, x, cuts).tobytes() == first.tobytes()


@pytest.mark.parametrize("name", gallery.GALLERY)
def test_the_gallery(name: str) -> None:
    matrix = reference.entries_of(gallery.GALLERY[name])
    x = np.random.default_rng(2).standard_normal(matrix.shape[1])
    starts = cut_rows(matrix.indptr, 3)
    assert_within(product(matrix, starts, x, alpha=-2.5), matrix, x, alpha=-2.5)


def test_types_are_those_of_the_local_matrix() -> None:
    matrix = gallery.from_lengths(np.full(40, 7), 40, dtype=np.float32)
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(3).standard_normal(40).astype(dtype)
        got = product(matrix, [0, 11, 11, 40], x)
        assert got.dtype == dtype
        assert_within(got, matrix, x)


def test_out_alpha_and_beta() -> None:
    matrix, starts = generate("poisson2d:9"), [0, 30, 81]
    x = np.random.default_rng(4).standard_normal(81)
    kept = np.arange(81.0)

    def work(comm: Any) -> Any:
        D = SpMatrix.from_local_rows(rows_of(matrix, starts, comm.rank), comm, device="cpu")
        mine = slice(starts[comm.rank], starts[comm.rank + 1])
        out = np.full(D.local_shape[0], np.nan)
        assert D.matvec(x[mine], out=out) is out
        assert out.tobytes() == (D @ x[mine]).tobytes() == D.dot(x[mine]).tobytes()
        return D.matvec(x[mine], out=kept[mine].copy(), alpha=2.0, beta=-1.0)

    got = np.concatenate(run_ranks(2, work))
    want, size = reference.product(matrix, x, 2.0, -1.0, kept)
    assert (abs(got - want) <= reference.gamma(np.diff(matrix.indptr) + 5, np.float64) * size).all()


def test_not_a_number_reaches_only_rows_that_use_its_column() -> None:
    matrix = generate("poisson2d:8")
    x = np.ones(64)
    x[20] = np.nan
    got = product(matrix, [0, 13, 27, 64], x)
    assert (np.isnan(got) == (matrix[:, [20]].toarray()[:, 0] != 0)).all()


def test_only_neighbours_exchange_and_only_what_they_lack() -> None:
    matrix = generate("poisson3d:6")

    def work(comm: Any) -> Any:
        D = SpMatrix.from_scipy(matrix if comm.rank == 1 else None, comm, root=1, device="cpu")
        assert f"on {comm.size} ranks; rank {comm.rank}" in repr(D)
        return D.neighbours, D.local_shape

    found = run_ranks(4, work)
    assert [sorted(neighbours) for neighbours, _ in found] == [[1], [0, 2], [1, 3], [2]]
    for rank, (neighbours, _) in enumerate(found):
        for other, (sent, received) in neighbours.items():
            assert found[other][0][rank] == (received, sent)
            assert 0 < sent <= 48
    assert sum(shape[0] for _, shape in found) == 216
    assert max(shape[0] for _, shape in found) <= 60


def test_halo_values_are_those_of_their_columns() -> None:
    matrix = gallery.from_lengths(np.full(30, 4), 30, seed=13)
    x = np.random.default_rng(14).standard_normal((30, 2))

    def work(comm: Any) -> None:
        D = SpMatrix.from_local_rows(rows_of(matrix, [0, 8, 21, 30], comm.rank), comm, device="cpu")
        for _ in range(2):
            mine = x[D.columns.first : D.columns.first + D.columns.count]
            np.testing.assert_array_equal(D.halo_values(mine), x[D.halo_columns])
            np.testing.assert_array_equal(D.halo_values(mine[:, 1]), x[D.halo_columns, 1])

    run_ranks(3, work)


@pytest.mark.parametrize(("size", "hidden", "told"), [(2, True, 1), (1, True, 0), (2, False, 0)])
def test_small_systems_on_several_gpus_are_warned_of(size: int, hidden: bool, told: int) -> None:
    D = object.__new__(SpMatrix)
    D.comm, D.hidden_sums = ThreadCommunicator(0, size, {}), hidden
    D.rows = D.columns = Parts(np.array([0, 5, 36]), 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        D._warn_if_small()
    assert len(said) == told
    assert all("36 rows on 2 GPUs; one alone is faster" in str(one.message) for one in said)


def test_rows_come_back_in_the_order_that_new_values_take() -> None:
    matrix = generate("poisson2d:6")  # columns are sorted; rows of the second rank begin with their halo

    def work(comm: Any) -> None:
        local = rows_of(matrix, [0, 18, 36], comm.rank)
        rows = SpMatrix.from_local_rows(local, comm, device="cpu").local_rows()
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(rows, name), getattr(local, name))

    run_ranks(2, work)


def test_rows_come_back_and_take_other_values() -> None:
    matrix = gallery.from_lengths(np.tile([0, 3, 40, 1], 8), 32, seed=6)
    starts = [0, 5, 5, 32]
    x = np.random.default_rng(7).standard_normal(32)

    def work(comm: Any) -> Any:
        local = rows_of(matrix, starts, comm.rank)
        D = SpMatrix.from_local_rows(local, comm, device="cpu")
        reference.assert_same_entries(D.local_rows(), local)
        other = D.with_values(-3.0 * local.data)
        part, quadruple = x[D.columns.first :][: D.columns.count], D.with_values(4.0 * local.data)
        y, gather = D @ part, comm.gather
        comm.gather = None  # nothing is left to agree on
        np.testing.assert_array_equal(quadruple @ part, 4.0 * y)
        comm.gather = gather
        mine = x[D.rows.first :][: D.rows.count]
        np.testing.assert_array_equal(quadruple.T @ mine, 4.0 * (D.T @ mine))
        with pytest.raises(TypeError, match=r"take D.with_values\(data\).T"):
            D.T.with_values(local.data)
        with pytest.raises(ValueError, match="this rank has"):
            D.with_values(np.ones(len(local.data) + (comm.rank == 2)))
        return other @ part

    scaled = sp.csr_array((-3.0 * matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert_within(np.concatenate(run_ranks(3, work)), scaled, x)


def test_a_split_keeps_every_entry_once() -> None:
    matrix = gallery.from_lengths(np.tile([0, 5, 2], 10), 50, seed=8)
    csr = Csr(matrix.shape, matrix.indptr, matrix.indices, matrix.data)
    found = split(csr, Parts(np.array([0, 20, 33, 50]), 1))
    assert len(found.interior.data) + len(found.halo.data) == matrix.nnz
    assert found.own.sum() == len(found.interior.data)
    assert (np.diff(found.halo.indptr) > 0).all()
    assert not ((found.columns >= 20) & (found.columns < 33)).any()


@given(st.data())
@settings(max_examples=6)
def test_any_transposed_product_is_that_of_one_rank(data: st.DataObject) -> None:
    matrix = data.draw(gallery.matrices(most_rows=30))
    m, n = matrix.shape
    starts = data.draw(cut(m))
    k = data.draw(st.sampled_from([None, 2]))
    x = np.random.default_rng(1).standard_normal(m if k is None else (m, k))
    size = len(starts) - 1

    def work(comm: Any) -> tuple[np.ndarray, np.ndarray]:
        D = SpMatrix.from_local_rows(rows_of(matrix, starts, comm.rank), comm, device="cpu")
        assert D.T is D.T
        assert D.T.shape == (n, m)
        reference.assert_same_entries(D.T.T.local_rows(), D.local_rows())
        mine = x[starts[comm.rank] : starts[comm.rank + 1]]
        first = D.T @ mine
        assert (D.T @ mine).tobytes() == first.tobytes()
        return first, D.T.matvec(mine, out=first.copy(), alpha=2.0, beta=1.0)

    got, sums = map(np.concatenate, zip(*run_ranks(size, work), strict=True))
    entries = np.bincount(matrix.indices, minlength=n)
    for column in range(1 if k is None else k):
        mine, y, added = (x, got, sums) if k is None else (x[:, column], got[:, column], sums[:, column])
        want = np.zeros(n, np.longdouble)
        far = np.zeros(n, np.longdouble)
        rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
        terms = matrix.data.astype(np.longdouble) * mine[rows]
        np.add.at(want, matrix.indices, terms)
        np.add.at(far, matrix.indices, abs(terms))
        assert (abs(y - want) <= reference.gamma(entries + 3, np.float64) * far).all()
        error = abs(added - (2 * want + y))
        assert (error <= reference.gamma(entries + 5, np.float64) * (2 * far + abs(y))).all()


@pytest.mark.parametrize("name", ["T", "H"])
def test_transposes_of_complex_matrices(name: str) -> None:
    """Each part of each number within the bound of its sum, of twice as many products."""
    matrix = gallery.from_lengths(np.tile([0, 5, 2], 10), 50, seed=8)
    matrix = sp.csr_array(
        (matrix.data * np.exp(1j * np.arange(matrix.nnz)), matrix.indices, matrix.indptr), (30, 50)
    )
    x = numbers(30)

    def work(comm: Any) -> Any:
        D = SpMatrix.from_scipy(matrix if comm.rank == 0 else None, comm, device="cpu")
        turned = getattr(D, name)
        reference.assert_same_entries(getattr(turned, name).local_rows(), D.local_rows())
        mine = x[D.rows.first : D.rows.first + D.rows.count]
        first = turned @ mine
        other = turned.matvec(mine, out=first.copy(), alpha=2.0, beta=1.0)
        assert (D.T @ mine).tobytes() == (first if name == "T" else D.T.matvec(mine)).tobytes()
        return first, other

    got, sums = map(np.concatenate, zip(*run_ranks(3, work), strict=True))
    dense = matrix.toarray().T if name == "T" else matrix.toarray().conj().T
    wide = dense.astype(np.clongdouble)
    roundings, far = 2 * (dense != 0).sum(axis=1) + 5, abs(wide) @ abs(x)
    bound = reference.gamma(roundings, np.float64) * far
    assert (abs((got - wide @ x).real) <= bound).all()
    assert (abs((got - wide @ x).imag) <= bound).all()
    error = sums - (2 * (wide @ x) + got)
    bound = reference.gamma(roundings + 4, np.float64) * (2 * far + abs(got))
    assert (abs(error.real) <= bound).all()
    assert (abs(error.imag) <= bound).all()
    assert abs(got).max() > 0


def test_ranks_that_do_not_fit_together_all_say_so() -> None:
    A = generate("poisson2d:6")

    def local(comm: Any, **other: Any) -> None:
        mine = rows_of(A, [0, 10, 36], comm.rank)
        if comm.rank == 1:
            mine = other.get("wrong", lambda m: m)(mine)
        SpMatrix.from_local_rows(mine, comm, device="cpu")

    everywhere(2, lambda e: local(e, wrong=lambda m: m.astype(np.float32)), ValueError, "dtype is float64 on")
    everywhere(2, lambda e: local(e, wrong=lambda m: m[:, :30]), ValueError, "columns of A is 36 on rank 0")
    everywhere(2, lambda e: local(e, wrong=lambda m: "rows"), TypeError, "rank 1: local is a str")
    everywhere(2, lambda e: SpMatrix.from_scipy(None, e, root=1), TypeError, "rank 1: A is None")
    everywhere(2, lambda e: SpMatrix.from_scipy(A, e, root=2), ValueError, "root is 2; there are 2 ranks")
    for root in (1.0, "0", None, True):
        everywhere(
            2, lambda e, root=root: SpMatrix.from_scipy(A, e, root=root), TypeError, "root is .* an int"
        )
    for columns in (7, 2**70):
        everywhere(
            2,
            lambda e, columns=columns: SpMatrix.from_local_rows(A, e, columns=columns, device="cpu"),
            ValueError,
            rf"columns are \[{columns}, {columns}\]; A has 36",
        )


def test_vectors_that_do_not_fit_are_refused_on_all_ranks() -> None:
    A = generate("poisson2d:6")

    def made(comm: Any) -> SpMatrix:
        return SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")

    def x(D: SpMatrix, more: int = 0, dtype: Any = np.float64) -> Any:
        odd = D.comm.rank == 1
        return np.ones(D.local_shape[1] + more * odd, dtype if odd else np.float64)

    everywhere(2, lambda e: (lambda D: D @ x(D, more=1))(made(e)), ValueError, "rank 1: x has shape")
    everywhere(
        2, lambda e: (lambda D: D @ x(D, dtype=np.float32))(made(e)), ValueError, "dtype of x is float64"
    )
    everywhere(
        2, lambda e: (lambda D: solvers.cg(D, x(D, more=2)))(made(e)), ValueError, "rank 1: b has shape"
    )
    everywhere(
        2,
        lambda e: (lambda D: solvers.cg(D, x(D), rtol=1e-3 * (1 + e.rank)))(made(e)),
        ValueError,
        "rtol is 0.001 on rank 0 and 0.002 on rank 1",
    )
    everywhere(
        2,
        lambda e: (lambda D: solvers.gmres(D, x(D), restart=20 + e.rank))(made(e)),
        ValueError,
        "restart is 20 on rank 0 and 21 on rank 1",
    )
    everywhere(
        2,
        lambda e: (lambda D: solvers.cg(D, x(D), callback=print if e.rank else None))(made(e)),
        ValueError,
        "callback is none on rank 0 and given on rank 1",
    )
    everywhere(
        2,
        lambda e: (lambda D: dasp.solve(D, x(D), method="cg" if e.rank else "gmres"))(made(e)),
        ValueError,
        "method is GeneralizedMinimalResiduals on rank 0 and ConjugateGradients on rank 1",
    )
    everywhere(
        2,
        lambda e: (lambda D: solvers.chebyshev(D, x(D), bounds=(1, 8) if e.rank else None))(made(e)),
        ValueError,
        r"bounds is None on rank 0 and \(1.0, 8.0\) on rank 1",
    )


@pytest.mark.parametrize(("columns", "words"), [((0, 9), "0 to 9"), ((-1, 3), "-1 to -1")])
def test_columns_that_a_matrix_lacks_are_refused(columns: tuple[int, int], words: str) -> None:
    """CuPy's arrays come to `split` unchecked."""
    rows = Csr((1, 9), np.array([0, 2]), np.array(columns), np.ones(2))
    with pytest.raises(ValueError, match=f"entries in columns {words}; A has 9"):
        split(rows, Parts(np.array([0, 2, 9]), 1))


def test_a_rank_that_leaves_is_noticed() -> None:
    A = generate("poisson2d:6")

    def run(comm: Any) -> str:
        comm.timeout = 0.5
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        D @ np.ones(D.local_shape[1])
        if comm.rank == 1:
            return "left"
        with pytest.raises(RankError, match="in vain"):
            D @ np.ones(D.local_shape[1])
        return "noticed"

    assert run_ranks(2, run, leave=True) == ["noticed", "left"]


def test_what_is_no_communicator_is_refused() -> None:
    with pytest.raises(TypeError, match="a communicator of mpi4py"):
        SpMatrix.from_local_rows(generate("poisson2d:4"), None)


def test_a_wrong_timeout_of_one_rank_is_told_on_all_which_go_on() -> None:
    A = generate("poisson2d:6")

    def run(comm: ThreadCommunicator) -> None:
        for wrong in (0, -1.0, "soon", float("nan")):
            with pytest.raises(ValueError, match="timeout is"):
                SpMatrix.from_scipy(A, comm, device="cpu", timeout=wrong if comm.rank else None)  # type: ignore[arg-type]
        D = SpMatrix.from_scipy(A, comm, device="cpu", timeout=50.0)
        D = SpMatrix.from_scipy(A, comm, device="cpu")
        assert comm.timeout == 50
        assert (
            abs(D @ np.ones(D.local_shape[1]) - A[D.rows.first :][: D.rows.count].sum(axis=1)).max() < 1e-14
        )

    run_ranks(2, run)


def test_rows_on_a_gpu_say_which_one() -> None:
    """Else kernels of one GPU would read what lies on another."""
    local, comm = (
        SimpleNamespace(data=SimpleNamespace(device=SimpleNamespace(id=3))),
        ThreadCommunicator(0, 1, {}),
    )
    assert find_rank_device(comm, "auto", local) == find_rank_device(comm, "cuda", local) == "cuda:3"
    assert find_rank_device(comm, "cuda:3", local) == "cuda:3"
    with pytest.raises(
        ValueError, match="local lies on cuda:3 and device is 'cuda:1'; they must be the same"
    ):
        find_rank_device(comm, "cuda:1", local)


def test_a_group_of_nccl_gets_one_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by all processes alike; where some are not in the group, the others would be out of step."""
    dist = pytest.importorskip("torch.distributed")
    from dasp.distributed.torch import TorchCommunicator

    made: list[Any] = []
    monkeypatch.setattr(dist, "get_rank", lambda group: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3 if group == "all" else 4)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(dist, "new_group", lambda **given: made.append(given) or "of the host")
    with pytest.raises(ValueError, match="of NCCL of 3 of 4 processes; one that moves the host's memory too"):
        TorchCommunicator("all", 1.0)
    assert not made
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3)
    assert TorchCommunicator("all", 1.0).group == "of the host"
    assert made == [{"backend": "gloo"}]


def test_columns_beyond_what_indices_hold_are_all_halo() -> None:
    rows = Csr((1, 2**31 + 9), np.array([0, 2]), np.array([3, 9], np.int32), np.ones(2))
    pieces = split(rows, Parts(np.array([0, 2**31 + 5, 2**31 + 9]), 1))
    assert len(pieces.interior.data) == 0
    np.testing.assert_array_equal(pieces.columns, [3, 9])
    np.testing.assert_array_equal(pieces.halo.indices, [0, 1])


def test_a_matrix_over_ranks_is_neither_pickled_nor_copied() -> None:
    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:6") if comm.rank == 0 else None, comm, device="cpu")
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=r"cannot be pickled: .*; pickle D.local_rows\(\) on each rank"
            ):
                attempt(D)
        assert pickle.loads(pickle.dumps(D.local_rows())).nnz == D.interior.nnz + D.halo.nnz

    run_ranks(2, run)


def test_what_a_matrix_over_ranks_has_not_is_told() -> None:
    A = generate("poisson2d:6")
    B = sp.csr_array(
        A + sp.csr_array((np.arange(36.0), (np.arange(36), np.arange(36)[::-1])), shape=(36, 36))
    )
    x = np.random.default_rng(3).standard_normal((36, 2))

    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(B if comm.rank == 0 else None, comm, device="cpu")
        mine = x[D.rows.first : D.rows.first + D.rows.count]
        with pytest.raises(
            AttributeError, match=r"has no attribute 'toarray'; D.local_rows\(\).toarray is that"
        ):
            D.toarray()
        with pytest.raises(AttributeError, match=r"has no attribute 'foo'$"):
            D.foo  # noqa: B018
        assert D.H is D.T  # the adjoint of a real matrix is its transpose
        assert ((mine[:, 0] @ D) == D.T @ mine[:, 0]).all()
        assert ((mine.T @ D) == (D.T @ mine).T).all()

    run_ranks(2, run)


def test_a_rank_may_pass_a_list_or_integers_where_others_pass_floats() -> None:
    A = generate("poisson2d:6")

    def run(comm: Any) -> list[np.ndarray]:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        ones = np.ones(D.local_shape[1])
        kinds = ones, ones.tolist(), ones.astype(bool), ones.astype(np.int64)
        return [D @ (one if comm.rank == 1 else ones) for one in kinds]

    first, *others = map(np.concatenate, zip(*run_ranks(3, run), strict=True))
    np.testing.assert_array_equal(first, A @ np.ones(36))
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("x", ["?", "i1", "u2", "i4", "u8"])
def test_integers_have_the_products_of_one_process(x: str) -> None:
    A, whole, kinds = generate("poisson2d:4"), np.arange(16).astype(x), ("f2", "f4", "f8", "c8", "c16")

    def run(comm: Any) -> list[np.ndarray]:
        D = SpMatrix.from_local_rows(rows_of(A, [0, 5, 16], comm.rank), comm, device="cpu")
        mine, values = whole[D.columns.first :][: D.columns.count], D.local_rows().data
        return [D.with_values(values.astype(kind)) @ mine for kind in kinds]

    for kind, *parts in zip(kinds, *run_ranks(2, run), strict=True):
        found = np.concatenate(parts)
        want = dasp.SpMatrix(A.astype("f8"), "cpu").with_values(A.data.astype(kind)) @ whole
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("wrong", ["half", None, [[1.0], 2.0], np.full(8, None)])
def test_a_wrong_x_in_a_later_product_is_told_to_ranks_that_wait_for_it(wrong: Any) -> None:
    A = generate("poisson2d:5")

    def run(comm: Any) -> str:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        ones = np.ones(D.local_shape[1])
        D @ ones
        with pytest.raises((TypeError, ValueError)) as caught:
            D @ (wrong if comm.rank == 1 else ones)
        assert (D @ ones).shape == ones.shape
        return str(caught.value)

    zero, one, two = run_ranks(3, run, leave=True)
    assert zero == two == f"rank 1: {one}"


def test_an_agreement_in_another_call_is_refused_on_all_ranks() -> None:
    def run(comm: Any) -> None:
        agree(comm, lambda: 1, lambda _: {"degree": 1} if comm.rank == 1 else {})

    everywhere(3, run, RankError, "rank 0 and rank 1 are not at the same operation")


def test_the_type_of_an_x_of_one_rank_alone_is_told() -> None:
    def run(comm: Any) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:5"), comm, device="cpu")
        x = np.ones((D.local_shape[1], 3))
        D @ x
        with pytest.raises(RankError) as caught:
            D @ (x.astype(np.float16) if comm.rank == 1 else x)
        assert "by float64 x of 3 columns;" in str(caught.value)
        assert re.search(
            "rank 1 (is )?at call .*, sizes of first product by an x of a new type or shape;",
            str(caught.value),
        )
        assert (D @ x).shape == x.shape

    run_ranks(2, run, leave=True)


def test_ranks_meet_again_after_a_call_that_one_did_not_make() -> None:
    def run(comm: Any) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:5"), comm, device="cpu")
        if comm.rank != 1:
            with comm.call:
                pass
        with pytest.raises(RankError, match=r"rank 1 and rank . are not at the same operation"):
            comm.gather(1)
        assert solvers.cg(D, np.ones(D.local_shape[1]))[1].converged

    run_ranks(3, run, leave=True)


def test_two_threads_of_a_rank_make_no_call_at_once() -> None:
    comm: Any = ThreadCommunicator(0, 1, {})
    with ThreadPoolExecutor(1) as other, comm.call:
        with pytest.raises(RuntimeError, match="another thread of rank 0 makes a call"):
            other.submit(comm.gather, 1).result()
        assert comm.gather(2) == [2]
    assert comm.gather(3) == [3]


def test_a_gather_is_not_taken_for_an_agreement() -> None:
    def run(comm: Any) -> None:
        with pytest.raises(RankError, match="not at the same operation"):
            comm.gather(1) if comm.rank else agree(comm, lambda: 1)

    run_ranks(2, run, leave=True)
