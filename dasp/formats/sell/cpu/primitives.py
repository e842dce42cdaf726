"""What packing into slices is written in, on the CPU: compiled loops over NumPy arrays.

`dasp.formats.sell.protocols.Primitives` says what each function returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dasp.formats.csr.cpu import operations as operations
from dasp.formats.csr.cpu.fetch import fetch
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP, Plan, narrowest
from dasp.formats.sell.choose import SliceStatistics, ValueStatistics
from dasp.formats.sell.cpu import columns
from dasp.formats.sell.cpu.lanes import copy_rows
from dasp.formats.sell.cpu.unpacking import Places
from dasp.formats.sell.cpu.unpacking import clear_pads as clear_pads
from dasp.formats.sell.cpu.unpacking import decode as decode
from dasp.formats.sell.cpu.unpacking import map_bytes as map_bytes
from dasp.formats.sell.cpu.unpacking import negated as negated
from dasp.formats.sell.cpu.unpacking import slots as slots
from dasp.formats.sell.cpu.unpacking import unpack as unpack
from dasp.formats.sell.cpu.windows import cut_runs, sampled_statistics, sort_rows
from dasp.formats.sell.cpu.windows import try_windows as _try_windows
from dasp.formats.sell.layout import Cut, Layout, Runs, Slices, Survey, Tried
from dasp.formats.sell.pattern import (
    MOST_CODES,
    REAL_PARTS,
    Coding,
    Values,
    code_type,
    may_code,
    shape_word,
)
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import over_ranges
from dasp.runtime.dtypes import bits_type, real_type
from dasp.runtime.integers import ceil_div
from dasp.runtime.memory import new_array

Vector = np.ndarray[Any, Any]

CODE_BITS = 13
"""Of a slot of the table of codes: with so many that values rarely meet, no branch is guessed wrong."""

PIECE = 1 << 16
"""Values that are widened, or looked at, at a time."""


class _Segments(NamedTuple):
    """Rows too long for one slice, cut: the first segment of each, whose each is, their order, their runs."""

    offsets: Vector
    rows: Vector
    in_turn: Vector
    runs: Runs


class _Placed(NamedTuple):
    """What a layout keeps for the steps that follow: slices and their runs, the segments' first."""

    slices: Slices
    runs: Runs
    in_turn: Vector


class _Coded(NamedTuple):
    """Values as numbers of a table of distinct ones."""

    codes: Vector
    table: Vector


def sort_columns(csr: Csr, survey: Survey) -> tuple[Csr, Vector]:
    """See `Primitives`."""
    return operations.sort_columns(csr)


def survey(csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`."""
    m, entries = csr.shape[0], len(csr.indices)
    lengths = np.empty(m, np.int32)
    found = over_ranges(m, entries, partial(_survey_rows, csr.indptr, csr.indices, WARP * cut.steps, lengths))
    falls, most, long_rows, rises = (list(each) for each in zip(*found, strict=True))
    counted, coded = _look_at_values(csr.data) if narrow and entries else (None, None)
    long = np.flatnonzero(lengths < 0) if sum(long_rows) else np.zeros(0, np.int64)
    # Where a range begins with a longer row than the one before it ends with, rows rise between them.
    cuts = [m * part // len(found) for part in range(1, len(found))] if not any(rises) else []
    rise = any(rises) or any(not never_rises(_around(lengths, cut)) for cut in cuts)
    longest = max(int(lengths.max(initial=0)), 0)
    detail = lengths, long, coded
    return Survey(not any(falls), int(max(most)), counted, len(long), longest, bool(rise), detail)


def _around(lengths: Vector, row: int) -> Vector:
    """Return the last length in a slice before a row, and the first one from there on."""
    before, after = (np.flatnonzero(part >= 0) for part in (lengths[:row], lengths[row:]))
    return np.concatenate([lengths[before[-1:]], lengths[row + after[:1]]])


def value_statistics(data: Vector) -> ValueStatistics:
    """Count what `choose_coding` asks for; a question is asked only where those before it leave it open."""
    return _look_at_values(data)[0]


def _look_at_values(data: Vector) -> tuple[ValueStatistics, _Coded | None]:
    """Return the statistics of values, and their codes in a dictionary if one was found."""
    if _all_equal(_bits(data)):
        return ValueStatistics(len(data), 1, False, False, False), None
    real = _are_real(data)
    if real and _are_bytes(data):
        return ValueStatistics(len(data), MOST_CODES + 1, True, False, False), None
    coded = _dictionary(data)
    if len(coded.table):
        return ValueStatistics(len(data), len(coded.table), False, False, False), coded
    halves = real and _survives(data, Coding.HALF)
    singles = not halves and _survives(data, Coding.SINGLE)
    parts = real and data.dtype.kind == "c"
    return ValueStatistics(len(data), MOST_CODES + 1, False, halves, singles, parts), None


def encode(
    data: Vector, coding: Coding, order: Vector | None = None, coded: _Coded | None = None
) -> tuple[Vector, Vector]:
    """Return the codes of all values, and the table of what they stand for.

    A dictionary's values are numbered as they first appear, in the order that is given if one is. `coded` is
    what `_dictionary` has found, if anybody asked; it is used up.
    """
    if coding == Coding.EQUAL:
        return np.zeros(0, np.uint8), data[:1].copy()
    if coding == Coding.DICTIONARY:
        codes, table = coded or _dictionary(data)
        numbers = _number_as_seen(codes, order, len(table)) if order is not None else np.zeros(0, np.uint8)
        if (numbers[1:] < numbers[:-1]).any():
            _renumber(codes, numbers)
            table = table[np.argsort(numbers)]
        return codes, table
    with np.errstate(under="ignore"):
        return _converted(data, coding), data[:0].copy()


def holds(data: Vector, coding: Coding, codes: int) -> bool:
    """Whether a coding keeps every bit of every value, with a dictionary of so many values at most."""
    if coding == Coding.EQUAL:
        return bool(_all_equal(_bits(data)))
    if coding == Coding.DICTIONARY:
        return 0 < len(_dictionary(data).table) <= codes
    if coding in REAL_PARTS and not _are_real(data):
        return False
    if coding == Coding.BYTE:
        return _are_bytes(data)
    return coding in (Coding.PLAIN, Coding.REAL) or _survives(data, coding)


def count_values(data: Vector) -> tuple[ValueStatistics, _Coded | None]:
    """See `Primitives`."""
    return _look_at_values(data)


def code_values(
    data: Vector,
    slots: Places | Vector,
    total: int,
    coding: Coding,
    counted: tuple[ValueStatistics, _Coded | None] | None,
) -> Values:
    """See `Primitives`."""
    codes, table = encode(data, coding, coded=counted and counted[1])
    if coding == Coding.EQUAL:
        return Values(coding, codes, table)
    stored = new_array(total, codes.dtype)
    if not isinstance(slots, Places):
        stored.view(np.uint8)[:] = 0
    _place(codes, slots, stored)
    return Values(coding, stored, table)


def recode_values(data: Vector, slots: Places | Vector, values: Values) -> bool:
    """See `Primitives`."""
    coded = _dictionary(data) if values.coding == Coding.DICTIONARY else None
    fits = 0 < len(coded.table) <= len(values.table) if coded else holds(data, values.coding, 0)
    if not fits:
        return False
    codes, table = encode(data, values.coding, coded=coded)
    overwrite(values.table, table)
    if values.coding != Coding.EQUAL:
        with _writable(values.codes):
            _place(codes, slots, values.codes)
    return True


def _place(codes: Vector, slots: Places | Vector, stored: Vector) -> None:
    """Write codes to where they go: those of slices row by row, others one by one."""
    if isinstance(slots, Places):
        _fill(codes, None, *slots, stored)
    else:
        scatter(codes, slots, stored)


def _fill(
    codes: Vector, order: Vector | None, slices: Slices, first_steps: Vector, runs: Runs, stored: Vector
) -> None:
    """Write the code of every slot of slices, 0 for a pad."""
    bits = bits_type(codes.dtype)  # Numba moves bits of any type, float16 included
    asked = [None if given is None else _read_only(given) for given in (codes.view(bits), order)]
    work = partial(_fill_values, *slices, *runs, *asked, first_steps, stored.view(bits))
    over_ranges(len(slices.steps), len(codes), work)


def _read_only(array: Vector) -> Vector:
    """Return a view that is read-only, whatever the array is, so that one compiled form serves all."""
    view = array.view()
    view.flags.writeable = False
    return view


def scale_entries(plan: Plan, slots: Any, left: Vector | None, right: Vector | None) -> None:
    """See `Primitives`: NumPy multiplies what is unpacked."""


def zeros(count: int, dtype: np.dtype[Any]) -> Vector:
    """See `Primitives`."""
    return np.zeros(count, dtype)


def scatter(numbers: Vector, slots: Vector, stored: Vector) -> None:
    """See `Primitives`."""
    with _writable(stored):
        bits = bits_type(numbers.dtype)
        arrays = numbers.view(bits), slots, stored.view(bits)
        over_ranges(len(slots), len(slots), partial(_scatter, *arrays))


def overwrite(array: Vector, numbers: Vector) -> None:
    """See `Primitives`."""
    with _writable(array):
        array[: len(numbers)] = numbers


@contextmanager
def _writable(array: Vector) -> Iterator[None]:
    """Let an array of a plan be written, which else is read-only."""
    before = array.flags.writeable
    array.flags.writeable = True
    try:
        yield
    finally:
        array.flags.writeable = before


def _bits(data: Vector) -> Vector:
    """Return the bits of numbers as unsigned integers, a row of two for a number of 16 bytes."""
    return data.view(f"u{data.itemsize}") if data.itemsize <= 8 else data.view(np.uint64).reshape(-1, 2)


def _are_real(data: Vector) -> bool:
    """Whether every value is real: of complex ones, has the imaginary part 0, and not -0."""
    if data.dtype.kind != "c":
        return True
    imaginary = data.imag.view(bits_type(real_type(data.dtype)))
    return not any(imaginary[first : first + PIECE].any() for first in range(0, len(data), PIECE))


def _are_bytes(data: Vector) -> bool:
    """Whether every real part is an integer from -128 to 127, and no zero is negative."""

    def are_bytes(begin: int, end: int) -> bool:
        return all(
            _all_bytes(piece, bits, bits.dtype.type(1 << 8 * piece.itemsize - 1))
            for first in range(begin, end, step)
            for piece in [_wide(data[first : min(first + step, end)].real)]
            for bits in [piece.view(f"u{piece.itemsize}")]
        )

    step = max(len(data), 1) if data.itemsize > 2 else PIECE
    return all(over_ranges(len(data), len(data), are_bytes))


def _dictionary(data: Vector) -> _Coded:
    """Return the distinct values, bit by bit, as they first appear, and the number of each value among them.

    Where there are too many the table is empty, and codes mean nothing.
    """

    def find(begin: int, end: int) -> tuple[Vector, Vector]:
        return _find_codes(bits, codes, begin, end), codes[begin:end]

    bits, codes = _bits(data), np.empty(len(data), np.uint8)
    found = over_ranges(len(data), len(data), find)
    if not all(len(own) for own, _ in found):
        return _Coded(codes, data[:0])
    distinct = found[0][0]
    if len(found) > 1:
        every = np.concatenate([own for own, _ in found])
        numbers = np.empty(len(every), np.uint8)
        distinct = _find_codes(every, numbers, 0, len(every))
        begin = len(found[0][0])
        for own, some in found[1:]:
            _renumber(some, numbers[begin : begin + len(own)])
            begin += len(own)
    table: Vector = distinct.ravel().view(data.dtype)
    return _Coded(codes, table)


def _wide(data: Vector) -> Vector:
    """Return real numbers in a type that Numba knows: halves as float32, which shares their zeros."""
    return data.astype(np.float32) if data.itemsize == 2 else data


def _converted(data: Vector, coding: Coding) -> Vector:
    """Return values in the type of a coding, the real parts of complex ones where it holds those."""
    kind = code_type(coding, data.dtype)
    numbers = np.ascontiguousarray(data.real) if coding in REAL_PARTS else data
    if kind.kind == numbers.dtype.kind == "c" and kind != numbers.dtype:
        return numbers.view(real_type(numbers.dtype)).astype(real_type(kind)).view(kind)
    return numbers.astype(kind, copy=False)


def _survives(data: Vector, coding: Coding) -> bool:
    """Whether every value keeps all of its bits in a narrower type.

    Of a coding that holds real parts, only these are asked of.
    """
    if not may_code(coding, data.dtype):
        return False
    kind, real = real_type(code_type(coding, data.dtype)), real_type(data.dtype)
    narrow, wide = np.finfo(kind), np.finfo(real)
    sizes = wide.nmant, wide.maxexp - 1, narrow.nmant, narrow.maxexp - 1, kind != np.float16
    parts = data.view(bits_type(real))
    if data.dtype.kind == "c" and coding in REAL_PARTS:
        parts = parts[::2]
    return all(over_ranges(len(parts), len(parts), partial(_keeps_bits, parts, *sizes)))


def try_windows(
    csr: Csr,
    survey: Survey,
    cut: Cut,
    windows: tuple[int, ...],
    sector_columns: int,
    blocks: tuple[int, int, int],
    tiles: int,
) -> Tried:
    """See `Primitives`."""
    lengths = survey.detail[0]
    return Tried(_try_windows(csr, lengths, cut.steps, windows, sector_columns, blocks, tiles), None)


def slice_statistics(
    csr: Csr, survey: Survey, cut: Cut, layout: Layout, sector_columns: int, blocks: tuple[int, int, int]
) -> SliceStatistics:
    """See `Primitives`."""
    return sampled_statistics(layout.detail.slices, layout.detail.runs, csr, sector_columns, blocks)


def lay_out(csr: Csr, survey: Survey, cut: Cut, window: int, tried: Tried | None) -> Layout:
    """See `Primitives`."""
    index, (lengths, long_rows, _) = narrowest(max(csr.shape)), survey.detail
    positions = len(lengths) - len(long_rows)
    unmoved = window == 0 and not len(long_rows)
    rows, runs = np.empty(0 if unmoved else positions, index), Runs(csr.indptr[:-1], lengths)
    if not unmoved:
        runs = Runs(np.empty(positions, csr.indptr.dtype), np.empty(positions, np.int32))
        sort_rows(csr.indptr, lengths, window, WARP * cut.steps, rows, *runs)
    slices = Slices(*cut_runs(runs.lengths, cut.steps))
    segments = _segments(csr, long_rows, cut, cut.in_order - len(slices.steps))
    if len(segments.rows):
        runs, slices = _segments_first(segments, runs, slices)
    words = np.zeros((len(slices.steps), 4), np.uint32)
    _write_headers(*slices, segments.in_turn, words)
    return Layout(
        positions=positions,
        segments=len(segments.rows),
        slices=len(slices.steps),
        steps=int(slices.steps.sum()),
        full=int(slices.full.sum()),
        segment_steps=int(slices.steps[: len(segments.rows)].sum()),
        rows=rows,
        headers=words,
        long_rows=long_rows.astype(index),
        segment_offsets=segments.offsets.astype(index),
        segment_rows=segments.rows.astype(index),
        detail=_Placed(slices, runs, segments.in_turn),
    )


def _segments(csr: Csr, long_rows: Vector, cut: Cut, few: int) -> _Segments:
    """Cut long rows into segments: row by row or, if there are more than `few`, by their first columns."""
    if not len(long_rows):
        return _Segments(np.zeros(1, np.int64), long_rows, long_rows, Runs(long_rows, long_rows))
    long = csr.indptr[long_rows + 1].astype(np.int64) - csr.indptr[long_rows]
    room = WARP * np.clip(ceil_div(long, WARP * cut.most_segments), cut.steps, cut.segment_steps)
    counts = ceil_div(long, room)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(len(long_rows)), counts)
    begun = room[rows] * (np.arange(len(rows)) - offsets[rows])
    starts = csr.indptr[long_rows].astype(np.int64)[rows] + begun
    lengths = np.minimum(long[rows] - begun, room[rows])
    in_turn = np.arange(len(rows))
    if len(rows) > few:
        # Neighbours meet the same x, and when the last segment of a row comes, the others have been summed.
        in_turn = np.argsort(csr.indices[starts], kind="stable")
    return _Segments(offsets, rows, in_turn, Runs(starts[in_turn], lengths[in_turn]))


def _segments_first(segments: _Segments, runs: Runs, slices: Slices) -> tuple[Runs, Slices]:
    """Put slices of one segment each, with 32 lanes, before the other slices, and their runs likewise."""
    count, lengths = len(segments.rows), segments.runs.lengths
    pairs = zip(segments.runs, runs, strict=True)
    together = Runs(*(np.concatenate([mine.astype(rest.dtype), rest]) for mine, rest in pairs))
    return together, Slices(
        np.concatenate([np.arange(count), slices.first_run + count]),
        np.concatenate([np.full(count, 5), slices.shift]),
        np.concatenate([ceil_div(lengths, WARP), slices.steps]),
        np.concatenate([lengths // WARP, slices.full]),
    )


def store(
    csr: Csr, survey: Survey, order: Vector | None, layout: Layout, coding: Coding
) -> tuple[Values, tuple[Vector, Vector, Vector, Vector]]:
    """See `Primitives`."""
    bases, deltas = columns.store_columns(csr, layout)
    values = store_values(csr, order, layout, coding, survey.detail[2])
    return values, (layout.rows, layout.headers, bases, deltas)


def store_values(
    csr: Csr, order: Vector | None, layout: Layout, coding: Coding, coded: _Coded | None = None
) -> Values:
    """See `Primitives.store`."""
    codes, table = encode(csr.data, coding, order, coded)
    stored = new_array(WARP * layout.steps if len(codes) else 0, codes.dtype)
    if len(stored):
        slices, runs, _ = layout.detail
        _fill(codes, order, slices, layout.headers[:, 0].astype(np.int64), runs, stored)
    return Values(coding, stored, table)


RUNS_AHEAD = 4
"""How far ahead of its turn a run is asked for whose values are read out of order."""

_compile = jit(nogil=True)
_inline = jit(nogil=True, forceinline=True)
_shape_word = _compile(shape_word)


SURVEYED_ROWS, SURVEYED_ENTRIES = 256, 1 << 20
"""Rows whose entries are looked at while the cache holds them, and entries counted at once."""


@_compile
def _survey_rows(indptr, indices, longest, lengths, begin, end):  # type: ignore[no-untyped-def]
    """Measure rows; long ones get a length of `PAD`.

    Returns whether columns fall inside a row, the largest column or -1, long rows, and whether a row in a
    slice is longer than the last one before it.
    """
    falls = long_rows = rises = 0
    most, last = indices.dtype.type(-1), np.int64(np.iinfo(np.int64).max)
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


@_compile
def _scatter(numbers, slots, stored, begin, end):  # type: ignore[no-untyped-def]
    for entry in range(begin, end):
        stored[slots[entry]] = numbers[entry]


@_compile
def _all_equal(bits):  # type: ignore[no-untyped-def]
    same = 1
    while same < len(bits) and _same(bits, same, bits, 0):
        same += 1
    return same == len(bits)


@_inline
def _same(one, i, other, k):  # type: ignore[no-untyped-def]
    if one.ndim == 1:
        return one[i] == other[k]
    return one[i, 0] == other[k, 0] and one[i, 1] == other[k, 1]


@_inline
def _folded(bits, i):  # type: ignore[no-untyped-def]
    if bits.ndim == 1:
        return np.uint64(bits[i])
    return bits[i, 0] ^ (bits[i, 1] << np.uint64(1) | bits[i, 1] >> np.uint64(63))


@_compile
def _write_headers(first_run, shifts, steps, full, in_turn, words):  # type: ignore[no-untyped-def]
    first_step = 0
    for s in range(len(steps)):
        words[s, 0] = first_step
        words[s, 1] = in_turn[s] if s < len(in_turn) else first_run[s] - len(in_turn)
        words[s, 3] = _shape_word(steps[s], full[s], shifts[s], 0)
        first_step += steps[s]


@_compile
def never_rises(lengths):  # type: ignore[no-untyped-def]
    """Whether no row is longer than the one before it, rows without a length left out: nothing to sort."""
    least = np.int64(np.iinfo(np.int64).max)
    for length in lengths:
        if length > least:
            return False
        if length >= 0:
            least = length
    return True


@_compile
def _keeps_bits(  # type: ignore[no-untyped-def]
    bits, fraction_bits, bias, narrow_bits, narrow_bias, quiets, begin, end
):
    """Whether numbers, as their bits, are those of a narrower type; of NaNs quiet ones alone, where asked."""
    ones, least = 2 * bias + 1, 1 - narrow_bias
    cut = fraction_bits - narrow_bits
    for i in range(begin, end):
        word = np.uint64(bits[i])
        fraction = word & ((np.uint64(1) << np.uint64(fraction_bits)) - np.uint64(1))
        field = np.int64(word >> np.uint64(fraction_bits)) & ones
        exponent, lost = field - bias, cut
        if field == ones:
            if quiets and fraction and not fraction >> np.uint64(fraction_bits - 1):
                return False
        elif field == 0:
            if fraction:
                return False
        elif exponent > narrow_bias or exponent < least - narrow_bits:
            return False
        else:
            lost += max(least - exponent, 0)  # bits below the last one of a subnormal number
        if fraction & ((np.uint64(1) << np.uint64(lost)) - np.uint64(1)):
            return False
    return True


@_compile
def _all_bytes(data, bits, minus_zero):  # type: ignore[no-untyped-def]
    """Whether every value is an integer from -128 to 127, and no zero is negative."""
    real = data.dtype.type
    # Next to numbers of this size stand integers alone, so that a sum with one rounds to an integer.
    low, high, large = real(-128), real(127), real(1.5) / np.finfo(data.dtype).eps
    for begin in range(0, len(data), 1024):
        wrong = np.uint32(0)
        for k in range(np.uint64(begin), np.uint64(min(begin + 1024, len(data)))):
            value = data[k]
            whole = real(real(value + large) - large)
            outside = (whole != value) | (value < low) | (value > high) | (bits[k] == minus_zero)
            wrong = np.uint32(wrong | np.uint32(outside))
        if wrong:
            return False
    return True


@_compile
def _find_codes(bits, codes, begin, end):  # type: ignore[no-untyped-def]
    """Return the distinct bit patterns as they appear; none if too many. Each value's code is written."""
    code_of = np.full(1 << CODE_BITS, -1, np.int16)
    distinct = np.zeros((MOST_CODES,) + bits.shape[1:], bits.dtype)  # noqa: RUF005 (Numba has no other way)
    count = 0
    for i in range(begin, end):
        mixed = _folded(bits, i) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(64 - CODE_BITS))
        while code_of[slot] >= 0 and not _same(distinct, code_of[slot], bits, i):
            slot = (slot + 1) % len(code_of)
        if code_of[slot] < 0:
            if count == MOST_CODES:
                return distinct[:0]
            code_of[slot], distinct[count] = count, bits[i]
            count += 1
        codes[i] = code_of[slot]
    return distinct[:count]


@_compile
def _number_as_seen(codes, order, count):  # type: ignore[no-untyped-def]
    """Return the number of each of so many codes, as they first appear in an order."""
    numbers, seen = np.full(count, -1, np.int16), 0
    for i in order:
        if numbers[codes[i]] < 0:
            numbers[codes[i]] = seen
            seen += 1
            if seen == count:
                break
    return numbers.astype(np.uint8)


@_compile
def _renumber(codes, numbers):  # type: ignore[no-untyped-def]
    for i in range(len(codes)):
        codes[i] = numbers[codes[i]]


@_compile
def _fill_values(  # type: ignore[no-untyped-def]
    first_run, shifts, steps, full, starts, lengths, codes, order, first_steps, values, begin, end
):
    """Write the code of every slot, 0 for a pad; without `order`, codes stand as the entries do."""
    most = steps[begin:end].max() if order is not None and begin < end else 0
    row_by_row, begins = np.empty(WARP * most, codes.dtype), np.empty(WARP, np.int64)
    for s in range(begin, end):
        slots = values[WARP * first_steps[s] : WARP * (first_steps[s] + steps[s])]
        if full[s] < steps[s]:
            slots[WARP * full[s] :] = 0
        first, last = first_run[s], min(first_run[s] + (WARP >> shifts[s]), len(lengths))
        if order is None:
            copy_rows(codes, starts[first:last], lengths[first:last], shifts[s], full[s], slots)
        else:
            _in_order(codes, order, starts, lengths, first, last, row_by_row, begins)
            copy_rows(row_by_row, begins[: last - first], lengths[first:last], shifts[s], full[s], slots)


@_inline
def _in_order(codes, order, starts, lengths, first, last, row_by_row, begins):  # type: ignore[no-untyped-def]
    """Write the codes of some runs one after another, in an order, and where each run begins then."""
    place = np.uint64(0)
    for run in range(first, last):
        begins[run - first] = place
        ahead = run + RUNS_AHEAD
        if ahead < len(starts):
            fetch(codes, np.uint64(starts[ahead]), np.uint64(lengths[ahead]))
        start = np.uint64(starts[run])
        for entry in range(start, start + np.uint64(lengths[run])):
            row_by_row[place] = codes[np.uint64(order[entry])]
            place += np.uint64(1)


@_compile
def scatter_entries(cursors, rows, columns, values, indices, data):  # type: ignore[no-untyped-def]
    """Copy each entry to where the cursor of its row stands, and move that on."""
    for entry in range(len(rows)):
        slot = cursors[rows[entry]]
        indices[slot] = columns[entry]
        data[slot] = values[entry]
        cursors[rows[entry]] = slot + 1
