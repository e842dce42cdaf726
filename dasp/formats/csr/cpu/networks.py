"""Few numbers sorted in vector registers, by bitonic networks (Batcher, AFIPS 1968): no branch, no table.

Two sorted runs, one of them the other way round, rise and fall once together. Comparing each number of the
first half of such a run with the one half a run further, then of each half likewise, and so on, sorts it.
"""

from __future__ import annotations

from collections.abc import Iterable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.emitter import I32, first_lanes, load, place_of, resized, splat, store

LANES = 16
"""Numbers of a vector."""

MOST_VECTORS = 16
"""That stay in registers."""

KEY_BITS = 32
"""Of a number and, behind it, of its place in the run."""

_VECTOR = ir.VectorType(I32, LANES)


@intrinsic(prefer_literal=True)
def sort_run(typing_context, numbers, first, count, ordered, order, vectors):
    """Sort a run of numbers, equal ones in the order in which they stand, and their places with them.

    Parameters
    ----------
    numbers : array of integers of 4 or 8 bytes
        Not negative, and of at most `KEY_BITS` bits less those of a place in all vectors.
    first, count : uint64
        Where the run begins, and its numbers: at most `LANES` for each vector.
    ordered, order : array of integers
        In the same places they take the sorted numbers, and where each stood.
    vectors : integer
        A literal, at most `MOST_VECTORS`. All are read and written, whatever stands there behind the run: a
        masked load or store takes much longer where a line is not in the first cache.
    """
    size = vectors.literal_value
    bits = (LANES * size - 1).bit_length()

    def generate(context, builder, signature, arguments):
        first, count = arguments[1:3]

        def vector(argument: int, k: int) -> ir.Value:
            kind = signature.args[argument]
            at = builder.add(first, ir.Constant(first.type, LANES * k))
            of = ir.VectorType(ir.IntType(kind.dtype.bitwidth), LANES)
            return place_of(context, builder, kind, arguments[argument], at, of)

        keys = []
        for k in range(size):
            some = first_lanes(builder, builder.trunc(count, I32), LANES, LANES * k)
            own = resized(builder, load(builder, vector(0, k)), I32)
            places = ir.Constant(_VECTOR, list(range(LANES * k, LANES * (k + 1))))
            key = builder.or_(builder.shl(own, _all(bits)), places)
            keys.append(builder.select(some, key, _all(-1)))
        for k, key in enumerate(_sorted(builder, keys)):
            to = vector(3, k)
            store(builder, resized(builder, builder.lshr(key, _all(bits)), to.type.pointee.element), to)
            to = vector(4, k)
            word = to.type.pointee.element
            begin = builder.trunc(first, word) if word.width < first.type.width else first
            stood = resized(builder, builder.and_(key, _all((1 << bits) - 1)), word)
            store(builder, builder.add(stood, splat(builder, begin, LANES)), to)
        return context.get_dummy_value()

    return types.void(numbers, first, count, ordered, order, vectors), generate


def _all(number: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [number] * LANES)


def _sorted(builder: ir.IRBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Return vectors with their numbers in order.

    Those that are missing from a power of two would hold the largest numbers, and take no part.
    """
    run = 2
    while run < 2 * LANES * len(vectors):
        vectors = _compared(builder, vectors, run - 1)  # with the second half the other way round
        apart = run // 4
        while apart:
            vectors = _compared(builder, vectors, apart)
            apart //= 2
        run *= 2
    return vectors


def _compared(builder: ir.IRBuilder, vectors: list[ir.Value], differ: int) -> list[ir.Value]:
    """Return vectors where the lesser of two numbers whose places differ in these bits comes first."""
    across, inside = differ // LANES, differ % LANES
    high, found = 1 << inside.bit_length() >> 1, list(vectors)
    mirrored = [lane ^ inside for lane in range(LANES)]
    for k in range(len(vectors)):
        if k ^ across < k or k ^ across >= len(vectors):
            continue
        other = _shuffled(builder, vectors[k ^ across], vectors[k], mirrored)
        less = builder.icmp_unsigned("<", vectors[k], other)
        least, most = builder.select(less, vectors[k], other), builder.select(less, other, vectors[k])
        if across:
            found[k], found[k ^ across] = least, _shuffled(builder, most, most, mirrored)
        else:
            lanes = (lane + LANES * bool(lane & high) for lane in range(LANES))
            found[k] = _shuffled(builder, least, most, lanes)
    return found


def _shuffled(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Iterable[int]) -> ir.Value:
    """Return some lanes of two vectors."""
    return builder.shuffle_vector(one, other, ir.Constant(_VECTOR, list(lanes)))
