"""A system that fits no single GPU: Poisson's on a cube, made, planned and solved rank by rank.

    torchrun --nproc-per-node 4 benchmarks/beyond_one_gpu.py 1100 --csv beyond_one_gpu_h200.csv

Values are kept in full (Policy(narrow=False)), as those of a matrix without structure would be: a plan takes
58 bytes a row and vectors 56, so from some 1.25e9 rows on they are more than the 141 GB of an H200. Ranks
make their planes on their GPUs. Every row of the product is held to its bound; the residual of the solution
is computed anew from the stencil.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import machine, results, scaling
from dasp import Policy, solvers
from dasp.distributed import SpMatrix
from dasp.distributed.communicator import Communicator
from dasp.distributed.launch import find_rank_device, find_world, leave
from dasp.distributed.partition import Parts, Split
from dasp.formats.csr.matrix import Csr

PLANES = 16
"""That are held to the stencil at once."""

SOURCE = """
__device__ bool stored(long long row, int k, long long n, long long first, long long end)
{
    const long long x = row % n, y = row / n % n, z = row / (n * n);
    const bool inside[7] = {z > 0, y > 0, x > 0, true, x + 1 < n, y + 1 < n, z + 1 < n};
    const long long step[7] = {-n * n, -n, -1, 0, 1, n, n * n};
    return inside[k] && row + step[k] >= first && row + step[k] < end;
}
extern "C" __global__ void lengths(long long n, long long first, long long end, long long* indptr)
{
    const long long threads = gridDim.x * (long long)blockDim.x;
    const long long mine = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (mine == 0) indptr[0] = 0;
    for (long long row = first + mine; row < end; row += threads) {
        int count = 0;
        for (int k = 0; k < 7; ++k) count += stored(row, k, n, first, end);
        indptr[row - first + 1] = count;
    }
}
extern "C" __global__ void entries(long long n, long long first, long long end, const long long* indptr,
                                   int* indices, double* data)
{
    const long long step[7] = {-n * n, -n, -1, 0, 1, n, n * n};
    const long long threads = gridDim.x * (long long)blockDim.x;
    const long long mine = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (long long row = first + mine; row < end; row += threads) {
        long long at = indptr[row - first];
        for (int k = 0; k < 7; ++k)
            if (stored(row, k, n, first, end)) {
                indices[at] = int(row + step[k] - first);
                data[at++] = k == 3 ? 6 : -1;
            }
    }
}
"""


def pieces(n: int, first: int, end: int) -> Split:
    """Return a rank's whole planes, split as `partition.split` does, which needs more memory."""
    import cupy

    module, count, plane = cupy.RawModule(code=SOURCE), end - first, n * n
    grid = (4096,), (256,)
    bounds = np.int64(n), np.int64(first), np.int64(end)
    indptr = cupy.empty(count + 1, np.int64)
    module.get_function("lengths")(*grid, (*bounds, indptr))
    cupy.cumsum(indptr, out=indptr)
    nnz = int(indptr[-1])
    indices, data = cupy.empty(nnz, np.int32), cupy.empty(nnz)
    module.get_function("entries")(*grid, (*bounds, indptr, indices, data))
    sides = [(0, first - plane)] * (first > 0) + [(count - plane, end)] * (end < n**3)
    rows = np.concatenate([np.zeros(0, np.int64), *(row + np.arange(plane) for row, _ in sides)])
    columns = np.concatenate([np.zeros(0, np.int64), *(column + np.arange(plane) for _, column in sides)])
    k = len(rows)
    interior = Csr((count, count), indptr, indices, data)
    one_each = cupy.arange(k + 1, dtype=np.int64), cupy.arange(k, dtype=np.int32), cupy.full(k, -1.0)
    return Split(interior, Csr((k, k), *one_each), cupy.asarray(rows), columns, cupy.zeros(0, bool))


def right_side(places: Any) -> Any:
    """b: numbers without structure, the same wherever they are made."""
    import cupy

    z = places.astype(cupy.uint64) * cupy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> cupy.uint64(30)) * cupy.uint64(0xBF58476D1CE4E5B9)
    return (z >> cupy.uint64(11)).astype(cupy.float64) / 2.0**53 - 0.5


def filled(make: Any, first: int, end: int) -> Any:
    """Return a rank's part of a vector, made piece by piece."""
    import cupy

    made = cupy.empty(end - first)
    for low, high in scaling.chunks(first, end):
        made[low - first : high - first] = make(cupy.arange(low, high, dtype=np.int64))
    return made


def stencil_square(D: SpMatrix, n: int, x: Any, b: Any) -> float:
    """Return the square of this rank's part of b - A x, from the stencil; all ranks call it."""
    import cupy

    first, planes = D.rows.first // n**2, D.rows.count // n**2
    halo = D.halo_values(x).reshape(-1, n, n)
    below, above = int(first > 0), int(first + planes < n)
    cube, square, nothing = x.reshape(planes, n, n), 0.0, cupy.zeros((1, n, n))
    for low in range(0, planes, PLANES):
        high = min(low + PLANES, planes)
        before = cube[low - 1 : low] if low else halo[:1] if below else nothing
        after = cube[high : high + 1] if high < planes else halo[-1:] if above else nothing
        part = cupy.concatenate([before, cube[low:high], after])
        r = b.reshape(planes, n, n)[low:high] - 6 * part[1:-1] + part[:-2] + part[2:]
        for axis in (1, 2):
            ahead = [slice(None)] * 3
            behind = list(ahead)
            ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
            r[tuple(ahead)] += part[1:-1][tuple(behind)]
            r[tuple(behind)] += part[1:-1][tuple(ahead)]
        square += float((r * r).sum())
    return square


def measure(n: int, comm: Communicator, rtol: float, most: int) -> dict[str, Any]:
    """Make, plan, multiply, hold to bounds, solve."""
    import cupy

    device = find_rank_device(comm, "cuda")
    cupy.cuda.Device(int(device[5:])).use()
    starts = np.array([n * k // comm.size * n**2 for k in range(comm.size + 1)], np.int64)
    parts = Parts(starts, comm.rank)
    first, end = parts.first, parts.first + parts.count
    pool, clock = cupy.get_default_memory_pool(), scaling.Clock(comm, device)

    def told(what: str) -> None:
        cupy.cuda.Device().synchronize()
        if comm.rank == 0:
            free, total = cupy.cuda.runtime.memGetInfo()
            print(
                f"{time.perf_counter() - began:6.1f} s {what}; {(total - free) / 1e9:.1f} GB in use",
                flush=True,
            )

    began = time.perf_counter()
    rows = pieces(n, first, end)
    told("rows are made")
    entries = sum(comm.gather(len(rows.interior.data) + len(rows.halo.data)))
    seconds = time.perf_counter()
    D = SpMatrix(comm, (parts, parts), rows, Policy(narrow=False), device)
    cupy.cuda.Device().synchronize()
    plan_s = max(comm.gather(time.perf_counter() - seconds))
    del rows
    pool.free_all_blocks()
    told("planned")
    x, y = filled(lambda places: scaling.wave(places, cupy), first, end), cupy.full(end - first, cupy.nan)
    D.matvec(x, out=y)
    wrong = sum(comm.gather(scaling.wrong_rows(y, n, first, cupy)))
    told(f"{wrong} rows are wrong of {n**3}")
    us = clock.best(partial(D.matvec, x, out=y), 2)
    inside = clock.best(partial(D.interior.matvec, x, out=y), 2)
    x = y = None
    pool.free_all_blocks()
    b = filled(right_side, first, end)
    workspace = solvers.Workspace()
    x, stats = solvers.cg(D, b, rtol=rtol, maxiter=most, workspace=workspace)
    held = pool.used_bytes()
    told(f"solved: {stats.reason}")
    norm = sum(comm.gather(stencil_square(D, n, x, b))) ** 0.5
    size = sum(comm.gather(float((b * b).sum()))) ** 0.5
    return {
        "matrix": f"poisson3d:{n}", "dtype": "float64", "ranks": comm.size, "rows": n**3,
        "entries": entries,
        "plan_bytes": sum(comm.gather(D.nbytes)), "held_bytes": sum(comm.gather(held)),
        "plan_s": plan_s, "wrong_rows": wrong, "product_us": us, "interior_us": inside, "rtol": rtol,
        "iterations": stats.iterations, "converged": stats.converged, "solve_s": stats.seconds,
        "us_per_iteration": 1e6 * stats.seconds / stats.iterations,
        "told_residual": stats.residual / size, "stencil_residual": norm / size,
    }  # fmt: skip


def main() -> None:
    """Measure on the ranks that a launcher started; rank 0 writes the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("n", type=int, help="points along an edge")
    parser.add_argument("--rtol", type=float, default=1e-5)
    parser.add_argument("--most", type=int, default=4000, help="iterations")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    comm = find_world()
    if comm is None:
        raise SystemExit("this process was started alone; ranks are needed")
    row = measure(given.n, comm, given.rtol, given.most)
    if comm.rank == 0:
        print(row, flush=True)
        if given.csv is not None:
            results.append(given.csv, {**{k: str(v) for k, v in row.items()}, **machine.cuda_columns("")})
    leave()


if __name__ == "__main__":
    main()
