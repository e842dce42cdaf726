"""A plan as named arrays and back, for files: every field by its path, such as ``medium.regular.columns``."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import numpy as np

from dasp.plan import PAD, TILE, TILE_ROWS, LongPart, MediumPart, Plan, ShortPart

FORMAT_VERSION = 1
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
        elif isinstance(value, (tuple, list)):
            scalars[path] = [int(number) for number in value]
        else:
            scalars[path] = value.item() if isinstance(value, np.generic) else value


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
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iuf":
            raise ValueError(f"its field {path} is no vector of numbers")
        value.flags.writeable = False
        return value
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


def _check_rows(plan: Plan) -> None:
    """Every row of the matrix is in exactly one part."""
    parts = (plan.long.rows, plan.medium.rows, plan.short.rows, plan.empty_rows)
    for rows in parts:
        _require(rows.dtype == plan.index_dtype, f"rows are {rows.dtype}, not {plan.index_dtype}")
    together = np.concatenate(parts)
    together = together[together != PAD]
    _require(len(together) == plan.shape[0], f"it has {len(together)} rows, not {plan.shape[0]}")
    if len(together):
        _require(together.min() >= 0 and together.max() < plan.shape[0], "rows are out of range")
        _require((np.bincount(together, minlength=plan.shape[0]) == 1).all(), "a row occurs twice")
