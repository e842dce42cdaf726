"""`dasp partition`, a matrix cut into files for ranks; and `dasp solve` as one of several ranks."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dasp import distributed, preconditioners, solvers
from dasp._launcher import told_everywhere
from dasp.commands.options import (
    Subparsers,
    add_json_option,
    add_matrix_option,
    positive,
    seed_from,
)
from dasp.commands.summaries import add_parser
from dasp.distributed.engine import Engine
from dasp.distributed.launch import leave, world
from dasp.distributed.partition import collect, is_partition
from dasp.io.matrices import load_matrix
from dasp.policy import Policy

USER_ERROR = 2
"""The exit status of `dasp.cli` for what a user got wrong."""


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp partition` to the command line."""
    parser = add_parser(subparsers, "partition")
    add_matrix_option(parser)
    parser.add_argument(
        "--ranks", type=positive, required=True, metavar="N", help="how many ranks there will be"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a new folder for the parts")
    parser.add_argument(
        "--by",
        choices=("entries", "graph"),
        default="entries",
        help="graph needs pymetis, and reorders (entries)",
    )
    add_json_option(parser)
    parser.set_defaults(run=_partition)


def _partition(arguments: argparse.Namespace) -> int:
    matrix = load_matrix(arguments.matrix, seed=seed_from(arguments))
    found = distributed.write_parts(matrix, arguments.ranks, arguments.out, by=arguments.by)
    if arguments.json:
        names = "rows", "entries", "columns_of_others"
        ranks = [dict(zip(names, one, strict=True)) for one in found]
        print(json.dumps({"matrix": arguments.matrix, "folder": arguments.out, "ranks": ranks}))
        return 0
    print(f"{arguments.matrix} in {arguments.out}, by {arguments.by}")
    print(f"{'rank':>6}{'rows':>14}{'entries':>16}{'columns of others':>20}")
    for rank, (rows, entries, others) in enumerate(found):
        print(f"{rank:>6}{rows:>14,}{entries:>16,}{others:>20,}")
    return 0


class Pieces(NamedTuple):
    """What `dasp solve` does on one rank as on several."""

    check: Callable[[argparse.Namespace], tuple[Policy | None, int]]
    right_hand_side: Callable[[str, int, int], Any]
    write_vector: Callable[[str, Any], None]
    draw_residuals: Callable[[Path, str, list[float], float], None]
    hierarchy: Callable[[Any], Any]
    looks_positive_definite: Callable[[Any], bool]
    tolerance: Callable[[Any], float]


def solve(arguments: argparse.Namespace, pieces: Pieces) -> int:
    """Run `dasp solve` on all ranks; rank 0 prints."""
    started = world()
    assert started is not None
    comm, engine = started
    try:
        status = _solve(arguments, pieces, comm, engine)
    except (TypeError, ValueError, RuntimeError, OSError, MemoryError, ImportError) as error:
        if told_everywhere(error):
            if engine.rank == 0:
                raise
            return USER_ERROR
        print(f"dasp: rank {engine.rank}: error: {error}", file=sys.stderr, flush=True)
        engine.abort(str(error))
        return USER_ERROR
    leave()
    return status


def _solve(arguments: argparse.Namespace, pieces: Pieces, comm: Any, engine: Engine) -> int:
    say = partial(print, flush=True) if engine.rank == 0 and not arguments.json else _nothing
    policy, seed = distributed.agree(engine, partial(_check, arguments, pieces))
    folder = engine.gather(is_partition(arguments.matrix))[0]
    began = time.perf_counter()
    D, method = _matrix(arguments, pieces, comm, engine, folder, policy, seed)
    planning = time.perf_counter() - began
    rows, columns = D.shape
    if rows != columns or rows == 0:
        distributed.agree(engine, partial(_refuse_shape, arguments.matrix, rows, columns))
    rtol = arguments.rtol if arguments.rtol is not None else pieces.tolerance(D.dtype)
    title = method if arguments.precond == "none" else f"{method} with {_title(arguments.precond)}"
    devices = D.device if D.device == "cpu" else f"{D.device} and so on"
    say(f"{arguments.matrix}: {rows:,} rows, {D.nnz:,} entries, on {engine.size} ranks ({devices})")
    say(f"{title}, to {rtol:.1e} of b ({arguments.rhs})")
    order = distributed.read_order(arguments.matrix) if folder else np.arange(rows)
    mine = order[D.rows.first : D.rows.first + D.rows.count]
    make_b = partial(pieces.right_hand_side, arguments.rhs, rows, seed)
    b = distributed.agree(engine, make_b)[mine]
    b = b if b.dtype.kind == "c" else b.astype(D.dtype)
    if D.device != "cpu":
        b = _on_device(b)
    began = time.perf_counter()
    M = _preconditioner(arguments, pieces, D)
    setup = time.perf_counter() - began
    x, stats = getattr(solvers, method)(D, b, M=M, rtol=rtol, maxiter=arguments.maxiter)
    residual = b - D @ x
    squares = engine.gather((float(abs(residual * residual).sum()), float(abs(b * b).sum())))
    far, size = (float(np.sqrt(sum(values))) for values in zip(*squares, strict=True))
    norm = size or 1.0
    accepted = stats.converged and far / norm <= 10 * rtol
    if arguments.out:
        whole = collect(engine, x if isinstance(x, np.ndarray) else x.get(), D.rows)
        if engine.rank == 0:
            found = np.empty(rows, x.dtype)
            found[order] = whole
            pieces.write_vector(arguments.out, found)
    if arguments.plot and engine.rank == 0:
        pieces.draw_residuals(Path(arguments.plot), title, [one / norm for one in stats.residuals], rtol)
    told = {
        "matrix": arguments.matrix, "rows": rows, "entries": D.nnz, "ranks": engine.size, "method": title,
        "iterations": stats.iterations, "seconds": stats.seconds, "planning": planning, "setup": setup,
        "residual": far / norm, "converged": bool(accepted), "reason": stats.reason,
    }  # fmt: skip
    if arguments.json and engine.rank == 0:
        print(json.dumps(told))
    each = 1e6 * stats.seconds / max(1, stats.iterations)
    say(
        f"{stats.iterations:,} iterations in {stats.seconds:.3f} s ({each:,.1f} us each); planned in "
        f"{planning:.3f} s; preconditioner made in {setup:.3f} s; true residual {far / norm:.2e} of b"
    )
    if not accepted:
        say(f"not converged: {stats.reason}")
    return int(not accepted)


def _nothing(_: str) -> None:
    return None


def _check(arguments: argparse.Namespace, pieces: Pieces) -> tuple[Policy | None, int]:
    if arguments.compare:
        raise ValueError(
            "--compare was given and there are several ranks; compare on one, without a launcher"
        )
    return pieces.check(arguments)


def _refuse_shape(name: str, rows: int, columns: int) -> None:
    raise ValueError(f"{name} is {rows} x {columns}; solve needs a square matrix with rows")


def _title(kind: str) -> str:
    return kind if kind in ("jacobi", "chebyshev") else f"{kind} of each rank's rows"


def _matrix(
    arguments: argparse.Namespace,
    pieces: Pieces,
    comm: Any,
    engine: Engine,
    folder: bool,
    policy: Policy | None,
    seed: int,
) -> tuple[distributed.SpMatrix, str]:
    """Return the matrix of a folder or of rank 0, and the method that is asked for or fits."""
    options = {"policy": policy, "device": arguments.device}
    if folder:
        return distributed.SpMatrix.from_files(
            arguments.matrix, comm, **options
        ), arguments.method or "bicgstab"

    def load() -> tuple[Any, str]:
        if engine.rank:
            return None, ""
        matrix = load_matrix(arguments.matrix, seed=seed)
        if arguments.method or matrix.shape[0] != matrix.shape[1]:
            return matrix, arguments.method or "bicgstab"
        return matrix, "cg" if pieces.looks_positive_definite(matrix) else "bicgstab"

    matrix, method = distributed.agree(engine, load)
    return distributed.SpMatrix.from_scipy(matrix, comm, **options), engine.gather(method)[0]


def _preconditioner(arguments: argparse.Namespace, pieces: Pieces, D: distributed.SpMatrix) -> Any:
    """Return the preconditioner that is asked for; all but two are of each rank's own block."""

    def multigrid(block: Any, device: str) -> Any:
        return preconditioners.multigrid(pieces.hierarchy(block), device=device)

    ours = distributed.preconditioners
    make: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "jacobi": lambda: ours.jacobi(D),
        "block-jacobi": lambda: ours.block_jacobi(D, block=arguments.block),
        "ic0": lambda: ours.of_blocks(D, preconditioners.ic0),
        "ilu0": lambda: ours.of_blocks(D, preconditioners.ilu0),
        "chebyshev": lambda: ours.chebyshev(D),
        "multigrid": lambda: ours.of_blocks(D, multigrid),
    }
    return make[arguments.precond]()


def _on_device(array: Any) -> Any:
    import cupy

    return cupy.asarray(array)
