"""Other values for the pattern of a plan: beside the old ones, or in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasp.formats.plan import Array, Plan, narrowest
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import as_bits, types_of_count, types_of_values
from dasp.formats.sell.cuda.pack.codes import as_codes
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS
from dasp.formats.sell.cuda.pack.unpack import count_entries, slots_of_rows
from dasp.formats.sell.cuda.pack.values import Distinct, count_distinct, make_dictionary, write_dictionary
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.runtime.cuda.launch import Launches
from dasp.runtime.dtypes import sum_type
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
        "table": None,
        "distinct": 0,
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
        return Values(coding, on.nothing(np.uint8), device.first(data))
    stored = device.empty(total, code_type(coding, data.dtype))
    table, coder = on.nothing(data.dtype), dict[str, Any]()
    if coding == Coding.DICTIONARY and counted:
        table = make_dictionary(on, data, None, counted[1], counted[0].distinct)
        coder = {"table": as_bits(table), "distinct": len(table)}
    _refill(on, data, slots, coding, stored, coder)
    return Values(coding, stored, table)


def recode_values(on: Resources, data: Array, places: Places, values: Values) -> bool:
    """See `Primitives`; the values are looked at first, and written if they fit.

    Raises
    ------
    RuntimeError
        In a capture, unless values are stored as they are: the host must read whether they fit.
    """
    coding, count = values.coding, len(data)
    if not places.blocks or not count:
        return True
    coder = dict[str, Any]()
    if coding != Coding.PLAIN:
        if on.device.is_capturing():
            raise RuntimeError(_CAPTURED)
        if coding == Coding.DICTIONARY:
            distinct, known = count_distinct(on, data)
            if known is None or known > len(values.table):
                return False
            write_dictionary(on, data, None, distinct, values.table)
            coder = {"table": as_bits(values.table), "distinct": known}
        elif not _holds(on, data, coding):
            return False
    if coding == Coding.EQUAL:
        scatter(on, data[:1], None, values.table)
    else:
        _refill(on, data, places, coding, values.codes, coder)
    return True


def _holds(on: Resources, data: Array, coding: Coding) -> bool:
    """Return True if a coding without a dictionary keeps every bit of every value."""
    device, count = on.device, len(data)
    misfit = device.zeroed(1)
    of = on.compiled(types_of_count(count), data.dtype, coding)
    given = {"count": count, "data": device.word(as_bits(data)), "misfit": device.word(misfit)}
    of[kernels.HOLDS](share(count, 2048, 2 * BLOCKS), 256, given)
    return not device.read(misfit, 0, 1)[0]


def _refill(
    on: Resources, data: Array, places: Places, coding: Coding, stored: Array, coder: Mapping[str, Any]
) -> None:
    """Write the codes of values into the slots of a pattern."""
    if not places.blocks:
        return
    key = data.dtype, coding
    launch = places.kernels.get(key)
    if launch is None:
        launch = places.kernels[key] = on.compiled(places.types, *key)[kernels.REFILL]
    word = on.device.word
    told = {name: word(array) for name, array in coder.items()}
    given = {"data": word(as_bits(data)), "stored": word(as_codes(stored, coding)), **told}
    launch((places.blocks, 1), 256, places.words | given)


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
