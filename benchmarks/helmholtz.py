"""Damped Helmholtz systems in complex128: dasp's methods against CuPy's or SciPy's; a row of CSV a solver.

    python -m benchmarks.helmholtz --device cuda --csv benchmarks/results/helmholtz_h200.csv poisson3d:60
    python -m benchmarks.helmholtz --device cpu --csv benchmarks/results/helmholtz_cpu.csv poisson3d:60

A system is a Laplacian (a model of `dasp.models`, or a file) less (1 - i) / 10, with b of ones, to 1e-8 of b.
Every solution is verified; times are the least of some solves, each waited for. Planning is apart.
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
from benchmarks.bench import machine, results
from dasp.cli.systems import by_library, library_of, one_blas_thread
from dasp.io import load_matrix

SHIFT = 0.1 - 0.1j
RTOL, MOST, SAMPLES = 1e-8, 3_000, 5
METHODS = ("bicgstab", "gmres")

Row = dict[str, str]


class Helmholtz:
    """One system on one device."""

    def __init__(self, name: str, device: str) -> None:
        laplacian = dasp.models.generate(name) if ":" in name else load_matrix(name)
        n = laplacian.shape[0]
        self.csr = sp.csr_array(laplacian - SHIFT * sp.eye_array(n))
        self.ones, self.device = np.ones(n, np.complex128), device
        self.planned, self.resident, self.b = (
            dasp.SpMatrix.from_scipy(self.csr, device=device),
            self.csr,
            self.ones,
        )
        if device == "cuda":
            import cupy
            from cupyx.scipy.sparse import csr_matrix

            self.resident, self.b = csr_matrix(sp.csr_matrix(self.csr)), cupy.asarray(self.ones)

    def ours(self, method: str) -> tuple[Callable[[], Any], int]:
        """Return later solves by one of our methods, and their iterations."""
        solver, workspace = getattr(dasp.solvers, method), dasp.solvers.Workspace()

        def solve() -> Any:
            return solver(self.planned, self.b, rtol=RTOL, maxiter=MOST, workspace=workspace)

        return lambda: solve()[0], solve()[1].iterations

    def theirs(self, method: str) -> tuple[Callable[[], Any], int]:
        """Return solves by the library's, and their iterations."""
        return by_library(self.device, method, self.resident, self.b, RTOL, MOST)

    def figures(self, solve: Callable[[], Any], iterations: int) -> Row:
        """Verify a solve and time it."""
        x = solve()
        x = x.get() if self.device == "cuda" else x
        residual = np.linalg.norm(self.ones - self.csr @ x) / np.linalg.norm(self.ones)
        best = min(self._seconds(solve) for _ in range(SAMPLES))
        return {
            "rows": str(len(x)),
            "entries": str(self.csr.nnz),
            "rtol": str(RTOL),
            "iterations": str(iterations),
            "residual": f"{residual:.3e}",
            "verified": "yes" if residual <= RTOL * (1 + 1e-6) else "no",
            "solve_ms": f"{1e3 * best:.4f}",
            "us_per_iteration": f"{1e6 * best / iterations:.3f}",
        }

    def _seconds(self, solve: Callable[[], Any]) -> float:
        self._wait()
        start = time.perf_counter()
        solve()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device == "cuda":
            import cupy

            cupy.cuda.Device().synchronize()


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    where = (
        machine.cuda_columns("") if args.device == "cuda" else machine.host_columns(dasp.get_num_threads())
    )
    library, _ = library_of(args.device)
    limit, said = one_blas_thread()
    print(said, flush=True)
    with limit:
        for name in args.matrices:
            system = Helmholtz(name, args.device)
            for method in METHODS:
                for who, made in (("dasp", system.ours), (library, system.theirs)):
                    told = {"matrix": name, "shift": str(SHIFT), "kernel": f"{who} {method}"}
                    row = told | {"dtype": "complex128"} | system.figures(*made(method))
                    print(*row.values(), sep="\t", flush=True)
                    if args.csv:
                        results.append(args.csv, {**row, "device": args.device, **where})


if __name__ == "__main__":
    main()
