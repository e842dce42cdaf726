"""Other values for the pattern of a plan: beside the old ones, or in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasp._dtypes import bits_type
from dasp._integers import ceil_div
from dasp._launch import Launches
from dasp.backends.cuda.pack import kernels
from dasp.backends.cuda.pack.c_types import COUNT, as_bits, as_codes, types_of_count, types_of_values
from dasp.backends.cuda.pack.protocols import Device
from dasp.backends.cuda.pack.resources import Kernels, Resources
from dasp.backends.cuda.pack.sizes import BLOCKS, SLOTS, VALUE_THREADS, VALUES_AT_ONCE
from dasp.backends.cuda.pack.unpack import count_entries, slots_of_rows
from dasp.backends.cuda.pack.values import Distinct, make_dictionary
from dasp.backends.cuda.pack.work import Work, share
from dasp.formats.array import Array, Plan, narrowest
from dasp.formats.sliced.choose import ValueStatistics
from dasp.formats.sliced.pattern import Coding, Values, code_type

_UNASKED = {"misfit": None, "turn": 0, "told": None}
"""What `kernels.REFILL` is told where nobody asked whether values fit."""


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
    arguments : dict
        What `kernels.REFILL` is given each time.
    words : dict
        What launches take for these.
    blocks : int
    plan : Plan
        Whose pattern and order it is.
    kernels : dict
        What was launched, by types and codings of values.
    """

    starts: Array
    pieces: Array
    types: dict[str, np.dtype[Any]]
    arguments: dict[str, Any]
    words: dict[str, Any]
    blocks: int
    plan: Plan
    kernels: dict[Any, Launches] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.starts.nbytes + self.pieces.nbytes)


class Fill:
    """Other values in the place of some, in their coding: launches that are prepared once.

    Parameters
    ----------
    device : Device
    dtype : numpy.dtype
        Of the matrix.
    refill : callable
        Takes the values, and a question's `misfit`, `turn` and `told`.
    holds : callable, optional
        Takes the values, `misfit` and `turn`; without it the coding holds any.
    """

    def __init__(
        self,
        device: Device,
        dtype: np.dtype[Any],
        refill: Callable[..., None],
        holds: Callable[..., None] | None = None,
    ) -> None:
        self._on, self._refill, self._holds = device, refill, holds
        self._bits, self._null = device.bits, device.word(None)
        self._kind = bits_type(dtype)

    def __call__(self, data: Array, behind: Callable[[], object] = lambda: None) -> bool:
        """Write values, contiguous and of the matrix's type; False, and nothing written, if one does not fit.

        Nothing is waited for between the two launches; if nothing is asked, nothing is waited for at all.
        `behind` is called when all is launched, whatever comes of it, and not yet waited for.
        """
        values = self._bits(data, self._kind)
        if self._holds is None:
            self._refill(values, self._null, 0, self._null)
            behind()
            return True
        question = self._on.question()
        self._holds(values, question.misfit, question.turn)
        self._refill(values, question.misfit, question.turn, question.told)
        behind()
        return question.fits()


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
        "codes": None,
        "distinct": 0,
    }
    words = {name: on.device.word(value) for name, value in (arguments | _UNASKED).items()}
    place = narrowest(pattern.entries) if plan.order is None else plan.order.dtype
    types = {"Start": np.dtype(np.int64), "Column": pattern.index_dtype, "Index": pattern.index_dtype}
    blocks = ceil_div(len(pattern.headers), 8)
    return Places(starts, pieces, types | {"Place": place}, arguments, words, blocks, plan)


def prepare(on: Resources, places: Places, values: Values, dtype: np.dtype[Any]) -> Fill | None:
    """Return what overwrites values in place; None if there are none.

    Parameters
    ----------
    places : Places
    values : Values
        Of the pattern.
    dtype : numpy.dtype
        Of the matrix.
    """
    coding, stored, count = values.coding, values.codes, places.plan.nnz
    if not places.blocks or not count:
        return None
    of, asked = on.compiled(places.types, dtype, coding), ("data", "misfit", "turn")
    if coding == Coding.DICTIONARY:
        return _dictionary_fill(on, places, values, dtype, of)
    if coding == Coding.EQUAL:
        refill = of.prepared(kernels.KEEP_FIRST, {"table": as_bits(values.table)}, (*asked, "told"), 1, 1)
    else:
        arguments = places.arguments | {"stored": as_codes(stored, coding)}
        overlaps = coding != Coding.PLAIN  # and so there is a question in front of it
        refill = of.prepared(kernels.REFILL, arguments, (*asked, "told"), places.blocks, overlaps=overlaps)
    if coding == Coding.PLAIN:
        return Fill(on.device, dtype, refill)
    blocks = share(count, 2048, 2 * BLOCKS)
    return Fill(on.device, dtype, refill, of.prepared(kernels.HOLDS, {"count": count}, asked, blocks))


def _dictionary_fill(
    on: Resources, places: Places, values: Values, dtype: np.dtype[Any], of: Kernels
) -> Fill:
    """Return what overwrites values by their numbers in a table, and the table."""
    device, count, asked = on.device, places.plan.nnz, ("data", "misfit", "turn")
    sizes = {"facts": 2, "claims": SLOTS, "firsts": SLOTS + 1, "come": 1}
    counted = {name: device.zeros(size, COUNT) for name, size in sizes.items()}
    coder = {"codes": device.empty(SLOTS, np.uint8), "table": as_bits(values.table)}
    made = {"room": len(values.table), "order": None, "count": count}
    blocks = share(count, VALUES_AT_ONCE, BLOCKS // 4)
    counting = on.compiled(types_of_count(count), dtype).prepared(
        kernels.VALUE_FACTS, {**counted, **coder, **made}, asked, blocks, VALUE_THREADS
    )
    stored = {"stored": as_codes(values.codes, values.coding), "distinct": len(values.table)}
    arguments = places.arguments | coder | stored
    refill = of.prepared(kernels.REFILL, arguments, (*asked, "told"), places.blocks, overlaps=True)
    return Fill(device, dtype, refill, counting)


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
        table = device.empty(counted[0].distinct, data.dtype)
        codes = make_dictionary(on, data, None, counted[1], table)
        coder = {"codes": codes, "table": as_bits(table), "distinct": len(table)}
    _refill(on, data, slots, coding, stored, coder)
    return Values(coding, stored, table)


def recode_values(on: Resources, data: Array, slots: Places, values: Values) -> bool:
    """See `Primitives`."""
    fill = prepare(on, slots, values, data.dtype)
    return fill is None or fill(data)


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


def scatter(on: Resources, numbers: Array, slots: Array | None, stored: Array) -> None:
    """See `Primitives`."""
    if len(numbers):
        types = types_of_values(numbers) | {"Slot": np.dtype(np.int32) if slots is None else slots.dtype}
        given = {"data": as_bits(numbers), "count": len(numbers), "slots": slots, "to": as_bits(stored)}
        work = Work(on.device, on.compiled(types, numbers.dtype), **given)
        blocks = share(len(numbers), 1024, 2 * BLOCKS)
        work.launch(kernels.SCATTER, blocks)
