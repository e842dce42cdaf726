"""The transpose of a matrix on the CPU; `dasp.backends.protocols.Primitives` says what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp._compile import jit
from dasp._dtypes import bits_type
from dasp._memory import new_array
from dasp.backends.cpu.ranges import over_ranges
from dasp.formats.array import Csr, narrowest

Vector = np.ndarray[Any, Any]

PIECE = 1 << 16
"""Numbers that are compared at a time."""

COUNTED = 4
"""Entries for each column from which on threads count columns of their own."""


def transpose(csr: Csr) -> tuple[Csr, Vector, bool]:
    """See `Primitives`: a stable counting sort, linear in m + n + nnz; each thread turns a range of rows."""
    (m, n), indptr, indices, data = csr
    count, bits = len(indices), bits_type(data.dtype)
    place = narrowest(count)
    rows, order = new_array(count, indices.dtype), new_array(count, place)
    turned = Csr((n, m), np.empty(n + 1, np.int64), rows, new_array(count, data.dtype))
    arrays = indptr, indices, data.view(bits), rows, order, turned.data.view(bits)
    shared = count if count >= COUNTED * n else 0  # else one thread is done before columns are counted twice

    def begin_counting(begin: int, end: int) -> tuple[int, Vector]:
        cursors = np.zeros(n, place)
        _count_columns(indptr, indices, cursors, begin, end)
        return begin, cursors

    counted = dict(over_ranges(m, shared, begin_counting))
    _start_columns(turned.indptr, list(counted.values()))
    over_ranges(m, shared, lambda begin, end: _turn(*arrays, counted[begin], begin, end))
    return turned, order, _same(csr, turned)


def _start_columns(starts: Vector, counts: list[Vector]) -> None:
    """Set where each column begins and, in place of what each range of rows counted, where it goes on."""
    starts[0] = 0
    np.cumsum(sum(counts[1:], counts[0]), out=starts[1:], dtype=starts.dtype)
    at = starts[:-1].astype(counts[0].dtype)
    for own in counts:
        own += at
        own[:], at = at, own.copy()


def _same(one: Csr, other: Csr) -> bool:
    """Whether two matrices have the same entries in the same order, bit for bit."""
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and _equal(one.indices, other.indices)
        and _equal(one.data.view(np.uint8), other.data.view(np.uint8))
    )


def _equal(one: Vector, other: Vector) -> bool:
    """Whether two arrays of one length are equal; where they are not, that is often soon known."""
    firsts = range(0, len(one), PIECE)
    return all(np.array_equal(one[k : k + PIECE], other[k : k + PIECE]) for k in firsts)


_compile = jit(nogil=True)


@_compile
def _count_columns(indptr, indices, counts, begin, end):  # type: ignore[no-untyped-def]
    for entry in range(indptr[begin], indptr[end]):
        counts[indices[entry]] += 1


@_compile
def _turn(indptr, indices, bits, rows, order, turned, cursors, begin, end):  # type: ignore[no-untyped-def]
    """Write row, number and value of each entry to where its column goes on."""
    for row in range(begin, end):
        for entry in range(indptr[row], indptr[row + 1]):
            column = indices[entry]
            place = cursors[column]
            rows[place], order[place], turned[place] = row, entry, bits[entry]
            cursors[column] = place + 1
