"""The operations on matrices on a GPU; `dasp.formats.csr.matrix.Operations` says what each returns."""

from __future__ import annotations

from dasp.formats.csr.cuda.sort import scan, sort_columns
from dasp.formats.csr.cuda.transpose import transpose
from dasp.runtime.cuda.device import KernelLauncher


class CudaOperations(KernelLauncher):
    """The operations on matrices on one GPU, and the launches of their kernels."""

    sort_columns, scan, transpose = sort_columns, scan, transpose
