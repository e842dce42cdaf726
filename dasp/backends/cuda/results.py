"""New arrays for the results of products, sooner than CuPy's memory pool gives them."""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

from dasp.backends.cuda.scratch import PER_THREAD_STREAM

MOST_BYTES = 1 << 20
"""Of a result: a larger product takes longer than its call."""

LATEST = 2
"""Results whose memory is looked at again: in `y = A @ x` the last one lives until the next is there."""


class Results:
    """Results of one matrix; memory that nobody holds any more is given out again, on the same stream.

    That is what CuPy's pool does with it, which takes 0.6 us more. Other memory than the pool's, which may
    belong to a graph, is not kept.

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
        self._latest: deque[tuple[int, Any, Any]] = deque([(0, None, None)] * LATEST, maxlen=LATEST)

    def new(self, stream: int) -> Any:
        """Return a new array, shape (size,), of any contents, to be written on CuPy's current stream.

        Parameters
        ----------
        stream : int
            CUDA's handle of the current stream.
        """
        try:
            place, pointer, memory = self._latest.popleft()  # no other thread has it now
        except IndexError:
            return self._ndarray(self._shape, self._dtype)
        if place == stream and getrefcount(pointer) == FREE[0] and getrefcount(memory) == FREE[1]:
            array = self._ndarray(self._shape, self._dtype, pointer)
        else:
            array = self._ndarray(self._shape, self._dtype)
            pointer = array.data
            memory = pointer.mem
            small = array.nbytes <= MOST_BYTES
            if not small or stream == PER_THREAD_STREAM or type(memory) is not self._pooled:
                stream, pointer, memory = 0, None, None
        self._latest.append((stream, pointer, memory))
        return array


def _counts_when_free() -> tuple[int, int]:
    """Return how often a pointer and its memory are counted in `new` if nobody else holds them.

    A stand-in is counted, since Python's versions differ in what a call adds.
    """
    memory = object()
    latest = deque([(SimpleNamespace(mem=memory), memory)])
    del memory
    pointer, memory = latest.popleft()
    return getrefcount(pointer), getrefcount(memory)


FREE = _counts_when_free()
