"""Other values for the pattern of a plan: beside the old ones, or in their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasp.formats.plan import Array, Plan, narrowest
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import as_bits, types_of_count, types_of_values
from dasp.formats.sell.cuda.pack.codes import as_codes, code_bits
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS
from dasp.formats.sell.cuda.pack.unpack import count_entries, slots_of_rows
from dasp.formats.sell.cuda.pack.values import (
    NOT_DICTIONARY,
    Distinct,
    count_distinct,
    read_facts,
)
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.runtime.cuda.launch import Launches
from dasp.runtime.dtypes import bits_type, sum_type
from dasp.runtime.integers import ceil_div

_CAPTURED = (
    "new values were written into coded ones, of a matrix or of its transpose, while a graph was captured; "
    "a graph writes values that are stored as they are; plan the matrix with Policy(narrow=False)"
)


@dataclass
class Places:
    """Where the entries of a pattern are, row by row, for other values.

    Attributes
    ----------
    starts : Array, shape (m + 1,), uint64
        The first entry of each row, and the number of all.
    pieces : Array, shape (segments,), uint64
        Entries of each segment of a row that is cut.
    types : dict
        Of the pattern's integers, by their names in the sources.
    words : dict
        Arguments of `kernels.REFILL` that are the same each time, as launches take them.
    blocks : int
    plan : Plan
        Whose pattern and order it is.
    kernels : dict
        What was launched, by types and codings of values.
    """

    starts: Array
    pieces: Array
    types: dict[str, np.dtype[Any]]
    words: dict[str, Any]
    blocks: int
    plan: Plan
    kernels: dict[Any, Launches] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.starts.nbytes + self.pieces.nbytes)


def find_places(on: Resources, plan: Plan) -> Places:
    """See `Primitives.slots`: of each row where it begins, which is less than the slot of every entry."""
    (starts, pieces, _), pattern = count_entries(on, plan), plan.pattern
    arguments = {
        **slots_of_rows(pattern),
        "segment_offsets": pattern.segment_offsets,
        "starts": starts,
        "pieces": pieces,
        "order": plan.order,
    }
    words = {name: on.device.word(value) for name, value in arguments.items()}
    place = narrowest(pattern.entries) if plan.order is None else plan.order.dtype
    types = {"Start": np.dtype(np.int64), "Column": pattern.index_dtype, "Index": pattern.index_dtype}
    blocks = ceil_div(len(pattern.headers), 8)
    return Places(starts, pieces, types | {"Place": place}, words, blocks, plan)


def code_values(
    on: Resources,
    data: Array,
    slots: Places,
    total: int,
    coding: Coding,
    counted: tuple[ValueStatistics, Distinct] | None,
) -> Values:
    """See `Primitives`."""
    device = on.device
    if coding == Coding.EQUAL:
        first = device.empty(1, data.dtype)
        device.copy(first, data)
        return Values(coding, on.nothing(np.uint8), first)
    stored = device.empty(total, code_type(coding, data.dtype))
    table = on.nothing(data.dtype)
    if coding == Coding.DICTIONARY and counted:
        statistics, distinct = counted
        table = distinct.table[: statistics.distinct]
    _refill(on, data, slots, coding, stored, table)
    return Values(coding, stored, table)


def recode_values(on: Resources, data: Array, places: Places, values: Values) -> bool:
    """See `Primitives`; the values are looked at first, and written if they fit.

    Raises
    ------
    RuntimeError
        In a capture, unless values are stored as they are: the host must read whether they fit.
    """
    coding, table, device = values.coding, values.table, on.device
    if not places.blocks or not len(data):
        return True
    if coding != Coding.PLAIN and device.is_capturing():
        raise RuntimeError(_CAPTURED)
    if coding == Coding.DICTIONARY:
        distinct = count_distinct(on, data)
        dead, count = read_facts(on, distinct)
        if dead & NOT_DICTIONARY or count > len(table):
            return False
        table = table[:count]
        device.copy(table, distinct.table)
    elif coding != Coding.PLAIN and not _holds(on, data, coding):
        return False
    if coding == Coding.EQUAL:
        device.copy(table, data)
    else:
        _refill(on, data, places, coding, values.codes, table)
    return True


def _holds(on: Resources, data: Array, coding: Coding) -> bool:
    """Return True if a coding without a dictionary keeps every bit of every value."""
    device, count = on.device, len(data)
    misfit = device.zeroed(1)
    of = on.compiled(types_of_count(count), data.dtype, coding)
    given = {"count": count, "data": device.bits(data, bits_type(data.dtype)), "misfit": device.word(misfit)}
    of[kernels.HOLDS](share(count, 2048, 2 * BLOCKS), 256, given)
    return not device.read(misfit, 0, 1)[0]


def _refill(on: Resources, data: Array, places: Places, coding: Coding, stored: Array, table: Array) -> None:
    """Write the codes of values into the slots of a pattern; `table` has those of a dictionary."""
    if not places.blocks:
        return
    key = data.dtype, coding
    launch = places.kernels.get(key)
    if launch is None:
        launch = places.kernels[key] = on.compiled(places.types, *key)[kernels.REFILL]
    bits, kind = on.device.bits, bits_type(data.dtype)
    arrays = {"data": bits(data, kind), "table": bits(table, kind), "distinct": len(table)}
    arrays["stored"] = bits(stored, code_bits(coding, stored.dtype))
    launch((places.blocks, 1), 256, places.words | arrays)


def scale_entries(
    on: Resources, plan: Plan, places: Places, left: Array | None, right: Array | None
) -> Array | None:
    """See `Primitives`."""
    values, dtype = plan.values, plan.dtype
    own = dtype == sum_type(dtype) and all(f is None or f.dtype == dtype for f in (left, right))
    if not own or not plan.nnz:
        return None
    key = dtype, values.coding, "scaled"
    launch = places.kernels.get(key)
    if launch is None:
        types = places.types | {"Value": dtype}
        launch = places.kernels[key] = on.compiled(types, dtype, values.coding)[kernels.SCALE_ENTRIES]
    made, word = on.device.empty(plan.nnz, dtype), on.device.word
    stored = None if values.coding == Coding.EQUAL else as_codes(values.codes, values.coding)
    given = {"bases": plan.pattern.bases, "codes": stored, "table": as_bits(values.table)}
    given |= {"left": left, "right": right, "made": made}
    launch((places.blocks, 1), 256, places.words | {name: word(array) for name, array in given.items()})
    return made


def scatter(on: Resources, numbers: Array, slots: Array | None, stored: Array) -> None:
    """See `Primitives`."""
    if len(numbers):
        types = types_of_values(numbers) | {"Slot": np.dtype(np.int32) if slots is None else slots.dtype}
        given = {"data": as_bits(numbers), "count": len(numbers), "slots": slots, "to": as_bits(stored)}
        work = Work(on.device, on.compiled(types, numbers.dtype), **given)
        blocks = share(len(numbers), 1024, 2 * BLOCKS)
        work.launch(kernels.SCATTER, blocks)
