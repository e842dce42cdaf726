"""What small operations on a planned matrix take on a GPU, beside CuPy's on its CSR matrix.

    python -m benchmarks.small_operations --csv benchmarks/results/small_operations_h200.csv poisson2d:100 ...

Each time is the median of many calls, each begun with nothing left to do and waited for, ours and CuPy's by
turns. Results are held to CuPy's first. Values are what they are in the matrix, which the plan may code, and
drawn ones, which it stores as they are.
"""

from __future__ import annotations

import argparse
import operator
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dasp
from benchmarks.bench import machine, results

CALLS, ROUNDS = 15, 7
VALUES = "own", "drawn"

Row = dict[str, str]
Call = Callable[[], Any]


def ways(A: Any, C: Any, library: Any) -> Iterator[tuple[str, Call, Call]]:
    """Each operation by name: ours, and CuPy's."""
    from cupyx.scipy.sparse import csr_matrix

    (m, n), rng = A.shape, np.random.default_rng(2)
    left, right = (library.asarray(rng.standard_normal(size)) for size in (m, n))
    data, coo = library.asarray(rng.standard_normal(A.nnz)), C.tocoo()

    def new_values() -> Any:
        return csr_matrix((data, C.indices, C.indptr), shape=C.shape)

    def scaled() -> Any:
        made = C.copy()
        made.data *= left[coo.row]
        made.data *= right[made.indices]
        return made

    yield "A * 3", partial(operator.mul, A, 3.0), partial(operator.mul, C, 3.0)
    yield "A / 3", partial(operator.truediv, A, 3.0), partial(operator.truediv, C, 3.0)
    yield "-A", partial(operator.neg, A), partial(operator.neg, C)
    yield "abs(A)", partial(abs, A), partial(abs, C)
    yield "A.astype(float32)", partial(A.astype, np.float32), partial(C.astype, np.float32)
    yield "A.copy()", A.copy, C.copy
    yield "A.with_values(data)", partial(A.with_values, data), new_values
    yield "A.scaled(left, right)", partial(A.scaled, left, right), scaled
    for axis in (None, 0, 1):
        yield f"A.sum({axis})", partial(A.sum, axis), partial(C.sum, axis)
    if m == n:
        yield "A.diagonal()", A.diagonal, C.diagonal
        yield "A.diagonal(1)", partial(A.diagonal, 1), partial(C.diagonal, 1)
        yield "A.trace()", A.trace, C.trace
    yield "A.tocsr()", A.tocsr, C.copy
    yield "A.coordinates()", A.coordinates, C.tocoo


def hold(name: str, ours: Any, theirs: Any, library: Any) -> None:
    """Hold that a result is CuPy's, up to rounding."""
    if isinstance(ours, tuple):
        assert (ours[0] == theirs.row).all(), name
        return
    if hasattr(ours, "tocsr"):
        ones = library.asarray(np.random.default_rng(1).standard_normal(ours.shape[1]))
        ours, theirs = ours @ ones, theirs @ ones
    got, want = (library.asarray(one).get().ravel() for one in (ours, theirs))
    assert np.abs(got - want).max(initial=0) <= 1e-5 * np.abs(want).max(initial=1), name


def one_us(call: Call, wait: Call) -> float:
    """Microseconds of a call and of what it left to do."""
    wait()
    start = time.perf_counter()
    made = call()
    wait()
    taken = 1e6 * (time.perf_counter() - start)
    del made
    return taken


def measure(A: Any, C: Any, library: Any) -> Iterator[Row]:
    """Medians of both, by turns."""
    wait = library.cuda.Device().synchronize
    for name, ours, theirs in ways(A, C, library):
        hold(name, ours(), theirs(), library)
        taken: tuple[list[float], list[float]] = [], []
        for _ in range(ROUNDS):
            for times, call in zip(taken, (ours, theirs), strict=True):
                times += [one_us(call, wait) for _ in range(CALLS)]
        mine, cupys = map(statistics.median, taken)
        yield {"operation": name, "us": f"{mine:.1f}", "cupy_us": f"{cupys:.1f}"}


def main() -> None:
    """Measure, print, and append the rows to the file."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="+", help="specifications of dasp.models")
    parser.add_argument("--format", default="auto", help="auto, sell or dasp")
    parser.add_argument("--values", default=",".join(VALUES), help="own, drawn or both")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    for name in args.matrices:
        csr = dasp.models.generate(name).astype(np.float64)
        for values in args.values.split(","):
            if values == "drawn":
                csr.data = np.random.default_rng(0).standard_normal(csr.nnz)
            C = csr_matrix((*map(cupy.asarray, (csr.data, csr.indices, csr.indptr)),), shape=csr.shape)
            C.has_canonical_format  # noqa: B018, found once
            A = dasp.SpMatrix.from_cupy(C, policy=dasp.Policy(format=args.format))
            coding = getattr(A.plan.values, "coding", None)
            given = {"matrix": name, "entries": str(csr.nnz), "layout": A.plan.format}
            given["coding"] = coding.name if coding is not None else "PLAIN"
            for row in measure(A, C, cupy):
                print(*given.values(), *row.values(), sep="\t", flush=True)
                if args.csv:
                    results.append(args.csv, {**machine.cuda_columns(""), **given, **row})


if __name__ == "__main__":
    main()
