"""A plan of the format of the paper on an NVIDIA GPU."""

from __future__ import annotations

from dasp.formats import product_cuda
from dasp.formats.dasp.cuda import vector


class DaspCudaProduct(product_cuda.CudaProduct):
    """A plan in the format of the paper, ready to be multiplied on one GPU."""

    kernel = vector
