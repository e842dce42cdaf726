"""Facts of values, and the table of the distinct ones: kernels/pack/values.cu."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.plan import Array
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import SLOTS, VALUE_THREADS, VALUES_AT_ONCE
from dasp.formats.sell.cuda.pack.kinds import COUNT, as_bits
from dasp.formats.sell.cuda.pack.launcher import BLOCKS, Launcher, count_blocks
from dasp.formats.sell.pattern import MOST_CODES

NOT_BYTES, NOT_DICTIONARY, NOT_HALVES, NOT_SINGLES, NOT_REAL = (1 << bit for bit in range(5))
"""Bits that say into what values do not go: `Dead` in kernels/pack/values.cu."""

VALUE_FACTS, VALUE_WORDS = 2, 2 * SLOTS + 4
"""Words of facts, and all words in which values are counted: facts come first."""


class Distinct(NamedTuple):
    """Facts of values, two words (bits of what the values are not, and how many are distinct), and a table.

    The table begins with the distinct values in the order of their first appearance, if they are few.
    """

    facts: Array
    table: Array


def count_distinct(
    on: Launcher, data: Array, order: Array | None = None, words: Array | None = None
) -> Distinct:
    """Return facts of values, and the table of distinct ones; nothing is read.

    Parameters
    ----------
    on : Launcher
    data : Array
    order : Array, optional
        Where the value stands that is the i-th one of the plan.
    words : Array, shape (VALUE_WORDS,), uint64, optional
        Zeros, which become the facts and the counts; new ones by default.
    """
    if words is None:
        words = on.device.zeros(VALUE_WORDS, COUNT)
    table = on.device.empty(MOST_CODES, data.dtype)
    on.launch(
        kernels.VALUE_FACTS,
        kinds.of_values(data.dtype, len(data)),
        count_blocks(len(data), VALUES_AT_ONCE, BLOCKS // 4),
        VALUE_THREADS,
        order=order,
        count=len(data),
        words=words,
        table=as_bits(table),
        data=as_bits(data),
    )
    return Distinct(words[:VALUE_FACTS], table)


def read_facts(on: Launcher, distinct: Distinct) -> tuple[int, int]:
    """Wait, and return bits of what values are not, and how many are distinct."""
    dead, count = on.device.read(distinct.facts)
    return dead, count


def count_values(on: Launcher, data: Array) -> tuple[ValueStatistics, Distinct]:
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
