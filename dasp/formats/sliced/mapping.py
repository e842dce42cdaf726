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
from dasp.formats.sliced.pattern import REAL_PARTS, Coding, Values, code_type

Vector = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


def mapped(plan: Plan, function: Function, on: Any) -> Plan | None:
    """Return the plan with a function of each value in its place; None if they must be coded anew.

    Codes that stand for values stay, and what they stand for is mapped; numbers are mapped slot by slot, if
    they then do not fit a table of few values, or bytes.
    """
    way = _MAPPED.get(plan.values.coding)
    made = None if way is None else way(plan, function, on)
    return None if made is None else dataclasses.replace(plan, dtype=made.table.dtype, values=made)


def _by_table(plan: Plan, function: Function, on: Any) -> Values:
    values: Values = plan.values
    return Values(values.coding, values.codes.copy(), applied(function, values.table))


def _slot_by_slot(plan: Plan, function: Function, on: Any) -> Values | None:
    values: Values = plan.values
    pad = of_zero(function, plan.dtype)
    if pad[0] != 0:  # NaN, of a product with infinity, or of 0 / 0
        return None
    numbers = applied(function, on.decode(values, values.codes, len(values.codes), plan.dtype))
    if _bits(pad).any():
        on.clear_pads(plan.pattern, numbers)
    coding = Coding.PLAIN
    if plan.pattern.choice.narrow and len(numbers):
        # A pad's 0 may hide that numbers fit something narrower, and never that they do not.
        coding = choose.choose_coding(on.count_values(numbers)[0], numbers.dtype)
    made = Values(coding, numbers, on.zeros(0, numbers.dtype))
    return made if coding == Coding.PLAIN else _coded(made, on) if coding in _ROUNDED else None


def _coded(values: Values, on: Any) -> Values | None:
    """Return numbers as their coding stores them; None if each bit of them does not come back."""
    coding, numbers = values.coding, values.codes
    parts = numbers.real if coding in REAL_PARTS else numbers
    codes = parts.astype(code_type(coding, numbers.dtype))
    # A library may flush what is subnormal in float32.
    again = on.decode(values, codes, len(codes), numbers.dtype)
    return dataclasses.replace(values, codes=codes) if bool((_bits(again) == _bits(numbers)).all()) else None


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


def _bits(numbers: Array) -> Array:
    """Return the bits of numbers as unsigned integers."""
    return numbers.view(bits_type(numbers.dtype)) if numbers.itemsize <= 8 else numbers.view(np.uint64)


_ROUNDED = Coding.HALF, Coding.SINGLE, Coding.REAL, Coding.REAL_SINGLE
"""Codings that store numbers themselves, in a type with fewer bits."""

_MAPPED: dict[Coding, Callable[[Plan, Function, Any], Values | None]] = {
    Coding.EQUAL: _by_table,
    Coding.DICTIONARY: _by_table,
    Coding.BYTE: _bytes,
    **dict.fromkeys((Coding.PLAIN, *_ROUNDED), _slot_by_slot),
}
