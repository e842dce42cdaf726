"""A matrix of more than 2^31 entries, made, planned and multiplied on a GPU; rows checked on the host.

    python -m benchmarks.beyond_int32 --csv benchmarks/results/beyond_int32_h200.csv 15400000 80500000

Row r has 26 to 28 entries in a band around the diagonal; lengths, columns and values are hashes of the row
and the place in it, so that the host makes any row again. A row is right within the bound of its dot product.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import machine, results
from dasp import Policy, SpMatrix
from dasp.formats import device_cuda as backend
from dasp.formats.csr.matrix import Csr
from dasp.matrix import planning

LEAST, KINDS, STEP, HALF_BAND = 26, 3, 97, 1300
"""Entries of the shortest rows, how many lengths there are, columns between entries, and before the band."""

ROWS_CHECKED, REPEATS = 3000, 5

SOURCE = """
__device__ unsigned long long mix(unsigned long long z)
{
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
extern "C" __global__ void lengths(long long m, long long* indptr)
{
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long r = blockIdx.x * (long long)blockDim.x + threadIdx.x; r < m; r += threads)
        indptr[r + 1] = LEAST + mix(r) % KINDS;
    if (blockIdx.x == 0 && threadIdx.x == 0) indptr[0] = 0;
}
extern "C" __global__ void entries(long long m, const long long* indptr, int* indices, double* data)
{
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long r = blockIdx.x * (long long)blockDim.x + threadIdx.x; r < m; r += threads) {
        const long long begin = indptr[r], first = min(max(r - HALF_BAND, 0ll), m - (LEAST + KINDS) * STEP);
        for (long long k = 0; k < indptr[r + 1] - begin; ++k) {
            const unsigned long long hash = mix(64 * r + k + 0x1234567);
            indices[begin + k] = int(first + STEP * k + hash % STEP);
            data[begin + k] = double((long long)(hash >> 11)) / 9007199254740992.0 - 0.5;
        }
    }
}
"""


def mix(number: Any) -> Any:
    """The same hash as in SOURCE (splitmix64), of an array of uint64."""
    with np.errstate(over="ignore"):
        z = np.asarray(number, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def matrix(m: int) -> Csr:
    """The matrix, with CuPy's arrays."""
    import cupy

    known = {"LEAST": LEAST, "KINDS": KINDS, "STEP": STEP, "HALF_BAND": HALF_BAND}
    module = cupy.RawModule(code=SOURCE, options=tuple(f"-D{name}={value}" for name, value in known.items()))
    indptr = cupy.empty(m + 1, np.int64)
    module.get_function("lengths")((4096,), (256,), (np.int64(m), indptr))
    cupy.cumsum(indptr, out=indptr)
    nnz = int(indptr[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz)
    module.get_function("entries")((4096,), (256,), (np.int64(m), indptr, indices, data))
    cupy.cuda.Device().synchronize()
    return Csr((m, m), indptr, indices, data)


def row(m: int, r: int) -> tuple[Any, Any]:
    """Columns and values of a row."""
    k = np.arange(LEAST + int(mix(r) % KINDS))
    hashed = mix(64 * r + k + 0x1234567)
    first = min(max(r - HALF_BAND, 0), m - (LEAST + KINDS) * STEP)
    columns = first + STEP * k + (hashed % np.uint64(STEP)).astype(np.int64)
    return columns, (hashed >> np.uint64(11)).astype(np.float64) / 2.0**53 - 0.5


def planned(csr: Csr) -> tuple[SpMatrix, float]:
    """The matrix planned where it lies, and the seconds that it took."""
    start = time.perf_counter()
    with backend.packing(csr, "cuda:0") as (there, primitives):
        plan = planning.make_plan(there, Policy(), backend.find_cost_model("cuda:0"), primitives)
    return SpMatrix(plan, "cuda:0"), time.perf_counter() - start


def check(A: SpMatrix, csr: Csr, x: Any, y: Any) -> tuple[int, float]:
    """Hold that sampled rows of y = A x are right; how many, and the worst error over its bound."""
    import cupy

    m = csr.shape[0]
    around = int(cupy.searchsorted(csr.indptr, cupy.asarray([2**31]))[0])  # where entry 2^31 is
    picked = np.random.default_rng(2).integers(0, m, ROWS_CHECKED)
    rows = np.unique(np.clip([*picked, 0, 1, m - 2, m - 1, around - 2, around - 1, around], 0, m - 1))
    worst = 0.0
    for r in rows:
        columns, values = row(m, int(r))
        terms = values.astype(np.longdouble) * x[cupy.asarray(columns)].get()
        u = len(terms) * 2.0**-53
        error, bound = abs(float(y[r]) - terms.sum()), u / (1 - u) * abs(terms).sum()
        if not error <= bound:
            raise AssertionError(f"row {r}: error {error}, bound {bound}")
        worst = max(worst, float(error / bound))
    if bool(cupy.isnan(y).any()):
        raise AssertionError("a row was not written")
    return len(rows), worst


def measure(m: int) -> dict[str, Any]:
    """Make a matrix of m rows, plan it, multiply by it and check."""
    import cupy

    csr = matrix(m)
    A, first = planned(csr)
    taken = []
    for _ in range(REPEATS):
        del A
        A, seconds = planned(csr)
        taken.append(seconds)
    x, y = cupy.random.default_rng(1).standard_normal(m), cupy.full(m, cupy.nan)
    A.matvec(x, out=y)
    checked, worst = check(A, csr, x, y)
    best = float("inf")
    for _ in range(REPEATS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        A.matvec(x, out=y)
        end.record()
        end.synchronize()
        best = min(best, cupy.cuda.get_elapsed_time(begin, end))
    return {
        "matrix": f"hashed band, {m} rows",
        "dtype": "float64",
        "rows": m,
        "entries": len(csr.data),
        "csr_bytes": sum(array.nbytes for array in csr[1:]),
        "plan_bytes": A.nbytes,
        "first_plan_ms": 1e3 * first,
        "plan_ms": 1e3 * min(taken),
        "product_ms": best,
        "rows_checked": checked,
        "worst_error_over_bound": worst,
    }


def main() -> None:
    """Measure a matrix of each number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", type=int)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    for m in options.rows:
        values = {
            key: value if isinstance(value, str) else f"{value:.10g}" for key, value in measure(m).items()
        }
        print(" ".join(f"{key}={value}" for key, value in values.items()), flush=True)
        if options.csv:
            results.append(options.csv, values | machine.cuda_columns(""))


if __name__ == "__main__":
    main()
