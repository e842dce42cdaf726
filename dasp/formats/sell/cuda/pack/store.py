"""Entries in their slots: the codes of values, the bases and the deltas."""

from __future__ import annotations

import numpy as np

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import as_bits
from dasp.formats.sell.cuda.pack.codes import code_bits
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import SLICE_TILE
from dasp.formats.sell.cuda.pack.survey import SurveyWork
from dasp.formats.sell.cuda.pack.values import count_distinct
from dasp.formats.sell.layout import Layout, Survey
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.runtime.dtypes import bits_type
from dasp.runtime.integers import ceil_div


def store(
    on: Resources, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
) -> tuple[Values, tuple[Array, Array, Array, Array]]:
    """See `Primitives`."""
    device, work, slices = on.device, survey.detail, layout.slices
    stored, table = _room(on, csr.data, order, layout.steps, coding, survey)
    deltas = _store(on, csr, order, layout, coding, work) if slices else on.nothing(np.uint8)
    codes = on.nothing(np.uint8) if stored is None else device.as_array(stored)
    rows = on.nothing(work.types["Index"]) if layout.rows is None else device.as_array(layout.rows)
    headers, bases = device.as_array(layout.headers, (slices, 4)), device.as_array(layout.detail.bases)
    return Values(coding, codes, table), (rows, headers, bases, deltas)


def _store(
    on: Resources, csr: Csr, order: Array | None, layout: Layout, coding: Coding, work: SurveyWork
) -> Array:
    """Store values and bases, which says how many bytes the deltas take; return these."""
    device, known, slices, dtype = on.device, work.known, layout.slices, csr.data.dtype
    tiles, blocks = ceil_div(slices, SLICE_TILE), ceil_div(slices, 8)
    first = work.take(tiles + 2)
    known["slices"], known["bases"] = slices, device.word(layout.detail.bases)
    known["data"], known["order"] = device.bits(csr.data, bits_type(dtype)), device.word(order)
    known["come"], known["sizes"] = work.words(first, 1), work.words(first + 1, tiles + 1)
    work.launch(kernels.STORE_SLICES, blocks, 256, on.compiled(work.types, dtype, coding))
    (size,) = work.read(first + 1 + tiles, 1)
    deltas = device.empty(WARP * size, np.uint8)
    known["deltas"] = device.word(deltas)
    work.launch(kernels.FILL_DELTAS, blocks)
    return deltas


def _room(
    on: Resources, data: Array, order: Array | None, steps: int, coding: Coding, survey: Survey
) -> tuple[Array | None, Array]:
    """Return where codes are to be stored, None if they are not, and their table; tell kernels of both."""
    device, work, dtype = on.device, survey.detail, data.dtype
    known = work.known
    known["table"] = known["stored"] = device.word(None)
    known["distinct"] = 0
    if coding == Coding.EQUAL:
        first = device.empty(1, dtype)
        device.copy(first, data)
        return None, first
    table = on.nothing(dtype)
    if coding == Coding.DICTIONARY:
        # In another order values first appear elsewhere.
        distinct = work.distinct if order is None else count_distinct(on, data, order)
        assert distinct
        assert survey.values
        table = distinct.table[: survey.values.distinct]
        work.tell(distinct=len(table), table=as_bits(table))
    (stored,) = device.scratch((WARP * steps if len(data) else 0, code_type(coding, dtype)))
    known["stored"] = device.bits(stored, code_bits(coding, dtype))
    return stored, table
