"""Launches of the kernels in kernels/pack/ on arrays of one GPU."""

from __future__ import annotations

from dasp.formats.csr.cuda import CudaOperations
from dasp.formats.csr.cuda.sort import SUM_TILES, kinds_of
from dasp.formats.csr.matrix import Csr
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kinds import INT64
from dasp.formats.sell.pattern import Coding
from dasp.runtime.cuda.device import CudaDevice, KernelLauncher
from dasp.runtime.cuda.launch import Kinds
from dasp.runtime.sizes import ceil_div

BLOCKS = 528
"""Most blocks of a launch whose threads go through an array a grid apart: four to a multiprocessor."""


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

    def begin_loading(self, csr: Csr, coding: Coding = Coding.PLAIN) -> None:
        """Let helpers compile the kernels that most matrices of these types need, in the order of their use.

        The coding is known once the values are.
        """
        integers, stored = kinds.of_matrix(csr), kinds.of_matrix(csr, coding)
        if stored in self._ready:
            return
        self._ready.add(stored)
        usual = {
            kernels.SURVEY: integers,
            kernels.VALUE_FACTS: kinds.of_values(csr.data.dtype, len(csr.data)),
            kernels.SORT_WINDOWS: integers,
            kernels.CUT_TILES: integers,
            kernels.COUNT_SECTORS: integers,
            kernels.STORE_SLICES: stored,
            SUM_TILES: kinds_of(start=INT64),
            kernels.FILL_DELTAS: integers,
        }
        self.device.begin_loading([(signature.source, of.constants) for signature, of in usual.items()])


def count_blocks(count: int, each: int, most: int = BLOCKS) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, each), most), 1)
