"""What is known of values, and the table of the distinct ones: kernels/pack/values.cu."""

from __future__ import annotations

from typing import Any, NamedTuple

from dasp.formats.plan import Array
from dasp.formats.sell.choose import ValueStatistics
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import as_bits, types_of_values
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, SLOTS, VALUE_THREADS, VALUES_AT_ONCE
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.pattern import MOST_CODES
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.dtypes import bits_type

NOT_BYTES, NOT_DICTIONARY, NOT_HALVES, NOT_SINGLES, NOT_REAL = (1 << bit for bit in range(5))
"""What values are not: `Dead` in kernels/pack/values.cu."""

VALUE_WORDS = 2 * SLOTS + 1
"""Words of the table."""


class Distinct(NamedTuple):
    """Words, and where facts of values and the table of distinct ones begin among them."""

    words: Array
    facts: int
    table: int


def count_values_into(
    on: Resources, work: Work, data: Array, order: Array | None, distinct: Distinct
) -> None:
    """Set facts of values, and the table of distinct ones; both are 0 before."""
    device, count, dtype, known = on.device, len(data), data.dtype, work.known
    known |= _table(device, distinct)
    known["data"], known["order"] = device.bits(data, bits_type(dtype)), device.word(order)
    known["count"], known["facts"] = count, device.part(distinct.words, distinct.facts, 2)
    compiled = on.compiled(types_of_values(data), dtype)
    work.launch(kernels.VALUE_FACTS, share(count, VALUES_AT_ONCE, BLOCKS // 4), VALUE_THREADS, compiled)


def _table(device: CudaDevice, distinct: Distinct) -> dict[str, Any]:
    """Return what kernels are told of the table of distinct values."""
    words, _, first = distinct
    claims, firsts = device.part(words, first, SLOTS), device.part(words, first + SLOTS, SLOTS + 1)
    return {"claims": claims, "firsts": firsts}


def value_facts(on: Resources, data: Array, order: Array | None) -> Distinct:
    """Return facts of values, and the table of distinct ones."""
    distinct = Distinct(on.device.zeroed(2 + VALUE_WORDS), 0, 2)
    work = Work(on.device, on.compiled(types_of_values(data), data.dtype))
    count_values_into(on, work, data, order, distinct)
    return distinct


def count_values(on: Resources, data: Array) -> tuple[ValueStatistics, Distinct]:
    """See `Primitives`; it keeps the table of distinct values."""
    distinct = value_facts(on, data, None)
    return value_statistics(len(data), *on.device.read(distinct.words, 0, 2)), distinct


def count_distinct(on: Resources, data: Array) -> tuple[Distinct, int | None]:
    """Return the table of distinct values, and how many there are, None if more than a dictionary has."""
    distinct = value_facts(on, data, None)
    dead, count = on.device.read(distinct.words, 0, 2)
    return distinct, None if dead & NOT_DICTIONARY else count


def make_dictionary(on: Resources, data: Array, order: Array | None, distinct: Distinct, count: int) -> Array:
    """Return so many distinct values by their codes."""
    table = on.device.empty(count, data.dtype)
    write_dictionary(on, data, order, distinct, table)
    return table


def write_dictionary(
    on: Resources, data: Array, order: Array | None, distinct: Distinct, table: Array
) -> None:
    """Write the distinct values over the first ones of a table that has room for them."""
    work = Work(on.device, on.compiled(types_of_values(data), data.dtype), data=as_bits(data), order=order)
    work.tell(**_table(on.device, distinct), table=as_bits(table))
    work.launch(kernels.DICTIONARY, 1, VALUE_THREADS)


def value_statistics(count: int, dead: int, distinct: int) -> ValueStatistics:
    """Return what is asked of values; nothing is said that a narrower coding makes needless."""
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
