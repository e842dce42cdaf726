"""Rows sorted by column, on the CPU; `dasp.formats.csr.protocols.Operations` says what is returned.

A short row is sorted in vector registers (dasp.formats.csr.cpu.networks). A longer one marks its columns in
one byte each, and an entry's place is the number of marks before its own: no branch depends on the columns.
Long rows with equal columns, or with columns far apart, are sorted by the columns' digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from dasp.formats.csr.cpu.networks import KEY_BITS, LANES, MOST_VECTORS, sort_run
from dasp.formats.csr.matrix import Csr
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.ranges import over_ranges
from dasp.runtime.cpu.vectors import place_of
from dasp.runtime.integers import narrowest
from dasp.runtime.memory import new_array

intrinsic: Any = _intrinsic
Vector = np.ndarray[Any, Any]

MOST_COLUMNS = 1 << 26
"""Columns of a matrix, at most, that are marked: for each a thread sets 1.3 bytes aside."""

EMPTY_RUNS = 64
"""Runs of 4096 columns that a marked row may span beyond as many as it has entries."""

FEW, FEW_BITS, MOST_BITS = 512, 8, 10
"""Entries of a row up to which digits have 8 bits at most, and 10 beyond: to count digits costs, too."""

LINE = 64
"""Bytes of a line of the cache."""

ONE, SIX, TWELVE, LOW = np.uint64(1), np.uint64(6), np.uint64(12), np.uint64(63)


def sort_columns(csr: Csr) -> tuple[Csr, Vector]:
    """See `Operations`."""
    (m, n), entries = csr.shape, len(csr.indices)
    columns, order = new_array(entries, csr.indices.dtype), new_array(entries, narrowest(entries))
    words = (n >> 6) + 1 if n <= MOST_COLUMNS else 0

    def sort(begin: int, end: int) -> None:
        # NumPy's zeros take memory only where a column lies.
        marks, found = np.zeros(words << 6, np.uint8), np.zeros(((words >> 6) + 1) << 6, np.uint8)
        before = np.empty((words, 2), np.uint64)
        arrays = csr.indptr, csr.indices, columns, order
        longest = _sort_rows(*arrays[:2], n, *arrays[2:], marks, found, before, begin, end)
        if longest:
            _sort_left(*arrays, longest, begin, end)

    over_ranges(m, entries, sort)
    return csr._replace(indices=columns), order


@intrinsic
def _count_ones(typing_context, word):
    """Return how many bits of a word are set."""
    return types.uint64(types.uint64), lambda context, builder, signature, of: builder.ctpop(of[0])


@intrinsic
def _lowest_one(typing_context, word):
    """Return the number of a word's lowest bit that is set; there must be one."""

    def generate(context, builder, signature, of):
        return builder.cttz(of[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic
def _take_marks(typing_context, marks, word):
    """Return which of 64 bytes are not zero, as the bits of a word, and make them zero."""

    def generate(context, builder, signature, arguments):
        array, word = arguments
        vector = ir.VectorType(ir.IntType(8), 64)
        first = builder.shl(word, ir.Constant(word.type, 6))
        place = place_of(context, builder, signature.args[0], array, first, vector)
        zeros = ir.Constant(vector, None)
        bits = builder.icmp_unsigned("!=", builder.load(place, align=1), zeros)
        builder.store(zeros, place, align=1)
        return builder.bitcast(bits, ir.IntType(64))

    return types.uint64(marks, types.uint64), generate


@intrinsic
def _prefetch(typing_context, array, place):
    """Ask for the line of the cache that an array has at a place."""

    def generate(context, builder, signature, arguments):
        (array, place), byte = arguments, ir.IntType(8)
        where = place_of(context, builder, signature.args[0], array, place, byte)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), *[ir.IntType(32)] * 3])
        ask = builder.module.declare_intrinsic("llvm.prefetch", (byte.as_pointer(),), kind)
        builder.call(ask, [where, *(ir.Constant(ir.IntType(32), number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)


@_inline
def fetch(numbers, first, count):
    """Ask for some numbers that will be read out of order, which the processor would not foresee."""
    for place in range(first, first + count, np.uint64(max(LINE // numbers.itemsize, 1))):
        _prefetch(numbers, place)


@_compile
def _sort_rows(indptr, indices, n, columns, order, marks, found, before, begin, end):
    """Sort the columns of each row that can be without digits, and the numbers of the entries with them.

    Returns the length of the longest row that cannot; the first column of such a row is -1.
    """
    longest, last = np.uint64(0), np.uint64(indptr[end])
    for row in range(begin, end):
        first, stop = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        done = False
        # Vectors reach beyond their row: what they write there is written again when the next rows come.
        if first + np.uint64(LANES * MOST_VECTORS) <= last:
            done = _sort_by_keys(indices, first, stop - first, n, columns, order)
        if not done and len(marks):
            done = _sort_by_marks(indices, first, stop, columns, order, marks, found, before)
        if not done and first < stop:  # where a row is empty, another one begins, or nothing
            longest = max(longest, stop - first)
            columns[first] = -1
    return longest


@_inline
def _sort_by_keys(indices, first, count, n, columns, order):
    """Sort a row in vector registers; False if it is too long for them.

    Those hold columns below `n`, and behind each as many bits as say where in the row it stands.
    """
    if count <= np.uint64(LANES * 1) and n <= 1 << KEY_BITS - 4:
        sort_run(indices, first, count, columns, order, 1)
    elif count <= np.uint64(LANES * 2) and n <= 1 << KEY_BITS - 5:
        sort_run(indices, first, count, columns, order, 2)
    elif count <= np.uint64(LANES * 4) and n <= 1 << KEY_BITS - 6:
        sort_run(indices, first, count, columns, order, 4)
    elif count <= np.uint64(LANES * 5) and n <= 1 << KEY_BITS - 7:
        sort_run(indices, first, count, columns, order, 5)
    elif count <= np.uint64(LANES * 8) and n <= 1 << KEY_BITS - 7:
        sort_run(indices, first, count, columns, order, 8)
    elif count <= np.uint64(LANES * 16) and n <= 1 << KEY_BITS - 8:
        sort_run(indices, first, count, columns, order, 16)
    else:
        return False
    return True


@_compile
def _sort_left(indptr, indices, columns, order, longest, begin, end):
    """Sort the rows that `_sort_rows` has left."""
    spares = np.empty(longest, columns.dtype), np.empty(longest, order.dtype)
    places = np.empty(1 << MOST_BITS, np.int64)
    for row in range(begin, end):
        first, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        if first < stop and columns[first] < 0:
            _sort_by_digits(indices, first, (columns[first:stop], order[first:stop]), spares, places)


@_inline
def _sort_by_marks(indices, first, stop, columns, order, marks, found, before):
    """Put each entry behind those of lesser columns; False if two columns are equal, or all far apart."""
    least, most = np.uint64(len(marks)), np.uint64(0)
    for entry in range(first, stop):
        column = np.uint64(indices[entry])
        marks[column] = found[column >> SIX] = np.uint8(1)
        least, most = min(least, column), max(most, column)
    least, most = least >> TWELVE, most >> TWELVE
    near = most - least <= stop - first + np.uint64(EMPTY_RUNS)
    for entry in range(first, first if near else stop):
        column = np.uint64(indices[entry])
        marks[column] = found[column >> SIX] = np.uint8(0)
    place = first
    for high in range(least, most + ONE if near else least):
        left = _take_marks(found, high)
        while left:
            word = (high << SIX) + _lowest_one(left)
            left &= left - ONE
            before[word, 0], before[word, 1] = _take_marks(marks, word), place
            place += _count_ones(before[word, 0])
    sorts = place == stop
    for entry in range(first, stop if sorts else first):
        column = np.uint64(indices[entry])
        word = column >> SIX
        place = before[word, 1] + _count_ones(before[word, 0] & ((ONE << (column & LOW)) - ONE))
        columns[place], order[place] = indices[entry], entry
    return sorts


@_inline
def _sort_by_digits(indices, first, sorted_ones, spares, places):
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


@_inline
def _sort_by_digit(source, target, count, least, shift, bits, places):
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
