"""Timing on the GPU: a CUDA graph of twenty products, replayed; and single products after the L2 was flushed.

Hot: the graph is captured once and replayed once untimed, then seven times between two events; a sample is
the time of a replay over twenty. The products are in one stream, one after another, as in a solver. What
cannot be captured is enqueued twenty times between two events instead (method `events`), so the cost of its
calls counts.

Cold: before each product a buffer of four times the L2 is overwritten, which takes longer than the host
needs to enqueue the product, so that only the product lies between the events. The cost of two events with
nothing between them is taken off. The overwritten lines have to be written back while the product runs, so
this is the harsher kind of cold.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress

from dasp.cli.timing import Candidate, Timing, summarize
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.types import Graph, Stream

PRODUCTS = 20
REPEATS = 7
COLD_SAMPLES = 15


def time_cuda(candidates: Sequence[Candidate], *, samples: int | None = None) -> dict[str, Timing]:
    """Time every candidate on the current GPU, hot and cold.

    Parameters
    ----------
    candidates : sequence of Candidate
        Their runs enqueue a product on CuPy's current stream.
    samples : int, optional
        Replays that are timed; 7 by default.

    Returns
    -------
    dict of str to Timing
        By the candidates' names; `cold_us` is set.
    """
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    flush = Flush()
    cupy.cuda.Device().synchronize()
    with on_stream(stream):
        times = {}
        for candidate in candidates:
            hot, method = replays(candidate.run, stream, samples or REPEATS, capturable=candidate.capturable)
            times[candidate.name] = summarize(hot, PRODUCTS, method, _cold_us(candidate.run, stream, flush))
        stream.synchronize()
    return times


class Flush:
    """A buffer four times as large as the L2, and the filling of it."""

    def __init__(self) -> None:
        import cupy

        size = max(int(cupy.cuda.Device().attributes["L2CacheSize"]), 1 << 20)
        self._buffer = cupy.zeros(size // 2, dtype=cupy.float64)

    def __call__(self) -> None:
        """Enqueue the filling."""
        self._buffer.fill(1.0)


def capture(run: Callable[[], object], stream: Stream, products: int = PRODUCTS) -> Graph | None:
    """Capture `products` runs in a CUDA graph; None where they cannot be captured."""
    stream.begin_capture()
    try:
        for _ in range(products):
            run()
    except Exception:  # whatever a library raises inside a capture, the answer is to time without a graph
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
    """Return how many products take so long on the stream, from 1 to `most`."""
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
    """Time replays of a CUDA graph of some products on the stream, which is the current one.

    Returns
    -------
    list of float
        Microseconds a product of each replay.
    str
        The method: `graph`, or `events` where the products could not be captured.
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


def _cold_us(run: Callable[[], object], stream: Stream, flush: Flush) -> float:
    """Return the median microseconds of a product that finds the L2 filled with something else."""
    empty, cold = [], []
    for _ in range(COLD_SAMPLES):
        flush()
        empty.append(between_events(lambda: None, stream))
        flush()
        cold.append(between_events(run, stream))
    return max(statistics.median(cold) - statistics.median(empty), 0.0)
