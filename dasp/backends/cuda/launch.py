"""Launches whose start may overlap the end of the kernel before them, which CuPy does not offer.

Such a kernel reads its own constant data while the kernel before it in the stream still runs, and waits for
it before it touches anything else (programmatic dependent launch, from compute capability 9.0). CUDA graphs
keep this.

Source: CUDA Driver API, cuLaunchKernelEx.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import numpy as np

PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CUlaunchAttributeID: the kernel may start before the one before it in the stream has ended."""

C_TYPES: dict[Any, Any] = {
    np.dtype(np.float32): ctypes.c_float,
    np.dtype(np.float64): ctypes.c_double,
    np.dtype(np.int32): ctypes.c_int32,
    np.dtype(np.int64): ctypes.c_int64,
}


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: 64 bytes of value, of which this attribute uses the first int."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Launch:
    """A kernel and all of its arguments up to x, y, alpha and beta, to be launched again and again.

    Parameters
    ----------
    kernel : cupy.RawKernel
        Compiled for the current device.
    blocks, threads : int
        Of the grid, and of a block.
    arguments : list
        CuPy arrays and NumPy scalars. The arrays are kept alive.
    scalar : dtype
        Of x, y, alpha and beta: float32 or float64.
    overlaps : bool
        Whether the kernel may start before the one before it has ended; it must then wait by itself.
    """

    def __init__(
        self,
        kernel: Any,
        blocks: int,
        threads: int,
        arguments: list[Any],
        scalar: np.dtype[Any],
        *,
        overlaps: bool,
    ) -> None:
        self._kernel = ctypes.c_void_p(kernel.kernel.ptr)
        self._attribute = _Attribute(id=PROGRAMMATIC_STREAM_SERIALIZATION)
        self._attribute.value[0] = 1
        self._config = _Config(
            (blocks, 1, 1), (threads, 1, 1), 0, None, ctypes.pointer(self._attribute), int(overlaps)
        )
        number = C_TYPES[scalar]
        self._x, self._y = ctypes.c_void_p(), ctypes.c_void_p()
        self._alpha, self._beta = number(), number()
        boxes = [_boxed(value) for value in arguments] + [self._x, self._y, self._alpha, self._beta]
        self._parameters = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        self._kept = kernel, arguments, boxes
        self._lock = threading.Lock()

    def __call__(self, stream: int, x: int, y: int, alpha: float, beta: float) -> None:
        """Launch on a stream of the current device; x and y are addresses.

        Raises
        ------
        RuntimeError
            If the driver reports an error.
        """
        with self._lock:  # several threads may share a launch
            self._config.stream = stream
            self._x.value, self._y.value, self._alpha.value, self._beta.value = x, y, alpha, beta
            status = _driver().cuLaunchKernelEx(
                ctypes.byref(self._config), self._kernel, self._parameters, None
            )
        if status:
            raise RuntimeError(f"the kernel was not launched: {_error_name(status)}")


def _boxed(value: Any) -> Any:
    """Return a kernel's argument as the C object whose address the driver takes."""
    return C_TYPES[value.dtype](value) if isinstance(value, np.generic) else ctypes.c_void_p(value.data.ptr)


def _error_name(status: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


@cache
def _driver() -> Any:
    """Return the CUDA driver, which CuPy has loaded; calls are so short that they keep Python's lock."""
    return ctypes.PyDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
