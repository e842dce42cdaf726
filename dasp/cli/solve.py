"""`dasp solve`: a linear system by an iterative method, judged by its true residual."""

from __future__ import annotations

import argparse
import bisect
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

import dasp.preconditioners
from dasp.cli.options import (
    Subparsers,
    add_device_option,
    add_format_option,
    add_json_option,
    add_matrix_option,
    add_parser,
    plan_timed,
    positive,
    share,
    shows_progress,
)
from dasp.cli.other_solvers import one_blas_thread, solve_by_others
from dasp.cli.systems import (
    Outcome,
    announce,
    as_solved,
    check,
    check_shape,
    judge,
    report,
    right_hand_side,
    tolerance,
)
from dasp.io.matrices import load_matrix
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.planning import find_device
from dasp.matrix.policy import Policy
from dasp.preconditioners.automatic import solve
from dasp.runtime.ranks import find_launcher
from dasp.solvers import Stats
from dasp.solvers.choose import METHODS

PRECONDITIONERS = ("auto", "none", "jacobi", "block-jacobi", "ic0", "ilu0", "chebyshev", "multigrid")


def add_solve(subparsers: Subparsers) -> None:
    """Add `dasp solve` to the command line."""
    parser = add_parser(subparsers, "solve")
    add_matrix_option(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="by default cg if the matrix is symmetric (Hermitian) with a positive diagonal, minres if it is "
        "symmetric, else bicgstab; lsqr and lsmr take no preconditioner",
    )
    parser.add_argument(
        "--precond",
        choices=PRECONDITIONERS,
        default="auto",
        help="preconditioner (auto: jacobi if the diagonal varies, else none); multigrid is PyAMG's smoothed "
        "aggregation, in our cycles",
    )
    parser.add_argument(
        "--block", type=positive, default=4, metavar="ROWS", help="of a block of block-jacobi (4)"
    )
    parser.add_argument(
        "--rtol", type=share, metavar="R", help="norm of the residual over that of b (1e-8; 1e-4 in float32)"
    )
    parser.add_argument(
        "--maxiter", type=positive, default=10_000, metavar="N", help="iterations at most (10000)"
    )
    parser.add_argument(
        "--rhs", default="ones", metavar="B", help="ones, random, or a .npy or .mtx file with b (ones)"
    )
    parser.add_argument("--out", metavar="FILE", help="write x there, as .npy or .mtx")
    parser.add_argument("--plot", metavar="FILE", help="draw the residual's history (.png, .pdf or .svg)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also solve without the preconditioner, by SciPy, by CuPy on a GPU, and by PyAMG",
    )
    add_json_option(parser)
    add_device_option(parser)
    add_format_option(parser)
    parser.set_defaults(run=_run)


COMPILING = 50_000
"""Entries of the rows that are solved with first: enough to need what all do, too few to take time."""


def leading_rows(matrix: csr_array) -> csr_array:
    """Return the first rows of a matrix, of about `COMPILING` entries."""
    return matrix[: max(1, bisect.bisect_left(matrix.indptr, COMPILING, hi=matrix.shape[0]))]


def _compile(arguments: argparse.Namespace, matrix: csr_array, b: NDArray[np.inexact]) -> None:
    """Plan and solve with some of the rows, so that no time below holds what a process compiles first."""
    rows = leading_rows(matrix)
    square = rows[:, : rows.shape[0]]
    small = SpMatrix(square, arguments.device, policy=Policy(format=arguments.format))
    # A fault of some of the rows need not be one of all; if it is, the full solve reports it.
    with suppress(ValueError):
        _solve(arguments, square, small, as_solved(np.ones(small.shape[0], b.dtype), small.dtype), maxiter=1)


def _run(arguments: argparse.Namespace) -> int:
    if find_launcher():
        from dasp.cli import solve_ranks

        return solve_ranks.run(arguments)
    check(arguments)
    device = find_device(arguments.device)
    matrix = load_matrix(arguments.matrix, seed=arguments.seed)
    check_shape(arguments.matrix, matrix.shape)
    b = right_hand_side(arguments.rhs, matrix.shape[0], arguments.seed)
    _compile(arguments, matrix, b)
    planned, planning = plan_timed(matrix, arguments.format, device)
    rtol = tolerance(arguments, planned.dtype)
    b = as_solved(b, planned.dtype)
    if not arguments.json:
        announce(arguments, matrix.shape[0], matrix.nnz, planned.device, rtol)
    show = shows_progress() and not arguments.json
    limit, said = one_blas_thread()
    if arguments.compare and not arguments.json:
        print(said, flush=True)
    with limit:
        began = time.perf_counter()
        options = {"rtol": rtol, "maxiter": arguments.maxiter}
        title, x, stats = _solve(arguments, matrix, planned, b, **options, progress=show)
        setup = time.perf_counter() - began - stats.seconds
        made = stats.iterations, setup, stats.seconds, stats.reason
        outcomes = [judge(f"dasp {title}", matrix, x, b, rtol, *made)]
        if arguments.compare:
            method = title.split()[0].rstrip(",")
            if " with " in title:
                outcomes.append(_solve_plainly(matrix, planned, b, method, **options))
            outcomes += solve_by_others(matrix, b, method, rtol, arguments.maxiter, planned.device)
    norm = float(np.linalg.norm(b))
    return report(arguments, planned, 1, planning, rtol, outcomes, stats, x, norm)


def _solve(
    arguments: argparse.Namespace,
    matrix: csr_array,
    planned: SpMatrix,
    b: NDArray[np.inexact],
    **options: Any,
) -> tuple[str, NDArray[np.inexact], Stats]:
    """Solve as `dasp.solve` does; return the method with its preconditioner in words, x and statistics."""
    kind = arguments.precond
    M = preconditioner(kind, matrix, planned, arguments.block)
    x, stats = solve(planned, b, method=arguments.method, M=M, **options)
    return stats.choice.partition(":")[0].replace(type(M).__name__, kind).lower(), x, stats


def preconditioner(kind: str, matrix: csr_array, planned: SpMatrix, block: int) -> Any:
    """Return the preconditioner that is asked for, None, or "auto", which `dasp.solve` takes."""
    device = planned.device
    make: dict[str, Callable[[], Any]] = {
        "auto": lambda: "auto",
        "none": lambda: None,
        "jacobi": lambda: dasp.preconditioners.jacobi(matrix, device=device),
        "block-jacobi": lambda: dasp.preconditioners.block_jacobi(matrix, block=block, device=device),
        "ic0": lambda: dasp.preconditioners.ic0(matrix, device=device),
        "ilu0": lambda: dasp.preconditioners.ilu0(matrix, device=device),
        "chebyshev": lambda: dasp.preconditioners.chebyshev(planned),
        "multigrid": lambda: dasp.preconditioners.multigrid(matrix, device=device),
    }
    return make[kind]()


def _solve_plainly(
    matrix: csr_array, planned: SpMatrix, b: NDArray[np.inexact], method: str, *, rtol: float, maxiter: int
) -> Outcome:
    """Solve by our own method without a preconditioner."""
    solve(planned, b, method=method, M=None, rtol=rtol, maxiter=1)  # compiles
    x, stats = solve(planned, b, method=method, M=None, rtol=rtol, maxiter=maxiter)
    return judge(f"dasp {method}", matrix, x, b, rtol, stats.iterations, 0.0, stats.seconds, stats.reason)
