"""What other values for a pattern cost: `A.with_values`, in place and as a new matrix.

    python -m benchmarks.values --device cpu --csv benchmarks/results/values_cpu.csv poisson3d:80 fem3:20
    python -m benchmarks.values --device cuda --csv benchmarks/results/values_h200.csv poisson2d:100 ...

Each time is the least of many calls, each begun with nothing left to do and waited for. Beside it stands a
product of the same matrix, timed in the same way. The products with the new values are held to those of a
matrix planned with them, bit for bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dasp
from benchmarks.bench import machine, results
from benchmarks.bench.rows import Row
from benchmarks.bench.sparse import load, short_name
from benchmarks.front_door import Cpu, Gpu, least_us

CALLS = 100
NARROW = {"plain": False, "narrow": True}
"""Whether values may be coded; as they are, they fit whatever they are."""


def measure(name: str, device: Cpu | Gpu) -> Iterator[Row]:
    """Yield the rows of a matrix: in place and anew, values as they are and coded.

    Raises
    ------
    RuntimeError
        If a product with new values is wrong.
    """
    csr, put = load(name, 0).astype(np.float64), device.library.asarray
    x, y = put(np.random.default_rng(1).standard_normal(csr.shape[1])), put(np.zeros(csr.shape[0]))
    other = csr.copy()
    other.data = csr.data[::-1].copy()  # of the same values, so that they fit the coding
    new = put(other.data)
    for label, narrow in NARROW.items():
        policy = dasp.Policy(narrow=narrow)
        A = dasp.SpMatrix.from_scipy(csr, policy=policy, device=device.name)
        A.with_values(new, out=A)
        if not (A @ x == dasp.SpMatrix.from_scipy(other, policy=policy, device=device.name) @ x).all():
            raise RuntimeError(
                f"a product of {name} with new values is not that of a matrix planned with them"
            )
        calls = {
            "product_us": lambda A=A: A.matvec(x, out=y),
            "into_us": lambda A=A: A.with_values(new, out=A),
            "anew_us": lambda A=A: A.with_values(new),
        }
        yield {
            "matrix": short_name(name),
            "dtype": "float64",
            "policy": label,
            "entries": str(csr.nnz),
            "coding": A.plan.values.coding.name.lower(),
            **{column: f"{least_us(call, device, CALLS):.4g}" for column, call in calls.items()},
        }


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    if args.device == "cuda":
        device, columns = Gpu(), machine.cuda_columns("")
    else:
        device, columns = Cpu(), machine.host_columns(dasp.get_num_threads())
    for name in args.matrices:
        for row in measure(name, device):
            print(*row.values(), sep="\t", flush=True)
            if args.csv:
                results.append(args.csv, {"device": args.device, **columns, **row})


if __name__ == "__main__":
    main()
