"""Other values for the pattern of a plan: beside the old ones, or in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dasp.formats.csr.cuda.c_types import COUNT, as_bits, types_of_count, types_of_values
from dasp.formats.plan import Array, Plan, narrowest
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.codes import as_codes
from dasp.formats.sell.cuda.pack.protocols import Device, Question
from dasp.formats.sell.cuda.pack.resources import Kernels, Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, SLOTS, VALUE_THREADS, VALUES_AT_ONCE
from dasp.formats.sell.cuda.pack.unpack import count_entries, slots_of_rows
from dasp.formats.sell.cuda.pack.values import Distinct, make_dictionary
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.runtime.cuda.launch import Launches, Signature
from dasp.runtime.dtypes import bits_type, sum_type
from dasp.runtime.integers import ceil_div

_UNASKED = {"misfit": None, "turn": 0, "told": None}
"""What `kernels.REFILL` is told where nobody asked whether values fit."""


SKIPPED, MOST_SKIPPED = 7, 127
"""Calls, after one with values that are new to a table, in which such are expected again, and after the next
such one twice as many, up to so many: to look for them in the old table first takes a small matrix 8
microseconds more than a new one alone."""

_CAPTURED = (
    "new values were written into coded ones, of a matrix or of its transpose, while a graph was captured; "
    "a graph writes values that are stored as they are; plan the matrix with Policy(narrow=False)"
)

Way = Callable[[Any, Question], bool]
"""Launches what writes values if a question is answered so; returns whether all is written by then."""


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
    ways : sequence of Way
        In the order in which they are tried: where one refuses, the next may write. After one that did, the
        last one alone is tried `SKIPPED` times; each time that the first one still refuses, twice as often.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any], ways: Sequence[Way]) -> None:
        self._question, self._ways, self._last = device.question, ways, ways[-1:]
        self._bits, self._kind, self._skipped, self._skips = device.bits, bits_type(dtype), 0, SKIPPED
        self._is_capturing = device.is_capturing

    def __call__(self, data: Array, behind: Callable[[], object] = lambda: None) -> bool:
        """Write values, contiguous and of the matrix's type; False, and nothing written, if one does not fit.

        `behind` is called when all is launched, and not yet waited for, whatever comes of it, unless all is
        written once the answer is there. RuntimeError in a capture, where nobody can answer.
        """
        values, ways = self._bits(data, self._kind), self._ways
        if self._skipped:
            self._skipped -= 1
            ways = self._last
        for way in ways:
            question = self._question()
            try:
                if not way(values, question):
                    behind()
                fits = question.fits()
            except RuntimeError as error:
                if not self._is_capturing():
                    raise
                raise RuntimeError(_CAPTURED) from error
            if fits:
                if way is not ways[0]:
                    self._skipped = self._skips
                    self._skips = min(2 * self._skips + 1, MOST_SKIPPED)
                elif ways is self._ways:
                    self._skips = SKIPPED
                return True
        return False


class PlainFill:
    """Other values in the place of some that are stored as they are: nothing is asked or waited for.

    Parameters
    ----------
    device : Device
    dtype : numpy.dtype
        Of the matrix.
    refill : callable
        Takes the values, and what `kernels.REFILL` is told of a question.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any], refill: Callable[..., None]) -> None:
        self._refill, self._bits, self._kind = refill, device.bits, bits_type(dtype)
        self._unasked = device.word(None), 0, device.word(None)

    def __call__(self, data: Array, behind: Callable[[], object] = lambda: None) -> bool:
        """Write values, contiguous and of the matrix's type; `behind` is called when they are launched."""
        self._refill(self._bits(data, self._kind), *self._unasked)
        behind()
        return True


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
    words = {name: on.device.word(value) for name, value in (arguments | _UNASKED).items()}
    place = narrowest(pattern.entries) if plan.order is None else plan.order.dtype
    types = {"Start": np.dtype(np.int64), "Column": pattern.index_dtype, "Index": pattern.index_dtype}
    blocks = ceil_div(len(pattern.headers), 8)
    return Places(starts, pieces, types | {"Place": place}, arguments, words, blocks, plan)


def prepare(on: Resources, places: Places, values: Values, dtype: np.dtype[Any]) -> Fill | PlainFill | None:
    """Return what overwrites values in place; None if there are none.

    Parameters
    ----------
    places : Places
    values : Values
        Of the pattern.
    dtype : numpy.dtype
        Of the matrix.
    """
    device, coding, count = on.device, values.coding, places.plan.nnz
    if not places.blocks or not count:
        return None
    of = on.compiled(places.types, dtype, coding)
    if coding == Coding.EQUAL:
        return Fill(device, dtype, [_first_kept(device, of, values, count)])
    looked_up = {"table": as_bits(values.table), "distinct": len(values.table)}
    known = looked_up if coding == Coding.DICTIONARY else {"table": None, "distinct": 0}
    arguments = places.arguments | known | {"stored": as_codes(values.codes, coding)}
    # Behind a question the launch overlaps.
    overlaps, asked = coding != Coding.PLAIN, ("data", "misfit", "turn", "told")
    refill = of.prepared(kernels.REFILL, arguments, asked, places.blocks, overlaps=overlaps)
    if coding == Coding.PLAIN:
        return PlainFill(device, dtype, refill)
    if places.blocks <= device.together:
        first = _at_once(of, kernels.REFILL_TOGETHER, arguments, places.blocks)
    else:
        blocks = share(count, 2048, 2 * BLOCKS)
        first = _in_two(of.prepared(kernels.HOLDS, {"count": count, **known}, asked[:3], blocks), refill)
    if coding != Coding.DICTIONARY:
        return Fill(device, dtype, [first])
    return Fill(device, dtype, [first, _in_two(_new_table(on, values, dtype, count), refill)])


def _first_kept(device: Device, of: Kernels, values: Values, count: int) -> Way:
    """Return what writes the first of equal values."""
    blocks = min(share(count, 2048, 2 * BLOCKS), max(device.together, 1))
    return _at_once(of, kernels.KEEP_FIRST, {"count": count, "table": as_bits(values.table)}, blocks)


def _at_once(of: Kernels, signature: Signature, arguments: dict[str, Any], blocks: int) -> Way:
    """Return one launch that asks and writes."""
    varying = "data", "votes", "told"
    launch = of.prepared(signature, arguments, varying, blocks, together=blocks > 1)

    def write(values: Any, question: Question) -> bool:
        launch(values, question.votes, question.told)
        return True

    return write


def _in_two(asks: Callable[..., None], refill: Callable[..., None]) -> Way:
    """Return a launch that asks, and one that writes."""

    def write(values: Any, question: Question) -> bool:
        asks(values, question.misfit, question.turn)
        refill(values, question.misfit, question.turn, question.told)
        return False

    return write


def _new_table(on: Resources, values: Values, dtype: np.dtype[Any], count: int) -> Callable[..., None]:
    """Return what asks whether values have room in a table, and writes it."""
    sizes = {"facts": 2, "claims": SLOTS, "firsts": SLOTS + 1, "come": 1}
    arguments = {name: on.device.zeros(size, COUNT) for name, size in sizes.items()}
    arguments |= {"table": as_bits(values.table), "room": len(values.table), "order": None, "count": count}
    asked, blocks = ("data", "misfit", "turn"), share(count, VALUES_AT_ONCE, BLOCKS // 4)
    of = on.compiled(types_of_count(count), dtype)
    return of.prepared(kernels.VALUE_FACTS, arguments, asked, blocks, VALUE_THREADS)


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
