"""A plan of the format of the paper on an NVIDIA GPU: vectors and diagonals."""

from __future__ import annotations

from typing import Any

from dasp.formats import product_cuda
from dasp.formats.dasp.cuda import diagonal, vector


class Product(product_cuda.Product):
    """A plan in the format of the paper, ready to be multiplied on one GPU."""

    kernel = vector
    diagonal_kernel = diagonal

    def _find_diagonal(self, k: int, first: int, count: int) -> Any | None:
        """Return the k-th diagonal."""
        y = self._ndarray(count, self._kinds.sum)
        self._diagonal(self._current_stream().ptr, k, first, count, y.data.ptr)
        return y
