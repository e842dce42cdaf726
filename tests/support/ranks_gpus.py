"""The program that distributed/test_ranks.py starts on several GPUs: `WAY RANK SIZE PORT`, a way of WAYS.

After DASP_RANKS_SECONDS seconds, a process prints its stacks and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from benchmarks.bench import scaling
from dasp import Policy, solvers
from dasp.distributed import RankError, SpMatrix, find_communicator
from dasp.distributed.launch import find_rank_device, find_transport
from dasp.distributed.partition import Parts
from dasp.distributed.pieces import split
from dasp.formats.csr.matrix import Csr
from dasp.models import generate
from tests.support import reference

FOR_LONG = 300.0
"""Seconds that ranks wait for each other in the ways where something else must end the wait."""

BAND, LEAST = 1000, 26
"""Of the matrix of many entries: columns before and after the diagonal, and least entries of a row."""

ENTRIES = """
extern "C" __global__ void entries(long long first, long long m, long long n, long long per_row, float* data,
                                   int* columns)
{
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < m * per_row; at += threads) {
        const long long row = first + at / per_row, k = at % per_row;
        const long long begin = min(max(row - HALF, 0ll), n - per_row * STEP);
        columns[at] = int(begin + k * STEP + row * 7 % STEP);
        data[at] = float((row * 31 + k * 17) % 1021 - 510) / 512;
    }
}
"""


def gpu_matrix(A: Any, comm: Any, timeout: float = FOR_LONG) -> SpMatrix:
    return SpMatrix.from_scipy(A, comm, device="cuda", timeout=timeout)


def links_of(D: SpMatrix) -> str:
    return str(find_transport(D.comm, D.device).name)


def die_later(seconds: float) -> None:
    """Kill this process after some seconds, from another thread."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def killed(comm: Any) -> str:
    """Kill a rank while GPUs iterate, long before any time limit: the others must notice within seconds."""
    D = gpu_matrix(generate("poisson3d:40"), comm)
    b = _numbers(D.local_shape[0])
    solvers.cg(D, b, rtol=1e-6)
    comm.gather(None)
    began = time.monotonic()
    if comm.rank == 1:
        die_later(1.0)
    try:
        while time.monotonic() - began < FOR_LONG / 4:
            solvers.cg(D, b, rtol=0.0, atol=0.0, maxiter=20_000)
    except RankError as error:
        took = time.monotonic() - began - 1.0
        assert took < FOR_LONG / 4, took
        return f"noticed after {took:.1f} s: {error}"
    raise AssertionError("nothing was noticed")


def killed_between_products(comm: Any) -> str:
    """Kill a rank while the others' hosts wait in CuPy: they must get NaN, and then an error."""
    D = gpu_matrix(generate("poisson3d:20"), comm)
    x = _numbers(D.local_shape[1])
    want = (D @ x).get()
    assert np.isfinite(want).all()
    comm.gather(None)
    began, got = time.monotonic(), want
    if comm.rank == 1:
        die_later(1.0)
    with contextlib.suppress(RankError):
        while time.monotonic() - began < FOR_LONG / 4:
            got = (D @ x).get()
            whole = (got == want).all()
            assert whole or np.isnan(got).any(), "numbers of another turn"
        raise AssertionError("nothing was noticed")
    took = time.monotonic() - began - 1.0
    assert took < FOR_LONG / 4, took
    return f"noticed after {took:.1f} s"


def killed_in_a_graph(comm: Any) -> str:
    """Kill a rank while graphs multiply, which raise nothing: they must give NaN, the next call an error."""
    import cupy

    D = gpu_matrix(generate("poisson3d:20"), comm)
    x = _numbers(D.local_shape[1])
    want, y = (D @ x).get(), cupy.zeros(D.local_shape[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        D.matvec(x, out=y)
        stream.begin_capture()
        for _ in range(5):
            D.matvec(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
        assert (y.get() == want).all()
        comm.gather(None)
        began, got = time.monotonic(), want
        if comm.rank == 1:
            die_later(1.0)
        while (got == want).all():
            assert time.monotonic() - began < FOR_LONG / 4, "nothing was noticed"
            graph.launch(stream)
            got = y.get()
        took = time.monotonic() - began - 1.0
        assert np.isnan(got).any(), "numbers of another turn"
        try:
            D.matvec(x, out=y)
        except RankError as error:
            return f"noticed after {took:.1f} s: {error}"
    raise AssertionError("nothing was raised")


def late(comm: Any) -> str:
    """Let a rank come after the others have given up: no rank may get the numbers of another product."""
    D = gpu_matrix(generate("poisson3d:20"), comm, timeout=2)
    x = _numbers(D.local_shape[1])
    want = (D @ x).get()

    def raises(turn: int) -> bool:
        try:
            y = (D @ (2.0**turn * x)).get()
        except RankError:
            return True
        assert ((y == 2.0**turn * want) | np.isnan(y)).all(), "numbers of another turn"
        return False

    if comm.rank == 1:
        time.sleep(5)  # the others have given up by then
    told = sum(raises(turn) for turn in range(1, 9))
    assert told >= 6, told
    return f"{told} of 8 calls raised"


def mixed(comm: Any) -> str:
    """Let ranks multiply vectors of different types, which all have used before: all must time out."""
    D = gpu_matrix(generate("poisson3d:20"), comm, timeout=2)
    x = _numbers(D.local_shape[1])
    want = {kind: (D @ x.astype(kind)).get() for kind in (np.float64, np.float32)}
    kind: Any = np.float32 if comm.rank == 1 else np.float64
    comm.gather(None)
    began = time.monotonic()
    try:
        while time.monotonic() - began < FOR_LONG / 4:
            y = (D @ x.astype(kind)).get()
            assert ((y == want[kind]) | np.isnan(y)).all(), "numbers of another turn"
    except RankError as error:
        took = time.monotonic() - began
        assert took > 1.5, took
        return f"after {took:.1f} s: {error}"
    raise AssertionError("nothing was raised")


def one_visible(comm: Any) -> str:
    """Multiply and solve where each process sees one GPU alone, as in batch systems."""
    import cupy

    assert cupy.cuda.runtime.getDeviceCount() == 1
    A = generate("poisson3d:30")
    D = gpu_matrix(A, comm)
    x = np.random.default_rng(3).standard_normal(A.shape[0])
    part = slice(D.rows.first, D.rows.first + D.rows.count)
    _hold(D, A[part], x, (D @ cupy.asarray(x[part])).get())
    found, stats = solvers.cg(D, cupy.asarray(x[part]), rtol=1e-9)
    whole = np.concatenate(comm.gather(found.get()))
    assert stats.converged
    assert np.linalg.norm(x - A @ whole) <= 1.0001e-9 * np.linalg.norm(x)
    return links_of(D)


def long_runs(comm: Any) -> str:
    """Check every row and the dot products of a matrix with more than ten million rows a rank."""
    import cupy

    n = 12 + round((10_000_000 * comm.size) ** (1 / 3))
    starts = np.array([n * k // comm.size * n**2 for k in range(comm.size + 1)], np.int64)
    cupy.cuda.Device(int(find_rank_device(comm, "cuda")[5:])).use()
    first, end = int(starts[comm.rank]), int(starts[comm.rank + 1])
    D = SpMatrix.from_local_rows(scaling.local_rows(n, first, end, "cuda"), comm, device="cuda")
    assert D.shape[0] > 10_000_000 * comm.size
    x = scaling.wave(cupy.arange(first, end), cupy)
    for product in ("prepared", "called"):
        y, w = cupy.full(end - first, cupy.nan), cupy.random.default_rng(4).standard_normal(end - first)
        if product == "called":
            D.matvec(x, out=y)
        else:
            prepared = D.prepare_with_dot(x, y, w, square=True)
            assert prepared is not None
            call, sums = prepared
            call()
            first_bits = y.copy(), sums.copy()
            y.fill(cupy.nan)
            call()
            assert all((a == b).all() for a, b in zip(first_bits, (y, sums), strict=True))
            half = len(sums) // 2
            for told, terms in ((sums[:half], w * y), (sums[half:], y * y)):
                error, size = abs(float(told.sum() - terms.sum())), float(abs(terms).sum())
                assert error <= float(reference.gamma(len(y), np.float64)) * size
        assert scaling.wrong_rows(y, n, first, cupy) == 0
    b = D @ x
    found, stats = solvers.cg(D, b, rtol=1e-5)
    assert stats.converged, stats
    left = float(sum(comm.gather(float(((b - D @ found) ** 2).sum()))) ** 0.5)
    size = float(sum(comm.gather(float((b**2).sum()))) ** 0.5)
    assert left <= 1.001e-5 * size
    return f"{D.shape[0]} rows, {links_of(D)}, {stats.iterations} iterations"


def many_entries(comm: Any) -> str:
    """Hold sampled rows to their bound for more than 2^32 entries a rank, in float32."""
    import cupy

    per_row, step = 27, 74
    own = -(-(2**32 + 10_000) // per_row)
    n = own * comm.size
    source = ENTRIES.replace("HALF", str(BAND)).replace("STEP", str(step))
    kernel = cupy.RawModule(code=source).get_function("entries")
    first = own * comm.rank
    device = find_rank_device(comm, "cuda")
    cupy.cuda.Device(int(device[5:])).use()
    indices, data = cupy.empty(own * per_row, np.int32), cupy.empty(own * per_row, np.float32)
    kernel((4096,), (256,), (*map(np.int64, (first, own, n, per_row)), data, indices))
    indptr = per_row * cupy.arange(own + 1, dtype=np.int64)
    parts = Parts(own * np.arange(comm.size + 1), comm.rank)
    pieces = split(Csr((own, n), indptr, indices, data), parts)
    entries = len(data)
    del indices, data, indptr
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    D = SpMatrix(comm, (parts, parts), pieces, Policy(), device)
    del pieces
    assert entries > 2**32
    assert D.nnz == comm.size * entries
    x = cupy.sin(cupy.arange(first, first + own, dtype=np.float64)).astype(np.float32)
    y = cupy.full(own, cupy.nan, np.float32)
    D.matvec(x, out=y)
    assert not bool(cupy.isnan(y).any()), "a row was not written"
    around = 2**31 // per_row, 2**32 // per_row
    picked = [*np.random.default_rng(5).integers(0, own, 2000), *range(50), *range(own - 50, own)]
    picked += [place + k for place in around for k in range(-2, 3)]
    rows = first + np.unique(np.clip(picked, 0, own - 1))
    begin = np.clip(rows - BAND, 0, n - per_row * step)
    columns = begin[:, None] + step * np.arange(per_row) + (rows * 7 % step)[:, None]
    values = ((rows[:, None] * 31 + 17 * np.arange(per_row)) % 1021 - 510) / 512
    terms = values.astype(np.longdouble) * np.sin(columns.astype(float)).astype(np.float32)
    size = abs(values) * (1 + 2**-20)  # |x| <= 1, and the GPU's sine may differ in its last bits
    error = abs(y[cupy.asarray(rows - first)].get() - terms.sum(axis=1))
    bound = reference.gamma(per_row + 3, np.float32) * size.sum(axis=1)
    assert (error <= bound).all(), float((error / bound).max())
    return (
        f"{entries} entries a rank, {len(rows)} rows right, error {float((error / bound).max()):.2f} of bound"
    )


WAYS = {
    work.__name__.replace("_", "-"): work
    for work in (
        killed, killed_between_products, killed_in_a_graph, late, mixed, one_visible, long_runs, many_entries
    )
}  # fmt: skip

BY_NCCL = "killed", "killed-between-products", "killed-in-a-graph", "late"
"""Ways that are also run with messages by NCCL."""

APART = *BY_NCCL, "mixed"
"""Ways that end without a last barrier of all ranks."""


def _numbers(count: int) -> Any:
    import cupy

    return cupy.random.default_rng(1).standard_normal(count)


def _hold(D: SpMatrix, local: Any, x: Any, y: Any) -> None:
    want, size = reference.product(local, x)
    assert (abs(y - want) <= reference.gamma(np.diff(local.indptr) + 3, np.float64) * size).all()


def main(way: str, rank: int, size: int, port: int) -> int:
    """Go one way on a rank. Return 0 if it went well."""
    from datetime import timedelta

    import torch.distributed as dist

    if "DASP_RANKS_SECONDS" in os.environ:
        faulthandler.dump_traceback_later(float(os.environ["DASP_RANKS_SECONDS"]), exit=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    seconds = timedelta(seconds=FOR_LONG)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=seconds)
    group = dist.group.WORLD
    print(f"rank {rank}: {WAYS[way](find_communicator(group, timeout=FOR_LONG))}", flush=True)
    if way == "killed-in-a-graph":
        return 0  # end as a program would, whatever still waits
    if way in APART:
        os._exit(0)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
