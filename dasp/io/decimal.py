"""Decimal numbers to the nearest float64, compiled.

The method is that of Lemire, "Number parsing at a gigabyte per second", Software: Practice and Experience
51 (2021), doi:10.1002/spe.2984, without the fallback that Mushtak and Lemire proved needless, "Fast number
parsing without fallback" (2023), doi:10.1002/spe.3198: a decimal w 10^q with w < 2^64 is the 64-bit w times a
128-bit approximation of 5^q, and the leading bits of that product decide the rounding.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import jit

LEAST_POWER, MOST_POWER = -342, 308
"""Every w 10^q with q below is 0 in float64, and above beyond it unless w is 0."""

INFINITY = np.uint64(0x7FF << 52)
"""The bits of infinity: the result for a number beyond float64."""

_MANTISSA_BITS = 52
_LEAST_EXPONENT = -1023
_PRECISION_MASK = np.uint64(2**64 - 1 >> _MANTISSA_BITS + 3)
# w 10^q can lie exactly between two floats only for these q (section 6 of the first paper).
_TIES_FROM, _TIES_TO = -4, 23

# Reciprocals of powers that a 64-bit number may be divisible by are rounded up (section 5).
_ROUNDED_UP_FROM = -27

_inline = jit(nogil=True, forceinline=True)


@functools.cache
def powers_of_five() -> np.ndarray[Any, Any]:
    """Return the leading 128 bits of 5^q for q from LEAST_POWER to MOST_POWER.

    Returns
    -------
    numpy.ndarray, shape (651, 2), uint64
        High and low half, the highest bit set; rounded down, and up for q from -27 to -1.
    """
    table = np.empty((MOST_POWER - LEAST_POWER + 1, 2), np.uint64)
    for q in range(LEAST_POWER, MOST_POWER + 1):
        power = 5 ** abs(q)
        if q >= 0:
            bits = power << 128 >> power.bit_length()
        else:
            bits = (1 << 127 + (power - 1).bit_length()) // power + (q >= _ROUNDED_UP_FROM)
        table[q - LEAST_POWER] = bits >> 64, bits & 2**64 - 1
    return table


@intrinsic
def _multiply(typing, a, b):  # type: ignore[no-untyped-def]
    """Return the high and the low half of the 128-bit product of two uint64."""

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.lshr(product, ir.Constant(wide, 64))
        halves = [builder.trunc(part, ir.IntType(64)) for part in (high, product)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), build


@intrinsic
def _leading_zeros(typing, w):  # type: ignore[no-untyped-def]
    """Return how many of the highest bits of a uint64 are 0."""

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), build


@_inline
def nearest_bits(w, q, powers):  # type: ignore[no-untyped-def]
    """Return the bits of the float64 nearest to w 10^q, ties to even; `INFINITY` if there is none.

    Parameters
    ----------
    w : uint64
    q : int64
    powers : numpy.ndarray, shape (651, 2), uint64
        Of `powers_of_five`.
    """
    if w == 0 or q < LEAST_POWER:
        return np.uint64(0)
    if q > MOST_POWER:
        return INFINITY
    zeros = _leading_zeros(w)
    shifted = w << zeros
    high, low = _multiply(shifted, powers[q - LEAST_POWER, 0])
    if high & _PRECISION_MASK == _PRECISION_MASK:
        more, _ = _multiply(shifted, powers[q - LEAST_POWER, 1])
        low += more
        if low < more:
            high += np.uint64(1)
    top = high >> np.uint64(63)
    drop = top + np.uint64(64 - _MANTISSA_BITS - 3)
    mantissa = high >> drop
    # 217706 / 2^16 is log2(10), near enough for every q here.
    exponent = (217706 * q >> 16) + 63 + np.int64(top) - np.int64(zeros) - _LEAST_EXPONENT
    if exponent <= 0:
        return _subnormal(mantissa, exponent)
    tie = low <= 1 and _TIES_FROM <= q <= _TIES_TO and mantissa & np.uint64(3) == 1
    if tie and mantissa << drop == high:
        mantissa &= ~np.uint64(1)
    mantissa = mantissa + (mantissa & np.uint64(1)) >> np.uint64(1)
    if mantissa >= np.uint64(2 << _MANTISSA_BITS):
        mantissa = np.uint64(1 << _MANTISSA_BITS)
        exponent += 1
    if exponent >= 0x7FF:
        return INFINITY
    return np.uint64(exponent) << np.uint64(_MANTISSA_BITS) | mantissa & np.uint64((1 << _MANTISSA_BITS) - 1)


@_inline
def _subnormal(mantissa, exponent):  # type: ignore[no-untyped-def]
    if 1 - exponent >= 64:
        return np.uint64(0)
    mantissa >>= np.uint64(1 - exponent)
    # Rounding up to 2^52 makes the least normal number, whose bits these are too.
    return mantissa + (mantissa & np.uint64(1)) >> np.uint64(1)
