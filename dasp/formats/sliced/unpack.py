"""The way back from slices: the row, the column and the value of every slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.array import PAD, WARP, Part, Plan, nbytes
from dasp.formats.sliced.pattern import Coding, Pattern, Values, Width, delta_views, shape_fields

Vector = np.ndarray[Any, Any]

PIECE = 1 << 15
"""Steps that are unpacked at a time, so that no more than the result takes memory."""


def unpack(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """Return the caller's row, the column (`PAD` for a pad) and the value of every slot.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.

    Returns
    -------
    rows, columns, values : numpy.ndarray, shape (32 * steps,)
        In the order of the slots; a row's entries in the order in which they were packed.
    """
    rows, columns = expand(plan.pattern)
    return rows, columns, decode(plan.values, len(columns), plan.dtype)


def decode(values: Values, slots: int, dtype: np.dtype[Any]) -> Vector:
    """Return the value of every slot; anything for a pad."""
    if values.coding == Coding.EQUAL:
        return np.full(slots, values.table[0], dtype)
    if values.coding == Coding.DICTIONARY:
        found: Vector = values.table[values.codes]
        return found
    plain: Vector = values.codes.astype(dtype)
    return plain


def expand(pattern: Pattern) -> tuple[Vector, Vector]:
    """Return the caller's row and the column of every slot; the column of a pad is `PAD`."""
    owner = np.repeat(
        np.arange(len(pattern.headers)), shape_fields(pattern.headers[:, 3].astype(np.int64))[0]
    )
    owners = np.empty((len(owner), WARP), pattern.index_dtype)
    columns = np.empty_like(owners)
    for begin in range(0, len(owner), PIECE):
        steps = slice(begin, begin + PIECE)
        owners[steps] = _owners(pattern, owner[steps])
        columns[steps] = _columns(pattern, owner[steps], steps)
    return owners.ravel(), columns.ravel()


def _owners(pattern: Pattern, owner: Vector) -> Vector:
    """Return the caller's row of the 32 slots of some steps, whose slices are given; `PAD` for nobody's."""
    _, first, _, shape = pattern.headers[owner].T.astype(np.int64)
    if not pattern.segments:
        long_rows = first[:0]
    else:
        long_rows = pattern.long_rows[pattern.segment_rows[np.minimum(first, pattern.segments - 1)]]
    position = first[:, None] + (np.arange(WARP) >> shape_fields(shape)[2][:, None])
    inside = np.minimum(position, max(pattern.positions - 1, 0))
    rows = pattern.rows[inside] if len(pattern.rows) else inside
    rows = np.where(position < pattern.positions, rows, PAD)
    of_segments = owner < pattern.segments
    rows[of_segments] = long_rows[of_segments, None] if pattern.segments else 0
    return rows


def _columns(pattern: Pattern, owner: Vector, steps: slice) -> Vector:
    """Return the column of the 32 slots of some steps, whose slices are given; `PAD` for a pad."""
    first_step, _, first_block, shape = pattern.headers[owner].T.astype(np.int64)
    width = shape_fields(shape)[3]
    inside = steps.start + np.arange(len(owner)) - first_step
    bases, lanes = pattern.bases[steps].astype(np.int64)[:, None], np.arange(WARP)
    columns: Vector = bases + lanes
    kinds = Width.BITS_8, Width.BITS_16, Width.BITS_32
    for kind, deltas in zip(kinds, delta_views(pattern.deltas), strict=True):
        mine = np.flatnonzero(width == kind)
        begin = (WARP * first_block[mine] >> kind - 1) + WARP * inside[mine]
        stored = deltas[begin[:, None] + lanes]
        columns[mine] = np.where(stored == np.iinfo(stored.dtype).max, PAD, bases[mine] + stored)
    return columns


def summary(plan: Plan) -> list[Part]:
    """Return one line: rows, entries, slots and bytes of all slices."""
    pattern, values = plan.pattern, plan.values
    slots = WARP * len(pattern.bases)
    rows = pattern.positions + len(pattern.long_rows)
    return [Part("slices", rows, pattern.entries, slots, nbytes(pattern, values))]
