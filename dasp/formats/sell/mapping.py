"""A function of every value of a plan of slices, where they lie."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dasp.formats.plan import WARP, Array, Plan, applied, of_pad
from dasp.formats.sell import choose
from dasp.formats.sell.pattern import NO_BYTE, REAL_PARTS, Coding, Values, code_type
from dasp.formats.sell.protocols import Primitives
from dasp.runtime import arrays as _arrays
from dasp.runtime.dtypes import bits_type

Vector = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


def mapped(plan: Plan, function: Function, merges: bool, on: Primitives) -> Plan | None:
    """Return the plan with a function of each value in its place; None if they must be coded anew.

    Codes that stand for values stay, and what they stand for is mapped; bytes become others, if all do;
    numbers are mapped slot by slot, if they then do not fit a table of few values, or bytes.
    """
    way = _MAPPED.get(plan.values.coding)
    made = None if way is None else way(plan, function, merges, on)
    if made is None:
        return None
    return plan.of(made, made.table.dtype)


def _by_table(plan: Plan, function: Function, merges: bool, on: Primitives) -> Values:
    values: Values = plan.values
    return Values(values.coding, _arrays.copied(values.codes), applied(function, values.table))


def _slot_by_slot(plan: Plan, function: Function, merges: bool, on: Primitives) -> Values | None:
    values: Values = plan.values
    if function is operator.neg and values.coding == Coding.PLAIN:
        return dataclasses.replace(values, codes=on.negated(plan.pattern, values.codes))
    zero, same_bits = of_pad(function, plan.dtype)
    if not zero:  # NaN, of a product with infinity, or of 0 / 0
        return None
    numbers = applied(function, on.decode(values, values.codes, len(values.codes), plan.dtype))
    if not same_bits:
        on.clear_pads(plan.pattern, numbers)
    kind = numbers.dtype
    made = Values(Coding.PLAIN, numbers, values.table if values.table.dtype == kind else on.zeros(0, kind))
    narrows = merges or values.coding != Coding.PLAIN or kind != plan.dtype
    if not (narrows and plan.pattern.choice.narrow and len(numbers)):
        return made
    # A pad's 0 may hide that numbers fit something narrower, and never that they do not.
    coding = choose.choose_coding(on.count_values(numbers)[0], kind)
    made = dataclasses.replace(made, coding=coding)
    return made if coding == Coding.PLAIN else _coded(made, on) if coding in _ROUNDED else None


def _coded(values: Values, on: Primitives) -> Values | None:
    """Return numbers as their coding stores them; None if each bit of them does not come back."""
    coding, numbers = values.coding, values.codes
    parts = numbers.real if coding in REAL_PARTS else numbers
    codes = parts.astype(code_type(coding, numbers.dtype))
    # A library may flush what is subnormal in float32.
    again = on.decode(values, codes, len(codes), numbers.dtype)
    return dataclasses.replace(values, codes=codes) if bool((_bits(again) == _bits(numbers)).all()) else None


def _byte_by_byte(plan: Plan, function: Function, merges: bool, on: Primitives) -> Values:
    codes: Array = plan.values.codes
    numbers, to = (_KNOWN if function in _KNOWN_FUNCTIONS else _mapped_bytes)(function, plan.dtype)
    made = None
    if to is _SAME:
        made = _arrays.copied(codes)
    elif to is not None:
        made = on.map_bytes(codes, to, WARP * len(plan.pattern.bases) - plan.pattern.entries)
    if made is None:
        table = _arrays.namespace(codes).asarray(numbers)
        return Values(Coding.DICTIONARY, _arrays.copied(codes, np.uint8), table)
    old = plan.values.table
    return Values(Coding.BYTE, made, old if old.dtype == numbers.dtype else on.zeros(0, numbers.dtype))


def _mapped_bytes(function: Function, dtype: np.dtype[Any]) -> tuple[Vector, Vector | None]:
    """Return what a function makes of all bytes, as numbers of a type, and what that is as bytes."""
    with np.errstate(all="ignore"):
        numbers = applied(function, _BYTES.astype(dtype))
    return numbers, _bytes_of(numbers.tobytes(), numbers.dtype)


_KNOWN, _KNOWN_FUNCTIONS = lru_cache(maxsize=32)(_mapped_bytes), (operator.neg, abs)
"""The same of functions that are always the same ones, made once."""


@lru_cache(maxsize=256)
def _bytes_of(made: bytes, dtype: np.dtype[Any]) -> Vector | None:
    """Return what numbers that are made of all bytes are as bytes, `NO_BYTE` where they are none; `_SAME` if
    they are what they were, and None where 1 or -1 becomes none.

    Nobody knows yet which bytes a matrix has; of small numbers those are likely.
    """
    numbers = np.frombuffer(made, dtype)
    with np.errstate(all="ignore"):
        narrow = numbers.real.astype(np.int8)
    fits = (_bits(narrow.astype(dtype)) == _bits(numbers)).reshape(len(numbers), -1).all(axis=1)
    if not (fits[_ONE] and fits[-_ONE]):
        return None
    if fits.all() and np.array_equal(narrow, _BYTES):
        return _SAME
    return np.where(fits, narrow.view(np.uint8), np.uint16(NO_BYTE))


def _bits(numbers: Array) -> Array:
    """Return the bits of numbers as unsigned integers."""
    return numbers.view(bits_type(numbers.dtype)) if numbers.itemsize <= 8 else numbers.view(np.uint64)


_BYTES = np.arange(256, dtype=np.uint8).view(np.int8)
"""What the codes of `Coding.BYTE` stand for, by their bits."""

_ONE = 1
"""The place of 1 among them; that of -1 is the last."""

_SAME = np.arange(256, dtype=np.uint16)
"""The bits of all bytes."""

_ROUNDED = Coding.HALF, Coding.SINGLE, Coding.REAL, Coding.REAL_SINGLE
"""Codings that store numbers themselves, in a type with fewer bits."""

_MAPPED: dict[Coding, Callable[[Plan, Function, bool, Primitives], Values | None]] = {
    Coding.EQUAL: _by_table,
    Coding.DICTIONARY: _by_table,
    Coding.BYTE: _byte_by_byte,
    **dict.fromkeys((Coding.PLAIN, *_ROUNDED), _slot_by_slot),
}
