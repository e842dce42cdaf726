"""Launches of dense kernels on CuPy's arrays, and the GPU on which they run; for gemm and gf256 alike."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import allow_shared
from dasp.runtime.types import KernelFunction

STATIC_LIMIT = 48 * 1024
"""Bytes of shared memory that a block has without asking for it."""


@functools.cache
def load_cupy() -> Any:
    """Return the module cupy, imported when it is first needed."""
    import cupy

    return cupy


# ---- the GPU, and memory on it ---------------------------------------------------------------------------


def current_device() -> int:
    """Return the number of the current GPU."""
    return int(load_cupy().cuda.runtime.getDevice())


@functools.cache
def processors(device: int) -> int:
    """Return the number of multiprocessors of a GPU."""
    return int(load_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


def using(*arrays: Any) -> AbstractContextManager[int]:
    """Return a context in which the GPU of all the arrays (or None) is current; it gives the GPU's number."""
    number = arrays[0].data.device_id
    for x in arrays:
        if x is not None and x.data.device_id != number:
            raise ValueError(
                f"arrays lie on the GPUs {number} and {x.data.device_id}; one is needed; move some of them"
            )
    return nullcontext(number) if number == current_device() else _enter_device(number)


@contextmanager
def _enter_device(number: int) -> Iterator[int]:
    with load_cupy().cuda.Device(number):
        yield number


# ---- launches --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelCall:
    """One launch of one kernel.

    Attributes
    ----------
    source : the file under kernels/
    defines : its compile-time constants, and their values
    kernel : the entry point
    grid, block : how many blocks and threads, along x and y
    arguments : NumPy scalars, and in the arrays' places their names
    shared_bytes : dynamic shared memory of a block
    sums : elements of the workspace "sums", for kernels that use one
    first_row : the row at which arrays begin, if they are in the `row_bytes` of `PreparedCalls`
    """

    source: str
    defines: tuple[tuple[str, str], ...]
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int = 0
    sums: int = 0
    first_row: int = 0


class PreparedCalls:
    """The launches of one product on the current GPU; their kernels are compiled and loaded here.

    Parameters
    ----------
    steps : sequence of KernelCall
    device : int
        The current GPU's number.
    arrays : sequence of str
        The names of arrays among the arguments, in the order in which a call takes the addresses.
    row_bytes : mapping of str to int, optional
        Bytes from row to row of the arrays that begin at a launch's `first_row`.
    """

    def __init__(
        self,
        steps: Sequence[KernelCall],
        device: int,
        arrays: Sequence[str],
        row_bytes: Mapping[str, int] | None = None,
    ) -> None:
        from cupy.cuda import driver

        self._launch = driver.launchKernel
        self._places: list[tuple[ctypes.c_void_p, int, int]] = []
        self._lock = threading.Lock()
        self._steps = []
        for step in steps:
            boxes = []
            for value in step.arguments:
                if isinstance(value, str):
                    boxes.append(ctypes.c_void_p())
                    offset = step.first_row * (row_bytes or {}).get(value, 0)
                    self._places.append((boxes[-1], arrays.index(value), offset))
                else:
                    boxes.append(np.ctypeslib.as_ctypes_type(value.dtype)(value.item()))
            parameters = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
            kernel = _load_kernel(step.source, step.defines, step.kernel, step.shared_bytes, device)
            shape = kernel.ptr, step.grid, step.block, step.shared_bytes
            self._steps.append((*shape, ctypes.addressof(parameters), (parameters, boxes)))

    def __call__(self, stream: int, *addresses: int) -> None:
        """Launch on a stream of the GPU; the addresses are those of the arrays, in their order."""
        with self._lock:  # threads may share a launch; the driver has read the arguments when it returns
            for box, place, offset in self._places:
                box.value = addresses[place] + offset
            for function, grid, block, shared, parameters, _ in self._steps:
                self._launch(function, *grid, 1, *block, 1, shared, stream, parameters, 0)


@functools.cache
def _load_kernel(
    source: str, defines: tuple[tuple[str, str], ...], kernel: str, shared: int, device: int
) -> KernelFunction:
    """Return the compiled kernel of a launch, which may use `shared` bytes of dynamic shared memory."""
    function: KernelFunction = _source.load(source, dict(defines)).get_function(kernel).kernel
    if shared > STATIC_LIMIT:
        allow_shared(function, shared)
    return function
