"""`dasp solve`: solve a linear system by an iterative method, and judge x by its true residual.

A process that runs alone holds all of A. One of several ranks holds some rows of A, and rank 0 prints.
`dasp.cli.systems` has the code that both share, `dasp.cli.compare` that of `--compare`.
"""

from __future__ import annotations

import argparse
import bisect
import math
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasp import distributed, preconditioners
from dasp.cli.compare import one_blas_thread, solve_by_others
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
)
from dasp.cli.systems import (
    Outcome,
    announce,
    as_solved,
    check_options,
    check_shape,
    find_tolerance,
    judge,
    make_right_hand_side,
    report_solve,
    true_gradient,
    true_residual,
)
from dasp.distributed.communicator import Communicator
from dasp.distributed.launch import find_world, leave
from dasp.distributed.partition import collect, find_cuts
from dasp.formats import backends
from dasp.io.matrices import load_matrix
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.planning import find_device
from dasp.matrix.policy import Policy
from dasp.preconditioners.automatic import METHODS, WITHOUT_M, choose_method, solve
from dasp.runtime.arrays import to_host
from dasp.runtime.ranks import find_launcher, is_raised_everywhere
from dasp.solvers import Stats

PRECONDITIONERS = ("auto", "none", "jacobi", "block-jacobi", "ic0", "ilu0", "chebyshev", "multigrid")


def add_solve(subparsers: Subparsers) -> None:
    """Add `dasp solve` to the command line."""
    parser = add_parser(subparsers, "solve", ", or the least-squares problem of a matrix that is not square")
    add_matrix_option(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="by default cg if the matrix is symmetric (Hermitian) with a positive diagonal, minres if it is "
        "symmetric, bicgstab if it is square, else lsmr; lsqr and lsmr solve least squares of any shape, and "
        "take no preconditioner",
    )
    parser.add_argument(
        "--precond",
        choices=PRECONDITIONERS,
        default="auto",
        help="preconditioner (auto: jacobi if the diagonal varies, else none); multigrid is PyAMG's smoothed "
        "aggregation, in our cycles",
    )
    parser.add_argument(
        "--block",
        type=positive,
        metavar="ROWS",
        help="of a block of block-jacobi (the unknowns of a node if the pattern shows nodes, else 4)",
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


def _run(arguments: argparse.Namespace) -> int:
    return _run_as_rank(arguments) if find_launcher() else _run_alone(arguments)


# ---- on one rank -----------------------------------------------------------------------------------------


def _run_alone(arguments: argparse.Namespace) -> int:
    check_options(arguments)
    if cuts := find_cuts(Path(arguments.matrix)):
        raise ValueError(
            f"{arguments.matrix} holds a matrix in parts for {cuts[0]} ranks; start them, as by "
            f"mpirun -n {cuts[0]} dasp solve {arguments.matrix}"
        )
    device = find_device(arguments.device)
    matrix = load_matrix(arguments.matrix, seed=arguments.seed)
    check_shape(arguments, matrix.shape)
    b = make_right_hand_side(arguments.rhs, matrix.shape[0], arguments.seed)
    _compile(arguments, matrix, b)
    planned, planning = plan_timed(matrix, arguments.format, device)
    rtol = find_tolerance(arguments, planned.dtype)
    b = as_solved(b, planned.dtype)
    if not arguments.json:
        announce(arguments, matrix.shape, matrix.nnz, planned.device, rtol)
    show = not arguments.json and on_terminal() and find_spec("tqdm") is not None
    limit, said = one_blas_thread()
    if arguments.compare and not arguments.json:
        print(said, flush=True)
    with limit:
        began = time.perf_counter()
        options = {"rtol": rtol, "maxiter": arguments.maxiter}
        title, x, stats = _solve(arguments, planned, b, **options, progress=show)
        setup = time.perf_counter() - began - stats.seconds
        method = title.split()[0].rstrip(",")
        outcomes = [_judge_ours(title, method, matrix, b, x, stats, setup, rtol)]
        if arguments.compare:
            if " with " in title:
                outcomes.append(_solve_plainly(matrix, planned, b, method, **options))
            outcomes += solve_by_others(matrix, b, method, rtol, arguments.maxiter, planned.device)
    return report_solve(arguments, planned, 1, planning, rtol, outcomes, stats, x)


def _judge_ours(
    title: str,
    method: str,
    matrix: csr_array,
    b: NDArray[np.inexact],
    x: NDArray[np.inexact],
    stats: Stats,
    setup: float,
    rtol: float,
) -> Outcome:
    residual = true_residual(matrix, x, b)
    least = method in WITHOUT_M and residual > rtol
    gradient = true_gradient(matrix, x, b) if least else math.inf
    name, claimed = f"dasp {title}", stats.converged
    return judge(name, stats.iterations, setup, stats.seconds, residual, rtol, claimed, gradient)


def on_terminal() -> bool:
    """Return True if standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


COMPILING = 50_000
"""Entries of the rows that are solved first: enough to need all compiled code, too few to take time."""


def leading_rows(matrix: csr_array) -> csr_array:
    """Return the first rows of a matrix, with about `COMPILING` entries."""
    return matrix[: max(1, bisect.bisect_left(matrix.indptr, COMPILING, hi=matrix.shape[0]))]


def _compile(arguments: argparse.Namespace, matrix: csr_array, b: NDArray[np.inexact]) -> None:
    """Plan and solve with some of the rows, so that no later time includes compiling."""
    rows = leading_rows(matrix)
    if matrix.shape[0] == matrix.shape[1]:
        rows = rows[:, : rows.shape[0]]
    small = SpMatrix(rows, arguments.device, policy=Policy(format=arguments.format))
    # A fault of these rows need not be one of the matrix; if it is, the full solve reports it.
    with suppress(ValueError):
        _solve(arguments, small, as_solved(np.ones(small.shape[0], b.dtype), small.dtype), maxiter=1)


def _solve(
    arguments: argparse.Namespace, A: SpMatrix, b: NDArray[np.inexact], **options: Any
) -> tuple[str, NDArray[np.inexact], Stats]:
    """Solve as `dasp.solve` does; return the method with its preconditioner in words, x and statistics."""
    kind = arguments.precond
    M = preconditioner(kind, A, arguments.block)
    x, stats = solve(A, b, method=arguments.method, M=M, **options)
    return stats.choice.partition(":")[0].replace(type(M).__name__, kind).lower(), x, stats


def preconditioner(kind: str, A: SpMatrix, block: int | None) -> Any:
    """Return `--precond` as `dasp.solve` takes it: a preconditioner, None or "auto"."""
    if kind in ("auto", "none"):
        return "auto" if kind == "auto" else None
    if kind == "block-jacobi":
        return preconditioners.block_jacobi(A, block=block)
    return getattr(preconditioners, kind)(A)


def _solve_plainly(
    matrix: csr_array, planned: SpMatrix, b: NDArray[np.inexact], method: str, *, rtol: float, maxiter: int
) -> Outcome:
    """Solve by a method of dasp without a preconditioner."""
    solve(planned, b, method=method, M=None, rtol=rtol, maxiter=1)  # compiles
    x, stats = solve(planned, b, method=method, M=None, rtol=rtol, maxiter=maxiter)
    return _judge_ours(method, method, matrix, b, x, stats, 0.0, rtol)


# ---- as one of several ranks -----------------------------------------------------------------------------


def _run_as_rank(arguments: argparse.Namespace) -> int:
    """Solve as one of several ranks; return 2, as `dasp.cli.main` does, for a mistake of the user."""
    comm = find_world()
    assert comm is not None
    try:
        status = _solve_on_ranks(arguments, comm)
    except (TypeError, ValueError, RuntimeError, OSError, MemoryError, ImportError) as error:
        if is_raised_everywhere(error):
            if comm.rank == 0:
                raise
            return 2
        print(f"dasp: rank {comm.rank}: error: {error}", file=sys.stderr, flush=True)
        comm.abort()
        return 2
    leave()
    return status


def _solve_on_ranks(arguments: argparse.Namespace, comm: Communicator) -> int:
    distributed.agree(comm, partial(_check_for_ranks, arguments))
    folder = comm.gather(distributed.agree(comm, lambda: bool(find_cuts(Path(arguments.matrix)))))[0]
    began = time.perf_counter()
    D, method, why = _load_over_ranks(arguments, comm, folder)
    planning = time.perf_counter() - began
    distributed.agree(comm, partial(check_shape, arguments, D.shape))
    rtol = find_tolerance(arguments, D.dtype)
    speaks = comm.rank == 0
    if speaks and not arguments.json:
        where = D.device if D.device == "cpu" else f"{D.device} and so on"
        announce(arguments, D.shape, D.nnz, f"{comm.size} ranks ({where})", rtol)
    b = _take_right_hand_side(arguments, D)
    began = time.perf_counter()
    M = _preconditioner_of_ranks(arguments, D)
    setup = time.perf_counter() - began
    of_all = arguments.precond in ("jacobi", "chebyshev")
    name = arguments.precond if of_all else f"{arguments.precond} of each rank's rows"
    title = method if M is None else f"{method} with {name}"
    x, stats = solve(D, b, method=method, M=M, rtol=rtol, maxiter=arguments.maxiter)
    stats = replace(stats, choice=f"{title}: {why}")
    residual = stats.residual if math.isnan(stats.relative) else stats.relative  # b is 0
    ours = Outcome(f"dasp {title}", stats.iterations, setup, stats.seconds, residual, stats.converged)
    whole = collect(comm, to_host(x)) if arguments.out else None
    if not speaks:
        return int(not ours.converged)
    return report_solve(arguments, D, comm.size, planning, rtol, [ours], stats, whole)


def _check_for_ranks(arguments: argparse.Namespace) -> None:
    if arguments.compare:
        raise ValueError("--compare was given to several ranks; compare on one, without a launcher")
    check_options(arguments)


def _load_over_ranks(
    arguments: argparse.Namespace, comm: Communicator, folder: bool
) -> tuple[distributed.SpMatrix, str, str]:
    """Return the matrix, from a folder or from rank 0, the given method or one that fits, and why."""
    given = arguments.method, "as asked for"
    options = {"policy": Policy(format=arguments.format), "device": arguments.device}
    if folder:
        D = distributed.SpMatrix.from_files(arguments.matrix, comm, **options)
        if arguments.method:
            return D, *given
        if D.shape[0] != D.shape[1]:
            return D, "lsmr", f"A is {D.shape[0]} x {D.shape[1]}"
        return D, "bicgstab", "A was not looked at, as it lies in parts"

    def load() -> tuple[Any, tuple[str, str]]:
        if comm.rank:
            return None, given
        matrix = load_matrix(arguments.matrix, seed=arguments.seed)
        return matrix, given if arguments.method else choose_method(matrix)

    matrix, chosen = distributed.agree(comm, load)
    return distributed.SpMatrix.from_scipy(matrix, comm, **options), *comm.gather(chosen)[0]


def _take_right_hand_side(arguments: argparse.Namespace, D: distributed.SpMatrix) -> Any:
    """Return this rank's part of b, on the device of D."""
    whole = D.agree(lambda: make_right_hand_side(arguments.rhs, D.shape[0], arguments.seed))
    b = as_solved(whole[D.rows.first : D.rows.first + D.rows.count], D.dtype)
    return backends.find(D.device).asarray(b, b.dtype)


def _preconditioner_of_ranks(arguments: argparse.Namespace, D: distributed.SpMatrix) -> Any:
    """Return the preconditioner of `--precond`, or None for `none` and `auto`.

    Jacobi and Chebyshev take the whole matrix, the others each rank's own block.
    """
    kind, ours = arguments.precond, distributed.preconditioners
    if kind in ("auto", "none"):
        return None
    if kind == "block-jacobi":
        return ours.block_jacobi(D, block=arguments.block)
    if kind in ("jacobi", "chebyshev"):
        return getattr(ours, kind)(D)
    return ours.of_blocks(D, getattr(preconditioners, kind))
