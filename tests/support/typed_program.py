"""A program of a user who checks types: mypy reads it with dasp, and matrix/test_arithmetic.py runs it."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import dasp
from dasp import Plan, Policy, SpMatrix
from dasp.solvers import Stats, Workspace, cg


def program() -> Stats:
    """Plan, multiply and solve, with every public name of a matrix's life."""
    A = SpMatrix.from_scipy(dasp.models.generate("poisson2d:12"), device="cpu")
    B = SpMatrix(A.to_scipy(), policy=Policy(narrow=False), device="cpu")
    assert_type(A.plan, Plan)
    assert_type(A.shape, tuple[int, int])
    assert_type(A.nnz + A.nbytes, int)
    assert_type(A.with_values(np.ones(A.nnz)), SpMatrix)
    assert_type(B.T, SpMatrix)
    assert_type(B * 2.0, SpMatrix)
    assert_type(-B, SpMatrix)
    assert_type(dasp.get_num_threads(), int)
    y = B @ np.ones(B.shape[1])
    assert_type(y, np.ndarray[Any, Any])
    found, stats = cg(A, y, M=dasp.preconditioners.jacobi(A), workspace=Workspace())
    assert_type(found, np.ndarray[Any, Any])
    assert_type(stats, Stats)
    assert_type(stats.converged, bool)
    return stats
