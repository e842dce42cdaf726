"""Memory that is asked for before it is read, on the CPU."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import place_of

LINE = 64
"""Bytes of a line of the cache."""


@intrinsic
def _prefetch(typing_context, array, place):
    """Ask for the line of the cache that an array has at a place."""

    def generate(context, builder, signature, arguments):
        (array, place), byte = arguments, ir.IntType(8)
        where = place_of(context, builder, signature.args[0], array, place, byte)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), *[ir.IntType(32)] * 3])
        ask = builder.module.declare_intrinsic("llvm.prefetch", (byte.as_pointer(),), kind)
        builder.call(ask, [where, *(ir.Constant(ir.IntType(32), number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@jit(nogil=True, forceinline=True)
def fetch(numbers, first, count):
    """Ask for some numbers that will be read out of order, which the processor would not foresee."""
    for place in range(first, first + count, np.uint64(max(LINE // numbers.itemsize, 1))):
        _prefetch(numbers, place)
