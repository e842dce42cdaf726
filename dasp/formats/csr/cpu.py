"""The operations on matrices on the CPU; `dasp.formats.csr.matrix.Operations` says what each returns.

`sort_columns` sorts a short row in vector registers, by a bitonic network (Batcher, AFIPS 1968): no branch,
no table. It sorts a longer one by the digits of its columns, the last digit first. NumPy sorts columns that
have more digits than `MOST_DIGITS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from scipy.sparse import csr_array

from dasp.formats.csr.matrix import Csr
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import I32, first_lanes, load, place_of, resize_lanes, splat, store
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.sizes import narrowest, new_array

Vector = np.ndarray[Any, Any]

DIGIT_BITS, MOST_DIGITS = 8, 4
"""Bits of a digit, and most digits of a column; columns are counted from the row's least one."""

DIGITS = 1 << DIGIT_BITS
HALF = np.uint64(DIGIT_BITS * MOST_DIGITS)
"""Bits of half a word: the upper half holds a column, the lower one its place in the row."""


def scan(numbers: Vector) -> Vector:
    """See `Operations`."""
    starts = np.zeros(len(numbers) + 1, numbers.dtype)
    np.cumsum(numbers, out=starts[1:])
    return starts


def transpose(csr: Csr) -> tuple[Csr, Vector] | None:
    """See `Operations`: SciPy sorts the numbers of the entries by column, stably."""
    (m, n), indptr, indices, data = csr
    count, parts = len(indices), max(data.itemsize // 8, 1)
    words = data.view(f"u{data.itemsize // parts}").reshape(count, parts)
    if m == n and _is_symmetric(indptr, indices, words, indptr[:-1].copy()):
        return None
    numbers = np.arange(count, dtype=narrowest(count))
    starts = indptr.astype(numbers.dtype, copy=False)  # SciPy converts all to the widest type
    columns = csr_array((numbers, indices, starts), shape=(m, n)).tocsc()
    order, rows = columns.data, columns.indices.astype(indices.dtype, copy=False)
    return Csr((n, m), columns.indptr.astype(np.int64), rows, data[order]), order


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
def _is_symmetric(indptr, indices, words, cursors):
    """Return True if a matrix has the entries of its transpose in the same order, bit for bit.

    Each entry of row i in column j must equal the entry at the cursor of row j, which must lie in column i.
    Most other matrices fail early. Indices are unsigned, so that Numba handles no negative ones.
    """
    for row in range(len(cursors)):
        for entry in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            column = np.uint64(indices[entry])
            place = np.uint64(cursors[column])
            if place >= np.uint64(indptr[column + np.uint64(1)]) or indices[place] != row:
                return False
            for word in range(words.shape[1]):
                if words[place, word] != words[entry, word]:
                    return False
            cursors[column] = place + np.uint64(1)
    return True


@_compile
def _sort_rows(indptr, indices, n, columns, order, words, spare, places, begin, end):
    """Sort the columns of some rows, and the numbers of the entries with them."""
    last = np.uint64(indptr[end])
    for row in range(begin, end):
        first, stop = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        # Vectors reach beyond their row; the next rows overwrite the numbers written there.
        reaches = first + np.uint64(LANES * MOST_VECTORS) <= last
        if not (reaches and _sort_in_registers(indices, first, stop - first, n, columns, order)):
            _sort_by_digits(indices, first, stop, columns, order, words, spare, places)


@_inline
def _sort_in_registers(indices, first, count, n, columns, order):
    """Sort a row in vector registers; return False if it is too long for them, or `n` too large.

    A key holds a column below `n` and, in the lower bits, its place in the row.
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
        The arrays of all rows; this row begins at `first` and ends before `stop`.
    words, spare : array of uint64
        Scratch with room for the row.
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


LANES = 16
"""Numbers of a vector register."""

MOST_VECTORS = 16
"""Vectors that stay in registers."""

KEY_BITS = 32
"""Bits of a key: a number and, in the lower bits, its place in the run."""

_VECTOR = ir.VectorType(I32, LANES)


@intrinsic(prefer_literal=True)
def sort_run(typing_context, numbers, first, count, ordered, order, vectors):
    """Sort a run of numbers stably, and their places with them.

    Parameters
    ----------
    numbers : array of integers of 4 or 8 bytes
        Not negative, and of at most `KEY_BITS` bits less the bits of a place in all vectors.
    first, count : uint64
        Where the run begins, and its numbers: at most `LANES` for each vector.
    ordered, order : array of integers
        They receive, in the places of the run, the sorted numbers and the place where each stood.
    vectors : integer
        The number of vectors: a literal, at most `MOST_VECTORS`. Each is read and written in full, beyond the
        end of the run too: a masked load or store takes much longer if a line is not in the first cache.

    Notes
    -----
    Two sorted runs, the second one reversed, form a bitonic run: it rises once and falls once. To sort it,
    compare each number of its first half with the number half a run further on, then do the same in each
    half, and so on.
    """
    size = vectors.literal_value
    bits = (LANES * size - 1).bit_length()

    def generate(context, builder, signature, arguments):
        first, count = arguments[1:3]

        def vector(argument: int, k: int) -> ir.Value:
            kind = signature.args[argument]
            at = builder.add(first, ir.Constant(first.type, LANES * k))
            of = ir.VectorType(ir.IntType(kind.dtype.bitwidth), LANES)
            return place_of(context, builder, kind, arguments[argument], at, of)

        keys = []
        for k in range(size):
            some = first_lanes(builder, builder.trunc(count, I32), LANES, LANES * k)
            own = resize_lanes(builder, load(builder, vector(0, k)), I32)
            places = ir.Constant(_VECTOR, list(range(LANES * k, LANES * (k + 1))))
            key = builder.or_(builder.shl(own, _all(bits)), places)
            keys.append(builder.select(some, key, _all(-1)))
        for k, key in enumerate(_sort_vectors(builder, keys)):
            to = vector(3, k)
            store(builder, resize_lanes(builder, builder.lshr(key, _all(bits)), to.type.pointee.element), to)
            to = vector(4, k)
            word = to.type.pointee.element
            begin = builder.trunc(first, word) if word.width < first.type.width else first
            stood = resize_lanes(builder, builder.and_(key, _all((1 << bits) - 1)), word)
            store(builder, builder.add(stood, splat(builder, begin, LANES)), to)
        return context.get_dummy_value()

    return types.void(numbers, first, count, ordered, order, vectors), generate


def _all(number: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [number] * LANES)


def _sort_vectors(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Return vectors with the sorted numbers of all `vectors`.

    The vectors missing to a power of two would hold the largest numbers, so they are left out.
    """
    run = 2
    while run < 2 * LANES * len(vectors):
        vectors = _compare(builder, vectors, run - 1)  # with the second half reversed
        apart = run // 4
        while apart:
            vectors = _compare(builder, vectors, apart)
            apart //= 2
        run *= 2
    return vectors


def _compare(builder: ir.IRBuilder, vectors: list[ir.Value], differ: int) -> list[ir.Value]:
    """Return vectors in which the lesser of two numbers whose places differ in these bits comes first."""
    across, inside = differ // LANES, differ % LANES
    high, found = 1 << inside.bit_length() >> 1, list(vectors)
    mirrored = [lane ^ inside for lane in range(LANES)]
    for k in range(len(vectors)):
        if k ^ across < k or k ^ across >= len(vectors):
            continue
        other = _shuffle(builder, vectors[k ^ across], vectors[k], mirrored)
        less = builder.icmp_unsigned("<", vectors[k], other)
        least, most = builder.select(less, vectors[k], other), builder.select(less, other, vectors[k])
        if across:
            found[k], found[k ^ across] = least, _shuffle(builder, most, most, mirrored)
        else:
            lanes = (lane + LANES * bool(lane & high) for lane in range(LANES))
            found[k] = _shuffle(builder, least, most, lanes)
    return found


def _shuffle(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Iterable[int]) -> ir.Value:
    """Return a vector of the named lanes of two vectors."""
    return builder.shuffle_vector(one, other, ir.Constant(_VECTOR, list(lanes)))
