"""Linear systems: dasp's solvers against those of SciPy or CuPy, and PyAMG, to the same true residual.

A row is one solver on one system A x = b with b of ones. Every solution is verified: the true residual, by
SciPy's product with the original matrix, must be as small as was asked for, but for the rounding of its own
evaluation. Timed apart are planning, the set-up of multigrid, solves after the first, and all from a SciPy
matrix to x on the host.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix, eye_array

from benchmarks.bench.device import BenchDevice
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row
from benchmarks.bench.solvers_report import MULTIGRID, ours, report
from benchmarks.bench.sparse import as_text, load, short_name
from dasp.cli.bench import planner
from dasp.cli.compare import SHARED, one_blas_thread, prepare_by_library
from dasp.cli.measure import as_float
from dasp.runtime.arrays import to_host

METHODS = (*SHARED, MULTIGRID)
DEFAULT_SYSTEMS = ("poisson2d:200", "poisson3d:40", "fem3:16")
"""Half a minute on two cores."""

SAMPLES = 3
LONG = 2.0
"""Seconds of a solve that is timed once."""

SETTLED = 0.1
"""Seconds after which a BLAS's threads, which verifying has used, have stopped to spin for more work: so long
they take processors from the thread that launches."""
UNIT = 2.0**-53
SHIFT = 0.1 - 0.1j
CYCLES = {"chebyshev float32": ("chebyshev", np.float32), "jacobi float64": ("jacobi", np.float64)}
"""The cycles that are timed: smoother and type."""

SMOOTHER = ("jacobi", {"omega": 4.0 / 3.0, "iterations": 1})
"""PyAMG's, that of our `jacobi`."""


class Solvers:
    """Linear systems, a row for each solver of each.

    `args` are the options of `python -m benchmarks.bench solvers`.
    `multigrid` is conjugate gradients with cycles of a PyAMG hierarchy, and is left out where PyAMG is not
    installed. `--helmholtz` takes (1 - i) / 10 from A: a Helmholtz equation with damping, where A is a
    Laplacian.

    Raises
    ------
    ValueError
        If there is no such method, or the tolerance is out of range.
    """

    def __init__(self, args: argparse.Namespace, device: BenchDevice) -> None:
        methods = args.methods or (("bicgstab", "gmres") if args.helmholtz else METHODS)
        if unknown := [name for name in methods if name not in METHODS]:
            raise ValueError(f"--methods names {', '.join(unknown)}; some of {', '.join(METHODS)} are needed")
        if not 0 < args.rtol < 1:
            raise ValueError(f"--rtol is {args.rtol}; it must be above 0 and below 1")
        self.device, self.cases, self._args = device, args.matrix or list(DEFAULT_SYSTEMS), args
        self._methods = [name for name in methods if name != MULTIGRID or find_spec("pyamg")]
        self._shift = SHIFT if args.helmholtz else 0.0
        self._said: set[str] = set()

    def wanted(self, case: str) -> list[Row]:
        """Return a row for each solver."""
        named = {"matrix": short_name(case), "dtype": "float64", "device": self.device.kind}
        if self._shift:
            named |= {"dtype": "complex128", "shift": str(self._shift)}
        return [{**named, "kernel": name} for name in self._solvers()]

    def _solvers(self) -> list[str]:
        """Return the names of the solvers, by method, the library's first."""
        library = "SciPy" if self.device.kind == "cpu" else "CuPy"
        names = []
        for method in self._methods:
            if method == MULTIGRID:
                names += [f"dasp cg {MULTIGRID} {cycle}" for cycle in CYCLES]
                names += [f"PyAMG cg {MULTIGRID}"] * (not self._args.alone)
                continue
            names += [f"{library} {method}"] * (not self._args.alone)
            names += [f"dasp {method}"]
        return names

    def measure(self, case: str) -> Iterator[Row]:
        """Plan once, then solve, verify and time with every solver."""
        args = self._args
        csr = as_float(load(case, args.seed))
        if csr.shape[0] != csr.shape[1]:
            raise ValueError(f"{case} is {csr.shape[0]} x {csr.shape[1]}; a system needs a square matrix")
        if self._shift:
            csr = csr_array(csr - self._shift * eye_array(csr.shape[0]))
        samples = args.repeat or SAMPLES
        system = _System(csr, self.device, args.rtol, args.maxiter, samples, short_name(case))
        for row in self.wanted(case):
            library, method, *rest = row["kernel"].split(" ", 2)
            limit, said = one_blas_thread()
            with limit:
                figures = getattr(system, f"by_{library.lower()}")(method, *rest)
            if said not in self._said:
                self._said.add(said)
                print(said, file=sys.stderr)
            figures |= {"rows": csr.shape[0], "entries": int(csr.nnz), "rtol": args.rtol}
            yield {**row, **{name: as_text(value) for name, value in figures.items()}}

    def judged(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that must be right: ours."""
        return ours(rows)

    def report(self, rows: Sequence[Row]) -> Report:
        """Return a line for each solver of each system."""
        return report(rows)


class _System:
    """One system on one device, and what it takes to solve it."""

    def __init__(
        self, csr: Any, device: BenchDevice, rtol: float, maxiter: int, samples: int, name: str
    ) -> None:
        self.csr, self.device, self.rtol, self.maxiter, self.samples = csr, device, rtol, maxiter, samples
        self.ones = np.ones(csr.shape[0], csr.dtype)
        self.b = device.vector(self.ones)
        self._plan = planner(device.kind)
        self._plan(eye_array(64, format="csr"))  # what a process compiles first
        self.plan_seconds, self.planned = self._best_of_two(lambda: self._plan(csr))
        # Three unknowns a node: what moves all nodes alike is what the coarse levels must hold.
        self._near_null = np.tile(np.eye(3), (csr.shape[0] // 3, 1)) if name.startswith("fem3") else None

    # ---- ours ----

    def by_dasp(self, method: str, more: str = "") -> dict[str, Any]:
        """Return the figures of one of our methods."""
        from dasp import preconditioners, solvers

        solver, figures, M = getattr(solvers, method), {}, None
        options = {"rtol": self.rtol, "maxiter": self.maxiter}
        if more:
            smoother, dtype = CYCLES[more.removeprefix(f"{MULTIGRID} ")]
            seconds, ml = self._hierarchy
            setup, M = self._timed(
                lambda: preconditioners.multigrid(ml, smoother=smoother, device=self.device.kind, dtype=dtype)
            )
            figures = {"hierarchy_ms": 1e3 * seconds, "setup_ms": 1e3 * setup}

        def solve() -> Any:
            return solver(self.planned, self.b, M=M, workspace=workspace, **options)

        def whole() -> Any:
            return solver(self._plan(self.csr), self.ones, **options)[0]

        workspace = solvers.Workspace()
        _, stats = solve()  # compiles
        figures |= self._figures(lambda: solve()[0], lambda: stats.iterations)
        figures["plan_ms"] = 1e3 * self.plan_seconds
        if not more:
            figures["total_ms"] = 1e3 * self._best_of_two(whole)[0]
        return figures

    # ---- others ----

    def by_scipy(self, method: str) -> dict[str, Any]:
        """Return the figures of SciPy's method."""
        solve, iterations = prepare_by_library("cpu", method, self.csr, self.ones, self.rtol, self.maxiter)
        figures = self._figures(solve, lambda: iterations)
        return {**figures, "total_ms": figures["solve_ms"]}

    def by_cupy(self, method: str) -> dict[str, Any]:
        """Return the figures of CuPy's method."""
        upload_seconds, resident = self._resident
        solve, iterations = prepare_by_library("cuda", method, resident, self.b, self.rtol, self.maxiter)
        figures = self._figures(solve, lambda: iterations)
        return {**figures, "total_ms": figures["solve_ms"] + 1e3 * upload_seconds}

    def by_pyamg(self, method: str, more: str) -> dict[str, Any]:
        """Return the figures of conjugate gradients with PyAMG's own cycle, on the host."""
        import pyamg

        seconds, ml = self._hierarchy
        pyamg.relaxation.smoothing.change_smoothers(ml, SMOOTHER, SMOOTHER)
        residuals: list[float] = []
        options = {"tol": self.rtol, "maxiter": self.maxiter, "accel": "cg", "residuals": residuals}

        def solve() -> Any:
            residuals.clear()
            return ml.solve(self.ones, **options)

        figures = self._figures(solve, lambda: len(residuals) - 1)
        return {**figures, "hierarchy_ms": 1e3 * seconds}

    @cached_property
    def _resident(self) -> tuple[float, Any]:
        """The seconds that an upload takes, and the matrix of CuPy."""
        return self._best_of_two(lambda: self.device.resident(self.csr))

    @cached_property
    def _hierarchy(self) -> tuple[float, Any]:
        """The seconds that PyAMG's hierarchy takes, and the hierarchy."""
        import pyamg

        matrix = csr_matrix(self.csr)
        return self._timed(lambda: pyamg.smoothed_aggregation_solver(matrix, B=self._near_null))

    # ---- how ----

    def _figures(self, solve: Callable[[], Any], count: Callable[[], float]) -> dict[str, Any]:
        """Verify a solve and time it again; `count` returns the iterations of the last one."""
        spent, x = self._timed(solve)
        residual, passed = self.verify(to_host(x))
        time.sleep(SETTLED)
        samples = self.samples if passed and spent < LONG else 0
        best, iterations = min([spent, *(self._timed(solve)[0] for _ in range(samples))]), count()
        return {
            "iterations": iterations,
            "residual": residual,
            "verified": passed,
            "solve_ms": 1e3 * best if passed else float("nan"),
            "us_per_iteration": 1e6 * best / max(1.0, iterations),
        }

    def verify(self, x: NDArray[Any]) -> tuple[float, bool]:
        """Return the true residual over the norm of b, and whether it is as small as was asked for."""
        csr, b = self.csr, self.ones
        with np.errstate(all="ignore"):
            residual = np.linalg.norm(b - csr @ x) / np.linalg.norm(b)
            longest = int(np.diff(csr.indptr).max(initial=0))
            # What evaluating b - A x itself rounds away, row by row, at most.
            rounded = (longest + 2) * UNIT * np.linalg.norm(abs(csr) @ abs(x) + b) / np.linalg.norm(b)
        return float(residual), bool(residual <= self.rtol + 2 * rounded)

    def _best_of_two(self, function: Callable[[], Any]) -> tuple[float, Any]:
        return min((self._timed(function) for _ in range(2)), key=itemgetter(0))

    def _timed(self, function: Callable[[], Any]) -> tuple[float, Any]:
        """Return the seconds that a function took, and its result."""
        self.device.synchronize()
        started = time.perf_counter()
        found = function()
        self.device.synchronize()
        return time.perf_counter() - started, found
