"""The operations on matrices on a GPU; `dasp.formats.csr.matrix.Operations` says what each returns."""

from __future__ import annotations

from dasp.formats.csr.cuda import sort, transpose
from dasp.formats.csr.matrix import Array, Csr
from dasp.runtime.cuda.device import KernelLauncher


class CudaOperations(KernelLauncher):
    """The operations on matrices on one GPU, and the launches of their kernels."""

    def sort_columns(self, csr: Csr) -> tuple[Csr, Array]:
        """See `Operations`."""
        return sort.sort_columns(self, csr)

    def scan(self, numbers: Array) -> Array:
        """See `Operations`."""
        return sort.scan(self, numbers)

    def transpose(self, csr: Csr) -> tuple[Csr, Array] | None:
        """See `Operations`."""
        return transpose.transpose(self, csr)
