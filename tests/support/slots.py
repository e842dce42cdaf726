"""The reference for the slots of a plan in SELL: the row, column and value of each, by NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.plan import PAD, WARP, Plan
from dasp.formats.sell.pattern import Coding, Pattern, Values, Width, unpack_shape

Vector = np.ndarray[Any, Any]


def expand(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """Return the caller's row, the column (`PAD` for a pad) and the value (any for a pad) of every slot."""
    pattern = plan.pattern
    steps = unpack_shape(pattern.headers[:, 3].astype(np.int64))[0]
    owner = np.repeat(np.arange(len(pattern.headers)), steps)
    columns = _columns(pattern, owner).ravel().astype(pattern.index_dtype)
    return _owners(pattern, owner).ravel(), columns, decode(plan.values, len(columns), plan.dtype)


def decode(values: Values, slots: int, dtype: np.dtype[Any]) -> Vector:
    """Return the value of every slot; a pad's may be any."""
    if values.coding == Coding.EQUAL:
        return np.full(slots, values.table[0], dtype)
    if values.coding == Coding.DICTIONARY:
        found: Vector = values.table[values.codes]
        return found
    plain: Vector = values.codes.astype(dtype)
    return plain


def _owners(pattern: Pattern, owner: Vector) -> Vector:
    """Return the caller's row of the 32 slots of some steps, given their slices; `PAD` if there is none."""
    _, first, _, shape = pattern.headers[owner].T.astype(np.int64)
    if not pattern.segments:
        long_rows = first[:0]
    else:
        long_rows = pattern.long_rows[pattern.segment_rows[np.minimum(first, pattern.segments - 1)]]
    position = first[:, None] + (np.arange(WARP) >> unpack_shape(shape)[2][:, None])
    inside = np.minimum(position, max(pattern.positions - 1, 0))
    rows = pattern.rows[inside] if len(pattern.rows) else inside
    rows = np.where(position < pattern.positions, rows, PAD)
    of_segments = owner < pattern.segments
    rows[of_segments] = long_rows[of_segments, None] if pattern.segments else 0
    return rows


def view_deltas(deltas: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the deltas of a pattern as 8, as 16 and as 32 bits each."""
    return deltas, deltas.view(np.uint16), deltas.view(np.uint32)


def _columns(pattern: Pattern, owner: Vector) -> Vector:
    """Return the column of the 32 slots of some steps, given their slices; `PAD` for a pad."""
    first_step, _, first_block, shape = pattern.headers[owner].T.astype(np.int64)
    width = unpack_shape(shape)[3]
    inside = np.arange(len(owner)) - first_step
    bases, lanes = pattern.bases.astype(np.int64)[:, None], np.arange(WARP)
    columns: Vector = bases + lanes
    kinds = Width.BITS_8, Width.BITS_16, Width.BITS_32
    for kind, deltas in zip(kinds, view_deltas(pattern.deltas), strict=True):
        mine = np.flatnonzero(width == kind)
        begin = (WARP * first_block[mine] >> kind - 1) + WARP * inside[mine]
        stored = deltas[begin[:, None] + lanes]
        columns[mine] = np.where(stored == np.iinfo(stored.dtype).max, PAD, bases[mine] + stored)
    return columns
