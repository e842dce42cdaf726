"""Code the values of slices on the CPU in the fewest bits that hold them all, and decode them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dasp.formats.sell.pattern import MOST_CODES, Coding, Values, code_type
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Vector

CODE_BITS = 13
"""log2 of the slots of the hash table: with so many, values rarely collide."""

FEW = 64
"""Values that are tested first: they decide most cases, without compiled code."""

CHUNK = 1 << 13
"""Numbers that are rounded to float32 and compared at a time, so that they stay in the first caches."""


class Coded(NamedTuple):
    """Values as positions in a table of the distinct ones, which is empty if these are too many."""

    codes: Vector
    table: Vector


def choose_coding(data: Vector) -> tuple[Coding, Coded | None]:
    """See `Primitives`; with a dictionary come the codes.

    A test is made only if those before it leave the coding open.
    """
    if _are_equal(_view_bits(data)):
        return Coding.EQUAL, None
    if data.dtype.kind != "c" and _are_bytes(data):
        return Coding.BYTE, None
    coded = find_dictionary(data)
    if len(coded.table):
        return Coding.DICTIONARY, coded
    return (Coding.SINGLE if _are_singles(data) else Coding.PLAIN), None


def encode(data: Vector, coding: Coding, coded: Coded | None = None) -> tuple[Vector, Vector]:
    """Return the codes of all values, and the table that they refer to.

    `coded` is the result of `find_dictionary`, if known.
    """
    if coding == Coding.EQUAL:
        return np.zeros(0, np.uint8), data[:1].copy()
    if coding == Coding.DICTIONARY:
        return coded or find_dictionary(data)
    with np.errstate(under="ignore"):
        return data.astype(code_type(coding, data.dtype), copy=False), data[:0].copy()


def decode(values: Values, codes: Vector, count: int, dtype: np.dtype[Any]) -> Vector:
    """Return the `count` numbers, of a matrix's type, that codes stand for."""
    if values.coding == Coding.EQUAL:
        return np.full(count, values.table[0], dtype)
    if values.coding == Coding.DICTIONARY:
        found: Vector = values.table[codes]
        return found
    return codes.astype(dtype, copy=False)


def holds(data: Vector, coding: Coding, codes: int) -> bool:
    """Return True if a coding keeps every bit of every value, with a dictionary of at most `codes` values."""
    if coding == Coding.EQUAL:
        return _are_equal(_view_bits(data))
    if coding == Coding.DICTIONARY:
        return 0 < len(find_dictionary(data).table) <= codes
    if coding == Coding.BYTE:
        return _are_bytes(data)
    return coding == Coding.PLAIN or _are_singles(data)


def _view_bits(data: Vector) -> Vector:
    """Return the bits of numbers as unsigned integers, a row of two for a number of 16 bytes."""
    return data.view(f"u{data.itemsize}") if data.itemsize <= 8 else data.view(np.uint64).reshape(-1, 2)


def _are_equal(bits: Vector) -> bool:
    """Return True if all values have the same bits; the first few usually show that they have not."""
    return not any((part != bits[:1]).any() for part in (bits[:FEW], bits))


def _are_bytes(data: Vector) -> bool:
    """Return True if every real number is an integer from -128 to 127 and no zero is negative."""
    few = _widen(data[:FEW])
    with np.errstate(invalid="ignore"):
        if (np.rint(few) != few).any():
            return False
    numbers = _widen(data)
    bits = numbers.view(f"u{numbers.itemsize}")
    minus_zero = bits.dtype.type(1 << 8 * numbers.itemsize - 1)
    # All floats of this size are integers, so adding it rounds a small number to an integer.
    large = numbers.dtype.type(1.5) / np.finfo(numbers.dtype).eps

    def are_bytes(begin: int, end: int) -> bool:
        return bool(_all_bytes(numbers[begin:end], bits[begin:end], minus_zero, large))

    return all(over_ranges(len(data), len(data), are_bytes))


def find_dictionary(data: Vector) -> Coded:
    """Return each value's position in a table of the distinct values, in the order of their bits.

    If there are too many, the table is empty and the codes mean nothing.
    """

    def find(begin: int, end: int) -> tuple[Vector, Vector]:
        return _find_distinct(bits[begin:end], codes[begin:end]), codes[begin:end]

    bits, codes = _view_bits(data), np.empty(len(data), np.uint8)
    if bits.ndim == 1 and len(np.unique(bits[: 10 * FEW])) > MOST_CODES:
        return Coded(codes, data[:0])
    found = over_ranges(len(data), len(data), find)
    if not all(len(own) for own, _ in found):
        return Coded(codes, data[:0])
    every = np.concatenate([own for own, _ in found])
    distinct, numbers = np.unique(every, axis=0, return_inverse=True)
    if len(distinct) > MOST_CODES:
        return Coded(codes, data[:0])
    ends = np.cumsum([len(own) for own, _ in found])
    for (_, some), own_numbers in zip(found, np.split(numbers.ravel().astype(np.uint8), ends), strict=False):
        _renumber(some, own_numbers)
    table: Vector = distinct.ravel().view(data.dtype)
    return Coded(codes, table)


def _find_distinct(bits: Vector, codes: Vector) -> Vector:
    """Write each value's position among the distinct bit patterns; return these, none if too many."""
    code_of = np.full(1 << CODE_BITS, -1, np.int16)
    distinct = np.zeros((MOST_CODES, *bits.shape[1:]), bits.dtype)
    found: Vector = distinct[: _find_codes(bits, codes, code_of, distinct)]
    return found


def _widen(data: Vector) -> Vector:
    """Convert halves to float32, since Numba does not know them."""
    return data.astype(np.float32) if data.itemsize == 2 else data


def _are_singles(data: Vector) -> bool:
    """Return True if the values are double or complex double and float32 keeps all of their bits."""
    if real_type(data.dtype) != np.float64:
        return False
    parts = data.view(np.float64)

    def are_singles(begin: int, end: int) -> bool:
        for first in range(begin, end, CHUNK):
            some = parts[first : min(first + CHUNK, end)]
            with np.errstate(all="ignore"):
                kept = some.astype(np.float32).astype(np.float64)
            if (kept.view(np.uint64) != some.view(np.uint64)).any():
                return False
        return True

    return are_singles(0, min(FEW, len(parts))) and all(over_ranges(len(parts), len(parts), are_singles))


_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)


@_inline
def _match(one, i, other, k):
    if one.ndim == 1:
        return one[i] == other[k]
    return one[i, 0] == other[k, 0] and one[i, 1] == other[k, 1]


@_inline
def _fold(bits, i):
    if bits.ndim == 1:
        return np.uint64(bits[i])
    return bits[i, 0] ^ (bits[i, 1] << np.uint64(1) | bits[i, 1] >> np.uint64(63))


@_inline
def _copy(one, i, other, k):
    """Set one[i] to other[k]; Numba takes seconds to compile the assignment of a row."""
    if one.ndim == 1:
        one[i] = other[k]
    else:
        one[i, 0], one[i, 1] = other[k, 0], other[k, 1]


@_compile
def _all_bytes(data, bits, minus_zero, large):
    """Return True if every value is an integer from -128 to 127 and no zero is negative."""
    real = data.dtype.type
    low, high = real(-128), real(127)
    for begin in range(0, len(data), 1024):
        wrong = np.uint32(0)
        end = begin + 1024 if begin + 1024 < len(data) else len(data)
        for k in range(np.uint64(begin), np.uint64(end)):
            value = data[k]
            whole = real(real(value + large) - large)
            outside = (whole != value) | (value < low) | (value > high) | (bits[k] == minus_zero)
            wrong = np.uint32(wrong | np.uint32(outside))
        if wrong:
            return False
    return True


@_compile
def _find_codes(bits, codes, code_of, distinct):
    """Write codes and distinct bit patterns, and return the number of these, or 0 if too many.

    `code_of` is a hash table of -1. The caller makes the arrays, because Numba compiles allocations slowly.
    """
    count = 0
    for i in range(len(bits)):
        mixed = _fold(bits, i) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(64 - CODE_BITS))
        while code_of[slot] >= 0 and not _match(distinct, code_of[slot], bits, i):
            slot = (slot + 1) % len(code_of)
        if code_of[slot] < 0:
            if count == MOST_CODES:
                return 0
            code_of[slot] = count
            _copy(distinct, count, bits, i)
            count += 1
        codes[i] = code_of[slot]
    return count


@_compile
def _renumber(codes, numbers):
    for i in range(len(codes)):
        codes[i] = numbers[codes[i]]
