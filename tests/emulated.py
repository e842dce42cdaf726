"""The device of the CUDA primitives without a GPU: NumPy arrays, and kernels that the emulator runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.simt import compile_kernels


class EmulatedDevice:
    """A `Device` of dasp/backends/cuda/primitives.py; what no kernel has written may not be read.

    Parameters
    ----------
    seed : int, optional
        Run blocks, warps and lanes in a random order.

    Attributes
    ----------
    launches : list of str
        Names of the kernels, as they were launched.
    reads : int
        Copies to the host.
    taken : int
        Bytes of all arrays.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.launches: list[str] = []
        self.reads = self.taken = 0
        self._seed = seed

    def empty(self, size: int, dtype: Any) -> Any:
        """A new array, full of what is no number of any use."""
        array = np.empty(size, dtype)
        array.view(np.uint8)[...] = 0xA5
        self.taken += array.nbytes
        return array

    def zeros(self, size: int, dtype: Any) -> Any:
        self.taken += size * np.dtype(dtype).itemsize
        return np.zeros(size, dtype)

    def constant(self, numbers: tuple[int, ...]) -> Any:
        array = np.array(numbers, np.int64)
        array.flags.writeable = False
        return array

    def read(self, array: Any) -> Any:
        self.reads += 1
        return array.copy()

    def kernel(self, signature: Any, constants: Any, types: Any) -> Any:
        module = compile_kernels(signature.source, constants)

        def launch(blocks: tuple[int, int], threads: int, arguments: dict[str, Any]) -> None:
            self.launches.append(signature.entry)
            ordered = signature.ordered(types, arguments)
            module.launch(signature.entry, grid=blocks, block=threads, args=ordered, seed=self._seed)

        return launch
