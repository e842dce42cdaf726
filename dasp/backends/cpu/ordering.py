"""Rows sorted by column, on the CPU; `dasp.backends.protocols.Primitives` says what is returned."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dasp._compile import jit
from dasp.backends.cpu.ranges import over_ranges
from dasp.formats.array import Csr, narrowest
from dasp.formats.sliced.layout import Survey

Vector = np.ndarray[Any, Any]

INSERTED = 32
"""Entries of a row, at most, that are inserted one by one; longer rows are sorted by the bytes of columns."""

BYTE = 256
"""Values of a byte."""


def sort_columns(csr: Csr, survey: Survey) -> tuple[Csr, Vector]:
    """See `Primitives`."""
    entries = len(csr.indices)
    columns, order = csr.indices.copy(), np.arange(entries, dtype=narrowest(entries))
    bits = int(survey.most_column).bit_length()
    over_ranges(csr.shape[0], entries, partial(_sort_rows, csr.indptr, bits, columns, order))
    return csr._replace(indices=columns), order


@jit(nogil=True)
def _sort_rows(indptr, bits, columns, order, begin, end):  # type: ignore[no-untyped-def]
    """Sort the columns of each row, and their order with them; columns have so many bits."""
    longest = np.int64(0)
    for row in range(begin, end):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first <= INSERTED:
            _insert(columns, order, first, stop)
        else:
            longest = max(longest, stop - first)
    spare_columns, spare_order = np.empty(longest, columns.dtype), np.empty(longest, order.dtype)
    places = np.empty(BYTE, np.int64)
    for row in range(begin, end if longest else begin):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first > INSERTED and _falls(columns, first, stop):
            for shift in range(0, bits, 8):  # by the last byte, then stably by the one before it, and so on
                _count_bytes(columns, first, stop, shift, places)
                for entry in range(first, stop):
                    byte = (columns[entry] >> shift) & (BYTE - 1)
                    place = places[byte]
                    spare_columns[place], spare_order[place] = columns[entry], order[entry]
                    places[byte] = place + 1
                for k in range(stop - first):
                    columns[first + k], order[first + k] = spare_columns[k], spare_order[k]


@jit(nogil=True, forceinline=True)
def _insert(columns, order, first, stop):  # type: ignore[no-untyped-def]
    for entry in range(first + 1, stop):
        column, place = columns[entry], entry
        while place > first and columns[place - 1] > column:
            columns[place], order[place] = columns[place - 1], order[place - 1]
            place -= 1
        columns[place], order[place] = column, entry


@jit(nogil=True, forceinline=True)
def _falls(columns, first, stop):  # type: ignore[no-untyped-def]
    falls = False
    for entry in range(first + 1, stop):
        falls |= columns[entry] < columns[entry - 1]
    return falls


@jit(nogil=True, forceinline=True)
def _count_bytes(columns, first, stop, shift, places):  # type: ignore[no-untyped-def]
    """Set the place of the first column with each byte, counted from the row's first."""
    for byte in range(BYTE):
        places[byte] = 0
    for entry in range(first, stop):
        places[(columns[entry] >> shift) & (BYTE - 1)] += 1
    before = 0
    for byte in range(BYTE):
        before, places[byte] = before + places[byte], before
