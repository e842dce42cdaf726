"""Solvers over ranks, real and complex. Ranks are threads here."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dasp
from dasp import solvers
from dasp.distributed import SpMatrix, preconditioners
from dasp.models import generate
from tests.support.ranks import everywhere, run_ranks
from tests.support.systems import helmholtz, hermitian, numbers

pytestmark = pytest.mark.ranks


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
    form = "PipelinedConjugateGradients" if hidden else "ConjugateGradients"
    assert taken == [form] * 2 + ["ConjugateGradients"] * 4


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
        assert (D @ block[:, 0]).max() == 2

    run_ranks(2, run)
