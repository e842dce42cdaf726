"""Solvers of others with a planned matrix: SciPy's and CuPy's, PyAMG's and PyLops'."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import dasp
from dasp import SpMatrix
from tests.support.reference import assert_close

WAYS = {"operator": SpMatrix.as_linear_operator, "matrix": lambda A: A}
"""What is passed: the operator, or the matrix, of which SciPy makes one."""


def spd():
    return dasp.models.generate("poisson2d:12").astype(float)


def unsymmetric():
    matrix = spd()
    return sp.csr_array(matrix + sp.diags_array(np.full(143, 0.7), offsets=1, shape=(144, 144)))


def tall():
    return sp.csr_array(
        sp.random_array((70, 30), density=0.2, random_state=np.random.default_rng(5)) + sp.eye_array(70, 30)
    )


def planned(matrix, device="cpu"):
    return SpMatrix.from_scipy(matrix, device=device)


@pytest.fixture
def b():
    return np.random.default_rng(0).standard_normal(144)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", ["cg", "cgs", "bicg", "bicgstab", "gmres", "minres", "qmr", "tfqmr", "lgmres"]
)
def test_scipys_solvers(name, way, b):
    matrix = spd() if name in ("cg", "minres") else unsymmetric()
    x, failed = getattr(sla, name)(WAYS[way](planned(matrix)), b, rtol=1e-11)
    assert failed == 0
    assert np.linalg.norm(matrix @ x - b) <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["lsqr", "lsmr"])
def test_scipys_least_squares(name, way):
    matrix, b = tall(), np.random.default_rng(0).standard_normal(70)
    x = getattr(sla, name)(WAYS[way](planned(matrix)), b, atol=1e-13, btol=1e-13)[0]
    want = np.linalg.lstsq(matrix.toarray(), b)[0]
    assert np.linalg.norm(x - want) <= 1e-8 * np.linalg.norm(want)


@pytest.mark.parametrize("way", WAYS)
def test_scipys_eigenvalues_and_singular_values(way):
    symmetric, general, wide = spd(), unsymmetric(), tall().T.tocsr()
    passed, rng = WAYS[way], np.random.default_rng(0)
    starts = [rng.standard_normal(matrix.shape[0]) for matrix in (symmetric, general)]
    values = sla.eigsh(passed(planned(symmetric)), 3, return_eigenvectors=False, v0=starts[0])
    want = np.linalg.eigvalsh(symmetric.toarray())
    np.testing.assert_allclose(np.sort(values), want[-3:], rtol=1e-10)
    values = sla.eigs(passed(planned(general)), 3, return_eigenvectors=False, v0=starts[1])
    all_values = np.linalg.eigvals(general.toarray())
    np.testing.assert_allclose(sorted(abs(values)), np.sort(abs(all_values))[-3:], rtol=1e-9)
    values = sla.svds(passed(planned(wide)), 3, return_singular_vectors=False, rng=0)
    want = np.linalg.svd(wide.toarray(), compute_uv=False)
    np.testing.assert_allclose(np.sort(values), np.sort(want[:3]), rtol=1e-10)
    X = np.random.default_rng(0).standard_normal((144, 4))
    values = sla.lobpcg(passed(planned(symmetric)), X, tol=1e-8, maxiter=200)[0]
    np.testing.assert_allclose(values, np.linalg.eigvalsh(symmetric.toarray())[::-1][:4], rtol=1e-8)


def test_scipys_functions_of_matrices(b):
    matrix = unsymmetric()
    operator = planned(matrix).as_linear_operator()
    got = sla.expm_multiply(-0.1 * operator, b, traceA=-0.1 * matrix.trace())
    want = scipy.linalg.expm(-0.1 * matrix.toarray()) @ b
    assert np.linalg.norm(got - want) <= 1e-10 * np.linalg.norm(want)
    for seed in range(5):  # an estimate from random vectors
        estimates = []
        for one in (operator, matrix):
            np.random.seed(seed)  # noqa: NPY002, which SciPy draws from
            estimates.append(sla.onenormest(one))
        assert estimates[0] == pytest.approx(estimates[1], rel=1e-12)


def test_scipys_least_squares_of_functions(b):
    matrix = spd()
    operator = planned(matrix).as_linear_operator()
    for x in (
        scipy.optimize.least_squares(lambda x: matrix @ x - b, 0 * b, jac=lambda x: operator).x,
        scipy.optimize.lsq_linear(operator, b).x,
    ):
        assert np.linalg.norm(matrix @ x - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(
    "call",
    [
        sp.csr_array,
        sp.csr_matrix,
        sp.csc_array,
        sp.coo_array,
        sp.triu,
        lambda A: sp.block_array([[A]]),
        lambda A: sp.save_npz(os.devnull, A),
        lambda A: sp.eye_array(144) @ A,
        lambda A: sp.eye_array(144, format="csr") + A,
        lambda A: A + sp.eye_array(144),
        lambda A: sla.spsolve(A, np.ones(144)),
        sla.splu,
        sla.expm,
        lambda A: sla.expm_multiply(A, np.ones(144)),
        lambda A: scipy.optimize.lsq_linear(A, np.ones(144)),
        sp.csgraph.laplacian,
        sp.csgraph.connected_components,
        np.asarray,
        np.linalg.norm,
    ],
)
def test_a_function_that_reads_entries_names_the_way_round(call):
    with pytest.raises(Exception, match=r"A\.to_scipy\(\)"):
        call(planned(spd()))


def test_every_product_of_the_operator():
    matrix = tall()
    operator, rng = planned(matrix).as_linear_operator(), np.random.default_rng(1)
    x, X = rng.standard_normal(30), rng.standard_normal((30, 3))
    z, Z = rng.standard_normal(70), rng.standard_normal((70, 3))
    turned = matrix.T.tocsr()
    assert_close(operator.matvec(x), matrix, x)
    assert_close(operator.rmatvec(z), turned, z)
    assert_close(operator.T @ z, turned, z)
    assert_close(operator.H @ z, turned, z)
    for k in range(3):
        assert_close(operator.matmat(X)[:, k], matrix, X[:, k])
        assert_close(operator.rmatmat(Z)[:, k], turned, Z[:, k])


def test_the_operator_goes_to_another_process(b):
    matrix = unsymmetric()
    for operator in (
        planned(matrix).as_linear_operator(),
        planned(matrix).shifted(2.0).as_linear_operator(),
    ):
        came = pickle.loads(pickle.dumps(operator))
        np.testing.assert_array_equal(came @ b, operator @ b)
        np.testing.assert_array_equal(came.rmatvec(b), operator.rmatvec(b))


def test_pyamg_takes_it(b):
    krylov = pytest.importorskip("pyamg.krylov")
    for name, matrix in (("cg", spd()), ("gmres", unsymmetric()), ("bicgstab", unsymmetric())):
        operator = planned(matrix).as_linear_operator()
        x, failed = getattr(krylov, name)(operator, b, tol=1e-9, maxiter=900)
        assert failed == 0
        assert np.linalg.norm(matrix @ x - b) <= 1e-6 * np.linalg.norm(b)


def test_pylops_takes_it():
    pylops = pytest.importorskip("pylops")
    matrix, b = tall(), np.random.default_rng(0).standard_normal(70)
    operator = pylops.aslinearoperator(planned(matrix).as_linear_operator())
    assert pylops.utils.dottest(operator, 70, 30, rtol=1e-12)
    want = np.linalg.lstsq(matrix.toarray(), b)[0]
    x = pylops.optimization.basic.cgls(operator, b, np.zeros(30), niter=200, tol=1e-24)[0]
    assert np.linalg.norm(x - want) <= 1e-8 * np.linalg.norm(want)


# ---- on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["cg", "cgs", "gmres", "minres"])
def test_cupys_solvers(name, b):
    import cupy
    import cupyx.scipy.sparse.linalg as cula

    matrix = spd() if name in ("cg", "minres") else unsymmetric()
    operator = planned(matrix, "cuda").as_linear_operator()
    assert isinstance(operator, cula.LinearOperator)
    tolerance = {"tol" if name == "minres" else "rtol": 1e-11}
    x, failed = getattr(cula, name)(operator, cupy.asarray(b), **tolerance)
    assert failed == 0
    assert np.linalg.norm(matrix @ x.get() - b) <= 1e-8 * np.linalg.norm(b)


@pytest.mark.cuda
def test_cupys_least_squares_and_values():
    import cupy
    import cupyx.scipy.sparse.linalg as cula

    matrix, b = tall(), np.random.default_rng(0).standard_normal(70)
    operator = planned(matrix, "cuda").as_linear_operator()
    x = cula.lsmr(operator, cupy.asarray(b), atol=1e-13, btol=1e-13)[0].get()
    want = np.linalg.lstsq(matrix.toarray(), b)[0]
    assert np.linalg.norm(x - want) <= 1e-8 * np.linalg.norm(want)
    values = cula.svds(operator, 3, return_singular_vectors=False).get()
    np.testing.assert_allclose(
        np.sort(values), np.sort(np.linalg.svd(matrix.toarray(), compute_uv=False)[:3]), rtol=1e-8
    )
    symmetric = planned(spd(), "cuda").as_linear_operator()
    want = np.linalg.eigvalsh(spd().toarray())
    values = cula.eigsh(symmetric, 3, return_eigenvectors=False).get()
    np.testing.assert_allclose(np.sort(values), want[-3:], rtol=1e-8)
    X = cupy.asarray(np.random.default_rng(0).standard_normal((144, 4)))
    values = cula.lobpcg(symmetric, X, tol=1e-8, maxiter=200)[0].get()
    np.testing.assert_allclose(np.sort(values), want[-4:], rtol=1e-8)


@pytest.mark.cuda
def test_every_product_of_cupys_operator():
    import cupy

    matrix = tall()
    operator, rng = planned(matrix, "cuda").as_linear_operator(), np.random.default_rng(1)
    X, Z = rng.standard_normal((30, 3)), rng.standard_normal((70, 3))
    turned = matrix.T.tocsr()
    assert_close(operator.rmatvec(cupy.asarray(Z[:, 0])).get(), turned, Z[:, 0])
    for k in range(3):
        assert_close(operator.matmat(cupy.asarray(X)).get()[:, k], matrix, X[:, k])
        assert_close(operator.rmatmat(cupy.asarray(Z)).get()[:, k], turned, Z[:, k])
