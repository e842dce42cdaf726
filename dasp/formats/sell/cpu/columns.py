"""The columns of slices on the CPU: the least one of every step, and the others as deltas from it."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from dasp.formats.cost import MOST_STEPS
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, narrowest
from dasp.formats.sell.cpu.lanes import copy_rows, measure_step, store_deltas
from dasp.formats.sell.pattern import (
    BITS_8,
    BITS_16,
    BITS_32,
    NONE,
    PAD_8,
    PAD_16,
    PAD_32,
    shape_word,
)
from dasp.formats.sell.primitives import Layout
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import at
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.sizes import new_array

Vector = np.ndarray[Any, Any]

STEPS_AT_ONCE = 1 << 13
"""Steps whose deltas, of up to 128 bytes each, are written before they are copied to where they belong."""


def store_columns(csr: Csr, layout: Layout) -> tuple[Vector, Vector]:
    """Return the bases and deltas of `dasp.formats.sell.primitives.Primitives.store`."""
    slices, runs = layout.detail
    first_steps = layout.headers[:, 0].astype(np.int64)
    bases = np.empty(layout.steps, narrowest(max(csr.shape)))
    widths = np.empty(layout.slices, np.uint8)
    arrays = *slices, *runs, csr.indices, first_steps, bases, widths

    def pack(begin: int, end: int) -> list[Vector]:
        """Return the deltas of some slices in pieces."""
        room = np.empty(4 * WARP * (STEPS_AT_ONCE + MOST_STEPS), np.uint8)
        block = np.empty(WARP * MOST_STEPS, np.uint32)
        pieces = []
        while begin < end:
            begin, size = _pack_columns(*arrays, block, room, begin, end)
            pieces.append(room[:size].copy())
        return pieces

    pieces = list(chain.from_iterable(over_ranges(layout.slices, len(csr.indices), pack)))
    layout.headers[:, 3] |= shape_word(0, 0, 0, widths.astype(np.uint32))
    blocks = np.cumsum(slices.steps * (1 << widths.astype(np.int64) >> 1))
    layout.headers[1:, 2] = blocks[:-1]
    deltas = new_array(sum(map(len, pieces)), np.uint8)
    return bases, np.concatenate([deltas[:0], *pieces], out=deltas)


_compile = jit(nogil=True)
_inline = jit(nogil=True, inline="always")


@_compile
def _pack_columns(
    first_run,
    shifts,
    steps,
    full,
    starts,
    lengths,
    indices,
    first_steps,
    bases,
    widths,
    block,
    room,
    begin,
    end,
):
    """Write bases, widths, and as many deltas as there is room for. Return the next slice, and bytes."""
    size, done, s = 0, 0, begin
    while s < end and done <= STEPS_AT_ONCE:
        first, slots = first_run[s], WARP * steps[s]
        rows = min(WARP >> shifts[s], len(lengths) - first)
        for slot in range(WARP * full[s], slots):
            block[slot] = PAD_32
        copy_rows(indices, at(starts, first), at(lengths, first), rows, shifts[s], full[s], at(block, 0))
        least = at(bases, first_steps[s])
        width = _measure(block, least, steps[s], shifts[s] == 0 and full[s] == steps[s])
        widths[s] = width
        bytes_of_step = WARP * (1 << width >> 1)
        for k in range(steps[s]):
            place = np.uint64(size + k * bytes_of_step)
            store_deltas(block, np.uint64(WARP * k), np.uint32(least[k]), room, place, width)
        size += bytes_of_step * steps[s]
        done += steps[s]
        s += 1
    return s, size


@_inline
def _measure(block, least, steps, may_be_lanes):
    """Set the least column of every step. Return the `Width` that the deltas need."""
    span, lanes = np.uint32(0), np.uint32(0)
    for k in range(steps):
        low, high, apart = measure_step(block, np.uint64(WARP * k))
        least[k] = low
        span, lanes = max(span, np.uint32(high - low)), lanes | apart
    if may_be_lanes and lanes == 0:
        return NONE
    if span < PAD_8:
        return BITS_8
    return BITS_16 if span < PAD_16 else BITS_32
