"""Entries in their slots: the codes of values, the bases and the deltas."""

from __future__ import annotations

from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Array
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import BLOCK_SLICES
from dasp.formats.sell.cuda.pack.kinds import INT64, UINT8, as_bits, as_codes
from dasp.formats.sell.cuda.pack.launcher import Launcher
from dasp.formats.sell.cuda.pack.values import count_distinct
from dasp.formats.sell.pattern import Coding, Values, code_type
from dasp.formats.sell.primitives import Layout, Survey
from dasp.runtime.cuda.launch import Arguments
from dasp.runtime.sizes import ceil_div


def store(
    on: Launcher, csr: Csr, survey: Survey, order: Array | None, layout: Layout, coding: Coding
) -> tuple[Values, tuple[Array, Array, Array, Array]]:
    """See `Primitives`."""
    device, of = on.device, kinds.of_matrix(csr)
    values = _new_values(on, csr.data, order, layout.steps, coding, survey)
    bases, deltas = device.empty(layout.steps, of.types["Index"]), device.empty(0, UINT8)
    if layout.slices:
        blocks = ceil_div(layout.slices, BLOCK_SLICES)
        slices = _arguments_of(csr, layout) | {"bases": bases}
        sizes = device.empty(blocks, INT64)
        on.launch(
            kernels.STORE_SLICES,
            kinds.of_matrix(csr, coding),
            blocks,
            **slices,
            data=as_bits(csr.data),
            order=order,
            table=as_bits(values.table) if coding == Coding.DICTIONARY else None,
            distinct=len(values.table),
            stored=None if coding == Coding.EQUAL else as_codes(values.codes, coding),
            sizes=sizes,
        )
        before = on.operations.scan(sizes)
        deltas = device.empty(WARP * device.read(before[-1:])[0], UINT8)
        on.launch(kernels.FILL_DELTAS, of, blocks, **slices, blocks_before=before[:-1], deltas=deltas)
    return values, (layout.rows, layout.headers, bases, deltas)


def _arguments_of(csr: Csr, layout: Layout) -> Arguments:
    """Return the arguments of kernels that go through the slices of a layout."""
    return {
        "indptr": csr.indptr,
        "indices": csr.indices,
        "rows": layout.rows if len(layout.rows) else None,
        "positions": layout.positions,
        **layout.detail.segments.arguments,
        "slices": layout.slices,
        "headers": layout.headers,
    }


def _new_values(
    on: Launcher, data: Array, order: Array | None, steps: int, coding: Coding, survey: Survey
) -> Values:
    """Return values whose codes are still to be written, and whose table is complete."""
    device, count, dtype = on.device, WARP * steps if len(data) else 0, data.dtype
    if coding == Coding.EQUAL:
        first = device.empty(1, dtype)
        device.copy(first, data)
        return Values(coding, device.empty(0, UINT8), first)
    table = device.empty(0, dtype)
    if coding == Coding.DICTIONARY:
        # In another order values first appear elsewhere.
        distinct = survey.detail.distinct if order is None else count_distinct(on, data, order)
        assert survey.values
        table = distinct.table[: survey.values.distinct]
    return Values(coding, device.empty(count, code_type(coding, dtype)), table)
