"""Matrices over ranks: products, solvers, faults, files. Ranks are threads here; test_ranks.py has others."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp import solvers
from dasp.cli import main as cli
from dasp.distributed import Parts, RankError, SpMatrix, preconditioners, write_parts
from dasp.distributed.launch import find_rank_device
from dasp.distributed.partition import collect, cut_rows
from dasp.distributed.split import split
from dasp.formats.csr.matrix import Csr
from dasp.io.files import MatrixFileError
from dasp.models import generate
from tests.solvers.test_complex import helmholtz, hermitian, in_field, numbers
from tests.support import gallery, reference
from tests.support.ranks import ThreadCommunicator, run_ranks

pytestmark = pytest.mark.ranks

SIZES = (1, 2, 3)


def rows_of(matrix: Any, starts: Any, rank: int) -> sp.csr_array:
    """A rank's rows, every entry kept."""
    first, end = starts[rank], starts[rank + 1]
    low, high = matrix.indptr[first], matrix.indptr[end]
    indptr = matrix.indptr[first : end + 1] - low
    return sp.csr_array(
        (matrix.data[low:high], matrix.indices[low:high], indptr), shape=(end - first, matrix.shape[1])
    )


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


def assert_within(got: Any, matrix: Any, x: Any, alpha: float = 1.0) -> None:
    """Hold every row to the bound of `SpMatrix.matvec` over ranks: one rounding more than on one."""
    for k in range(x.shape[1] if x.ndim == 2 else 1):
        mine, y = (x[:, k], got[:, k]) if x.ndim == 2 else (x, got)
        want, size = reference.product(matrix, mine, alpha)
        lengths = np.diff(matrix.indptr)
        bound = reference.gamma(lengths + 3, y.dtype) * size
        bound += (lengths + 3) * np.finfo(y.dtype).smallest_subnormal
        assert y.shape == want.shape
        assert (abs(y - want) <= bound).all()


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


@pytest.mark.parametrize(("size", "device", "told"), [(2, "cuda:0", 1), (1, "cuda:0", 0), (2, "cpu", 0)])
def test_small_systems_on_several_gpus_are_warned_of(size: int, device: str, told: int) -> None:
    D = object.__new__(SpMatrix)
    D.comm, D.device = ThreadCommunicator(0, size, {}), device
    D.rows = D.columns = Parts(np.array([0, 5, 36]), 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        D._warn_if_small()
    assert len(said) == told
    assert all("36 rows on 2 GPUs; below about 500,000 rows" in str(one.message) for one in said)


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
        assert D.T.T is D
        assert D.T.shape == (n, m)
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
        assert (abs(y - want) <= reference.gamma(entries + 2 + size, np.float64) * far).all()
        error = abs(added - (2 * want + y))
        assert (error <= reference.gamma(entries + 4 + size, np.float64) * (2 * far + abs(y))).all()


@pytest.mark.parametrize("method", ["lsqr", "lsmr"])
def test_least_squares_over_ranks(method: str) -> None:
    rng = np.random.default_rng(20)
    matrix = sp.random_array((90, 40), density=0.1, random_state=rng, format="csr") + sp.eye_array(
        90, 40, format="csr"
    )
    b = rng.standard_normal(90)
    alone, told = getattr(solvers, method)(sp.csr_array(matrix), b, rtol=1e-10)

    def work(comm: Any) -> Any:
        D = SpMatrix.from_scipy(sp.csr_array(matrix), comm, device="cpu")
        mine = b[D.rows.first : D.rows.first + D.rows.count]
        return getattr(solvers, method)(D, mine, rtol=1e-10)

    found = run_ranks(3, work)
    assert all(stats.converged for _, stats in found)
    assert abs(found[0][1].iterations - told.iterations) <= 3
    x = np.concatenate([x for x, _ in found])
    gradient = matrix.T @ (b - matrix @ x)
    assert np.linalg.norm(gradient) <= 1e-6
    assert x.shape == alone.shape


# Solvers

METHODS = ("cg", "minres", "bicgstab", "gmres", "chebyshev")


def solved(size: int, method: str, work: Any = None, matrix: Any = None, **options: Any) -> list[Any]:
    """Solve on some ranks; return x put together, the statistics and the relative residual."""
    A = generate("poisson2d:24") if matrix is None else matrix
    b = np.random.default_rng(9).standard_normal(A.shape[0])

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        made = options if work is None else options | work(D)
        mine = b[D.rows.first : D.rows.first + D.rows.count]
        return getattr(solvers, method)(D, mine, rtol=1e-9, **made)

    found = run_ranks(size, run)
    x = np.concatenate([x for x, _ in found])
    assert len({(stats.iterations, stats.residual, tuple(stats.residuals)) for _, stats in found}) == 1
    return [x, found[0][1], np.linalg.norm(b - A @ x) / np.linalg.norm(b)]


@pytest.mark.parametrize("method", METHODS)
def test_the_solvers_are_those_of_one_rank(method: str) -> None:
    A = generate("poisson2d:24")
    b = np.random.default_rng(9).standard_normal(A.shape[0])
    _, alone = getattr(solvers, method)(dasp.SpMatrix.from_scipy(A, device="cpu"), b, rtol=1e-9)
    x, stats, residual = solved(3, method)
    assert stats.converged
    assert residual <= 1.0001e-9
    assert abs(stats.iterations - alone.iterations) <= 2 + alone.iterations // 20
    again = solved(3, method)
    assert again[0].tobytes() == x.tobytes()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_sum_may_travel_beside_the_product(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is taken where it is asked for, without a preconditioner and nobody who looks at x."""
    module, taken = importlib.import_module("dasp.solvers.cg"), []
    plain = module.solve

    def solve(*given: Any, **named: Any) -> Any:
        taken.append(given[6].__name__)
        return plain(*given, **named)

    monkeypatch.setattr(module, "solve", solve)

    def choose(D: SpMatrix) -> dict[str, Any]:
        D.hidden_sums = hidden
        return {}

    assert solved(2, "cg", choose)[1].converged
    solved(2, "cg", lambda D: choose(D) | {"M": preconditioners.jacobi(D)})
    solved(2, "cg", lambda D: choose(D) | {"callback": lambda x: None})
    form = "PipelinedConjugateGradients" if hidden else "conjugate_gradients"
    assert taken == [form] * 2 + ["conjugate_gradients"] * 4


PRECONDITIONED = {
    "none": lambda D: {},
    "jacobi": lambda D: {"M": preconditioners.jacobi(D)},
    "blocks of 4": lambda D: {"M": preconditioners.block_jacobi(D, block=4)},
    "chebyshev": lambda D: {"M": preconditioners.chebyshev(D)},
    "ic0 of each rank": lambda D: {"M": preconditioners.of_blocks(D, dasp.preconditioners.ic0)},
}


@pytest.mark.parametrize("name", PRECONDITIONED)
def test_preconditioners_over_ranks(name: str) -> None:
    _, stats, residual = solved(3, "cg", PRECONDITIONED[name])
    assert stats.converged
    assert residual <= 1.0001e-9


@pytest.mark.parametrize("name", ["jacobi", "blocks of 4", "ic0 of each rank"])
def test_preconditioners_over_ranks_take_new_values(name: str) -> None:
    A = generate("poisson2d:8")
    scale = sp.diags_array(np.linspace(1.0, 9.0, 64))

    def run(comm: ThreadCommunicator) -> None:
        old, new = (
            SpMatrix.from_scipy(one if comm.rank == 0 else None, comm, device="cpu")
            for one in (A, sp.csr_array(scale @ A @ scale))
        )
        M, want = (PRECONDITIONED[name](D)["M"] for D in (old, new))
        M.update(new)
        r = np.ones(new.local_shape[0])
        np.testing.assert_array_equal(M @ r, want @ r)
        with pytest.raises(TypeError, match="takes no new values"):
            preconditioners.chebyshev(new).update(new)
        assert solvers.cg(new, r, M=M)[1].converged
        before = M.generation
        M._own._load = lambda numbers: comm.rank == 0  # arrays of rank 1 are replaced
        for count in (1, 2):
            M.update(new)
            assert M.generation == before + count  # on both ranks, which prepare their programs anew together

    run_ranks(2, run)


def test_arguments_of_preconditioners_on_one_rank_are_told_on_all_which_go_on() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"degree": 0}, ValueError, "rank 1: degree is 0; at least 1"),
        ({"degree": 2.5}, TypeError, "rank 1: degree is 2.5; an int"),
        ({"ratio": float("nan")}, ValueError, "rank 1: ratio is nan; a number above 1"),
        ({"bounds": (3.0, 1.0)}, ValueError, "rank 1: bounds are"),
        ({"degree": 4}, ValueError, "degree is 3 on rank 0 and 4 on rank 1"),
    ]

    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:6") if comm.rank == 0 else None, comm, device="cpu")
        x = np.ones(D.local_shape[1])
        want = D @ x
        for options, kind, words in wrong:
            with pytest.raises(kind, match=words):
                preconditioners.chebyshev(D, **(options if comm.rank else {}))
            assert (D @ x == want).all()
        M = preconditioners.jacobi(D)
        with pytest.raises(ValueError, match="float16") if comm.rank else contextlib.nullcontext():
            M.astype(np.float16 if comm.rank else np.float32)
        assert (D @ x == want).all()

    run_ranks(2, run)


def iterations_with_multigrid(A: Any, b: Any, ml: Any, options: dict[str, Any]) -> tuple[int, int]:
    """Hold that a cycle over three ranks is that of one, and return the iterations of cg with each."""
    alone = dasp.preconditioners.multigrid(ml, device="cpu", **options)
    want = alone @ b

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        M = preconditioners.multigrid(D, ml if comm.rank == 0 else None, **options)
        mine = b[D.rows.first : D.rows.first + D.rows.count]
        _, stats = solvers.cg(D, mine, rtol=1e-8, M=M)
        assert stats.converged
        return M @ mine, stats.iterations

    found = run_ranks(3, run)
    got = np.concatenate([z for z, _ in found])
    rounded = 1e-4 if "dtype" in options else 1e-11
    assert np.linalg.norm(got - want) <= rounded * np.linalg.norm(want)
    _, stats = solvers.cg(dasp.SpMatrix.from_scipy(A, device="cpu"), b, rtol=1e-8, M=alone)
    return found[0][1], stats.iterations


@pytest.mark.parametrize("options", [{}, {"smoother": "jacobi", "cycle": "W", "dtype": np.float32}])
def test_multigrid_is_that_of_one_rank(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pyamg = pytest.importorskip("pyamg")
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 100)
    A = generate("poisson2d:40")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), max_coarse=20)
    b = np.random.default_rng(30).standard_normal(1600)
    mine, alone = iterations_with_multigrid(A, b, ml, options)
    assert mine == alone


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_last_level_over_ranks_is_smoothed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pyamg = pytest.importorskip("pyamg")
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 100)
    monkeypatch.setattr("dasp.multigrid.hierarchy.MOST_INVERSE_ROWS", 30)
    monkeypatch.setattr(np.linalg, "pinv", None)
    A = generate("poisson2d:40")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), max_levels=count)
    b = np.random.default_rng(31).standard_normal(1600)
    mine, alone = iterations_with_multigrid(A, b, ml, {})
    assert mine == alone


def test_coarse_rows_of_zeros_are_passed_by_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    pyamg = pytest.importorskip("pyamg")
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 20)
    monkeypatch.setattr("dasp.multigrid.hierarchy.DENSE_ROWS", 5)
    A = generate("poisson2d:40")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), max_coarse=5)
    for k, level in enumerate(ml.levels):  # a coarse unknown more, of which no other depends
        more, last = k > 0, k + 1 == len(ml.levels)
        level.A = sp.block_diag([level.A, sp.csr_array((more, more))], format="csr")
        if not last:
            level.P = sp.block_diag([level.P, sp.csr_array((more, 1))], format="csr")
            level.R = sp.block_diag([level.R, sp.csr_array((1, more))], format="csr")
    assert not abs(ml.levels[1].A).sum(axis=1)[-1]
    mine, alone = iterations_with_multigrid(A, np.random.default_rng(32).standard_normal(1600), ml, {})
    assert mine == alone


def test_a_hierarchy_that_does_not_fit_is_told_on_all_ranks() -> None:
    A = generate("poisson2d:6")

    def work(comm: Any, ml: Any = "levels", **options: Any) -> None:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        preconditioners.multigrid(D, ml, **options)

    everywhere(2, work, TypeError, "ml is a str; a hierarchy of PyAMG is needed")
    everywhere(2, lambda e: work(e, smoother="gauss-seidel"), ValueError, "chebyshev or jacobi is needed")
    everywhere(2, lambda e: work(e, cycle="X"), ValueError, "cycle is 'X'")
    everywhere(2, lambda e: work(e, degree=0), ValueError, "degree is 0")
    nan = SimpleNamespace(levels=[SimpleNamespace(A=A * np.nan)])
    everywhere(2, lambda e: work(e, nan), ValueError, "A of level 0 of ml holds NaN or infinity")


# Complex systems


def complex_solved(size: int, method: str, A: Any, b: Any, make: Any = lambda D: None, **options: Any) -> Any:
    """x of all ranks put together, the statistics, and the relative residual; the same bits twice."""

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        mine, M = b[D.rows.first : D.rows.first + D.rows.count], make(D)
        more = {} if M is None else {"M": M}
        found = [getattr(solvers, method)(D, mine, **more, **options) for _ in range(2)]
        assert found[0][0].tobytes() == found[1][0].tobytes()
        return found[0]

    found = run_ranks(size, run)
    assert len({(stats.iterations, stats.residual, tuple(stats.residuals)) for _, stats in found}) == 1
    x = np.concatenate([x for x, _ in found])
    return x, found[0][1], np.linalg.norm(b - A @ x) / np.linalg.norm(b)


@pytest.mark.parametrize(
    ("method", "make", "dtype"),
    [
        ("cg", hermitian, np.complex128),
        ("gmres", helmholtz, np.complex64),
        ("bicgstab", helmholtz, np.complex128),
    ],
)
def test_complex_systems_are_those_of_one_rank(method: str, make: Any, dtype: Any) -> None:
    A, b = make(18).astype(dtype), numbers(324).astype(dtype)
    rtol = 1e-9 if dtype == np.complex128 else 1e-4
    _, alone = getattr(solvers, method)(dasp.SpMatrix.from_scipy(A, device="cpu"), b, rtol=rtol)
    x, stats, residual = complex_solved(3, method, A, b, rtol=rtol)
    assert stats.converged, stats.reason
    assert x.dtype == dtype
    assert residual <= rtol * (1 + 1e4 * np.finfo(dtype).eps)
    uneven = 4 if method == "bicgstab" else 20  # its residual goes up and down, by roundings too
    assert abs(stats.iterations - alone.iterations) <= 2 + alone.iterations // uneven


def test_a_real_matrix_over_ranks_takes_a_complex_b() -> None:
    A, b = generate("poisson2d:16"), numbers(256)
    x, stats, residual = complex_solved(2, "cg", A, b, rtol=1e-9)
    assert stats.converged, stats.reason
    assert x.dtype == np.complex128
    assert residual <= 1.0001e-9
    _, stats, _ = complex_solved(2, "cg", A, b, preconditioners.jacobi, rtol=1e-9)
    assert stats.converged, stats.reason


def test_complex_least_squares_over_ranks() -> None:
    rng = np.random.default_rng(20)
    A = sp.random_array((90, 40), density=0.1, random_state=rng) * (1 + 2j) + 1j * sp.random_array(
        (90, 40), density=0.1, random_state=rng
    )
    A, b = sp.csr_array(A + sp.eye_array(90, 40)), numbers(90)
    alone, told = solvers.lsqr(A, b, rtol=1e-10)
    x, stats, _ = complex_solved(3, "lsqr", A, b, rtol=1e-10)
    assert stats.converged, stats.reason
    assert abs(stats.iterations - told.iterations) <= 3
    np.testing.assert_allclose(x, alone, atol=1e-6 * abs(alone).max())


@pytest.mark.parametrize("name", ["chebyshev", "ic0 of each rank"])
def test_complex_preconditioners_over_ranks(name: str) -> None:
    A, b = hermitian(18), numbers(324)

    def make(D: SpMatrix) -> Any:
        return PRECONDITIONED[name](D).get("M")

    _, stats, residual = complex_solved(3, "cg", A, b, make, rtol=1e-9)
    assert stats.converged, stats.reason
    assert residual <= 1.0001e-9


def test_a_matrix_over_ranks_that_is_not_hermitian_is_told() -> None:
    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(helmholtz(8) if comm.rank == 0 else None, comm, device="cpu")
        return [getattr(solvers, one)(D, numbers(D.local_shape[0]))[1].reason for one in ("cg", "minres")]

    found = run_ranks(2, run)
    assert found[0] == found[1]
    assert all("not Hermitian" in reason for reason in found[0])


def test_all_ranks_say_so_where_one_has_a_complex_b() -> None:
    A = generate("poisson2d:6")

    def work(comm: Any) -> None:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        b = np.ones(D.local_shape[0])
        solvers.cg(D, b * 1j if comm.rank == 1 else b)

    everywhere(2, work, ValueError, "type of the system is float64 on rank 0 and complex128 on rank 1")


def test_complex_multigrid_is_that_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 100)
    A, b, ml = hermitian(40), numbers(1600), in_field(40, max_coarse=20)
    mine, alone = iterations_with_multigrid(A, b, ml, {})
    assert abs(mine - alone) <= 1


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
        assert getattr(turned, name) is D
        assert f"<{name} of" in repr(turned)
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


def test_the_adjoint_of_a_real_matrix_is_its_transpose() -> None:
    def run(comm: Any) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:6") if comm.rank == 0 else None, comm, device="cpu")
        assert D.H.T is D

    run_ranks(2, run)


def test_sums_are_counted() -> None:
    """Two sums an iteration in the plain form of cg, one in the pipelined form."""
    A = generate("poisson2d:16")
    made = {}
    for hidden in (False, True):

        def run(comm: Any, hidden: bool = hidden) -> int:
            D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
            D.hidden_sums = hidden
            count, prepare = [0], comm.sum

            def counted(*arrays: Any) -> Any:
                add = prepare(*arrays)

                def call() -> None:
                    count[0] += 1
                    add()

                return call

            comm.sum = counted
            _, stats = solvers.cg(D, np.ones(D.local_shape[0]), rtol=1e-8)
            return count[0] - stats.iterations * (1 if hidden else 2)

        made[hidden] = run_ranks(2, run)
    assert all(-1 <= extra <= 4 for counts in made.values() for extra in counts)


@pytest.mark.parametrize("hidden", [False, True])
def test_what_goes_wrong_is_told_on_all_ranks(hidden: bool) -> None:
    A = sp.csr_array(generate("poisson2d:10") - 3.0 * sp.eye_array(100))

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        D.hidden_sums = hidden
        return solvers.cg(D, np.ones(D.local_shape[0]), rtol=1e-10)[1]

    told = run_ranks(3, run)
    assert all(not one.converged for one in told)
    assert {one.reason for one in told} == {told[0].reason}
    assert "not positive definite" in told[0].reason


def test_the_plain_form_goes_on_for_no_more_iterations_than_are_left() -> None:
    """On a matrix that is not symmetric the pipelined form stops after a few, and the plain one may not."""
    turned = sp.csr_array(np.roll(np.eye(52), 1, axis=0))

    def run(comm: Any) -> Any:
        D = SpMatrix.from_scipy(turned if comm.rank == 0 else None, comm, device="cpu")
        D.hidden_sums = True
        b = np.zeros(52)
        b[0] = 1.0
        mine = slice(D.rows.first, D.rows.first + D.rows.count)
        starts = np.random.default_rng(0).standard_normal((30, 52))[:, mine]
        return [solvers.cg(D, b[mine], start, rtol=1e-15, maxiter=50)[1].iterations for start in starts]

    for counts in run_ranks(2, run):
        assert max(counts) <= 50


def test_huge_and_tiny_right_hand_sides() -> None:
    A = generate("poisson2d:8")
    for size in (1e-250, 1e250):

        def run(comm: Any, size: float = size) -> Any:
            D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
            b = np.full(D.local_shape[0], size if comm.rank == 1 else 0.0)
            x, stats = solvers.cg(D, b, rtol=1e-8)
            assert stats.converged
            return x, b

        found = run_ranks(2, run)
        x, b = (np.concatenate(one) / size for one in zip(*found, strict=True))
        assert np.linalg.norm(b - A @ x) <= 1.0001e-8 * np.linalg.norm(b)


def test_ranks_without_rows_solve_too() -> None:
    A = sp.csr_array(np.array([[2.0, 1.0], [1.0, 3.0]]))
    _, stats, residual = solved(5, "cg", matrix=A)
    assert stats.converged
    assert residual <= 1e-9


def test_methods_that_know_of_no_ranks_say_so() -> None:
    A = generate("poisson2d:6")

    def run(comm: Any) -> None:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        block = np.ones((D.local_shape[0], 2))
        with pytest.raises(TypeError, match="several ranks"):
            solvers.block_cg(D, block)
        with pytest.raises(TypeError, match="several ranks"):
            solvers.lobpcg(D, block)

    run_ranks(2, run)


# Faults


def everywhere(size: int, work: Any, kind: Any, words: str) -> None:
    """Hold that every rank raises the same."""

    def run(comm: Any) -> str:
        with pytest.raises(kind, match=words) as caught:
            work(comm)
        return str(caught.value)

    assert len(set(run_ranks(size, run))) == 1


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
    everywhere(
        2,
        lambda e: SpMatrix.from_local_rows(rows_of(A, [0, 10, 36], e.rank), e, columns=7, device="cpu"),
        ValueError,
        r"columns are \[7, 7\]; A has 36",
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


# Partitions


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9))
def test_rows_are_cut_so_that_entries_are_balanced(lengths: list[int], ranks: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    starts = cut_rows(indptr, ranks)
    assert starts[0] == 0
    assert starts[-1] == len(lengths)
    assert (np.diff(starts) >= 0).all()
    weights = indptr + np.arange(len(indptr))
    share = weights[-1] / ranks
    assert (np.diff(weights[starts]) <= share + max(lengths, default=0) + 2).all()


def test_files_give_the_matrix_back(tmp_path: Path) -> None:
    """Every entry, also where the first row has so many that a rank is left without rows."""
    A = gallery.from_lengths([60, 0, 1, 0, 1, 0], 60, seed=11)
    found = write_parts(A, 3, tmp_path / "parts")
    assert sorted(rows for rows, _, _ in found) == [0, 1, 5]
    assert sum(entries for _, entries, _ in found) == A.nnz
    x = np.random.default_rng(12).standard_normal(60)

    def work(comm: Any) -> Any:
        D = SpMatrix.from_files(tmp_path / "parts", comm, device="cpu")
        reference.assert_same_entries(D.local_rows(), A[D.rows.first : D.rows.first + D.rows.count])
        return D @ x[D.columns.first : D.columns.first + D.columns.count]

    assert_within(np.concatenate(run_ranks(3, work)), A, x)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


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


@pytest.mark.parametrize("root", [0, 2])
def test_parts_of_a_vector_are_collected(root: int) -> None:
    whole, starts = np.random.default_rng(3).standard_normal(20).astype(np.float32), np.array([0, 7, 7, 20])

    def work(comm: Any) -> Any:
        parts = Parts(starts, comm.rank)
        return collect(comm, whole[parts.first : parts.first + parts.count], parts, root)

    found = run_ranks(3, work)
    np.testing.assert_array_equal(found[root], whole)
    assert [one is None for one in found] == [rank != root for rank in range(3)]


def test_a_wrong_or_missing_partition_is_told_on_all_ranks(tmp_path: Path) -> None:
    A, folder = generate("poisson2d:6"), tmp_path / "parts"
    write_parts(A, 2, folder)

    def read(comm: Any) -> Any:
        return SpMatrix.from_files(folder, comm, device="cpu")

    everywhere(3, read, (MatrixFileError, ValueError), "was cut for 2 ranks and there are 3")
    everywhere(2, lambda e: SpMatrix.from_files(tmp_path, e), ValueError, "holds no part of rank 0")
    part = folder / "rank-00001-of-00002.npz"
    whole = part.read_bytes()
    place = whole.index(A.data[-8:].tobytes())
    for damaged in (whole[:-100], whole[:place] + b"?" + whole[place + 1 :]):
        part.write_bytes(damaged)
        everywhere(2, read, ValueError, "rank 1: .*rank-00001-of-00002.npz is damaged")
    part.unlink()
    everywhere(2, read, ValueError, "rank 1: .*rank-00001-of-00002.npz")
    sp.save_npz(part, A[20:, :30])
    everywhere(2, read, ValueError, "columns of A is 36 on rank 0 and 30 on rank 1")


def test_a_partition_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    A = generate("poisson2d:6")
    write_parts(A, 2, tmp_path / "parts")
    with pytest.raises(MatrixFileError, match="exists"):
        write_parts(A, 2, tmp_path / "parts")
    with pytest.raises(MatrixFileError, match="cannot be written"):
        write_parts(A, 2, tmp_path / "none" / "parts")
    with pytest.raises(ValueError, match="ranks is 0"):
        write_parts(A, 0, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_a_partition_that_is_ended_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*given: Any) -> None:
        assert list(tmp_path.iterdir())
        signal.raise_signal(signal.SIGTERM)

    command = ["partition", "poisson2d:4", "--out", str(tmp_path / "parts"), "--ranks"]
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main([*command, "9999999"]) == 2
    monkeypatch.setattr("dasp.distributed.partition._write", end)
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "2"])
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [([0, 6], ValueError), ([0, 7, 6, 12], ValueError), ("half", TypeError), ([0.0] * 4, TypeError)],
)
def test_wrong_cuts_of_one_rank_are_told_by_all_which_go_on(name: str, wrong: Any, kind: Any) -> None:
    A, cut = sp.csr_array(sp.eye_array(12)), [0, 3, 7, 12]

    def run(comm: ThreadCommunicator) -> None:
        given = {"rows": cut, "columns": cut} | ({name: wrong} if comm.rank == 1 else {})
        with pytest.raises(kind, match=rf"rank 1: {name} is .*; 4 rising numbers from 0 to 12 are needed"):
            SpMatrix.from_scipy(A if comm.rank == 1 else None, comm, root=1, device="cpu", **given)
        D = SpMatrix.from_scipy(A if comm.rank == 1 else None, comm, root=1, rows=cut, device="cpu")
        assert (D @ np.ones(D.local_shape[1]) == 1).all()

    run_ranks(3, run)


def test_a_polynomial_over_ranks_computes_in_the_type_of_its_matrix() -> None:
    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:6") if comm.rank == 0 else None, comm, device="cpu")
        with pytest.raises(ValueError, match="asked to compute in float32; it computes in the matrix's type"):
            preconditioners.chebyshev(D).astype(np.float32)
        assert preconditioners.jacobi(D).astype(np.float32).dtype == np.float32

    run_ranks(2, run)


def test_preconditioners_of_a_matrix_of_one_rank_are_refused() -> None:
    A = generate("poisson2d:6")

    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        b, M = np.ones(D.local_shape[0]), dasp.preconditioners.jacobi(A, device="cpu")
        with pytest.raises(ValueError, match="M takes 36 numbers on a rank that has 18 rows of A"):
            solvers.cg(D, b, M=M)
        for make in (preconditioners.jacobi, preconditioners.chebyshev):
            with pytest.raises(
                TypeError, match=r"D is a scipy\.csr_array; a dasp.distributed.SpMatrix is needed"
            ):
                make(A)  # type: ignore[arg-type]
        assert solvers.cg(D, b, M=preconditioners.jacobi(D))[1].converged

    run_ranks(2, run)


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
        assert ((mine[:, 0] @ D) == D.T @ mine[:, 0]).all()
        assert ((mine.T @ D) == (D.T @ mine).T).all()

    run_ranks(2, run)
