"""`dasp solve`: a linear system by an iterative method, with a preconditioner, judged by its true
residual."""

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
    add_json_option,
    add_matrix_option,
    add_parser,
    add_policy_options,
    plan_timed,
    shows_progress,
)
from dasp.cli.solver_baselines import SHARED, by_library, library_of
from dasp.cli.systems import (
    Outcome,
    announce,
    as_solved,
    check,
    check_shape,
    one_blas_thread,
    report,
    right_hand_side,
    tolerance,
)
from dasp.io.matrices import load_matrix
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.multigrid.hierarchy import make_hierarchy
from dasp.preconditioners.automatic import fits_jacobi
from dasp.preconditioners.automatic import run as solve
from dasp.runtime.ranks import find_launcher
from dasp.solvers.choose import METHODS, choose_method

PRECONDITIONERS = ("auto", "none", "jacobi", "block-jacobi", "ic0", "ilu0", "chebyshev", "multigrid")


def add_command(subparsers: Subparsers) -> None:
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
    parser.add_argument("--block", type=int, default=4, metavar="ROWS", help="of a block of block-jacobi (4)")
    parser.add_argument(
        "--rtol", type=float, metavar="R", help="norm of the residual over that of b (1e-8; 1e-4 in float32)"
    )
    parser.add_argument("--maxiter", type=int, default=10_000, metavar="N", help="iterations at most (10000)")
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
    add_policy_options(parser)
    parser.set_defaults(run=_run)


COMPILING = 50_000
"""Entries of the rows that are solved with first: enough to need what all do, too few to take time."""


def leading_rows(matrix: csr_array) -> csr_array:
    """Return the first rows of a matrix, of about `COMPILING` entries."""
    return matrix[: max(1, bisect.bisect_left(matrix.indptr, COMPILING, hi=matrix.shape[0]))]


def _compile(
    arguments: argparse.Namespace,
    method: str,
    kind: str,
    matrix: csr_array,
    b: NDArray[np.inexact],
    policy: Policy | None,
) -> None:
    """Plan and solve with some of the rows, so that no time below holds what a process compiles first."""
    rows = leading_rows(matrix)
    square = rows[:, : rows.shape[0]]
    small = SpMatrix.from_scipy(square, policy=policy, device=arguments.device)
    # A fault of some of the rows need not be one of all; if it is, the full solve reports it.
    M = None
    with suppress(ValueError):
        M = preconditioner(kind, square, small, arguments.block)
    with suppress(ValueError):
        solve(method, small, as_solved(np.ones(small.shape[0], b.dtype), small.dtype), M, maxiter=1)


def _run(arguments: argparse.Namespace) -> int:
    if find_launcher():
        from dasp.cli import solve_ranks

        return solve_ranks.run(arguments)
    policy, seed = check(arguments)
    matrix = load_matrix(arguments.matrix, seed=seed)
    check_shape(arguments.matrix, matrix.shape)
    method, kind = arguments.method or choose_method(matrix)[0], arguments.precond
    if kind == "auto":
        kind = "jacobi" if fits_jacobi(matrix, method)[0] else "none"
    b = right_hand_side(arguments.rhs, matrix.shape[0], seed)
    _compile(arguments, method, kind, matrix, b, policy)
    planned, planning = plan_timed(matrix, policy, arguments.device)
    rtol = tolerance(arguments, planned.dtype)
    b = as_solved(b, planned.dtype)
    title = method if kind == "none" else f"{method} with {kind}"
    if not arguments.json:
        announce(arguments, matrix.shape[0], matrix.nnz, planned.device, title, rtol)
    show = shows_progress() and not arguments.json
    limit, said = one_blas_thread()
    if arguments.compare and not arguments.json:
        print(said, flush=True)
    with limit:
        began = time.perf_counter()
        M = preconditioner(kind, matrix, planned, arguments.block)
        setup = time.perf_counter() - began
        x, stats = solve(method, planned, b, M, rtol=rtol, maxiter=arguments.maxiter, progress=show)
        ours = _judge(
            f"dasp {title}", matrix, x, b, rtol, stats.iterations, setup, stats.seconds, stats.reason
        )
        others: list[Outcome] = []
        if arguments.compare:
            if M is not None:
                others.append(_solve_plainly(matrix, planned, b, method, rtol, arguments.maxiter))
            others += compare(matrix, b, method, rtol, arguments.maxiter, planned.device)
    norm = float(np.linalg.norm(b))
    return report(arguments, planned, 1, planning, rtol, [ours, *others], stats, x, norm)


def preconditioner(kind: str, matrix: csr_array, planned: SpMatrix, block: int) -> Any:
    """Return the preconditioner that is asked for, or None."""
    device = planned.device
    make: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "jacobi": lambda: dasp.preconditioners.jacobi(matrix, device=device),
        "block-jacobi": lambda: dasp.preconditioners.block_jacobi(matrix, block=block, device=device),
        "ic0": lambda: dasp.preconditioners.ic0(matrix, device=device),
        "ilu0": lambda: dasp.preconditioners.ilu0(matrix, device=device),
        "chebyshev": lambda: dasp.preconditioners.chebyshev(planned),
        "multigrid": lambda: dasp.preconditioners.multigrid(matrix, device=device),
    }
    return make[kind]()


def true_residual(matrix: csr_array, x: NDArray[np.inexact], b: NDArray[np.inexact]) -> float:
    """Norm of ``b - A x`` over that of b, by SciPy's product with the original matrix, in double
    precision."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        residual = _widen(b) - matrix @ _widen(x)
        return float(np.linalg.norm(residual) / np.linalg.norm(_widen(b)))


def _widen(vector: NDArray[Any]) -> NDArray[Any]:
    return vector.astype(np.result_type(vector, np.float64))


def _judge(
    solver: str,
    matrix: csr_array,
    x: Any,
    b: Any,
    rtol: float,
    iterations: int,
    setup: float,
    seconds: float,
    reason: str,
) -> Outcome:
    """Judge a solution by its true residual alone, up to the rounding of its evaluation."""
    residual = true_residual(matrix, x, b) if b.any() else 0.0
    unit = float(np.finfo(b.dtype).eps)
    scale = float(np.linalg.norm(abs(matrix) @ abs(_widen(x)))) / (float(np.linalg.norm(b)) or 1.0)
    accepted = residual <= rtol * (1 + 1e-6) + 16 * unit * scale and residual <= 10 * rtol
    return Outcome(solver, iterations, setup, seconds, residual, "" if accepted else reason)


def _solve_plainly(
    matrix: csr_array, planned: SpMatrix, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int
) -> Outcome:
    """Solve by our own method without a preconditioner."""
    solve(method, planned, b, None, rtol=rtol, maxiter=1)  # compiles
    x, stats = solve(method, planned, b, None, rtol=rtol, maxiter=maxiter)
    return _judge(f"dasp {method}", matrix, x, b, rtol, stats.iterations, 0.0, stats.seconds, stats.reason)


def compare(
    matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int, device: str
) -> list[Outcome]:
    """Solve the same system by others: SciPy, CuPy if the device is a GPU, PyAMG if it is installed."""
    outcomes: list[Outcome] = []
    if method in SHARED:
        outcomes += [
            _solve_by_library(kind, matrix, b, method, rtol, maxiter)
            for kind in (("cpu",) if device == "cpu" else ("cpu", "cuda"))
        ]
    if choose_method(matrix)[0] == "cg" and b.dtype.kind == matrix.dtype.kind:  # as PyAMG needs it
        outcomes.extend(_solve_by_pyamg(matrix, b, rtol, maxiter))
    return outcomes


def _solve_by_library(
    kind: str, matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int
) -> Outcome:
    """Solve by one of SciPy's solvers, or of CuPy's; the second of two solves is timed, without counting."""
    name, _ = library_of(kind)
    operator, there = (matrix, b) if kind == "cpu" else _upload(matrix, b)
    solve_again, iterations = by_library(kind, method, operator, there, rtol, maxiter)
    began = time.perf_counter()
    x = solve_again()
    x = x if kind == "cpu" else x.get()
    seconds = time.perf_counter() - began
    reason = f"{name}'s {method} stopped above the tolerance"
    return _judge(f"{name} {method}", matrix, x, b, rtol, iterations, 0.0, seconds, reason)


def _upload(matrix: csr_array, b: NDArray[np.inexact]) -> tuple[Any, Any]:
    """Return CuPy's matrix and vector, of one type."""
    import cupy
    import cupyx.scipy.sparse
    from scipy.sparse import csr_matrix

    on_device = cupyx.scipy.sparse.csr_matrix(csr_matrix(matrix.astype(b.dtype, copy=False)))
    return on_device, cupy.asarray(b)


def _solve_by_pyamg(matrix: csr_array, b: NDArray[np.inexact], rtol: float, maxiter: int) -> list[Outcome]:
    try:
        began = time.perf_counter()
        ml = make_hierarchy(matrix)
        setup = time.perf_counter() - began
    except RuntimeError:
        return []
    residuals: list[float] = []
    began = time.perf_counter()
    x = ml.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)
    seconds = time.perf_counter() - began
    reason = "PyAMG's cg stopped above the tolerance"
    made = max(0, len(residuals) - 1)
    return [_judge("PyAMG cg with its cycle", matrix, x, b, rtol, made, setup, seconds, reason)]
