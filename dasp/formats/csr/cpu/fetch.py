"""Memory that is asked for before it is read, on the CPU."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import FIRST_LEVEL, LINE, place_of, prefetch_run


@intrinsic
def _prefetch(typing_context, array, place):
    """Ask for the line of the cache that an array has at a place."""

    def generate(context, builder, signature, arguments):
        array, place = arguments
        where = place_of(context, builder, signature.args[0], array, place, ir.IntType(8))
        prefetch_run(builder, where, 0, 1, FIRST_LEVEL)
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@jit(nogil=True, forceinline=True)
def fetch(numbers, first, count):
    """Ask for some numbers that will be read out of order, which the processor would not foresee."""
    for place in range(first, first + count, np.uint64(max(LINE // numbers.itemsize, 1))):
        _prefetch(numbers, place)
