"""Rows into slices: their order, their lanes, the width of their columns and the coding of their values.

`pack` is the way in and `unpack` the way back. A *run* is what the lanes of one row of a slice share: all
entries of a row, or those of one segment of a row that is too long for a slice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dasp._compile import jit
from dasp.plan import (
    BITS_8,
    BITS_16,
    BITS_32,
    CODE_TYPES,
    FULL_SHIFT,
    LANES_MASK,
    LANES_SHIFT,
    MOST_CODES,
    MOST_WARPS,
    NONE,
    ONE_WAVE,
    PAD,
    PAD_8,
    PAD_16,
    PAD_32,
    STEPS_MASK,
    WARP,
    WIDTH_MASK,
    WIDTH_SHIFT,
    Coding,
    SlicePart,
    delta_views,
)

Vector = np.ndarray[Any, Any]

MOST_STEPS = STEPS_MASK
"""Steps of a slice that its header can count."""

MOST_COLUMNS = PAD_32
"""Columns that the widest deltas can tell apart, and rows that a header can count."""

WINDOWS = (0, 128, 512, 1024, 8192)
"""Sort windows that are tried, in rows; 0 leaves every row where it is. A GPU tries a sort over all too."""

STEPS = ((1_000_000, 8), (4_000_000, 16))
MOST_CHOSEN = 32
"""Most steps of a slice, by the entries below which they hold: a small matrix needs many short slices to
keep a GPU busy, a large one the fewer bytes of long slices. Measured on an H200."""

CPU_STEPS = 128
"""The same for a CPU, whose cores take whole runs of slices: one lane to a row wherever that is possible."""

CPU_ROW, CPU_SLICE, CPU_NEAR_COLUMNS = 0.5, 50, 1 << 17
CPU_NEAR, CPU_FAR = (0.6, 0.25, 0.0), (0.3, 0.6, 1.0)
"""Cost model of a CPU, in slots: a row that is stored out of order; a slice; and, where a core's own cache
holds x and where x has more columns than that, what a slot costs more in a step that may hold pads, a sector
of x for each slice that reads it, and for each `MANY_WARPS` slices. Measured on two cores of a Zen 4."""

ROW_BYTES, HEADER_BYTES, COLUMN_BYTES = 4, 16, 1.5
"""Cost model: bytes of a row's number, of a slice's header, and typically of a delta with its share of a
base."""

GATHER = 0.6
"""Cost model: time of a byte of x that a block gathers, over that of a byte of the plan. On an H200 from
0.3 (Markov chains) to 0.8 (power-law graphs)."""

MOST_BYTES = 1.15
"""A window is not taken if its plan is larger than the smallest one by more than this factor."""

MOST_SEGMENTS = 128
"""Segments of a row from which on they get longer instead of more: sums that a warp can take at once."""

FEW_WARPS, SOME_WARPS, MANY_WARPS = 4, 8, MOST_WARPS
LARGE_BLOCK, LEAST_SLOTS = 1.1, 224
"""Large blocks wait for their slowest warp: they cost a tenth, and more where slices have fewer slots."""

WAVE_SLOTS, TINY_SLOTS = 168, 88
"""Slots of a slice from which blocks of `SOME_WARPS` pay where all slices run at the same time, and up to
which they pay where slices take turns: a multiprocessor holds only so many blocks."""

SLOT_BYTES = 7
"""Cost model: a slot takes at least as long as so many bytes, however few it is stored in."""

SAMPLES = 24
"""Places at which the gathers of a plan are counted."""

PIECE = 1 << 16
"""Values that are tried at a time in a narrower type."""

SECTOR = 4
"""Doubles in a sector of the cache, 32 bytes: what a gather moves at the least."""

PLACES = 1 << 20
"""Sectors that can be told apart while gathers are counted."""


def bare(dtype: np.dtype[Any], index: np.dtype[Any]) -> SlicePart:
    """Return the slice part of a matrix whose rows are all elsewhere."""
    empty = np.zeros(0, index)
    return SlicePart(
        entries=0,
        coding=Coding.PLAIN,
        warps_per_block=FEW_WARPS,
        segments=0,
        positions=0,
        rows=empty,
        headers=np.zeros((0, 4), np.uint32),
        bases=empty,
        deltas=np.zeros(0, np.uint8),
        values=np.zeros(0, dtype),
        table=np.zeros(0, dtype),
        long_rows=empty,
        segment_offsets=np.zeros(1, index),
        segment_rows=empty,
    )


def pack(
    indptr: Vector,
    indices: Vector,
    data: Vector,
    index: np.dtype[Any],
    *,
    steps: int,
    segment_steps: int,
    window: int | None,
    narrow: bool,
    warps: int | None,
    machine: str = "gpu",
) -> SlicePart:
    """Pack a CSR matrix into slices.

    Parameters
    ----------
    indptr : numpy.ndarray, shape (m + 1,), int64
    indices, data : numpy.ndarray, shape (nnz,)
    index : dtype
        Type of rows and columns in the plan.
    steps : int
        Most steps of a slice, 1 to 4095; a row of more than 32 times as many entries is cut.
    segment_steps : int
        Most steps of a segment of a row that would have very many, `steps` to 4095.
    window : int or None
        Rows among which rows are sorted by length: 0 for none, m or more for all; None to choose.
    narrow : bool
        Whether values may be stored in fewer bits where each keeps all of its own.
    warps : int or None
        Slices to a block of threads on a GPU, 1 to 16; None to choose.
    machine : {"gpu", "cpu"}
        For which a window is chosen.

    Returns
    -------
    SlicePart
        NumPy arrays.
    """
    lengths = np.diff(indptr)
    indices, data = _sort_columns(indptr, indices, data)
    coding, table, codes = code_values(data) if narrow else (Coding.PLAIN, data[:0], data)

    value_bytes = codes.nbytes / max(len(data), 1)
    most = WARP * steps
    long_rows = np.flatnonzero(lengths > most)
    rest = np.where(lengths > most, PAD, lengths)
    if window is None and never_rises(rest):
        window = 0
    elif window is None and machine == "cpu":
        window = choose_cpu_window(indptr, indices, rest, steps)
    elif window is None:
        window = choose_window(indptr, indices, rest, steps, value_bytes)
    rows = sort_rows(rest, window, most)
    long = lengths[long_rows]
    room = WARP * np.clip(-(-long // (WARP * MOST_SEGMENTS)), steps, segment_steps)
    segments = -(-long // room)
    segment_offsets = np.concatenate([[0], np.cumsum(segments)])

    segment_rows = np.repeat(np.arange(len(long_rows)), segments)
    begun = room[segment_rows] * (np.arange(len(segment_rows)) - segment_offsets[segment_rows])
    starts = indptr[long_rows][segment_rows] + begun
    left = np.minimum(long[segment_rows] - begun, room[segment_rows])
    cut = _Slices(*cut_runs(lengths[rows], steps))
    in_turn = np.arange(len(segment_rows))
    if len(cut.steps) + len(in_turn) > ONE_WAVE:
        # Neighbours meet the same x, and when the last segment of a row comes, the others have been summed.
        in_turn = np.argsort(indices[starts], kind="stable")
    cut = cut.after(left[in_turn])
    runs = _Runs(
        np.concatenate([starts[in_turn], indptr[rows]]),
        np.concatenate([left[in_turn], lengths[rows]]),
        indices,
    )
    bases, widths = measure_columns(*cut, *runs, index.type(0))
    sizes = cut.steps * (1 << widths.astype(np.int64) >> 1)
    first_blocks = np.cumsum(sizes) - sizes
    deltas = np.zeros(WARP * int(sizes.sum()), np.uint8)
    values = np.zeros(WARP * len(bases) if len(codes) else 0, codes.dtype)
    bits = f"u{codes.itemsize}"  # Numba moves bits of any type, float16 included
    fill(*cut, *runs, codes.view(bits), bases, widths, first_blocks, delta_views(deltas), values.view(bits))
    firsts = cut.first_run - segment_offsets[-1]
    firsts[: segment_offsets[-1]] = in_turn
    first_steps = np.cumsum(cut.steps) - cut.steps
    shape = (
        cut.steps | cut.full << FULL_SHIFT | cut.shift << LANES_SHIFT | widths.astype(np.int64) << WIDTH_SHIFT
    )
    return SlicePart(
        entries=len(data),
        coding=coding,
        warps_per_block=warps or choose_warps(cut, runs, value_bytes),
        segments=int(segment_offsets[-1]),
        positions=len(rows),
        rows=np.zeros(0, index) if len(rows) == len(lengths) and window == 0 else rows.astype(index),
        headers=np.stack([first_steps, firsts, first_blocks, shape], axis=1).astype(np.uint32),
        bases=bases,
        deltas=deltas,
        values=values,
        table=table,
        long_rows=long_rows.astype(index),
        segment_offsets=segment_offsets.astype(index),
        segment_rows=segment_rows.astype(index),
    )


def unpack(part: SlicePart, dtype: np.dtype[Any]) -> tuple[Vector, Vector, Vector]:
    """Return the caller's row, the column (`PAD` for a pad) and the value of every slot.

    Parameters
    ----------
    part : SlicePart
        With NumPy arrays.
    dtype : dtype
        The matrix's type.

    Returns
    -------
    rows, columns, values : numpy.ndarray, shape (32 * steps,)
    """
    rows = part.rows if len(part.rows) else np.arange(part.positions, dtype=part.bases.dtype)
    segment_rows = part.long_rows[part.segment_rows]
    owners, columns = expand(part.headers, part.bases, delta_views(part.deltas), rows, segment_rows)
    if part.coding == Coding.EQUAL:
        values = np.full(len(columns), part.table[0], dtype)
    elif part.coding == Coding.DICTIONARY:
        values = part.table[part.values]
    else:
        values = part.values.astype(dtype)
    return owners, columns, values


def code_values(data: Vector) -> tuple[Coding, Vector, Vector]:
    """Choose the narrowest coding that keeps every bit.

    Returns
    -------
    coding : Coding
    table : numpy.ndarray, shape (t,)
        What codes stand for, of the type of `data`; empty where a code is the value itself.
    codes : numpy.ndarray, shape (nnz,), or (0,) if all values are equal
    """
    bits = data.view(f"u{data.itemsize}")
    if len(data) and (bits == bits[0]).all():
        return Coding.EQUAL, data[:1].copy(), np.zeros(0, np.uint8)
    if len(data) and all_bytes(data):
        return Coding.BYTE, data[:0], data.astype(np.int8)
    distinct, codes = find_codes(bits)
    if 0 < len(distinct) <= MOST_CODES:
        return Coding.DICTIONARY, distinct.view(data.dtype), codes
    for coding in (Coding.HALF, Coding.SINGLE):
        if len(data) and CODE_TYPES[coding] != data.dtype and survives(data, CODE_TYPES[coding]):
            with np.errstate(under="ignore"):
                return coding, data[:0], data.astype(CODE_TYPES[coding])
    return Coding.PLAIN, data[:0], data


def survives(data: Vector, kind: np.typing.DTypeLike) -> bool:
    """Whether every value keeps all of its bits in a narrower type; few matrices need more than one piece."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for first in range(0, len(data), PIECE):
            piece = data[first : first + PIECE]
            if piece.astype(kind).astype(data.dtype).tobytes() != piece.tobytes():
                return False
    return True


def choose_steps(entries: int, machine: str = "gpu") -> int:
    """Choose the most steps of a slice from the entries of the matrix, for a "gpu" or a "cpu"."""
    if machine == "cpu":
        return CPU_STEPS
    return next((steps for below, steps in STEPS if entries < below), MOST_CHOSEN)


def choose_window(indptr: Vector, indices: Vector, lengths: Vector, steps: int, value_bytes: float) -> int:
    """Choose the sort window with the cheapest plan: wide ones save pads, narrow ones gather less of x.

    Parameters
    ----------
    indptr : numpy.ndarray, shape (m + 1,)
    indices : numpy.ndarray, shape (nnz,)
    lengths : numpy.ndarray, shape (m,)
        Entries of each row; `PAD` for a row that is not in a slice.
    steps : int
        Most steps of a slice.
    value_bytes : float
        Bytes of a stored value.
    """
    costs = []
    for window in (*(window for window in WINDOWS if window < len(lengths)), len(lengths)):
        rows = sort_rows(lengths, window, WARP * steps)
        slices = _Slices(*cut_runs(lengths[rows], steps))
        size = plan_bytes(slices, value_bytes) + (ROW_BYTES * len(rows) if window else 0)
        gathers = gather_bytes(slices, _Runs(indptr[rows], lengths[rows], indices), FEW_WARPS)
        costs.append((size + GATHER * gathers, size, window))
    smallest = min(size for _, size, _ in costs)
    return min(cost for cost in costs if cost[1] <= MOST_BYTES * smallest)[2]


def choose_cpu_window(indptr: Vector, indices: Vector, lengths: Vector, steps: int) -> int:
    """Choose the sort window that costs a CPU least; parameters as for `choose_window`.

    The sums of a slice take about as long as its bytes take to arrive, so slots cost, whatever their bytes;
    and a sort over all rows would scatter what a core has in its cache.
    """
    pad_step, by_slice, by_block = CPU_NEAR if indices.max(initial=0) < CPU_NEAR_COLUMNS else CPU_FAR
    costs = []
    for window in sorted({min(window, len(lengths)) for window in WINDOWS}):
        rows = sort_rows(lengths, window, WARP * steps)
        slices = _Slices(*cut_runs(lengths[rows], steps))
        runs = _Runs(indptr[rows], lengths[rows], indices)
        slots, full = WARP * int(slices.steps.sum()), WARP * int(slices.full.sum())
        cost = slots + pad_step * (slots - full) + CPU_SLICE * len(slices.steps)
        cost += CPU_ROW * len(rows) if window else 0
        for weight, block in ((by_slice, 1), (by_block, MANY_WARPS)):
            cost += weight * gather_bytes(slices, runs, block) / (8 * SECTOR) if weight else 0
        costs.append((cost, window))
    return min(costs)[1]


def choose_warps(slices: _Slices, runs: _Runs, value_bytes: float) -> int:
    """Choose how many slices share a multiprocessor's cache.

    Large blocks pay where neighbouring slices gather the same sectors of x, so many that this is a good
    part of all traffic, as in a band of random columns.
    """
    count, slots = len(slices.steps), WARP * int(slices.steps.sum())
    some = slots >= WAVE_SLOTS * count if count <= ONE_WAVE else slots <= TINY_SLOTS * count
    least = SOME_WARPS if some else FEW_WARPS
    if count < SAMPLES * MANY_WARPS or slots < LEAST_SLOTS * count:
        return least
    few, many = (
        max(plan_bytes(slices, value_bytes) + GATHER * gather_bytes(slices, runs, warps), SLOT_BYTES * slots)
        for warps in (FEW_WARPS, MANY_WARPS)
    )
    return MANY_WARPS if LARGE_BLOCK * many < few else least


def plan_bytes(slices: _Slices, value_bytes: float) -> float:
    """Estimate the bytes of a plan, the numbers of its rows apart."""
    slots = WARP * int(slices.steps.sum())
    return slots * (value_bytes + COLUMN_BYTES) + HEADER_BYTES * len(slices.steps)


def gather_bytes(slices: _Slices, runs: _Runs, warps: int) -> float:
    """Estimate the bytes of x that blocks of so many warps gather; a sector counts once for each block.

    From a sample of places in the order of the slices.
    """
    count = len(slices.steps)
    if not count:
        return 0.0
    firsts = np.linspace(0, max(count - MANY_WARPS, 0), SAMPLES).astype(np.int64)
    sectors, steps = count_sectors(*slices, *runs, firsts, MANY_WARPS, warps)
    return float(8 * SECTOR * sectors * int(slices.steps.sum()) / max(steps, 1))


class _Runs(NamedTuple):
    """First entry and length of each run, and the columns of all entries."""

    starts: Vector
    lengths: Vector
    indices: Vector


class _Slices(NamedTuple):
    """Slices of runs: where each begins, log2 of its lanes to a run, its steps and its full steps."""

    first_run: Vector
    shift: Vector
    steps: Vector
    full: Vector

    def after(self, segments: Vector) -> _Slices:
        """Put slices of one run each, with 32 lanes, before these; `segments` holds the runs' lengths."""
        count = len(segments)
        return _Slices(
            np.concatenate([np.arange(count), self.first_run + count]),
            np.concatenate([np.full(count, 5), self.shift]),
            np.concatenate([-(-segments // WARP), self.steps]),
            np.concatenate([segments // WARP, self.full]),
        )


def _sort_columns(indptr: Vector, indices: Vector, data: Vector) -> tuple[Vector, Vector]:
    """Return entries with rising columns inside each row, so that neighbouring lanes read neighbouring x."""
    if columns_rise(indptr, indices):
        return indices, data
    indices, data = indices.copy(), data.copy()
    sort_columns(indptr, indices, data)
    return indices, data


_compile = jit(nogil=True)


@_compile
def columns_rise(indptr, indices):  # type: ignore[no-untyped-def]
    """Whether no row has a column after a larger one."""
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row] + 1, indptr[row + 1]):
            if indices[entry] < indices[entry - 1]:
                return False
    return True


@_compile
def sort_columns(indptr, indices, data):  # type: ignore[no-untyped-def]
    """Sort the entries of each row by column, equal columns in their old order."""
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        order = np.argsort(indices[begin:end], kind="mergesort")
        indices[begin:end] = indices[begin:end][order]
        data[begin:end] = data[begin:end][order]


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
def all_bytes(data):  # type: ignore[no-untyped-def]
    """Whether every value is an integer from -128 to 127, and no zero is negative."""
    for value in data:
        if not (-128 <= value <= 127) or value != np.floor(value) or (value == 0 and np.signbit(value)):
            return False
    return True


@_compile
def find_codes(bits):  # type: ignore[no-untyped-def]
    """Return the distinct bit patterns as they appear, and each value's code; nothing if too many."""
    slots = 4 * MOST_CODES
    keys = np.zeros(slots, bits.dtype)
    code_of = np.full(slots, -1, np.int64)
    distinct = np.zeros(MOST_CODES, bits.dtype)
    codes = np.zeros(len(bits), np.uint8)
    count = 0
    for i in range(len(bits)):
        mixed = np.uint64(bits[i]) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(54))  # the top ten bits: one of 1024 slots
        while code_of[slot] >= 0 and keys[slot] != bits[i]:
            slot = (slot + 1) % slots
        if code_of[slot] < 0:
            if count == MOST_CODES:
                return distinct[:0], codes[:0]
            keys[slot], code_of[slot], distinct[count] = bits[i], count, bits[i]
            count += 1
        codes[i] = code_of[slot]
    return distinct[:count], codes


@_compile
def sort_rows(lengths, window, longest):  # type: ignore[no-untyped-def]
    """Return the rows that are in slices, longest first inside each window, equal lengths in their order."""
    rows = np.empty(len(lengths), np.int64)
    count = 0
    if window == 0:
        for row in range(len(lengths)):
            if lengths[row] >= 0:
                rows[count] = row
                count += 1
        return rows[:count]
    cursors = np.zeros(longest + 2, np.int64)
    for begin in range(0, len(lengths), window):
        end = min(begin + window, len(lengths))
        most = 0
        for row in range(begin, end):
            if lengths[row] >= 0:
                cursors[lengths[row]] += 1
                most = max(most, lengths[row])
        for length in range(most, -1, -1):
            rows_of_length = cursors[length]
            cursors[length] = count
            count += rows_of_length
        for row in range(begin, end):
            if lengths[row] >= 0:
                rows[cursors[lengths[row]]] = row
                cursors[lengths[row]] += 1
        cursors[: most + 1] = 0
    return rows[:count]


@_compile
def cut_runs(lengths, steps):  # type: ignore[no-untyped-def]
    """Cut runs into slices of at most `steps` steps; return first runs, shifts, steps and full steps.

    A slice has as few lanes to a run as let its longest run end within `steps`.
    """
    first_run = np.empty(len(lengths), np.int64)
    shifts, counts, full = np.empty_like(first_run), np.empty_like(first_run), np.empty_like(first_run)
    slices = run = 0
    while run < len(lengths):
        shift = 0
        for i in range(run, min(run + WARP, len(lengths))):
            while i < run + (WARP >> shift) and lengths[i] > steps << shift:
                shift += 1
        most, least = 0, lengths[run] >> shift
        end = run + (WARP >> shift)
        for i in range(run, min(end, len(lengths))):
            most = max(most, lengths[i])
            least = min(least, lengths[i] >> shift)
        first_run[slices], shifts[slices] = run, shift
        counts[slices] = (most + (1 << shift) - 1) >> shift
        full[slices] = least if end <= len(lengths) else 0
        slices += 1
        run = end
    return first_run[:slices], shifts[:slices], counts[:slices], full[:slices]


@_compile
def count_sectors(  # type: ignore[no-untyped-def]
    first_run, shifts, steps, full, starts, lengths, indices, firsts, count, per_block
):
    """Count distinct sectors of x block by block in `count` slices from each of `firsts`, and their steps.

    Sectors of one block that are `PLACES` apart may count twice, so that a wide matrix needs no more memory.
    """
    most = 0
    for column in indices:
        most = max(most, column)
    places = min(most // SECTOR + 1, PLACES)
    holds, seen = np.zeros(places, indices.dtype), np.zeros(places, np.int32)
    block = sectors = all_steps = 0
    for first in firsts:
        for s in range(first, min(first + count, len(steps))):
            all_steps += steps[s]
            if (s - first) % per_block == 0:
                block += 1
            end = min(first_run[s] + (WARP >> shifts[s]), len(lengths))
            for run in range(first_run[s], end):
                for entry in range(starts[run], starts[run] + lengths[run]):
                    sector = indices[entry] // SECTOR
                    place = sector % places
                    if seen[place] != block or holds[place] != sector:
                        seen[place], holds[place] = block, sector
                        sectors += 1
    return sectors, all_steps


@_compile
def measure_columns(first_run, shifts, steps, full, starts, lengths, indices, zero):  # type: ignore[no-untyped-def]
    """Return the least column of every step, and for every slice the width that its deltas need."""
    bases = np.full(np.sum(steps), zero)
    widths = np.empty(len(steps), np.uint8)
    first_step = 0
    for s in range(len(steps)):
        lanes = 1 << shifts[s]
        end = min(first_run[s] + (WARP >> shifts[s]), len(lengths))
        span = np.int64(0)
        lane_is_delta = lanes == 1 and full[s] == steps[s]
        for k in range(steps[s]):
            least, most = np.int64(-1), np.int64(-1)
            for run in range(first_run[s], end):
                for i in range(k * lanes, min((k + 1) * lanes, lengths[run])):
                    column = np.int64(indices[starts[run] + i])
                    least = column if least < 0 else min(least, column)
                    most = max(most, column)
            bases[first_step + k] = least
            if most - least > span:
                span = most - least
            if lane_is_delta:
                for run in range(first_run[s], end):
                    if indices[starts[run] + k] - least != run - first_run[s]:
                        lane_is_delta = False
                        break
        first_step += steps[s]
        if lane_is_delta:
            widths[s] = NONE
        elif span < PAD_8:
            widths[s] = BITS_8
        else:
            widths[s] = BITS_16 if span < PAD_16 else BITS_32
    return bases, widths


@_compile
def fill(  # type: ignore[no-untyped-def]
    first_run,
    shifts,
    steps,
    full,
    starts,
    lengths,
    indices,
    codes,
    bases,
    widths,
    first_blocks,
    deltas,
    values,
):
    """Write the deltas and the values of every slot."""
    bytes_of, words_of, doubles_of = deltas
    first_step = 0
    for s in range(len(steps)):
        shift, width = shifts[s], widths[s]
        lanes = 1 << shift
        first_delta = 32 * first_blocks[s] >> max(width - 1, 0)
        for row in range(WARP >> shift):
            run = first_run[s] + row
            length = lengths[run] if run < len(lengths) else 0
            for i in range(steps[s] << shift):
                k = i >> shift
                inside = WARP * k + row * lanes + (i & (lanes - 1))
                delta = np.uint64(PAD_32)
                if i < length:
                    delta = np.uint64(indices[starts[run] + i] - bases[first_step + k])
                    if len(codes):
                        values[WARP * first_step + inside] = codes[starts[run] + i]
                if width == BITS_8:
                    bytes_of[first_delta + inside] = delta & np.uint64(PAD_8)
                elif width == BITS_16:
                    words_of[first_delta + inside] = delta & np.uint64(PAD_16)
                elif width == BITS_32:
                    doubles_of[first_delta + inside] = delta
        first_step += steps[s]


@_compile
def expand(headers, bases, deltas, rows, segment_rows):  # type: ignore[no-untyped-def]
    """Return the caller's row and the column of every slot; the column of a pad is `PAD`."""
    bytes_of, words_of, doubles_of = deltas
    owners, columns = np.empty(WARP * len(bases), bases.dtype), np.empty(WARP * len(bases), bases.dtype)
    for s in range(len(headers)):
        first_step, first, first_block, shape = headers[s]
        steps, shift = shape & STEPS_MASK, (shape >> LANES_SHIFT) & LANES_MASK
        width = (shape >> WIDTH_SHIFT) & WIDTH_MASK
        first_delta = (32 * np.int64(first_block)) >> (np.int64(width) - (width > 0))
        for inside in range(WARP * steps):
            lane = inside % WARP
            slot = WARP * np.int64(first_step) + inside
            if s < len(segment_rows):
                owners[slot] = segment_rows[first]
            else:
                position = np.int64(first) + (lane >> shift)
                owners[slot] = rows[position] if position < len(rows) else PAD
            delta, pad = np.int64(lane), False
            if width == BITS_8:
                delta = np.int64(bytes_of[first_delta + inside])
                pad = delta == PAD_8
            elif width == BITS_16:
                delta = np.int64(words_of[first_delta + inside])
                pad = delta == PAD_16
            elif width == BITS_32:
                delta = np.int64(doubles_of[first_delta + inside])
                pad = delta == PAD_32
            columns[slot] = PAD if pad else bases[first_step + inside // WARP] + delta
    return owners, columns
