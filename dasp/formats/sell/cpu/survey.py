"""Survey a matrix on the CPU: the facts about its rows, columns and values before rows are ordered."""

from __future__ import annotations

from functools import partial

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP
from dasp.formats.sell.cpu.values import choose_coding
from dasp.formats.sell.pattern import Coding
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.types import Vector

SURVEYED_ROWS, SURVEYED_ENTRIES = 256, 1 << 20
"""Rows that are surveyed while the cache holds their entries, and entries that are counted at once."""


def survey(csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`."""
    m, entries = csr.shape[0], len(csr.indices)
    lengths = np.empty(m, np.int32)
    found = over_ranges(m, entries, partial(_survey_rows, csr.indptr, csr.indices, WARP * cut.steps, lengths))
    falls, most, long_rows, rises = (list(each) for each in zip(*found, strict=True))
    coding, coded = choose_coding(csr.data) if narrow and entries else (Coding.PLAIN, None)
    long = np.flatnonzero(lengths < 0) if sum(long_rows) else np.zeros(0, np.int64)
    # Rows also rise if a range begins with a longer row than the last one of the range before it.
    cuts = [m * part // len(found) for part in range(1, len(found))] if not any(rises) else []
    rise = any(rises) or any(rises_at(lengths, cut) for cut in cuts)
    longest = max(int(lengths.max(initial=0)), 0)
    detail = lengths, long, coded
    return Survey(not any(falls), int(max(most)), coding, len(long), longest, bool(rise), detail)


def rises_at(lengths: Vector, row: int) -> bool:
    """Return True if the first row in a slice from `row` on is longer than the last one before it."""
    before, after = (part[part >= 0] for part in (lengths[:row], lengths[row:]))
    return bool(len(before) and len(after) and after[0] > before[-1])


@jit(nogil=True)
def _survey_rows(indptr, indices, longest, lengths, begin, end):
    """Write the lengths of rows, `PAD` for long ones.

    Return True if columns fall inside a row, the largest column or -1, the number of long rows, and True if
    a row in a slice is longer than the last one before it.
    """
    falls = long_rows = rises = 0
    most, last = indices.dtype.type(-1), np.int64((1 << 63) - 1)  # no row is as long
    for first in range(begin, end, SURVEYED_ROWS):
        stop = first + SURVEYED_ROWS if first + SURVEYED_ROWS < end else end
        between = np.int64(0)  # falls from row to row
        for row in range(first, stop):
            start, length = np.int64(indptr[row]), np.int64(indptr[row + 1]) - np.int64(indptr[row])
            if length > 0 and start > indptr[first]:
                between += indices[start] < indices[start - 1]
            if length > longest:
                long_rows += 1
                length = np.int64(PAD)
            else:
                rises = 1 if length > last else rises
                last = length
            lengths[row] = length
        for some in range(indptr[first], indptr[stop], SURVEYED_ENTRIES):
            down = np.uint32(0)
            after_some = some + SURVEYED_ENTRIES if some + SURVEYED_ENTRIES < indptr[stop] else indptr[stop]
            most = indices[some] if indices[some] > most else most
            # Neighbours by numbers without a sign are compared many at a time.
            for entry in range(np.uint64(some), np.uint64(after_some - 1)):
                after = indices[entry + np.uint64(1)]
                down = np.uint32(down + np.uint32(after < indices[entry]))
                most = after if after > most else most
            between -= np.int64(down)
            if some > indptr[first]:
                between -= indices[some] < indices[some - 1]
        falls = 1 if between != 0 else falls
    return falls > 0, most, long_rows, rises > 0
