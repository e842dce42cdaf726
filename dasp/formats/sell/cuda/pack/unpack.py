"""The way back: the entries of a plan, and where some of them are."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dasp.formats.plan import Array, Plan
from dasp.formats.sell.cuda.pack import kernels
from dasp.formats.sell.cuda.pack.c_types import COUNT, as_bits, types_of_count, types_of_values
from dasp.formats.sell.cuda.pack.codes import as_codes, types_of_plan
from dasp.formats.sell.cuda.pack.resources import Resources
from dasp.formats.sell.cuda.pack.sizes import BLOCKS, ROW_TILE
from dasp.formats.sell.cuda.pack.work import Work, share
from dasp.formats.sell.pattern import Coding, Pattern, Values
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import real_type
from dasp.runtime.integers import ceil_div

QUAD = 16
"""Bytes that are looked up at once."""

NOTHING, NOT_A_BYTE = 256, 1 << 48
"""What a byte becomes that has no other; what each warp with one adds to the zeros: kernels/pack/bytes.cu."""


def unpack(on: Resources, plan: Plan) -> tuple[Array, Array, Array]:
    """See `Primitives`."""
    indptr, indices, codes = unpack_codes(on, plan)
    return indptr, indices, decode(on, plan.values, codes, plan.pattern.entries, plan.dtype)


def unpack_codes(on: Resources, plan: Plan) -> tuple[Array, Array, Array | None]:
    """Return what `unpack` does, with the values as they are stored; None if they are not."""
    count, values = plan.pattern.entries, plan.values
    indices, codes = on.device.empty(count, plan.pattern.index_dtype), None
    if values.coding != Coding.EQUAL:
        codes = on.device.empty(count, values.codes.dtype)
    starts, _, work = count_entries(on, plan)
    if count:
        stored = None if codes is None else as_bits(values.codes)
        given = {"bases": plan.pattern.bases, "segment_offsets": plan.pattern.segment_offsets}
        made = {"to_indices": indices, "to_codes": None if codes is None else as_bits(codes)}
        blocks = ceil_div(len(plan.pattern.headers), 8)
        work.launch(kernels.FILL_ENTRIES, blocks, **given, codes=stored, **made)
    return starts.view(np.int64), indices, codes


def count_entries(on: Resources, plan: Plan) -> tuple[Array, Array, Work]:
    """Return where each row begins, and the entries of each segment; and the work, which goes on."""
    pattern, m = plan.pattern, plan.shape[0]
    starts, pieces = on.device.zeros(m + 1, COUNT), on.device.empty(pattern.segments, COUNT)
    tiles, blocks = ceil_div(m, ROW_TILE), ceil_div(len(pattern.headers), 8)
    given = {"starts": starts, "pieces": pieces, "m": m, "tiles": tiles, **slots_of_rows(pattern)}
    work = Work(on.device, on.compiled(types_of_plan(plan)), on.device.zeroed(tiles + 2), **given)
    work.tell(come=work.zeros(1), sizes=work.zeros(tiles + 1))
    if pattern.entries:
        work.launch(kernels.COUNT_ENTRIES, blocks)
        work.launch(kernels.START_ROWS, tiles)
    return starts, pieces, work


def decode(on: Resources, values: Values, codes: Array | None, count: int, dtype: np.dtype[Any]) -> Array:
    """See `Primitives`."""
    if codes is not None and values.coding == Coding.PLAIN:
        return codes
    data = on.device.empty(count, dtype)
    if count:
        coded = None if codes is None or not len(codes) else as_codes(codes, values.coding)
        given = {"codes": coded, "table": as_bits(values.table), "count": count, "data": as_bits(data)}
        work = Work(on.device, on.compiled(types_of_values(data), data.dtype, values.coding), **given)
        work.launch(kernels.DECODE, share(count, 256, BLOCKS))
    return data


def clear_pads(on: Resources, pattern: Pattern, codes: Array) -> None:
    """See `Primitives`."""
    if len(codes):
        _launch_on_slots(on, kernels.CLEAR_PADS, pattern, {"codes": as_bits(codes)})


def negated(on: Resources, pattern: Pattern, numbers: Array) -> Array:
    """See `Primitives`: signs are flipped."""
    made = on.device.empty(len(numbers), numbers.dtype)
    if len(numbers):
        codes = {"codes": as_bits(numbers), "to_codes": as_bits(made)}
        _launch_on_slots(on, kernels.FLIP_BITS, pattern, codes, bits=_sign_bits(numbers.dtype))
    return made


@cache
def _sign_bits(dtype: np.dtype[Any]) -> int:
    """Return the bits in a word of numbers, of 8 bytes at most, that are their signs."""
    width = 8 * real_type(dtype).itemsize
    return sum(1 << end - 1 for end in range(width, 8 * min(dtype.itemsize, 8) + 1, width))


def map_bytes(on: Resources, codes: Array, to: np.ndarray[Any, Any], pads: int) -> Array | None:
    """See `Primitives`."""
    device, quads = on.device, len(codes) // QUAD
    made, found = device.empty(len(codes), codes.dtype), device.zeroed(1)
    places = device.constant(tuple(to.view(np.int64).tolist())).view(to.dtype)  # there are few such maps
    given = {"codes": codes, "quads": quads, "to": places, "made": made, "found": found}
    work = Work(device, on.compiled(types_of_count(0)), **given)
    work.launch(kernels.MAP_BYTES, share(quads, 256, BLOCKS))
    (zeros,) = device.read(found, 0, 1)  # and more than any, if another byte has none
    return made if zeros < NOT_A_BYTE and (to[0] != NOTHING or zeros <= pads) else None


def _launch_on_slots(
    on: Resources, signature: Signature, pattern: Pattern, codes: dict[str, Array], **more: int
) -> None:
    """Launch a kernel that takes a warp for each slice, and bits of codes of all slots."""
    index, word, slices = pattern.index_dtype, on.device.word, len(pattern.headers)
    known = {"slices": slices, "headers": word(pattern.headers.reshape(-1)), "deltas": word(pattern.deltas)}
    known |= more | {name: word(bits) for name, bits in codes.items()}
    types = {"Start": np.dtype(np.int64), "Column": index, "Index": index, "Code": codes["codes"].dtype}
    on.compiled(types)[signature]((ceil_div(slices, 8), 1), 256, known)


def slots_of_rows(pattern: Pattern) -> dict[str, Any]:
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
