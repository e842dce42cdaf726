"""The micro-kernel of the CPU: one tile of C in vector registers, and copies by whole vectors.

Numba's loop vectoriser does not keep an array of accumulators in registers, so the innermost product is
emitted as LLVM instructions here: `rows x vectors` accumulators that live in registers over the whole of k.
Nothing names an instruction set: the tile is chosen from the width and the number of the host's vector
registers (`host_tile`), and LLVM turns it into AVX-512, AVX2, SSE2 or NEON.

Addresses and strides are in bytes and passed as integers, so that one compiled function serves every memory
order. Numba's disk cache watches only the file of the outermost function, `dasp.dense.gemm.goto`: after a
change here it has to be cleared.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dasp.runtime.cpu.compile import find_features
from dasp.runtime.cpu.emitter import FIRST_LEVEL, I32, LINE, prefetch_run, splat

SQUARE = 8
"""Rows and columns of the square that `transpose` turns over in registers."""

AHEAD = 8
"""Rows of packed B between the one in use and the one asked for."""

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
        """Return address + count * stride + byte."""
        if stride is not None and count:
            address = self.builder.add(address, self.builder.mul(stride, ir.Constant(stride.type, count)))
        return self.builder.add(address, ir.Constant(address.type, byte)) if byte else address

    def load(self, address: ir.Value) -> ir.Value:
        """Return the vector at an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        return self.builder.load(pointer, align=self.size)

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Write a vector to an address."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def broadcast(self, address: ir.Value) -> ir.Value:
        """Return a vector of one element, read from an address."""
        pointer = self.builder.inttoptr(address, self.real.as_pointer())
        return splat(self.builder, self.builder.load(pointer, align=self.size), self.lanes)

    def prefetch(self, address: ir.Value, writes: bool) -> None:
        """Ask for a cache line that will be read, or written."""
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        prefetch_run(self.builder, pointer, 0, LINE, FIRST_LEVEL, writes)

    def zero(self) -> ir.Value:
        """Return a vector of zeros."""
        return ir.Constant(self.vector, [0.0] * self.lanes)


def _emit_product(
    emitter: TileEmitter, tile: Tile, depth: int, k: ir.Value, a: ir.Value, b: ir.Value
) -> list[ir.Value]:
    """Emit two loops over p, the first of `UNROLL` steps at a time; return the accumulators, row by row."""
    sums = [emitter.zero()] * (tile.rows * tile.vectors)
    builder = emitter.builder
    whole = builder.sub(k, builder.srem(k, ir.Constant(k.type, UNROLL)))
    start = ir.Constant(k.type, 0)
    for limit, steps in ((whole, UNROLL), (k, 1)):
        sums, a, b = _emit_loop(emitter, tile, depth, (start, limit, steps), a, b, sums)
        start = limit
    return sums


def _emit_loop(
    emitter: TileEmitter,
    tile: Tile,
    depth: int,
    span: tuple[ir.Value, ir.Value, int],
    a: ir.Value,
    b: ir.Value,
    sums: list[ir.Value],
) -> tuple[list[ir.Value], ir.Value, ir.Value]:
    """Emit a counted loop of `steps` values of p a turn; phi nodes carry accumulators and addresses."""
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
    emitter: TileEmitter, tile: Tile, depth: int, step: int, a: ir.Value, b: ir.Value, sums: list[ir.Value]
) -> list[ir.Value]:
    """Emit one value of p: load its vectors of B, multiply each by the element of each row of A."""
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
    tile, stored = Tile(*(_read_constant(value) for value in (rows, vectors, lanes))), _read_constant(depth)

    def generate(context, builder, signature, arguments):
        *_, k, a, b, c, ldc, alpha, beta = arguments
        emitter = TileEmitter(builder, signature.args[-1], tile.lanes)
        _emit_prefetch(emitter, tile, c, ldc)
        sums = _emit_product(emitter, tile, stored, k, a, b)
        _emit_update(emitter, tile, sums, c, ldc, alpha, beta)
        return context.get_dummy_value()

    return types.void(rows, vectors, lanes, depth, *[types.intp] * 5, alpha, alpha), generate


def _read_constant(value: types.Type) -> int:
    """Return the value of an argument that the caller knows at compile time."""
    if not isinstance(value, types.IntegerLiteral):
        raise TypeError(
            f"{value} is not a constant; the micro-tile must be known when the kernel is compiled"
        )
    return int(value.literal_value)


def _emit_prefetch(emitter: TileEmitter, tile: Tile, c: ir.Value, ldc: ir.Value) -> None:
    """Ask for the lines of C before the product, so that the update at its end does not wait for memory."""
    for i in range(tile.rows):
        for start in range(0, tile.columns * emitter.size, LINE):
            emitter.prefetch(emitter.offset(c, ldc, i, start), writes=True)


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
                        place = emitter.offset(c, ldc, i, v * tile.lanes * emitter.size)
                        result = builder.fmul(factor, sums[i * tile.vectors + v])
                        if reads:
                            result = builder.call(emitter.fma, [weight, emitter.load(place), result])
                        emitter.store(result, place)


@intrinsic
def transpose(context, source, source_stride, target, target_stride, like):
    """Turn over an 8 x 8 square of elements of `like`'s type.

    Row i of the source, at source + i * source_stride bytes, becomes column i of the target.
    """

    def generate(context, builder, signature, arguments):
        source, source_stride, target, target_stride, _ = arguments
        emitter = TileEmitter(builder, like, SQUARE)
        rows = [emitter.load(emitter.offset(source, source_stride, i)) for i in range(SQUARE)]
        for i, row in enumerate(_transpose_rows(builder, rows)):
            emitter.store(row, emitter.offset(target, target_stride, i))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp, like), generate


def _transpose_rows(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Turn eight rows into eight columns by three rounds of exchanges, of blocks of 4, of 2 and of 1."""
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
                constant = ir.Constant(ir.VectorType(I32, SQUARE), mask)
                rows[place] = builder.shuffle_vector(low, high, constant)
        span //= 2
    return rows


@intrinsic(prefer_literal=True)
def copy_vector(context, lanes, source, target, like):
    """Copy `lanes` elements (a constant) of `like`'s type from one address to another."""
    count = _read_constant(lanes)

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

    Said with each product, so that the compiler has no choice of what it fuses: bits stay the same however a
    function is inlined.
    """

    def generate(context, builder, signature, arguments):
        kind = arguments[2].type
        name = f"llvm.fmuladd.f{8 * context.get_abi_sizeof(kind)}"
        function = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, arguments)

    return c(c, c, c), generate
