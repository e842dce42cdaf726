"""`dasp solve`: one linear system by CG or BiCGSTAB, with SciPy's or CuPy's solver on the operator."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasp.commands.options import (
    Subparsers,
    add_device_option,
    add_matrix_option,
    add_policy_options,
    policy_from,
    seed_from,
)
from dasp.io.matrices import load_matrix
from dasp.matrix import SpMatrix

METHODS = ("cg", "bicgstab")
_RTOL = {"float64": 1e-8, "float32": 1e-4}
# A recurrence drifts from the true residual by rounding; beyond this factor the solution is not accepted.
_DRIFT = 10.0


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp solve` to the command line."""
    summary = "solve A x = b by CG or BiCGSTAB and report the true residual"
    parser = subparsers.add_parser("solve", help=summary, description=summary)
    add_matrix_option(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="by default cg if the matrix is symmetric with a positive diagonal, else bicgstab",
    )
    parser.add_argument("--rtol", type=float, help="norm of the residual over that of b (default: 1e-8)")
    parser.add_argument("--maxiter", type=int, default=10_000, help="iterations at most (10000)")
    parser.add_argument("--rhs", choices=("ones", "random"), default="ones", help="right-hand side (ones)")
    parser.add_argument("--jacobi", action="store_true", help="precondition with the inverse diagonal")
    add_device_option(parser)
    add_policy_options(parser)
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class Outcome:
    """What a solver did: its solution on the host, its iterations, products and seconds, and its code."""

    x: NDArray[np.floating]
    iterations: int
    products: int
    seconds: float
    code: int


def _run(arguments: argparse.Namespace) -> int:
    _check_limits(arguments)
    policy, seed = policy_from(arguments), seed_from(arguments)
    matrix = load_matrix(arguments.matrix, seed=seed)
    rows, columns = matrix.shape
    if rows != columns or rows == 0:
        raise ValueError(f"{arguments.matrix} is {rows} x {columns}; solve needs a square matrix with rows")
    method = arguments.method or ("cg" if looks_positive_definite(matrix) else "bicgstab")
    planned = SpMatrix.from_scipy(matrix, policy=policy, device=arguments.device)
    rtol = arguments.rtol if arguments.rtol is not None else _RTOL[np.dtype(planned.dtype).name]
    diagonal = _checked_diagonal(matrix) if arguments.jacobi else None
    b = np.ones(rows) if arguments.rhs == "ones" else np.random.default_rng(seed).standard_normal(rows)
    b = b.astype(planned.dtype)
    preconditioner = " with Jacobi's preconditioner" if arguments.jacobi else ""
    print(f"{arguments.matrix}: {rows:,} rows, {matrix.nnz:,} entries, on {planned.device}")
    print(f"{method}{preconditioner}, to {rtol:.1e} of b ({arguments.rhs})", flush=True)
    outcome = solve(planned, b, method, rtol, arguments.maxiter, diagonal)
    residual = true_residual(matrix, outcome.x, b)
    print(
        f"{outcome.iterations:,} iterations in {outcome.seconds:.3f} s; "
        f"{outcome.products:,} products, {outcome.products / outcome.seconds:,.0f} a second; "
        f"true residual {residual:.2e}"
    )
    problem = failure(outcome, residual, rtol, arguments.maxiter)
    if problem:
        print(f"not converged: {problem}")
    return int(bool(problem))


def _check_limits(arguments: argparse.Namespace) -> None:
    if arguments.rtol is not None and not 0 < arguments.rtol < 1:
        raise ValueError(f"--rtol is {arguments.rtol}; it must be above 0 and below 1")
    if arguments.maxiter < 1:
        raise ValueError(f"--maxiter is {arguments.maxiter}; it must be at least 1")


def looks_positive_definite(matrix: csr_array) -> bool:
    """Whether a square matrix is symmetric, up to rounding, and has a positive diagonal.

    That is necessary for CG, not sufficient: an indefinite matrix may pass.
    """
    if not np.all(matrix.diagonal() > 0):
        return False
    difference = abs(matrix - matrix.T)
    return bool(difference.nnz == 0 or difference.max() <= 1e-12 * abs(matrix).max())


def _checked_diagonal(matrix: csr_array) -> NDArray[np.floating]:
    diagonal = matrix.diagonal()
    zeros = np.flatnonzero(~(np.isfinite(diagonal) & (diagonal != 0)))
    if len(zeros):
        raise ValueError(
            f"{len(zeros):,} rows have no usable diagonal entry, the first is row {zeros[0]}; --jacobi "
            "divides by each; leave --jacobi out"
        )
    return np.asarray(diagonal, dtype=np.float64)


def solve(
    matrix: SpMatrix,
    b: NDArray[np.floating],
    method: str,
    rtol: float,
    maxiter: int,
    diagonal: NDArray[np.floating] | None = None,
) -> Outcome:
    """Solve ``A x = b`` from x = 0 on the matrix's device.

    Parameters
    ----------
    matrix : SpMatrix, square
    b : array, shape (n,), host
        Of the matrix's type.
    method : {"cg", "bicgstab"}
    rtol : float
        Stop when the solver's residual is below `rtol` times the norm of b.
    maxiter : int
    diagonal : array, shape (n,), host, optional
        Precondition by dividing by it.

    Returns
    -------
    Outcome
        The time holds no planning, no compilation and no copies to and from the device.
    """
    xp, linalg = _libraries(matrix)
    operator = matrix.as_linear_operator()
    right = xp.asarray(b)
    counts = {"iterations": 0, "products": 0}

    def multiply(x: Any) -> Any:
        counts["products"] += 1
        return operator.matvec(x)

    def count_iteration(_: Any) -> None:
        counts["iterations"] += 1

    counted = linalg.LinearOperator(operator.shape, matvec=multiply, dtype=operator.dtype)
    options: dict[str, Any] = {"rtol": rtol, "atol": 0.0, "maxiter": maxiter, "callback": count_iteration}
    if diagonal is not None:
        inverse = xp.asarray((1 / diagonal).astype(b.dtype))
        options["M"] = linalg.LinearOperator(operator.shape, matvec=lambda r: inverse * r, dtype=b.dtype)
    operator.matvec(right)  # compiles whatever is compiled at first use
    _host(right)
    start = time.perf_counter()
    x, code = getattr(linalg, method)(counted, right, **options)
    solution = _host(x)
    seconds = time.perf_counter() - start
    return Outcome(solution, counts["iterations"], counts["products"], seconds, int(code))


def _libraries(matrix: SpMatrix) -> tuple[Any, Any]:
    """The array library and the solvers for the matrix's device."""
    if matrix.device == "cpu":
        import scipy.sparse.linalg

        return np, scipy.sparse.linalg
    import cupy
    import cupyx.scipy.sparse.linalg

    return cupy, cupyx.scipy.sparse.linalg


def _host(x: Any) -> NDArray[np.floating]:
    """Copy to the host, which also waits for the device."""
    return np.asarray(x.get() if hasattr(x, "get") else x)


def true_residual(matrix: csr_array, x: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Norm of ``b - A x`` over that of b, by SciPy's product with the original matrix, in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        residual = b.astype(np.float64) - matrix @ x.astype(np.float64)
        return float(np.linalg.norm(residual) / np.linalg.norm(b.astype(np.float64)))


def failure(outcome: Outcome, residual: float, rtol: float, maxiter: int) -> str:
    """Say why a solution is not accepted; empty if it is."""
    if outcome.code > 0:
        return (
            f"the residual is {residual:.2e} after {maxiter:,} iterations; try --jacobi or a larger --maxiter"
        )
    if outcome.code < 0:
        return f"the method broke down (code {outcome.code}); try --jacobi or the other --method"
    if not residual <= _DRIFT * rtol:
        return (
            f"the solver stopped at {rtol:.1e}, but the true residual is {residual:.2e}; try a larger --rtol"
        )
    return ""
