"""Rows sorted by column, on the CPU; `dasp.formats.csr.protocols.Operations` says what is returned.

A short row is sorted in vector registers (dasp.formats.csr.cpu.networks), a longer one by the digits of its
columns, the last one first. NumPy sorts columns of more digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cpu.networks import KEY_BITS, LANES, MOST_VECTORS, sort_run
from dasp.formats.csr.matrix import Csr
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.sizes import narrowest, new_array

Vector = np.ndarray[Any, Any]

DIGIT_BITS, MOST_DIGITS = 8, 4
"""Of a column, counted from the row's least one."""

DIGITS = 1 << DIGIT_BITS
HALF = np.uint64(DIGIT_BITS * MOST_DIGITS)
"""Bits of a word for a column; the lower ones say where in the row it stood."""


def sort_columns(csr: Csr) -> tuple[Csr, Vector]:
    """See `Operations`."""
    (m, n), entries = csr.shape, len(csr.indices)
    if n >> DIGIT_BITS * MOST_DIGITS:
        rows = np.repeat(np.arange(m), np.diff(csr.indptr))
        by_column = np.lexsort((csr.indices, rows)).astype(narrowest(entries), copy=False)
        return csr._replace(indices=csr.indices[by_column]), by_column
    columns, order = new_array(entries, csr.indices.dtype), new_array(entries, narrowest(entries))

    def sort(begin: int, end: int) -> None:
        longest = int(np.diff(csr.indptr[begin : end + 1]).max(initial=0))
        words, places = np.empty((2, longest), np.uint64), np.empty((MOST_DIGITS, DIGITS), np.uint64)
        _sort_rows(csr.indptr, csr.indices, n, columns, order, *words, places, begin, end)

    over_ranges(m, entries, sort)
    return csr._replace(indices=columns), order


_compile = jit(nogil=True)
_inline = jit(nogil=True, inline="always")


@_compile
def _sort_rows(indptr, indices, n, columns, order, words, spare, places, begin, end):
    """Sort the columns of some rows, and the numbers of the entries with them."""
    last = np.uint64(indptr[end])
    for row in range(begin, end):
        first, stop = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        # Vectors reach beyond their row: what they write there is written again when the next rows come.
        reaches = first + np.uint64(LANES * MOST_VECTORS) <= last
        if not (reaches and _sort_in_registers(indices, first, stop - first, n, columns, order)):
            _sort_by_digits(indices, first, stop, columns, order, words, spare, places)


@_inline
def _sort_in_registers(indices, first, count, n, columns, order):
    """Sort a row in vector registers; return False if it is too long for them.

    Those hold columns below `n`, and behind each as many bits as say where in the row it stands.
    """
    if count <= np.uint64(LANES * 1) and n <= 1 << KEY_BITS - 4:
        sort_run(indices, first, count, columns, order, 1)
    elif count <= np.uint64(LANES * 2) and n <= 1 << KEY_BITS - 5:
        sort_run(indices, first, count, columns, order, 2)
    elif count <= np.uint64(LANES * 4) and n <= 1 << KEY_BITS - 6:
        sort_run(indices, first, count, columns, order, 4)
    elif count <= np.uint64(LANES * 8) and n <= 1 << KEY_BITS - 7:
        sort_run(indices, first, count, columns, order, 8)
    elif count <= np.uint64(LANES * 16) and n <= 1 << KEY_BITS - 8:
        sort_run(indices, first, count, columns, order, 16)
    else:
        return False
    return True


@_inline
def _sort_by_digits(indices, first, stop, columns, order, words, spare, places):
    """Sort a row by the last digit of its columns, then stably by the one before it, and so on.

    Parameters
    ----------
    indices, columns, order : array
        Of all rows; this one begins at `first` and ends before `stop`.
    words, spare : array of uint64
        With room for the row.
    places : array of uint64, shape (`MOST_DIGITS`, `DIGITS`)
    """
    count, one = stop - first, np.uint64(1)
    if not count:
        return
    least = most = indices[first]
    for entry in range(first, stop):
        least, most = min(least, indices[entry]), max(most, indices[entry])
    apart = np.uint64(most - least)
    digits = 0
    while apart >> np.uint64(DIGIT_BITS * digits):
        digits += 1
    places[:digits] = 0
    for k in range(count):
        words[k] = np.uint64(indices[first + k] - least) << HALF | k
        for p in range(digits):
            places[p, _digit(words[k], p)] += one
    for p in range(digits):
        total = np.uint64(0)
        for digit in range(DIGITS):
            total, places[p, digit] = total + places[p, digit], total
        for k in range(count):
            digit = _digit(words[k], p)
            place = places[p, digit]
            spare[place], places[p, digit] = words[k], place + one
        words, spare = spare, words
    for k in range(count):
        columns[first + k] = least + np.int64(words[k] >> HALF)
        order[first + k] = first + (words[k] & ((one << HALF) - one))


@_inline
def _digit(word, p):
    return (word >> (HALF + np.uint64(DIGIT_BITS * p))) & np.uint64(DIGITS - 1)
