"""The cases on which SciPy tests its iterative solvers, given to ours: where SciPy comes with its tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg as sla
from scipy.sparse import issparse

import dasp
import dasp.solvers

theirs = pytest.importorskip("scipy.sparse.linalg._isolve.tests.test_iterative")

OURS = ("cg", "bicgstab", "gmres", "minres")


def cases() -> list[Any]:
    """Each of their cases with each of our methods that SciPy's namesake is expected to solve it by.

    Their minres is skipped where it "fails for single precision" or for poisson2d: ours is not.
    """
    found = []
    for case in theirs.IterativeParams().cases:
        for name in OURS:
            wrong_kind = getattr(sla, name) in case.skip and (name != "minres" or not _is_symmetric(case.A))
            if not wrong_kind:
                found.append(pytest.param(case, name, id=f"{case.name}-{name}"))
    return found


def _is_symmetric(A: Any) -> bool:
    dense = A.toarray() if issparse(A) else A
    return bool((dense == dense.conj().T).all())


def _tolerance(A: Any) -> float:
    return 1e-8 if A.dtype.char in "dD" else 1e-2


@pytest.mark.parametrize(("case", "name"), cases())
def test_scipys_own_cases_are_solved(case: Any, name: str) -> None:
    solver = getattr(dasp.solvers, name)
    rtol = _tolerance(case.A)
    x0 = 0 * case.b
    operators = [case.A, sla.aslinearoperator(case.A)]
    if issparse(case.A):
        operators.append(dasp.SpMatrix.from_scipy(case.A, device="cpu"))
    for A in operators:
        x, stats = solver(A, case.b, x0, rtol=rtol)
        residual = np.linalg.norm(case.b - case.A @ x)
        expected = getattr(sla, name) not in case.nonconvergence
        assert stats.converged or not expected, stats.reason
        if stats.converged:
            assert residual <= rtol * np.linalg.norm(case.b) * (1 + 1e-6)
        else:
            assert residual <= np.linalg.norm(case.b)
    np.testing.assert_array_equal(x0, 0)


@pytest.mark.parametrize(("case", "name"), cases())
def test_their_preconditioners_and_limits(case: Any, name: str) -> None:
    if getattr(sla, name) in case.nonconvergence:
        pytest.skip("they call this case a breakdown")
    solver = getattr(dasp.solvers, name)
    rtol = _tolerance(case.A)
    identity = sla.LinearOperator(case.A.shape, lambda r: r, dtype=case.A.dtype)
    x, stats = solver(case.A, case.b, M=identity, rtol=rtol)
    assert stats.converged, stats.reason
    assert np.linalg.norm(case.b - case.A @ x) <= rtol * np.linalg.norm(case.b) * (1 + 1e-6)
    _, stats = solver(case.A, case.b, rtol=1e-12, maxiter=1)
    assert (stats.info, stats.iterations) == (1, 1)


@pytest.mark.parametrize("name", ["poisson1d", "poisson2d"])
def test_their_inverse_as_a_preconditioner(name: str) -> None:
    (case,) = (case for case in theirs.IterativeParams().cases if case.name == name)
    inverse = np.linalg.inv(case.A.toarray())
    for method in OURS:
        x, stats = getattr(dasp.solvers, method)(case.A, case.b, M=inverse, rtol=1e-8)
        assert stats.converged
        assert stats.iterations <= 3
        assert np.linalg.norm(case.b - case.A @ x) <= 1e-8 * np.linalg.norm(case.b)
