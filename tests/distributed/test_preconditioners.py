"""Preconditioners and multigrid over ranks, which are threads here."""

from __future__ import annotations

import math
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import solvers
from dasp.distributed import SpMatrix, preconditioners
from dasp.distributed.partition import collect_rows
from dasp.models import generate
from dasp.multigrid.hierarchy import as_csr, coarsen
from tests.distributed.test_solvers import complex_solved, solved
from tests.multigrid.test_cycle import in_field
from tests.support.ranks import ThreadCommunicator, everywhere, run_ranks
from tests.support.systems import hermitian, numbers

pytestmark = pytest.mark.ranks


@cache
def transfers(n: int) -> list[tuple[sp.csr_array, sp.csr_array]]:
    """P and R between the levels of Poisson's equation."""
    pyamg, model = pytest.importorskip("pyamg"), generate(f"poisson2d:{math.isqrt(n)}")
    levels = pyamg.smoothed_aggregation_solver(sp.csr_matrix(model), max_coarse=5).levels
    return [(as_csr(level.P), as_csr(level.R)) for level in levels[:-1]]


def hierarchy(D: SpMatrix) -> Any:
    """A hierarchy of D, on rank 0."""
    whole = collect_rows(D.comm, D.local_rows())
    levels = None if whole is None else coarsen(as_csr(whole), transfers(D.shape[0]))
    return levels and SimpleNamespace(levels=levels)


PRECONDITIONED = {
    "none": lambda D: {},
    "jacobi": lambda D: {"M": preconditioners.jacobi(D)},
    "blocks of 4": lambda D: {"M": preconditioners.block_jacobi(D, block=4)},
    "chebyshev": lambda D: {"M": preconditioners.chebyshev(D)},
    "ic0 of each rank": lambda D: {"M": preconditioners.of_blocks(D, dasp.preconditioners.ic0)},
    "multigrid": lambda D: {"M": preconditioners.multigrid(D, hierarchy(D))},
}


@pytest.mark.parametrize("name", PRECONDITIONED)
def test_preconditioners_over_ranks(name: str) -> None:
    _, stats, residual = solved(3, "cg", PRECONDITIONED[name])
    assert stats.converged
    assert residual <= 1.0001e-9


@pytest.mark.parametrize("name", [name for name in PRECONDITIONED if name != "none"])
def test_preconditioners_over_ranks_take_new_values(name: str) -> None:
    """As those that are made anew; a solver warns once, on one rank, if they did not."""
    A = generate("poisson2d:8")
    scale = sp.diags_array(np.linspace(1.0, 3.0, 64))
    B = sp.csr_array(scale @ A @ scale)

    def run(comm: ThreadCommunicator) -> int:
        old = SpMatrix.from_scipy(A if comm.rank == 0 else None, comm, device="cpu")
        new = old.with_values(B.data[B.indptr[old.rows.first] :][: old.interior.nnz + old.halo.nnz])
        M, want = (PRECONDITIONED[name](D)["M"] for D in (old, new))
        r = np.ones(new.local_shape[0])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for D in (old, new, new):
                solvers.cg(D, r, M=M)
            M.update(new)
            solvers.cg(new, r, M=M)
        np.testing.assert_array_equal(M @ r, want @ r)
        other = SpMatrix.from_scipy(B, comm, device="cpu", rows=[0, 10, 64])
        with pytest.raises(ValueError, match="rank 0: this rank's block is"):
            M.update(other)
        np.testing.assert_array_equal(M @ r, want @ r)
        assert solvers.cg(new, r, M=M)[1].converged
        return sum("M was made of older values of A" in str(one.message) for one in said)

    assert sum(run_ranks(2, run)) == 1  # threads share what catches warnings


def test_arrays_that_an_update_replaces_on_one_rank_count_on_all() -> None:
    def run(comm: ThreadCommunicator) -> None:
        D = SpMatrix.from_scipy(generate("poisson2d:8") if comm.rank == 0 else None, comm, device="cpu")
        M = preconditioners.jacobi(D)
        M._own._load = lambda numbers: comm.rank == 0  # type: ignore[method-assign]
        for count in (1, 2):
            M.update(D)
            assert M.generation == count  # so that both prepare their programs anew, and together

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
        with pytest.raises(ValueError, match="dtype is float32 on rank 0 and float16 on rank 1"):
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
    monkeypatch.setattr("dasp.multigrid.hierarchy.DENSE_ROWS", 20)
    A = generate("poisson2d:40")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(A), max_coarse=20)
    b = np.random.default_rng(30).standard_normal(1600)
    mine, alone = iterations_with_multigrid(A, b, ml, options)
    assert mine == alone


@pytest.mark.parametrize("count", [1, 3])
def test_a_large_last_level_over_ranks_is_smoothed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pyamg = pytest.importorskip("pyamg")
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 100)
    monkeypatch.setattr("dasp.multigrid.hierarchy.DENSE_ROWS", 0)
    monkeypatch.setattr("dasp.multigrid.hierarchy.MOST_INVERSE_ROWS", 30)
    monkeypatch.setattr("dasp.multigrid.hierarchy._invert", None)
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


@pytest.mark.parametrize("name", ["chebyshev", "ic0 of each rank"])
def test_complex_preconditioners_over_ranks(name: str) -> None:
    A, b = hermitian(18), numbers(324)

    def make(D: SpMatrix) -> Any:
        return PRECONDITIONED[name](D).get("M")

    _, stats, residual = complex_solved(3, "cg", A, b, make, rtol=1e-9)
    assert stats.converged, stats.reason
    assert residual <= 1.0001e-9


def test_complex_multigrid_is_that_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preconditioners, "LEAST_ROWS", 100)
    A, b, ml = hermitian(40), numbers(1600), in_field(40, max_coarse=20)
    mine, alone = iterations_with_multigrid(A, b, ml, {})
    assert abs(mine - alone) <= 1


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
        with pytest.raises(TypeError, match=r"over ranks take dasp\.distributed\.preconditioners"):
            dasp.preconditioners.jacobi(D)
        assert solvers.cg(D, b, M=preconditioners.jacobi(D))[1].converged

    run_ranks(2, run)
