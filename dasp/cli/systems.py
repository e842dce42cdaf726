"""The parts of `dasp solve` that are alike on one rank and on several.

They check options, read b and write x, judge a solution by its true residual, and report it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dasp.cli.options import check_file
from dasp.cli.report import RED, STYLE, Table, new_figure, save
from dasp.io.files import one_line_errors, open_regular, replacing
from dasp.io.matrices import load_matrix
from dasp.io.npz import read_array
from dasp.preconditioners.automatic import RTOL, WITHOUT_M
from dasp.runtime.dtypes import real_type
from dasp.solvers import Stats

if TYPE_CHECKING:
    from dasp import distributed
    from dasp.matrix.matrix import SpMatrix

# ---- options ---------------------------------------------------------------------------------------------


def check_options(arguments: argparse.Namespace) -> None:
    """Check that options fit each other and name files that can be written; ValueError if not."""
    if arguments.precond not in ("auto", "none") and arguments.method in WITHOUT_M:
        raise ValueError(
            f"--precond is {arguments.precond}, and {arguments.method} takes no preconditioner; leave it out "
            "or pass another --method"
        )
    if arguments.block is not None and arguments.precond != "block-jacobi":
        raise ValueError(f"--block is {arguments.block}, and --precond {arguments.precond} has no blocks")
    if arguments.out is not None:
        check_file("--out", arguments.out, (".npy", ".mtx"), reads=(arguments.matrix, arguments.rhs))
    if arguments.plot is not None:
        check_file("--plot", arguments.plot, (".png", ".pdf", ".svg"))
        importlib.import_module("matplotlib")  # raises before any work if it is missing


def check_shape(arguments: argparse.Namespace, shape: tuple[int, int]) -> None:
    """Check that the matrix has rows and columns, and is square for a preconditioner; ValueError if not."""
    name, kind = f"{arguments.matrix} is {shape[0]} x {shape[1]}", arguments.precond
    if 0 in shape:
        raise ValueError(f"{name}; a matrix with rows and columns is needed")
    if shape[0] != shape[1] and kind not in ("auto", "none"):
        raise ValueError(f"{name} and --precond {kind}; it needs a square matrix; leave --precond out")


def find_tolerance(arguments: argparse.Namespace, dtype: np.dtype[Any]) -> float:
    """Return the relative residual to reach: `--rtol`, or the default for a matrix of this type."""
    rtol: float | None = arguments.rtol
    return RTOL[real_type(dtype).itemsize] if rtol is None else rtol


# ---- b and x ---------------------------------------------------------------------------------------------


def make_right_hand_side(given: str, rows: int, seed: int) -> NDArray[np.inexact]:
    """Return b: ones, normal random numbers, or the vector of a file.

    Raises
    ------
    ValueError
        If the file holds no vector of `rows` numbers.
    """
    if given == "ones":
        return np.ones(rows)
    if given == "random":
        return np.random.default_rng(seed).standard_normal(rows)
    b = read_vector(given)
    if b.size != rows or b.dtype.kind not in "fiubc":
        raise ValueError(f"{given} holds {b.size} numbers of {b.dtype}; {rows} are needed, real or complex")
    return b.reshape(-1).astype(np.complex128 if b.dtype.kind == "c" else np.float64)


def as_solved(b: NDArray[np.inexact], dtype: np.dtype[Any]) -> NDArray[np.inexact]:
    """Return b in the type of the matrix, or in a complex one that holds both."""
    return b.astype(np.result_type(dtype, np.complex64) if b.dtype.kind == "c" else dtype)


def read_vector(path: str) -> NDArray[Any]:
    """Return the vector in a .npy or .mtx file.

    Raises
    ------
    ValueError
        If the name has another ending, if the file cannot be read, or if a .mtx file holds no vector.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npy":
        with one_line_errors(Path(path)), open_regular(Path(path)) as file:
            return read_array(file, path)
    if suffix == ".mtx":
        found = load_matrix(path)
        if 1 not in found.shape:
            raise ValueError(f"{path} is {found.shape[0]} x {found.shape[1]}; a vector is needed")
        return np.asarray(found.toarray())
    raise ValueError(f"--rhs is {path}; ones, random, or a file that ends in .npy or .mtx is needed")


def write_vector(path: str, x: NDArray[Any]) -> None:
    """Write x as .npy, or as a Matrix Market array of one column; replace an existing file as a whole."""
    with replacing(Path(path)) as file:
        if Path(path).suffix.lower() == ".npy":
            np.save(file, x)
            return
        import scipy.io

        scipy.io.mmwrite(file, x.reshape(-1, 1))


# ---- the verdict -----------------------------------------------------------------------------------------

TOLERATED = 10.0
"""A solution is accepted if its true residual is at most this many times the tolerance: by rounding, the
residual by which a solver stops drifts from the true one."""


@dataclass(frozen=True)
class Outcome:
    """The result of one solver for the system.

    Attributes
    ----------
    solver : str
    iterations : int
    setup, seconds : float
        Seconds to set up a preconditioner or a hierarchy, and to solve; neither includes planning.
    residual : float
        Norm of r = b - A x over that of b: on one rank `true_residual`, on several that of `Stats`.
    converged : bool
        True if the solution is accepted.
    gradient : float
        On one rank, `true_gradient` if b - A x is not small and need not be; else infinite.
    """

    solver: str
    iterations: int
    setup: float
    seconds: float
    residual: float
    converged: bool
    gradient: float = math.inf


def judge(
    solver: str,
    iterations: int,
    setup: float,
    seconds: float,
    residual: float,
    rtol: float,
    claimed: bool = True,
    gradient: float = math.inf,
) -> Outcome:
    """Judge a solution by its true residual or gradient, and by the solver's own claim that it converged."""
    converged = claimed and (residual <= TOLERATED * rtol or gradient <= TOLERATED * rtol)
    return Outcome(solver, iterations, setup, seconds, residual, converged, gradient)


def true_residual(matrix: csr_array, x: NDArray[np.inexact], b: NDArray[np.inexact]) -> float:
    """Return the norm of b - A x over that of b, by SciPy's product with the original matrix in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(_subtract(matrix, x, b)) / (np.linalg.norm(b) or 1.0))


def true_gradient(matrix: csr_array, x: NDArray[np.inexact], b: NDArray[np.inexact]) -> float:
    """Return the norm of A' r over those of A and r = b - A x: 0 if x solves the least-squares problem."""
    with np.errstate(over="ignore", invalid="ignore"):
        r = _subtract(matrix, x, b)
        norms = np.linalg.norm(matrix.data.astype(r.dtype)) * np.linalg.norm(r)
        return float(np.linalg.norm(r.conj() @ matrix) / (norms or 1.0))


def _subtract(matrix: csr_array, x: NDArray[np.inexact], b: NDArray[np.inexact]) -> NDArray[np.inexact]:
    x, b = (vector.astype(np.result_type(vector, np.float64)) for vector in (x, b))
    difference: NDArray[np.inexact] = b - matrix @ x
    return difference


# ---- the report ------------------------------------------------------------------------------------------


def announce(
    arguments: argparse.Namespace, shape: tuple[int, int], entries: int, where: str, rtol: float
) -> None:
    """Print what is about to be solved, and where."""
    size = f"{shape[0]:,} rows" + (f", {shape[1]:,} columns" if shape[0] != shape[1] else "")
    print(f"{arguments.matrix}: {size}, {entries:,} entries, on {where}", end="; ")
    print(f"b is {arguments.rhs}, to {rtol:.1e} of its norm", flush=True)


def report_solve(
    arguments: argparse.Namespace,
    A: SpMatrix | distributed.SpMatrix,
    ranks: int,
    planning: float,
    rtol: float,
    outcomes: list[Outcome],
    stats: Stats,
    x: NDArray[Any] | None,
) -> int:
    """Print the result, then write x and draw the residuals; return dasp's exit status.

    Parameters
    ----------
    planning : float
        Seconds of planning.
    outcomes : list of Outcome
        The first one is dasp's.
    stats : Stats
        Statistics of dasp's solve.
    x : array or None
        Its solution, needed for `--out` alone.
    """
    ours = outcomes[0]
    title = ours.solver.removeprefix("dasp ")
    if arguments.json:
        print(_as_json(arguments, A, ranks, planning, rtol, outcomes, stats))
    else:
        print(f"{title}: {stats.choice.partition(': ')[2]}")
        _print_outcomes(outcomes, planning)
        if not ours.converged:
            print(f"not converged: {stats.reason}")
    if x is not None and arguments.out:
        write_vector(arguments.out, x)
    if arguments.plot:
        draw_residuals(Path(arguments.plot), title, stats, rtol)
    return int(not ours.converged)


def _as_json(
    arguments: argparse.Namespace,
    A: SpMatrix | distributed.SpMatrix,
    ranks: int,
    planning: float,
    rtol: float,
    outcomes: list[Outcome],
    stats: Stats,
) -> str:
    """Return the result as JSON, which has no NaN and no infinity: null in their place; see `report`."""

    def finite(value: float) -> float | None:
        return value if np.isfinite(value) else None

    found = {
        "matrix": arguments.matrix,
        "rows": A.shape[0],
        "columns": A.shape[1],
        "entries": int(A.nnz),
        "device": A.device,
        "ranks": ranks,
        "dtype": str(A.dtype),
        "rtol": rtol,
        "rhs": arguments.rhs,
        "planning_seconds": planning,
        "choice": stats.choice,
        "reason": stats.reason,
        "residuals": [finite(residual) for residual in stats.residuals],
        "solvers": [
            {
                "solver": one.solver,
                "converged": one.converged,
                "iterations": one.iterations,
                "setup_seconds": one.setup,
                "solve_seconds": one.seconds,
                "true_residual": finite(one.residual),
                "gradient": finite(one.gradient),
            }
            for one in outcomes
        ],
    }
    return json.dumps(found, indent=2, allow_nan=False)


def _print_outcomes(outcomes: list[Outcome], planning: float) -> None:
    """Print the outcome of dasp's solver, and all outcomes in a table if there are others."""
    ours = outcomes[0]
    each = 1e6 * ours.seconds / max(1, ours.iterations)
    setup = f"; chosen and set up in {ours.setup:.3f} s" if ours.setup > 1e-4 else ""
    least = f"; gradient {ours.gradient:.2e} of A and r" if np.isfinite(ours.gradient) else ""
    print(
        f"{ours.iterations:,} iteration{'s' * (ours.iterations != 1)} in {ours.seconds:.3f} s "
        f"({each:,.1f} us each); "
        f"planned in {planning:.3f} s{setup}; true residual {ours.residual:.2e} of b{least}"
    )
    if len(outcomes) > 1:
        columns: list[tuple[str, Callable[[Outcome], str]]] = [
            ("solver", lambda one: one.solver),
            ("iterations", lambda one: f"{one.iterations:,}"),
            ("set-up s", lambda one: f"{one.setup:.3f}"),
            ("solve s", lambda one: f"{one.seconds:.3f}"),
            ("true residual", lambda one: f"{one.residual:.2e}"),
            ("", lambda one: "" if one.converged else "not converged"),
        ]
        print("\n" + Table.of("", columns, outcomes, words=[""]).text())


def draw_residuals(path: Path, title: str, stats: Stats, rtol: float) -> None:
    """Draw the norm of the residual after each check, and the norm that was asked for."""
    from matplotlib import rc_context

    least = rtol * stats.residuals[0]  # that of b, as x starts at 0
    last = len(stats.residuals) - 1, least
    with rc_context(STYLE):
        figure, (axes,) = new_figure(3.5, 2.6)
        stats.plot(axes)
        axes.axhline(least, color=RED, linestyle="--", linewidth=0.8)
        axes.annotate("asked for", last, ha="right", va="bottom", color=RED, fontsize=7)
        axes.set_title(title)
        save(figure, path)
