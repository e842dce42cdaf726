"""Slices on the CPU: the 32 lanes of a slice are summed beside each other, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

from dasp.plan import (
    BITS_8,
    BITS_16,
    FULL_SHIFT,
    LANES_MASK,
    LANES_SHIFT,
    NONE,
    PAD_8,
    PAD_16,
    PAD_32,
    STEPS_MASK,
    WARP,
    WIDTH_MASK,
    WIDTH_SHIFT,
)

_inline = njit(cache=True, nogil=True, fastmath={"contract"}, forceinline=True)


def _plain(values, table, slot):  # type: ignore[no-untyped-def]
    return table.dtype.type(values[np.uint64(slot)])


def _looked_up(values, table, slot):  # type: ignore[no-untyped-def]
    return table[np.uint64(values[np.uint64(slot)])]


@intrinsic
def _widen_half(typing_context, bits):  # type: ignore[no-untyped-def]
    """Return the float16 with these 16 bits as float32."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), emit


def _half(values, table, slot):  # type: ignore[no-untyped-def]
    return table.dtype.type(_widen_half(values[np.uint64(slot)]))


def _equal(values, table, slot):  # type: ignore[no-untyped-def]
    return table[0]


def _decode(values: Any, table: Any, slot: Any) -> Any:
    """The value of a slot, chosen at compilation by the type of what stands for it.

    Not by a function that a closure holds: Numba's disk cache never finds such a product again.
    """
    raise NotImplementedError


@overload(_decode, jit_options={"fastmath": {"contract"}, "forceinline": True})
def _choose_decoder(values, table, slot):  # type: ignore[no-untyped-def]
    if isinstance(values, types.NoneType):
        return _equal
    if values.dtype == types.uint16:
        return _half
    return _looked_up if values.dtype == types.uint8 else _plain


@_inline
def _add_steps(sums, step, steps, full, first_delta, pad, bases, deltas, values, table, x):  # type: ignore[no-untyped-def]
    # A step at a time, as they lie in memory: to sum a few lanes over all steps, in registers, would
    # skip through memory in strides that no prefetcher follows.
    for k in range(full):
        base, slot, place = (
            np.uint64(bases[np.uint64(step + k)]),
            WARP * (step + k),
            first_delta + WARP * k,
        )
        for lane in range(WARP):
            delta = np.uint64(deltas[np.uint64(place + lane)])
            sums[np.uint64(lane)] += _decode(values, table, slot + lane) * x[base + delta]
    for k in range(full, steps):
        base, slot, place = (
            np.uint64(bases[np.uint64(step + k)]),
            WARP * (step + k),
            first_delta + WARP * k,
        )
        for lane in range(WARP):
            delta = np.uint64(deltas[np.uint64(place + lane)])
            if delta != np.uint64(pad):
                sums[np.uint64(lane)] += _decode(values, table, slot + lane) * x[base + delta]


@_inline
def _add_consecutive(sums, step, steps, bases, values, table, x):  # type: ignore[no-untyped-def]
    # Lane l reads x[base + l]: the one loop that needs no gather, and that the compiler vectorises.
    for k in range(steps):
        slot, column = np.uint64(WARP * (step + k)), np.uint64(bases[np.uint64(step + k)])
        for lane in range(WARP):
            sums[np.uint64(lane)] += (
                _decode(values, table, slot + np.uint64(lane)) * x[column + np.uint64(lane)]
            )


@njit(cache=True, nogil=True, fastmath={"contract"})
def multiply_slices(  # type: ignore[no-untyped-def]
    first, last, headers, bases, bytes_of, words_of, doubles_of, values, table, rows, positions, segments,
    partials, x, y, alpha, beta,
):  # fmt: skip
    """Multiply slices `first` to `last`; `values` is None where all are equal, float16 comes as its bits."""
    sums = np.empty(WARP, x.dtype)
    for s in range(first, last):
        step, shape = np.int64(headers[s, 0]), np.int64(headers[s, 3])
        steps, full = shape & STEPS_MASK, (shape >> FULL_SHIFT) & STEPS_MASK
        shift, width = (shape >> LANES_SHIFT) & LANES_MASK, (shape >> WIDTH_SHIFT) & WIDTH_MASK
        block = WARP * np.int64(headers[s, 2])
        sums[:] = 0
        if width == NONE:
            _add_consecutive(sums, step, steps, bases, values, table, x)
        elif width == BITS_8:
            _add_steps(sums, step, steps, full, block, PAD_8, bases, bytes_of, values, table, x)
        elif width == BITS_16:
            _add_steps(sums, step, steps, full, block >> 1, PAD_16, bases, words_of, values, table, x)
        else:
            _add_steps(sums, step, steps, full, block >> 2, PAD_32, bases, doubles_of, values, table, x)
        lanes = 1 << shift
        for row in range(WARP >> shift):
            total = sums[row << shift]
            for lane in range((row << shift) + 1, (row << shift) + lanes):
                total += sums[lane]
            if s < segments:
                partials[s] = total
                continue
            position = np.int64(headers[s, 1]) + row
            if position < positions:
                mine = np.uint64(rows[position] if len(rows) else position)
                y[mine] = alpha * total if beta == 0 else alpha * total + beta * y[mine]
