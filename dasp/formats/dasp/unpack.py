"""The way back from the format of the paper: the row, the column and the value of every slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.dasp.pattern import HALF_WARP, TILE_COLUMNS, TILE_ROWS, ShortPart
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Part, Plan, csr_of_slots, nbytes, slots_of_entries

Vector = np.ndarray[Any, Any]


def unpack(plan: Plan, on: BasicPrimitives) -> tuple[Vector, Vector, Vector]:
    """Return the matrix of a plan with NumPy arrays as CSR; `on` are the CPU's primitives."""
    return csr_of_slots(plan, *expand(plan))


def slots(plan: Plan, on: BasicPrimitives) -> Vector:
    """Return the slot of every entry of a plan with NumPy arrays, as the entries came in."""
    found: Vector = slots_of_entries(plan, *expand(plan)[:2])
    return found


def expand(plan: Plan) -> tuple[Vector, Vector, Vector]:
    """Return the caller's row, the column (`PAD` for a pad) and the value of every slot.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays.

    Returns
    -------
    rows, columns, values : numpy.ndarray, shape (slots,)
        Part by part: long, regular, irregular, short; any row for a pad.
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
    values = plan.values
    stored = values.long, values.regular, values.irregular, values.short
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(stored)


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


def summary(plan: Plan) -> list[Part]:
    """Return rows, entries, slots and bytes of each part; both medium parts count their own rows."""
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
