"""Arrays and launches of a GPU, as the primitives of packing want them, and the way of arrays to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from dasp import _source, _threads
from dasp._integers import ceil_div
from dasp._launch import Kernel, Signature
from dasp.backends.cuda.primitives import Primitives
from dasp.formats.array import Array

PIECE, WORKERS = 4 << 20, 4
"""Bytes that are staged at a time, and threads that do: each fills a buffer while another is sent."""


LEAST_PINNED = 4096
"""Bytes of a piece of memory through which numbers come to the host."""


class _Pinned(NamedTuple):
    """Memory that a GPU copies to: its bytes, where they are, and what tells that the copy is there."""

    bytes: np.ndarray[Any, Any]
    address: int
    copied: Any


class CudaDevice:
    """A `Device` of `dasp.backends.cuda.primitives`: CuPy's arrays, and launches on its current stream.

    The device must be CuPy's current one in every call.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._constants: dict[tuple[int, ...], Array] = {}
        self._pinned: list[_Pinned] = []
        self._kept: list[_Pinned] = []

    def empty(self, size: int, dtype: Any) -> Array:
        """Return a new array of any contents."""
        return self._cupy.empty(size, dtype)

    def zeros(self, size: int, dtype: Any) -> Array:
        """Return a new array of zeros."""
        return self._cupy.zeros(size, dtype)

    def constant(self, numbers: tuple[int, ...]) -> Array:
        """Return an int64 array of these numbers that nobody writes to; there are few different ones."""
        if numbers not in self._constants:
            array = self._cupy.asarray(np.array(numbers, np.int64))
            self._cupy.cuda.get_current_stream().synchronize()  # other streams may read it too
            self._constants[numbers] = array
        return self._constants[numbers]

    def reading(self, array: Array) -> Callable[[], np.ndarray[Any, Any]]:
        """Begin a copy to the host, of what was launched before; return what waits for it and returns it."""
        size, pinned = array.nbytes, self._take_pinned(array.nbytes)
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        runtime.memcpyAsync(
            pinned.address, array.data.ptr, size, self._cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr
        )
        pinned.copied.record(stream)

        def finish() -> np.ndarray[Any, Any]:
            pinned.copied.synchronize()
            copy: np.ndarray[Any, Any] = pinned.bytes[:size].view(array.dtype).copy()
            self._pinned.append(pinned)
            return copy

        return finish

    def _take_pinned(self, size: int) -> _Pinned:
        """Return pinned memory that no copy goes to; any other memory would be copied through such."""
        try:
            pinned = self._pinned.pop()  # threads do not wait for each other
            if len(pinned.bytes) >= size:
                return pinned
        except IndexError:
            pass
        room = max(size, LEAST_PINNED)
        memory = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(room), np.uint8, room)
        event = self._cupy.cuda.Event(disable_timing=True)
        pinned = _Pinned(memory, memory.ctypes.data, event)
        self._kept.append(pinned)  # whoever never waits for a copy leaves it on its way
        return pinned

    def kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Callable[[tuple[int, int], int, dict[str, Any]], None]:
        """Return a compiled kernel; None among its arguments is a null pointer."""
        function = _source.load(signature.source, constants).get_function(signature.entry)
        launch, current = Kernel(function, signature, types), self._cupy.cuda.get_current_stream

        def launch_now(blocks: tuple[int, int], threads: int, arguments: dict[str, Any]) -> None:
            launch(current().ptr, blocks, threads, arguments)

        return launch_now

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other."""
        _source.load_all(wanted)


@cache
def primitives(number: int) -> Primitives:
    """Return the primitives of a GPU, which must be CuPy's current one whenever they are used."""
    return Primitives(CudaDevice())


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


def upload(arrays: tuple[np.ndarray[Any, Any], ...]) -> tuple[Array, ...]:
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
