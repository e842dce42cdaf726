"""A plan of the format of the paper on an NVIDIA GPU: vectors and diagonals."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from dasp.formats import product_cuda
from dasp.formats.dasp.cuda import diagonal, vector
from dasp.formats.product_cuda import prepare_diagonal
from dasp.runtime.cuda.launch import Launch


class Product(product_cuda.Product):
    """A plan in the format of the paper, ready to be multiplied on one GPU."""

    kernel = vector
    MADE_LATER = ("_diagonal",)

    @cached_property
    def _diagonal(self) -> Launch:
        """The launch that finds a diagonal."""
        return prepare_diagonal(diagonal, self.plan, self._kinds)

    def _find_diagonal(self, k: int, first: int, count: int) -> Any | None:
        """Return the k-th diagonal."""
        y = self._ndarray(count, self._kinds.sum)
        self._diagonal(self._current_stream().ptr, k, first, count, y.data.ptr)
        return y
