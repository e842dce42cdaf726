"""A function of every value of a plan of slices, where they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from dasp import _arrays
from dasp._dtypes import bits_type
from dasp.formats.array import WARP, Array, Plan, applied, of_zero
from dasp.formats.sliced import choose
from dasp.formats.sliced.pattern import Coding, Values

Vector = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


def mapped(plan: Plan, function: Function, on: Any) -> Plan | None:
    """Return the plan with a function of each value in its place; None if they must be coded anew.

    Codes that stand for values stay, and what they stand for is mapped; values that are stored as they are
    are mapped slot by slot, if they then still fit nothing narrower.
    """
    way = _MAPPED.get(plan.values.coding)
    made = None if way is None else way(plan, function, on)
    return None if made is None else dataclasses.replace(plan, dtype=made.table.dtype, values=made)


def _by_table(plan: Plan, function: Function, on: Any) -> Values:
    values: Values = plan.values
    return Values(values.coding, values.codes.copy(), applied(function, values.table))


def _as_they_are(plan: Plan, function: Function, on: Any) -> Values | None:
    pad = of_zero(function, plan.dtype)
    if pad[0] != 0:  # NaN, of a product with infinity, or of 0 / 0
        return None
    codes = applied(function, plan.values.codes)
    if _bits(pad).any():
        on.clear_pads(plan.pattern, codes)
    if plan.pattern.choice.narrow and len(codes):
        # A pad's 0 may hide that numbers fit something narrower, and never that they do not.
        counted = on.count_values(codes)[0]
        if choose.choose_coding(counted, codes.dtype) != Coding.PLAIN:
            return None
    return Values(Coding.PLAIN, codes, plan.values.table.astype(codes.dtype))


def _bytes(plan: Plan, function: Function, on: Any) -> Values:
    codes: Array = plan.values.codes
    xp = _arrays.namespace(codes)
    least, most, held = xp.stack([codes.min(), codes.max(), xp.count_nonzero(codes)]).tolist()  # one wait
    stand_for = np.arange(least, most + 1)
    places = stand_for.astype(np.int8).view(np.uint8)
    pads = WARP * len(plan.pattern.bases) - plan.pattern.entries
    zeros = len(codes) - held - pads
    numbers = applied(function, stand_for.astype(plan.dtype))
    if not zeros:
        numbers[stand_for == 0] = 0
    with np.errstate(invalid="ignore"):
        narrow = numbers.real.astype(np.int8)
    there = np.zeros(256, np.int8)
    there[places] = narrow
    if not there[0] and (_bits(narrow.astype(numbers.dtype)) == _bits(numbers)).all():
        new = xp.asarray(there)[codes.view(np.uint8)]
        return Values(Coding.BYTE, new, xp.asarray(numbers[:0]))
    table = np.zeros(256, numbers.dtype)
    table[places] = numbers
    return Values(Coding.DICTIONARY, codes.view(np.uint8).copy(), xp.asarray(table))


def _bits(numbers: Vector) -> Vector:
    """Return the bits of NumPy's numbers as unsigned integers."""
    return numbers.view(bits_type(numbers.dtype)) if numbers.itemsize <= 8 else numbers.view(np.uint64)


_MAPPED: dict[Coding, Callable[[Plan, Function, Any], Values | None]] = {
    Coding.EQUAL: _by_table,
    Coding.DICTIONARY: _by_table,
    Coding.BYTE: _bytes,
    Coding.PLAIN: _as_they_are,
}
