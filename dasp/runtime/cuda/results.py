"""Arrays for results, several cut from one block: CuPy takes three times as long to allocate each."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.runtime.cuda.scratch import PER_THREAD_STREAM
from dasp.runtime.integers import round_up

MOST_BYTES = 1 << 16
"""Of a result that is cut from a block: the kernel of a larger product takes longer than its call."""

PIECES = 8
"""Results of a block, whose memory is given back when nobody holds one of them any more."""

ALIGNMENT = 512
"""Bytes to which CuPy's pool aligns memory."""


class Results:
    """Allocates the results of one matrix.

    A piece is given out once. It is for the stream on which its block was allocated, because the pool gives
    memory to that stream again without waiting; and for the allocator that was current, which may be the
    caller's own. Only memory of a pool is cut: other memory may belong to a graph.

    Parameters
    ----------
    cupy : module
    size : int
        Elements of a result.
    dtype : dtype or str
    """

    def __init__(self, cupy: Any, size: int, dtype: np.dtype[Any] | str) -> None:
        self._cupy, self._ndarray, self._find_allocator = cupy, cupy.ndarray, cupy.cuda.get_allocator
        self._size, self._dtype = size, dtype
        self._nbytes: int = round_up(size * np.dtype(dtype).itemsize, ALIGNMENT)
        self._latest: tuple[int, Any, list[Any]] = -1, None, []

    def new(self, stream: int) -> Any:
        """Return an array of shape (size,) with any contents, to be written on the current stream.

        Parameters
        ----------
        stream : int
            CUDA's handle of the current stream.
        """
        place, allocator, pieces = self._latest
        if place == stream and allocator is self._find_allocator():
            try:
                return self._ndarray(self._size, self._dtype, pieces.pop())  # which no other thread has now
            except IndexError:
                pass
        y = self._ndarray(self._size, self._dtype)
        if self._is_cut(stream, y.data.mem):
            block = self._ndarray((PIECES - 1) * self._nbytes, "B").data
            pieces = [block + k * self._nbytes for k in range(PIECES - 1)]
            self._latest = stream, self._find_allocator(), pieces
        return y

    def _is_cut(self, stream: int, memory: Any) -> bool:
        """Return True if later results for a stream may be cut from memory of the kind of this."""
        cuda = self._cupy.cuda
        return (
            0 < self._nbytes <= MOST_BYTES
            and stream != PER_THREAD_STREAM
            and type(memory) is cuda.memory.PooledMemory
            and not cuda.runtime.streamIsCapturing(stream)  # where no memory may be had but what is free
        )
