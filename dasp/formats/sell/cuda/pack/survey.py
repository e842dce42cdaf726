"""What is known of a matrix: kernels/pack/survey.cu, and what the steps after it note."""

from __future__ import annotations

from typing import NamedTuple

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import Types
from dasp.formats.sell.cuda.pack.resources import Kernels, Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, CUT_TILE, LONG_COUNTS, LONG_TILE, SLICE_TILE
from dasp.formats.sell.cuda.pack.values import VALUE_WORDS, Distinct, start_counting, value_statistics
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.layout import Cut, Survey
from dasp.runtime import check as _check
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.integers import ceil_div

BIAS, ALL_BITS = 1 << 63, (1 << 64) - 1
"""Added to a signed number so that it compares as an unsigned one; and what flips every bit."""


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


ZEROS, ORDER_ZEROS, VALUES_AT = 512, 16, len(Facts._fields)
"""Zeroed words that a survey has for the steps after it, beside one for every 64 slices and some for every
tile of positions: each fill of its own costs as much as a launch. Where those of values are among them."""


class Segments(NamedTuple):
    """Segments in an order: first entries, lengths and headers. None if there are none."""

    starts: Array | None
    lengths: Array | None
    headers: Array | None


class LongRows(NamedTuple):
    """Rows that are cut into segments, and these segments row by row."""

    long_rows: Array
    offsets: Array
    rows: Array
    segments: Segments


class SurveyWork(Work):
    """The work on a matrix, and what is known of it.

    Attributes
    ----------
    facts : Facts
    distinct : Distinct or None
        Of the values, if they were counted.
    long : LongRows or None
        Rows too long for a slice, and their segments, once they are listed.
    nbytes : int
        Of the matrix.
    """

    facts: Facts
    nbytes: int
    distinct: Distinct | None = None
    long: LongRows | None = None

    def __init__(self, device: CudaDevice, kernels: Kernels, words: Array, types: Types) -> None:
        super().__init__(device, kernels, words)
        self.types = types


def survey(on: Resources, csr: Csr, cut: Cut, narrow: bool) -> Survey:
    """See `Primitives`; also holds that the arrays are a matrix, as `dasp.runtime.check.compressed` does."""
    m, nnz = csr.shape[0], len(csr.indices)
    if csr.indptr.shape != (m + 1,):
        _check.compressed_facts("CSR", csr.shape, False, 0, (nnz, len(csr.data)), None)
    counts = bool(narrow and nnz and len(csr.data))
    long_tiles = LONG_COUNTS * ceil_div(m, LONG_TILE)
    zeros = ZEROS + m // SLICE_TILE + nnz // CUT_TILE + ORDER_ZEROS * (m // CUT_TILE + 1) + long_tiles
    device, types = on.device, on.ready(csr)
    words, word = device.zeroed(zeros + VALUE_WORDS * counts), device.word
    work = SurveyWork(device, on.compiled(types), words, types)
    first = work.take(VALUES_AT + 2)
    known = work.known = {
        "indptr": word(csr.indptr),
        "indices": word(csr.indices),
        "m": m,
        "nnz": nnz,
        "steps": cut.steps,
        "segment_steps": cut.segment_steps,
        "most_segments": cut.most_segments,
        "facts": work.words(first, VALUES_AT),
        "long_tiles": work.zeros(long_tiles),
    }
    work.launch(kernels.SURVEY, share(max(m, nnz), 256, BLOCKS))
    if counts:
        work.distinct = start_counting(on, csr.data, None, words, VALUES_AT, work.take(VALUE_WORDS))
    known["segment_starts"] = known["segment_lengths"] = word(None)
    known["stride"], known["segments"] = m, 0
    work.nbytes = int(csr.indptr.nbytes + csr.indices.nbytes + csr.data.nbytes)
    *found, dead, distinct = work.read(first, VALUES_AT + 2)
    facts = work.facts = Facts._make(found)
    _hold(csr, facts)
    return Survey(
        columns_rise=facts.descents == facts.row_descents,
        most_column=facts.most_column - BIAS if nnz else -1,
        values=value_statistics(nnz, dead, distinct) if counts else None,
        long_rows=facts.long_rows,
        longest=facts.longest_whole,
        rises=facts.rises > 0,
        detail=work,
    )


def _hold(csr: Csr, facts: Facts) -> None:
    """Hold that arrays on the device are a matrix; see `dasp.runtime.check.compressed`."""
    given = len(csr.indices), len(csr.data)
    least = (facts.least_column_not ^ ALL_BITS) - BIAS
    columns = (least, facts.most_column - BIAS) if given[0] else None
    _check.compressed_facts("CSR", csr.shape, not facts.falls, facts.end - BIAS, given, columns)
