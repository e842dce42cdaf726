"""Launches of the kernels in kernels/csr/ on arrays of one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Launches, Signature
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.integers import ceil_div

COUNT = np.dtype(np.uint64)

BLOCKS, THREADS = 528, 256
"""Most blocks of a launch whose threads go through an array a grid apart, and threads of a block."""


class Launcher:
    """Launches kernels, each compiled once for the types that its source names.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._kernels: dict[Any, Launches] = {}

    def launch(
        self,
        signature: Signature,
        types: Mapping[str, np.dtype[Any]],
        blocks: int,
        threads: int = THREADS,
        **arguments: Any,
    ) -> None:
        """Launch a kernel for some types with arrays, ints or None as arguments."""
        key = signature, *((name, kind.num) for name, kind in types.items())
        kernel = self._kernels.get(key)
        if kernel is None:
            constants = {f"DASP_{name.upper()}": C_NAMES[kind] for name, kind in types.items()}
            kernel = self.device.kernel(signature, constants, {**types, "Count": COUNT})
            self._kernels[key] = kernel
        word = self.device.word
        kernel(blocks, threads, {name: word(value) for name, value in arguments.items()})


def count_blocks(count: int) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, THREADS), BLOCKS), 1)
