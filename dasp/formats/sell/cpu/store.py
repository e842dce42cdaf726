"""Writes values to their slots on the CPU, in a new plan and in one that is refilled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dasp.formats.csr.cpu.transpose import fetch
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP
from dasp.formats.product_cpu import read_only
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cpu.columns import store_columns
from dasp.formats.sell.cpu.lanes import copy_rows
from dasp.formats.sell.cpu.unpack import RowPlaces
from dasp.formats.sell.cpu.values import Coded, encode, find_dictionary, holds
from dasp.formats.sell.pattern import Coding, Values
from dasp.formats.sell.primitives import Layout, Runs, Slices, Survey
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import at
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import bits_type
from dasp.runtime.sizes import new_array

Vector = np.ndarray[Any, Any]

RUNS_AHEAD = 4
"""Runs by which one is prefetched before its turn, if its values are read out of order."""


def store(
    csr: Csr, survey: Survey, order: Vector | None, layout: Layout, coding: Coding
) -> tuple[Values, tuple[Vector, Vector, Vector, Vector]]:
    """See `Primitives`."""
    bases, deltas = store_columns(csr, layout)
    codes, table = encode(csr.data, coding, order, survey.detail[2])
    stored = new_array(WARP * layout.steps if len(codes) else 0, codes.dtype)
    if len(stored):
        slices, runs = layout.detail
        _fill(codes, order, slices, layout.headers[:, 0].astype(np.int64), runs, stored)
    return Values(coding, stored, table), (layout.rows, layout.headers, bases, deltas)


def code_values(
    data: Vector,
    slots: RowPlaces | Vector,
    total: int,
    coding: Coding,
    counted: tuple[ValueStatistics, Coded | None] | None,
) -> Values:
    """See `Primitives`."""
    codes, table = encode(data, coding, coded=counted and counted[1])
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
    codes, table = encode(data, values.coding, coded=coded)
    overwrite(values.table, table)
    if values.coding != Coding.EQUAL:
        with _writable(values.codes):
            _place(codes, slots, values.codes)
    return True


def _place(codes: Vector, slots: RowPlaces | Vector, stored: Vector) -> None:
    """Write codes to their slots: row by row if it is known where rows begin, else one by one."""
    if isinstance(slots, RowPlaces):
        _fill(codes, None, *slots, stored)
    else:
        scatter(codes, slots, stored)


def scatter(numbers: Vector, slots: Vector, stored: Vector) -> None:
    """See `Primitives`."""
    with _writable(stored):
        bits = bits_type(numbers.dtype)
        arrays = numbers.view(bits), slots, stored.view(bits)
        over_ranges(len(slots), len(slots), partial(_scatter, *arrays))


def overwrite(array: Vector, numbers: Vector) -> None:
    """See `Primitives`."""
    with _writable(array):
        array[: len(numbers)] = numbers


@contextmanager
def _writable(array: Vector) -> Iterator[None]:
    """Let an array of a plan, which is read-only, be written for a while."""
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
    numbers, order = read_only(codes.view(bits)), None if order is None else read_only(order)
    room = 0 if order is None else WARP * int(slices.steps.max())

    def fill(begin: int, end: int) -> None:
        own = np.empty(room, bits), np.empty(WARP, np.int64)
        _fill_values(*slices, *runs, numbers, order, first_steps, stored.view(bits), *own, begin, end)

    over_ranges(len(slices.steps), len(codes), fill)


_compile = jit(nogil=True)
_inline = jit(nogil=True, inline="always")


@_compile
def _scatter(numbers, slots, stored, begin, end):
    for entry in range(begin, end):
        stored[slots[entry]] = numbers[entry]


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

    `row_by_row` has room for the codes of a slice in the order of its rows, `begins` for where each begins.
    """
    for s in range(begin, end):
        slots, first = at(values, WARP * first_steps[s]), first_run[s]
        for slot in range(WARP * full[s], WARP * steps[s]):
            slots[slot] = 0
        rows, of = min(WARP >> shifts[s], len(lengths) - first), at(lengths, first)
        if order is None:
            copy_rows(codes, at(starts, first), of, rows, shifts[s], full[s], slots)
        else:
            _in_order(codes, order, starts, lengths, first, first + rows, row_by_row, begins)
            copy_rows(row_by_row, at(begins, 0), of, rows, shifts[s], full[s], slots)


@_inline
def _in_order(codes, order, starts, lengths, first, last, row_by_row, begins):
    """Write the codes of some runs one after another, in an order, and the place where each run begins."""
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
