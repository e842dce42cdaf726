"""The survey of a matrix on the CPU, before its rows are sorted."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP
from dasp.formats.sell.cpu.values import count_values
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges

Vector = np.ndarray[Any, Any]

SURVEYED_ROWS, SURVEYED_ENTRIES = 256, 1 << 20
"""Rows whose entries are looked at while the cache holds them, and entries counted at once."""

LONGEST = np.int64((1 << 63) - 1)
"""A length that no row exceeds."""


def survey(csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`."""
    m, entries = csr.shape[0], len(csr.indices)
    lengths = np.empty(m, np.int32)
    found = over_ranges(m, entries, partial(_survey_rows, csr.indptr, csr.indices, WARP * cut.steps, lengths))
    falls, most, long_rows, rises = (list(each) for each in zip(*found, strict=True))
    counted, coded = count_values(csr.data) if narrow and entries else (None, None)
    long = np.flatnonzero(lengths < 0) if sum(long_rows) else np.zeros(0, np.int64)
    # Where a range begins with a longer row than the one before it ends with, rows rise between them.
    cuts = [m * part // len(found) for part in range(1, len(found))] if not any(rises) else []
    rise = any(rises) or any(rises_at(lengths, cut) for cut in cuts)
    longest = max(int(lengths.max(initial=0)), 0)
    detail = lengths, long, coded
    return Survey(not any(falls), int(max(most)), counted, len(long), longest, bool(rise), detail)


def rises_at(lengths: Vector, row: int) -> bool:
    """Return True if the first row in a slice from `row` on is longer than the last one before it."""
    before, after = (part[part >= 0] for part in (lengths[:row], lengths[row:]))
    return bool(len(before) and len(after) and after[0] > before[-1])


_compile = jit(nogil=True)


@_compile
def _survey_rows(indptr, indices, longest, lengths, begin, end):
    """Measure rows; long ones get a length of `PAD`.

    Return True if columns fall inside a row, the largest column or -1, the number of long rows, and True if
    a row in a slice is longer than the last one before it.
    """
    falls = long_rows = rises = 0
    most, last = indices.dtype.type(-1), LONGEST
    for first in range(begin, end, SURVEYED_ROWS):
        stop = min(first + SURVEYED_ROWS, end)
        between = 0  # falls from row to row
        for row in range(first, stop):
            start, length = np.int64(indptr[row]), np.int64(indptr[row + 1]) - np.int64(indptr[row])
            if length > 0 and start > indptr[first]:
                between += int(indices[start] < indices[start - 1])
            if length > longest:
                long_rows += 1
                length = np.int64(PAD)
            else:
                rises |= int(length > last)
                last = length
            lengths[row] = length
        for some in range(indptr[first], indptr[stop], SURVEYED_ENTRIES):
            down = np.uint32(0)
            most = max(most, indices[some])
            # Neighbours by numbers without a sign are compared many at a time.
            for entry in range(np.uint64(some), np.uint64(min(some + SURVEYED_ENTRIES, indptr[stop]) - 1)):
                after = indices[entry + np.uint64(1)]
                down = np.uint32(down + np.uint32(after < indices[entry]))
                most = max(most, after)
            between -= int(down)
            if some > indptr[first]:
                between -= int(indices[some] < indices[some - 1])
        falls |= int(between != 0)
    return falls > 0, most, long_rows, rises > 0
