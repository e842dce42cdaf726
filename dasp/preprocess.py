"""Rows into categories, and the packing of each category: CSR -> Plan.

Where is a row of length L packed? Above `Policy.long_row`: `_pack_long`. From 5 up: `_pack_medium`.
From 1 to 4: `_pack_short`. Each function works in time linear in the entries it packs, and nothing
that it reads is modified.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from dasp import slices
from dasp._compile import jit
from dasp.plan import (
    GROUP,
    MAX_SHORT,
    MOST_WARPS,
    PAD,
    TILE,
    TILE_COLUMNS,
    TILE_ROWS,
    WARP,
    IrregularPart,
    LongPart,
    MediumPart,
    Plan,
    RegularPart,
    ShortPart,
    arrays_of,
)

Vector = np.ndarray[Any, Any]
HALF_WARP = WARP // 2

MOST_MEDIUM = 2**31 - 1
"""Entries of a medium row that the kernels count with 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a matrix is packed: into slices that fit it, or into the published format.

    Parameters
    ----------
    layout : {"auto", "slices", "published"}
        `slices` orders, cuts and narrows each matrix as its own rows, columns and values allow;
        `published` is the format of Lu and Liu, SC '23. `auto` is the faster one on the device, which is
        slices on a GPU and on the CPU, except for a matrix with 2^32 rows or columns.
    steps : int or None
        Slices: most steps of a slice, 1 to 4095. None chooses by the number of entries.
    window : int or None
        Slices: rows among which rows are sorted by length; 0 keeps the caller's order. None chooses.
    narrow : bool
        Slices: store values in fewer bits where every one of them keeps all of its own.
    warps : int or None
        Slices: how many of them a GPU multiplies in one block of threads, 1 to 16. None chooses.
    machine : {"gpu", "cpu"}
        Slices: for which `steps` and `window` are chosen where they are None. A plan that was made for one is
        right on the other, and mostly fast.
    long_row : int
        Published: rows with more entries than this are long. At least 4.
    fill : float
        Published: share of a tile's 32 slots that must hold entries for the tile to be regular, in (0, 1].
    segment : int
        Published: entries of a long row that one warp sums, a multiple of 64.
    row_blocks_2, row_blocks_4 : int
        Published: medium rows from which on a warp takes 2, and 4, row blocks of eight rows.
    mma : bool or None
        Multiply 8 x 4 tiles with tensor cores on a GPU that has them for the matrix's type, else with FMA.
        None does so in the published format only: slices are slower with them (docs/experiments.md).

    Raises
    ------
    TypeError, ValueError
        For a threshold of the wrong kind, or outside its range.

    Notes
    -----
    The thresholds of the published format are those of its paper, section 3.

    Examples
    --------
    >>> import dasp
    >>> dasp.Policy.published(fill=0.5).long_row
    256
    """

    layout: str = "auto"
    steps: int | None = None
    window: int | None = None
    narrow: bool = True
    warps: int | None = None
    machine: str = "gpu"
    long_row: int = 256
    fill: float = 0.75
    segment: int = 1024
    row_blocks_2: int = 59_990
    row_blocks_4: int = 400_000
    mma: bool | None = None

    def __post_init__(self) -> None:
        """Check every threshold."""
        if self.layout not in ("auto", "slices", "published"):
            raise ValueError(f"layout is {self.layout!r}; 'auto', 'slices' or 'published' is needed")
        optional = [name for name in ("steps", "window", "warps") if getattr(self, name) is not None]
        if self.machine not in ("gpu", "cpu"):
            raise ValueError(f"machine is {self.machine!r}; 'gpu' or 'cpu' is needed")
        for name in ("long_row", "segment", "row_blocks_2", "row_blocks_4", *optional):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}; it must be an int")
        if not isinstance(self.fill, Real) or isinstance(self.fill, bool):
            raise TypeError(f"fill is {self.fill!r}; it must be a float")
        for name in ("narrow", "mma"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)) and (name, value) != ("mma", None):
                raise TypeError(f"{name} is {value!r}; it must be True or False")
        if self.steps is not None and not 1 <= self.steps <= slices.MOST_STEPS:
            raise ValueError(f"steps is {self.steps}; it must be from 1 to {slices.MOST_STEPS}")
        if self.window is not None and self.window < 0:
            raise ValueError(f"window is {self.window}; it must not be negative")
        if self.warps is not None and not 1 <= self.warps <= MOST_WARPS:
            raise ValueError(f"warps is {self.warps}; it must be from 1 to {MOST_WARPS}")
        if not MAX_SHORT <= self.long_row <= MOST_MEDIUM:
            raise ValueError(f"long_row is {self.long_row}; it must be from {MAX_SHORT} to {MOST_MEDIUM}")
        if not 0 < self.fill <= 1:
            raise ValueError(f"fill is {self.fill}; it must be above 0 and at most 1")
        if self.segment <= 0 or self.segment % GROUP:
            raise ValueError(f"segment is {self.segment}; it must be a positive multiple of {GROUP}")
        if not 0 <= self.row_blocks_2 <= self.row_blocks_4:
            raise ValueError(
                f"row_blocks_2 is {self.row_blocks_2} and row_blocks_4 is {self.row_blocks_4}; "
                "they must satisfy 0 <= row_blocks_2 <= row_blocks_4"
            )

    @classmethod
    def auto(cls, **choices: Any) -> Policy:
        """Return the default: every choice left to the matrix and the device, unless it is given here."""
        return cls(**choices)

    @classmethod
    def published(cls, **thresholds: Any) -> Policy:
        """Return the published format (Lu and Liu, SC '23), with its thresholds unless others are given."""
        return cls(layout="published", **thresholds)

    @classmethod
    def measured(cls, A: Any, *, device: str = "auto", seconds: float = 0.1, **choices: Any) -> Policy:
        """Return the policy that was fastest for a matrix on a device, of a dozen that are planned and timed.

        Parameters
        ----------
        A : scipy.sparse array or matrix, shape (m, n)
        device : {"auto", "cpu", "cuda", "cuda:N"}
            As in `SpMatrix.from_scipy`.
        seconds : float
            Time for the samples of each candidate on the CPU; a GPU multiplies seven times twenty times.
        **choices
            Of the policy, which hold for every candidate.

        Returns
        -------
        Policy
            The default, unless another one was faster by 2%.

        Notes
        -----
        Takes as long as planning the matrix a dozen times and some hundred products.

        Examples
        --------
        >>> import dasp
        >>> A = dasp.models.generate("stencil27:12")
        >>> best = dasp.Policy.measured(A, device="cpu", seconds=0.001)
        >>> dasp.SpMatrix.from_scipy(A, policy=best, device="cpu").nnz == A.nnz
        True
        """
        from dasp.tuning.policy import fastest

        return fastest(A, cls(**choices), device=device, seconds=seconds)

    def on(self, device: str) -> Policy:
        """Return the policy for a device, `cpu` or `cuda:N`, with the layout that `auto` means there."""
        layout = "slices" if self.layout == "auto" else self.layout
        return dataclasses.replace(self, layout=layout, machine="cpu" if device == "cpu" else "gpu")


def preprocess(
    shape: tuple[int, int],
    indptr: Vector,
    indices: Vector,
    data: Vector,
    policy: Policy | None = None,
    *,
    index_dtype: np.typing.DTypeLike | None = None,
    offset_dtype: np.typing.DTypeLike | None = None,
) -> Plan:
    """Pack a CSR matrix into a plan.

    Parameters
    ----------
    shape : tuple of int
        (m, n).
    indptr : numpy.ndarray, shape (m + 1,), int32 or int64
        First entry of each row. Not checked: see `dasp._check.csr`.
    indices : numpy.ndarray, shape (nnz,), int32 or int64
        Column of each entry, each in [0, n), in any order inside a row, duplicates allowed.
    data : numpy.ndarray, shape (nnz,), float32 or float64
        Value of each entry.
    policy : Policy, optional
        How; `Policy.auto()` by default, where the layout `auto` means slices.
    index_dtype, offset_dtype : dtype, optional
        int32 or int64. By default the narrower one that holds every row and column, and every
        position in the packed arrays.

    Returns
    -------
    Plan
        NumPy arrays, read-only. `unpack` gives the matrix back.

    Notes
    -----
    Time is linear in m + nnz; about 10 ns an entry on one core.
    """
    policy = Policy() if policy is None else policy
    # The published format has at most twice the slots that the matrix has entries, and some per row block.
    most_slots = 2 * len(data) + 16 * shape[0] + TILE * WARP
    index = np.dtype(index_dtype or _narrowest(max(shape)))
    offset = np.dtype(offset_dtype or _narrowest(most_slots))
    indptr = indptr.astype(np.int64)
    published = policy.layout == "published" or max(shape) > slices.MOST_COLUMNS
    if not published:
        steps = policy.steps or slices.choose_steps(len(data), policy.machine)
        sliced = slices.pack(
            indptr,
            indices,
            data,
            index,
            steps=steps,
            segment_steps=policy.steps or max(steps, slices.MOST_CHOSEN),
            window=policy.window,
            narrow=bool(policy.narrow),
            warps=policy.warps,
            machine=policy.machine,
        )
        indptr, indices, data = np.zeros(1, np.int64), indices[:0], data[:0]
    else:
        sliced = slices.bare(data.dtype, index)
    rows = _Rows(indptr, indices, data)
    long_rows, medium_rows, short_rows, empty_rows = _categories(rows.lengths, policy, index)
    plan = Plan(
        shape=(int(shape[0]), int(shape[1])),
        dtype=data.dtype,
        index_dtype=index,
        offset_dtype=offset,
        mma=published if policy.mma is None else bool(policy.mma),
        slices=sliced,
        long=_pack_long(rows, long_rows, int(policy.segment), offset),
        medium=_pack_medium(rows, medium_rows, policy, offset),
        short=_pack_short(rows, short_rows),
        empty_rows=empty_rows,
    )
    for array in arrays_of(plan):
        array.flags.writeable = False
    return plan


def unpack(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """Give the matrix of a plan back as CSR, bit for bit, up to the order inside a row.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.

    Returns
    -------
    indptr : numpy.ndarray, shape (m + 1,), int64
    indices : numpy.ndarray, shape (nnz,), the plan's index type
    data : numpy.ndarray, shape (nnz,), the plan's type
        Explicit zeros and duplicates are there; pads are not.
    """
    entries = []
    for rows, columns, values in (slices.unpack(plan.slices, plan.dtype), *_slots(plan)):
        kept = columns != PAD
        entries.append((rows[kept], columns[kept], values[kept]))
    rows, columns, values = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
    return csr_from_coo(plan.shape[0], rows, columns, values)


def csr_from_coo(m: int, rows: Vector, columns: Vector, values: Vector) -> tuple[Vector, Vector, Vector]:
    """Sort entries by row, stably; duplicates and explicit zeros stay as they are.

    Parameters
    ----------
    m : int
        Rows of the matrix.
    rows, columns : numpy.ndarray, shape (nnz,), int32 or int64
        Each row in [0, m).
    values : numpy.ndarray, shape (nnz,)

    Returns
    -------
    indptr : numpy.ndarray, shape (m + 1,), int64
    indices, data : numpy.ndarray, shape (nnz,)
        With the types of `columns` and `values`.
    """
    indptr = np.zeros(m + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=m), out=indptr[1:])
    indices, data = np.empty_like(columns), np.empty_like(values)
    _scatter_entries(indptr[:-1].copy(), rows, columns, values, indices, data)
    return indptr, indices, data


def _narrowest(largest: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)


class _Rows:
    """The rows of a CSR matrix, to be copied run by run into the slots of a part."""

    def __init__(self, indptr: Vector, indices: Vector, data: Vector) -> None:
        self.starts = indptr[:-1].astype(np.int64)
        self.lengths = np.diff(indptr).astype(np.int64)
        self._indices = indices
        self._data = data

    def slots(self, count: int, index: np.dtype[Any]) -> tuple[Vector, Vector]:
        """Return the columns and values of `count` pads."""
        return np.full(count, PAD, index), np.zeros(count, self._data.dtype)

    def copy(self, starts: Vector, lengths: Vector, slots: Vector, columns: Vector, values: Vector) -> None:
        """Copy `lengths[i]` entries from entry `starts[i]` on to slot `slots[i]` and what follows it."""
        _copy_runs(self._indices, self._data, starts, lengths, slots, columns, values)

    def copy_tiles(
        self, starts: Vector, lengths: Vector, tiles: Vector, columns: Vector, values: Vector
    ) -> None:
        """Copy `lengths[i]` entries from entry `starts[i]` on to row i % 8 of the tiles of block i // 8."""
        _copy_tile_rows(self._indices, self._data, starts, lengths, tiles, columns, values)


def _categories(
    lengths: Vector, policy: Policy, index: np.dtype[Any]
) -> tuple[Vector, Vector, list[Vector], Vector]:
    """Return long rows, medium rows (longest first, stable), rows of 1, 2, 3 and 4, and empty rows."""
    long = np.flatnonzero(lengths > policy.long_row).astype(index)
    medium = np.flatnonzero((lengths > MAX_SHORT) & (lengths <= policy.long_row)).astype(index)
    short = [np.flatnonzero(lengths == k).astype(index) for k in range(1, MAX_SHORT + 1)]
    empty = np.flatnonzero(lengths == 0).astype(index)
    keys = policy.long_row - lengths[medium]
    if policy.long_row <= np.iinfo(np.int16).max:
        keys = keys.astype(np.int16)  # NumPy's stable sort of 16-bit keys is a radix sort, hence linear
    return long, medium[np.argsort(keys, kind="stable")], short, empty


def _pack_long(rows: _Rows, long_rows: Vector, segment: int, offset: np.dtype[Any]) -> LongPart:
    lengths = rows.lengths[long_rows]
    slots = -(-lengths // GROUP) * GROUP
    segments = -(-slots // segment)
    offsets = _starts(slots, offset)
    columns, values = rows.slots(int(offsets[-1]), long_rows.dtype)
    rows.copy(rows.starts[long_rows], lengths, offsets, columns, values)
    return LongPart(
        entries=int(lengths.sum()),
        segment=segment,
        rows=long_rows,
        offsets=offsets,
        segment_offsets=_starts(segments, offset),
        segment_rows=np.repeat(np.arange(len(long_rows), dtype=long_rows.dtype), segments),
        columns=columns,
        values=values,
    )


def _pack_medium(rows: _Rows, medium_rows: Vector, policy: Policy, offset: np.dtype[Any]) -> MediumPart:
    count = len(medium_rows)
    blocks = -(-count // TILE_ROWS)
    lengths = np.zeros(blocks * TILE_ROWS, np.int64)
    lengths[:count] = rows.lengths[medium_rows]
    starts = np.zeros_like(lengths)
    starts[:count] = rows.starts[medium_rows]

    tiles = _regular_tiles(lengths, policy.fill * TILE)
    in_tiles = np.minimum(lengths, TILE_COLUMNS * np.repeat(tiles, TILE_ROWS))
    tile_offsets = _starts(tiles, offset)
    tile_columns, tile_values = rows.slots(TILE * int(tile_offsets[-1]), medium_rows.dtype)
    rows.copy_tiles(starts, in_tiles, tile_offsets, tile_columns, tile_values)

    tails = lengths - in_tiles
    tail_offsets = _starts(tails, offset)
    tail_columns, tail_values = rows.slots(int(tail_offsets[-1]), medium_rows.dtype)
    rows.copy(starts + in_tiles, tails, tail_offsets, tail_columns, tail_values)
    return MediumPart(
        rows=_padded(medium_rows, len(lengths)),
        blocks_per_warp=1 + (count >= policy.row_blocks_2) + 2 * (count >= policy.row_blocks_4),
        regular=RegularPart(
            entries=int(in_tiles.sum()),
            offsets=tile_offsets,
            columns=tile_columns,
            values=tile_values,
        ),
        irregular=IrregularPart(
            entries=int(tails.sum()),
            offsets=tail_offsets,
            columns=tail_columns,
            values=tail_values,
        ),
    )


def _pack_short(rows: _Rows, short_rows: list[Vector]) -> ShortPart:
    ones, twos, threes, fours = short_rows
    pairs = min(len(ones), len(threes))
    singles = ones[pairs:]
    # Left-over rows of 3 join the rows of 4; both runs are sorted, so this stable sort is one merge.
    fours = np.sort(np.concatenate([fours, threes[pairs:]]), kind="stable")

    pairs_13 = _round_up(pairs, HALF_WARP)
    pairs_22 = _round_up(-(-len(twos) // 2), HALF_WARP)
    tile_rows = pairs_13 + pairs_22 + _round_up(len(fours), WARP)
    first_slots = TILE_COLUMNS * np.arange(tile_rows)
    slots_13, slots_22, slots_4 = np.split(first_slots, [pairs_13, pairs_13 + pairs_22])
    results = np.concatenate(
        [
            _by_half_warps(_padded(ones[:pairs], pairs_13), _padded(threes[:pairs], pairs_13)),
            _by_half_warps(_padded(twos[0::2], pairs_22), _padded(twos[1::2], pairs_22)),
            _padded(fours, len(slots_4)),
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
    return ShortPart(
        entries=int(lengths.sum()),
        pairs_13=pairs_13,
        pairs_22=pairs_22,
        fours=len(slots_4),
        singles=len(singles),
        rows=results,
        columns=columns,
        values=values,
    )


def _by_half_warps(first: Vector, second: Vector) -> Vector:
    """Give each warp 16 items of `first`, then 16 of `second`."""
    return np.stack([first.reshape(-1, HALF_WARP), second.reshape(-1, HALF_WARP)], axis=1).ravel()


def _padded(rows: Vector, count: int) -> Vector:
    padded = np.full(count, PAD, rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def _starts(counts: Vector, dtype: np.dtype[Any]) -> Vector:
    """Return where each run starts, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, dtype)
    np.cumsum(counts, out=starts[1:])
    return starts


def _slots(plan: Plan) -> list[tuple[Vector, Vector, Vector]]:
    """Return row, column and value of every slot of the published format; any row for a pad."""
    long, medium, short = plan.long, plan.medium, plan.short
    block_rows = medium.rows.reshape(-1, TILE_ROWS)
    tile_rows = np.repeat(block_rows, np.diff(medium.regular.offsets), axis=0)
    tiles = short.pairs_13 + short.pairs_22 + short.fours
    pieces, lone = np.split(short.rows, [len(short.rows) - short.singles])
    by_13, by_22, fours = np.split(pieces, [2 * short.pairs_13, 2 * short.pairs_13 + 2 * short.pairs_22])
    first_13, first_22 = (part.reshape(-1, 2, HALF_WARP) for part in (by_13, by_22))
    slots = np.empty((tiles, TILE_COLUMNS), short.rows.dtype)
    part_13, part_22, part_4 = np.split(slots, [short.pairs_13, short.pairs_13 + short.pairs_22])
    part_13[:, 0], part_13[:, 1:] = first_13[:, 0].ravel(), first_13[:, 1].reshape(-1, 1)
    part_22[:, :2], part_22[:, 2:] = first_22[:, 0].reshape(-1, 1), first_22[:, 1].reshape(-1, 1)
    part_4[:] = fours[:, None]
    rows = (
        (long, np.repeat(long.rows, np.diff(long.offsets))),
        (medium.regular, np.repeat(tile_rows.ravel(), TILE_COLUMNS)),
        (medium.irregular, np.repeat(medium.rows, np.diff(medium.irregular.offsets))),
        (short, np.concatenate([slots.ravel(), lone])),
    )
    return [(owners, part.columns, part.values) for part, owners in rows]


_compile = jit(nogil=True)


@_compile
def _regular_tiles(lengths: Vector, least: float) -> Vector:
    """Count the tiles of each row block up to the first with fewer than `least` entries."""
    tiles = np.empty(len(lengths) // TILE_ROWS, np.int64)
    for block in range(len(tiles)):
        tile = 0
        while True:
            entries = 0
            for row in range(TILE_ROWS * block, TILE_ROWS * (block + 1)):
                entries += min(max(lengths[row] - TILE_COLUMNS * tile, 0), TILE_COLUMNS)
            if entries == 0 or entries < least:
                break
            tile += 1
        tiles[block] = tile
    return tiles


@_compile
def _copy_runs(indices, data, starts, lengths, slots, columns, values):  # type: ignore[no-untyped-def]
    for run in range(len(lengths)):
        for k in range(lengths[run]):
            columns[slots[run] + k] = indices[starts[run] + k]
            values[slots[run] + k] = data[starts[run] + k]


@_compile
def _copy_tile_rows(indices, data, starts, lengths, tiles, columns, values):  # type: ignore[no-untyped-def]
    for row in range(len(lengths)):
        first = TILE * tiles[row // TILE_ROWS] + TILE_COLUMNS * (row % TILE_ROWS)
        for k in range(lengths[row]):
            slot = first + TILE * (k // TILE_COLUMNS) + k % TILE_COLUMNS
            columns[slot] = indices[starts[row] + k]
            values[slot] = data[starts[row] + k]


@_compile
def _scatter_entries(cursors, rows, columns, values, indices, data):  # type: ignore[no-untyped-def]
    for entry in range(len(rows)):
        slot = cursors[rows[entry]]
        indices[slot] = columns[entry]
        data[slot] = values[entry]
        cursors[rows[entry]] = slot + 1
