"""Launches of the kernels in kernels/pack/ on arrays of one GPU."""

from __future__ import annotations

from dasp.formats.csr.cuda.kernels import SUM_TILES
from dasp.formats.csr.cuda.operations import CudaOperations
from dasp.formats.csr.matrix import Csr
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kinds import INT64
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda.device import CudaDevice, KernelLauncher
from dasp.runtime.cuda.launch import Kinds
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.integers import ceil_div

BLOCKS = 528
"""Most blocks of a launch whose threads go through an array a grid apart: four to a multiprocessor."""

USUAL = kernels.SURVEY, kernels.SORT_WINDOWS, kernels.CUT_TILES, kernels.COUNT_SECTORS, kernels.FILL_DELTAS
"""A kernel of each source that most matrices need and that knows their integers alone."""


class Launcher(KernelLauncher):
    """Launches kernels of packing.

    Parameters
    ----------
    device : CudaDevice

    Attributes
    ----------
    operations : CudaOperations
        On matrices, on the same device.
    """

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.operations = CudaOperations(device)
        self._ready: set[Kinds] = set()

    def compile_usual(self, csr: Csr) -> None:
        """Compile the kernels that most matrices of these types need beside each other, not in turn."""
        integers, stored = kinds.of_matrix(csr), kinds.of_matrix(csr, Coding.PLAIN)
        if stored in self._ready:
            return
        self._ready.add(stored)
        values = kinds.of_values(csr.data.dtype, len(csr.data))
        self.device.load_all(
            [
                *((signature.source, integers.constants) for signature in USUAL),
                (kernels.VALUE_FACTS.source, values.constants),
                (SUM_TILES.source, {"DASP_START": C_NAMES[INT64]}),
                (kernels.STORE_SLICES.source, stored.constants),
            ]
        )


def count_blocks(count: int, each: int, most: int = BLOCKS) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, each), most), 1)
