"""The inner step of the vector kernels, written in LLVM IR because numba knows no byte shuffles.

A step takes `vectors` whole vectors of columns and walks down the k rows of b: load each vector, multiply it
by one coefficient per output row, and exclusive-or the products into accumulators that stay in registers; at
the end each accumulator is stored once. Three ways to multiply a vector of bytes by a constant:

- doubling: seven doublings give the multiples by x^0 .. x^7, and masks keep those that a coefficient has; it
  needs no instruction that any vector unit lacks;
- a byte shuffle (`pshufb`, `tbl`) looks up 16 entries at once: two lookups, one per nibble (Plank, Greenan
  and Miller, "Screaming fast Galois field arithmetic using Intel SIMD instructions", FAST '13);
- `gf2p8affineqb` (GFNI) multiplies every byte by an 8 x 8 matrix of bits: one instruction per product.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from dasp.dense.gf256.field import POLYNOMIAL
from dasp.runtime.cpu.compile import find_features

BYTE, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


COEFFICIENT_BYTES = {"doubling": 8, "shuffle": 32, "affine": 8}


@dataclass(frozen=True)
class Instruction:
    """A way to multiply a vector of bytes by a constant.

    Attributes
    ----------
    name : str
        The rung that it makes.
    method : {"doubling", "shuffle", "affine"}
    width : int
        Bytes in a vector.
    features : tuple of str
        The features that the processor needs, in LLVM's words.
    vectors : int
        Vectors of columns that one step keeps in registers, for as many as 4 output rows.
    """

    name: str
    method: str
    width: int
    features: tuple[str, ...]
    vectors: int

    @property
    def available(self) -> bool:
        """True if this processor has the instruction."""
        return find_features().issuperset(self.features)


def _is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def _find_widest() -> int:
    """Return the bytes in this processor's widest vector of bytes."""
    return 64 if "avx512bw" in find_features() else 32 if "avx2" in find_features() else 16


DOUBLING = Instruction("doubling", "doubling", _find_widest(), (), 1)
SHUFFLE_16 = Instruction("shuffle_16", "shuffle", 16, ("neon",) if _is_arm() else ("ssse3",), 2)
SHUFFLE_32 = Instruction("shuffle_32", "shuffle", 32, ("avx2",), 2)
SHUFFLE_64 = Instruction("shuffle_64", "shuffle", 64, ("avx512bw",), 2)
# So little arithmetic is left that memory decides: four vectors in flight for each row, where AVX-512 has the
# registers for them.
AFFINE_32 = Instruction(
    "affine_32", "affine", 32, ("gfni", "avx2"), 4 if "avx512vl" in find_features() else 2
)
AFFINE_64 = Instruction("affine_64", "affine", 64, ("gfni", "avx512bw"), 4)

_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
_AFFINES = {32: "llvm.x86.vgf2p8affineqb.256", 64: "llvm.x86.vgf2p8affineqb.512"}


class _Step:
    """Writes one step. Every method appends IR at the builder's position."""

    def __init__(self, builder: ir.IRBuilder, instruction: Instruction) -> None:
        self.builder = builder
        self.width = instruction.width
        self.vector = ir.VectorType(BYTE, self.width)
        self.coefficient_bytes = COEFFICIENT_BYTES[instruction.method]
        self.products = {
            "doubling": self.doubled_products,
            "shuffle": self.shuffle_products,
            "affine": self.affine_products,
        }[instruction.method]

    def pointer(self, address: ir.Value, to: ir.Type) -> ir.Value:
        return self.builder.inttoptr(address, to.as_pointer())

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """Repeat a scalar, or a vector of 16 bytes, `lanes` times."""
        scalar = not isinstance(value.type, ir.VectorType)
        if scalar:
            single = ir.VectorType(value.type, 1)
            value = self.builder.insert_element(ir.Constant(single, ir.Undefined), value, INT32(0))
        source = [0] if scalar else list(range(value.type.count))
        mask = ir.Constant(ir.VectorType(INT32, len(source) * lanes), source * lanes)
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)

    def constant(self, byte: int) -> ir.Constant:
        return ir.Constant(self.vector, [byte] * self.width)

    def call(self, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        module = self.builder.module
        function = module.globals.get(name) or ir.Function(module, kind, name)
        return self.builder.call(function, arguments)

    def look_up(self, table: ir.Value, index: ir.Value) -> ir.Value:
        name = "llvm.aarch64.neon.tbl1.v16i8" if _is_arm() else _SHUFFLES[self.width]
        return self.call(name, self.vector, [table, index])

    def doubled_products(self, inputs: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Double the inputs seven times; what comes back sums the multiples that masks keep."""
        build = self.builder
        multiples = [inputs]
        for _ in range(7):
            last = multiples[-1]
            carries = [build.ashr(value, self.constant(7)) for value in last]
            folded = [build.and_(carry, self.constant(POLYNOMIAL & 0xFF)) for carry in carries]
            pairs = zip(last, folded, strict=True)
            multiples.append([build.xor(build.add(value, value), fold) for value, fold in pairs])

        def times(address: ir.Value) -> list[ir.Value]:
            sums = [self.constant(0)] * len(inputs)
            for bit, values in enumerate(multiples):
                mask = build.load(self.pointer(build.add(address, INT64(bit)), BYTE), align=1)
                mask = self.splat(mask, self.width)
                kept = [build.and_(value, mask) for value in values]
                sums = [build.xor(total, value) for total, value in zip(sums, kept, strict=True)]
            return sums

        return times

    def shuffle_products(self, inputs: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Split the inputs into nibbles once; what comes back multiplies them by the tables at an address."""
        build = self.builder
        low = [build.and_(value, self.constant(15)) for value in inputs]
        high = [build.lshr(value, self.constant(4)) for value in inputs]
        half = ir.VectorType(BYTE, 16)

        def times(address: ir.Value) -> list[ir.Value]:
            tables = []
            for offset in (0, 16):
                entry = build.load(self.pointer(build.add(address, INT64(offset)), half), align=1)
                tables.append(entry if self.width == 16 else self.splat(entry, self.width // 16))
            pairs = zip(low, high, strict=True)
            return [build.xor(self.look_up(tables[0], lo), self.look_up(tables[1], hi)) for lo, hi in pairs]

        return times

    def affine_products(self, inputs: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Return the emitter of a product of the inputs by the bit matrix at an address."""
        build = self.builder

        def times(address: ir.Value) -> list[ir.Value]:
            matrix = self.splat(build.load(self.pointer(address, INT64), align=1), self.width // 8)
            matrix = build.bitcast(matrix, self.vector)
            name = _AFFINES[self.width]
            return [self.call(name, self.vector, [value, matrix, BYTE(0)]) for value in inputs]

        return times

    @contextmanager
    def count_to(
        self, end: ir.Value, initial: list[ir.Value]
    ) -> Iterator[tuple[ir.Value, list[ir.PhiInstr]]]:
        """Loop an index from 0 while it is below `end` (at least once), carrying `initial` in phis."""
        build = self.builder
        before, body = build.block, build.append_basic_block("row")
        build.branch(body)
        build.position_at_end(body)
        index = build.phi(INT64)
        index.add_incoming(INT64(0), before)
        carried = []
        for value in initial:
            phi = build.phi(value.type)
            phi.add_incoming(value, before)
            carried.append(phi)
        self.next_values: list[ir.Value] = []
        yield index, carried
        following = build.add(index, INT64(1))
        index.add_incoming(following, build.block)
        for phi, value in zip(carried, self.next_values, strict=True):
            phi.add_incoming(value, build.block)
        after = build.append_basic_block("stored")
        build.cbranch(build.icmp_unsigned("<", following, end), body, after)
        build.position_at_end(after)

    def write(self, rows: int, vectors: int, arguments: list[ir.Value]) -> None:
        """Write the step for `rows` output rows and `vectors` vectors of columns."""
        table, b, b_stride, depth, out, out_stride = arguments
        build = self.builder
        with self.count_to(depth, [self.constant(0)] * (rows * vectors)) as (p, sums):
            row = build.add(b, build.mul(p, b_stride))
            addresses = [build.add(row, INT64(v * self.width)) for v in range(vectors)]
            inputs = [build.load(self.pointer(address, self.vector), align=1) for address in addresses]
            times = self.products(inputs)
            coefficients = build.add(table, build.mul(p, INT64(rows * self.coefficient_bytes)))
            products = []
            for i in range(rows):
                products += times(build.add(coefficients, INT64(i * self.coefficient_bytes)))
            self.next_values = [build.xor(total, value) for total, value in zip(sums, products, strict=True)]
        for i in range(rows):
            for v in range(vectors):
                address = build.add(out, build.add(build.mul(INT64(i), out_stride), INT64(v * self.width)))
                build.store(self.next_values[i * vectors + v], self.pointer(address, self.vector), align=1)


INSTRUCTIONS = DOUBLING, SHUFFLE_16, SHUFFLE_32, SHUFFLE_64, AFFINE_32, AFFINE_64


@intrinsic(prefer_literal=True)
def step(  # type: ignore[no-untyped-def]
    typing_context, number, rows, table, b, b_stride, depth, out, out_stride
):
    """Compute `rows` x (`vectors` * width) bytes of the product, by an instruction.

    All arguments are 64-bit integers. The first two are constants: which of `INSTRUCTIONS`, and how many
    output rows. The others: the address of the coefficients, ordered `[p][i]` (nibble tables of 2 x 16 bytes,
    aligned to 16, or bit matrices of 8 bytes); the address of b at the first column, and the bytes from one
    of its rows to the next; the number of rows of b, at least 1; and the same two for the output.
    """
    instruction, count = INSTRUCTIONS[number.literal_value], rows.literal_value

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: list[ir.Value]) -> ir.Value:
        _Step(builder, instruction).write(count, instruction.vectors, arguments[2:])
        return context.get_dummy_value()

    return types.void(number, rows, *[types.int64] * 6), write
