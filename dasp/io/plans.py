"""A plan as named arrays and back, for files: every field by its path, such as ``medium.regular.columns``."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, get_type_hints

import numpy as np

from dasp.plan import (
    CODE_TYPES,
    FULL_SHIFT,
    LANES_MASK,
    LANES_SHIFT,
    MOST_CODES,
    MOST_WARPS,
    PAD,
    STEPS_MASK,
    TILE,
    TILE_ROWS,
    WARP,
    WIDTH_MASK,
    WIDTH_SHIFT,
    Coding,
    LongPart,
    MediumPart,
    Plan,
    ShortPart,
    SlicePart,
    Width,
)

FORMAT_VERSION = 3
"""Raised with every change of the plan's fields or of what they mean."""


def pack_plan(plan: Plan) -> dict[str, np.ndarray]:
    """Take a plan apart into host arrays by field path; ``dasp_plan`` holds all other fields, as JSON."""
    arrays: dict[str, np.ndarray] = {}
    scalars: dict[str, Any] = {}
    _pack(plan, "", arrays, scalars)
    text = json.dumps({"version": FORMAT_VERSION, "fields": scalars})
    arrays["dasp_plan"] = np.frombuffer(text.encode(), dtype=np.uint8)
    return arrays


def _pack(part: Any, prefix: str, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> None:
    for field in fields(part):
        value, path = getattr(part, field.name), prefix + field.name
        if is_dataclass(value):
            _pack(value, path + ".", arrays, scalars)
        elif isinstance(value, np.dtype):
            scalars[path] = value.name
        elif hasattr(value, "shape"):
            arrays[path] = np.asarray(value.get() if hasattr(value, "get") else value)
        elif isinstance(value, IntEnum):
            scalars[path] = int(value)
        elif isinstance(value, (tuple, list)):
            scalars[path] = [int(number) for number in value]
        else:
            scalars[path] = value.item() if isinstance(value, np.generic) else value


def array_names(kind: type = Plan, prefix: str = "") -> set[str]:
    """Return the field paths of all arrays that a plan has."""
    names: set[str] = set()
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            names |= array_names(hint, f"{prefix}{field.name}.")
        elif hint is Any:
            names.add(prefix + field.name)
    return names


def unpack_plan(arrays: dict[str, np.ndarray]) -> Plan:
    """Put a plan together again from `pack_plan`'s arrays.

    Raises
    ------
    ValueError
        If the version is another one, or a field is missing, unknown or of the wrong kind.
    """
    head = json.loads(arrays["dasp_plan"].tobytes())
    version = head.get("version") if isinstance(head, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"its format is version {version}; this dasp reads version {FORMAT_VERSION}")
    left = {**head["fields"], **{path: array for path, array in arrays.items() if path != "dasp_plan"}}
    plan: Plan = _unpack(Plan, "", left)
    if left:
        raise ValueError(f"it has the unknown field {min(left)}")
    return plan


def _unpack(kind: type, prefix: str, left: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):
        path, hint = prefix + field.name, hints[field.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            values[field.name] = _unpack(hint, path + ".", left)
            continue
        if path not in left:
            raise ValueError(f"its field {path} is missing")
        values[field.name] = _field(path, hint, left.pop(path))
    return kind(**values)


def _field(path: str, hint: Any, value: Any) -> Any:
    """Check that a field is what the dataclass says it is, and give it that type."""
    if hint is Any:
        kind, dimensions = ("table", 2) if path == "slices.headers" else ("vector", 1)
        if not isinstance(value, np.ndarray) or value.ndim != dimensions or value.dtype.kind not in "iuf":
            raise ValueError(f"its field {path} is no {kind} of numbers")
        value = np.ascontiguousarray(value)
        value.flags.writeable = False
        return value
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        if type(value) is not int or value not in list(hint):
            raise ValueError(f"its field {path} is {value!r:.40}; no {hint.__name__} has that number")
        return hint(value)
    if hint in (int, bool, float, str):
        if type(value) is not hint:
            raise ValueError(f"its field {path} is {value!r:.40}, not of type {hint.__name__}")
        return value
    if isinstance(value, str):
        return np.dtype(value)
    if isinstance(value, list) and all(type(number) is int and number >= 0 for number in value):
        return tuple(value)
    raise ValueError(f"its field {path} is {value!r:.40}")


def check_plan(plan: Plan) -> None:
    """Check the invariants that `dasp.plan` states, so that no product reads or writes out of bounds.

    Raises
    ------
    ValueError
        Naming the first one that does not hold.

    Notes
    -----
    Linear in the slots and the rows of the plan.
    """
    _require(len(plan.shape) == 2, "shape is not a pair")
    _require(plan.dtype in (np.float32, np.float64), f"dtype is {plan.dtype}, not float32 or float64")
    for kind in (plan.index_dtype, plan.offset_dtype):
        _require(kind in (np.int32, np.int64), f"an integer type is {kind}, not int32 or int64")
    _check_slices(plan.slices, plan)
    irregular = plan.medium.irregular
    for name, part in (
        ("long", plan.long),
        ("medium.regular", plan.medium.regular),
        ("medium.irregular", irregular),
        ("short", plan.short),
    ):
        _check_slots(name, part, plan)
    _check_long(plan.long, plan)
    _check_medium(plan.medium, plan)
    _check_short(plan.short)
    _check_rows(plan)


def _require(holds: Any, problem: str) -> None:
    if not holds:
        raise ValueError(f"it is not a valid plan: {problem}")


def _check_slices(part: SlicePart, plan: Plan) -> None:
    index, count = plan.index_dtype, len(part.headers)
    kinds = {"headers": np.dtype(np.uint32), "deltas": np.dtype(np.uint8)}
    for name in ("headers", "deltas", "rows", "bases", "long_rows", "segment_offsets", "segment_rows"):
        array, kind = getattr(part, name), kinds.get(name, index)
        _require(array.dtype == kind, f"slices.{name} is {array.dtype}, not {kind}")
    width = part.headers.shape[1]
    _require(width == 4, f"slices.headers has {width} numbers to a slice, not 4")
    warps = part.warps_per_block
    _require(1 <= warps <= MOST_WARPS, f"slices.warps_per_block is {warps}, not from 1 to {MOST_WARPS}")
    _require(0 <= part.segments <= count, f"{part.segments} of {count} slices are segments")
    _check_offsets("slices.segment_offsets", part.segment_offsets, index, len(part.long_rows), part.segments)
    _require((np.diff(part.segment_offsets) > 0).all(), "a long row has no segment")
    _check_codes(part, plan.dtype)
    _check_headers(part)
    _check_slice_columns(part, plan.shape[1])


def _check_codes(part: SlicePart, dtype: np.dtype) -> None:
    kind, values, table = np.dtype(CODE_TYPES.get(part.coding, dtype)), part.values, part.table
    slots = 0 if part.coding == Coding.EQUAL else WARP * len(part.bases)
    _require(values.dtype == kind or not slots, f"slices.values is {values.dtype}, not {kind}")
    _require(len(values) == slots, f"slices.values has {len(values)} values, not {slots}")
    _require(table.dtype == dtype, f"slices.table is {table.dtype}, not {dtype}")
    least = int(part.coding in (Coding.EQUAL, Coding.DICTIONARY))
    most = MOST_CODES if part.coding == Coding.DICTIONARY else least
    _require(least <= len(table) <= most, f"slices.table has {len(table)} values, not from {least} to {most}")
    if part.coding == Coding.DICTIONARY and slots:
        _require(values.max() < len(table), f"a code is {values.max()}; slices.table has {len(table)} values")


def _check_headers(part: SlicePart) -> None:
    """Steps, positions and deltas of the slices follow each other without a gap, segments first."""
    first_step, first, first_block, shape = part.headers.T.astype(np.int64)
    steps, full, shift, width = _shapes(part)
    _require((shape < 1 << WIDTH_SHIFT + 2).all(), "a slice's header has unknown bits")
    _require((full <= steps).all(), "a slice has more full steps than steps")
    _require((shift <= 5).all(), "a slice has more than 32 lanes to a row")
    _require((shift[: part.segments] == 5).all(), "a segment has fewer than 32 lanes")
    _check_runs("steps", first_step, steps, len(part.bases))
    _require(not len(part.deltas) % WARP, "slices.deltas is not a whole number of blocks of 32 bytes")
    _check_runs("blocks of deltas", first_block, steps * (1 << width >> 1), len(part.deltas) // WARP)

    owners = np.repeat(np.arange(len(part.long_rows)), np.diff(part.segment_offsets))
    _require(np.array_equal(part.segment_rows, owners), "slices.segment_rows does not fit segment_offsets")
    turn = np.argsort(first[: part.segments], kind="stable")
    covers = np.array_equal(first[turn], np.arange(part.segments))
    _require(covers, "the segments do not cover the long rows")
    in_order = (np.diff(turn) > 0) | (np.diff(owners) > 0)
    _require(in_order.all(), "the segments of a row do not follow each other")
    first, rows = first[part.segments :], WARP >> shift[part.segments :]
    end = int(rows.sum())
    _check_runs("positions", first, rows, end)
    last = rows[-1] if len(rows) else 1
    _require(end - last < part.positions <= end, f"{part.positions} positions are in slices for {end}")


def _check_runs(name: str, firsts: np.ndarray, sizes: np.ndarray, end: int) -> None:
    follow = np.array_equal(firsts, np.cumsum(sizes) - sizes)
    _require(follow and sizes.sum() == end, f"the slices' {name} do not follow each other from 0 to {end}")


def _shapes(part: SlicePart) -> tuple[np.ndarray, ...]:
    """Return the steps, the full steps, log2 of the lanes to a row, and the width of every slice."""
    shape = part.headers[:, 3].astype(np.int64)
    places = ((0, STEPS_MASK), (FULL_SHIFT, STEPS_MASK), (LANES_SHIFT, LANES_MASK), (WIDTH_SHIFT, WIDTH_MASK))
    return tuple(shape >> place & mask for place, mask in places)


def _check_slice_columns(part: SlicePart, n: int) -> None:
    """Columns are in range, and pads only where a product expects them and with the code 0."""
    steps, full, shift, width = _shapes(part)
    owner = np.repeat(np.arange(len(steps)), steps)
    _require(
        not len(owner) or (part.bases.min() >= 0 and part.bases.max() < n), "slices.bases are out of range"
    )
    inside = np.arange(len(owner)) - part.headers[owner, 0]
    # Lanes of the last slice that have no row hold pads.
    lanes = np.full(len(steps), WARP)
    if len(steps) > part.segments:
        lanes[-1] = part.positions - int(part.headers[-1, 1]) << shift[-1]
    entries = 0
    for w in map(int, Width):
        of_width = np.flatnonzero(width[owner] == w)
        deltas = _deltas(part, owner[of_width], inside[of_width], w)
        pads = np.zeros(deltas.shape, bool) if w == 0 else deltas == np.iinfo(deltas.dtype).max
        most = part.bases[of_width] + np.where(pads, 0, deltas).max(axis=1, initial=0).astype(np.int64)
        _require((most < n).all(), "columns of slices are out of range")
        full_steps = inside[of_width] < full[owner[of_width]]
        _require(not pads[full_steps].any(), "a full step has a pad")
        outside = np.arange(WARP) >= lanes[owner[of_width], None]
        _require(pads[outside].all(), "a lane without a row has an entry")
        if len(part.values):
            _require(not part.values.reshape(-1, WARP)[of_width][pads].any(), "a pad's code is not 0")
        entries += int(pads.size - np.count_nonzero(pads))
    _require(part.entries == entries, f"slices says {part.entries} entries and has {entries}")


def _deltas(part: SlicePart, owner: np.ndarray, inside: np.ndarray, width: int) -> np.ndarray:
    """Return the deltas of steps of one width, 32 for each; the lanes' numbers where none are stored."""
    if width == 0:
        return np.broadcast_to(np.arange(WARP, dtype=np.uint8), (len(owner), WARP))
    blocks = 1 << width - 1
    first = part.headers[owner, 2].astype(np.int64) + inside * blocks
    stored: np.ndarray = part.deltas.reshape(-1, WARP)[(first[:, None] + np.arange(blocks)).ravel()]
    return stored.reshape(len(owner), WARP * blocks).view(f"u{blocks}")


def _slice_rows(part: SlicePart, plan: Plan) -> np.ndarray:
    """Return the caller's row at each position."""
    if not len(part.rows):
        return np.arange(part.positions, dtype=plan.index_dtype)
    rows: np.ndarray = part.rows
    _require(len(rows) == part.positions, f"slices.rows has {len(rows)} rows, not {part.positions}")
    return rows


def _check_slots(name: str, part: Any, plan: Plan) -> None:
    columns, values = part.columns, part.values
    _require(values.dtype == plan.dtype, f"{name}.values is {values.dtype}, not {plan.dtype}")
    _require(columns.dtype == plan.index_dtype, f"{name}.columns is {columns.dtype}, not {plan.index_dtype}")
    _require(len(columns) == len(values), f"{name} has {len(columns)} columns and {len(values)} values")
    if len(columns):
        _require(columns.min() >= PAD and columns.max() < plan.shape[1], f"{name}.columns are out of range")
    stored = np.count_nonzero(columns != PAD)
    _require(part.entries == stored, f"{name} says {part.entries} entries and has {stored}")


def _check_offsets(name: str, offsets: np.ndarray, kind: np.dtype, count: int, end: int) -> None:
    _require(offsets.dtype == kind, f"{name} is {offsets.dtype}, not {kind}")
    _require(len(offsets) == count + 1, f"{name} has {len(offsets)} numbers, not {count + 1}")
    _require(offsets[0] == 0 and offsets[-1] == end, f"{name} does not run from 0 to {end}")
    _require((offsets[1:] >= offsets[:-1]).all(), f"{name} falls")


def _check_long(part: LongPart, plan: Plan) -> None:
    rows, kind = len(part.rows), plan.offset_dtype
    _check_offsets("long.offsets", part.offsets, kind, rows, len(part.columns))
    _check_offsets("long.segment_offsets", part.segment_offsets, kind, rows, len(part.segment_rows))
    _require(part.segment > 0, f"long.segment is {part.segment}")
    slots, segments = np.diff(part.offsets), np.diff(part.segment_offsets)
    _require((segments == -(-slots // part.segment)).all(), "the segments do not cover the long rows")
    owners = np.repeat(np.arange(rows), segments)
    kind = plan.index_dtype
    _require(part.segment_rows.dtype == kind, f"long.segment_rows is {part.segment_rows.dtype}, not {kind}")
    _require(np.array_equal(part.segment_rows, owners), "long.segment_rows disagrees with its offsets")


def _check_medium(part: MediumPart, plan: Plan) -> None:
    blocks, kind = len(part.rows) // TILE_ROWS, plan.offset_dtype
    _require(len(part.rows) == TILE_ROWS * blocks, "medium.rows is not a whole number of row blocks")
    _require(part.blocks_per_warp in (1, 2, 4), f"medium.blocks_per_warp is {part.blocks_per_warp}")
    tiles = len(part.regular.columns) // TILE
    _require(len(part.regular.columns) == TILE * tiles, "medium.regular is not a whole number of tiles")
    _check_offsets("medium.regular.offsets", part.regular.offsets, kind, blocks, tiles)
    irregular, rows = part.irregular, len(part.rows)
    _check_offsets("medium.irregular.offsets", irregular.offsets, kind, rows, len(irregular.columns))


def _check_short(part: ShortPart) -> None:
    sections = (part.pairs_13, part.pairs_22, part.fours, part.singles)
    _require(min(sections) >= 0, "a section of the short part has a negative size")
    results = 2 * part.pairs_13 + 2 * part.pairs_22 + part.fours + part.singles
    slots = 4 * (part.pairs_13 + part.pairs_22 + part.fours) + part.singles
    _require(len(part.rows) == results, f"short.rows has {len(part.rows)} rows, its sections {results}")
    _require(len(part.columns) == slots, f"short has {len(part.columns)} slots, its sections {slots}")
    tile_rows = part.pairs_13 % 16, part.pairs_22 % 16, part.fours % 32
    _require(tile_rows == (0, 0, 0), "a section of the short part is not a whole number of warps")


def _tile_rows(part: ShortPart) -> np.ndarray:
    rows: np.ndarray = part.rows[: len(part.rows) - part.singles]
    return rows


def _check_rows(plan: Plan) -> None:
    """Every row of the matrix is in exactly one part, and either all or none are in slices."""
    categories = (plan.long.rows, plan.medium.rows, plan.short.rows, plan.empty_rows)
    bare = not len(plan.slices.headers) or not any(map(len, categories))
    _require(bare, "some rows are in slices and some in categories")
    parts = (_slice_rows(plan.slices, plan), plan.slices.long_rows, *categories)
    for rows in parts:
        _require(rows.dtype == plan.index_dtype, f"rows are {rows.dtype}, not {plan.index_dtype}")
    together = np.concatenate(parts)
    padded = int(np.count_nonzero(plan.medium.rows == PAD) + np.count_nonzero(_tile_rows(plan.short) == PAD))
    together = together[together != PAD]
    _require(sum(map(len, parts)) == len(together) + padded, "a row is missing where no pad may be")
    _require(len(together) == plan.shape[0], f"it has {len(together)} rows, not {plan.shape[0]}")
    if len(together):
        _require(together.min() >= 0 and together.max() < plan.shape[0], "rows are out of range")
        _require((np.bincount(together, minlength=plan.shape[0]) == 1).all(), "a row occurs twice")
