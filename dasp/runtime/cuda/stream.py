"""Streams of a GPU: the current one for a while, and one that runs beside it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dasp.runtime.types import Stream

HIGHEST = -5
"""Priority of a stream beside others: its few blocks run before those of a large kernel that wait. Lower is
earlier; CUDA clamps it."""


PER_THREAD_STREAM = 2
"""CUDA's handle of the default stream that every host thread has of its own."""

_numbers = itertools.count()


class _Thread(threading.local):
    """The number of a thread, which no other has: Python gives the identity of one that has ended again."""

    def __init__(self) -> None:
        self.number = next(_numbers)


THIS_THREAD = _Thread()


@contextmanager
def on_stream(stream: Stream) -> Iterator[Stream]:
    """Make a stream the current one of its GPU, and the caller's again afterwards.

    CuPy's own `with stream:` goes back to the stream of the `with` around it and so forgets a stream that the
    caller chose by `stream.use()`: what the caller launches next would run beside the caller's earlier work.
    CuPy's functions that have such a `with` inside forget one that was chosen by `use` alone, too.

    Parameters
    ----------
    stream : Stream
        Of the current device.

    Yields
    ------
    Stream
    """
    import cupy

    before = cupy.cuda.get_current_stream()
    try:
        with stream:
            yield stream
    finally:
        before.use()


class Branch:
    """A stream beside CuPy's current one, of the current device, that follows it and is followed by it.

    Its few blocks need not wait until a large kernel leaves room. In `with` it is CuPy's current stream.
    """

    def __init__(self) -> None:
        import cupy

        self._current = cupy.cuda.get_current_stream
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        self._begun, self._ended = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def begin(self) -> None:
        """Let it wait for all launches on the current stream so far."""
        self._begun.record(self._current())
        self._stream.wait_event(self._begun)

    def __enter__(self) -> Stream:
        self._before: Stream = self._current()
        stream: Stream = self._stream.__enter__()
        return stream

    def __exit__(self, *failure: object) -> None:
        self._stream.__exit__(*failure)
        self._before.use()

    def end(self) -> None:
        """Mark the launches on it so far as those that `join` waits for."""
        self._ended.record(self._stream)

    def join(self) -> None:
        """Let the current stream wait for the launches on it before the last `end`."""
        self._current().wait_event(self._ended)
