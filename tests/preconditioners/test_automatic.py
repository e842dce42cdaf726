"""`dasp.solve` and the choice of a method."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import dasp
from dasp.models import generate
from dasp.preconditioners.automatic import METHODS, choose_method, is_hermitian

PHASES = sp.diags_array(np.exp(1j * np.arange(100)))
HERMITIAN = sp.csr_array(PHASES @ generate("poisson2d:10") @ PHASES.conj())
MATRICES = {
    "poisson2d:10": (generate("poisson2d:10"), "cg"),
    "fem3:5": (generate("fem3:5"), "cg"),
    "kkt:100": (generate("kkt:100"), "minres"),
    "circuit:200": (generate("circuit:200"), "bicgstab"),
    "lp:40:90": (generate("lp:40:90"), "lsmr"),
    "Hermitian": (HERMITIAN, "cg"),
    "complex symmetric": (sp.csr_array(generate("poisson2d:10") + 1j * sp.eye_array(100)), "bicgstab"),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("planned", [False, True])
def test_the_method_follows_the_matrix(name: str, planned: bool) -> None:
    matrix, method = MATRICES[name]
    A = dasp.SpMatrix.from_scipy(matrix, device="cpu") if planned else matrix
    assert choose_method(A)[0] == method


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_one_entry_makes_a_matrix_unsymmetric(dtype: type) -> None:
    matrix = sp.lil_array(generate("poisson2d:60").astype(dtype))
    assert is_hermitian(matrix)
    matrix[3, 2500] = 0.01
    assert not is_hermitian(matrix)
    matrix[2500, 3] = 0.01
    assert is_hermitian(matrix)
    matrix[7, 7] = np.nan
    assert not is_hermitian(matrix)


@pytest.mark.parametrize(("dtype", "size"), [("f8", 1e300), ("f8", 1e-300), ("f4", 1e37), ("f4", 1e-30)])
def test_a_matrix_of_any_size_is_judged(dtype: str, size: float) -> None:
    matrix = (size * generate("poisson2d:10")).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_hermitian(matrix)
        assert not is_hermitian(sp.csr_array(sp.triu(matrix)))
        _, stats = dasp.solve(matrix, np.ones(100, dtype), device="cpu")
    assert stats.converged


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("planned", [False, True])
def test_a_symmetric_matrix_is_one_after_rounding(dtype: type, planned: bool) -> None:
    rng = np.random.default_rng(0)
    matrix, D = generate("poisson2d:20"), sp.diags_array(10.0 ** rng.uniform(-2, 2, 400)).astype(dtype)
    matrix.data *= rng.uniform(0.9, 1, matrix.nnz)
    matrix = sp.csr_array(D @ (matrix + matrix.T).astype(dtype) @ D)
    assert (matrix != matrix.T).nnz
    assert is_hermitian(dasp.SpMatrix.from_scipy(matrix, device="cpu") if planned else matrix)


@pytest.mark.parametrize("name", MATRICES)
def test_a_system_is_solved_by_what_is_chosen(name: str) -> None:
    matrix, method = MATRICES[name]
    b = matrix @ np.random.default_rng(0).standard_normal(matrix.shape[1])
    x, stats = dasp.solve(matrix, b, device="cpu")
    assert stats.converged
    assert stats.choice.startswith(method)
    assert np.linalg.norm(b - matrix @ x) <= 1.01e-8 * np.linalg.norm(b) or method == "lsmr"
    again, same = dasp.solve(dasp.SpMatrix.from_scipy(matrix, device="cpu"), b)
    np.testing.assert_array_equal(again, x)
    assert same.choice == stats.choice


def test_jacobi_is_chosen_where_the_diagonal_varies() -> None:
    laplacian, b = generate("poisson2d:10"), np.ones(100)
    scaled = sp.csr_array(laplacian + sp.diags_array(np.arange(100.0)))
    assert dasp.solve(laplacian, b, device="cpu")[1].choice.startswith("cg: A is symmetric")
    assert dasp.solve(scaled, b, device="cpu")[1].choice.startswith("cg with Jacobi")
    assert dasp.solve(scaled, b, M=None, device="cpu")[1].choice.startswith("cg: A is symmetric")
    M = dasp.preconditioners.ic0(scaled, device="cpu")
    _, stats = dasp.solve(scaled, b, method="minres", M=M, device="cpu")
    assert stats.converged
    assert stats.choice.endswith(": as asked for")


def test_the_diagonal_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    read = dasp.SpMatrix.diagonal
    monkeypatch.setattr(dasp.SpMatrix, "diagonal", lambda A, *k: seen.append(A) or read(A, *k))
    scaled = sp.csr_array(generate("poisson2d:10") + sp.diags_array(np.arange(100.0)))
    _, stats = dasp.solve(scaled, np.ones(100), device="cpu")
    assert (len(seen), stats.choice.startswith("cg with Jacobi")) == (1, True)


def test_another_method_goes_on_where_the_chosen_one_breaks_down() -> None:
    indefinite = sp.csr_array(generate("poisson2d:10") - 1.5 * sp.eye_array(100))
    x, stats = dasp.solve(indefinite, np.ones(100), device="cpu")
    assert (stats.converged, stats.choice.startswith("cg, then minres: ")) == (True, True)
    assert np.linalg.norm(indefinite @ x - 1) <= 1.01e-7
    _, few = dasp.solve(indefinite, np.ones(100), maxiter=stats.iterations - 1, device="cpu")
    assert (few.converged, few.iterations) == (False, stats.iterations - 1)
    _, stats = dasp.solve(indefinite, np.ones(100), method="cg", device="cpu")
    assert not stats.converged  # what was asked for is not replaced


def test_single_precision_gets_a_tolerance_that_it_reaches() -> None:
    matrix = generate("poisson3d:8").astype(np.float32)
    x, stats = dasp.solve(matrix, np.ones(512, np.float32), device="cpu")
    assert (x.dtype, stats.converged) == (np.float32, True)


def test_an_operator_without_a_diagonal_is_solved_too() -> None:
    _, stats = dasp.solve(aslinearoperator(generate("poisson2d:8")), np.ones(64))
    assert stats.converged
    assert stats.choice.startswith("minres: A is symmetric, and has no diagonal")
    assert dasp.solve(np.eye(3), np.ones(3), device="cpu")[0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_asked_for(method: str) -> None:
    _, stats = dasp.solve(generate("poisson2d:8"), np.ones(64), method=method, device="cpu", maxiter=2000)
    assert stats.converged


def test_what_is_none_of_the_choices_is_an_error() -> None:
    A, b = generate("poisson2d:8"), np.ones(64)
    with pytest.raises(ValueError, match="method is 'lobpcg'; one of cg, minres"):
        dasp.solve(A, b, method="lobpcg")
    with pytest.raises(ValueError, match="M is 'jacobi'; 'auto', None or a preconditioner is needed"):
        dasp.solve(A, b, M="jacobi")
    M = dasp.preconditioners.jacobi(A, device="cpu")
    with pytest.raises(ValueError, match=r"M is a .*, and lsqr takes no preconditioner; leave M out"):
        dasp.solve(A, b, method="lsqr", M=M, device="cpu")
    with pytest.raises(TypeError, match="a matrix or linear operator is needed"):
        dasp.solve(3.0, b)
