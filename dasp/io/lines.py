"""The lines of a Matrix Market file below its size line, read strictly, compiled.

A line is blank, or it holds what the header says and nothing else: a row and a column (unless the file is
an array) and one number (unless the field is a pattern; two if it is complex), separated by blanks or tabs.
Anything else is a `Fault`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dasp.io.decimal import INFINITY, nearest_bits
from dasp.runtime.cpu.compile import jit

SHORTEST_LINE = 2
"""Bytes of the shortest line that is not blank, its end counted."""


class Field(IntEnum):
    """How the number of a line is written."""

    PATTERN = 0
    REAL = 1
    INTEGER = 2
    UNSIGNED = 3
    COMPLEX = 4


class Fault(IntEnum):
    """What is wrong with a line."""

    NONE = 0
    INDEX = 1
    ROW = 2
    COLUMN = 3
    NUMBER = 4
    LEFT_OVER = 5
    TOO_LARGE = 6
    TOO_MANY = 7


NEEDED = {
    Fault.INDEX: "a row and a column are needed, as whole numbers",
    Fault.ROW: "its row is out of bounds",
    Fault.COLUMN: "its column is out of bounds",
    Fault.NUMBER: "its value must be a number of the kind that the header says",
    Fault.LEFT_OVER: "a line holds one entry and nothing else",
    Fault.TOO_LARGE: "its value is beyond the largest number of the field's type",
    Fault.TOO_MANY: "the size line promises fewer lines",
}
"""What is needed where a line is at fault, in words."""

_NONE, _INDEX, _ROW, _COLUMN = (int(Fault(place)) for place in range(4))
_NUMBER, _LEFT_OVER, _TOO_LARGE, _TOO_MANY = (int(Fault(place)) for place in range(4, 8))
_PATTERN, _REAL, _, _UNSIGNED, _COMPLEX = map(int, Field)

_NEGATIVE = np.uint64(1 << 63)
_NAN = np.uint64(0x7FF8 << 48)
# As many digits are sure to fit uint64, and int64.
_EXACT_DIGITS, _INDEX_DIGITS = 19, 18
# An index that is no smaller is beyond any matrix; it stays so when a digit is added.
_BEYOND = np.int64(9 * 10**17)
# Above this an exponent is beyond float64 whatever the digits of a line that is read at all.
_MOST_EXPONENT = 1 << 30
_TAB, _NEWLINE, _RETURN, _BLANK, _PLUS, _MINUS, _POINT = (ord(c) for c in "\t\n\r +-.")

_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)


@_inline
def _digit(text, place):  # type: ignore[no-untyped-def]
    """Return the digit at a place; more than 9 if there is none."""
    return np.uint8(text[place] - np.uint8(48))


@_inline
def _skip_blanks(text, place):  # type: ignore[no-untyped-def]
    # The first comparison alone decides where nothing is to be skipped, as nearly everywhere.
    while text[place] <= _BLANK and (text[place] == _BLANK or text[place] == _TAB):
        place += 1
    return place


@_inline
def _skip_end(text, place):  # type: ignore[no-untyped-def]
    """Return the start of the next line if the line ends here, else 0."""
    if text[place] == _NEWLINE:
        return place + 1
    if text[place] == _RETURN and text[place + 1] == _NEWLINE:
        return place + 2
    return 0


@_compile
def _read_long_index(text, place, end):  # type: ignore[no-untyped-def]
    """Return an index of many digits, which may be zeros; `_BEYOND` if it is no smaller."""
    value = np.int64(0)
    for i in range(place, end):
        value = min(10 * value + np.int64(_digit(text, i)), _BEYOND)
    return value


@_inline
def _read_index(text, place):  # type: ignore[no-untyped-def]
    """Read an index that counts from 1; return the place behind it and the index, -1 if there is none."""
    value, start = np.int64(0), place
    while _digit(text, place) <= 9:
        value = 10 * value + np.int64(_digit(text, place))
        place += 1
    if place - start > _INDEX_DIGITS:
        value = _read_long_index(text, start, place)
    # Whatever ends the index is looked at by the caller: a blank or the end of the line is needed.
    if place == start or text[place] > _BLANK:
        return place, np.int64(-1)
    return place, value


@_compile
def _read_word(text, place):  # type: ignore[no-untyped-def]
    """Read nan, inf or infinity in any case; return the place behind it and its bits, 0 if there is none."""
    length, word = 0, np.uint64(0)
    while length < 8 and 97 <= text[place + length] | 32 <= 122:
        word = word << np.uint64(8) | np.uint64(text[place + length] | 32)
        length += 1
    if word == np.uint64(0x6E616E):
        return place + length, _NAN
    if word == np.uint64(0x696E66) or word == np.uint64(0x696E66696E697479):
        return place + length, INFINITY
    return place, np.uint64(0)


@_compile
def _read_long(text, place, end, point):  # type: ignore[no-untyped-def]
    """Read 19 significant digits of the more that stand from `place` to `end`, with a point at `point`.

    Returns their number; the power of ten that the digits before the point which were left out stand for,
    less the digits behind it that were read; and whether a digit other than 0 was left out.
    """
    mantissa, taken, exponent, more = np.uint64(0), 0, 0, False
    for i in range(place, end):
        if i == point:
            continue
        digit = _digit(text, i)
        if taken < _EXACT_DIGITS:
            mantissa = np.uint64(10) * mantissa + np.uint64(digit)
            taken += 1 if mantissa else 0
            exponent -= 1 if i > point else 0
        else:
            more = more or digit > 0
            exponent += 1 if i < point else 0
    return mantissa, exponent, more


@_inline
def _read_real(text, place, powers):  # type: ignore[no-untyped-def]
    """Read a decimal number without its sign.

    Returns the place behind it, its bits, whether they are sure, and a fault. The letter of an exponent may
    be e or, as Fortran writes it, d.
    """
    start, mantissa = place, np.uint64(0)
    while _digit(text, place) <= 9:
        mantissa = np.uint64(10) * mantissa + np.uint64(_digit(text, place))
        place += 1
    point, exponent, digits = place, np.int64(0), place - start
    if text[place] == _POINT:
        place += 1
        while _digit(text, place) <= 9:
            mantissa = np.uint64(10) * mantissa + np.uint64(_digit(text, place))
            place += 1
        exponent = np.int64(point + 1 - place)
        digits = place - start - 1
    if digits == 0:
        place, bits = _read_word(text, start)
        return place, bits, True, _NONE if bits else _NUMBER
    more = False
    if digits > _EXACT_DIGITS:
        mantissa, exponent, more = _read_long(text, start, place, point)
    if text[place] | 32 == 100 or text[place] | 32 == 101:
        place += 1
        negative = text[place] == _MINUS
        if negative or text[place] == _PLUS:
            place += 1
        begin, written = place, np.int64(0)
        while _digit(text, place) <= 9:
            written = min(10 * written + np.int64(_digit(text, place)), np.int64(_MOST_EXPONENT))
            place += 1
        if place == begin:
            return place, np.uint64(0), True, _NUMBER
        exponent += -written if negative else written
    bits = nearest_bits(mantissa, exponent, powers)
    sure = not more or bits == nearest_bits(mantissa + np.uint64(1), exponent, powers)
    return place, bits, sure, _TOO_LARGE if bits == INFINITY and sure else _NONE


@_inline
def _read_whole(text, place, negative, unsigned):  # type: ignore[no-untyped-def]
    """Read a whole number behind its sign; return the place behind it, its bits, signed, and a fault."""
    start, value = place, np.uint64(0)
    most = np.uint64(2**64 - 1) if unsigned else np.uint64(2**63 - 1)
    most += np.uint64(negative)
    large = value > most
    while _digit(text, place) <= 9:
        digit = np.uint64(_digit(text, place))
        large = large or value > most // np.uint64(10) or np.uint64(10) * value > most - digit
        value = np.uint64(10) * value + digit
        place += 1
    if place == start or (negative and unsigned):
        return place, value, _NUMBER
    return place, (~value + np.uint64(1) if negative else value), _TOO_LARGE if large else _NONE


@_compile
def read_lines(  # type: ignore[no-untyped-def]
    text, place, end, most, indexed, field, m, n, rows, columns, bits, unsure, powers
):
    """Read lines into arrays, up to the first that is at fault.

    Parameters
    ----------
    text : numpy.ndarray, uint8
        From `place` to `end` whole lines, each with its end.
    place, end : int
    most : int
        How many entries there may be.
    indexed : bool
        Whether a line has a row and a column.
    field : int
        A `Field`.
    m, n : int
        Rows and columns of the matrix.
    rows, columns : numpy.ndarray, int32 or int64
        Room for the indices, which count from 0 here, of each line, if `indexed`.
    bits : numpy.ndarray, uint64
        Room for the number of each line: the bits of a float64, an int64 or a uint64, of both parts of a
        complex number one after the other; none for a pattern.
    unsure : numpy.ndarray, shape (u, 3), int64
        Room for the decimals that the digits which were read leave between two floats: place in `bits`, first
        byte (the sign's, if there is one) and the byte behind the last.
    powers : numpy.ndarray
        Of `dasp.io.decimal.powers_of_five`.

    Returns
    -------
    lines, entries, unsure : int
        How many lines were read, how many of them are not blank, and how many `unsure` lists.
    place : int
        The first byte of the line at fault, or `end`.
    fault : int
        A `Fault`.
    """
    lines = count = hard = 0
    numbers = 2 if field == _COMPLEX else 0 if field == _PATTERN else 1
    while place < end:
        line = place
        if text[place] <= _BLANK:
            place = _skip_blanks(text, place)
            following = _skip_end(text, place)
            if following:
                place = following
                lines += 1
                continue
        if count == most:
            return lines, count, hard, line, _TOO_MANY
        if indexed:
            place, row = _read_index(text, place)
            if row < 1 or row > m:
                return lines, count, hard, line, _INDEX if row < 0 else _ROW
            place = _skip_blanks(text, place)
            place, column = _read_index(text, place)
            if column < 1 or column > n:
                return lines, count, hard, line, _INDEX if column < 0 else _COLUMN
            rows[count], columns[count] = row - 1, column - 1
            place = _skip_blanks(text, place)
        for number in range(numbers * count, numbers * (count + 1)):
            start = place
            negative = text[place] == _MINUS
            if negative or text[place] == _PLUS:
                place += 1
            if field in (_REAL, _COMPLEX):
                place, value, sure, fault = _read_real(text, place, powers)
                value |= _NEGATIVE if negative else np.uint64(0)
                if not sure:
                    unsure[hard, 0], unsure[hard, 1], unsure[hard, 2] = number, start, place
                    hard += 1
            else:
                place, value, fault = _read_whole(text, place, negative, field == _UNSIGNED)
            if fault != _NONE:
                return lines, count, hard, line, fault
            bits[number] = value
            place = _skip_blanks(text, place)
        if text[place] == _NEWLINE:
            place += 1
        else:
            following = _skip_end(text, place)
            if not following:
                return lines, count, hard, line, _LEFT_OVER
            place = following
        lines += 1
        count += 1
    return lines, count, hard, end, _NONE


@_compile
def compress_rows(m, rows, columns, bits, mirror, sign, flip, indptr, indices, data):  # type: ignore[no-untyped-def]
    """Put entries into compressed rows, in the order in which they come.

    Parameters
    ----------
    m : int
    rows, columns : numpy.ndarray, shape (nnz,)
    bits : numpy.ndarray, shape (nnz,), uint64
    mirror : bool
        Whether each entry off the diagonal stands for one on the other side too.
    sign, flip : uint64
        The other one's bits are (bits ^ sign) + flip.
    indptr : numpy.ndarray, shape (m + 1,)
        Zeros; the first entry of each row when this returns.
    indices, data : numpy.ndarray
        Room for the columns and the bits.
    """
    for row in rows:
        indptr[row + 1] += 1
    if mirror:
        for e in range(len(rows)):
            if rows[e] != columns[e]:
                indptr[columns[e] + 1] += 1
    # The start of each row, one place to the right, where it moves on to the row's end.
    start = indptr[0]
    for i in range(1, m + 1):
        length = indptr[i]
        indptr[i] = start
        start += length
    for e in range(len(rows)):
        place = indptr[rows[e] + 1]
        indices[place], data[place] = columns[e], bits[e]
        indptr[rows[e] + 1] = place + 1
        if mirror and rows[e] != columns[e]:
            place = indptr[columns[e] + 1]
            indices[place], data[place] = rows[e], (bits[e] ^ sign) + flip
            indptr[columns[e] + 1] = place + 1
