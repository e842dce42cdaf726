"""A product by slices that leaves a dot product of y: the other parameters of kernels/spmv/slices.cu."""

from __future__ import annotations

import numpy as np

from dasp.formats.plan import Plan
from dasp.formats.sell.cuda import vector

SIGNATURE = vector.SIGNATURE.extended("const X* w\n double* sums\n int run")

TYPES = np.dtype(np.float32), np.dtype(np.float64)
"""Of x and y."""

MOST_BLOCKS = 2048
"""Blocks at most of a product that leaves a dot product: whoever needs it adds up a sum of each.

Of more, where slices are short, as many are launched as run at the same time, and their warps take slices by
turns. Long slices lose more by that than the pass that is saved. Measured on an H200.
"""

MOST_STEPS = 32
"""Steps of a slice, on average, up to which it pays."""

IN_TURNS = 4
"""Steps in flight where slices take turns."""

PROCESSORS = 16
"""cudaDevAttrMultiProcessorCount."""


def pays(plan: Plan, blocks: int) -> bool:
    """Return True if a product by so many blocks is to leave a dot product by itself, without a pass.

    Every block waits for its slowest warp, the longer the longer slices are: on an H200 minres takes 24.2
    microseconds an iteration for fem3:30 in slices of 39 steps, and 20.7 with a pass.
    """
    pattern = plan.pattern
    if len(pattern.bases) > MOST_STEPS * len(pattern.headers):
        return False
    return blocks <= MOST_BLOCKS or (not pattern.segments and vector.take_turns(plan))


def defines(plan: Plan, *, square: bool) -> dict[str, str]:
    """Return the compile-time constants for w'y, or for that and y'y, of a plan in slices.

    Dot products take registers too, so fewer steps are in flight wherever slices take turns.
    """
    in_flight = IN_TURNS if vector.take_turns(plan) else vector.IN_FLIGHT
    return {"DASP_DOT": "2" if square else "1", "DASP_IN_FLIGHT": str(in_flight)}
