"""`A @ X` against the best of cuSPARSE's SpMM settings, or against SciPy; a row of CSV a product.

    python -m benchmarks.columns --device cuda --csv benchmarks/results/columns_h200.csv poisson3d:128 fem3:48
    python -m benchmarks.columns --device cpu --csv benchmarks/results/columns_cpu.csv poisson3d:100

A matrix is the name of a model or a file. Rows are appended as they are measured; every product is verified
in its first and its last column.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.bench import columns, results
from dasp import Policy


def main() -> None:
    """Measure every matrix that is named, and keep the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", default="float64,float32")
    parser.add_argument("--columns", default=",".join(map(str, columns.COUNTS)))
    parser.add_argument("--orders", choices=("C", "F", "CF"), default="CF", help="of X and of the result")
    parser.add_argument("--format", choices=("sell", "dasp"), help="the plan's, if not the default")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--processes", type=int, default=1, help="that make or read matrices ahead")
    options = parser.parse_args()
    known = columns.known_columns(options.device)
    dtypes, counts = options.dtype.split(","), [*map(int, options.columns.split(","))]
    policy = Policy(format=options.format) if options.format else None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        prepared = pool.map(partial(columns.prepare, dtypes=dtypes), options.matrices)
        for name, matrices in zip(options.matrices, prepared, strict=True):
            for dtype, (csr, known_rows) in zip(dtypes, matrices, strict=True):
                subject = columns.Subject(csr, options.device, known_rows, policy, max(counts))
                for k, order in itertools.product(counts, options.orders):
                    row = {"matrix": Path(name).stem if Path(name).is_file() else name}
                    row |= subject.measure(k, order)
                    best = f"{row['best_baseline']} {row['best_baseline_us']} ({row['speedup_best']} x)"
                    print(name, dtype, k, order, row["time_us"], "us;", best, row["verified"], flush=True)
                    if options.csv:
                        results.append(options.csv, row | known)


if __name__ == "__main__":
    main()
