"""A product by slices that leaves a dot product of y: what kernels/spmv/slices.cu takes besides for that."""

from __future__ import annotations

import numpy as np

from dasp.backends.cuda import sliced

SIGNATURE = sliced.SIGNATURE.extended("const X* w\n double* sums")

TYPES = np.dtype(np.float32), np.dtype(np.float64)
"""Of x and y."""

MOST_BLOCKS = 2048
"""Blocks of a product that leaves a dot product at most: whoever needs them adds up a sum of each.

Measured on an H200: where the sums of many blocks were added in two stages a product took 3 to 17 us longer,
more than the pass that it saved.
"""

DEFINES = {"DASP_DOT": "1"}
"""The compile-time constant for it."""
