"""`dasp solve` as one of several ranks: rank 0 prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dasp import distributed, preconditioners
from dasp.cli.systems import (
    Outcome,
    announce,
    as_solved,
    check,
    check_shape,
    report,
    right_hand_side,
    tolerance,
)
from dasp.distributed.communicator import Communicator
from dasp.distributed.launch import find_world, leave
from dasp.distributed.partition import collect, find_cuts
from dasp.formats import devices
from dasp.io.matrices import load_matrix
from dasp.matrix.policy import Policy
from dasp.preconditioners.automatic import solve
from dasp.runtime.arrays import to_host
from dasp.runtime.ranks import is_raised_everywhere
from dasp.solvers.choose import choose_method

USER_ERROR = 2
"""The exit status of `dasp.cli.main` for a mistake of the user."""


def run(arguments: argparse.Namespace) -> int:
    """Run `dasp solve` on all ranks; rank 0 prints."""
    comm = find_world()
    assert comm is not None
    try:
        status = _solve(arguments, comm)
    except (TypeError, ValueError, RuntimeError, OSError, MemoryError, ImportError) as error:
        if is_raised_everywhere(error):
            if comm.rank == 0:
                raise
            return USER_ERROR
        print(f"dasp: rank {comm.rank}: error: {error}", file=sys.stderr, flush=True)
        comm.abort(str(error))
        return USER_ERROR
    leave()
    return status


def _solve(arguments: argparse.Namespace, comm: Communicator) -> int:
    distributed.agree(comm, partial(_check, arguments))
    folder = comm.gather(distributed.agree(comm, lambda: bool(find_cuts(Path(arguments.matrix)))))[0]
    began = time.perf_counter()
    D, method, why = _matrix(arguments, comm, folder)
    planning = time.perf_counter() - began
    distributed.agree(comm, partial(check_shape, arguments.matrix, D.shape))
    rtol = tolerance(arguments, D.dtype)
    speaks = comm.rank == 0
    if speaks and not arguments.json:
        devices = D.device if D.device == "cpu" else f"{D.device} and so on"
        announce(arguments, D.shape[0], D.nnz, f"{comm.size} ranks ({devices})", rtol)
    b = _right_hand_side(arguments.rhs, arguments.seed, D, comm)
    began = time.perf_counter()
    M = _preconditioner(arguments, D)
    setup = time.perf_counter() - began
    title = method if M is None else f"{method} with {_title(arguments.precond)}"
    x, stats = solve(D, b, method=method, M=M, rtol=rtol, maxiter=arguments.maxiter)
    stats = replace(stats, choice=f"{title}: {why}")
    far, norm = _norms(comm, b - D @ x, b)
    residual = far / (norm or 1.0)
    problem = "" if stats.converged and residual <= 10 * rtol else stats.reason
    ours = Outcome(f"dasp {title}", stats.iterations, setup, stats.seconds, residual, problem)
    whole = collect(comm, to_host(x), D.rows) if arguments.out else None
    if speaks:
        report(arguments, D, comm.size, planning, rtol, [ours], stats, whole, norm)
    return int(bool(problem))


def _check(arguments: argparse.Namespace) -> None:
    if arguments.compare:
        raise ValueError(
            "--compare was given and there are several ranks; compare on one, without a launcher"
        )
    check(arguments)


def _title(kind: str) -> str:
    return kind if kind in ("jacobi", "chebyshev") else f"{kind} of each rank's rows"


def _right_hand_side(given: str, seed: int, D: distributed.SpMatrix, comm: Communicator) -> Any:
    """Return this rank's part of b, where D lies."""
    mine = slice(D.rows.first, D.rows.first + D.rows.count)
    b = as_solved(distributed.agree(comm, partial(right_hand_side, given, D.shape[0], seed))[mine], D.dtype)
    return devices.find(D.device).asarray(b, D.device, b.dtype)


def _norms(comm: Communicator, *vectors: Any) -> list[float]:
    """Return the norms of vectors that lie over the ranks."""
    squares = comm.gather([float(abs(vector * vector).sum()) for vector in vectors])
    return [float(np.sqrt(sum(values))) for values in zip(*squares, strict=True)]


def _matrix(
    arguments: argparse.Namespace, comm: Communicator, folder: bool
) -> tuple[distributed.SpMatrix, str, str]:
    """Return the matrix of a folder or of rank 0, the method that is asked for or fits, and why."""
    given = arguments.method, "as asked for"
    options = {"policy": Policy(format=arguments.format), "device": arguments.device}
    if folder:
        D = distributed.SpMatrix.from_files(arguments.matrix, comm, **options)
        return D, *(given if arguments.method else ("bicgstab", "A was not looked at, as it lies in parts"))

    def load() -> tuple[Any, tuple[str, str]]:
        if comm.rank:
            return None, given
        matrix = load_matrix(arguments.matrix, seed=arguments.seed)
        return matrix, given if arguments.method else choose_method(matrix)

    matrix, chosen = distributed.agree(comm, load)
    return distributed.SpMatrix.from_scipy(matrix, comm, **options), *comm.gather(chosen)[0]


def _preconditioner(arguments: argparse.Namespace, D: distributed.SpMatrix) -> Any:
    """Return the preconditioner that is asked for, None if that is none or left open; all but two are of each
    rank's own block."""
    ours = distributed.preconditioners
    make: dict[str, Callable[[], Any]] = {
        "jacobi": lambda: ours.jacobi(D),
        "block-jacobi": lambda: ours.block_jacobi(D, block=arguments.block),
        "ic0": lambda: ours.of_blocks(D, preconditioners.ic0),
        "ilu0": lambda: ours.of_blocks(D, preconditioners.ilu0),
        "chebyshev": lambda: ours.chebyshev(D),
        "multigrid": lambda: ours.of_blocks(D, preconditioners.multigrid),
    }
    return make.get(arguments.precond, lambda: None)()
