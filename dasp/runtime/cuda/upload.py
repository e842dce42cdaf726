"""The way of the host's arrays to a GPU."""

from __future__ import annotations

import threading
from functools import cache, partial
from typing import Any

import numpy as np

from dasp.runtime.cpu import threads as _threads
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array

PIECE, WORKERS = 4 << 20, 4
"""Bytes that are staged at a time, and threads that do: each fills a buffer while another is sent."""


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

    Pieces are copied into pinned memory by threads, while those before them are sent. What the caller gave
    may be changed as soon as this returns; the copies can be used on that stream.
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
        if workers:
            _threads.run([partial(send, worker) for worker in range(workers)])
    return targets
