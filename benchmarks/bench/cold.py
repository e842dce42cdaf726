"""Times of products that find nothing of theirs in the L2 cache.

Before each product a buffer of four times the L2 is overwritten, which takes longer than the host needs to
enqueue the product, so that only the product lies between the events. The cost of two events with nothing
between them is taken off. The overwritten lines have to be written back while the product runs, so this is
the harsher kind of cold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dasp.cli.timing import Candidate, Timing, between_events
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.types import Stream

SAMPLES = 15


@dataclass(frozen=True)
class ColdTiming(Timing):
    """The time of one product, and that of one that finds nothing in the cache.

    Attributes
    ----------
    cold_us : float
        Microseconds.
    """

    cold_us: float = math.nan


def add_cold(found: dict[str, Timing], candidates: Sequence[Candidate]) -> dict[str, Timing]:
    """Return timings of candidates on the current GPU with the times of cold products beside them."""
    import cupy

    stream, flush = cupy.cuda.Stream(non_blocking=True), Flush()
    cupy.cuda.Device().synchronize()
    with on_stream(stream):
        return {
            each.name: ColdTiming(**vars(found[each.name]), cold_us=_cold_us(each.run, stream, flush))
            for each in candidates
        }


class Flush:
    """A buffer four times as large as the L2, and the filling of it."""

    def __init__(self) -> None:
        import cupy

        size = max(int(cupy.cuda.Device().attributes["L2CacheSize"]), 1 << 20)
        self._buffer = cupy.zeros(size // 2, dtype=cupy.float64)

    def __call__(self) -> None:
        """Enqueue the filling."""
        self._buffer.fill(1.0)


def _cold_us(run: Callable[[], object], stream: Stream, flush: Flush) -> float:
    """Return the median microseconds of a product that finds the L2 filled with something else."""
    empty, cold = [], []
    for _ in range(SAMPLES):
        flush()
        empty.append(between_events(lambda: None, stream))
        flush()
        cold.append(between_events(run, stream))
    return max(statistics.median(cold) - statistics.median(empty), 0.0)
