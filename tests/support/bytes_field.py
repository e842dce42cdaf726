"""GF(2^8) by galois, which compiles for seconds and so is imported only when it is first used."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def find_field() -> Any:
    """Return the field modulo x^8 + x^4 + x^3 + x^2 + 1."""
    import galois

    return galois.GF(2**8, irreducible_poly=0x11D)


@cache
def products() -> np.ndarray:
    """Return the products of all pairs of bytes, shape (256, 256)."""
    every = find_field()(np.arange(256, dtype=np.uint8))
    return np.asarray(every[:, None] * every)


def random_bytes(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of two matrices, by the table of galois."""
    out = np.zeros((a.shape[0], b.shape[1]), np.uint8)
    for k in range(a.shape[1]):
        out ^= products()[a[:, k, None], b[k]]
    return out
