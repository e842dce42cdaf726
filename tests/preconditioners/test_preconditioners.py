"""Preconditioners: what they compute, that they help, and that every solver takes them."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import dasp
from dasp.preconditioners import Preconditioner, block_jacobi, chebyshev, ic0, ilu0, jacobi, multigrid
from dasp.solvers import Workspace, bicgstab, cg, gmres, minres
from dasp.solvers import chebyshev as chebyshev_iteration
from dasp.solvers.cuda.passes import TURN
from tests.support.simt_device import emulate, hold_emulated
from tests.support.systems import TYPES, check, hermitian, model, numbers, poisson, tolerance

pytestmark = pytest.mark.simt

pyamg = pytest.importorskip("pyamg")


def uneven(side: int, kind: str = "definite", dtype: Any = float) -> sp.csr_array:
    """A model matrix between two diagonal ones: its diagonal is over three orders."""
    scale = sp.diags_array(np.logspace(0, 1.5, side * side))
    return sp.csr_array(scale @ model(kind, side, dtype) @ scale).astype(dtype)


def matrix_of(M: Any) -> np.ndarray:
    return np.column_stack([M @ column for column in np.eye(M.shape[0])])


def levels(A: sp.csr_array, max_coarse: int = 6) -> Any:
    return pyamg.ruge_stuben_solver(sp.csr_matrix(A), max_coarse=max_coarse)


KINDS: dict[str, Callable[[sp.csr_array], Preconditioner]] = {
    "jacobi": jacobi,
    "block": lambda A: block_jacobi(A, block=5),
    "ic0": ic0,
    "ilu0": ilu0,
    "chebyshev": lambda A: chebyshev(A, degree=4),
    "multigrid": lambda A: multigrid(levels(A), device="cpu"),
    "multigrid-jacobi": lambda A: multigrid(levels(A), smoother="jacobi", device="cpu"),
    "multigrid-gs": lambda A: multigrid(levels(A), smoother="gauss-seidel", device="cpu"),
    "multigrid-W": lambda A: multigrid(levels(A), cycle="W", device="cpu"),
    "multigrid-F": lambda A: multigrid(levels(A), cycle="F", sweeps=2, device="cpu"),
}


def test_matrices_that_were_given_stay_as_they_are():
    A = uneven(6)
    for row in range(36):
        part = slice(A.indptr[row], A.indptr[row + 1])
        A.indices[part], A.data[part] = A.indices[part][::-1].copy(), A.data[part][::-1].copy()
    A = sp.csr_array((A.data, A.indices, A.indptr), A.shape)
    assert not A.has_sorted_indices
    kept = A.copy()
    for make in (jacobi, lambda A: block_jacobi(A, block=3), lambda A: chebyshev(A, bounds=(1.0, 2.0))):
        make(A)
        np.testing.assert_array_equal(A.indices, kept.indices)
        np.testing.assert_array_equal(A.data, kept.data)


def test_jacobi_divides():
    A = uneven(6)
    for kind in (np.int64, np.uint8, np.bool_):
        np.testing.assert_array_equal(jacobi(A) @ np.ones(36, kind), jacobi(A) @ np.ones(36))
    np.testing.assert_allclose(matrix_of(jacobi(A)), np.diag(1 / A.diagonal()), rtol=1e-15)
    for form in (A.tocsc(), A.toarray(), dasp.SpMatrix.from_scipy(A, device="cpu")):
        np.testing.assert_array_equal(jacobi(form) @ np.ones(36), jacobi(A) @ np.ones(36))


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_a_block_is_a_node_by_default(nodes):
    """Where all entries lie in dense blocks of nodes; else it has 4 rows."""
    A = sp.csr_array(sp.kron(poisson(4), np.ones((nodes, nodes))) + sp.eye_array(16 * nodes))
    for matrix in (A, A.tobsr((nodes, nodes)), sp.csr_array(sp.csc_array(A))):
        np.testing.assert_array_equal(
            matrix_of(block_jacobi(matrix)), matrix_of(block_jacobi(A, block=nodes))
        )
    np.testing.assert_array_equal(
        matrix_of(block_jacobi(uneven(6))), matrix_of(block_jacobi(uneven(6), block=4))
    )
    assert block_jacobi(sp.csr_array((0, 0))).shape == (0, 0)


@pytest.mark.parametrize("block", [1, 3, 7, 36, 2**70])
def test_block_jacobi_solves_with_the_blocks(block):
    A = uneven(6).toarray()
    want = np.zeros((36, 36))
    for start in range(0, 36, min(block, 36)):
        part = slice(start, min(36, start + block))
        want[part, part] = np.linalg.inv(A[part, part])
    np.testing.assert_allclose(
        matrix_of(block_jacobi(sp.csr_array(A), block=block)), want, rtol=1e-9, atol=1e-15
    )


def test_incomplete_factors_have_the_pattern_and_agree_on_it():
    """L U and A are equal wherever A has an entry; a matrix whose factors have no more is solved."""
    A = uneven(7)
    M = matrix_of(ilu0(A))
    product = np.linalg.inv(M)
    there = A.toarray() != 0
    np.testing.assert_allclose(product[there], A.toarray()[there], rtol=1e-9)
    np.testing.assert_allclose(matrix_of(ic0(A)), M, rtol=1e-12, atol=1e-18)
    rng = np.random.default_rng(0)
    dense = sp.csr_array(rng.standard_normal((12, 12)) + 12 * np.eye(12))
    np.testing.assert_allclose(matrix_of(ilu0(dense)), np.linalg.inv(dense.toarray()), rtol=1e-9, atol=1e-14)
    with pytest.raises(ValueError, match="row 1 has no usable pivot"):
        ilu0(sp.csr_array(np.array([[1.0, 2.0], [3.0, 0.0]])))
    with pytest.raises(ValueError, match="not symmetric"):
        ic0(dense)
    with pytest.raises(ValueError, match="pivot of row 0 is not positive"):
        ic0(-A)


@pytest.mark.parametrize("degree", [1, 2, 5])
def test_chebyshev_is_the_polynomial(degree):
    """On the interval the error polynomial is T(theta - lambda) / T(theta): no larger than 1 / T(theta)."""
    A, low, high = sp.diags_array(np.linspace(1.0, 9.0, 50), format="csr"), 0.2, 2.0
    scaled = np.linspace(1.0, 9.0, 50)
    M = chebyshev(A, degree=degree, bounds=(low, high))
    error = 1 - scaled * (M @ np.ones(50))  # D^-1 A is the identity
    theta, delta = (high + low) / 2, (high - low) / 2
    polynomial = np.polynomial.chebyshev.Chebyshev([0] * degree + [1])
    want = polynomial((theta - 1.0) / delta) / polynomial(theta / delta)
    np.testing.assert_allclose(error, want, rtol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "multigrid-F"])
def test_symmetric_positive_definite_and_helpful(kind):
    A = uneven(14)
    M = KINDS[kind](A)
    dense = matrix_of(M)
    np.testing.assert_allclose(dense, dense.T, atol=1e-11 * abs(dense).max())
    assert np.linalg.eigvalsh((dense + dense.T) / 2).min() > 0
    b = np.random.default_rng(0).standard_normal(196)
    x, stats = cg(A, b, M=M, rtol=1e-9)
    assert stats.converged
    check(A, x, b, stats, 1e-9)
    assert stats.iterations < cg(A, b, rtol=1e-9)[1].iterations
    # x -> M x is linear
    y, z = np.random.default_rng(1).standard_normal((2, 196))
    np.testing.assert_allclose(M @ (2 * y - z), 2 * (M @ y) - M @ z, rtol=1e-9, atol=1e-9 * abs(dense).max())


KEPT: dict[str, Callable[[Any], Preconditioner]] = {
    **{name: KINDS[name] for name in ("jacobi", "block", "ic0", "ilu0", "chebyshev")},
    "bounds": lambda A: chebyshev(A, degree=3, bounds=(0.1, 2.2)),
    "sweeps": lambda A: ilu0(A, sweeps=3),
}


@pytest.mark.parametrize("kind", ["jacobi", "ic0", "multigrid"])
def test_scipys_solvers_take_it(kind):
    A, b = uneven(12), np.ones(144)
    M = KINDS[kind](A)
    for theirs in (sla.cg, sla.bicgstab, sla.gmres):
        x, info = theirs(A, b, M=M, rtol=1e-8)
        assert info == 0
        assert np.linalg.norm(b - A @ x) <= 2e-8 * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, np.complex128) for kind in KEPT if kind != "bounds"),
        *(("block", one) for one in (np.float32, np.complex64)),
        ("sweeps", np.complex64),
        ("multigrid", np.float64),
    ],
)
def test_every_solver_takes_it(kind, dtype):
    A, b = uneven(12, dtype=dtype), numbers(144, dtype=dtype)
    M, rtol = (KEPT | KINDS)[kind](A), tolerance(dtype)
    assert M.dtype == dtype
    for method in (cg, minres, bicgstab, gmres):
        x, stats = method(A, b, M=M, rtol=rtol, maxiter=4000)
        assert stats.converged, stats.reason
        check(A, x, b, stats, rtol)
        plain = method(A, b, rtol=rtol, maxiter=4000)[1]
        assert stats.iterations < 0.6 * plain.iterations or not plain.converged
    if dtype == np.complex128:
        assert gmres(A, b, M=M.astype(np.complex64), rtol=1e-10, maxiter=4000)[1].converged
        with pytest.raises(ValueError, match="complex64 or complex128 is needed"):
            M.astype(np.float32)


@pytest.mark.parametrize("kind", ["jacobi", "block", "ilu0", "sweeps"])
def test_matrices_that_are_not_hermitian(kind):
    A, b = uneven(12, "general", complex), numbers(144)
    M = KEPT[kind](A)
    for method in (bicgstab, gmres):
        x, stats = method(A, b, M=M, rtol=1e-10, maxiter=4000)
        assert stats.converged, stats.reason
        check(A, x, b, stats, 1e-10)
    if kind == "ilu0":
        with pytest.raises(ValueError, match="A is not Hermitian; ilu0"):
            ic0(A)
    elif kind == "jacobi":
        np.testing.assert_allclose(M @ b, b / A.diagonal(), rtol=8 * np.finfo(float).eps)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_ic0_takes_a_matrix_that_rounding_made_unsymmetric(dtype):
    rng = np.random.default_rng(0)
    A, D = uneven(10).astype(dtype), sp.diags_array(rng.uniform(0.1, 10, 100).astype(dtype))
    A.data *= rng.uniform(0.9, 1, A.nnz).astype(A.real.dtype)
    A = sp.csr_array(D @ (A + A.conj().T) @ D)
    assert (A != A.conj().T).nnz
    assert cg(A, A @ np.ones(100, dtype), M=ic0(A), rtol=1e-4)[1].converged
    A[0, 1] += abs(A).max() / 10
    with pytest.raises(ValueError, match=r"A is not (symmetric|Hermitian)"):
        ic0(A)


@pytest.mark.parametrize("kind", KEPT)
def test_a_real_preconditioner_takes_complex_vectors(kind):
    A, r = uneven(10), numbers(100)
    M = KEPT[kind](A)
    z = M @ r
    assert z.dtype == np.complex128
    np.testing.assert_array_equal(z, (M @ r.real) + 1j * (M @ r.imag))
    out = np.full(100, np.nan, complex)
    assert M.matvec(r, out=out) is out
    np.testing.assert_array_equal(out, z)
    np.testing.assert_array_equal(M @ np.column_stack([r, r]), np.column_stack([z, z]))
    for method in (cg, gmres):
        x, stats = method(A, r, M=M, rtol=1e-10)
        assert stats.converged, stats.reason
        check(A, x, r, stats, 1e-10)


def test_a_complex_preconditioner_and_real_vectors():
    M, r = jacobi(hermitian(4) * 1j), np.ones(16)
    np.testing.assert_array_equal(M @ r, r / 4j)
    np.testing.assert_array_equal(M @ np.column_stack([r, r]), np.full((16, 2), 1 / 4j))
    assert (M @ r.astype(np.float32)).dtype == np.complex64
    with pytest.raises(TypeError, match="out has dtype float64; M r is complex"):
        M.matvec(r, out=np.empty(16))


@pytest.mark.parametrize("dtype", TYPES)
def test_triangles_through_the_kernels(monkeypatch, dtype):
    A, r = hermitian(6).astype(dtype), numbers(36).astype(dtype)
    want = ilu0(A) @ r
    device = emulate(monkeypatch)
    got = ilu0(A) @ r
    assert "dasp_triangular" in device.launches
    np.testing.assert_allclose(got, want, rtol=1e2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_inside_double(kind):
    A, b = uneven(14), np.random.default_rng(0).standard_normal(196)
    M = KINDS[kind](A)
    half = M.astype(np.float32)
    assert half.dtype == np.float32
    assert M.astype(np.float64) is M
    x, stats = cg(A, b, M=half, rtol=1e-11)
    assert stats.converged
    check(A, x, b, stats, 1e-11)
    assert stats.iterations <= cg(A, b, M=M, rtol=1e-11)[1].iterations * 1.15 + 3
    assert (half @ b).dtype == np.float64


def test_jacobi_costs_cg_no_pass(monkeypatch):
    """It is multiplied by where the residual is updated; the same as by a matrix."""
    A, b = uneven(6), np.random.default_rng(0).standard_normal(36)
    M = jacobi(A)
    want, told = cg(A, b, M=sp.diags_array(1 / A.diagonal(), format="csr"), rtol=1e-9)
    x, stats = cg(A, b, M=M, rtol=1e-9)
    assert stats.iterations == told.iterations
    y, also = chebyshev_iteration(A, b, M=M, rtol=1e-9)
    assert also.converged
    np.testing.assert_allclose(y, want, rtol=1e-6)
    np.testing.assert_allclose(x, want, rtol=1e-9)
    device = emulate(monkeypatch)
    counts = []
    for most in (2 * TURN, 2 * TURN + 1):  # some turns, and one more
        device.launches.clear()
        cg(A, b, M=M, rtol=1e-13, maxiter=most)
        counts.append(device.launches.count("dasp_fused"))
    assert counts[1] - counts[0] == TURN * 3
    np.testing.assert_allclose(cg(A, b, M=M, rtol=1e-9)[0], x, rtol=1e-7)


def rescaled(A: sp.csr_array) -> sp.csr_array:
    """A matrix of the same pattern whose diagonal and whose blocks are others."""
    scale = sp.diags_array(np.linspace(1.0, 3.0, A.shape[0]))
    return sp.csr_array(scale @ A @ scale)


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", KEPT)
def test_update_takes_the_values_of_another_matrix(kind, dtype, planned):
    A, r = uneven(8), np.random.default_rng(0).standard_normal(64)
    old, new = (dasp.SpMatrix.from_scipy(one, device="cpu") if planned else one for one in (A, rescaled(A)))
    M, want = KEPT[kind](old).astype(dtype), KEPT[kind](new).astype(dtype)
    assert M.update(new) is None
    np.testing.assert_array_equal(M @ r, want @ r)
    M.update(old)
    np.testing.assert_array_equal(M @ r, KEPT[kind](old).astype(dtype) @ r)


def test_update_refuses_other_matrices():
    A = uneven(5)
    for make in KEPT.values():
        with pytest.raises(ValueError, match=r"A has shape \(36, 36\); M has shape \(25, 25\)"):
            make(A).update(uneven(6))
        with pytest.raises(TypeError, match="A is complex and M computes in float64"):
            make(A).update(A * 1j)
    with pytest.raises(ValueError, match="another pattern"):
        ic0(A).update(sp.csr_array(sp.eye_array(25)))
    M = jacobi(A)
    with pytest.raises(ValueError, match="no usable diagonal"):
        M.update(sp.csr_array((25, 25)))
    np.testing.assert_array_equal(M @ np.ones(25), jacobi(A) @ np.ones(25))


def test_prepared_programs_follow_an_update(monkeypatch):
    """Nothing that a GPU's graph has captured goes stale, except where `generation` grows."""
    emulate(monkeypatch)
    A, r = uneven(5), np.random.default_rng(0).standard_normal(25)
    for make in KEPT.values():
        S = dasp.SpMatrix.from_scipy(A, device="cpu", policy=dasp.Policy(narrow=False))
        M, z, workspace = make(S), np.zeros(25), Workspace()
        program, generation = M.prepare(r, z), M.generation
        cg(S, r, M=M, workspace=workspace)
        S.with_values(rescaled(A).data, out=S)
        M.update(S)
        want = make(rescaled(A)) @ r
        np.testing.assert_allclose(M @ r, want, rtol=1e-12)
        if M.generation == generation:
            program()
            np.testing.assert_allclose(z, want, rtol=1e-12)
        x, stats = cg(S, r, M=M, workspace=workspace, rtol=1e-9)
        check(rescaled(A), x, r, stats, 1e-9)
        assert stats.iterations <= cg(S, r, M=make(S), rtol=1e-9)[1].iterations + 1


def test_a_solver_says_once_that_a_preconditioner_is_old():
    A, b = uneven(6), np.ones(36)
    S = dasp.SpMatrix.from_scipy(A, device="cpu", policy=dasp.Policy(narrow=False))
    M = jacobi(S)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cg(S, b, M=M)
        S.with_values(4 * A.data, out=S)
        with pytest.raises(UserWarning, match=r"older values of A; M\.update\(A\)"):
            cg(S, b, M=M)
        cg(S, b, M=M)
        cg(A, b, M=jacobi(S))
        M.update(S)
        np.testing.assert_array_equal(M @ b, 1 / (4 * A.diagonal()))
        cg(S, b, M=M)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kernels_do_the_same(monkeypatch, dtype):
    """Every preconditioner, with its passes run by the emulator."""
    A, r = uneven(5), np.random.default_rng(0).standard_normal(25)
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(A), max_coarse=3)
    module = importlib.import_module("dasp.multigrid.hierarchy")
    monkeypatch.setattr(module, "DENSE_ROWS", 8)

    def made() -> list[Any]:
        kinds = (
            jacobi(A),
            block_jacobi(A, block=4),
            chebyshev(A, degree=3),
            multigrid(ml, device="cpu", cycle="W"),
        )
        return [M.astype(dtype) for M in (*kinds, multigrid(ml, smoother="jacobi", device="cpu"))]

    hold_emulated(monkeypatch, made, r, dtype)


def test_it_shows_what_it_is():
    A = poisson(5)
    assert repr(jacobi(A)) == f"<jacobi {A.shape[0]} x {A.shape[0]}, float64, on cpu>"
    assert repr(ilu0(A).astype(np.float32)) == f"<incomplete {A.shape[0]} x {A.shape[0]}, float32, on cpu>"


@pytest.mark.parametrize("of", [pickle.dumps, copy.deepcopy, copy.copy])
def test_neither_preconditioners_nor_workspaces_are_pickled(of):
    A = poisson(4)
    for one in (jacobi(A, device="cpu"), ic0(A, device="cpu"), Workspace()):
        with pytest.raises(TypeError, match="cannot be pickled or copied: it holds prepared passes"):
            of(one)


def test_wrong_arguments_are_told():
    A = sp.csr_array(np.diag([1.0, 0.0, 2.0]))
    with pytest.raises(ValueError, match="1 rows have no usable diagonal entry, the first is row 1"):
        jacobi(A)
    with pytest.raises(ValueError, match="is singular"):
        block_jacobi(A, block=1)
    with pytest.raises(ValueError, match="square"):
        jacobi(sp.csr_array(np.ones((2, 3))))
    with pytest.raises(TypeError, match="entries can be read"):
        jacobi(sla.aslinearoperator(np.eye(2)))
    with pytest.raises(ValueError, match="bounds are"):
        chebyshev(poisson(3), bounds=(2.0, 1.0))
    for bounds in ((1.0,), "ab", 3.0):
        with pytest.raises(TypeError, match=r"bounds are .*; two rising positive numbers are needed"):
            chebyshev(poisson(3), bounds=bounds)
    for degree in (2.5, "3", True):
        with pytest.raises(TypeError, match=r"degree is .*; an int is needed"):
            chebyshev(poisson(3), degree=degree)
    with pytest.raises(ValueError, match="degree is 1180591620717411303424; at most 1000 is needed"):
        chebyshev(poisson(3), degree=2**70)
    with pytest.raises(ValueError, match="degree is 0; at least 1 is needed"):
        chebyshev(poisson(3), degree=0)
    with pytest.raises(TypeError, match="ml is a str; a hierarchy of PyAMG is needed, or a matrix"):
        multigrid("A")
    with pytest.raises(TypeError, match="a matrix whose entries can be read is needed"):
        multigrid(sla.aslinearoperator(poisson(5)))
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(poisson(5)))
    with pytest.raises(ValueError, match="smoother is 'sor'"):
        multigrid(ml, smoother="sor")
    with pytest.raises(TypeError, match=r"sweeps is 1\.5; an int is needed"):
        multigrid(ml, sweeps=1.5)
    with pytest.raises(ValueError, match=r"r has shape \(3,\); \(25,\) is needed"):
        multigrid(ml, device="cpu") @ np.ones(3)
    with pytest.raises(ValueError, match="dtype is int32"):
        jacobi(poisson(3)).astype(np.int32)
    with pytest.raises(TypeError, match="r is a list"):
        jacobi(poisson(3)) @ [1.0] * 9
    with pytest.raises(TypeError, match="out has dtype int64; M r has fractions, so float64 is needed"):
        jacobi(poisson(3)).matvec(np.ones(9), out=np.ones(9, np.int64))


@pytest.mark.parametrize("make", [jacobi, chebyshev, ilu0, ic0, partial(block_jacobi, block=2)])
@pytest.mark.parametrize("size", [0.0, np.nan, np.inf, 1e-320, np.float32(1e-42)])
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_divided_by_is_refused(make, size):
    """A preconditioner that holds infinity would hide what a solver must see."""
    A = sp.csr_array(poisson(4) * size).astype(np.dtype(type(size)))
    for matrix in (A, sp.csr_array(A.shape, dtype=A.dtype)):
        with pytest.raises(ValueError, match=r"usable|singular|pivot|finite"):
            make(matrix)


@pytest.mark.parametrize("make", [jacobi, chebyshev, ilu0, ic0, partial(block_jacobi, block=2)])
def test_devices_are_named_as_those_of_matrices(make):
    for device, error in (("gpu", ValueError), ("", ValueError), ("cuda:x", ValueError), (3, TypeError)):
        with pytest.raises(error, match="device is"):
            make(poisson(3), device=device)


def test_vectors_that_are_no_plain_numbers_are_refused():
    M, r = jacobi(poisson(3)), np.ones(9)
    np.testing.assert_array_equal(M @ r.astype(">f8"), M @ r)
    with pytest.raises(TypeError, match="masked array"):
        M @ np.ma.masked_array(r, r > 0)
    with pytest.raises(TypeError, match="object"):
        M @ r.astype(object)
    with pytest.raises(TypeError, match="out is a list"):
        M.matvec(r, out=[0.0] * 9)


def test_results_are_written_into_arrays_like_the_residual():
    M, r = jacobi(poisson(3)), np.ones(9)
    for shape in ((3,), (3, 3), (1, 9)):
        with pytest.raises(ValueError, match="out has shape"):
            M.matvec(r, out=np.zeros(shape))
    R = np.ones((9, 4))
    with pytest.raises(ValueError, match="out overlaps R"):
        M.matmat(R[:, :3], out=R[:, 1:])


def test_columns_in_any_order_of_memory_are_each_multiplied():
    A, R = poisson(4), np.random.default_rng(0).standard_normal((16, 3))
    for M in (jacobi(A), ilu0(A), block_jacobi(A)):
        want = np.column_stack([M @ column for column in R.T])
        for order in "CF":
            out = np.full(R.shape, np.nan, order=order)
            assert M.matmat(np.asarray(R, order=order), out=out) is out
            np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(M @ (R + 1j * R), want + 1j * want)
        np.testing.assert_array_equal(M @ R[::-1, ::2][::-1], want[:, ::2])
        with pytest.raises(TypeError, match="out has dtype int64"):
            M.matmat(R, out=np.zeros(R.shape, np.int64))


def test_a_matrix_of_one_dimension_is_refused():
    for make in (jacobi, chebyshev, ilu0, ic0, block_jacobi):
        with pytest.raises(ValueError, match="square"):
            make(sp.coo_array(np.ones(4)))


def swept(A: sp.csr_array, sweeps: int) -> np.ndarray:
    """What sweeps must do, from the factors that exact solves use."""
    exact = ilu0(A)
    n = A.shape[0]
    whole = np.linalg.inv(matrix_of(exact))  # L U, and L has ones on its diagonal
    upper = np.zeros((n, n))
    lower = np.eye(n)
    for k in range(n):
        upper[k, k:] = whole[k, k:] - lower[k, :k] @ upper[:k, k:]
        lower[k + 1 :, k] = (whole[k + 1 :, k] - lower[k + 1 :, :k] @ upper[:k, k]) / upper[k, k]
    inverse = 1 / upper.diagonal()
    strict = np.triu(upper, 1)
    y = np.eye(n)
    for _ in range(sweeps):
        y = np.eye(n) - np.tril(lower, -1) @ y
    x = inverse[:, None] * y
    for _ in range(sweeps):
        x = inverse[:, None] * (y - strict @ x)
    return x


@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("make", [ic0, ilu0])
def test_sweeps_approximate_the_triangular_solves(monkeypatch, make, sweeps):
    A = uneven(6)
    wanted, got = swept(A, sweeps), matrix_of(make(A, sweeps=sweeps))
    scale = abs(wanted).max()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-10 * scale)
    np.testing.assert_allclose(got, got.T, rtol=0, atol=1e-12 * scale)
    assert np.linalg.eigvalsh((got + got.T) / 2)[0] > 0
    emulate(monkeypatch)
    np.testing.assert_allclose(
        make(A, sweeps=sweeps) @ np.ones(36), got @ np.ones(36), rtol=0, atol=1e-12 * scale * 36
    )


def test_sweeps_save_iterations_and_become_the_solves():
    A, b = uneven(20), np.ones(400)
    _, none = cg(A, b, rtol=1e-9, M=jacobi(A))
    _, exact = cg(A, b, rtol=1e-9, M=ic0(A))
    counts = [cg(A, b, rtol=1e-9, M=ic0(A, sweeps=sweeps))[1].iterations for sweeps in (1, 3, 400)]
    assert exact.iterations == counts[2] <= counts[1] < counts[0] < none.iterations
    for wrong, error in ((0, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="sweeps is"):
            ilu0(A, sweeps=wrong)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [kind for kind in KEPT if kind != "bounds"])
@pytest.mark.parametrize("dtype", TYPES)
def test_complex_ones_on_a_gpu(kind, dtype):
    import cupy

    A, b, rtol = uneven(12, dtype=dtype), numbers(144, dtype=dtype), tolerance(dtype)
    planned = dasp.SpMatrix.from_scipy(A, device="cuda")
    M = KEPT[kind](planned)
    for method in (cg, bicgstab, gmres):
        x, stats = method(planned, cupy.asarray(b), M=M, rtol=rtol, maxiter=2000)
        assert stats.converged, stats.reason
        check(A, x.get(), b, stats, rtol)


@pytest.mark.cuda
@pytest.mark.parametrize("method", [cg, bicgstab, gmres])
def test_incomplete_factors_on_a_gpu(method):
    import cupy

    A = uneven(20)
    planned, b = dasp.SpMatrix.from_scipy(A, device="cuda"), cupy.ones(400)
    pairs = [(make(planned, sweeps=k), make(A, sweeps=k)) for make in (ic0, ilu0) for k in (None, 2)]
    for M, N in pairs:
        workspace = Workspace()
        x, stats = method(planned, b, M=M, rtol=1e-9, workspace=workspace)
        again, _ = method(planned, b, M=M, rtol=1e-9, workspace=workspace)
        assert stats.converged, stats.reason
        check(A, x.get(), b.get(), stats, 1e-9)
        np.testing.assert_array_equal(x.get(), again.get())
        _, told = method(A, b.get(), M=N, rtol=1e-9)
        assert abs(told.iterations - stats.iterations) <= 3


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [*KEPT, "multigrid"])
def test_updates_on_a_gpu(kind):
    import cupy

    make = KEPT.get(kind, multigrid)
    old, new = uneven(20), rescaled(uneven(20))
    planned = dasp.SpMatrix.from_scipy(old, device="cuda", policy=dasp.Policy(narrow=False))
    M, b, workspace = make(planned), cupy.ones(400), Workspace()
    for matrix in (old, new, old):
        planned.with_values(cupy.asarray(matrix.data), out=planned)
        M.update(planned)
        x, stats = cg(planned, b, M=M, rtol=1e-9, workspace=workspace)
        check(matrix, x.get(), b.get(), stats, 1e-9)
        fresh = cg(planned, b, M=make(planned), rtol=1e-9)[1]
        assert stats.iterations <= fresh.iterations + 3


@pytest.mark.cuda
def test_on_a_gpu():
    import cupy
    import cupyx.scipy.sparse.linalg as theirs

    A = uneven(20)
    planned, b = dasp.SpMatrix.from_scipy(A, device="cuda"), cupy.ones(400)
    ml = pyamg.ruge_stuben_solver(sp.csr_matrix(A.copy()))
    pairs = [(make(planned), make(A)) for make in (jacobi, partial(block_jacobi, block=4), chebyshev)]
    for M, on_cpu in [*pairs, (multigrid(ml), multigrid(ml, device="cpu"))]:
        for N in (M, M.astype(np.float32)):
            workspace = Workspace()
            x, stats = cg(planned, b, M=N, rtol=1e-9, workspace=workspace)
            again, _ = cg(planned, b, M=N, rtol=1e-9, workspace=workspace)
            assert stats.converged
            check(A, x.get(), b.get(), stats, 1e-9)
            np.testing.assert_array_equal(x.get(), again.get())
            _, told = cg(A, b.get(), M=on_cpu, rtol=1e-9)
            assert abs(told.iterations - stats.iterations) <= 3
            operator = theirs.LinearOperator(M.shape, matvec=M.matvec, dtype=np.float64)
            _, info = theirs.cg(planned.as_linear_operator(), b, M=operator, rtol=1e-9)
            assert info == 0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_that_a_type_does_not_hold_are_refused(size):
    """M in single precision would be infinite, or zero."""
    A = sp.csr_array(poisson(12) * size)
    ml = levels(poisson(12))
    for level in ml.levels:
        level.A = level.A * size
    kinds = {
        **{name: KINDS[name] for name in ("jacobi", "ilu0", "ic0", "chebyshev")},
        "multigrid": lambda _: multigrid(ml, device="cpu"),
        "block": lambda A: block_jacobi(A, block=2),
        "sweeps": lambda A: ilu0(A, sweeps=2),
    }
    for name, make in kinds.items():
        with np.errstate(over="ignore"):
            M = make(A)
        with pytest.raises(ValueError, match="too large or too small for float32"):
            M.astype(np.float32)
        assert np.isfinite(M @ np.ones(144)).all(), name


def test_jacobi_unpacks_no_plan(monkeypatch):
    A = uneven(6)
    planned = dasp.SpMatrix.from_scipy(A, device="cpu")
    monkeypatch.setattr(dasp.SpMatrix, "to_scipy", None)
    np.testing.assert_array_equal(jacobi(planned) @ np.ones(36), jacobi(A) @ np.ones(36))
