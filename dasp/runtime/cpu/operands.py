"""Dense operands of a product on a CPU: transposition, widening from half precision, and rounding to it.

A product of several columns reads rows of X and writes rows of Y. Where X or Y lies by columns, a few columns
at a time are transposed, in square blocks in vector registers.

Numbers in half precision are widened to float32 before a product, and rounded once after it. NumPy takes
several nanoseconds a number, except to widen bfloat16; the loops here have no branches, so that LLVM
vectorizes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from dasp.runtime.arrays import order
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import I32, as_floats
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import BFLOAT16
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Vector

RUN_BYTES = 64
"""Most bytes of a block's side: a cache line."""

FEW = 4096
"""Numbers up to which NumPy transposes faster than compiled code is called."""

AT_ONCE = 64
"""Items of the longer side that a thread transposes at least, where several threads share the work."""


# ---- transpose ---------------------------------------------------------------------------------------


def transpose(source: Vector, target: Vector) -> None:
    """Copy the transpose of a matrix: `target[j, i] = source[i, j]`.

    Parameters
    ----------
    source : numpy.ndarray, shape (p, q)
        Each row is contiguous; the array is writable, or a view by `as_input`.
    target : numpy.ndarray, shape (q, p), of the same type
        Each row is contiguous; `target` shares no memory with `source`.
    """
    if source.size <= FEW:
        target[...] = source.T
        return
    words = ceil_div(source.itemsize, 8)
    most = min(*source.shape, RUN_BYTES // source.itemsize)
    kind = np.dtype(f"u{source.itemsize // words}")
    move = _function_of(1 << most.bit_length() - 1, words, kind)
    one, other = source.view(kind), target.view(kind)

    def work(begin: int, end: int) -> None:
        cut, part = (slice(count * begin, count * end) for count in (AT_ONCE, words * AT_ONCE))
        if len(source) < len(target):
            move(one[:, part], other[cut])
        else:
            move(one[cut], other[:, part])

    over_ranges(ceil_div(max(source.shape), AT_ONCE), source.size, work)


@intrinsic(prefer_literal=True)
def _transpose_block(typing_context, block, words, source, run, item, target):
    """Transpose a block of `block` x `block` items, each of `words` words, from (run, item) of `source`."""
    side, of_item = int(block.literal_value), int(words.literal_value)

    def generate(context, builder, signature, arguments):
        _, _, source, run, item, target = arguments
        word = context.get_data_type(signature.args[2].dtype)
        vector = ir.VectorType(word, side * of_item)

        def places(kind: types.Array, array: ir.Value, first: ir.Value, item: ir.Value) -> list[ir.Value]:
            view = context.make_array(kind)(context, builder, array)
            row = cgutils.unpack_tuple(builder, view.strides, 2)[0]
            start = builder.bitcast(view.data, ir.IntType(8).as_pointer())
            across = builder.mul(item, ir.Constant(item.type, of_item * word.width // 8))
            found = []
            for number in range(side):
                down = builder.mul(builder.add(first, ir.Constant(first.type, number)), row)
                place = builder.gep(start, [builder.add(down, across)])
                found.append(builder.bitcast(place, vector.as_pointer()))
            return found

        from_places = places(signature.args[2], source, run, item)
        rows = [builder.load(place, align=word.width // 8) for place in from_places]
        transposed = transpose_block(builder, rows, side, of_item)
        to_places = places(signature.args[5], target, item, run)
        for row, place in zip(transposed, to_places, strict=True):
            builder.store(row, place, align=word.width // 8)
        return context.get_dummy_value()

    return types.void(block, words, source, types.int64, types.int64, target), generate


def transpose_block(builder: ir.IRBuilder, rows: list[ir.Value], side: int, words: int) -> list[ir.Value]:
    """Return the columns of a square block: swap its off-diagonal quarters, then those of each quarter."""

    def chosen(one: ir.Value, other: ir.Value, items: list[int]) -> ir.Value:
        mask = [words * item + word for item in items for word in range(words)]
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(mask)), mask))

    rows, half = list(rows), side // 2
    while half:
        for upper in (row for row in range(side) if not row & half):
            pair = rows[upper], rows[upper | half]
            near = [side + (item ^ half) if item & half else item for item in range(side)]
            far = [side + item if item & half else item | half for item in range(side)]
            rows[upper], rows[upper | half] = chosen(*pair, near), chosen(*pair, far)
        half //= 2
    return rows


@functools.cache
def _function_of(block: int, words: int, kind: np.dtype[Any]) -> Callable[[Vector, Vector], None]:
    """Return a function that transposes a matrix in blocks of `block` x `block` items of `words` words."""
    word = from_dtype(kind)
    # Any strides are allowed, so that the function is compiled once for both directions.
    arrays = [types.Array(word, 2, "A")] * 2

    @jit(types.void(*arrays), nogil=True)
    def move(source, target):
        items, runs = target.shape[0], source.shape[0]
        down, across = runs // block, items // block
        # The longer side is the outer loop, so that cache lines of the shorter one are visited once.
        for outer in range(max(down, across)):
            for inner in range(min(down, across)):
                run, item = (outer, inner) if down > across else (inner, outer)
                _transpose_block(block, words, source, block * run, block * item, target)
        for run in range(runs):
            for item in range(block * across if run < block * down else 0, items):
                for word in range(words):
                    target[item, words * run + word] = source[run, words * item + word]

    return move


# ---- half precision ----------------------------------------------------------------------------------


def widen(x: Vector) -> Vector:
    """Return float16 numbers as float32, exactly, contiguous in the memory order of x.

    Parameters
    ----------
    x : numpy.ndarray, float16
        Aligned.
    """
    near = order(x)  # not "K", which NumPy's functions take differently where strides are 0
    wide = np.empty(x.shape, np.float32, near)
    _widen_float16(x.ravel(near).view(np.uint16), wide.ravel(near))
    return wide


def store_rounded(wide: Vector, y: Vector) -> None:
    """Write float32 numbers into an array of float16 or bfloat16, rounded to nearest, ties to even.

    Parameters
    ----------
    wide : numpy.ndarray, float32
    y : numpy.ndarray, of the same shape, float16 or bfloat16
        Both are contiguous in the same order; y is aligned.
    """
    move = _round_bfloat16 if y.dtype == BFLOAT16 else _round_float16
    move(wide.ravel("K"), wide.ravel("K").view(np.uint32), y.ravel("K").view(np.uint16))


def bits_of_halves(numbers: Vector) -> Vector:
    """Return numbers as compiled functions take them: float16 as uint16, bfloat16 as int16."""
    bits = {np.dtype(np.float16): np.uint16, BFLOAT16: np.int16}.get(numbers.dtype)
    return numbers if bits is None else numbers.view(bits)


@intrinsic
def _as_float(typing_context, bits):
    """Return a half-precision number, given by its bits, as float32."""

    def generate(context, builder, signature, arguments):
        none = ir.Constant(ir.VectorType(arguments[0].type, 1), ir.Undefined)
        single = builder.insert_element(none, arguments[0], ir.Constant(I32, 0))
        wide = as_floats(builder, signature.args[0], single)
        return builder.extract_element(wide, ir.Constant(I32, 0))

    return types.float32(bits), generate


_compile = jit(nogil=True, error_model="numpy")

_UNITS = np.float32(2.0**24)
"""The inverse of float16's least subnormal number."""

_INFINITY, _SIGN = np.uint32(0x7F800000), np.uint32(0x8000)
_LEAST_NORMAL, _BEYOND = np.uint32(113 << 23), np.uint32(143 << 23)
"""Bits of 2^-14 and 2^16 as float32: float16's least normal number, and what is infinite there."""


@_compile
def _widen_float16(halves, wide):
    for i in range(len(halves)):
        wide[i] = _as_float(halves[i])


@_compile
def _round_float16(wide, bits, halves):
    for i in range(len(bits)):
        word = bits[i]
        size = word & np.uint32(0x7FFFFFFF)
        # The exponent moves by 112; half a unit of the last bit that is kept, less one if that bit is even.
        odd = size >> np.uint32(13) & np.uint32(1)
        normal = (size - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
        small = np.uint32(np.rint(min(abs(wide[i]), np.float32(1.0)) * _UNITS))
        half = normal if size >= _LEAST_NORMAL else small
        half = np.uint32(0x7C00) if size >= _BEYOND else half
        half = np.uint32(0x7E00) if size > _INFINITY else half
        halves[i] = np.uint16(half | (word >> np.uint32(16) & _SIGN))


@_compile
def _round_bfloat16(wide, bits, halves):
    for i in range(len(bits)):
        word = bits[i]
        odd = word >> np.uint32(16) & np.uint32(1)
        half = (word + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = word & np.uint32(0x7FFFFFFF) > _INFINITY
        halves[i] = np.uint16(np.uint32(0x7FC0) if is_nan else half)
