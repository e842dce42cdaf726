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

RANKED = 16
"""Entries of a row, at most, that are compared each with each; longer rows are sorted by columns' bytes."""

BYTE = 256
"""Values of a byte."""


def sort_columns(csr: Csr, survey: Survey) -> tuple[Csr, Vector]:
    """See `Primitives`."""
    entries = len(csr.indices)
    columns, order = np.empty_like(csr.indices), np.empty(entries, narrowest(entries))
    bits = int(survey.most_column).bit_length()
    over_ranges(csr.shape[0], entries, partial(_sort_rows, csr.indptr, csr.indices, bits, columns, order))
    return csr._replace(indices=columns), order


@jit(nogil=True)
def _sort_rows(indptr, indices, bits, columns, order, begin, end):  # type: ignore[no-untyped-def]
    """Sort the columns of each row, and their order with them; columns have so many bits."""
    longest = np.int64(0)
    for row in range(begin, end):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first <= RANKED:
            _rank(indices, first, stop, columns, order)
        else:
            longest = max(longest, stop - first)
    spare_columns, spare_order = np.empty(longest, columns.dtype), np.empty(longest, order.dtype)
    places = np.empty(BYTE, np.int64)
    for row in range(begin, end if longest else begin):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if stop - first > RANKED:
            for entry in range(first, stop):
                columns[entry], order[entry] = indices[entry], entry
            # By the last byte, then stably by the one before it, and so on.
            for shift in range(0, bits if _falls(indices, first, stop) else 0, 8):
                _count_bytes(columns, first, stop, shift, places)
                for entry in range(first, stop):
                    byte = (columns[entry] >> shift) & (BYTE - 1)
                    place = places[byte]
                    spare_columns[place], spare_order[place] = columns[entry], order[entry]
                    places[byte] = place + 1
                for k in range(stop - first):
                    columns[first + k], order[first + k] = spare_columns[k], spare_order[k]


@jit(nogil=True, forceinline=True)
def _rank(indices, first, stop, columns, order):  # type: ignore[no-untyped-def]
    """Put each entry behind those of lesser columns and of equal ones before it, with no branch to guess."""
    for entry in range(first, stop):
        column, place = indices[entry], first
        for other in range(first, entry):
            place += np.int64(indices[other] <= column)
        for other in range(entry + 1, stop):
            place += np.int64(indices[other] < column)
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
