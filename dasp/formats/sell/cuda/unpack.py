"""Unpack slices on a GPU: the entries of a plan, and the places of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.csr.cuda import CudaOperations
from dasp.formats.plan import Array, Plan
from dasp.formats.sell.cuda.kinds import (
    BLOCK_SLICES,
    COUNT,
    INT64,
    find_entry_kinds,
    find_plan_kinds,
)
from dasp.formats.sell.pattern import Coding, Pattern
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div, narrowest

ROWS_OF_SLICES = """
    const Index*          rows
    long long             positions
    const Index*          long_rows
    const Index*          segment_offsets
    const Index*          segment_rows     [segments]
    long long             segments
    long long             slices
    const uint4*          headers          [slices]
    """
"""The first parameters of kernels that read all entries: the rows in the slices of a plan."""

COUNT_ENTRIES = Signature(
    "pack/unpack.cu",
    "dasp_count_entries",
    """
    const Index*          rows
    long long             positions
    const Index*          long_rows
    const Index*          segment_rows  [segments]
    long long             segments
    long long             slices
    const uint4*          headers       [slices]
    const unsigned char*  deltas
    Count*                lengths
    Count*                pieces        [segments]
    """,
)

FILL_ENTRIES = Signature(
    "pack/unpack.cu",
    "dasp_fill_entries",
    f"""{ROWS_OF_SLICES.rstrip()}
    const Index*          bases
    const unsigned char*  deltas
    const Code*           codes
    const Count*          starts
    const Count*          pieces           [segments]
    Index*                to_indices
    Code*                 to_codes
    """,
)

CLEAR_PADS = Signature(
    "pack/unpack.cu",
    "dasp_clear_pads",
    """
    long long             slices
    const uint4*          headers       [slices]
    const unsigned char*  deltas
    Code*                 codes
    """,
)

DECODE = Signature(
    "pack/unpack.cu",
    "dasp_decode",
    """
    const Code*  codes
    const Bits*  table
    long long    count
    Bits*        data   [count]
    """,
)


def unpack(on: CudaOperations, plan: Plan) -> tuple[Array, Array, Array]:
    """See `Primitives`."""
    indptr, indices, codes = unpack_codes(on, plan)
    return indptr, indices, _decode(on, plan, codes)


def unpack_codes(on: CudaOperations, plan: Plan) -> tuple[Array, Array, Array | None]:
    """Return the matrix like `unpack`, with codes for values, or None if no code is stored."""
    pattern, values, codes = plan.pattern, plan.values, None
    indices = on.device.empty(pattern.entries, pattern.index_dtype)
    if values.coding != Coding.EQUAL:
        codes = on.device.empty(pattern.entries, values.codes.dtype)
    starts, pieces = count_entries(on, plan)
    if pattern.entries:
        on.launch(
            FILL_ENTRIES,
            find_plan_kinds(plan),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            **list_row_slots(pattern),
            bases=pattern.bases,
            codes=None if codes is None else values.codes,
            starts=starts,
            pieces=pieces,
            to_indices=indices,
            to_codes=codes,
        )
    return starts.view(np.int64), indices, codes


def count_entries(on: CudaOperations, plan: Plan) -> tuple[Array, Array]:
    """Return the first entry of each row, and the number of entries of each segment."""
    pattern = plan.pattern
    lengths, pieces = on.device.zeros(plan.shape[0], INT64), on.device.empty(pattern.segments, COUNT)
    if pattern.entries:
        on.launch(
            COUNT_ENTRIES,
            find_plan_kinds(plan),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            **list_row_slots(pattern),
            lengths=lengths.view(COUNT),
            pieces=pieces,
        )
    return on.scan(lengths).view(COUNT), pieces


def _decode(on: CudaOperations, plan: Plan, codes: Array | None) -> Array:
    """Decode the values of entries; `codes` is None if all are equal."""
    values, count = plan.values, plan.pattern.entries
    if codes is not None and values.coding == Coding.PLAIN:
        return codes
    data: Array = on.device.empty(count, plan.dtype)
    if count:
        blocks = on.count_blocks(count, 256)
        on.launch(
            DECODE, find_plan_kinds(plan), blocks, codes=codes, table=values.table, count=count, data=data
        )
    return data


def clear_pads(on: CudaOperations, pattern: Pattern, codes: Array) -> None:
    """See `Primitives`."""
    if len(codes):
        on.launch(
            CLEAR_PADS,
            find_entry_kinds(pattern.index_dtype, narrowest(pattern.entries), codes.dtype, Coding.PLAIN),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            slices=len(pattern.headers),
            headers=pattern.headers,
            deltas=pattern.deltas,
            codes=codes,
        )


def list_row_slots(pattern: Pattern) -> dict[str, Any]:
    """Return the kernel arguments for the slots of a pattern's rows."""
    return {
        "rows": pattern.rows if len(pattern.rows) else None,
        "positions": pattern.positions,
        "long_rows": pattern.long_rows,
        "segment_offsets": pattern.segment_offsets,
        "segment_rows": pattern.segment_rows,
        "segments": pattern.segments,
        "slices": len(pattern.headers),
        "headers": pattern.headers,
        "deltas": pattern.deltas,
    }
