"""The CUDA driver, called through ctypes, for what CuPy does not offer.

Its calls let go of Python's lock: a launch waits while the stream's queue is full, perhaps for a Python
function that the stream has to call.

Source: CUDA Driver API.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache

from dasp.runtime.types import KernelFunction

MOST_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


@cache
def driver() -> ctypes.CDLL:
    """Return the driver's library, which CuPy has loaded."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def check(status: int, problem: str) -> None:
    """Raise RuntimeError with the driver's name of the error if a status is not 0."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(text))
        raise RuntimeError(f"{problem}: {(text.value or b'unknown error').decode()}")


_shared_bytes: dict[int, int] = {}
"""Dynamic shared memory that blocks of a kernel may have, by the driver's handle, once somebody asked."""

_shared_lock = threading.Lock()


def allow_shared(kernel: KernelFunction, nbytes: int) -> None:
    """Let blocks of a compiled kernel have so much dynamic shared memory, and no less than before.

    Raises
    ------
    RuntimeError
        If the driver reports an error: a multiprocessor has less.

    Notes
    -----
    All launches of a kernel share one limit, those too that were prepared when it was higher.
    """
    with _shared_lock:
        if nbytes <= _shared_bytes.get(kernel.ptr, 0):
            return
        status = driver().cuFuncSetAttribute(ctypes.c_void_p(kernel.ptr), MOST_SHARED_BYTES, nbytes)
        check(status, f"a block cannot have {nbytes} bytes of shared memory")
        _shared_bytes[kernel.ptr] = nbytes


def count_resident_blocks(kernel: KernelFunction, threads: int) -> int:
    """Return how many blocks of a compiled kernel a multiprocessor holds, without dynamic shared memory.

    Raises
    ------
    RuntimeError
        If the driver reports an error.
    """
    blocks = ctypes.c_int()
    status = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks), ctypes.c_void_p(kernel.ptr), threads, ctypes.c_size_t(0)
    )
    check(status, "the blocks that a multiprocessor holds are not known")
    return blocks.value
