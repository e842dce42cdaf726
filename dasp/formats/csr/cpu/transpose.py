"""The transpose of a matrix on the CPU; `dasp.formats.csr.matrix.Operations` says what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.formats.csr.matrix import Csr
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import FIRST_LEVEL, LINE, place_of, prefetch_run
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import bits_type
from dasp.runtime.sizes import narrowest, new_array

Vector = np.ndarray[Any, Any]

AHEAD = np.uint64(32)
"""How many entries before its turn the memory for an entry is prefetched: stores wait for each other."""

COUNTED = 4
"""Entries to a column from which on each thread counts columns of its own."""


def transpose(csr: Csr) -> tuple[Csr, Vector] | None:
    """See `Operations`: a stable counting sort, linear in m + n + nnz; each thread moves a range of rows."""
    (m, n), indptr, indices, data = csr
    if _is_symmetric(csr):
        return None
    count, bits = len(indices), bits_type(data.dtype)
    place = narrowest(count)
    rows, order = new_array(count, indices.dtype), new_array(count, place)
    transposed = Csr((n, m), np.empty(n + 1, np.int64), rows, new_array(count, data.dtype))
    arrays = indptr, indices, data.view(bits), rows, order, transposed.data.view(bits)
    shared = count if count >= COUNTED * n else 0  # else one thread is done before columns are counted twice

    def count_columns(begin: int, end: int) -> tuple[int, Vector]:
        counts = np.zeros(n, place)
        _count_columns(indptr, indices, counts, begin, end)
        return begin, counts

    begins, counts = zip(*over_ranges(m, shared, count_columns), strict=True)
    cursors = np.stack(counts) if len(counts) > 1 else counts[0].reshape(1, n)
    _start_columns(cursors, transposed.indptr)
    own = dict(zip(begins, cursors, strict=True))
    over_ranges(m, shared, lambda begin, end: _move_entries(*arrays, own[begin], begin, end))
    return transposed, order


def _is_symmetric(csr: Csr) -> bool:
    """Return True if a matrix has the entries of its transpose in the same order, bit for bit.

    Each thread looks for the entries of some rows among columns. A matrix without symmetry is soon known.
    """
    (m, n), indptr, indices, data = csr
    count = len(indices)
    words, each = data.view(f"u{min(data.itemsize, 8)}"), max(data.itemsize // 8, 1)

    def look(begin: int, end: int) -> bool:
        cursors = np.empty(n, narrowest(count))
        for word in range(each):
            _find_row(indptr, indices, begin, cursors)
            if not _are_mirrored(indptr, indices, words[word::each], cursors, begin, end):
                return False
        return True

    return m == n and all(over_ranges(m, count, look))


_compile = jit(nogil=True)


@_compile
def _count_columns(indptr, indices, counts, begin, end):
    for entry in range(indptr[begin], indptr[end]):
        counts[indices[entry]] += 1


@_compile
def _start_columns(cursors, starts):
    """Set where each column begins and, in place of what each range of rows counted, where it goes on."""
    total = starts[0] = 0
    for column in range(cursors.shape[1]):
        for part in range(cursors.shape[0]):
            count = cursors[part, column]
            cursors[part, column] = total
            total += count
        starts[column + 1] = total


@_compile
def _find_row(indptr, indices, first, cursors):
    """Set the place in each row, sorted by columns, of its entries from a column on."""
    for row in range(len(cursors)):
        place, stop = indptr[row], indptr[row + 1]
        while first and place < stop and indices[place] < first:
            place += 1
        cursors[row] = place


@_compile
def _are_mirrored(indptr, indices, words, cursors, begin, end):
    """Return True if the entries of some rows stand across the diagonal, too, from the cursors on."""
    for row in range(begin, end):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            column = np.uint64(indices[entry])
            place = np.uint64(cursors[column])
            if place >= np.uint64(indptr[column + np.uint64(1)]):
                return False
            if indices[place] != row or words[place] != words[entry]:
                return False
            cursors[column] = place + np.uint64(1)
    return True


@_compile
def _move_entries(indptr, indices, bits, rows, order, transposed, cursors, begin, end):
    """Write row, number and value of each entry to where its column goes on."""
    last, one = np.uint64(indptr[end]), np.uint64(1)
    for row in range(begin, end):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            if entry + AHEAD < last:
                near = np.uint64(cursors[np.uint64(indices[entry + AHEAD])])
                fetch(rows, near, one)
                fetch(order, near, one)
                fetch(transposed, near, one)
            column = np.uint64(indices[entry])
            place = np.uint64(cursors[column])
            rows[place], order[place], transposed[place] = row, entry, bits[entry]
            cursors[column] = place + one


@jit(nogil=True, forceinline=True)
def fetch(numbers, first, count):
    """Ask for some numbers that will be read out of order, which the processor would not foresee."""
    for place in range(first, first + count, np.uint64(max(LINE // numbers.itemsize, 1))):
        _prefetch(numbers, place)


@intrinsic
def _prefetch(typing_context, array, place):
    """Ask for the line of the cache that an array has at a place."""

    def generate(context, builder, signature, arguments):
        array, place = arguments
        where = place_of(context, builder, signature.args[0], array, place, ir.IntType(8))
        prefetch_run(builder, where, 0, 1, FIRST_LEVEL)
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate
