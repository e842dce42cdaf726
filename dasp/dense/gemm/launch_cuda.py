"""Launches that are ready but for the stream and the arrays' addresses, so that a call costs microseconds."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dasp.dense.gemm.rungs_cuda import STATIC_LIMIT, Launch
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import allow_shared

ARRAYS = ("a", "b", "c", "d", "sums")


class Prepared:
    """The launches of one product on the current GPU; their kernels are compiled and loaded here.

    Parameters
    ----------
    steps : sequence of Launch
        Of either ladder: what they have in common is read.
    device : int
        The current GPU's number.
    arrays : sequence of str
        The arrays that stand for the addresses among the arguments.
    """

    def __init__(self, steps: Sequence[Any], device: int, arrays: Sequence[str] = ARRAYS) -> None:
        from cupy.cuda import driver

        self._launch = driver.launchKernel
        self._boxes = {name: ctypes.c_void_p() for name in arrays}
        self._steps = [(*_shape(step, device), *self._parameters(step)) for step in steps]
        self._lock = threading.Lock()

    def _parameters(self, step: Launch) -> tuple[int, Any]:
        """The address of the list of the arguments' addresses, and what must live as long as it is used."""
        boxes = [self._boxes[x] if isinstance(x, str) else _boxed(x) for x in step.arguments]
        parameters = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        return ctypes.addressof(parameters), (parameters, boxes)

    def __call__(self, stream: int, *addresses: int) -> None:
        """Launch on a stream of the GPU; the addresses are those of the arrays, in their order."""
        with self._lock:  # several threads may share a launch; the driver has read all when it returns
            for box, address in zip(self._boxes.values(), addresses, strict=True):
                box.value = address
            for function, grid, block, shared, parameters, _ in self._steps:
                self._launch(function, *grid, 1, *block, 1, shared, stream, parameters, 0)


def _shape(step: Launch, device: int) -> tuple[int, tuple[int, int], tuple[int, int], int]:
    kernel = _loaded(step.source, step.defines, step.kernel, step.shared_bytes, device)
    return kernel.kernel.ptr, step.grid, step.block, step.shared_bytes


def _boxed(value: Any) -> Any:
    """A NumPy scalar as the C object whose address the driver takes."""
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


@functools.cache
def _loaded(source: str, defines: tuple[tuple[str, str], ...], kernel: str, shared: int, device: int) -> Any:
    """The compiled kernel of a launch, allowed the shared memory that it asks for."""
    function = _source.load(source, dict(defines)).get_function(kernel)
    if shared > STATIC_LIMIT:
        allow_shared(function, shared)
    return function
