"""Check the invariants of a plan in the format of the paper."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.dasp.pack import short_owners
from dasp.formats.dasp.pattern import (
    LONG_UNIT,
    MOST_MEDIUM,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
    IrregularPart,
    LongPart,
    MediumPart,
    Pattern,
    RegularPart,
    ShortPart,
)
from dasp.formats.plan import PAD, Plan, check_offsets, check_permutation, require
from dasp.runtime.dtypes import real_type
from dasp.runtime.sizes import ceil_div

Vector = np.ndarray[Any, Any]


def check(plan: Plan) -> None:
    """Check all that `Pattern` and `Values` state, so that no product reads or writes out of bounds.

    See `dasp.formats.format.Format`; this takes time linear in the slots and the rows of the plan.
    """
    pattern, values = plan.pattern, plan.values
    for kind in (pattern.index_dtype, pattern.offset_dtype):
        require(kind in (np.int32, np.int64), f"an integer type is {kind}, not int32 or int64")
    _check_sizes(pattern)
    medium = pattern.medium
    for name, part, numbers in (
        ("long", pattern.long, values.long),
        ("regular", medium.regular, values.regular),
        ("irregular", medium.irregular, values.irregular),
        ("short", pattern.short, values.short),
    ):
        _check_slots(name, part, numbers, plan)
    _check_long(pattern.long, pattern)
    _check_medium(medium, pattern)
    _check_short(pattern.short)
    _check_rows(pattern, plan.shape[0])


def _check_sizes(pattern: Pattern) -> None:
    """Check that arrays of rows are vectors of the index type, and that counts are not negative."""
    long, medium, short = pattern.long, pattern.medium, pattern.short
    for rows in (long.rows, medium.rows, short.rows, pattern.empty_rows):
        require(rows.ndim == 1, "an array of rows is no vector")
        require(rows.dtype == pattern.index_dtype, f"rows are {rows.dtype}, not {pattern.index_dtype}")
    sections = short.pairs_13, short.pairs_22, short.fours, short.singles
    require(min(sections) >= 0, "a section of the short part has a negative size")


def _check_slots(
    name: str, part: LongPart | RegularPart | IrregularPart | ShortPart, values: Vector, plan: Plan
) -> None:
    columns, index = part.columns, plan.pattern.index_dtype
    require(columns.ndim == values.ndim == 1, f"{name} holds no vectors")
    require(values.dtype == plan.dtype, f"{name} values are {values.dtype}, not {plan.dtype}")
    require(columns.dtype == index, f"{name} columns are {columns.dtype}, not {index}")
    require(len(columns) == len(values), f"{name} has {len(columns)} columns and {len(values)} values")
    if len(columns):
        require(columns.min() >= PAD and columns.max() < plan.shape[1], f"{name} columns are out of range")
    pads = columns == PAD
    entries = len(columns) - int(np.count_nonzero(pads))
    require(part.entries == entries, f"{name} says {part.entries} entries and has {entries}")
    part_bytes = real_type(values.dtype).itemsize
    bits = values.view(f"u{part_bytes}").reshape(len(values), values.itemsize // part_bytes)
    require(not bits[pads].any(), f"a pad of {name} has a value that is not 0")


def _check_long(part: LongPart, pattern: Pattern) -> None:
    rows, kind = len(part.rows), pattern.offset_dtype
    check_offsets("long offsets", part.offsets, kind, rows, len(part.columns))
    check_offsets("long segment_offsets", part.segment_offsets, kind, rows, len(part.segment_rows))
    whole = 0 < part.segment <= MOST_MEDIUM and part.segment % LONG_UNIT == 0
    require(whole, f"a segment is {part.segment} slots, not a positive multiple of {LONG_UNIT}")
    slots, segments = np.diff(part.offsets), np.diff(part.segment_offsets)
    require(not (part.offsets % LONG_UNIT).any(), f"long offsets are no multiples of {LONG_UNIT}")
    require((slots > 0).all(), "a long row has no slots")
    require((segments == ceil_div(slots, part.segment)).all(), "the segments do not cover the long rows")
    index = pattern.index_dtype
    require(part.segment_rows.dtype == index, f"segment_rows is {part.segment_rows.dtype}, not {index}")
    owners = np.repeat(np.arange(rows), segments)
    require(np.array_equal(part.segment_rows, owners), "segment_rows disagrees with its offsets")
    # A row's pads end its last unit: no slot follows a pad there, and other units have none.
    pads = (part.columns == PAD).reshape(-1, LONG_UNIT)
    last = np.zeros(len(pads), bool)
    last[part.offsets[1:] // LONG_UNIT - 1] = True
    require(not pads[~last].any(), "a long row has a pad before its last unit")
    require((pads[last, 1:] >= pads[last, :-1]).all(), "an entry of a long row follows a pad")
    require(not pads[last, 0].any(), "the last unit of a long row has no entry")


def _check_medium(part: MediumPart, pattern: Pattern) -> None:
    blocks, kind = len(part.rows) // TILE_ROWS, pattern.offset_dtype
    require(len(part.rows) == TILE_ROWS * blocks, "medium rows are not a whole number of row blocks")
    require(part.blocks_per_warp in (1, 2, 4), f"blocks_per_warp is {part.blocks_per_warp}")
    require(ceil_div(part.count, TILE_ROWS) == blocks, f"{blocks} row blocks hold {part.count} medium rows")
    absent = part.rows == PAD
    require(np.array_equal(absent, np.arange(len(absent)) >= part.count), "a medium row is missing")
    regular, irregular = part.regular, part.irregular
    tiles = len(regular.columns) // TILE
    require(len(regular.columns) == TILE * tiles, "the regular part is not a whole number of tiles")
    check_offsets("regular offsets", regular.offsets, kind, blocks, tiles)
    check_offsets("irregular offsets", irregular.offsets, kind, len(part.rows), len(irregular.columns))
    require(irregular.entries == len(irregular.columns), "the irregular part has a pad")
    tails = np.diff(irregular.offsets)
    require(not tails[absent].any(), "a medium row that is missing has entries")
    # Entries fill the rows of a tile from the left and its columns from above.
    entry = (regular.columns != PAD).reshape(-1, TILE_ROWS, TILE_COLUMNS)
    ordered = (entry[:, 1:] <= entry[:, :-1]).all() and (entry[:, :, 1:] <= entry[:, :, :-1]).all()
    require(ordered, "a tile has an entry after a pad")
    blocks_of = np.repeat(np.arange(blocks), np.diff(regular.offsets))
    beyond = absent.reshape(-1, TILE_ROWS)[blocks_of]
    require(not entry[beyond].any(), "a medium row that is missing has entries")
    in_tiles = int(np.count_nonzero(np.repeat(np.diff(regular.offsets), TILE_ROWS)[: part.count]))
    counted = in_tiles, int(np.count_nonzero(tails))
    said = regular.rows, irregular.rows
    require(said == counted, f"the medium parts say {said} rows and have {counted}")


def _check_short(part: ShortPart) -> None:
    results = 2 * part.pairs_13 + 2 * part.pairs_22 + part.fours + part.singles
    tile_slots = TILE_COLUMNS * (part.pairs_13 + part.pairs_22 + part.fours)
    require(len(part.rows) == results, f"short has {len(part.rows)} rows, its sections {results}")
    slots = tile_slots + part.singles
    require(len(part.columns) == slots, f"short has {len(part.columns)} slots, its sections {slots}")
    tile_rows = part.pairs_13 % 16, part.pairs_22 % 16, part.fours % 32
    require(tile_rows == (0, 0, 0), "a section of the short part is not a whole number of warps")
    entry, owned = part.columns != PAD, short_owners(part) != PAD
    may_lack = np.zeros(slots, bool)  # a row of 3 among those of 4 has no fourth entry
    may_lack[TILE_COLUMNS * (part.pairs_13 + part.pairs_22) : tile_slots][
        TILE_COLUMNS - 1 :: TILE_COLUMNS
    ] = 1
    require(not entry[~owned].any(), "a short row that is missing has entries")
    require(entry[owned & ~may_lack].all(), "a short row lacks an entry")
    require(owned[tile_slots:].all(), "a single row is missing")


def _check_rows(pattern: Pattern, m: int) -> None:
    """Check that every row of the matrix is in exactly one category."""
    categories = pattern.long.rows, pattern.medium.rows, pattern.short.rows, pattern.empty_rows
    together = np.concatenate(categories)
    together = together[together != PAD]
    require((pattern.long.rows != PAD).all() and (pattern.empty_rows != PAD).all(), "a row is missing")
    check_permutation(together, m)
