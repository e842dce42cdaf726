"""Rows sorted by column, on the CPU; `dasp.backends.protocols.Primitives` says what is returned."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dasp._compile import jit
from dasp._dtypes import bits_type
from dasp.backends.cpu.ranges import over_ranges
from dasp.formats.array import Csr, narrowest
from dasp.formats.sliced.layout import Survey

Vector = np.ndarray[Any, Any]

RANKED = 64
"""Entries of a row, at most, that are compared each with each; longer rows are sorted by columns' digits."""

FEW, FEW_BITS, MOST_BITS = 512, 8, 10
"""Entries of a row up to which digits have 8 bits at most, and 10 beyond: to count digits costs, too."""


def sort_columns(csr: Csr, survey: Survey) -> tuple[Csr, Vector]:
    """See `Primitives`."""
    entries = len(csr.indices)
    columns, order = np.empty_like(csr.indices), np.empty(entries, narrowest(entries))
    over_ranges(csr.shape[0], entries, partial(_sort_rows, csr.indptr, csr.indices, columns, order))
    return csr._replace(indices=columns), order


def in_order(data: Vector, order: Vector) -> Vector:
    """Return numbers in the order of `sort_columns`."""
    ordered = np.empty_like(data)
    bits = bits_type(data.dtype)
    arrays = data.view(bits), order, ordered.view(bits)
    over_ranges(len(order), len(order), partial(_take_in_order, *arrays))
    return ordered


@jit(nogil=True)
def _take_in_order(numbers, order, ordered, begin, end):  # type: ignore[no-untyped-def]
    for entry in range(begin, end):
        ordered[entry] = numbers[order[entry]]


@jit(nogil=True)
def _sort_rows(indptr, indices, columns, order, begin, end):  # type: ignore[no-untyped-def]
    """Sort the columns of each row stably, and the numbers of the entries with them."""
    longest = np.int64(0)
    for row in range(begin, end):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first <= RANKED:
            _rank(indices, first, stop, columns, order)
        else:
            longest = max(longest, stop - first)
    spare_columns, spare_order = np.empty(longest, columns.dtype), np.empty(longest, order.dtype)
    places = np.empty(1 << MOST_BITS, np.int64)
    for row in range(begin, end if longest else begin):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first > RANKED:
            sorted_ones, spares = (columns[first:stop], order[first:stop]), (spare_columns, spare_order)
            _sort_by_digits(indices, first, sorted_ones, spares, places)


@jit(nogil=True, forceinline=True)
def _rank(indices, first, stop, columns, order):  # type: ignore[no-untyped-def]
    """Put each entry behind those of lesser columns and of equal ones before it, with no branch to guess."""
    for entry in range(first, stop):
        column, before = indices[entry], np.uint32(0)  # in 32 bits many are compared at a time
        for other in range(np.uint64(first), np.uint64(entry)):
            before = np.uint32(before + np.uint32(indices[other] <= column))
        for other in range(np.uint64(entry + 1), np.uint64(stop)):
            before = np.uint32(before + np.uint32(indices[other] < column))
        place = first + np.int64(before)
        columns[place], order[place] = column, entry


@jit(nogil=True, forceinline=True)
def _sort_by_digits(indices, first, sorted_ones, spares, places):  # type: ignore[no-untyped-def]
    """Sort a row by the last digit of its columns, then stably by the one before it, and so on.

    Columns are counted from the row's least one; digits are as even as they can be.
    """
    count = len(sorted_ones[0])
    least = most = indices[first]
    falls = False
    for entry in range(first + 1, first + count):
        column = indices[entry]
        falls |= column < indices[entry - 1]
        least, most = min(least, column), max(most, column)
    bits = 0
    while falls and (most - least) >> bits:
        bits += 1
    passes = -(-bits // (FEW_BITS if count <= FEW else MOST_BITS))
    digit_bits = -(-bits // max(passes, 1))
    source, target = (spares, sorted_ones) if passes % 2 else (sorted_ones, spares)
    for k in range(count):
        source[0][k], source[1][k] = indices[first + k], first + k
    for turn in range(passes):
        _sort_by_digit(source, target, count, least, turn * digit_bits, digit_bits, places)
        source, target = target, source


@jit(nogil=True, forceinline=True)
def _sort_by_digit(source, target, count, least, shift, bits, places):  # type: ignore[no-untyped-def]
    (columns, order), (to_columns, to_order) = source, target
    mask = (1 << bits) - 1
    for digit in range(mask + 1):
        places[digit] = 0
    for k in range(count):
        places[((columns[k] - least) >> shift) & mask] += 1
    before = 0
    for digit in range(mask + 1):
        before, places[digit] = before + places[digit], before
    for k in range(count):
        digit = ((columns[k] - least) >> shift) & mask
        place = places[digit]
        to_columns[place], to_order[place] = columns[k], order[k]
        places[digit] = place + 1
