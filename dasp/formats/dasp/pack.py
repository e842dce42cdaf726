"""Pack a matrix in the format of the paper, write other values for its pattern, and unpack it.

`_pack_long` packs rows with more than `Options.long_row` entries, `_pack_medium` others from 5 entries up,
and `_pack_short` rows of 1 to 4 entries. Each takes time linear in the entries that it packs.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import Csr
from dasp.formats.dasp.pattern import (
    HALF_WARP,
    LONG_UNIT,
    MAX_SHORT,
    NAME,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
    IrregularPart,
    LongPart,
    MediumPart,
    Options,
    Pattern,
    RegularPart,
    ShortPart,
    Values,
)
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import (
    PAD,
    WARP,
    Array,
    Part,
    Plan,
    arrays_of,
    csr_of_slots,
    nbytes,
    slots_of_entries,
)
from dasp.runtime.dtypes import bits_type
from dasp.runtime.process import load
from dasp.runtime.sizes import ceil_div, narrowest, round_up

Vector = np.ndarray[Any, Any]


def pack(csr: Csr, options: Options, model: CostModel, on: BasicPrimitives) -> Plan:
    """Pack a matrix in the format of the paper.

    Parameters
    ----------
    csr : Csr
        With NumPy arrays; not modified.
    options : Options
    model : CostModel
        The thresholds are the paper's, whatever the model says.
    on : BasicPrimitives
        Not used: the loops of this format are its own.

    Returns
    -------
    Plan
        With NumPy arrays.
    """
    index = narrowest(max(csr.shape))
    # There are at most twice as many slots as entries, and some for each row block.
    offset = narrowest(2 * len(csr.data) + 16 * csr.shape[0] + TILE * WARP)
    rows = _Rows(csr)
    long_rows, medium_rows, short_rows, empty_rows = _find_categories(rows.lengths, options, index)
    long, long_values = _pack_long(rows, long_rows, int(options.segment), offset)
    medium, regular_values, irregular_values = _pack_medium(rows, medium_rows, options, offset)
    short, short_values = _pack_short(rows, short_rows)
    pattern = Pattern(
        index_dtype=index,
        offset_dtype=offset,
        mma=bool(options.mma),
        long=long,
        medium=medium,
        short=short,
        empty_rows=empty_rows,
    )
    values = Values(long_values, regular_values, irregular_values, short_values)
    return Plan(NAME, csr.shape, csr.data.dtype, pattern, values)


class _Rows:
    """The rows of a CSR matrix, to be copied run by run into the slots of a part."""

    def __init__(self, csr: Csr) -> None:
        self.starts = csr.indptr[:-1].astype(np.int64)
        self.lengths = np.diff(csr.indptr).astype(np.int64)
        self._dtype, self._bits = csr.data.dtype, bits_type(csr.data.dtype)
        self._entries = csr.indices, csr.data.view(self._bits)
        self._loops = load("dasp.formats.dasp.cpu")  # with Numba, which `import dasp` leaves out

    def count_tiles(self, lengths: Vector, least: float) -> Vector:
        """Count the tiles of each row block up to the first with fewer than `least` entries."""
        tiles: Vector = self._loops.count_tiles(lengths, least)
        return tiles

    def slots(self, count: int, index: np.dtype[Any]) -> tuple[Vector, Vector]:
        """Return the columns and values of `count` pads."""
        return np.full(count, PAD, index), np.zeros(count, self._dtype)

    def copy(self, starts: Vector, lengths: Vector, slots: Vector, columns: Vector, values: Vector) -> None:
        """Copy `lengths[i]` entries, beginning with entry `starts[i]`, to the slots from `slots[i]` on."""
        self._loops.copy_runs(*self._entries, starts, lengths, slots, columns, values.view(self._bits))

    def copy_tiles(
        self, starts: Vector, lengths: Vector, tiles: Vector, columns: Vector, values: Vector
    ) -> None:
        """Copy `lengths[i]` entries from `starts[i]` on, to row i % 8 of the tiles of block i // 8."""
        self._loops.copy_tile_rows(*self._entries, starts, lengths, tiles, columns, values.view(self._bits))


def _find_categories(
    lengths: Vector, options: Options, index: np.dtype[Any]
) -> tuple[Vector, Vector, list[Vector], Vector]:
    """Return long rows, medium rows (longest first, stable), rows of 1, 2, 3, 4 entries, and empty rows."""
    long = np.flatnonzero(lengths > options.long_row).astype(index)
    medium = np.flatnonzero((lengths > MAX_SHORT) & (lengths <= options.long_row)).astype(index)
    short = [np.flatnonzero(lengths == k).astype(index) for k in range(1, MAX_SHORT + 1)]
    empty = np.flatnonzero(lengths == 0).astype(index)
    keys = options.long_row - lengths[medium]
    if options.long_row <= np.iinfo(np.int16).max:
        keys = keys.astype(np.int16)  # NumPy's stable sort of 16-bit keys is a radix sort, hence linear
    return long, medium[np.argsort(keys, kind="stable")], short, empty


def _pack_long(
    rows: _Rows, long_rows: Vector, segment: int, offset: np.dtype[Any]
) -> tuple[LongPart, Vector]:
    lengths = rows.lengths[long_rows]
    slots = round_up(lengths, LONG_UNIT)
    segments = ceil_div(slots, segment)
    offsets = _starts(slots, offset)
    columns, values = rows.slots(int(offsets[-1]), long_rows.dtype)
    rows.copy(rows.starts[long_rows], lengths, offsets, columns, values)
    part = LongPart(
        entries=int(lengths.sum()),
        segment=segment,
        rows=long_rows,
        offsets=offsets,
        segment_offsets=_starts(segments, offset),
        segment_rows=np.repeat(np.arange(len(long_rows), dtype=long_rows.dtype), segments),
        columns=columns,
    )
    return part, values


def _pack_medium(
    rows: _Rows, medium_rows: Vector, options: Options, offset: np.dtype[Any]
) -> tuple[MediumPart, Vector, Vector]:
    count = len(medium_rows)
    blocks = ceil_div(count, TILE_ROWS)
    lengths = np.zeros(blocks * TILE_ROWS, np.int64)
    lengths[:count] = rows.lengths[medium_rows]
    starts = np.zeros_like(lengths)
    starts[:count] = rows.starts[medium_rows]

    tiles = rows.count_tiles(lengths, options.fill * TILE)
    in_tiles = np.minimum(lengths, TILE_COLUMNS * np.repeat(tiles, TILE_ROWS))
    tile_offsets = _starts(tiles, offset)
    tile_columns, tile_values = rows.slots(TILE * int(tile_offsets[-1]), medium_rows.dtype)
    rows.copy_tiles(starts, in_tiles, tile_offsets, tile_columns, tile_values)

    tails = lengths - in_tiles
    tail_offsets = _starts(tails, offset)
    tail_columns, tail_values = rows.slots(int(tail_offsets[-1]), medium_rows.dtype)
    rows.copy(starts + in_tiles, tails, tail_offsets, tail_columns, tail_values)
    part = MediumPart(
        count=count,
        rows=_pad(medium_rows, len(lengths)),
        blocks_per_warp=1 + (count >= options.row_blocks_2) + 2 * (count >= options.row_blocks_4),
        regular=RegularPart(
            entries=int(in_tiles.sum()),
            rows=int(np.count_nonzero(np.repeat(tiles, TILE_ROWS)[:count])),
            offsets=tile_offsets,
            columns=tile_columns,
        ),
        irregular=IrregularPart(
            entries=int(tails.sum()),
            rows=int(np.count_nonzero(tails)),
            offsets=tail_offsets,
            columns=tail_columns,
        ),
    )
    return part, tile_values, tail_values


def _pack_short(rows: _Rows, short_rows: list[Vector]) -> tuple[ShortPart, Vector]:
    ones, twos, threes, fours = short_rows
    pairs = min(len(ones), len(threes))
    singles = ones[pairs:]
    # Left-over rows of 3 join the rows of 4; both runs are sorted, so this stable sort is one merge.
    fours = np.sort(np.concatenate([fours, threes[pairs:]]), kind="stable")

    pairs_13 = round_up(pairs, HALF_WARP)
    pairs_22 = round_up(ceil_div(len(twos), 2), HALF_WARP)
    tile_rows = pairs_13 + pairs_22 + round_up(len(fours), WARP)
    first_slots = TILE_COLUMNS * np.arange(tile_rows)
    slots_13, slots_22, slots_4 = np.split(first_slots, [pairs_13, pairs_13 + pairs_22])
    results = np.concatenate(
        [
            _by_half_warps(_pad(ones[:pairs], pairs_13), _pad(threes[:pairs], pairs_13)),
            _by_half_warps(_pad(twos[0::2], pairs_22), _pad(twos[1::2], pairs_22)),
            _pad(fours, len(slots_4)),
            singles,
        ]
    )
    slots = np.concatenate(
        [
            _by_half_warps(slots_13, slots_13 + 1),
            _by_half_warps(slots_22, slots_22 + 2),
            slots_4,
            TILE_COLUMNS * tile_rows + np.arange(len(singles)),
        ]
    )
    columns, values = rows.slots(TILE_COLUMNS * tile_rows + len(singles), singles.dtype)
    real = results != PAD
    lengths = rows.lengths[results[real]]
    rows.copy(rows.starts[results[real]], lengths, slots[real], columns, values)
    part = ShortPart(
        entries=int(lengths.sum()),
        pairs_13=pairs_13,
        pairs_22=pairs_22,
        fours=len(slots_4),
        singles=len(singles),
        rows=results,
        columns=columns,
    )
    return part, values


def _by_half_warps(first: Vector, second: Vector) -> Vector:
    """Give each warp 16 items of `first`, then 16 of `second`."""
    return np.stack([first.reshape(-1, HALF_WARP), second.reshape(-1, HALF_WARP)], axis=1).ravel()


def _pad(rows: Vector, count: int) -> Vector:
    padded = np.full(count, PAD, rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _starts(counts: Vector, dtype: np.dtype[Any]) -> Vector:
    """Return the start of each run, and the end of the last one."""
    starts = np.zeros(len(counts) + 1, dtype)
    np.cumsum(counts, out=starts[1:])
    return starts


def values_from(plan: Plan, data: Array, slots: Array, on: BasicPrimitives) -> Values:
    """Return the values of a plan with the same pattern; see `dasp.formats.format.Format`."""
    ends = [0, *accumulate(len(part) for part in arrays_of(plan.values))]
    stored = on.zeros(ends[-1], data.dtype)
    on.scatter(data, slots, stored)
    return Values(*(stored[begin:end] for begin, end in pairwise(ends)))


def values_into(plan: Plan, data: Array, slots: Array, on: BasicPrimitives) -> None:
    """Write values into the arrays of a plan, which can hold any."""
    new = values_from(plan, data, slots, on)
    for part, numbers in zip(arrays_of(plan.values), arrays_of(new), strict=True):
        on.overwrite(part, numbers)


def unpack(plan: Plan, on: BasicPrimitives) -> tuple[Vector, Vector, Vector]:
    """Return the matrix of a plan with NumPy arrays as CSR; `on` are the CPU's primitives."""
    return csr_of_slots(plan, *_expand(plan))


def find_slots(plan: Plan, on: BasicPrimitives) -> Vector:
    """Return the slot of every entry of a plan with NumPy arrays, in the caller's order of the entries."""
    found: Vector = slots_of_entries(plan, *_expand(plan)[:2])
    return found


def _expand(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """Return the caller's row, the column (`PAD` for a pad) and the value of every slot.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.

    Returns
    -------
    rows, columns, values : numpy.ndarray, shape (slots,)
        Part by part: long, regular, irregular, short. The row of a pad is arbitrary.
    """
    long, medium, short = plan.pattern.long, plan.pattern.medium, plan.pattern.short
    tile_rows = np.repeat(medium.rows.reshape(-1, TILE_ROWS), np.diff(medium.regular.offsets), axis=0)
    rows = (
        np.repeat(long.rows, np.diff(long.offsets)),
        np.repeat(tile_rows.ravel(), TILE_COLUMNS),
        np.repeat(medium.rows, np.diff(medium.irregular.offsets)),
        short_owners(short),
    )
    columns = long.columns, medium.regular.columns, medium.irregular.columns, short.columns
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(list(arrays_of(plan.values)))


def short_owners(short: ShortPart) -> Vector:
    """Return the caller's row of every slot of the short part, `PAD` where there is none."""
    tiles = short.pairs_13 + short.pairs_22 + short.fours
    pieces, lone = np.split(short.rows, [len(short.rows) - short.singles])
    by_13, by_22, fours = np.split(pieces, [2 * short.pairs_13, 2 * short.pairs_13 + 2 * short.pairs_22])
    first_13, first_22 = (part.reshape(-1, 2, HALF_WARP) for part in (by_13, by_22))
    slots = np.empty((tiles, TILE_COLUMNS), short.rows.dtype)
    of_13, of_22, of_4 = np.split(slots, [short.pairs_13, short.pairs_13 + short.pairs_22])
    of_13[:, 0], of_13[:, 1:] = first_13[:, 0].ravel(), first_13[:, 1].reshape(-1, 1)
    of_22[:, :2], of_22[:, 2:] = first_22[:, 0].reshape(-1, 1), first_22[:, 1].reshape(-1, 1)
    of_4[:] = fours[:, None]
    return np.concatenate([slots.ravel(), lone])


def list_parts(plan: Plan) -> list[Part]:
    """Return rows, entries, slots and bytes of each part; a medium row may count in both medium parts."""
    pattern, values = plan.pattern, plan.values
    long, short, empty = pattern.long, pattern.short, pattern.empty_rows
    regular, irregular = pattern.medium.regular, pattern.medium.irregular
    short_rows = plan.shape[0] - len(long.rows) - pattern.medium.count - len(empty)

    def part(name: str, rows: int, entries: int, slots: int, *arrays: Array) -> Part:
        return Part(name, rows, entries, slots, nbytes(*arrays))

    tiles, tails = len(regular.columns), len(irregular.columns)
    return [
        part("long", len(long.rows), long.entries, len(long.columns), long, values.long),
        part("regular", regular.rows, regular.entries, tiles, pattern.medium.rows, regular, values.regular),
        part("irregular", irregular.rows, irregular.entries, tails, irregular, values.irregular),
        part("short", short_rows, short.entries, len(short.columns), short, values.short),
        part("empty", len(empty), 0, 0, empty),
    ]
