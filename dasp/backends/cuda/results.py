"""Arrays for the results of products, sooner than CuPy makes them."""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

from dasp.runtime.cuda.scratch import PER_THREAD_STREAM

MOST_BYTES = 1 << 20
"""Of a result: a larger product takes longer than its call."""

LATEST = 2
"""Results whose memory is looked at again: in `y = A @ x` the last one lives until the next is there."""


class Results:
    """Results of one matrix; an array that nobody holds any more is given out again, on the same stream.

    CuPy's pool does that with its memory, and takes three times as long to make an array of it. Other memory
    than the pool's, which may belong to a graph, is not kept.

    Parameters
    ----------
    cupy : module
    size : int
        Of a result.
    dtype : str or numpy.dtype
        What CuPy makes the type of.
    """

    def __init__(self, cupy: Any, size: int, dtype: Any) -> None:
        self._ndarray, self._pooled = cupy.ndarray, cupy.cuda.memory.PooledMemory
        self._shape, self._dtype = (size,), dtype
        self._latest: deque[tuple[int, Any, Any]] = deque([_NOTHING] * LATEST, maxlen=LATEST)

    def new(self, stream: int, owner: Any = None) -> Any:
        """Return an array, shape (size,), of any contents, to be written on CuPy's current stream.

        Parameters
        ----------
        stream : int
            CUDA's handle of the current stream.
        owner : object
            What has the handle: it is kept, so that no other stream gets it.
        """
        try:
            latest = self._latest.popleft()  # no other thread has it now
        except IndexError:
            return self._ndarray(self._shape, self._dtype)
        place, array, _ = latest
        if place == stream and getrefcount(array) == FREE[0]:
            pointer = array.data
            # Its shape may have been set.
            if getrefcount(pointer) == FREE[1] and getrefcount(pointer.mem) == FREE[2] and array.ndim == 1:
                self._latest.append(latest)
                return array
        array = self._ndarray(self._shape, self._dtype)
        kept = (
            array.nbytes <= MOST_BYTES
            and stream != PER_THREAD_STREAM
            and type(array.data.mem) is self._pooled
        )
        self._latest.append((stream, array, owner) if kept else _NOTHING)
        return array


_NOTHING = (-1, None, None)
"""In place of a stream's handle, a result and the stream."""


def _counts_when_free() -> tuple[int, int, int]:
    """Return how often an array, its pointer and its memory are counted in `new` if nobody else holds them.

    A stand-in is counted, since Python's versions differ in what a call adds.
    """
    held = deque([(0, SimpleNamespace(data=SimpleNamespace(mem=object())), None)])
    latest = held.popleft()
    _, array, _ = latest
    of_array = getrefcount(array)
    pointer = array.data
    return of_array, getrefcount(pointer), getrefcount(pointer.mem)


FREE = _counts_when_free()
