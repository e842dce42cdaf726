"""Time the take-over of a hierarchy of PyAMG, and a solve with it.

    python -m benchmarks.take_over --device cpu --csv benchmarks/results/take_over.csv poisson3d:100
    python -m benchmarks.take_over --device cuda --csv FILE poisson3d:100 poisson3d:200

Each take-over has a hierarchy that nothing has looked at: a copy of the one that PyAMG made, by smoothed
aggregation. The first of a process loads code and, where caches are empty, compiles it.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyamg
import scipy.sparse as sp

import dasp
from benchmarks.front_door import Cpu, Gpu, append_rows, find_name

REPEATS = 6


def time_all(name: str, device: Cpu | Gpu) -> Iterator[tuple[str, float]]:
    """Yield what was timed, and its milliseconds, or the count of iterations."""
    matrix = sp.csr_matrix(dasp.models.generate(name).astype(np.float64))
    kept = pickle.dumps(pyamg.smoothed_aggregation_solver(matrix).levels)

    def call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        device.wait()
        start = time.perf_counter()
        result = function(*arguments)
        device.wait()
        return result, 1e3 * (time.perf_counter() - start)

    taken = []
    for _ in range(REPEATS):
        M = None  # gives back its memory before the clock runs
        ml = pyamg.multilevel.MultilevelSolver(pickle.loads(kept), coarse_solver="pinv")
        M, ms = call(partial(dasp.preconditioners.multigrid, device=device.name), ml)
        taken.append(ms)
    yield "first take-over", taken[0]
    yield "take-over", min(taken[1:])
    A = dasp.SpMatrix.from_scipy(matrix, device=device.name)
    b = device.library.asarray(np.random.default_rng(1).standard_normal(A.shape[0]))
    solves = [call(partial(dasp.solvers.cg, M=M, rtol=1e-8), A, b) for _ in range(REPEATS)]
    yield "first solve", solves[0][1]
    yield "solve", min(ms for _, ms in solves[1:])
    yield "iterations", solves[0][0][1].iterations
    yield "cycle", min(call(M.matvec, b)[1] for _ in range(20))
    yield "product", min(call(A.matvec, b)[1] for _ in range(20))


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("systems", nargs="+")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tree", default="", help="what the rows call the tree that is measured")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    device = Gpu() if options.device == "cuda" else Cpu()
    rows = (
        {"tree": options.tree, "on": find_name(device), "system": name, "subject": subject, "ms": f"{ms:.4g}"}
        for name in options.systems
        for subject, ms in time_all(name, device)
    )
    append_rows(rows, ["tree", "on", "system", "subject", "ms"], options.csv)


if __name__ == "__main__":
    main()
