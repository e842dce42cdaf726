"""Slices on the CPU: the 32 lanes of a slice are summed beside each other, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

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
    Coding,
)

_inline = njit(cache=True, nogil=True, fastmath={"contract"}, forceinline=True)


@_inline
def _plain(values, table, slot):  # type: ignore[no-untyped-def]
    return table.dtype.type(values[np.uint64(slot)])


@_inline
def _looked_up(values, table, slot):  # type: ignore[no-untyped-def]
    return table[np.uint64(values[np.uint64(slot)])]


@_inline
def _equal(values, table, slot):  # type: ignore[no-untyped-def]
    return table[0]


def _multiplier(value: Any) -> Any:
    """Return the product of slices whose values `value` decodes."""

    @_inline
    def add_steps(sums, step, steps, full, first_delta, pad, bases, deltas, values, table, x):  # type: ignore[no-untyped-def]
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
                sums[np.uint64(lane)] += value(values, table, slot + lane) * x[base + delta]
        for k in range(full, steps):
            base, slot, place = (
                np.uint64(bases[np.uint64(step + k)]),
                WARP * (step + k),
                first_delta + WARP * k,
            )
            for lane in range(WARP):
                delta = np.uint64(deltas[np.uint64(place + lane)])
                if delta != np.uint64(pad):
                    sums[np.uint64(lane)] += value(values, table, slot + lane) * x[base + delta]

    @_inline
    def add_consecutive(sums, step, steps, bases, values, table, x):  # type: ignore[no-untyped-def]
        # Lane l reads x[base + l]: the one loop that needs no gather, and that the compiler vectorises.
        for k in range(steps):
            slot, column = np.uint64(WARP * (step + k)), np.uint64(bases[np.uint64(step + k)])
            for lane in range(WARP):
                sums[np.uint64(lane)] += (
                    value(values, table, slot + np.uint64(lane)) * x[column + np.uint64(lane)]
                )

    @njit(cache=True, nogil=True, fastmath={"contract"})
    def multiply_slices(  # type: ignore[no-untyped-def]
        first, last, headers, bases, bytes_of, words_of, doubles_of, values, table, rows, positions, segments,
        partials, x, y, alpha, beta,
    ):  # fmt: skip
        sums = np.empty(WARP, x.dtype)
        for s in range(first, last):
            step, shape = np.int64(headers[s, 0]), np.int64(headers[s, 3])
            steps, full = shape & STEPS_MASK, (shape >> FULL_SHIFT) & STEPS_MASK
            shift, width = (shape >> LANES_SHIFT) & LANES_MASK, (shape >> WIDTH_SHIFT) & WIDTH_MASK
            block = WARP * np.int64(headers[s, 2])
            sums[:] = 0
            if width == NONE:
                add_consecutive(sums, step, steps, bases, values, table, x)
            elif width == BITS_8:
                add_steps(sums, step, steps, full, block, PAD_8, bases, bytes_of, values, table, x)
            elif width == BITS_16:
                add_steps(sums, step, steps, full, block >> 1, PAD_16, bases, words_of, values, table, x)
            else:
                add_steps(sums, step, steps, full, block >> 2, PAD_32, bases, doubles_of, values, table, x)
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

    return multiply_slices


MULTIPLIERS = {
    Coding.PLAIN: _multiplier(_plain),
    Coding.SINGLE: _multiplier(_plain),
    Coding.BYTE: _multiplier(_plain),
    Coding.DICTIONARY: _multiplier(_looked_up),
    Coding.EQUAL: _multiplier(_equal),
}
"""The compiled product of slices for each coding of their values."""
