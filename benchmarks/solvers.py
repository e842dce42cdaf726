"""Time every solver and multigrid on systems, against CuPy's or SciPy's and PyAMG's; one CSV row for each.

    python benchmarks/solvers.py --device cuda --csv benchmarks/results/solvers_h200.csv poisson3d:60 fem3:30
    python benchmarks/solvers.py --device cpu --csv benchmarks/results/solvers_cpu.csv poisson3d:60

Every x is judged by its true residual, by SciPy's product with the original matrix on the host. `first_ms`
is the first solve with a matrix (compilation apart: a small system came before), `solve_ms` the best of
later ones with the same workspace. Planning, and making a hierarchy or a cycle, are columns of their own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import dasp
from dasp.bench import results
from dasp.bench.device import open_device
from dasp.solvers import Workspace

METHODS = ("cg", "minres", "bicgstab", "gmres")
MOST = 3_000


class _Runner:
    """One device and one file of rows."""

    def __init__(self, device: str, path: Path, rtol: float, samples: int) -> None:
        self.bench, self.path, self.rtol, self.samples = open_device(device), path, rtol, samples
        self.device = device
        self.on_gpu = device != "cpu"
        self.columns = self.bench.columns()
        print(
            f"{'system':<15}{'solver':<34}{'iterations':>11}{'us each':>9}"
            f"{'solve ms':>10}{'first':>9}{'residual':>10}"
        )

    def array(self, b: np.ndarray) -> Any:
        if not self.on_gpu:
            return b
        import cupy

        return cupy.asarray(b)

    def wait(self) -> None:
        if self.on_gpu:
            import cupy

            cupy.cuda.Device().synchronize()

    def timed(self, function: Callable[[], Any]) -> tuple[float, Any]:
        self.wait()
        began = time.perf_counter()
        answer = function()
        self.wait()
        return time.perf_counter() - began, answer

    def keep(
        self, name: str, csr: Any, solver: str, solve: Callable[[], tuple[Any, int]], **more: float
    ) -> None:
        """Solve, judge, solve again and again, and write the row."""
        first, (x, iterations) = self.timed(solve)
        x = x.get() if hasattr(x, "get") else x
        b = np.ones(csr.shape[0])
        residual = float(np.linalg.norm(b - csr @ x) / np.linalg.norm(b))
        best = min(self.timed(solve)[0] for _ in range(self.samples))
        row = {
            "matrix": name, "kernel": solver, "dtype": "float64", "device": self.device, "rows": csr.shape[0],
            "entries": csr.nnz, "rtol": self.rtol, "iterations": iterations, "residual": f"{residual:.3e}",
            "verified": "yes" if residual <= 1.05 * self.rtol else "no", "solve_ms": f"{1e3 * best:.4f}",
            "first_ms": f"{1e3 * first:.4f}", "us_per_iteration": f"{1e6 * best / max(1, iterations):.3f}",
            **{key: f"{value:.4f}" for key, value in more.items()},
        }  # fmt: skip
        results.append(self.path, {**{k: str(v) for k, v in row.items()}, **self.columns})
        each = 1e6 * best / max(1, iterations)
        print(
            f"{name:<15}{solver:<34}{iterations:>11,}{each:>9.2f}"
            f"{1e3 * best:>10.2f}{1e3 * first:>9.2f}{residual:>10.1e}",
            flush=True,
        )

    def run(self, name: str, methods: tuple[str, ...], others: bool, multigrid: bool) -> None:
        csr = sp.csr_array(dasp.models.generate(name))
        b = self.array(np.ones(csr.shape[0]))
        planning, planned = self.timed(lambda: dasp.SpMatrix.from_scipy(csr, device=self.device))
        for method in methods:
            self.keep(name, csr, f"dasp {method}", self.ours(method, planned, b), plan_ms=1e3 * planning)
        if others:
            self.run_others(name, methods, csr, b)
        if multigrid:
            self.run_multigrid(name, csr, planned, b, 1e3 * planning)

    def ours(self, method: str, planned: Any, b: Any, M: Any = None) -> Callable[[], tuple[Any, int]]:
        workspace, solver = Workspace(), getattr(dasp.solvers, method)

        def solve() -> tuple[Any, int]:
            x, stats = solver(planned, b, rtol=self.rtol, maxiter=MOST, M=M, workspace=workspace)
            return x, stats.iterations

        return solve

    def run_others(self, name: str, methods: tuple[str, ...], csr: Any, b: Any) -> None:
        library, operator, title = self.library(csr)
        for method in methods:
            counted = [0]

            def solve(method: str = method, counted: list[int] = counted) -> tuple[Any, int]:
                counted[0] = 0

                def count(_: Any) -> None:
                    counted[0] += 1

                keyword = "tol" if self.on_gpu and method == "minres" else "rtol"
                more = {"callback_type": "pr_norm", "restart": 30} if method == "gmres" else {}
                if method == "gmres" and not self.on_gpu:
                    more["maxiter"] = MOST // 30
                x, _ = getattr(library, method)(
                    operator, b, **{keyword: self.rtol, "maxiter": MOST, "callback": count, **more}
                )
                return x, counted[0]

            self.keep(name, csr, f"{title} {method}", solve)

    def library(self, csr: Any) -> tuple[Any, Any, str]:
        if not self.on_gpu:
            import scipy.sparse.linalg

            return scipy.sparse.linalg, csr, "SciPy"
        import cupyx.scipy.sparse
        import cupyx.scipy.sparse.linalg

        return cupyx.scipy.sparse.linalg, cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(csr)), "CuPy"

    def run_multigrid(self, name: str, csr: Any, planned: Any, b: Any, plan_ms: float) -> None:
        import pyamg

        hierarchy_s, ml = self.timed(lambda: pyamg.smoothed_aggregation_solver(sp.csr_matrix(csr)))
        for smoother in ("chebyshev", "jacobi"):
            for dtype in (np.float64, np.float32):
                setup, M = self.timed(
                    lambda smoother=smoother, dtype=dtype: dasp.preconditioners.multigrid(
                        ml, smoother=smoother, device=self.device, dtype=dtype
                    )
                )
                title = f"dasp cg multigrid {smoother} {np.dtype(dtype).name}"
                times = {"plan_ms": plan_ms, "hierarchy_ms": 1e3 * hierarchy_s, "setup_ms": 1e3 * setup}
                self.keep(name, csr, title, self.ours("cg", planned, b, M), **times)
        smoother = ("jacobi", {"omega": 4 / 3, "iterations": 1})
        pyamg.relaxation.smoothing.change_smoothers(ml, smoother, smoother)
        residuals: list[float] = []

        def solve() -> tuple[Any, int]:
            residuals.clear()
            x = ml.solve(np.ones(csr.shape[0]), tol=self.rtol, accel="cg", residuals=residuals)
            return x, len(residuals) - 1

        samples, self.samples = self.samples, 1
        self.keep(name, csr, "PyAMG cg multigrid jacobi", solve, hierarchy_ms=1e3 * hierarchy_s)
        self.samples = samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--rtol", type=float, default=1e-8)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--others", action="store_true", help="also SciPy's or CuPy's solvers")
    parser.add_argument("--multigrid", action="store_true", help="also multigrid, and PyAMG's")
    arguments = parser.parse_args()
    runner = _Runner(arguments.device, arguments.csv, arguments.rtol, arguments.samples)
    small = sp.csr_array(dasp.models.generate("poisson2d:20"))
    warm = dasp.SpMatrix.from_scipy(small, device=arguments.device)
    for method in METHODS:
        runner.ours(method, warm, runner.array(np.ones(400)))()
    for name in arguments.systems:
        runner.run(name, tuple(arguments.methods.split(",")), arguments.others, arguments.multigrid)


if __name__ == "__main__":
    main()
