"""Arrays in half precision for a CPU: widened to float32 before a product, and rounded once after it.

NumPy takes several nanoseconds a number; the loops here have no branches, so that LLVM makes vectors of them.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.arrays import order
from dasp.runtime.cpu.compile import jit
from dasp.runtime.dtypes import BFLOAT16
from dasp.runtime.types import Vector


def widened(x: Vector) -> Vector:
    """Return numbers of float16 or bfloat16 as float32, exactly, in one run of the order of x.

    Parameters
    ----------
    x : numpy.ndarray, float16 or bfloat16
        Aligned.
    """
    near = order(x)  # not "K": what NumPy takes for that differs where strides are 0
    wide = np.empty(x.shape, np.float32, near)
    move = _widen_bfloat16 if x.dtype == BFLOAT16 else _widen_float16
    move(x.ravel(near).view(np.uint16), wide.ravel(near).view(np.uint32))
    return wide


def store_rounded(wide: Vector, y: Vector) -> None:
    """Write float32 numbers into an array of float16 or bfloat16, rounded to nearest, ties to even.

    Parameters
    ----------
    wide : numpy.ndarray, float32
    y : numpy.ndarray, of the same shape, float16 or bfloat16
        Both in one run of the same order; y aligned.
    """
    move = _round_bfloat16 if y.dtype == BFLOAT16 else _round_float16
    move(wide.ravel("K").view(np.uint32), y.ravel("K").view(np.uint16))


def bits_of_halves(numbers: Vector) -> Vector:
    """Return numbers as compiled functions take them: those of float16 as uint16, of bfloat16 as int16."""
    bits = {np.dtype(np.float16): np.uint16, BFLOAT16: np.int16}.get(numbers.dtype)
    return numbers if bits is None else numbers.view(bits)


@intrinsic
def _as_float(typing_context, bits):
    """Return the float32 of these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _as_bits(typing_context, number):
    """Return the bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


_compile = jit(nogil=True, error_model="numpy")

_SCALE, _UNITS = np.float32(2.0**112), np.float32(2.0**24)
"""The factor for the bias of float16's exponent; the inverse of its least subnormal number."""

_INFINITY, _SIGN = np.uint32(0x7F800000), np.uint32(0x8000)
_LEAST_NORMAL, _BEYOND = np.uint32(113 << 23), np.uint32(143 << 23)
"""Bits of 2^-14 and 2^16 as float32: float16's least normal number, and what is infinite there."""


@_compile
def _widen_float16(halves, bits):
    for i in range(len(halves)):
        half = np.uint32(halves[i])
        size = (half & np.uint32(0x7FFF)) << np.uint32(13)
        word = _as_bits(_as_float(size) * _SCALE)
        word |= _INFINITY if size >= np.uint32(0x7C00 << 13) else np.uint32(0)
        bits[i] = word | (half & _SIGN) << np.uint32(16)


@_compile
def _widen_bfloat16(halves, bits):
    for i in range(len(halves)):
        bits[i] = np.uint32(halves[i]) << np.uint32(16)


@_compile
def _round_float16(bits, halves):
    for i in range(len(bits)):
        word = bits[i]
        size = word & np.uint32(0x7FFFFFFF)
        # The exponent moves by 112; half a unit of the last bit that is kept, less one if that bit is even.
        odd = size >> np.uint32(13) & np.uint32(1)
        normal = (size - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
        small = np.uint32(np.rint(min(_as_float(size), np.float32(1.0)) * _UNITS))
        half = normal if size >= _LEAST_NORMAL else small
        half = np.uint32(0x7C00) if size >= _BEYOND else half
        half = np.uint32(0x7E00) if size > _INFINITY else half
        halves[i] = np.uint16(half | (word >> np.uint32(16) & _SIGN))


@_compile
def _round_bfloat16(bits, halves):
    for i in range(len(bits)):
        word = bits[i]
        odd = word >> np.uint32(16) & np.uint32(1)
        half = (word + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = word & np.uint32(0x7FFFFFFF) > _INFINITY
        halves[i] = np.uint16(np.uint32(0x7FC0) if is_nan else half)
