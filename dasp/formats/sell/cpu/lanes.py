"""Transpose rows into the steps of a slice in vector registers, 8 numbers of 8 rows at once."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.extending import intrinsic
from numpy import uint64

from dasp.formats.plan import WARP
from dasp.formats.sell.pattern import BITS_8, BITS_16, BITS_32
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import (
    I32,
    I64,
    data_of,
    load,
    place_of,
    reduce_lanes,
    resize_lanes,
    splat,
    store,
)
from dasp.runtime.cpu.operands import transpose_block

SIDE = 8
"""Rows, and numbers of each row, that are transposed at once."""

_ZERO, _ONE, _SIDE, _WARP = uint64(0), uint64(1), uint64(SIDE), uint64(WARP)


@intrinsic
def transpose_rows(typing_context, source, starts, lane, after, count, target, slot):
    """Copy numbers of 8 rows to the steps of a slice.

    Parameters
    ----------
    source : array
        Each row in one run, from `starts[lane]` to `starts[lane + 7]` on.
    starts : pointer to integers
    lane : integer
    after, count : integer
        Numbers of each row that come before those to copy, and numbers to copy, at most 8. 8 are read.
    target : array or pointer
        Of the type of `source`, or of narrower integers, which take the lower bits.
    slot : integer
        Where the first number of the first row goes; the others of its step follow, and each step comes 32
        further.
    """

    def generate(context, builder, signature, arguments):
        source, starts, lane, after, count, target, slot = arguments
        from_word, words = _split_words(context, signature.args[0])
        to_word, _ = _split_words(context, signature.args[5])
        vector, kept = (ir.VectorType(word, words * SIDE) for word in (from_word, to_word))
        count = builder.trunc(count, I32) if count.type.width > I32.width else count
        rows = []
        for row in range(SIDE):
            at = builder.add(lane, ir.Constant(lane.type, row))
            start = builder.load(builder.gep(data_of(context, builder, signature.args[1], starts), [at]))
            start = builder.zext(start, after.type) if start.type.width < after.type.width else start
            place = place_of(context, builder, signature.args[0], source, builder.add(start, after), vector)
            rows.append(resize_lanes(builder, load(builder, place), to_word))
        for step, numbers in enumerate(transpose_block(builder, rows, SIDE, words)):
            at = builder.add(slot, ir.Constant(slot.type, WARP * step))
            place = place_of(context, builder, signature.args[5], target, at, kept)
            with builder.if_then(builder.icmp_unsigned("<", ir.Constant(I32, step), count)):
                store(builder, numbers, place)
        return context.get_dummy_value()

    return types.void(source, starts, lane, after, count, target, slot), generate


@intrinsic
def copy_some(typing_context, source, first, target, slot):
    """Copy 8 numbers; types as `transpose_rows` takes them."""

    def generate(context, builder, signature, arguments):
        source, first, target, slot = arguments
        from_word, words = _split_words(context, signature.args[0])
        to_word, _ = _split_words(context, signature.args[2])
        vector, kept = (ir.VectorType(word, words * SIDE) for word in (from_word, to_word))
        place = place_of(context, builder, signature.args[0], source, first, vector)
        to = place_of(context, builder, signature.args[2], target, slot, kept)
        store(builder, resize_lanes(builder, load(builder, place), to_word), to)
        return context.get_dummy_value()

    return types.void(source, first, target, slot), generate


@intrinsic
def measure_step(typing_context, block, first):
    """Return the least and the largest column, and 0 if each lane's column is the least plus the lane.

    A pad has every bit set: it is never the largest column, and the least only if all are pads.

    Parameters
    ----------
    block : array, uint32
        Columns.
    first : integer
        Where the step begins.
    """

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(I32, WARP)
        step = load(
            builder, place_of(context, builder, signature.args[0], arguments[0], arguments[1], vector)
        )
        one, numbers = ir.Constant(vector, [1] * WARP), ir.Constant(vector, list(range(WARP)))
        low = reduce_lanes(builder, "umin", step)
        above = reduce_lanes(builder, "umax", builder.add(step, one))  # of a pad 0
        apart = builder.xor(builder.sub(step, splat(builder, low, WARP)), numbers)
        found = low, builder.sub(above, ir.Constant(I32, 1)), reduce_lanes(builder, "or", apart)
        return cgutils.pack_array(builder, found)

    return types.UniTuple(types.uint32, 3)(block, first), generate


@intrinsic
def store_deltas(typing_context, block, first, low, room, place, width):
    """Write the columns of a step as distances from the least one; a pad keeps every bit set.

    Parameters
    ----------
    block : array, uint32
    first : integer
        Where the step begins.
    low : uint32
    room : array, uint8
    place : integer
        Where the first delta goes, aligned to its bytes.
    width : integer
        The `Width` of the deltas, wide enough for each; nothing is written for `NONE`.
    """

    def generate(context, builder, signature, arguments):
        block, first, low, room, place, width = arguments
        vector = ir.VectorType(I32, WARP)
        step = load(builder, place_of(context, builder, signature.args[0], block, first, vector))
        pads = builder.icmp_unsigned("==", step, ir.Constant(vector, [-1] * WARP))
        apart = builder.or_(builder.sub(step, splat(builder, low, WARP)), builder.sext(pads, vector))
        for one in (BITS_8, BITS_16, BITS_32):
            word = ir.IntType(4 << one)
            to = place_of(context, builder, signature.args[3], room, place, ir.VectorType(word, WARP))
            with builder.if_then(builder.icmp_unsigned("==", width, ir.Constant(width.type, one))):
                store(builder, resize_lanes(builder, apart, word), to)
        return context.get_dummy_value()

    return types.void(block, first, low, room, place, width), generate


@intrinsic
def load_columns(typing_context, deltas, place, width, base, block, first):
    """Write the columns of a step, -1 for a pad.

    Parameters
    ----------
    deltas : array, uint8
    place : integer
        Where the first delta lies, aligned to its bytes.
    width : integer
        The `Width` of the deltas.
    base : int64
        The column to which the deltas are added.
    block : array, int64
        Where the columns go, from index `first` on.
    first : integer
    """

    def generate(context, builder, signature, arguments):
        deltas, place, width, base, block, first = arguments
        columns = ir.VectorType(I64, WARP)
        to = place_of(context, builder, signature.args[4], block, first, columns)
        bases = splat(builder, base, WARP)
        store(builder, builder.add(bases, ir.Constant(columns, list(range(WARP)))), to)
        for one in (BITS_8, BITS_16, BITS_32):
            with builder.if_then(builder.icmp_unsigned("==", width, ir.Constant(width.type, one))):
                narrow = ir.VectorType(ir.IntType(4 << one), WARP)
                step = load(builder, place_of(context, builder, signature.args[0], deltas, place, narrow))
                pads = builder.icmp_unsigned("==", step, ir.Constant(narrow, [-1] * WARP))
                found = builder.add(resize_lanes(builder, step, I64), bases)
                store(builder, builder.or_(found, builder.sext(pads, columns)), to)
        return context.get_dummy_value()

    return types.void(deltas, place, width, base, block, first), generate


def _split_words(context: BaseContext, array: types.Type) -> tuple[ir.IntType, int]:
    """Return the type of the words that make up an array's numbers, and the words in a number."""
    size: int = context.get_abi_sizeof(context.get_data_type(array.dtype))
    return ir.IntType(8 * min(size, 8)), max(size // 8, 1)


_inline = jit(nogil=True, inline="always")


@_inline
def copy_rows(numbers, starts, lengths, rows, shift, full, slots):
    """Copy the numbers of a slice's rows to its slots; slots of pads are left as they are.

    Parameters
    ----------
    numbers : array
        Each row in one run.
    starts, lengths : pointer to integers
        Where each row of the slice begins there, and its entries.
    rows, shift, full : integer
        Rows, of which there may be fewer than have room, log2 of the lanes to a row, and leading steps
        without pads.
    slots : pointer to numbers of the type of `numbers`, or to narrower integers
    """
    done, log = uint64(full), uint64(shift)
    lanes = _ONE << log
    if shift == 0 and full:
        # Blocks reach beyond the last full step; where no number follows, one by one is left.
        last = _ZERO
        for row in range(rows):
            last = uint64(starts[row]) if uint64(starts[row]) > last else last
        if last + done + _SIDE > uint64(len(numbers)):
            done &= ~(_SIDE - _ONE)
        for after in range(_ZERO, done, _SIDE):
            for lane in range(_ZERO, _WARP, _SIDE):
                slot = _WARP * after + lane
                transpose_rows(numbers, starts, lane, after, done - after, slots, slot)
    elif lanes >= _SIDE:
        for row in range(uint64(rows if full else 0)):
            first, slot = uint64(starts[row]), row * lanes
            for _ in range(full):
                for k in range(_ZERO, lanes, _SIDE):
                    copy_some(numbers, first + k, slots, slot + k)
                first, slot = first + lanes, slot + _WARP
    else:
        done = _ZERO
    for row in range(uint64(rows)):
        first, own = uint64(starts[row]), row * lanes
        for entry in range(done << log, uint64(lengths[row])):
            place = _WARP * (entry >> log) + own + (entry & (lanes - _ONE))
            slots[place] = numbers[first + entry]
