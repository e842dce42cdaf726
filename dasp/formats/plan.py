"""The plan, which every format makes and multiplies by, and the functions on plans that formats share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.csr.matrix import csr_from_coo, sort_by_row
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import Array as Array

T = TypeVar("T")

PAD = -1
"""The column of a slot that holds no entry, and the row of a result that belongs to no row of the matrix."""

WARP = 32
"""Lanes of a warp."""


class Part(NamedTuple):
    """A line of the table that describes a plan: the name, rows, entries, slots and bytes of a part."""

    name: str
    rows: int
    entries: int
    slots: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Plan:
    """A matrix, packed in one format: where its entries lie, and their values.

    Attributes
    ----------
    format : str
        Name of the format; `dasp.formats` has its record.
    shape : tuple of int
        (m, n) of the matrix.
    dtype : numpy.dtype
        Of every value: a type of `dasp.runtime.dtypes.TABLE`.
    pattern : object
        A record of the format: which entry lies in which slot, and the choices for this matrix.
    values : object
        A record of the format: the numbers. Other values for the same pattern make another plan that shares
        it. The arrays of a pattern never change; those of values do if they are overwritten in place.
    order : Array, shape (nnz,), int32 or int64, or None
        The position of each entry of the packed matrix, row by row, among the caller's; None if those came
        in that order. It is kept so that the caller can give other values in the same order.
    """

    format: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    pattern: Any
    values: Any
    order: Array | None = None

    def __repr__(self) -> str:
        m, n = self.shape
        return f"<Plan of {m} x {n}, {self.nnz} entries, {self.dtype}, as {self.format}, {self.nbytes} bytes>"

    def of(self, values: object, dtype: np.dtype[Any]) -> Plan:
        """Return the plan with the same pattern and other values of a type."""
        return Plan(self.format, self.shape, dtype, self.pattern, values, self.order)

    @property
    def nnz(self) -> int:
        """Stored entries of the matrix, explicit zeros and duplicates counted."""
        entries: int = self.pattern.entries
        return entries

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return nbytes(self)


_fields: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that may hold arrays; none for any other class."""
    if kind not in _fields:
        is_one = dataclasses.is_dataclass(kind) and kind is not CostModel
        _fields[kind] = tuple(field.name for field in dataclasses.fields(kind)) if is_one else ()
    return _fields[kind]


def is_array(value: object) -> TypeGuard[Array]:
    """Return True if a field of a plan is an array, on any device."""
    kind = type(value)
    return hasattr(kind, "nbytes") and not _names(kind)


def arrays_of(part: object) -> Iterator[Array]:
    """Yield every array of a plan, or of a part, in the order of its fields."""
    for name in _names(type(part)):
        value = getattr(part, name)
        if _names(type(value)):
            yield from arrays_of(value)
        elif is_array(value):
            yield value


def with_arrays(part: T, arrays: Iterator[Array]) -> T:
    """Return the part with each of its arrays replaced by the next of `arrays`, field by field."""
    made = []
    for name in _names(type(part)):
        value = getattr(part, name)
        if _names(type(value)):
            value = with_arrays(value, arrays)
        elif is_array(value):
            value = next(arrays)
        made.append(value)
    return type(part)(*made)


def nbytes(*parts: object) -> int:
    """Return the total bytes of arrays, and of the arrays of parts, without reading any."""
    total = 0
    for part in parts:
        total += sum([array.nbytes for array in ([part] if is_array(part) else arrays_of(part))])
    return int(total)


def csr_of_slots(plan: Plan, rows: Array, columns: Array, values: Array) -> tuple[Array, Array, Array]:
    """Return the matrix of a plan as CSR from the row, column and value of every slot, for `Format.unpack`.

    Parameters
    ----------
    plan : Plan
    rows, columns, values : numpy.ndarray, shape (slots,)
        The column of a pad is `PAD`.
    """
    kept = columns != PAD
    return csr_from_coo(plan.shape[0], rows[kept], columns[kept], values[kept])


def slots_of_entries(plan: Plan, rows: Array, columns: Array) -> Array:
    """Return the slot of every entry, in the caller's order, from the row and column of every slot."""
    kept = np.flatnonzero(columns != PAD)
    kept = kept.astype(narrowest(len(columns)), copy=False)
    # The entries of a row lie in rising slots, if not in consecutive ones.
    slots = kept[sort_by_row(plan.shape[0], rows[kept])[1]]
    if plan.order is None:
        return slots
    came = np.empty_like(slots)
    came[plan.order] = slots
    return came


def diagonal_rows(shape: tuple[int, int], k: int) -> tuple[int, int]:
    """Return the first row that the k-th diagonal crosses, and the number of rows that it crosses."""
    m, n = shape
    return max(-k, 0), max(min(m + min(k, 0), n - max(k, 0)), 0)


def require(holds: bool | np.bool_, message: str) -> None:
    """Raise ValueError with a message unless a condition holds; checks of plans use it."""
    if not holds:
        raise ValueError(message)


def check_permutation(rows: Array, m: int) -> None:
    """Check that an array has every number from 0 to m - 1 exactly once.

    Raises
    ------
    ValueError
    """
    require(len(rows) == m, f"it has {len(rows)} rows, not {m}")
    require(not m or (rows.min() >= 0 and rows.max() < m), "rows are out of range")
    seen = np.zeros(m, bool)
    seen[rows] = True
    require(seen.all(), "a row occurs twice")


def check_offsets(name: str, offsets: Array, kind: np.dtype[Any], count: int, end: int) -> None:
    """Check that offsets are of type `kind` and rise from 0 to `end` in `count` steps; ValueError if not."""
    require(offsets.dtype == kind, f"{name} is {offsets.dtype}, not {kind}")
    require(offsets.shape == (count + 1,), f"{name} has shape {offsets.shape}, not {(count + 1,)}")
    require(offsets[0] == 0 and offsets[-1] == end, f"{name} does not run from 0 to {end}")
    require((offsets[1:] >= offsets[:-1]).all(), f"{name} falls")
