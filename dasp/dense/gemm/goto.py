"""The CPU micro-kernel: one tile of C in vector registers, written as LLVM vectors for Numba to inline.

Numba's loop vectoriser does not keep an array of accumulators in registers, so the innermost product is
emitted as LLVM instructions here: `rows x vectors` accumulators that live in registers over the whole of k.
Nothing names an instruction set: the tile is chosen from the width and the number of the host's vector
registers (`host_tile`), and LLVM turns it into AVX-512, AVX2, SSE2 or NEON.

The loops around it follow Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM
TOMS 34(3), 2008), mirrored for a row-major C: a panel of A stays in the first-level cache, a block of B in
the second, a block of A in the third.

Addresses and strides are in bytes and passed as integers, so that one compiled function serves every memory
order. Micro-kernel and loops share this file because Numba's disk cache watches only the file of the
outermost function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, types

from dasp.runtime.cpu import host as _host
from dasp.runtime.cpu.compile import jit

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import Context, Signature

    Typed = tuple[Signature, Callable[..., ir.Value]]
    """An intrinsic's types, and the function that writes its instructions."""

SQUARE = 8  # rows and columns of the square that `transpose` turns over in registers
intrinsic: Any = extending.intrinsic

LINE = 64  # bytes of a cache line
AHEAD = 8  # rows of packed B between the one in use and the one asked for
UNROLL = 4  # values of p in one turn of the micro-kernel's loop


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
    """The largest micro-tile, for elements of `size` bytes, whose sums fit the host's vector registers.

    32 registers, of 64 bytes (AVX-512) or 16 (NEON), hold 8 x 3 sums, 3 vectors of B and broadcasts; 16 of 32
    bytes (AVX2) hold 6 x 2, 2 and broadcasts.
    """
    features = _host.find_features()
    if "avx512f" in features:
        return Tile(8, 3, 64 // size)
    if "avx2" in features:
        return Tile(6, 2, 32 // size)
    if features & {"neon", "fp-armv8"}:
        return Tile(8, 3, 16 // size)
    return Tile(4, 2, 16 // size)


def llvm_real(real: types.Float) -> ir.Type:
    """The LLVM type of a Numba real type."""
    return ir.FloatType() if real == types.float32 else ir.DoubleType()


class Emitter:
    """Emits loads, stores and multiply-adds of vectors at byte addresses."""

    def __init__(self, builder: ir.IRBuilder, real: types.Float, lanes: int) -> None:
        self.builder = builder
        self.real = llvm_real(real)
        self.lanes = lanes
        self.size = real.bitwidth // 8
        self.vector = ir.VectorType(self.real, lanes)
        name = "f32" if self.size == 4 else "f64"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self.fma = builder.module.declare_intrinsic(f"llvm.fmuladd.v{lanes}{name}", (), function)

    def offset(self, address: ir.Value, stride: ir.Value | None, count: int, byte: int = 0) -> ir.Value:
        """Address + count * stride + byte."""
        if stride is not None and count:
            address = self.builder.add(address, self.builder.mul(stride, ir.Constant(stride.type, count)))
        return self.builder.add(address, ir.Constant(address.type, byte)) if byte else address

    def load(self, address: ir.Value) -> ir.Value:
        """The vector at an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Write a vector to an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def broadcast(self, address: ir.Value) -> ir.Value:
        """A vector of one element, read from an address."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        return self.splat(self.builder.load(pointer, align=self.size))

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A vector of one element."""
        integer = ir.IntType(32)
        seed = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(seed, scalar, ir.Constant(integer, 0))
        zeros = ir.Constant(ir.VectorType(integer, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, seed, zeros)

    def prefetch(self, address: ir.Value, writes: bool) -> None:
        """Ask for a cache line that will be read, or written."""
        builder, integer = self.builder, ir.IntType(32)
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        flags = (1, 3, 1) if writes else (0, 3, 1)
        builder.call(function, [builder.inttoptr(address, byte), *(ir.Constant(integer, f) for f in flags)])

    def zero(self) -> ir.Value:
        """A vector of zeros."""
        return ir.Constant(self.vector, [0.0] * self.lanes)


def _emit_product(
    emitter: Emitter, tile: Tile, depth: int, k: ir.Value, a: ir.Value, b: ir.Value
) -> list[ir.Value]:
    """Two loops over p, the first of `UNROLL` steps at a time; returns the accumulators, row by row."""
    sums = [emitter.zero()] * (tile.rows * tile.vectors)
    builder = emitter.builder
    whole = builder.sub(k, builder.srem(k, ir.Constant(k.type, UNROLL)))
    start = ir.Constant(k.type, 0)
    for limit, steps in ((whole, UNROLL), (k, 1)):
        sums, a, b = _emit_loop(emitter, tile, depth, (start, limit, steps), a, b, sums)
        start = limit
    return sums


def _emit_loop(
    emitter: Emitter,
    tile: Tile,
    depth: int,
    span: tuple[ir.Value, ir.Value, int],
    a: ir.Value,
    b: ir.Value,
    sums: list[ir.Value],
) -> tuple[list[ir.Value], ir.Value, ir.Value]:
    """One counted loop: `steps` values of p per turn, accumulators and both addresses carried in phi
    nodes."""
    builder = emitter.builder
    start, limit, steps = span
    before = builder.block
    head = builder.append_basic_block("p.head")
    body = builder.append_basic_block("p.body")
    after = builder.append_basic_block("p.after")
    builder.branch(head)
    builder.position_at_end(head)
    carried = [builder.phi(value.type) for value in [start, a, b, *sums]]
    for phi, value in zip(carried, [start, a, b, *sums], strict=True):
        phi.add_incoming(value, before)
    p, a_now, b_now, *totals = carried
    builder.cbranch(builder.icmp_signed("<", p, limit), body, after)
    builder.position_at_end(body)
    for step in range(steps):
        totals = _emit_step(emitter, tile, depth, step, a_now, b_now, totals)
    size = emitter.size
    ends = [
        builder.add(p, ir.Constant(p.type, steps)),
        builder.add(a_now, ir.Constant(p.type, steps * size)),
        builder.add(b_now, ir.Constant(p.type, steps * size * tile.columns)),
        *totals,
    ]
    for phi, value in zip(carried, ends, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried[3:], carried[1], carried[2]


def _emit_step(
    emitter: Emitter, tile: Tile, depth: int, step: int, a: ir.Value, b: ir.Value, sums: list[ir.Value]
) -> list[ir.Value]:
    """One value of p: load its vectors of B, and multiply each by the broadcast element of each row of A."""
    size, lanes = emitter.size, tile.lanes
    row_of_b = [
        emitter.load(emitter.offset(b, None, 0, (step * tile.columns + v * lanes) * size))
        for v in range(tile.vectors)
    ]
    for start in range(0, tile.columns * size, LINE):
        emitter.prefetch(
            emitter.offset(b, None, 0, (step + AHEAD) * tile.columns * size + start), writes=False
        )
    totals = []
    for i in range(tile.rows):
        element = emitter.broadcast(emitter.offset(a, None, 0, (i * depth + step) * size))
        for v in range(tile.vectors):
            total = sums[i * tile.vectors + v]
            totals.append(emitter.builder.call(emitter.fma, [element, row_of_b[v], total]))
    return totals


@intrinsic(prefer_literal=True)
def micro_kernel(
    context: Context,
    rows: types.Type,
    vectors: types.Type,
    lanes: types.Type,
    depth: types.Type,
    k: types.Type,
    a: types.Type,
    b: types.Type,
    c: types.Type,
    ldc: types.Type,
    alpha: types.Type,
    beta: types.Type,
) -> Typed:
    """One tile of C = alpha A B + beta C, inlined into the caller.

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
    tile, stored = Tile(*(_constant(value) for value in (rows, vectors, lanes))), _constant(depth)

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        *_, k, a, b, c, ldc, alpha, beta = arguments
        emitter = Emitter(builder, signature.args[-1], tile.lanes)
        _emit_prefetch(emitter, tile, c, ldc)
        sums = _emit_product(emitter, tile, stored, k, a, b)
        _emit_update(emitter, tile, sums, c, ldc, alpha, beta)
        return context.get_dummy_value()

    return types.void(rows, vectors, lanes, depth, *[types.intp] * 5, alpha, alpha), generate


def _constant(value: types.Type) -> int:
    """The value of an argument that the caller knows at compile time."""
    if not isinstance(value, types.IntegerLiteral):
        raise TypeError(
            f"{value} is not a constant; the micro-tile must be known when the kernel is compiled"
        )
    return int(value.literal_value)


def _emit_prefetch(emitter: Emitter, tile: Tile, c: ir.Value, ldc: ir.Value) -> None:
    """Ask for the lines of C before the product, so that the update at its end does not wait for memory."""
    for i in range(tile.rows):
        for start in range(0, tile.columns * emitter.size, LINE):
            emitter.prefetch(emitter.offset(c, ldc, i, start), writes=True)


def _emit_update(
    emitter: Emitter,
    tile: Tile,
    sums: list[ir.Value],
    c: ir.Value,
    ldc: ir.Value,
    alpha: ir.Value,
    beta: ir.Value,
) -> None:
    """C = alpha sums + beta C; with beta == 0, C is not read."""
    builder = emitter.builder
    factor, weight = emitter.splat(alpha), emitter.splat(beta)
    fresh = builder.fcmp_ordered("==", beta, ir.Constant(emitter.real, 0.0))
    with builder.if_else(fresh) as (then, otherwise):
        for reads, branch in ((False, then), (True, otherwise)):
            with branch:
                for i in range(tile.rows):
                    for v in range(tile.vectors):
                        place = emitter.offset(c, ldc, i, v * tile.lanes * emitter.size)
                        result = builder.fmul(factor, sums[i * tile.vectors + v])
                        if reads:
                            result = builder.call(emitter.fma, [weight, emitter.load(place), result])
                        emitter.store(result, place)


@intrinsic
def transpose(
    context: Context,
    source: types.Type,
    source_stride: types.Type,
    target: types.Type,
    target_stride: types.Type,
    like: types.Type,
) -> Typed:
    """Turn over an 8 x 8 square of elements of `like`'s type.

    Row i of the source, at source + i * source_stride bytes, becomes column i of the target.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        source, source_stride, target, target_stride, _ = arguments
        emitter = Emitter(builder, like, SQUARE)
        rows = [emitter.load(emitter.offset(source, source_stride, i)) for i in range(SQUARE)]
        for i, row in enumerate(_transposed(builder, rows)):
            emitter.store(row, emitter.offset(target, target_stride, i))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp, like), generate


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Three rounds of exchanges, of blocks of 4, of 2 and of 1, turn eight rows into eight columns."""
    integer = ir.IntType(32)
    span = SQUARE // 2
    while span:
        rows = list(rows)
        for i in range(SQUARE):
            if i & span:
                continue
            low, high = rows[i], rows[i + span]
            keep = [j if not j & span else SQUARE + j - span for j in range(SQUARE)]
            swap = [j + span if not j & span else SQUARE + j for j in range(SQUARE)]
            for place, mask in ((i, keep), (i + span, swap)):
                constant = ir.Constant(ir.VectorType(integer, SQUARE), mask)
                rows[place] = builder.shuffle_vector(low, high, constant)
        span //= 2
    return rows


@intrinsic(prefer_literal=True)
def copy_vector(
    context: Context, lanes: types.Type, source: types.Type, target: types.Type, like: types.Type
) -> Typed:
    """Copy `lanes` elements (a constant) of `like`'s type from one address to another."""
    count = _constant(lanes)

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        emitter = Emitter(builder, like, count)
        emitter.store(emitter.load(arguments[1]), arguments[2])
        return context.get_dummy_value()

    return types.void(lanes, types.intp, types.intp, like), generate


@intrinsic
def load(context: Context, address: types.Type, like: types.Type) -> Typed:
    """The element of `like`'s type at an address."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        pointer = builder.inttoptr(arguments[0], llvm_real(like).as_pointer())
        return builder.load(pointer, align=like.bitwidth // 8)

    return like(types.intp, like), generate


@intrinsic
def store(context: Context, address: types.Type, value: types.Type) -> Typed:
    """Write an element to an address."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: list[ir.Value]
    ) -> ir.Value:
        pointer = builder.inttoptr(arguments[0], llvm_real(value).as_pointer())
        builder.store(arguments[1], pointer, align=value.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.intp, value), generate


Place = tuple[int, int, int]
_compile = functools.partial(jit, nogil=True)


@_compile()
def _copy_tile(
    size: int, tall: int, wide: int, source: int, source_row: int, target: int, target_row: int, like: float
) -> None:
    for v in range(tall):
        for w in range(wide):
            store(target + v * target_row + w * size, load(source + v * source_row + w * size, like))


def _packs_rows(size: int, tile: Tile, depth: int, vectors: bool) -> Callable[..., None]:
    """Return the compiled function that packs rows of A."""
    lanes, line = tile.lanes, depth * size

    @_compile()
    def pack_rows(count: int, k: int, source: int, row: int, column: int, target: int, like: float) -> None:
        """A's rows, `depth` elements apart."""
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

    return pack_rows  # type: ignore[no-any-return]


def _packs_columns(size: int, tile: Tile, vectors: bool) -> Callable[..., None]:
    """Return the compiled function that packs columns of B."""
    lanes, panel, vectors_wide = tile.lanes, tile.columns, tile.vectors
    real = _real(size)

    @_compile()
    def pack_columns(
        k: int, count: int, source: int, row: int, column: int, target: int, like: float
    ) -> None:
        """B's columns in panels of k rows of `panel`, the last filled with zeros."""
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

    return pack_columns  # type: ignore[no-any-return]


def _multiplies_blocks(size: int, tile: Tile, depth: int) -> Callable[..., None]:
    """Return the compiled function that multiplies a packed block of A by one of B."""
    rows, lanes, panel, vectors_wide = tile.rows, tile.lanes, tile.columns, tile.vectors
    line, real = depth * size, _real(size)

    @_compile()
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
        """GEBP: each panel of A against every panel of B; tiles over the edge go through the spare tile."""
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

    return multiply_block  # type: ignore[no-any-return]


def _real(size: int) -> type[Any]:
    """The type of elements of `size` bytes: a Python 0 would turn a float32 expression into float64."""
    return np.float32 if size == 4 else np.float64


@functools.cache
def packed_product(size: int, tile: Tile, depth: int, vectors: bool) -> Callable[..., None]:
    """A product of compiled blocks, for elements of `size` bytes.

    Returns `product(m, n, k, a, b, c, alpha, beta, work, height, width)`: a, b, c are (address, bytes from
    row to row, bytes from column to column), with unit columns in c; work is (address of the packed A, of the
    packed B, of one spare tile), 64-byte aligned. `vectors` chooses packing by whole vectors where memory
    order allows it.
    """
    pack_rows = _packs_rows(size, tile, depth, vectors)
    pack_columns = _packs_columns(size, tile, vectors)
    multiply_block = _multiplies_blocks(size, tile, depth)
    real = _real(size)

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
