"""What other values for a pattern cost: `A.with_values`, in place and as a new matrix.

    python benchmarks/values.py --csv benchmarks/results/values_h200.csv poisson2d:100 poisson3d:128

Each time is the least of many calls, each begun with nothing left to do and waited for. It stands beside what
a product takes that reads the CSR matrix once at the measured bandwidth. The products with the new values are
held to those of a matrix planned with them, bit for bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dasp
from dasp.bench import machine, results
from dasp.bench.roofline import cuda_copy_bandwidth, product_bytes, roofline_us
from dasp.io import load_matrix

CALLS = 100
NARROW = {"plain": False, "narrow": True}
"""Whether values may be coded; as they are, they fit whatever they are."""

Row = dict[str, str]


def read(name: str) -> Any:
    """The matrix of a specification (of `dasp.models`) or in a file, in float64."""
    given = dasp.models.generate(name) if ":" in name else load_matrix(name)
    return given.astype(np.float64)


def least_us(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds of a call and of what it left to do, the least of many."""
    taken = []
    for _ in range(CALLS):
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken.append(1e6 * (time.perf_counter() - start))
    return min(taken)


def hold(A: Any, csr: Any, data: NDArray[Any], policy: Any) -> None:
    """Hold that a matrix multiplies as one that is planned with its values."""
    import cupy

    x = cupy.asarray(np.random.default_rng(1).standard_normal(csr.shape[1]))
    csr.data = data
    if not (A @ x == dasp.SpMatrix.from_scipy(csr, policy=policy, device="cuda") @ x).all():
        raise AssertionError("a product with new values is not that of a matrix planned with them")


def measure(name: str, bandwidth: float) -> Iterator[Row]:
    """The rows of a matrix: in place and anew, values as they are and coded."""
    import cupy

    csr, wait = read(name), cupy.cuda.Device().synchronize
    one = roofline_us(product_bytes(*csr.shape, csr.nnz, 8), bandwidth)
    for label, narrow in NARROW.items():
        policy = dasp.Policy(narrow=narrow)
        A = dasp.SpMatrix.from_scipy(csr, policy=policy, device="cuda")
        data = csr.data[::-1].copy()  # of the same values, so that they fit the coding
        new = cupy.asarray(data)
        A.with_values(new, out=A)
        hold(A, csr.copy(), data, policy)
        into, anew = (least_us(partial(A.with_values, new, out=out), wait) for out in (A, None))
        yield {
            "matrix": name,
            "dtype": "float64",
            "policy": label,
            "entries": str(csr.nnz),
            "coding": A.plan.values.coding.name.lower(),
            "kept_bytes": str(A.nbytes - A.plan.nbytes),
            "roofline_us": f"{one:.4g}",
            "into_us": f"{into:.4g}",
            "anew_us": f"{anew:.4g}",
        }


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    where, bandwidth = machine.cuda_columns(""), cuda_copy_bandwidth()
    for name in args.matrices:
        for row in measure(name, bandwidth):
            print(*row.values(), sep="\t", flush=True)
            if args.csv:
                results.append(args.csv, {"device": "cuda", **where, **row})


if __name__ == "__main__":
    main()
