"""What a call costs the host: `gemm` beside the array library's own matmul, and `gf256.matmul`.

    python -m benchmarks.host_cost --device cuda --csv benchmarks/results/gemm_host.csv

On a GPU a call returns as soon as its work is enqueued, so products are so small that the GPU keeps up.
On the CPU dense ones are of 8 x 8, so that the product itself is next to nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import machine, results
from dasp.dense import explain, gemm, gf256

CALLS, REPEATS = 300, 9
DTYPES = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "float16")}
SIZES = {"cpu": (8,), "cuda": (64, 200)}
MODELS = "poisson2d:30", "spikes:2000:3:2000"


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


Row = dict[str, str]


def dense(library: Any, device: str) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """The calls that are compared for each type and size: the library's own, then ours."""
    for dtype, size in ((dtype, size) for dtype in DTYPES[device] for size in SIZES[device]):
        kernel = explain((size, size), (size, size), dtype, device=device).kernel
        rng = np.random.default_rng(size)
        a, b = (library.asarray(rng.standard_normal((size, size)).astype(dtype)) for _ in range(2))
        out = library.empty_like(a)
        ways = {
            "matmul(out=)": partial(library.matmul, a, b, out=out),
            "matmul()": partial(library.matmul, a, b),
            "gemm(out=)": partial(gemm, a, b, out=out),
            "gemm()": partial(gemm, a, b),
            "gemm(out=, kernel='vendor')": partial(gemm, a, b, out=out, kernel="vendor"),
            "gemm(out=, trans_b=True)": partial(gemm, a, b, out=out, trans_b=True),
            "gemm(c, beta=0.5, out=c)": partial(gemm, a, b, out, beta=0.5, out=out),
        }
        for name, call in ways.items():
            chosen = "" if name.startswith("matmul") else kernel
            row = {"matrix": f"gemm:{size}", "dtype": dtype, "size": str(size), "call": name, "auto": chosen}
            yield row, call


def field(library: Any, device: str) -> Iterator[tuple[Row, Callable[[], Any]]]:
    """Products over GF(2^8), the coefficients on the host or where the data is."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, shape, np.uint8) for shape in ((4, 10), (10, 4096)))
    there, right, out = library.asarray(a), library.asarray(b), library.empty((4, 4096), np.uint8)
    ways = {
        "matmul(a, b, out=)": partial(gf256.matmul, there, right, out=out),
        "matmul(a on the host, b, out=)": partial(gf256.matmul, a, right, out=out),
        "matmul(a, b)": partial(gf256.matmul, there, right),
    }
    for name, call in ways.items():
        yield {"matrix": "gf256:4x10x4096", "dtype": "uint8", "call": name}, call


SUBJECTS = {"dense": dense, "gf256": field}


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--subject", choices=tuple(SUBJECTS), default="dense")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    if args.device == "cuda":
        import cupy as library

        wait, where = library.cuda.Device().synchronize, machine.cuda_columns("")
    else:
        library, wait, where = np, lambda: None, machine.host_columns(1)
    for row, call in SUBJECTS[args.subject](library, args.device):
        row["host_us"] = f"{host_us(call, wait):.2f}"
        print(*row.values(), sep="\t", flush=True)
        if args.csv:
            results.append(args.csv, {"device": args.device, **where, **row})


if __name__ == "__main__":
    main()
