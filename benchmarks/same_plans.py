"""Whether a GPU plans matrices as the CPU does, bit for bit.

    python -m benchmarks.same_plans digests.json --device cpu MATRIX ...
    python -m benchmarks.same_plans digests.json --csv benchmarks/results/same_plans_h200.csv MATRIX ...

The CPU's digests go to a file, so that a machine with a GPU needs no time for them. There is one of every
array of a plan with its type and shape, of every number beside them, and of the matrix itself: plans of
other matrices are not compared. Each matrix is planned with values coded in as few bits as hold them, and
with values as they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import dasp
from benchmarks.bench import machine, results
from dasp.formats.cost import H200
from dasp.formats.csr.matrix import Csr
from dasp.formats.sell import SELL
from dasp.io import load_matrix

NARROW = {"auto": True, "plain": False}
"""Whether values may be coded, by the name of the policy."""


def read(name: str) -> Csr:
    """Return the CSR of a specification (of `dasp.models`) or in a file, in float64 unless it is complex."""
    given = dasp.models.generate(name) if ":" in name else load_matrix(name)
    matrix = given.tocsr()
    data = matrix.data if matrix.data.dtype.kind in "fc" else matrix.data.astype(np.float64)
    return Csr(matrix.shape, matrix.indptr, matrix.indices, data)


def digest(*values: Any) -> str:
    """Return a digest of arrays, with types and shapes, and of other values as Python writes them."""
    found = hashlib.sha256()
    for value in values:
        if hasattr(value, "get") and hasattr(value, "dtype"):
            value = value.get()
        if isinstance(value, np.ndarray):
            found.update(f"{value.dtype} {value.shape};".encode())
            found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        else:
            found.update(f"{value!r};".encode())
    return found.hexdigest()


def digests(csr: Csr, narrow: bool, device: str) -> dict[str, str]:
    """Return the digests of a matrix and of its plan for a GPU, made on a device, by field."""
    if device == "cpu":
        from dasp.formats.sell.cpu import primitives
    else:
        import cupy

        from dasp.formats.sell.cuda.primitives import primitives as on_gpu

        primitives = on_gpu(cupy.cuda.Device().id)
    put = np.ascontiguousarray if device == "cpu" else cupy.asarray
    there = Csr(csr.shape, *(put(array) for array in csr[1:]))
    plan = SELL.pack(there, SELL.options(narrow=narrow), H200, primitives)
    found = {"matrix": digest(*csr), "order": digest(plan.order)}
    for part in (plan.pattern, plan.values):
        for each in dataclasses.fields(part):
            found[each.name] = digest(getattr(part, each.name))
    return found


def compare(
    name: str, csr: Csr, policy: str, known: dict[str, Any], columns: dict[str, str]
) -> dict[str, str]:
    """Return the row of a matrix: which fields of the GPU's plan are those of the CPU's.

    Raises
    ------
    ValueError
        If the digests are of another matrix, or there are none.
    """
    got, want = digests(csr, NARROW[policy], "cuda"), known.get(f"{Path(name).stem} {policy}", {})
    if got["matrix"] != want.get("matrix"):
        raise ValueError(f"{name} is not the matrix that the digests are of; make them for this one")
    other = [field for field in want if got.get(field) != want[field]]
    return {
        "matrix": Path(name).stem,
        "dtype": str(csr.data.dtype),
        "policy": policy,
        "rows": str(csr.shape[0]),
        "entries": str(len(csr.data)),
        "compared": str(len(want) - 1),
        "same": str(len(want) - 1 - len(other)),
        "other": " ".join(other),
        **columns,
    }


def main() -> None:
    """Write digests, or compare with them, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("digests", type=Path, metavar="FILE")
    parser.add_argument("matrices", nargs="+", metavar="MATRIX")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    known = json.loads(args.digests.read_text()) if args.digests.exists() else {}
    columns = {} if args.device == "cpu" else machine.cuda_columns("")
    for name in args.matrices:
        csr = read(name)
        for policy, narrow in NARROW.items():
            if args.device == "cpu":
                known[f"{Path(name).stem} {policy}"] = digests(csr, narrow, "cpu")
                continue
            row = compare(name, csr, policy, known, columns)
            print(*list(row.values())[:8], sep="\t", flush=True)
            if args.csv:
                results.append(args.csv, row)
    if args.device == "cpu":
        args.digests.write_text(json.dumps(known, indent=1))


if __name__ == "__main__":
    main()
