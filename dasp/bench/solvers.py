"""Linear systems: dasp's conjugate gradients against those of SciPy or CuPy, to the same true residual.

A row is one solver on one system A x = b with b of ones. Every solution is verified: the true residual, by
SciPy's product with the original matrix, must be as small as was asked for, but for the rounding of its own
evaluation. Planning is timed apart, and a second ratio counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasp.bench.device import BenchDevice
from dasp.bench.figures import draw_systems
from dasp.bench.report import Report
from dasp.bench.solvers_report import LIBRARY, ON_DASP, OURS, report
from dasp.bench.sparse import as_float, as_text, load, measure_planning, planner, short_name
from dasp.bench.table import Row

SAMPLES = 3
UNIT = 2.0**-53


class Solvers:
    """The subject of `dasp bench solvers`: a row for each solver of each system.

    Parameters
    ----------
    specs : sequence of str
        Symmetric positive definite systems: files, names or models.
    device : BenchDevice
    rtol : float
        What the residual may be, over the norm of b.
    maxiter : int
        Iterations at most.
    seed : int
        Seed of the generated matrices.
    samples : int, optional
        Timed solves of each solver, of which the best counts; 3 by default.
    """

    def __init__(
        self,
        specs: Sequence[str],
        device: BenchDevice,
        *,
        rtol: float = 1e-8,
        maxiter: int = 10_000,
        seed: int = 0,
        samples: int | None = None,
    ) -> None:
        """Hold what is to be measured."""
        self.device = device
        self.cases = list(specs)
        self._rtol, self._maxiter, self._seed = rtol, maxiter, seed
        self._samples = samples or SAMPLES

    def wanted(self, case: str) -> list[Row]:
        """A row for each solver."""
        named = {"matrix": f"cg:{short_name(case)}", "dtype": "float64", "device": self.device.kind}
        return [{**named, "kernel": name} for name in (LIBRARY, ON_DASP, OURS)]

    def measure(self, case: str) -> Iterator[Row]:
        """Plan once, then solve, verify and time with every solver, the library's first."""
        csr = as_float(load(case, self._seed))
        if csr.shape[0] != csr.shape[1]:
            raise ValueError(f"{case} is {csr.shape[0]} x {csr.shape[1]}; a system needs a square matrix")
        operator, planning = measure_planning(planner(self.device.kind), csr, self.device)
        b = self.device.vector(np.ones(csr.shape[0]))
        solvers = self._solvers(csr, operator, b)
        for row in self.wanted(case):
            solve = solvers[row["kernel"]]
            x, iterations = solve()
            residual, passed = self._verify(csr, self.device.fetch(x))
            seconds = min(self._seconds(solve) for _ in range(self._samples)) if passed else float("nan")
            figures = {
                "rows": csr.shape[0],
                "entries": int(csr.nnz),
                "rtol": self._rtol,
                "iterations": iterations,
                "residual": residual,
                "verified": passed,
                "solve_ms": 1e3 * seconds,
                "plan_ms": float("nan") if row["kernel"] == LIBRARY else planning.host_ms,
            }
            yield {**row, **{name: as_text(value) for name, value in figures.items()}}

    def _solvers(self, csr: Any, operator: Any, b: Any) -> dict[str, Callable[[], tuple[Any, int]]]:
        """Each solver as a function that returns x on the device, and the iterations."""
        from dasp.solvers import Workspace, cg

        if self.device.kind == "cpu":
            from scipy.sparse.linalg import cg as library
        else:
            from cupyx.scipy.sparse.linalg import cg as library
        plain = self.device.resident(csr)
        workspace = Workspace()

        def by_library(A: Any) -> tuple[Any, int]:
            steps: list[None] = []
            x, _ = library(
                A, b, rtol=self._rtol, atol=0.0, maxiter=self._maxiter, callback=lambda _: steps.append(None)
            )
            return x, len(steps)

        def ours() -> tuple[Any, int]:
            x, stats = cg(operator, b, rtol=self._rtol, maxiter=self._maxiter, workspace=workspace)
            return x, stats.iterations

        wrapped = operator.as_linear_operator()
        return {
            LIBRARY: lambda: by_library(csr if plain is None else plain),
            ON_DASP: lambda: by_library(wrapped),
            OURS: ours,
        }

    def _verify(self, csr: Any, x: NDArray[Any]) -> tuple[float, bool]:
        """The true residual over the norm of b, and whether it is as small as was asked for."""
        b = np.ones(csr.shape[0])
        residual = np.linalg.norm(b - csr @ x) / np.linalg.norm(b)
        longest = int(np.diff(csr.indptr).max(initial=0))
        # What evaluating b - A x itself rounds away, row by row, at most.
        rounded = (longest + 2) * UNIT * np.linalg.norm(abs(csr) @ abs(x) + b) / np.linalg.norm(b)
        return float(residual), bool(residual <= self._rtol + 2 * rounded)

    def _seconds(self, solve: Callable[[], Any]) -> float:
        self.device.synchronize()
        started = time.perf_counter()
        solve()
        self.device.synchronize()
        return time.perf_counter() - started

    def report(self, rows: Sequence[Row]) -> Report:
        """A line for each solver of each system."""
        return report(rows)

    def draw(self, rows: Sequence[Row], path: Path) -> None:
        """The picture of `figures.draw_systems`."""
        draw_systems(rows, path)
