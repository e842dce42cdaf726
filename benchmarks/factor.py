"""Time a sparse factorisation of SciPy against dasp's preconditioned iterations, on the CPU.

    python -m benchmarks.factor --csv benchmarks/results/factor_cpu.csv

The solvers of a system take turns, and the least time of all rounds counts. SciPy's `splu` is timed with two
orderings: its own default, and the one for symmetric patterns. b is of ones. A row is verified if the true
residual, by SciPy's product, is at most 1e-8 of b.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyamg
import scipy.sparse as sp
from scipy.sparse.linalg import splu

import dasp
from benchmarks.bench import machine, results
from dasp.cli.compare import one_blas_thread

RTOL = 1e-8
SYSTEMS = (
    *("poisson2d:100", "poisson2d:300", "poisson2d:1000"),
    *("poisson3d:20", "poisson3d:40", "fem3:16", "helmholtz2d:100", "helmholtz2d:200", "helmholtz3d:24"),
)
ORDERINGS: dict[str, dict[str, Any]] = {
    "SciPy splu COLAMD": {},
    "SciPy splu MMD_AT_PLUS_A": {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}},
}
Solve = Callable[[], tuple[Any, int]]


def make_system(name: str) -> tuple[Any, Any]:
    """Return a matrix, and the matrix of which PyAMG makes the hierarchy for it.

    `helmholtz2d:side` is a Laplacian less (1 - 0.02 i) k^2 with k = 0.3, some 21 points a wave. Its
    hierarchy is that of the same Laplacian less (1 - 0.5 i) k^2.
    """
    family, _, size = name.partition(":")
    if not family.startswith("helmholtz"):
        matrix = sp.csr_array(dasp.models.generate(name))
        return matrix, matrix
    laplacian = dasp.models.generate(f"poisson{family[-2:]}:{size}")
    mass = 0.3**2 * sp.eye_array(laplacian.shape[0])
    damped, shifted = (sp.csr_array(laplacian - (1 - damping * 1j) * mass) for damping in (0.02, 0.5))
    return damped, shifted


def solvers_of(name: str) -> dict[str, Callable[[], Solve]]:
    """Return the solvers of a system: each is a set-up that returns a solve."""
    matrix, coarse = make_system(name)
    b = np.ones(matrix.shape[0], matrix.dtype)
    is_complex = np.iscomplexobj(matrix)
    method = dasp.solvers.bicgstab if is_complex else dasp.solvers.cg
    near_null = np.tile(np.eye(3), (len(b) // 3, 1)) if name.startswith("fem3") else None

    def factor(options: dict[str, Any]) -> Solve:
        factors = splu(matrix.tocsc(), **options)
        return lambda: (factors.solve(b), 0)

    def iterate(preconditioner: str) -> Solve:
        A, M = dasp.SpMatrix(matrix, device="cpu"), None
        if preconditioner == "ic0":
            M = dasp.preconditioners.ic0(A)
        elif preconditioner == "multigrid":
            symmetry = "symmetric" if is_complex else "hermitian"
            ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(coarse), B=near_null, symmetry=symmetry)
            M = dasp.preconditioners.multigrid(ml, device="cpu")

        def solve() -> tuple[Any, int]:
            x, stats = method(A, b, M=M, rtol=RTOL)
            return x, stats.iterations

        return solve

    found: dict[str, Callable[[], Solve]] = {
        kernel: partial(factor, options) for kernel, options in ORDERINGS.items()
    }
    if not is_complex:  # without multigrid bicgstab does not converge
        found |= {"dasp cg": partial(iterate, ""), "dasp cg ic0": partial(iterate, "ic0")}
    found[f"dasp {method.__name__} multigrid"] = partial(iterate, "multigrid")
    return found


def measure(name: str, rounds: int) -> Iterator[dict[str, str]]:
    """Yield a row for each solver of a system."""
    matrix, _ = make_system(name)
    b, solvers = np.ones(matrix.shape[0]), solvers_of(name)
    setup, solved = dict.fromkeys(solvers, np.inf), dict.fromkeys(solvers, np.inf)
    found = {}
    for _ in range(rounds):
        for kernel, prepare in solvers.items():
            start = time.perf_counter()
            solve = prepare()
            ready = time.perf_counter()
            found[kernel] = solve()
            setup[kernel] = min(setup[kernel], ready - start)
            solved[kernel] = min(solved[kernel], time.perf_counter() - ready)
    for kernel, (x, iterations) in found.items():
        residual = np.linalg.norm(b - matrix @ x) / np.linalg.norm(b)
        yield {
            **machine.host_columns(dasp.get_num_threads()),
            "matrix": name,
            "kernel": kernel,
            "rows": str(matrix.shape[0]),
            "entries": str(matrix.nnz),
            "iterations": str(iterations),
            "residual": f"{residual:.3g}",
            "verified": "yes" if residual <= 1.01 * RTOL else "no",
            "setup_ms": f"{1e3 * setup[kernel]:.4g}",
            "solve_ms": f"{1e3 * solved[kernel]:.4g}",
        }


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    limit, said = one_blas_thread()
    print(said)
    with limit:
        for name in options.systems:
            for row in measure(name, options.rounds):
                print(*row.values(), sep="\t", flush=True)
                if options.csv:
                    results.append(options.csv, row)


if __name__ == "__main__":
    main()
