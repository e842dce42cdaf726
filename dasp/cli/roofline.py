"""The roofline of a sparse product: bytes that must move over measured copy bandwidth.

A CSR product cannot move fewer bytes than the matrix once, x once and y once. A plan that stores columns or
values in fewer bytes can beat this roofline; it is a mark on the wall, the same for everybody, not a limit
of nature.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

COPY_BYTES = 1 << 28
"""Size of the copied array: 256 MiB, beyond any cache in use."""

REPEATS = 7


def csr_bytes(rows: int, entries: int, itemsize: int) -> int:
    """Return the bytes of a CSR matrix with 32-bit indices: (itemsize + 4) nnz + 4 (m + 1)."""
    return (itemsize + 4) * entries + 4 * (rows + 1)


def product_bytes(rows: int, cols: int, entries: int, itemsize: int) -> int:
    """Return the bytes that a CSR product must move: the matrix, x and y once."""
    return csr_bytes(rows, entries, itemsize) + itemsize * (rows + cols)


def roofline_us(moved: int, bandwidth: float) -> float:
    """Return the microseconds to move `moved` bytes at `bandwidth` bytes per second."""
    return 1e6 * moved / bandwidth


def host_copy_bandwidth(threads: int | None = None, size: int = COPY_BYTES) -> float:
    """Measure the host's copy bandwidth: bytes read and written per second, best of 7.

    Parameters
    ----------
    threads : int, optional
        Threads that copy, each its own share; every core by default.
    size : int
        Bytes of the array that is copied.

    Notes
    -----
    The copies are NumPy's, which release the interpreter lock; large ones use streaming stores, so that a
    byte written is not read first. This is the best case for a kernel that only moves data.
    """
    workers = threads or os.cpu_count() or 1
    source = np.ones(size // 8)
    target = np.zeros(size // 8)
    edges = np.linspace(0, source.size, workers + 1).astype(np.int64)
    shares = [(target[a:b], source[a:b]) for a, b in pairwise(edges)]
    best = float("inf")
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            for done in [pool.submit(np.copyto, to, of) for to, of in shares]:
                done.result()
            best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def cuda_copy_bandwidth(size: int = 4 * COPY_BYTES) -> float:
    """Measure the current GPU's copy bandwidth: bytes read and written per second, best of 7."""
    import cupy

    source = cupy.ones(size // 8, dtype=cupy.float64)
    target = cupy.empty_like(source)
    stream = cupy.cuda.get_current_stream()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    best = float("inf")
    for _ in range(REPEATS + 1):
        start.record(stream)
        target.data.copy_from_device_async(source.data, source.nbytes, stream)
        stop.record(stream)
        stop.synchronize()
        best = min(best, 1e-3 * float(cupy.cuda.get_elapsed_time(start, stop)))
    moved = 2 * int(source.nbytes)
    return moved / best
