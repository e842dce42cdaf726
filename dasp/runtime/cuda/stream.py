"""Streams of a GPU: changes of the current stream, branches beside it, and uploads on it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from dasp.runtime.cpu import threads as _threads
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array, Stream

HIGHEST = -5
"""Priority of a branch: its few blocks run before the waiting blocks of a large kernel. Lower is earlier;
CUDA clamps it."""

PER_THREAD_STREAM = 2
"""CUDA's handle of the default stream of the calling host thread."""

_numbers = itertools.count()


class _Thread(threading.local):
    """A unique number for each thread: Python reuses the identities of threads that have ended."""

    def __init__(self) -> None:
        self.number = next(_numbers)


THIS_THREAD = _Thread()


@contextmanager
def on_stream(stream: Stream) -> Iterator[Stream]:
    """Make a stream the current one of its GPU, and restore the caller's afterwards.

    CuPy's own `with stream:` goes back to the stream of the `with` around it and so forgets a stream that the
    caller chose by `stream.use()`: what the caller launches next would run beside the caller's earlier work.
    CuPy's functions with such a `with` inside forget a stream that was chosen by `use` alone, too.

    Parameters
    ----------
    stream : Stream
        A stream of the current device.

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
    """A stream of the current device beside CuPy's current one; each can wait for the other.

    Its few blocks need not wait until a large kernel leaves room. In `with` it is CuPy's current stream.
    """

    def __init__(self) -> None:
        import cupy

        self._current = cupy.cuda.get_current_stream
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=HIGHEST)
        self._begun, self._ended = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def begin(self) -> None:
        """Let the branch wait for all launches on the current stream so far."""
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
        """Mark the launches on the branch so far as those that `join` waits for."""
        self._ended.record(self._stream)

    def join(self) -> None:
        """Let the current stream wait for the branch's launches before the last `end`."""
        self._current().wait_event(self._ended)


# ---- uploads -----------------------------------------------------------------------------------------

PIECE, WORKERS = 4 << 20, 4
"""Bytes that are staged at a time, and threads that stage them: each fills a buffer while another is sent."""


class _Staging:
    """Pinned memory through which arrays go to GPUs, one caller at a time."""

    def __init__(self) -> None:
        import cupy

        self.lock = threading.Lock()
        self.buffers = [
            np.frombuffer(cupy.cuda.alloc_pinned_memory(PIECE), np.uint8, PIECE) for _ in range(2 * WORKERS)
        ]


@cache
def _staging() -> _Staging:
    return _Staging()


def upload(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Copy contiguous arrays to the current GPU, on CuPy's current stream.

    Threads copy pieces into pinned memory while earlier pieces are sent. The caller may change the arrays as
    soon as this returns, and use the copies on that stream.
    """
    import cupy

    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()
    targets = tuple(cupy.empty(array.shape, array.dtype) for array in arrays)
    pieces = [
        (array.reshape(-1).view(np.uint8)[begin : begin + PIECE], target.data.ptr + begin)
        for array, target in zip(arrays, targets, strict=True)
        for begin in range(0, array.nbytes, PIECE)
    ]
    staging = _staging()
    workers = min(WORKERS, ceil_div(sum(array.nbytes for array in arrays), PIECE))

    def send(worker: int) -> None:
        events: list[Any] = [None, None]
        with device:
            for nth, (piece, address) in enumerate(pieces[worker::workers]):
                if events[nth % 2]:
                    events[nth % 2].synchronize()
                buffer = staging.buffers[2 * worker + nth % 2][: len(piece)]
                np.copyto(buffer, piece)
                cupy.cuda.runtime.memcpyAsync(
                    address, buffer.ctypes.data, len(piece), cupy.cuda.runtime.memcpyHostToDevice, stream.ptr
                )
                events[nth % 2] = stream.record()
            for event in filter(None, events):
                event.synchronize()

    with staging.lock:
        _threads.run([partial(send, worker) for worker in range(workers)], workers)
    return targets
