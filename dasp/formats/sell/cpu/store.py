"""Write columns and values into their slots on the CPU, for a new plan and for new values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.formats.cost import MOST_STEPS
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.sell.cpu.lanes import copy_rows, measure_step, store_deltas
from dasp.formats.sell.cpu.unpack import RowPlaces
from dasp.formats.sell.cpu.values import Coded, encode, find_dictionary, holds
from dasp.formats.sell.pattern import (
    BITS_8,
    BITS_16,
    BITS_32,
    NONE,
    PAD_8,
    PAD_16,
    PAD_32,
    Coding,
    Values,
    pack_shape,
)
from dasp.formats.sell.primitives import Layout, Runs, Slices, Survey
from dasp.runtime.arrays import as_input
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import FIRST_LEVEL, LINE, at, place_of, prefetch_run
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import bits_type
from dasp.runtime.sizes import narrowest, new_array
from dasp.runtime.types import Vector

STEPS_AT_ONCE = 1 << 13
"""Steps whose deltas, up to 128 bytes each, are collected before they are copied to their place."""

RUNS_AHEAD = 4
"""A run is prefetched so many runs ahead if its values are read out of order."""


def store(
    csr: Csr, survey: Survey, order: Vector | None, layout: Layout
) -> tuple[Values, tuple[Vector, Vector, Vector, Vector]]:
    """See `Primitives`."""
    bases, deltas = store_columns(csr, layout)
    codes, table = encode(csr.data, survey.coding, survey.detail[2])
    stored = new_array(WARP * layout.steps if len(codes) else 0, codes.dtype)
    if len(stored):
        slices, runs = layout.detail
        _fill(codes, order, slices, layout.headers[:, 0].astype(np.int64), runs, stored)
    return Values(survey.coding, stored, table), (layout.rows, layout.headers, bases, deltas)


def store_columns(csr: Csr, layout: Layout) -> tuple[Vector, Vector]:
    """Return bases, the least column of each step, and deltas, the distances of the columns from it."""
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
    layout.headers[:, 3] |= pack_shape(0, 0, 0, widths.astype(np.uint32))
    blocks = np.cumsum(slices.steps * (1 << widths.astype(np.int64) >> 1))
    layout.headers[1:, 2] = blocks[:-1]
    deltas = new_array(sum(map(len, pieces)), np.uint8)
    return bases, np.concatenate([deltas[:0], *pieces], out=deltas)


def code_values(
    data: Vector,
    slots: RowPlaces | Vector,
    total: int,
    coding: Coding,
    dictionary: Coded | None,
) -> Values:
    """See `Primitives`."""
    codes, table = encode(data, coding, dictionary)
    if coding == Coding.EQUAL:
        return Values(coding, codes, table)
    stored = new_array(total, codes.dtype)
    if not isinstance(slots, RowPlaces):
        stored.view(np.uint8)[:] = 0
    _place(codes, slots, stored)
    return Values(coding, stored, table)


def recode_values(data: Vector, slots: RowPlaces | Vector, values: Values) -> bool:
    """See `Primitives`."""
    coded = find_dictionary(data) if values.coding == Coding.DICTIONARY else None
    fits = 0 < len(coded.table) <= len(values.table) if coded else holds(data, values.coding, 0)
    if not fits:
        return False
    codes, table = encode(data, values.coding, coded)
    overwrite(values.table, table)
    if values.coding != Coding.EQUAL:
        with _allow_writes(values.codes):
            _place(codes, slots, values.codes)
    return True


def _place(codes: Vector, slots: RowPlaces | Vector, stored: Vector) -> None:
    """Write codes to their slots: row by row if `slots` has the places of rows, else one by one."""
    if isinstance(slots, RowPlaces):
        _fill(codes, None, *slots, stored)
    else:
        scatter(codes, slots, stored)


def scatter(numbers: Vector, slots: Vector, stored: Vector) -> None:
    """See `Primitives`."""
    with _allow_writes(stored):
        bits = bits_type(numbers.dtype)
        arrays = numbers.view(bits), slots, stored.view(bits)
        over_ranges(len(slots), len(slots), partial(_scatter, *arrays))


def overwrite(array: Vector, numbers: Vector) -> None:
    """See `Primitives`."""
    with _allow_writes(array):
        array[: len(numbers)] = numbers


@contextmanager
def _allow_writes(array: Vector) -> Iterator[None]:
    """Make a read-only array of a plan writable inside the block."""
    before = array.flags.writeable
    array.flags.writeable = True
    try:
        yield
    finally:
        array.flags.writeable = before


def _fill(
    codes: Vector, order: Vector | None, slices: Slices, first_steps: Vector, runs: Runs, stored: Vector
) -> None:
    """Write the code of every slot of slices, 0 for a pad."""
    bits = bits_type(codes.dtype)  # Numba moves bits of any type, float16 included
    numbers, order = codes.view(bits), None if order is None else as_input(order)
    room = 0 if order is None else WARP * int(slices.steps.max())

    def fill(begin: int, end: int) -> None:
        own = np.empty(room, bits), np.empty(WARP, np.int64)
        _fill_values(*slices, *runs, numbers, order, first_steps, stored.view(bits), *own, begin, end)

    over_ranges(len(slices.steps), len(codes), fill)


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
    """Write bases, widths, and the deltas that `room` holds; return the next slice and the bytes used."""
    size, done, s = 0, 0, begin
    while s < end and done <= STEPS_AT_ONCE:
        first, slots = first_run[s], WARP * steps[s]
        rows = WARP >> shifts[s] if first + (WARP >> shifts[s]) < len(lengths) else len(lengths) - first
        for slot in range(WARP * full[s], slots):
            block[slot] = PAD_32
        copy_rows(indices, at(starts, first), at(lengths, first), rows, shifts[s], full[s], at(block, 0))
        least = at(bases, first_steps[s])
        span = lanes = np.uint32(0)
        for k in range(steps[s]):
            low, high, apart = measure_step(block, np.uint64(WARP * k))
            least[k] = low
            span = high - low if high - low > span else span
            lanes |= apart
        width = BITS_8 if span < PAD_8 else BITS_16 if span < PAD_16 else BITS_32
        if lanes == 0 and shifts[s] == 0 and full[s] == steps[s]:
            width = NONE
        widths[s] = width
        bytes_of_step = WARP * (1 << width >> 1)
        for k in range(steps[s]):
            place = np.uint64(size + k * bytes_of_step)
            store_deltas(block, np.uint64(WARP * k), np.uint32(least[k]), room, place, width)
        size += bytes_of_step * steps[s]
        done += steps[s]
        s += 1
    return s, size


@_compile
def _fill_values(
    first_run,
    shifts,
    steps,
    full,
    starts,
    lengths,
    codes,
    order,
    first_steps,
    values,
    row_by_row,
    begins,
    begin,
    end,
):
    """Write the code of every slot, 0 for a pad; without `order`, codes stand in the order of entries.

    `row_by_row` is scratch for the codes of a slice row by row, `begins` for the places where rows begin.
    """
    for s in range(begin, end):
        slots, first = at(values, WARP * first_steps[s]), first_run[s]
        for slot in range(WARP * full[s], WARP * steps[s]):
            slots[slot] = 0
        rows, of = WARP >> shifts[s], at(lengths, first)
        rows = rows if rows < len(lengths) - first else len(lengths) - first
        if order is None:
            copy_rows(codes, at(starts, first), of, rows, shifts[s], full[s], slots)
        else:
            _write_in_order(codes, order, starts, lengths, first, first + rows, row_by_row, begins)
            copy_rows(row_by_row, at(begins, 0), of, rows, shifts[s], full[s], slots)


@_inline
def _write_in_order(codes, order, starts, lengths, first, last, row_by_row, begins):
    """Write the codes of some runs one after another in a given order, and where each run begins."""
    place = np.uint64(0)
    for run in range(first, last):
        begins[run - first] = place
        ahead = run + RUNS_AHEAD
        if ahead < len(starts):
            fetch(codes, np.uint64(starts[ahead]), np.uint64(lengths[ahead]))
        start = np.uint64(starts[run])
        for entry in range(start, start + np.uint64(lengths[run])):
            row_by_row[place] = codes[np.uint64(order[entry])]
            place += np.uint64(1)


@_compile
def _scatter(numbers, slots, stored, begin, end):
    for entry in range(begin, end):
        stored[slots[entry]] = numbers[entry]


@_inline
def fetch(numbers, first, count):
    """Prefetch numbers that will be read out of order, which the processor cannot predict."""
    for place in range(first, first + count, np.uint64(max(LINE // numbers.itemsize, 1))):
        _prefetch(numbers, place)


@intrinsic
def _prefetch(typing_context, array, place):
    """Prefetch the cache line of an array's item."""

    def generate(context, builder, signature, arguments):
        array, place = arguments
        where = place_of(context, builder, signature.args[0], array, place, ir.IntType(8))
        prefetch_run(builder, where, 0, 1, FIRST_LEVEL)
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate
