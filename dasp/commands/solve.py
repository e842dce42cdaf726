"""`dasp solve`: a linear system by an iterative method, with a preconditioner, judged by its true
residual."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

import dasp.preconditioners
import dasp.solvers
from dasp._launcher import started
from dasp.bench.figures import BLUE, RED, new_figure, save, styled
from dasp.commands.figures import check_plot
from dasp.commands.options import (
    Subparsers,
    add_device_option,
    add_json_option,
    add_matrix_option,
    add_policy_options,
    policy_from,
    seed_from,
    shows_progress,
)
from dasp.commands.summaries import add_parser
from dasp.io.files import one_line_errors, open_regular, replacing
from dasp.io.matrices import load_matrix
from dasp.matrix import SpMatrix
from dasp.policy import Policy

METHODS = ("cg", "minres", "bicgstab", "gmres")
PRECONDITIONERS = ("none", "jacobi", "block-jacobi", "ic0", "ilu0", "chebyshev", "multigrid")
_RTOL = {"float64": 1e-8, "float32": 1e-4, "complex128": 1e-8, "complex64": 1e-4}
_VECTOR_SUFFIXES = (".npy", ".mtx")


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp solve` to the command line."""
    parser = add_parser(subparsers, "solve")
    add_matrix_option(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="by default cg if the matrix is symmetric (Hermitian) with a positive diagonal, else bicgstab",
    )
    parser.add_argument(
        "--precond",
        choices=PRECONDITIONERS,
        default="none",
        help="preconditioner (none); multigrid is PyAMG's smoothed aggregation, in our cycles",
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


@dataclass(frozen=True)
class Outcome:
    """What a solver did.

    Attributes
    ----------
    solver : str
    iterations : int
    setup, seconds : float
        To make a preconditioner or a hierarchy, and to solve; planning in neither.
    residual : float
        Norm of b - A x over that of b, by SciPy's product with the original matrix.
    problem : str
        Why the solution is not accepted; empty if it is.
    """

    solver: str
    iterations: int
    setup: float
    seconds: float
    residual: float
    problem: str


def _compile(method: str, dtype: np.dtype, policy: Policy | None, device: str) -> None:
    """Plan and solve a system of a few rows, so that no time below holds what a process compiles first."""
    small = SpMatrix.from_scipy(eye_array(8, format="csr", dtype=dtype), policy=policy, device=device)
    getattr(dasp.solvers, method)(small, np.ones(8, small.dtype), maxiter=1)


def _run(arguments: argparse.Namespace) -> int:
    if started():
        from dasp.commands import ranks

        pieces = ranks.Pieces(
            _check,
            right_hand_side,
            write_vector,
            draw_residuals,
            _hierarchy,
            looks_positive_definite,
            lambda dtype: _RTOL[dtype.name],
        )
        return ranks.solve(arguments, pieces)
    policy, seed = _check(arguments)
    matrix = load_matrix(arguments.matrix, seed=seed)
    rows, columns = matrix.shape
    if rows != columns or rows == 0:
        raise ValueError(f"{arguments.matrix} is {rows} x {columns}; solve needs a square matrix with rows")
    method = arguments.method or ("cg" if looks_positive_definite(matrix) else "bicgstab")
    _compile(method, matrix.dtype, policy, arguments.device)
    began = time.perf_counter()
    planned = SpMatrix.from_scipy(matrix, policy=policy, device=arguments.device)
    planning = time.perf_counter() - began
    rtol = arguments.rtol if arguments.rtol is not None else _RTOL[np.dtype(planned.dtype).name]
    b = right_hand_side(arguments.rhs, rows, seed)
    b = b.astype(np.result_type(planned.dtype, np.complex64) if b.dtype.kind == "c" else planned.dtype)
    title = method if arguments.precond == "none" else f"{method} with {arguments.precond}"
    if not arguments.json:
        print(f"{arguments.matrix}: {rows:,} rows, {matrix.nnz:,} entries, on {planned.device}")
        print(f"{title}, to {rtol:.1e} of b ({arguments.rhs})", flush=True)
    began = time.perf_counter()
    M = preconditioner(arguments.precond, matrix, planned, arguments.block)
    setup = time.perf_counter() - began
    show = shows_progress() and not arguments.json
    x, stats = getattr(dasp.solvers, method)(
        planned, b, M=M, rtol=rtol, maxiter=arguments.maxiter, progress=show
    )
    ours = _outcome(f"dasp {title}", matrix, x, b, rtol, stats.iterations, setup, stats.seconds, stats.reason)
    others: list[Outcome] = []
    if arguments.compare:
        if M is not None:
            others.append(_plain(matrix, planned, b, method, rtol, arguments.maxiter))
        others += compare(matrix, b, method, rtol, arguments.maxiter, planned.device)
    if arguments.out:
        write_vector(arguments.out, x)
    if arguments.plot:
        norm = float(np.linalg.norm(b)) or 1.0
        draw_residuals(Path(arguments.plot), title, [one / norm for one in stats.residuals], rtol)
    if arguments.json:
        _print_json(arguments, matrix, planned, planning, rtol, [ours, *others], stats)
    else:
        _print(ours, others, planning)
    return int(bool(ours.problem))


def _check(arguments: argparse.Namespace) -> tuple[Policy | None, int]:
    """Return the policy and the seed; TypeError or ValueError if an option is not what it must be."""
    if arguments.rtol is not None and not 0 < arguments.rtol < 1:
        raise ValueError(f"--rtol is {arguments.rtol}; it must be above 0 and below 1")
    if arguments.maxiter < 1:
        raise ValueError(f"--maxiter is {arguments.maxiter}; it must be at least 1")
    if arguments.block < 1:
        raise ValueError(f"--block is {arguments.block}; it must be at least 1")
    if arguments.out:
        _check_out(arguments)
    if arguments.plot:
        check_plot(arguments.plot)
    return policy_from(arguments), seed_from(arguments)


def _check_out(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    if out.suffix not in _VECTOR_SUFFIXES:
        raise ValueError(f"--out is {out}; a name that ends in .npy or .mtx is needed")
    if not out.parent.is_dir():
        raise ValueError(f"--out is {out}; the folder {out.parent} must exist; make it first")
    if out.exists() and Path(arguments.matrix).exists() and out.samefile(arguments.matrix):
        raise ValueError(f"--out is {out}, the file of the matrix; another name is needed")


def right_hand_side(given: str, rows: int, seed: int) -> NDArray[np.inexact]:
    """Return b: ones, normal random numbers, or what a file holds.

    Raises
    ------
    ValueError
        If the file holds no vector of so many numbers.
    """
    if given == "ones":
        return np.ones(rows)
    if given == "random":
        return np.random.default_rng(seed).standard_normal(rows)
    b = read_vector(given)
    if b.size != rows or b.dtype.kind not in "fiubc":
        raise ValueError(f"{given} holds {b.size} numbers of {b.dtype}; {rows} are needed, real or complex")
    return b.reshape(-1).astype(np.complex128 if b.dtype.kind == "c" else np.float64)


def read_vector(path: str) -> NDArray[Any]:
    """Return the vector in a .npy or .mtx file.

    Raises
    ------
    ValueError
        If the file is none of these, or cannot be read, or a .mtx holds a matrix.
    """
    suffix = Path(path).suffix
    if suffix == ".npy":
        with one_line_errors(Path(path)), open_regular(Path(path)) as file:
            return np.asarray(np.load(file, allow_pickle=False))
    if suffix == ".mtx":
        found = load_matrix(path)
        if 1 not in found.shape:
            raise ValueError(f"{path} is {found.shape[0]} x {found.shape[1]}; a vector is needed")
        return np.asarray(found.toarray())
    raise ValueError(f"--rhs is {path}; ones, random, or a file that ends in .npy or .mtx is needed")


def write_vector(path: str, x: NDArray[Any]) -> None:
    """Write x as .npy, or as a Matrix Market array of one column; a file that is there is replaced whole."""
    with replacing(Path(path)) as file:
        if Path(path).suffix == ".npy":
            np.save(file, x)
            return
        import scipy.io

        scipy.io.mmwrite(file, x.reshape(-1, 1))


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
        "multigrid": lambda: dasp.preconditioners.multigrid(_hierarchy(matrix), device=device),
    }
    return make[kind]()


def _hierarchy(matrix: csr_array) -> Any:
    try:
        import pyamg
    except ImportError as error:
        raise RuntimeError(
            "multigrid was asked for and PyAMG is not installed; pip install 'dasp-spmv[amg]'"
        ) from error
    from scipy.sparse import csr_matrix

    return pyamg.smoothed_aggregation_solver(csr_matrix(matrix))


@styled
def draw_residuals(path: Path, title: str, residuals: list[float], rtol: float) -> None:
    """Draw the norm of the residual over that of b after each iteration, and what was asked for."""
    figure, (axes,) = new_figure(3.5, 2.6)
    axes.semilogy(range(len(residuals)), [max(one, 1e-300) for one in residuals], color=BLUE)
    axes.axhline(rtol, color=RED, linestyle="--", linewidth=0.8)
    axes.annotate("asked for", (len(residuals) - 1, rtol), ha="right", va="bottom", color=RED, fontsize=7)
    axes.set(xlabel="iteration", ylabel="norm of the residual / norm of b", title=title)
    axes.margins(x=0.01)
    save(figure, path)


def looks_positive_definite(matrix: csr_array) -> bool:
    """Whether a square matrix is symmetric or Hermitian, up to rounding, and has a positive diagonal.

    That is necessary for CG, not sufficient: an indefinite matrix may pass.
    """
    if not np.all(matrix.diagonal().real > 0):
        return False
    difference = abs(matrix - matrix.conj().T)
    return bool(difference.nnz == 0 or difference.max() <= 1e-12 * abs(matrix).max())


def true_residual(matrix: csr_array, x: NDArray[np.inexact], b: NDArray[np.inexact]) -> float:
    """Norm of ``b - A x`` over that of b, by SciPy's product with the original matrix, in double
    precision."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        residual = _wide(b) - matrix @ _wide(x)
        return float(np.linalg.norm(residual) / np.linalg.norm(_wide(b)))


def _wide(vector: NDArray[Any]) -> NDArray[Any]:
    return vector.astype(np.result_type(vector, np.float64))


def _outcome(
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
    scale = float(np.linalg.norm(abs(matrix) @ abs(_wide(x)))) / (float(np.linalg.norm(b)) or 1.0)
    accepted = residual <= rtol * (1 + 1e-6) + 16 * unit * scale and residual <= 10 * rtol
    return Outcome(solver, iterations, setup, seconds, residual, "" if accepted else reason)


def _plain(
    matrix: csr_array, planned: SpMatrix, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int
) -> Outcome:
    """Solve by our own method without a preconditioner."""
    x, stats = getattr(dasp.solvers, method)(planned, b, rtol=rtol, maxiter=maxiter)
    return _outcome(f"dasp {method}", matrix, x, b, rtol, stats.iterations, 0.0, stats.seconds, stats.reason)


def compare(
    matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int, device: str
) -> list[Outcome]:
    """Solve the same system by others: SciPy, CuPy if the device is a GPU, PyAMG if it is installed."""
    import scipy.sparse.linalg

    outcomes = [
        _by_library("SciPy", scipy.sparse.linalg, matrix, matrix, b, method, rtol, maxiter, np.asarray)
    ]
    if device != "cpu":
        outcomes.append(_by_cupy(matrix, b, method, rtol, maxiter))
    if looks_positive_definite(matrix) and b.dtype.kind == matrix.dtype.kind:  # as PyAMG needs it
        outcomes.extend(_by_pyamg(matrix, b, rtol, maxiter))
    return outcomes


def _by_library(
    name: str,
    library: Any,
    operator: Any,
    matrix: csr_array,
    b: Any,
    method: str,
    rtol: float,
    maxiter: int,
    host: Any,
) -> Outcome:
    """Solve by one of SciPy's solvers, or of CuPy's; the second of two solves is timed, without counting."""
    counted = [0]

    def count(_: Any) -> None:
        counted[0] += 1

    solver = getattr(library, method)
    options: dict[str, Any] = {"maxiter": maxiter}
    options["tol" if method == "minres" and name == "CuPy" else "rtol"] = rtol
    more = {"callback_type": "pr_norm"} if method == "gmres" else {}
    solver(operator, b, **options, callback=count, **more)
    began = time.perf_counter()
    x, _ = solver(operator, b, **options)
    x = host(x)
    seconds = time.perf_counter() - began
    on_host = host(b)
    reason = f"{name}'s {method} stopped above the tolerance"
    return _outcome(f"{name} {method}", matrix, x, on_host, rtol, counted[0], 0.0, seconds, reason)


def _by_cupy(matrix: csr_array, b: NDArray[np.inexact], method: str, rtol: float, maxiter: int) -> Outcome:
    import cupy
    import cupyx.scipy.sparse
    import cupyx.scipy.sparse.linalg
    from scipy.sparse import csr_matrix

    operator = cupyx.scipy.sparse.csr_matrix(csr_matrix(matrix.astype(b.dtype, copy=False)))
    library = cupyx.scipy.sparse.linalg
    return _by_library(
        "CuPy", library, operator, matrix, cupy.asarray(b), method, rtol, maxiter, lambda x: x.get()
    )


def _by_pyamg(matrix: csr_array, b: NDArray[np.inexact], rtol: float, maxiter: int) -> list[Outcome]:
    try:
        began = time.perf_counter()
        hierarchy = _hierarchy(matrix)
        setup = time.perf_counter() - began
    except RuntimeError:
        return []
    residuals: list[float] = []
    began = time.perf_counter()
    x = hierarchy.solve(b, tol=rtol, maxiter=maxiter, accel="cg", residuals=residuals)
    seconds = time.perf_counter() - began
    reason = "PyAMG's cg stopped above the tolerance"
    made = max(0, len(residuals) - 1)
    return [_outcome("PyAMG cg with its cycle", matrix, x, b, rtol, made, setup, seconds, reason)]


def _print(ours: Outcome, others: list[Outcome], planning: float) -> None:
    each = 1e6 * ours.seconds / max(1, ours.iterations)
    setup = f"; preconditioner made in {ours.setup:.3f} s" if ours.setup > 1e-4 else ""
    print(
        f"{ours.iterations:,} iterations in {ours.seconds:.3f} s ({each:,.1f} us each); "
        f"planned in {planning:.3f} s{setup}; true residual {ours.residual:.2e} of b"
    )
    if others:
        print(f"\n{'solver':<28}{'iterations':>11}{'set-up s':>10}{'solve s':>10}{'true residual':>15}")
        for one in (ours, *others):
            print(
                f"{one.solver:<28}{one.iterations:>11,}{one.setup:>10.3f}{one.seconds:>10.3f}"
                f"{one.residual:>15.2e}{'  not converged' if one.problem else ''}"
            )
    if ours.problem:
        print(f"not converged: {ours.problem}")


def _print_json(
    arguments: argparse.Namespace,
    matrix: csr_array,
    planned: SpMatrix,
    planning: float,
    rtol: float,
    outcomes: list[Outcome],
    stats: dasp.solvers.Stats,
) -> None:
    found = {
        "matrix": arguments.matrix,
        "rows": matrix.shape[0],
        "entries": int(matrix.nnz),
        "device": planned.device,
        "dtype": str(planned.dtype),
        "rtol": rtol,
        "rhs": arguments.rhs,
        "planning_seconds": planning,
        "reason": stats.reason,
        "residuals": stats.residuals,
        "solvers": [
            {
                "solver": one.solver,
                "converged": not one.problem,
                "iterations": one.iterations,
                "setup_seconds": one.setup,
                "solve_seconds": one.seconds,
                "true_residual": one.residual if np.isfinite(one.residual) else None,
            }
            for one in outcomes
        ],
    }
    print(json.dumps(found, indent=2))
