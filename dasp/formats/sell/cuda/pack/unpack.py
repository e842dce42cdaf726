"""The way back: the entries of a plan, and where some of them are."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.plan import Array, Plan
from dasp.formats.sell.cuda.pack import kernels, kinds
from dasp.formats.sell.cuda.pack.kernels import BLOCK_SLICES
from dasp.formats.sell.cuda.pack.kinds import COUNT, INT64, as_bits, as_codes
from dasp.formats.sell.cuda.pack.launcher import Launcher, count_blocks
from dasp.formats.sell.pattern import Coding, Pattern, Values
from dasp.runtime.cuda.launch import Arguments
from dasp.runtime.sizes import ceil_div


def unpack(on: Launcher, plan: Plan) -> tuple[Array, Array, Array]:
    """See `Primitives`."""
    indptr, indices, codes = unpack_codes(on, plan)
    return indptr, indices, decode(on, plan.values, codes, plan.pattern.entries, plan.dtype)


def unpack_codes(on: Launcher, plan: Plan) -> tuple[Array, Array, Array | None]:
    """Return the matrix as `unpack` does, its values as they are stored; None if they are not."""
    pattern, values, codes = plan.pattern, plan.values, None
    indices = on.device.empty(pattern.entries, pattern.index_dtype)
    if values.coding != Coding.EQUAL:
        codes = on.device.empty(pattern.entries, values.codes.dtype)
    starts, pieces = count_entries(on, plan)
    if pattern.entries:
        on.launch(
            kernels.FILL_ENTRIES,
            kinds.of_codes(pattern, values.codes),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            **slots_of_rows(pattern),
            segment_offsets=pattern.segment_offsets,
            bases=pattern.bases,
            codes=None if codes is None else as_bits(values.codes),
            starts=starts,
            pieces=pieces,
            to_indices=indices,
            to_codes=None if codes is None else as_bits(codes),
        )
    return starts.view(np.int64), indices, codes


def count_entries(on: Launcher, plan: Plan) -> tuple[Array, Array]:
    """Return where each row begins, and the entries of each segment."""
    pattern = plan.pattern
    lengths, pieces = on.device.zeros(plan.shape[0], INT64), on.device.empty(pattern.segments, COUNT)
    if pattern.entries:
        on.launch(
            kernels.COUNT_ENTRIES,
            kinds.of_codes(pattern, plan.values.codes),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            **slots_of_rows(pattern),
            lengths=lengths.view(COUNT),
            pieces=pieces,
        )
    return on.operations.scan(lengths).view(COUNT), pieces


def decode(on: Launcher, values: Values, codes: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
    """See `Primitives`."""
    if codes is not None and values.coding == Coding.PLAIN:
        return codes
    data: Array = on.device.empty(count, dtype)
    if count:
        on.launch(
            kernels.DECODE,
            kinds.of_values(dtype, count, values.coding),
            count_blocks(count, 256),
            codes=None if codes is None or not len(codes) else as_codes(codes, values.coding),
            table=as_bits(values.table),
            count=count,
            data=as_bits(data),
        )
    return data


def clear_pads(on: Launcher, pattern: Pattern, codes: Array) -> None:
    """See `Primitives`."""
    if len(codes):
        on.launch(
            kernels.CLEAR_PADS,
            kinds.of_codes(pattern, codes),
            ceil_div(len(pattern.headers), BLOCK_SLICES),
            slices=len(pattern.headers),
            headers=pattern.headers.reshape(-1),
            deltas=pattern.deltas,
            codes=as_bits(codes),
        )


def slots_of_rows(pattern: Pattern) -> Arguments:
    """Return the arguments that say which slots the rows of a pattern have."""
    return {
        "rows": pattern.rows if len(pattern.rows) else None,
        "positions": pattern.positions,
        "long_rows": pattern.long_rows,
        "segment_rows": pattern.segment_rows,
        "segments": pattern.segments,
        "slices": len(pattern.headers),
        "headers": pattern.headers.reshape(-1),
        "deltas": pattern.deltas,
    }
