"""Passes over vectors on the CPU, compiled: short programs over rows of one block of memory.

For each block of `BLOCK` elements a pass makes the updates and then the dot products. So an update finds in
the first cache the numbers that the one before it wrote, and every vector goes through memory once.

Nothing here leaves the order or the rounding of a sum to the compiler. The code of a compiled function holds
a copy of each function that it calls, and a process runs the copy that it loads first: the callee's own in
the process that compiles, the caller's in later ones. If the compiler may reorder or fuse, the two copies
round differently. So there is no `fastmath`: dot products have fixed lanes, and callees are inlined.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import at, splat
from dasp.runtime.cpu.job import SharedFunction

BLOCK = 1024
"""Elements of a block: eight rows of float64 fit the second cache of any processor, and mostly the first."""

COMPLEX_BLOCK = BLOCK // 2
"""Elements of a block of a pass over complex vectors."""

ALIGNMENT = 64
"""Bytes of a vector of an update. Rows are rounded up to them, so that each begins a cache line."""

NO_FACTOR = -1
"""Stands for the row of the second factor in a term that has none."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)

LANES, VECTOR = 32, 8
"""The sums that a dot product adds up in parallel, and the number of them in a vector of LLVM."""

_inline = jit(nogil=True, error_model="numpy", inline="always")


@intrinsic
def _sum_of_lanes(typing_context, vectors, x, y, size):
    """Return the sum over x_i y_i of real numbers, or both parts of the sum over conj(x_i) y_i.

    Lane l adds up the numbers, or the parts of numbers, l, l + lanes, l + 2 lanes ...; then the lanes are
    added in a fixed order. A complex sum has half as many lanes for each part.

    Parameters
    ----------
    vectors : pointer
    x, y : int64
        The offsets of the two vectors.
    size : int64
        The size of each, a multiple of `LANES`.
    """
    is_complex = isinstance(vectors.dtype, types.Complex)
    real = getattr(vectors.dtype, "underlying_float", vectors.dtype)
    total = types.UniTuple(types.float64, 2) if is_complex else types.float64
    sums, parts = (2, 2) if is_complex else (1, 1)

    def generate(context, builder, signature, arguments):
        vectors, *starts, size = arguments
        wide = ir.VectorType(ir.DoubleType(), VECTOR)
        stored = ir.VectorType(context.get_data_type(real), VECTOR)
        fma = builder.module.declare_intrinsic(
            f"llvm.fmuladd.v{VECTOR}f64", (), ir.FunctionType(wide, [wide] * 3)
        )
        swapped = [lane ^ 1 for lane in range(VECTOR)]
        count = LANES // VECTOR // sums
        zeros = ir.Constant(wide, [0.0] * VECTOR)
        totals = [[cgutils.alloca_once_value(builder, zeros) for _ in range(count)] for _ in range(sums)]
        step = count * VECTOR // parts

        def load(start: ir.Value) -> ir.Value:
            place = builder.bitcast(builder.gep(vectors, [start]), stored.as_pointer())
            numbers = builder.load(place, align=context.get_abi_sizeof(stored.element))
            return numbers if stored == wide else builder.fpext(numbers, wide)

        with cgutils.for_range_slice(builder, _word(0), size, _word(step)) as (first, _):
            for k in range(count):
                at = builder.add(first, _word(k * VECTOR // parts))
                a, b = (load(builder.add(start, at)) for start in starts)
                for lanes, factor in zip(totals, (b, _shuffle(builder, b, swapped)), strict=False):
                    builder.store(builder.call(fma, [a, factor, builder.load(lanes[k])]), lanes[k])
        found = [_fold(builder, [builder.load(place) for place in lanes]) for lanes in totals]
        real_part = builder.fadd(*found[0])
        if not is_complex:
            return real_part
        return cgutils.pack_array(builder, [real_part, builder.fsub(*found[1])])

    return total(vectors, types.int64, types.int64, types.int64), generate


def _word(number: int) -> ir.Constant:
    return ir.Constant(_I64, number)


def _fold(builder: ir.IRBuilder, lanes: list[ir.Value]) -> list[ir.Value]:
    """Add vectors, and halves of vectors, until two numbers are left: the sums of even and of odd lanes."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [builder.fadd(*pair) for pair in zip(lanes[:half], lanes[half:], strict=True)]
    (vector,) = lanes
    count = VECTOR
    while count > 2:
        count //= 2
        halves = [_shuffle(builder, vector, list(range(first, first + count))) for first in (0, count)]
        vector = builder.fadd(*halves)
    return [builder.extract_element(vector, ir.Constant(_I32, lane)) for lane in (0, 1)]


def _shuffle(builder: ir.IRBuilder, vector: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


@_inline
def _dot(vectors, x, y, size):
    """Return the sum over x_i y_i."""
    whole = size - size % LANES
    total = _sum_of_lanes(vectors, x, y, whole)
    for i in range(whole, size):
        total += np.float64(vectors[x + i]) * np.float64(vectors[y + i])
    return total


@_inline
def _complex_dot(vectors, x, y, size):
    """Return the parts of the sum over conj(x_i) y_i."""
    whole = size - size % LANES
    real, imag = _sum_of_lanes(vectors, x, y, whole)
    for i in range(whole, size):
        left, right = vectors[x + i], vectors[y + i]
        a, b = np.float64(left.real), np.float64(left.imag)
        c, d = np.float64(right.real), np.float64(right.imag)
        real += a * c + b * d
        imag += a * d - b * c
    return real, imag


def _write_term(adds: bool, multiplies: bool) -> Any:
    """Return an intrinsic that sets a row to a term, a x or a (x y), or adds it to the row.

    It makes whole vectors, the last one beyond `size`: no other row has numbers there. Loops in Python take
    Numba and LLVM three times as long, and run no faster.
    """

    @intrinsic
    def write(typing_context, out, a, x, y, size):
        is_complex = isinstance(out.dtype, types.Complex)
        real = getattr(out.dtype, "underlying_float", out.dtype)

        def generate(context, builder, signature, arguments):
            out, a, x, y, size = arguments
            kind = context.get_data_type(real)
            vector = ir.VectorType(kind, ALIGNMENT // context.get_abi_sizeof(kind))
            parts = cgutils.unpack_tuple(builder, a, 2) if is_complex else [a]
            factor = _repeat(builder, parts, vector)
            step = _word(vector.count // len(parts))
            with cgutils.for_range_slice(builder, _word(0), size, step) as (first, _):

                def place(row: ir.Value) -> ir.Value:
                    return builder.bitcast(builder.gep(row, [first]), vector.as_pointer())

                def load(row: ir.Value) -> ir.Value:
                    return builder.load(place(row), align=ALIGNMENT)

                numbers = _multiply(builder, load(x), load(y), is_complex) if multiplies else load(x)
                term = _multiply(builder, factor, numbers, is_complex)
                term = builder.fadd(load(out), term) if adds else term
                builder.store(term, place(out), align=ALIGNMENT)
            return context.get_dummy_value()

        return types.void(out, a, x, y, size), generate

    return write


def _repeat(builder: ir.IRBuilder, parts: list[ir.Value], vector: ir.VectorType) -> ir.Value:
    """Return a vector of one number; the parts of a complex one take turns."""
    if parts[0].type != vector.element:
        parts = [builder.fptrunc(part, vector.element) for part in parts]
    vectors = [splat(builder, part, vector.count) for part in parts]
    return vectors[0] if len(parts) == 1 else _alternate(builder, *vectors)


def _multiply(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, is_complex: bool) -> ir.Value:
    """Return the products of numbers; the parts of complex ones take turns."""
    if not is_complex:
        return builder.fmul(one, other)
    lanes = range(one.type.count)
    real, imaginary = (_shuffle(builder, one, [lane & -2 | part for lane in lanes]) for part in (0, 1))
    crossed = builder.fmul(imaginary, _shuffle(builder, other, [lane ^ 1 for lane in lanes]))
    return builder.fadd(builder.fmul(real, other), _alternate(builder, builder.fneg(crossed), crossed))


def _alternate(builder: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    """Return the even lanes of one vector and the odd lanes of another."""
    count = even.type.count
    mask = ir.Constant(ir.VectorType(ir.IntType(1), count), [lane % 2 == 0 for lane in range(count)])
    return builder.select(mask, even, odd)


_set, _set_product = _write_term(False, False), _write_term(False, True)
_add, _add_product = _write_term(True, False), _write_term(True, True)


@_inline
def _update(vectors, stride, low, size, program, place, factors, first):
    """Make the update at `place` of the program on one block; its factors begin at `factors[first]`."""
    own, terms = program[place], program[place + 1]
    out = at(vectors, own * stride + low)
    if terms == 0:
        for i in range(size):
            out[i] = 0
    for term in range(terms):
        a, place = factors[first + term], place + 2
        x, y = at(vectors, program[place] * stride + low), at(vectors, program[place + 1] * stride + low)
        multiplied = program[place + 1] != NO_FACTOR
        if multiplied and term == 0:
            _set_product(out, a, x, y, size)
        elif multiplied:
            _add_product(out, a, x, y, size)
        elif term > 0:
            _add(out, a, x, y, size)
        elif program[place] != own or a != 1:
            _set(out, a, x, y, size)


def _pass(
    first, last, vectors, stride, n, most, program, updates, dots, blocks, sums, factors, unused, scale
):
    """Make blocks `first` to `last` of a pass.

    Parameters
    ----------
    vectors : pointer to rows of `stride` numbers, of which the first n count
    most : int64
        Elements of a block.
    program : pointer to int64
        For each update the row it sets, its number of terms, and for each term its row and the row it is
        multiplied by, or `NO_FACTOR`. Then two rows for each dot product.
    sums : pointer to float64, shape (dots, blocks)
    factors : pointer to float64
        One for each term.
    unused, scale : pointers
        Arguments that every job of the team has, without use here.
    """
    for block in range(first, last):
        low = block * most
        size = most if most < n - low else n - low
        place = factor = np.int64(0)  # no literals: a callee would be compiled anew for them
        for _ in range(updates):
            _update(vectors, stride, low, size, program, place, factors, factor)
            factor += program[place + 1]
            place += 2 + 2 * program[place + 1]
        for dot in range(dots):
            x, y = program[place + 2 * dot] * stride + low, program[place + 2 * dot + 1] * stride + low
            sums[dot * blocks + block] = _dot(vectors, x, y, size)


def _complex_pass(
    first, last, vectors, stride, n, most, program, updates, dots, blocks, sums, factors, unused, scale
):
    """Make blocks `first` to `last` of a pass over complex vectors.

    As `_pass`, but `factors` are complex128, and `sums` has two rows for each dot product, its two parts.
    """
    for block in range(first, last):
        low = block * most
        size = most if most < n - low else n - low
        place = factor = np.int64(0)  # no literals: a callee would be compiled anew for them
        for _ in range(updates):
            _update(vectors, stride, low, size, program, place, factors, factor)
            factor += program[place + 1]
            place += 2 + 2 * program[place + 1]
        for dot in range(dots):
            x, y = program[place + 2 * dot] * stride + low, program[place + 2 * dot + 1] * stride + low
            real, imag = _complex_dot(vectors, x, y, size)
            sums[2 * dot * blocks + block] = real
            sums[(2 * dot + 1) * blocks + block] = imag


@cache
def compile_pass(dtype: np.dtype[Any]) -> SharedFunction:
    """Compile passes over vectors of this type, or load them from disk."""
    arguments = {
        "vectors": dtype,
        "stride": int,
        "n": int,
        "most": int,
        "program": np.int64,
        "updates": int,
        "dots": int,
        "blocks": int,
    }
    if dtype.kind == "c":
        return SharedFunction(_complex_pass, arguments, np.float64, np.complex128, error_model="numpy")
    return SharedFunction(_pass, arguments, np.float64, error_model="numpy")


@jit(nogil=True, error_model="numpy")
def solve_triangle(rows, indptr, indices, data, inverse, b, x):
    """Set x to the solution for b with a triangle; see `dasp.solvers.space.Triangle`."""
    for row in rows:
        total = b[row]
        for entry in range(indptr[row], indptr[row + 1]):
            total -= data[entry] * x[indices[entry]]
        x[row] = total * inverse[row]
