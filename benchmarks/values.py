"""What other values for a pattern cost: `A.with_values`, in place and as a new matrix.

    python -m benchmarks.values --device cpu --csv benchmarks/results/values_cpu.csv poisson3d:80 fem3:20
    python -m benchmarks.values --device cuda --csv benchmarks/results/values_h200.csv poisson2d:100 ...

Each time is the least of many calls, each begun with nothing left to do and waited for. Beside it stand a
product of the same matrix, timed in the same way, and what a product takes that reads the CSR matrix once at
the measured bandwidth. The products with the new values are held to those of a matrix planned with them, bit
for bit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dasp
from benchmarks.bench import machine, results
from dasp.cli.timing import cuda_copy_bandwidth, host_copy_bandwidth, product_bytes, roofline_us
from dasp.io import load_matrix

CALLS = 100
NARROW = {"plain": False, "narrow": True}
"""Whether values may be coded; as they are, they fit whatever they are."""

Row = dict[str, str]


def read(name: str) -> Any:
    """Return the matrix of a specification (of `dasp.models`) or in a file, in float64."""
    given = dasp.models.generate(name) if ":" in name else load_matrix(name)
    return given.astype(np.float64)


def least_us(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Return the microseconds of a call and of what it left to do, the least of many."""
    taken = []
    for _ in range(CALLS):
        wait()
        start = time.perf_counter()
        call()
        wait()
        taken.append(1e6 * (time.perf_counter() - start))
    return min(taken)


@dataclass
class Place:
    """A device, and how its arrays are made and waited for."""

    device: str
    put: Callable[[NDArray[Any]], Any]
    wait: Callable[[], Any]
    bandwidth: float
    columns: dict[str, str]

    @classmethod
    def of(cls, device: str) -> Place:
        """Return the CPU, or the current GPU."""
        if device == "cpu":
            columns = machine.host_columns(dasp.get_num_threads())
            return cls(device, np.asarray, lambda: None, host_copy_bandwidth(), columns)
        import cupy

        wait, columns = cupy.cuda.Device().synchronize, machine.cuda_columns("")
        return cls(device, cupy.asarray, wait, cuda_copy_bandwidth(), columns)


def hold(A: Any, csr: Any, data: NDArray[Any], policy: Any, place: Place) -> None:
    """Hold that a matrix multiplies as one that is planned with its values."""
    x = place.put(np.random.default_rng(1).standard_normal(csr.shape[1]))
    csr.data = data
    if not (A @ x == dasp.SpMatrix.from_scipy(csr, policy=policy, device=place.device) @ x).all():
        raise AssertionError("a product with new values is not that of a matrix planned with them")


def measure(name: str, place: Place) -> Iterator[Row]:
    """Yield the rows of a matrix: in place and anew, values as they are and coded."""
    csr = read(name)
    one = roofline_us(product_bytes(*csr.shape, csr.nnz, 8), place.bandwidth)
    x, y = place.put(np.ones(csr.shape[1])), place.put(np.zeros(csr.shape[0]))
    for label, narrow in NARROW.items():
        policy = dasp.Policy(narrow=narrow)
        A = dasp.SpMatrix.from_scipy(csr, policy=policy, device=place.device)
        data = csr.data[::-1].copy()  # of the same values, so that they fit the coding
        new = place.put(data)
        A.with_values(new, out=A)
        hold(A, csr.copy(), data, policy, place)
        calls = partial(A.matvec, x, out=y), partial(A.with_values, new, out=A), partial(A.with_values, new)
        product, into, anew = (least_us(call, place.wait) for call in calls)
        yield {
            "matrix": name if ":" in name else Path(name).stem,
            "dtype": "float64",
            "policy": label,
            "entries": str(csr.nnz),
            "coding": A.plan.values.coding.name.lower(),
            "kept_bytes": str(A.nbytes - A.plan.nbytes),
            "roofline_us": f"{one:.4g}",
            "product_us": f"{product:.4g}",
            "into_us": f"{into:.4g}",
            "anew_us": f"{anew:.4g}",
        }


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    place = Place.of(args.device)
    for name in args.matrices:
        for row in measure(name, place):
            print(*row.values(), sep="\t", flush=True)
            if args.csv:
                results.append(args.csv, {"device": place.device, **place.columns, **row})


if __name__ == "__main__":
    main()
