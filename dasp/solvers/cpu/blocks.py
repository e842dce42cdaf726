"""Products of blocks of vectors with small matrices on the CPU, by NumPy's BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

Block = np.ndarray[Any, Any]

TILE_BYTES = 1 << 18
"""Of a block's rows that are multiplied at a time, so that the product lies in the second cache when it is
added and written."""


def gram(X: Block, Y: Block) -> np.ndarray[Any, Any]:
    """Return X.H Y in double precision, for two blocks of one type."""
    products = X.conj().T @ Y
    return products.astype(np.complex128 if products.dtype.kind == "c" else np.float64)


def set_product(out: Block, X: Block, C: np.ndarray[Any, Any], plus: Block | None = None) -> None:
    """Set `out` to X C, or X C + `plus`; `out` may be X, some columns of it, or `plus`."""
    n, k = X.shape
    C = np.ascontiguousarray(C, out.dtype)
    rows = max(1, TILE_BYTES // (out.itemsize * max(1, k)))
    for first in range(0, n, rows):
        tile = slice(first, first + rows)
        product = X[tile] @ C
        if plus is not None:
            product += plus[tile]
        out[tile] = product
