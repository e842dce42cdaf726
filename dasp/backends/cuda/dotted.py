"""A product by slices that leaves dot products of y: what kernels/spmv/slices.cu takes besides for that."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.backends.cuda import sliced

SIGNATURE = sliced.SIGNATURE.extended(
    """
    const X*              w
    double*               parts
    unsigned*             arrived
    double*               sums
    int                   group
    """
)

TYPES = np.dtype(np.float32), np.dtype(np.float64)
"""Of x and y."""

MOST_SUMS, FEW_SUMS = 2048, 512
"""Sums that are left as blocks made them, and those that groups of blocks make of more."""


def defines(dots: int) -> dict[str, str]:
    """Return the compile-time constants for so many dot products."""
    return {"DASP_DOTS": str(dots)}


def arrays(blocks: int, dots: int, module: Any = np) -> tuple[int, dict[str, Any]]:
    """Return the blocks of a group, and the arrays that the kernel writes; see kernels/spmv/dots.cuh."""
    group = 1 if blocks <= MOST_SUMS else -(-blocks // FEW_SUMS)
    groups, staged = -(-blocks // group), blocks if group > 1 else 0
    made = {
        "parts": module.zeros(max(1, dots * staged), np.float64),
        "arrived": module.zeros(groups, np.uint32),
        "sums": module.zeros(dots * groups, np.float64),
    }
    return group, made
