"""Arrays and launches of a GPU, as the primitives of packing want them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack.sizes import SHARED_SLOTS
from dasp.formats.sell.cuda.primitives import Primitives
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import allow_shared, check, driver
from dasp.runtime.cuda.launch import Launch, Launches, Signature

ALIGNED = 256
"""Bytes to which arrays are aligned that lie in one block of memory, a power of two."""

STATIC_SHARED = 10 << 10
"""Bytes that kernels with dynamic shared memory have beside it."""

_WORD = np.dtype(np.uint64)


class _Piece:
    """Some numbers in a block of memory that kernels alone see: what CuPy's arrays know costs more than it.

    Attributes
    ----------
    block : cupy.cuda.MemoryPointer
    ptr : int
        Where they begin.
    size : int
    dtype : numpy.dtype
    """

    __slots__ = "block", "dtype", "ptr", "size"
    block: Any

    def __init__(self, ptr: int, size: int, dtype: np.dtype[Any]) -> None:
        self.ptr, self.size, self.dtype = ptr, size, dtype


class CudaDevice:
    """A `Device` of the packing's protocols: CuPy's arrays, and launches on its current stream.

    The device must be CuPy's current one in every call.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._ndarray = cupy.ndarray
        self._memory, self._stream = cupy.cuda.alloc, cupy.cuda.get_current_stream
        self._constants: dict[tuple[int, ...], Array] = {}

    @cached_property
    def _set_bytes(self) -> Callable[[int, int, int, int], int]:
        """The driver's cuMemsetD8Async: CuPy's call takes the host twice as long."""
        set_bytes = driver().cuMemsetD8Async
        set_bytes.argtypes = ctypes.c_void_p, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p
        return set_bytes

    @cached_property
    def shared_words(self) -> int:
        """Words of 4 bytes of dynamic shared memory that a block may have, up to `SHARED_SLOTS`."""
        attributes: dict[str, int] = self._cupy.cuda.Device().attributes
        return min((attributes["MaxSharedMemoryPerBlockOptin"] - STATIC_SHARED) // 4, SHARED_SLOTS)

    def is_capturing(self) -> bool:
        """Whether CuPy's current stream is captured, or was until an error."""
        try:
            return bool(self._cupy.cuda.runtime.streamIsCapturing(self._stream().ptr))
        except RuntimeError:  # CuPy's word for a capture that an error has ended
            return True

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of any contents."""
        return self._ndarray(shape, dtype)

    def zeros(self, size: int, dtype: Any) -> Array:
        """Return a new array of zeros."""
        return self._cupy.zeros(size, dtype)

    def scratch(self, *arrays: tuple[int, np.dtype[Any]]) -> list[Any]:
        """Return arrays of any contents, each of a size and a type, for kernels alone: one allocation."""
        pieces, end = [], 0
        for count, kind in arrays:
            pieces.append(_Piece(end, count, kind))
            end += count * kind.itemsize + ALIGNED - 1 & -ALIGNED  # `round_up`, without two calls
        block = self._memory(end)
        at = block.ptr
        for piece in pieces:
            piece.block = block
            piece.ptr += at
        return pieces

    def shown(self, array: Any, shape: tuple[int, ...] | None = None) -> Any:
        """Return such an array as CuPy's."""
        block = array.block
        return self._ndarray(shape or array.size, array.dtype, block + (array.ptr - block.ptr))

    def zeroed(self, count: int) -> Any:
        """Return words, 0 each, that kernels alone see."""
        (words,) = self.scratch((count, _WORD))
        code = self._set_bytes(words.ptr, 0, _WORD.itemsize * count, self._stream().ptr)
        check(code, "words were not set to 0")
        return words

    def word(self, value: Any) -> int:
        """Return what launches take for an array, an int or None, the null pointer."""
        if value is None:
            return 0
        kind = type(value)
        if kind is self._ndarray:
            value = value.data
        elif kind is not _Piece:
            return int(value) if isinstance(value, (int, np.integer)) else int(value.data.ptr)
        address: int = value.ptr
        return address

    def constant(self, numbers: tuple[int, ...]) -> Array:
        """Return an int64 array of these numbers that nobody writes to; there are few different ones."""
        array = self._constants.get(numbers)
        if array is None:
            array = self._cupy.asarray(np.array(numbers, np.int64))
            self._stream().synchronize()  # other streams may read it too
            self._constants[numbers] = array
        return array

    def first(self, numbers: Array) -> Array:
        """Return a new array with the first of some numbers; a copy of a view takes CuPy twice as long."""
        one, runtime = self._ndarray(1, numbers.dtype), self._cupy.cuda.runtime
        stream, size = self._stream().ptr, numbers.dtype.itemsize
        runtime.memcpyAsync(one.data.ptr, numbers.data.ptr, size, runtime.memcpyDeviceToDevice, stream)
        return one

    def bits(self, numbers: Array, kind: np.dtype[Any]) -> int:
        """Return what launches take for an array of numbers that kernels see as bits, of a type as wide."""
        return self.word(numbers)

    def part(self, array: Any, first: int, count: int) -> int:
        """Return what launches take for some of the numbers of an array, which it does not keep."""
        address: int = array.ptr + first * array.dtype.itemsize
        return address

    def read(self, words: Any, first: int, count: int) -> list[int]:
        """Wait for all that was launched, and return some of the words."""
        cuda, stream, nbytes = self._cupy.cuda, self._stream(), _WORD.itemsize * count
        pinned = cuda.alloc_pinned_memory(nbytes)  # of CuPy's pool
        source, to_host = words.ptr + _WORD.itemsize * first, cuda.runtime.memcpyDeviceToHost
        cuda.runtime.memcpyAsync(pinned.ptr, source, nbytes, to_host, stream.ptr)
        stream.synchronize()
        numbers: list[int] = np.frombuffer(pinned, _WORD, count).tolist()
        return numbers

    def kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Launches:
        """Return a compiled kernel."""
        function = _source.load(signature.source, constants).get_function(signature.entry)
        if signature.shared_words:
            allow_shared(function, 4 * self.shared_words)
        launch, current = Launch(function, signature, types, {}, signature.names), self._stream
        names, shared = signature.names, signature.shared_words

        def launch_on(blocks: int | tuple[int, int], threads: int, words: Mapping[str, Any]) -> None:
            grid = (blocks, 1) if isinstance(blocks, int) else blocks
            nbytes = 4 * words[shared] if shared else 0
            launch.on_grid(current().ptr, grid, threads, nbytes, *[words[name] for name in names])

        return launch_on

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other."""
        _source.load_all(wanted)


@cache
def primitives(number: int) -> Primitives:
    """Return the primitives of a GPU, which must be CuPy's current one whenever they are used."""
    return Primitives(CudaDevice())
