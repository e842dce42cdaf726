"""Passes over vectors on the CPU, compiled: short programs over rows of one block of memory.

For each stretch of `BLOCK` elements the updates are made and then the dot products, so that what an update
wrote is in the first cache when the next one reads it, and every vector goes through memory once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.team import SharedFunction

BLOCK = 1024
"""Elements of a block: eight rows of float64 fit the second cache of any processor, and mostly the first."""

COMPLEX_BLOCK = BLOCK // 2
"""The same of a pass over complex vectors."""

NO_FACTOR = -1
"""Stands for the row that a term is not multiplied by."""

_inline = jit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@_inline
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(x)):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@_inline
def _scale(out, a, x):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = a * x[i]


@_inline
def _scale_product(out, a, x, y):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = a * (x[i] * y[i])


@_inline
def _scale_own(out, a):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = a * out[i]


@_inline
def _sum_own(out, a, b, x):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = a * out[i] + b * x[i]


@_inline
def _sum_two(out, a, x, b, y):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = a * x[i] + b * y[i]


@_inline
def _add(out, a, x):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] += a * x[i]


@_inline
def _add_product(out, a, x, y):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] += a * (x[i] * y[i])


@_inline
def _first_terms(out, rows, factors, left):  # type: ignore[no-untyped-def]
    """Set a block of a row to its first terms and return how many those were.

    `rows` is (vectors, their rows' length, first element, and the program from the update on).
    """
    vectors, stride, low, program = rows
    size = len(out)
    first = program[2] * stride + low
    own = program[2] == program[0] and program[3] == NO_FACTOR
    a = out.dtype.type(factors[0])
    plain = left > 1 and program[5] == NO_FACTOR
    if plain:
        b = out.dtype.type(factors[1])
        second = program[4] * stride + low
        if own:
            _sum_own(out, a, b, vectors[second : second + size])
            return 2
        if program[3] == NO_FACTOR:
            _sum_two(out, a, vectors[first : first + size], b, vectors[second : second + size])
            return 2
    if own:
        _scale_own(out, a)
    elif program[3] == NO_FACTOR:
        _scale(out, a, vectors[first : first + size])
    else:
        other = program[3] * stride + low
        _scale_product(out, a, vectors[first : first + size], vectors[other : other + size])
    return 1


@_inline
def _update(vectors, stride, low, size, program, factors):  # type: ignore[no-untyped-def]
    """Make one update of a block; `program` begins with it."""
    start = program[0] * stride + low
    out = vectors[start : start + size]
    terms = program[1]
    if terms == 0:
        out[:] = 0
        return
    done = _first_terms(out, (vectors, stride, low, program), factors, terms)
    for term in range(done, terms):
        a = out.dtype.type(factors[term])
        x = program[2 + 2 * term] * stride + low
        if program[3 + 2 * term] == NO_FACTOR:
            _add(out, a, vectors[x : x + size])
        else:
            y = program[3 + 2 * term] * stride + low
            _add_product(out, a, vectors[x : x + size], vectors[y : y + size])


def _pass(  # type: ignore[no-untyped-def]
    first, last, vectors, stride, n, words, program, updates, dots, blocks, sums, factors, unused, scale
):
    """Make blocks `first` to `last` of a pass.

    Parameters
    ----------
    vectors : pointer to rows of `stride` numbers, of which the first n count
    words : int64
        Of the program.
    program : pointer to int64
        For each update the row it sets, its number of terms, and for each of these its row and the row it is
        multiplied by, or `NO_FACTOR`. Then two rows for each dot product.
    sums : pointer to float64, shape (dots, blocks)
    factors : pointer to float64
        One for each term.
    unused, scale : pointers
        What else a job of the team has.
    """
    code = carray(program, words)
    numbers = carray(factors, words)
    data = carray(vectors, (code[words - 1] + 1) * stride)
    partial = carray(sums, dots * blocks + 1)
    for block in range(first, last):
        low = block * BLOCK
        size = min(BLOCK, n - low)
        at = factor = 0
        for _ in range(updates):
            _update(data, stride, low, size, code[at:], numbers[factor:])
            factor += code[at + 1]
            at += 2 + 2 * code[at + 1]
        for dot in range(dots):
            x, y = code[at + 2 * dot] * stride + low, code[at + 2 * dot + 1] * stride + low
            partial[dot * blocks + block] = _dot(data[x : x + size], data[y : y + size])


@_inline
def _whole_dot(x, y):  # type: ignore[no-untyped-def]
    """Return the parts of the sum over conj(x_i) y_i."""
    real = imag = 0.0
    for i in range(len(x)):
        a, b = np.float64(x[i].real), np.float64(x[i].imag)
        c, d = np.float64(y[i].real), np.float64(y[i].imag)
        real += a * c + b * d
        imag += a * d - b * c
    return real, imag


def _complex_pass(  # type: ignore[no-untyped-def]
    first, last, vectors, stride, n, words, program, updates, dots, blocks, sums, factors, unused, scale
):
    """Make blocks `first` to `last` of a pass over complex vectors, half as many elements in each.

    As `_pass`, but `factors` are complex128, and `sums` has two rows for each dot product: its parts.
    """
    code = carray(program, words)
    numbers = carray(factors, words)
    data = carray(vectors, (code[words - 1] + 1) * stride)
    partial = carray(sums, 2 * dots * blocks + 1)
    for block in range(first, last):
        low = block * COMPLEX_BLOCK
        size = min(COMPLEX_BLOCK, n - low)
        at = factor = 0
        for _ in range(updates):
            _update(data, stride, low, size, code[at:], numbers[factor:])
            factor += code[at + 1]
            at += 2 + 2 * code[at + 1]
        for dot in range(dots):
            x, y = code[at + 2 * dot] * stride + low, code[at + 2 * dot + 1] * stride + low
            real, imag = _whole_dot(data[x : x + size], data[y : y + size])
            partial[2 * dot * blocks + block] = real
            partial[(2 * dot + 1) * blocks + block] = imag


@cache
def compile_pass(dtype: np.dtype[Any]) -> SharedFunction:
    """Compile a pass over vectors of this type, or find it on disk."""
    arguments = {
        "vectors": dtype,
        "stride": int,
        "n": int,
        "words": int,
        "program": np.int64,
        "updates": int,
        "dots": int,
        "blocks": int,
    }
    if dtype.kind == "c":
        return SharedFunction(_complex_pass, arguments, np.float64, np.complex128, error_model="numpy")
    return SharedFunction(_pass, arguments, np.float64, error_model="numpy")


@_inline
def solve_triangle(rows, indptr, indices, data, inverse, b, x):  # type: ignore[no-untyped-def]
    """Set x to the solution with a triangle; see `dasp.solvers.space.Triangle`."""
    for row in rows:
        total = b[row]
        for entry in range(indptr[row], indptr[row + 1]):
            total -= data[entry] * x[indices[entry]]
        x[row] = total * inverse[row]
