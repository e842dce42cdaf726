"""The facts of a matrix before its rows are ordered: kernels/pack/survey.cu."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.matrix import Csr, check_facts
from dasp.formats.plan import Array
from dasp.formats.sell.choose import choose_coding
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import LONG_COUNTS, LONG_TILE
from dasp.formats.sell.cuda.pack.kinds import COUNT
from dasp.formats.sell.cuda.pack.launcher import Launcher, count_blocks
from dasp.formats.sell.cuda.pack.values import (
    VALUE_FACTS,
    VALUE_WORDS,
    Distinct,
    count_distinct,
    value_statistics,
)
from dasp.formats.sell.primitives import Cut, Survey
from dasp.runtime.sizes import ceil_div

BIAS, ALL_BITS = 1 << 63, (1 << 64) - 1
"""Added to a signed number so that it compares as an unsigned one; and all bits, to flip them."""


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


class Found(NamedTuple):
    """The detail of a survey, with arrays on the device.

    Attributes
    ----------
    facts : Facts
    long_tiles : Array
        Numbers of the long rows in each tile of rows: kernels/pack/survey.cu.
    distinct : Distinct or None
        Of the values, if they were counted.
    """

    facts: Facts
    long_tiles: Array
    distinct: Distinct | None


def survey(on: Launcher, csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`; also holds that the arrays are a matrix, as `check_compressed` does."""
    m, nnz = csr.shape[0], len(csr.indices)
    if csr.indptr.shape != (m + 1,):
        check_facts("CSR", csr.shape, False, 0, (nnz, len(csr.data)), None)
    narrows = bool(narrow and nnz and len(csr.data))
    words = on.device.zeros(FACTS + VALUE_WORDS * narrows, COUNT)
    long_tiles = on.device.zeros(LONG_COUNTS * ceil_div(m, LONG_TILE), COUNT)
    on.launch(
        kernels.SURVEY,
        kinds.of_matrix(csr),
        count_blocks(max(m, nnz), 256),
        indptr=csr.indptr,
        indices=csr.indices,
        m=m,
        nnz=nnz,
        steps=cut.steps,
        segment_steps=cut.segment_steps,
        most_segments=cut.most_segments,
        facts=words[:FACTS],
        long_tiles=long_tiles,
    )
    distinct = count_distinct(on, csr.data, words=words[FACTS:]) if narrows else None
    numbers = on.device.read(words[: FACTS + VALUE_FACTS * narrows])
    facts = Facts._make(numbers[:FACTS])
    _hold(csr, facts)
    values = value_statistics(len(csr.data), *numbers[FACTS:]) if narrows else None
    if values:
        on.begin_loading(csr, choose_coding(values, csr.data.dtype))
    return Survey(
        columns_rise=facts.descents == facts.row_descents,
        most_column=facts.most_column - BIAS if nnz else -1,
        values=values,
        long_rows=facts.long_rows,
        longest=facts.longest_whole,
        rises=facts.rises > 0,
        detail=Found(facts, long_tiles, distinct),
    )


def _hold(csr: Csr, facts: Facts) -> None:
    """Hold that arrays on the device are a matrix; see `check_compressed`."""
    given = len(csr.indices), len(csr.data)
    least = (facts.least_column_not ^ ALL_BITS) - BIAS
    columns = (least, facts.most_column - BIAS) if given[0] else None
    check_facts("CSR", csr.shape, not facts.falls, facts.end - BIAS, given, columns)
