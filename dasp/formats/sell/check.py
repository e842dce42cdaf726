"""Check the invariants of a plan of slices on every array."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dasp.formats.cost import MOST_STEPS
from dasp.formats.plan import WARP, Plan, check_offsets, check_permutation, require
from dasp.formats.sell.pattern import (
    MOST_CODES,
    MOST_COLUMNS,
    MOST_WARPS,
    SHAPE_BITS,
    Coding,
    Pattern,
    Values,
    Width,
    code_type,
    may_code,
    unpack_shape,
)
from dasp.runtime.types import Vector

_STEPS_AT_ONCE = 1 << 17
"""Steps that are checked together; each takes some hundred bytes of memory."""


def check(plan: Plan) -> None:
    """Check what `Pattern` and `Values` state, so that no product reads or writes out of bounds.

    As `dasp.formats.format.Format.check`; linear in the slots and the rows of the plan.
    """
    pattern, values = plan.pattern, plan.values
    _check_kinds(pattern)
    _check_choice(pattern)
    check_offsets(
        "segment_offsets",
        pattern.segment_offsets,
        pattern.index_dtype,
        len(pattern.long_rows),
        pattern.segments,
    )
    require((np.diff(pattern.segment_offsets) > 0).all(), "a long row has no segment")
    _check_values(values, plan.dtype, WARP * len(pattern.bases))
    _check_headers(pattern)
    _check_slots(pattern, values, plan.shape[1])
    _check_rows(pattern, plan.shape[0])


def _check_kinds(pattern: Pattern) -> None:
    index = pattern.index_dtype
    require(index in (np.int32, np.int64), f"index_dtype is {index}, not int32 or int64")
    kinds = {"headers": np.dtype(np.uint32), "deltas": np.dtype(np.uint8)}
    for name in ("headers", "deltas", "rows", "bases", "long_rows", "segment_offsets", "segment_rows"):
        array, kind = getattr(pattern, name), kinds.get(name, index)
        require(array.dtype == kind, f"{name} is {array.dtype}, not {kind}")
        require(array.ndim == 1 + (name == "headers"), f"{name} has {array.ndim} dimensions")
    width = pattern.headers.shape[1]
    require(width == 4, f"headers has {width} numbers to a slice, not 4")
    count = len(pattern.headers)
    require(0 <= pattern.segments <= count, f"{pattern.segments} of {count} slices are segments")


def _check_choice(pattern: Pattern) -> None:
    choice = pattern.choice
    require(1 <= choice.steps <= MOST_STEPS, f"steps is {choice.steps}, not from 1 to {MOST_STEPS}")
    longest = choice.segment_steps
    require(choice.steps <= longest <= MOST_STEPS, f"segment_steps is {longest}")
    require(0 <= choice.window <= MOST_COLUMNS, f"window is {choice.window}")
    require(1 <= choice.warps <= MOST_WARPS, f"warps is {choice.warps}, not from 1 to {MOST_WARPS}")


def _check_values(values: Values, dtype: np.dtype[Any], slots: int) -> None:
    codes, table, coding = values.codes, values.table, values.coding
    always = coding in (Coding.PLAIN, Coding.EQUAL, Coding.DICTIONARY)
    require(always or may_code(coding, dtype), f"values of {dtype} are coded as {coding.name}")
    kind = code_type(values.coding, dtype)
    slots = 0 if values.coding == Coding.EQUAL else slots
    require(codes.ndim == table.ndim == 1, "codes or table is no vector")
    require(codes.dtype == kind or not slots, f"codes is {codes.dtype}, not {kind}")
    require(len(codes) == slots, f"codes has {len(codes)} values, not {slots}")
    require(table.dtype == dtype, f"table is {table.dtype}, not {dtype}")
    least = int(values.coding in (Coding.EQUAL, Coding.DICTIONARY))
    most = MOST_CODES if values.coding == Coding.DICTIONARY else least
    require(least <= len(table) <= most, f"table has {len(table)} values, not from {least} to {most}")
    if values.coding == Coding.DICTIONARY and slots:
        require(codes.max() < len(table), f"a code is {codes.max()}; table has {len(table)} values")


def _check_headers(pattern: Pattern) -> None:
    """Check that steps, positions and deltas of the slices follow each other, segments first."""
    first_step, first, first_block, shape = pattern.headers.T.astype(np.int64)
    steps, full, shift, width = unpack_shape(shape)
    segments = pattern.segments
    require((shape < 1 << SHAPE_BITS).all(), "a slice's header has unknown bits")
    require((full <= steps).all(), "a slice has more full steps than steps")
    require((shift <= 5).all(), "a slice has more than 32 lanes to a row")
    require((shift[:segments] == 5).all(), "a segment has fewer than 32 lanes")
    _check_follow("steps", first_step, steps, len(pattern.bases))
    require(not len(pattern.deltas) % WARP, "deltas is not a whole number of blocks of 32 bytes")
    _check_follow("blocks of deltas", first_block, steps * (1 << width >> 1), len(pattern.deltas) // WARP)

    owners = np.repeat(np.arange(len(pattern.long_rows)), np.diff(pattern.segment_offsets))
    require(np.array_equal(pattern.segment_rows, owners), "segment_rows does not fit segment_offsets")
    turn = np.argsort(first[:segments], kind="stable")
    require(np.array_equal(first[turn], np.arange(segments)), "the segments do not cover the long rows")
    in_order = (np.diff(turn) > 0) | (np.diff(owners) > 0)
    require(in_order.all(), "the segments of a row do not follow each other")
    first, rows = first[segments:], WARP >> shift[segments:]
    end = int(rows.sum())
    _check_follow("positions", first, rows, end)
    last = rows[-1] if len(rows) else 1
    require(end - last < pattern.positions <= end, f"{pattern.positions} positions are in slices for {end}")


def _check_follow(name: str, firsts: Vector, sizes: Vector, end: int) -> None:
    follow = np.array_equal(firsts, np.cumsum(sizes) - sizes)
    require(follow and sizes.sum() == end, f"the slices' {name} do not follow each other from 0 to {end}")


def _check_slots(pattern: Pattern, values: Values, n: int) -> None:
    """Check that columns are in range, and that pads stand where a product expects them, with code 0."""
    bases, firsts = pattern.bases, pattern.headers[:, 0]
    require(not len(bases) or (bases.min() >= 0 and bases.max() < n), "bases are out of range")
    cuts = np.searchsorted(firsts, np.arange(0, len(bases), _STEPS_AT_ONCE), side="right") - 1
    cuts = np.unique([0, *cuts, len(firsts)])
    entries = sum(_check_steps(pattern, values, n, *cut) for cut in itertools.pairwise(cuts.tolist()))
    require(pattern.entries == entries, f"it says {pattern.entries} entries and has {entries}")


def _check_steps(pattern: Pattern, values: Values, n: int, start: int, end: int) -> int:
    """Check the steps of the slices from `start` to `end`, and return the number of their entries."""
    headers = pattern.headers[start:end].astype(np.int64)
    steps, full, shift, width = unpack_shape(headers[:, 3])
    owner = np.repeat(np.arange(len(steps)), steps)
    first = int(headers[0, 0])
    inside = np.arange(first, first + len(owner)) - headers[owner, 0]
    bases = pattern.bases[first : first + len(owner)]
    # Lanes of the last slice that have no row hold pads.
    lanes = np.full(len(steps), WARP)
    if end == len(pattern.headers) > pattern.segments:
        lanes[-1] = pattern.positions - int(headers[-1, 1]) << shift[-1]
    entries = 0
    for w in map(int, Width):
        of_width = np.flatnonzero(width[owner] == w)
        deltas = _list_deltas(pattern, headers[owner[of_width], 2], inside[of_width], w)
        pads = np.zeros(deltas.shape, bool) if w == 0 else deltas == np.iinfo(deltas.dtype).max
        most = bases[of_width] + np.where(pads, 0, deltas).max(axis=1, initial=0).astype(np.int64)
        require((most < n).all(), "columns of slices are out of range")
        full_steps = inside[of_width] < full[owner[of_width]]
        require(not pads[full_steps].any(), "a full step has a pad")
        outside = np.arange(WARP) >= lanes[owner[of_width], None]
        require(pads[outside].all(), "a lane without a row has an entry")
        if len(values.codes):
            codes = values.codes.reshape(-1, WARP)[first + of_width]
            require(not codes[pads].any(), "a pad's code is not 0")
        entries += int(pads.size - np.count_nonzero(pads))
    return entries


def _list_deltas(pattern: Pattern, block: Vector, inside: Vector, width: int) -> Vector:
    """Return the 32 deltas of each step of one width: the lanes' numbers if no delta is stored."""
    if width == 0:
        return np.broadcast_to(np.arange(WARP, dtype=np.uint8), (len(block), WARP))
    blocks = 1 << width - 1
    first = block + inside * blocks
    stored: Vector = pattern.deltas.reshape(-1, WARP)[(first[:, None] + np.arange(blocks)).ravel()]
    return stored.reshape(len(block), WARP * blocks).view(f"u{blocks}")


def _check_rows(pattern: Pattern, m: int) -> None:
    """Check that every row of the matrix is in a slice or cut into segments, once."""
    rows, positions, cut = pattern.rows, pattern.positions, pattern.long_rows
    if not len(rows):  # the rows in slices are the first ones, in their order
        require(positions + len(cut) == m, f"it has {positions + len(cut)} rows, not {m}")
        require(not len(cut) or cut.min() >= positions, "a row occurs twice")
        check_permutation(cut - positions, len(cut))
        return
    require(len(rows) == positions, f"rows has {len(rows)} rows, not {positions}")
    check_permutation(np.concatenate([rows, cut]), m)
