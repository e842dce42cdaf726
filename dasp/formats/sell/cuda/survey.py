"""Survey a matrix on a GPU before its rows are ordered: its integers and its values."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.cuda import CudaOperations
from dasp.formats.csr.matrix import Csr, check_facts
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.kinds import (
    COUNT,
    find_matrix_kinds,
    find_value_kinds,
)
from dasp.formats.sell.pattern import MOST_CODES, Coding
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.cuda.launch import Kinds, Signature
from dasp.runtime.sizes import ceil_div

LONG_TILE, LONG_COUNTS = 2048, 3
"""Rows of a tile in which long rows are counted, and the counts of a tile: kernels/pack/pack.cuh."""

BIAS, ALL_BITS = 1 << 63, (1 << 64) - 1
"""The number whose addition makes signed numbers compare as unsigned ones; and a mask that flips all bits."""

SLOTS, VALUE_THREADS, VALUES_AT_ONCE = 2048, 1024, 4096
"""Slots of the table of distinct values; threads, and values, of a block that counts them."""

VALUE_WORDS, VALUE_FACTS = SLOTS + 4, 2
"""Words in which values are counted, and how many of them are facts: the first ones."""

NOT_BYTES, NOT_DICTIONARY, NOT_SINGLES = (1 << bit for bit in range(3))
"""Bits that rule codings out: `Dead` in kernels/pack/values.cu."""

SURVEY = Signature(
    "pack/survey.cu",
    "dasp_survey",
    """
    const Start*   indptr
    const Column*  indices        [nnz]
    long long      m
    long long      nnz
    int            steps
    int            segment_steps
    int            most_segments
    Count*         facts
    Count*         long_tiles
    """,
)

COUNT_VALUES = Signature(
    "pack/values.cu",
    "dasp_value_facts",
    """
    long long        count
    Count*           words   [2052]
    Bits*            table
    const Bits*      data    [count]
    """,
)


class Facts(NamedTuple):
    """Numbers of a matrix, in the order of `Fact` in kernels/pack/survey.cu, where they are explained."""

    falls: int
    descents: int
    row_descents: int
    long_rows: int
    segments: int
    segment_steps: int
    segment_full: int
    rises: int
    longest_whole: int
    longest: int
    end: int
    most_column: int
    least_column_not: int


FACTS = len(Facts._fields)


class Distinct(NamedTuple):
    """The counts of values and a table of the distinct ones.

    The first two counts are facts: the bits that rule codings out, and the number of distinct values. The
    table begins with the distinct values in the order of their bits, if they are few.
    """

    words: Array
    table: Array


class Found(NamedTuple):
    """The detail of a survey, with arrays on the device.

    Attributes
    ----------
    facts : Facts
    kinds : Kinds
        Of the matrix's integers.
    long_tiles : Array
        Counts of the long rows in each tile of rows: kernels/pack/survey.cu.
    dictionary : Array or None
        The table of the values, if they are coded by one.
    """

    facts: Facts
    kinds: Kinds
    long_tiles: Array
    dictionary: Array | None


def survey(on: CudaOperations, csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`; also check that the arrays are a matrix, as `check_compressed` does."""
    m, nnz, kinds = csr.shape[0], len(csr.indices), find_matrix_kinds(csr)
    if csr.indptr.shape != (m + 1,):
        check_facts("CSR", csr.shape, False, 0, (nnz, len(csr.data)), None)
    narrows = bool(narrow and nnz and len(csr.data))
    ends = FACTS + VALUE_WORDS * narrows  # of the facts, and of the counts of values behind them
    words = on.device.zeros(ends + LONG_COUNTS * ceil_div(m, LONG_TILE), COUNT)
    long_tiles = words[ends:]
    on.launch(
        SURVEY,
        kinds,
        on.count_blocks(max(m, nnz), 256),
        indptr=csr.indptr,
        indices=csr.indices,
        m=m,
        nnz=nnz,
        steps=cut.steps,
        segment_steps=cut.segment_steps,
        most_segments=cut.most_segments,
        facts=words,
        long_tiles=long_tiles,
    )
    distinct = count_distinct(on, csr.data, words[FACTS:ends]) if narrows else None
    numbers = on.device.read(words[: FACTS + VALUE_FACTS * narrows])
    facts = Facts._make(numbers[:FACTS])
    _check(csr, facts)
    coding, dictionary = _choose(distinct, *numbers[FACTS:]) if distinct else (Coding.PLAIN, None)
    return Survey(
        columns_rise=facts.descents == facts.row_descents,
        most_column=facts.most_column - BIAS if nnz else -1,
        coding=coding,
        long_rows=facts.long_rows,
        longest=facts.longest_whole,
        rises=facts.rises > 0,
        detail=Found(facts, kinds, long_tiles, dictionary),
    )


def _check(csr: Csr, facts: Facts) -> None:
    """Check that arrays on the device are a matrix; see `check_compressed`."""
    given = len(csr.indices), len(csr.data)
    least = (facts.least_column_not ^ ALL_BITS) - BIAS
    columns = (least, facts.most_column - BIAS) if given[0] else None
    check_facts("CSR", csr.shape, not facts.falls, facts.end - BIAS, given, columns)


def choose_coding(on: CudaOperations, data: Array) -> tuple[Coding, Array | None]:
    """See `Primitives`; a dictionary is its table."""
    distinct = count_distinct(on, data)
    return _choose(distinct, *read_facts(on, distinct))


def count_distinct(on: CudaOperations, data: Array, words: Array | None = None) -> Distinct:
    """Count values and list the distinct ones; nothing is read back.

    Parameters
    ----------
    on : CudaOperations
    data : Array
    words : Array, shape (VALUE_WORDS,), uint64, optional
        Zeros, which become the facts and the counts; new ones by default.
    """
    if words is None:
        words = on.device.zeros(VALUE_WORDS, COUNT)
    table = on.device.empty(MOST_CODES, data.dtype)
    on.launch(
        COUNT_VALUES,
        find_value_kinds(data.dtype, len(data)),
        on.count_blocks(len(data), VALUES_AT_ONCE, 1),
        VALUE_THREADS,
        count=len(data),
        words=words,
        table=table,
        data=data,
    )
    return Distinct(words, table)


def read_facts(on: CudaOperations, distinct: Distinct) -> tuple[int, int]:
    """Wait, and return the bits that rule codings out, and the number of distinct values."""
    dead, count = on.device.read(distinct.words[:VALUE_FACTS])
    return dead, count


def _choose(distinct: Distinct, dead: int, count: int) -> tuple[Coding, Array | None]:
    """Return the narrowest coding that no bit of `dead` rules out, and the table if it is a dictionary."""
    few = not dead & NOT_DICTIONARY
    if few and count == 1:
        return Coding.EQUAL, None
    if not dead & NOT_BYTES:
        return Coding.BYTE, None
    if few:
        return Coding.DICTIONARY, distinct.table[:count]
    return (Coding.PLAIN if dead & NOT_SINGLES else Coding.SINGLE), None
