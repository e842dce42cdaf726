"""Products over GF(2^8) by their definition: polynomials over bits, modulo x^8 + x^4 + x^3 + x^2 + 1."""

from __future__ import annotations

import numpy as np


def random_bytes(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The products of bytes, elementwise: a x^i for each bit i of b, added up."""
    power, b = np.broadcast_arrays(a.astype(int), b.astype(int))
    total = np.zeros(b.shape, int)
    for i in range(8):
        total ^= power * (b >> i & 1)
        power = power << 1 ^ 0x11D * (power >> 7)
    return total.astype(np.uint8)


EVERY = np.arange(256, dtype=np.uint8)
PRODUCT = times(EVERY[:, None], EVERY)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of two matrices."""
    out = np.zeros((a.shape[0], b.shape[1]), np.uint8)
    for k in range(a.shape[1]):
        out ^= PRODUCT[a[:, k, None], b[k]]
    return out


def rank(matrix: np.ndarray) -> int:
    """The rows that are left after elimination."""
    left, found = matrix.copy(), 0
    for column in range(matrix.shape[1]):
        pivots = np.flatnonzero(left[found:, column])
        if pivots.size:
            left[[found, found + pivots[0]]] = left[[found + pivots[0], found]]
            below = left[found + 1 :]
            # times the pivot, which is not 0, so that no row has to be divided
            below[:] = PRODUCT[below, left[found, column]] ^ PRODUCT[below[:, column, None], left[found]]
            found += 1
    return found
