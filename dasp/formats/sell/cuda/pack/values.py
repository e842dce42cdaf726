"""Facts of values, and the table of the distinct ones: kernels/pack/values.cu."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.plan import Array
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import types_of_values
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, SLOTS, VALUE_THREADS, VALUES_AT_ONCE
from dasp.formats.sell.cuda.pack.work import share
from dasp.formats.sell.pattern import MOST_CODES
from dasp.runtime.dtypes import bits_type

NOT_BYTES, NOT_DICTIONARY, NOT_HALVES, NOT_SINGLES, NOT_REAL = (1 << bit for bit in range(5))
"""Bits that say into what values do not go: `Dead` in kernels/pack/values.cu."""

FACTS, VALUE_WORDS = 2, 2 * SLOTS + 2
"""Words of facts, and zeroed ones with which values are counted."""


class Distinct(NamedTuple):
    """Facts of values, two words (bits of what the values are not, and how many are distinct), and a table.

    The table begins with the distinct values in the order of their first appearance, if they are few.
    """

    words: Array
    facts: int
    table: Array


def start_counting(
    on: Resources, data: Array, order: Array | None, words: Array, facts: int, first: int
) -> Distinct:
    """Launch the kernel that counts values; words from `facts` on, and VALUE_WORDS from `first`, are 0."""
    device = on.device
    table, part, kind = device.empty(MOST_CODES, data.dtype), device.part, bits_type(data.dtype)
    arguments = {
        "order": device.word(order),
        "count": len(data),
        "facts": part(words, facts, FACTS),
        "claims": part(words, first, SLOTS),
        "firsts": part(words, first + SLOTS, SLOTS + 1),
        "come": part(words, first + 2 * SLOTS + 1, 1),
        "table": device.bits(table, kind),
        "data": device.bits(data, kind),
    }
    launch = on.compiled(types_of_values(data), data.dtype)[kernels.VALUE_FACTS]
    launch(share(len(data), VALUES_AT_ONCE, BLOCKS // 4), VALUE_THREADS, arguments)
    return Distinct(words, facts, table)


def count_distinct(on: Resources, data: Array, order: Array | None = None) -> Distinct:
    """Return facts of values, and the table of distinct ones."""
    return start_counting(on, data, order, on.device.zeroed(FACTS + VALUE_WORDS), 0, FACTS)


def read_facts(on: Resources, distinct: Distinct) -> tuple[int, int]:
    """Wait, and return bits of what values are not, and how many are distinct."""
    dead, count = on.device.read(distinct.words, distinct.facts, FACTS)
    return dead, count


def count_values(on: Resources, data: Array) -> tuple[ValueStatistics, Distinct]:
    """See `Primitives`; it keeps the table of distinct values."""
    distinct = count_distinct(on, data)
    return value_statistics(len(data), *read_facts(on, distinct)), distinct


def value_statistics(count: int, dead: int, distinct: int) -> ValueStatistics:
    """Return statistics of values; nothing is said that a narrower coding makes needless."""
    few = not dead & NOT_DICTIONARY
    if few and distinct == 1:
        return ValueStatistics(count, 1, False, False, False)
    if not dead & NOT_BYTES:
        return ValueStatistics(count, MOST_CODES + 1, True, False, False)
    if few:
        return ValueStatistics(count, distinct, False, False, False)
    halves = not dead & NOT_HALVES
    singles, real = not halves and not dead & NOT_SINGLES, not dead & NOT_REAL
    return ValueStatistics(count, MOST_CODES + 1, False, halves, singles, real)
