"""Goto's product on a CPU: a micro-kernel, the packing of its operands, and the loops around both.

Numba's loop vectoriser does not keep an array of accumulators in registers, so the innermost product is
emitted as LLVM instructions here: `rows x vectors` accumulators that live in registers over the whole of k.
Nothing names an instruction set: the tile is chosen from the width and the number of the host's vector
registers (`host_tile`), and LLVM turns it into AVX-512, AVX2, SSE2 or NEON.

The loops are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS
34(3), 2008), mirrored for a row-major C: a panel of A stays in the first-level cache, a block of B in the
second, a block of A in the third.

Addresses and strides are in bytes and passed as integers, so that one compiled function serves every memory
order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import find_features, jit
from dasp.runtime.cpu.emitter import FIRST_LEVEL, emit_loop, prefetch_run, splat
from dasp.runtime.cpu.operands import transpose_block

# ---- the micro-kernel -----------------------------------------------------------------------------------

SQUARE = 8
"""Rows and columns of the square that `transpose` transposes in registers."""

AHEAD = 8
"""Rows of packed B between the one in use and the one that is prefetched."""

UNROLL = 4
"""Values of p in one turn of the micro-kernel's loop."""


class Tile(NamedTuple):
    """The micro-tile: `rows` rows of A times `vectors` vectors of `lanes` columns of B."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns of C in one tile."""
        return self.vectors * self.lanes


@functools.cache
def host_tile(size: int) -> Tile:
    """Return the largest tile for elements of `size` bytes whose sums fit the host's vector registers.

    32 registers, of 64 bytes (AVX-512) or 16 (NEON), hold 8 x 3 sums, 3 vectors of B and broadcasts; 16 of 32
    bytes (AVX2) hold 6 x 2, 2 and broadcasts.
    """
    features = find_features()
    if "avx512f" in features:
        return Tile(8, 3, 64 // size)
    if "avx2" in features:
        return Tile(6, 2, 32 // size)
    if features & {"neon", "fp-armv8"}:
        return Tile(8, 3, 16 // size)
    return Tile(4, 2, 16 // size)


def llvm_real(real: types.Float) -> ir.Type:
    """Return the LLVM type of a Numba real type."""
    return ir.FloatType() if real == types.float32 else ir.DoubleType()


class TileEmitter:
    """An emitter of loads, stores and multiply-adds of vectors at byte addresses."""

    def __init__(self, builder: ir.IRBuilder, real: types.Float, lanes: int) -> None:
        self.builder = builder
        self.real = llvm_real(real)
        self.lanes = lanes
        self.size = real.bitwidth // 8
        self.vector = ir.VectorType(self.real, lanes)
        name = "f32" if self.size == 4 else "f64"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = builder.module.declare_intrinsic(f"llvm.fmuladd.v{lanes}{name}", (), function)

    def offset(self, address: ir.Value, bytes: int) -> ir.Value:
        """Return the address `bytes` bytes further."""
        return self.builder.add(address, address.type(bytes)) if bytes else address

    def row(self, address: ir.Value, stride: ir.Value, count: int) -> ir.Value:
        """Return the address `count` rows further."""
        return self.builder.add(address, self.builder.mul(stride, stride.type(count))) if count else address

    def load(self, address: ir.Value) -> ir.Value:
        """Return the vector at an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Write a vector to an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def broadcast(self, address: ir.Value) -> ir.Value:
        """Return a vector whose lanes all hold the element at an address."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        return splat(self.builder, self.builder.load(pointer, align=self.size), self.lanes)

    def prefetch(self, address: ir.Value, bytes: int, writes: bool) -> None:
        """Prefetch the cache lines of some bytes, for reading or writing."""
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        prefetch_run(self.builder, pointer, 0, bytes, FIRST_LEVEL, writes)


def _emit_product(
    emitter: TileEmitter, tile: Tile, depth: int, k: ir.Value, a: ir.Value, b: ir.Value
) -> list[ir.Value]:
    """Emit two loops over p, the first of `UNROLL` steps a turn; return the accumulators, row by row."""
    builder = emitter.builder
    whole = builder.sub(k, builder.srem(k, k.type(UNROLL)))
    zero = ir.Constant(emitter.vector, [0.0] * tile.lanes)
    start, carried = k.type(0), [a, b, *[zero] * (tile.rows * tile.vectors)]
    for limit, steps in ((whole, UNROLL), (k, 1)):

        def emit_turn(_: ir.Value, carried: list[ir.Value], steps: int = steps) -> list[ir.Value]:
            a, b, *sums = carried
            for step in range(steps):
                sums = _emit_step(emitter, tile, depth, step, a, b, sums)
            a = emitter.offset(a, steps * emitter.size)
            return [a, emitter.offset(b, steps * emitter.size * tile.columns), *sums]

        carried = emit_loop(builder, start, limit, steps, carried, emit_turn)
        start = limit
    return carried[2:]


def _emit_step(
    emitter: TileEmitter, tile: Tile, depth: int, step: int, a: ir.Value, b: ir.Value, sums: list[ir.Value]
) -> list[ir.Value]:
    """Emit the work of one value of p: load its vectors of B, multiply each by each row's element of A."""
    size, line = emitter.size, tile.columns * emitter.size
    starts = (step * line + v * tile.lanes * size for v in range(tile.vectors))
    row_of_b = [emitter.load(emitter.offset(b, start)) for start in starts]
    emitter.prefetch(emitter.offset(b, (step + AHEAD) * line), line, writes=False)
    totals = []
    for i in range(tile.rows):
        element = emitter.broadcast(emitter.offset(a, (i * depth + step) * size))
        for v in range(tile.vectors):
            total = sums[i * tile.vectors + v]
            totals.append(emitter.builder.call(emitter.fma, [element, row_of_b[v], total]))
    return totals


@intrinsic(prefer_literal=True)
def micro_kernel(context, rows, vectors, lanes, depth, k, a, b, c, ldc, alpha, beta):
    """Compute one tile of C = alpha A B + beta C, inlined into the caller.

    Parameters
    ----------
    rows, vectors, lanes : the micro-tile; constants
    depth : elements from one row of the packed A to the next, at least k; a constant
    k : length of the dot products
    a : address of `rows` rows of `depth` elements
    b : address of k rows of `vectors * lanes` elements
    c, ldc : address of the tile of C, and bytes from one of its rows to the next
    alpha, beta : float32 or float64, the type of every element; with beta == 0, C is written and never read
    """
    *sizes, stored = (each.literal_value for each in (rows, vectors, lanes, depth))
    tile = Tile(*sizes)

    def generate(context, builder, signature, arguments):
        *_, k, a, b, c, ldc, alpha, beta = arguments
        emitter = TileEmitter(builder, signature.args[-1], tile.lanes)
        for i in range(tile.rows):  # so that the update at the end does not wait for memory
            emitter.prefetch(emitter.row(c, ldc, i), tile.columns * emitter.size, writes=True)
        sums = _emit_product(emitter, tile, stored, k, a, b)
        _emit_update(emitter, tile, sums, c, ldc, alpha, beta)
        return context.get_dummy_value()

    return types.void(rows, vectors, lanes, depth, *[types.intp] * 5, alpha, alpha), generate


def _emit_update(
    emitter: TileEmitter,
    tile: Tile,
    sums: list[ir.Value],
    c: ir.Value,
    ldc: ir.Value,
    alpha: ir.Value,
    beta: ir.Value,
) -> None:
    """Emit C = alpha sums + beta C; with beta == 0, C is not read."""
    builder = emitter.builder
    factor, weight = splat(builder, alpha, tile.lanes), splat(builder, beta, tile.lanes)
    fresh = builder.fcmp_ordered("==", beta, ir.Constant(emitter.real, 0.0))
    with builder.if_else(fresh) as (then, otherwise):
        for reads, branch in ((False, then), (True, otherwise)):
            with branch:
                for i in range(tile.rows):
                    for v in range(tile.vectors):
                        place = emitter.offset(emitter.row(c, ldc, i), v * tile.lanes * emitter.size)
                        result = builder.fmul(factor, sums[i * tile.vectors + v])
                        if reads:
                            result = builder.call(emitter.fma, [weight, emitter.load(place), result])
                        emitter.store(result, place)


@intrinsic
def transpose(context, source, source_stride, target, target_stride, like):
    """Transpose an 8 x 8 square of elements of `like`'s type.

    Row i of the source, at source + i * source_stride bytes, becomes column i of the target.
    """

    def generate(context, builder, signature, arguments):
        source, source_stride, target, target_stride, _ = arguments
        emitter = TileEmitter(builder, like, SQUARE)
        rows = [emitter.load(emitter.row(source, source_stride, i)) for i in range(SQUARE)]
        for i, row in enumerate(transpose_block(builder, rows, SQUARE, 1)):
            emitter.store(row, emitter.row(target, target_stride, i))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp, like), generate


@intrinsic(prefer_literal=True)
def copy_vector(context, lanes, source, target, like):
    """Copy `lanes` elements (a constant) of `like`'s type from one address to another."""
    count = lanes.literal_value

    def generate(context, builder, signature, arguments):
        emitter = TileEmitter(builder, like, count)
        emitter.store(emitter.load(arguments[1]), arguments[2])
        return context.get_dummy_value()

    return types.void(lanes, types.intp, types.intp, like), generate


@intrinsic
def load(context, address, like):
    """Return the element of `like`'s type at an address."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], llvm_real(like).as_pointer())
        return builder.load(pointer, align=like.bitwidth // 8)

    return like(types.intp, like), generate


@intrinsic
def store(context, address, value):
    """Write an element to an address."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], llvm_real(value).as_pointer())
        builder.store(arguments[1], pointer, align=value.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.intp, value), generate


@intrinsic
def multiply_add(context, a, b, c):
    """Return a b + c, rounded once where the processor can.

    Every product uses this, so that the compiler has no choice of what it fuses: bits stay the same however a
    function is inlined.
    """

    def generate(context, builder, signature, arguments):
        kind = arguments[2].type
        name = f"llvm.fmuladd.f{8 * context.get_abi_sizeof(kind)}"
        function = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, arguments)

    return c(c, c, c), generate


# ---- packing, and the loops around it -------------------------------------------------------------------

Place = tuple[int, int, int]


@jit(nogil=True)
def _copy_tile(
    size: int, tall: int, wide: int, source: int, source_row: int, target: int, target_row: int, like: float
) -> None:
    for v in range(tall):
        for w in range(wide):
            store(target + v * target_row + w * size, load(source + v * source_row + w * size, like))


def _compile_row_packing(size: int, tile: Tile, depth: int, vectors: bool) -> Callable[..., None]:
    """Compile the function that packs rows of A."""
    lanes, line = tile.lanes, depth * size

    @jit(nogil=True)
    def pack_rows(count: int, k: int, source: int, row: int, column: int, target: int, like: float) -> None:
        """Pack A's rows `depth` elements apart."""
        if vectors and column == size:
            for i in range(count):
                whole = k // lanes * lanes
                for p in range(0, whole, lanes):
                    copy_vector(lanes, source + i * row + p * size, target + i * line + p * size, like)
                for p in range(whole, k):
                    store(target + i * line + p * size, load(source + i * row + p * size, like))
            return
        tall = count // 8 * 8 if vectors and row == size else 0
        long = k // 8 * 8 if tall else 0
        for i in range(0, tall, 8):
            for p in range(0, long, 8):
                transpose(source + i * row + p * column, column, target + i * line + p * size, line, like)
        for i in range(count):
            for p in range(long if i < tall else 0, k):
                store(target + i * line + p * size, load(source + i * row + p * column, like))

    return pack_rows


def _compile_column_packing(size: int, tile: Tile, vectors: bool) -> Callable[..., None]:
    """Compile the function that packs columns of B."""
    lanes, panel, vectors_wide = tile.lanes, tile.columns, tile.vectors
    real = _find_type(size)

    @jit(nogil=True)
    def pack_columns(
        k: int, count: int, source: int, row: int, column: int, target: int, like: float
    ) -> None:
        """Pack B's columns in panels of k rows of `panel`, the last filled with zeros."""
        whole = count // panel * panel
        if vectors and column == size:
            for p in range(k):
                for j in range(0, whole, panel):
                    for v in range(vectors_wide):
                        place = target + (j * k + p * panel + v * lanes) * size
                        copy_vector(lanes, source + p * row + (j + v * lanes) * size, place, like)
        elif vectors and row == size and panel % 8 == 0:
            tall = k // 8 * 8
            for j in range(0, whole, 8):
                base = target + (j // panel * panel * k + j % panel) * size
                for p in range(0, tall, 8):
                    transpose(
                        source + p * row + j * column, column, base + p * panel * size, panel * size, like
                    )
                for p in range(tall, k):
                    for w in range(8):
                        value = load(source + p * row + (j + w) * column, like)
                        store(base + (p * panel + w) * size, value)
        else:
            whole = 0
        for j0 in range(whole, count, panel):
            base = target + j0 * k * size
            for p in range(k):
                for w in range(panel):
                    value = real(0)
                    if j0 + w < count:
                        value = load(source + p * row + (j0 + w) * column, like)
                    store(base + (p * panel + w) * size, value)

    return pack_columns


def _compile_block_product(size: int, tile: Tile, depth: int) -> Callable[..., None]:
    """Compile the function that multiplies a packed block of A by one of B."""
    rows, lanes, panel, vectors_wide = tile.rows, tile.lanes, tile.columns, tile.vectors
    line, real = depth * size, _find_type(size)

    @jit(nogil=True)
    def multiply_block(
        m: int,
        n: int,
        k: int,
        packed_a: int,
        packed_b: int,
        c: int,
        ldc: int,
        alpha: float,
        beta: float,
        spare: int,
    ) -> None:
        """Multiply each panel of A by every panel of B (GEBP); the spare tile serves those over the edge."""
        for i in range(0, m, rows):
            for j in range(0, n, panel):
                a0, b0, c0 = packed_a + i * line, packed_b + j * k * size, c + i * ldc + j * size
                if i + rows <= m and j + panel <= n:
                    micro_kernel(rows, vectors_wide, lanes, depth, k, a0, b0, c0, ldc, alpha, beta)
                    continue
                # The same arithmetic as inside, so that a result does not depend on where its tile ends.
                tall, wide, apart = min(rows, m - i), min(panel, n - j), panel * size
                if beta != real(0):
                    _copy_tile(size, tall, wide, c0, ldc, spare, apart, alpha)
                micro_kernel(rows, vectors_wide, lanes, depth, k, a0, b0, spare, apart, alpha, beta)
                _copy_tile(size, tall, wide, spare, apart, c0, ldc, alpha)

    return multiply_block


def _find_type(size: int) -> type[Any]:
    """Return the type of `size` bytes: a Python 0 would turn a float32 expression into float64."""
    return np.float32 if size == 4 else np.float64


@functools.cache
def packed_product(size: int, tile: Tile, depth: int, vectors: bool) -> Callable[..., None]:
    """Return the product of packed blocks for elements of `size` bytes.

    It is called as `product(m, n, k, a, b, c, alpha, beta, work, height, width)`: a and b are (address, bytes
    from row to row, bytes from column to column), c the same without the last, as its columns are adjacent;
    work is (address of the packed A, of the packed B, of one spare tile), 64-byte aligned. `vectors` chooses
    packing by whole vectors where memory order allows it.
    """
    pack_rows = _compile_row_packing(size, tile, depth, vectors)
    pack_columns = _compile_column_packing(size, tile, vectors)
    multiply_block = _compile_block_product(size, tile, depth)
    real = _find_type(size)

    # Not compiled: Numba's disk cache never finds a function again that holds others in a closure, and the
    # three above do all the work, a few calls for each block.
    def product(
        m: int,
        n: int,
        k: int,
        a: Place,
        b: Place,
        c: tuple[int, int],
        alpha: float,
        beta: float,
        work: Place,
        height: int,
        width: int,
    ) -> None:
        (a0, a_row, a_column), (b0, b_row, b_column), (c0, c_row) = a, b, c
        packed_a, packed_b, spare = work
        weight = beta
        for p in range(0, k, depth):
            steps = min(depth, k - p)
            for i in range(0, m, height):
                tall = min(height, m - i)
                pack_rows(tall, steps, a0 + i * a_row + p * a_column, a_row, a_column, packed_a, alpha)
                for j in range(0, n, width):
                    wide = min(width, n - j)
                    pack_columns(steps, wide, b0 + p * b_row + j * b_column, b_row, b_column, packed_b, alpha)
                    corner = c0 + i * c_row + j * size
                    multiply_block(tall, wide, steps, packed_a, packed_b, corner, c_row, alpha, weight, spare)
            weight = real(1)

    return product
