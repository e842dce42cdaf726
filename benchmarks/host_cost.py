"""What a call of `gemm` costs the host, beside the array library's own matmul; a row of CSV for each call.

    python benchmarks/host_cost.py --device cuda --csv benchmarks/results/gemm_host.csv

On a GPU a call returns as soon as its work is enqueued, so products are so small that the GPU keeps up.
On the CPU they are of 8 x 8, so that the product itself is next to nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dasp.bench import machine, results
from dasp.dense import explain, gemm

CALLS, REPEATS = 300, 9
DTYPES = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "float16")}
SIZES = {"cpu": (8,), "cuda": (64, 200)}


def host_us(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds a call, the least of some series, each begun with nothing left to do."""
    taken = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        taken.append(1e6 * (time.perf_counter() - start) / CALLS)
    wait()
    return min(taken)


def calls(library: Any, dtype: str, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The calls that are compared: the library's own, then ours."""
    rng = np.random.default_rng(size)
    a, b = (library.asarray(rng.standard_normal((size, size)).astype(dtype)) for _ in range(2))
    out = library.empty_like(a)
    yield "matmul(out=)", lambda: library.matmul(a, b, out=out)
    yield "matmul()", lambda: library.matmul(a, b)
    yield "gemm(out=)", lambda: gemm(a, b, out=out)
    yield "gemm()", lambda: gemm(a, b)
    yield "gemm(out=, kernel='vendor')", lambda: gemm(a, b, out=out, kernel="vendor")
    yield "gemm(out=, trans_b=True)", lambda: gemm(a, b, out=out, trans_b=True)
    yield "gemm(c, beta=0.5, out=c)", lambda: gemm(a, b, out, beta=0.5, out=out)


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    if args.device == "cuda":
        import cupy as library

        wait, where = library.cuda.Device().synchronize, machine.cuda_columns("")
    else:
        library, wait, where = np, lambda: None, machine.host_columns(1)
    for dtype in DTYPES[args.device]:
        for size in SIZES[args.device]:
            kernel = explain((size, size), (size, size), dtype, device=args.device).kernel
            for name, call in calls(library, dtype, size):
                chosen = "" if name.startswith("matmul") else kernel
                cost = {"call": name, "auto": chosen, "host_us": f"{host_us(call, wait):.2f}"}
                row = {"matrix": f"gemm:{size}", "dtype": dtype, "size": str(size), **cost}
                print(*row.values(), sep="\t", flush=True)
                if args.csv:
                    results.append(args.csv, {"device": args.device, **where, **row})


if __name__ == "__main__":
    main()
