"""Timing of repeated products, on the host and on the GPU, and the roofline that times are compared with.

On the host candidates are timed in rounds, each round in another order, so that a machine that slows down
half-way slows down all of them. Two untimed products precede each series: they compile code, and leave in the
cache the data that a repeated product finds there.

On the GPU a CUDA graph of twenty products is captured once and replayed once untimed, then seven times
between two events; a sample is the time of a replay over twenty. The products are in one stream, one after
another, as in a solver. A product that cannot be captured is enqueued twenty times between two events
instead (method `events`), so the cost of its calls counts.

The roofline is the bytes that must move over the measured bandwidth of a copy: a CSR product moves the
matrix once, x once and y once at least. A plan that stores columns or values in fewer bytes can beat it:
it is a common mark for all libraries, not a limit.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import bits_type
from dasp.runtime.types import Array, Graph, Stream

SAMPLE_SECONDS = 5e-4
"""A sample repeats short products until it lasts this long, so that the clock's own cost is below 0.1%."""

ROUNDS = 3

WALL_CLOCK = "wall clock"
"""The method of times on the host."""


@dataclass
class Candidate:
    """One product on fixed vectors, ready to run.

    Attributes
    ----------
    name : str
        The library and its setting, as in column names: `scipy`, `mkl`, `cusparse_alg2_pre`.
    run : callable
        Computes the product once. On a GPU it enqueues the product on the current stream and returns.
    out : array of shape (m,), optional
        The vector that every run writes. Without it each run makes a new one and returns it, and no CUDA
        graph captures the run.
    spoil : float
        The number that fills `out` before a check, so that the check finds rows that a run leaves unwritten.
    setup_ms : float
        Milliseconds spent once per matrix: conversion, analysis, workspace.
    cooldown_seconds : float
        How long the threads of this library may go on spinning after a run; the timer waits that long
        before it times the next candidate.
    close : callable, optional
        Releases descriptors and handles.
    owned : object
        Kept alive as long as `run` is used.
    """

    name: str
    run: Callable[[], Any]
    out: Array | None = None
    spoil: float = math.nan
    setup_ms: float = 0.0
    cooldown_seconds: float = 0.0
    close: Callable[[], object] | None = None
    owned: object = None

    def product(self) -> Array:
        """Spoil `out`, run once, and return the product on its device."""
        if self.out is None:
            new: Array = self.run()
            return new
        # Fill its bits, as CuPy cannot fill bfloat16.
        bits = bits_type(self.out.dtype)
        self.out.view(bits).fill(np.array(self.spoil, self.out.dtype).view(bits)[()])
        self.run()
        return self.out


@dataclass(frozen=True)
class Timing:
    """The time of one product, from several samples.

    Attributes
    ----------
    median_us, best_us : float
        Microseconds a product: the median and the smallest of the samples.
    spread : float
        Distance between the quartiles over the median; 0.02 means that half of the samples lie within 2%.
    method : str
        `wall clock`, `graph` or `events`.
    """

    median_us: float
    best_us: float
    spread: float
    method: str

    @property
    def us(self) -> float:
        """The microseconds that are compared: the median on the host, the best on a GPU."""
        return self.median_us if self.method == WALL_CLOCK else self.best_us


def summarize(samples_us: Sequence[float], method: str) -> Timing:
    """Make a `Timing` of samples in microseconds a product."""
    low, median, high = np.percentile(np.asarray(samples_us, dtype=np.float64), [25.0, 50.0, 75.0])
    return Timing(float(median), float(min(samples_us)), float((high - low) / median), method)


def elapsed(run: Callable[[], object], products: int = 1) -> float:
    """Return the seconds that `products` calls of `run` take."""
    start = time.perf_counter()
    for _ in range(products):
        run()
    return time.perf_counter() - start


def time_host(
    candidates: Sequence[Candidate], *, seconds: float = 0.6, samples: int | None = None
) -> dict[str, Timing]:
    """Time every candidate on the host.

    Parameters
    ----------
    candidates : sequence of Candidate
        Their runs return when the product is finished.
    seconds : float
        Time to spend on the samples of each candidate.
    samples : int, optional
        Samples of each candidate, instead of as many as fit into `seconds` (9 to 300).

    Returns
    -------
    dict of str to Timing
        By the candidates' names.
    """
    plans = {c.name: _plan_samples(c, seconds, samples) for c in candidates}
    taken: dict[str, list[float]] = {c.name: [] for c in candidates}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(ROUNDS):
            turn = number % max(len(candidates), 1)
            for candidate in [*candidates[turn:], *candidates[:turn]]:
                products, per_round = plans[candidate.name]
                elapsed(candidate.run, 2)
                for _ in range(per_round):
                    taken[candidate.name].append(1e6 * elapsed(candidate.run, products) / products)
                time.sleep(candidate.cooldown_seconds)
    finally:
        if collecting:
            gc.enable()
    return {name: summarize(values, WALL_CLOCK) for name, values in taken.items()}


def _plan_samples(candidate: Candidate, seconds: float, samples: int | None) -> tuple[int, int]:
    """Return the number of products in a sample of this candidate, and of its samples in a round."""
    elapsed(candidate.run)
    once = max(min(elapsed(candidate.run) for _ in range(3)), 1e-7)
    time.sleep(candidate.cooldown_seconds)
    products = max(1, math.ceil(SAMPLE_SECONDS / once))
    wanted = samples if samples is not None else min(max(int(seconds / (once * products)), 9), 300)
    return products, math.ceil(wanted / ROUNDS)


# ---- on the GPU ------------------------------------------------------------------------------------------

PRODUCTS = 20
REPEATS = 7


def time_cuda(candidates: Sequence[Candidate], *, samples: int | None = None) -> dict[str, Timing]:
    """Time every candidate on the current GPU.

    Parameters
    ----------
    candidates : sequence of Candidate
        Their runs enqueue a product on CuPy's current stream.
    samples : int, optional
        Replays that are timed; 7 by default.

    Returns
    -------
    dict of str to Timing
        By the candidates' names.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with on_stream(stream):
        times = {}
        for candidate in candidates:
            taken, method = replays(
                candidate.run, stream, samples or REPEATS, capturable=candidate.out is not None
            )
            times[candidate.name] = summarize(taken, method)
        stream.synchronize()
    return times


def capture(run: Callable[[], object], stream: Stream, products: int = PRODUCTS) -> Graph | None:
    """Return a CUDA graph of `products` runs, or None if they cannot be captured."""
    stream.begin_capture()
    try:
        for _ in range(products):
            run()
    except Exception:  # whatever a library raises inside a capture, time it without a graph
        with suppress(Exception):
            stream.end_capture()
        return None
    try:
        return stream.end_capture()
    except RuntimeError:
        return None


def between_events(enqueue: Callable[[], object], stream: Stream) -> float:
    """Return the microseconds that a stream takes for the work that `enqueue` puts on it."""
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    enqueue()
    stop.record(stream)
    stop.synchronize()
    return 1e3 * float(cupy.cuda.get_elapsed_time(start, stop))


def products_in(microseconds: float, run: Callable[[], object], stream: Stream, most: int) -> int:
    """Return how many products take `microseconds` on the stream, from 1 to `most`."""
    run()
    once = max(min(between_events(run, stream) for _ in range(3)), 1.0)
    return int(min(max(microseconds / once, 1), most))


def replays(
    run: Callable[[], object],
    stream: Stream,
    samples: int = REPEATS,
    products: int = PRODUCTS,
    *,
    capturable: bool = True,
) -> tuple[list[float], str]:
    """Time replays of a CUDA graph of some products on the stream, which must be the current one.

    Returns
    -------
    list of float
        Microseconds a product of each replay.
    str
        The method: `graph`, or `events` if the products could not be captured.
    """
    run()
    run()
    stream.synchronize()
    graph = capture(run, stream, products) if capturable else None

    def replay() -> None:
        if graph is not None:
            graph.launch(stream)
            return
        for _ in range(products):
            run()

    replay()
    stream.synchronize()
    taken = [between_events(replay, stream) / products for _ in range(samples)]
    return taken, "graph" if graph is not None else "events"


# ---- the roofline ----------------------------------------------------------------------------------------

COPY_BYTES = 1 << 28
"""Size of the copied array: 256 MiB, beyond any cache in use."""


def csr_bytes(rows: int, entries: int, itemsize: int) -> int:
    """Return the bytes of a CSR matrix with 32-bit indices: (itemsize + 4) nnz + 4 (m + 1)."""
    return (itemsize + 4) * entries + 4 * (rows + 1)


def product_bytes(rows: int, cols: int, entries: int, itemsize: int) -> int:
    """Return the bytes that a CSR product must move: the matrix, x and y once."""
    return csr_bytes(rows, entries, itemsize) + itemsize * (rows + cols)


def roofline_us(moved: int, bandwidth: float) -> float:
    """Return the microseconds to move `moved` bytes at `bandwidth` bytes per second."""
    return 1e6 * moved / bandwidth


def host_copy_bandwidth(threads: int) -> float:
    """Measure the host's copy bandwidth: bytes read and written per second, best of 7.

    Parameters
    ----------
    threads : int
        Threads that copy, each its own share.

    Notes
    -----
    The copies are NumPy's, which release the interpreter lock; large ones use streaming stores, so that a
    byte written is not read first. This is the best case for a kernel that only moves data.
    """
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros(COPY_BYTES // 8)
    edges = np.linspace(0, source.size, threads + 1).astype(np.int64)
    shares = [(target[a:b], source[a:b]) for a, b in pairwise(edges)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            start = time.perf_counter()
            for done in [pool.submit(np.copyto, to, of) for to, of in shares]:
                done.result()
            best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def cuda_copy_bandwidth() -> float:
    """Measure the current GPU's copy bandwidth: bytes read and written per second, best of 7."""
    import cupy

    source = cupy.ones(4 * COPY_BYTES // 8, dtype=cupy.float64)
    target = cupy.empty_like(source)
    stream = cupy.cuda.get_current_stream()

    def copy() -> None:
        target.data.copy_from_device_async(source.data, source.nbytes, stream)

    return 2e6 * int(source.nbytes) / min(between_events(copy, stream) for _ in range(8))
