"""Products over GF(2^8) on the CPU: the ladder of kernels, and the threads that share the columns.

Every kernel computes `out = a b` for `a` (m, k) and columns of `b` (k, n). The columns of b and out must be
adjacent in memory, their rows may lie anywhere. Kernels release the GIL, and columns are independent, so
threads take runs of columns.

The inner step of the vector kernels is written in LLVM IR because numba knows no byte shuffles. A step takes
some whole vectors of columns and walks down the k rows of b: load each vector, multiply it by one coefficient
per output row, and exclusive-or the products into accumulators that stay in registers; at the end each
accumulator is stored once. There are three ways to multiply a vector of bytes by a constant:

- doubling: seven doublings give the multiples by x^0 .. x^7, and masks keep those that a coefficient has;
  every vector unit has the instructions for it;
- a byte shuffle (`pshufb`, `tbl`) looks up 16 entries at once: two lookups, one per nibble (Plank, Greenan
  and Miller, "Screaming fast Galois field arithmetic using Intel SIMD instructions", FAST '13);
- `gf2p8affineqb` (GFNI) multiplies every byte by an 8 x 8 matrix of bits: one instruction per product.
"""

from __future__ import annotations

import functools
import itertools
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from dasp.dense.gf256.field import (
    EXP,
    LOG,
    POLYNOMIAL,
    PRODUCT,
    Bytes,
    Kernel,
    bit_matrices,
    nibble_tables,
)
from dasp.runtime.arrays import address
from dasp.runtime.cpu.compile import find_features, jit
from dasp.runtime.cpu.emitter import I32, I64, emit_loop, splat
from dasp.runtime.cpu.threads import get_num_threads, run

# ---- the rungs --------------------------------------------------------------------------------------------

Task = Callable[[Bytes, Bytes], None]
"""A function that computes some columns: it takes those columns of b and of out."""


@dataclass(frozen=True, eq=False)
class TableKernel(Kernel):
    """A rung that computes one result at a time, by tables.

    Attributes
    ----------
    function : callable
        Takes a, b and out; compiled when it is first used.
    """

    function: Callable[[Bytes, Bytes, Bytes], None]

    def prepare(self, a: Bytes) -> Task:
        """Return the task for `a` (m, k), neither size 0."""
        return functools.partial(_compile_table_kernel(self.function), a)


@dataclass(frozen=True, eq=False)
class VectorKernel(Kernel):
    """A rung that multiplies vectors of bytes by constants.

    Attributes
    ----------
    method : {"doubling", "shuffle", "affine"}
    width : int
        Bytes in a vector.
    vectors : int
        Vectors of columns that one step keeps in registers, for up to 4 output rows.
    """

    method: str
    width: int
    vectors: int

    def prepare(self, a: Bytes) -> Task:
        """Return the task for `a` (m, k), neither size 0."""
        kernel = _compile_vector_kernel(self)
        width = self.width * self.vectors
        coefficients = _arrange_coefficients(self.method, a)
        m, k = a.shape
        row_bytes = coefficients.size // m

        def task(b: Bytes, out: Bytes) -> None:
            n = b.shape[1]
            if n < width:
                _compile_table_kernel(_multiply_by_table)(a, b, out)
                return
            places = (address(b), b.strides[0], address(out), out.strides[0])
            kernel(address(coefficients), row_bytes, m, k, *places, n)

        return task


CpuKernel = TableKernel | VectorKernel
"""A rung of the CPU ladder."""


def _is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def _find_widest() -> int:
    """Return the bytes in this processor's widest vector of bytes."""
    return 64 if "avx512bw" in find_features() else 32 if "avx2" in find_features() else 16


def _make_vector_rung(
    name: str, method: str, width: int, features: tuple[str, ...], vectors: int, summary: str
) -> VectorKernel:
    """Return a rung that needs some features of the processor, in LLVM's words."""
    needs, available = " and ".join(features) or "any CPU", find_features().issuperset(features)
    return VectorKernel(name, summary, needs, method, width, vectors, available=available)


# Affine kernels do so little arithmetic that memory limits them: four vectors in flight for each row,
# where AVX-512 has the registers for them.
# fmt: off
VECTOR_KERNELS = (
    _make_vector_rung("doubling", "doubling", _find_widest(), (), 1,
                      "no table: vectors doubled seven times, multiples kept by masks"),
    _make_vector_rung("shuffle_16", "shuffle", 16, ("neon",) if _is_arm() else ("ssse3",), 2,
                      "two shuffles a product look up 16 bytes at once; sums in registers"),
    _make_vector_rung("shuffle_32", "shuffle", 32, ("avx2",), 2, "the same with 32 bytes a vector"),
    _make_vector_rung("shuffle_64", "shuffle", 64, ("avx512bw",), 2, "the same with 64 bytes a vector"),
    _make_vector_rung("affine_32", "affine", 32, ("gfni", "avx2"), 4 if "avx512vl" in find_features() else 2,
                      "one instruction a product: 32 bytes times an 8 x 8 matrix of bits"),
    _make_vector_rung("affine_64", "affine", 64, ("gfni", "avx512bw"), 4, "the same with 64 bytes a vector"),
)
# fmt: on

# ---- the inner step of a vector kernel ---------------------------------------------------------------------

BYTE = ir.IntType(8)

COEFFICIENT_BYTES = {"doubling": 8, "shuffle": 32, "affine": 8}

_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
_AFFINES = {32: "llvm.x86.vgf2p8affineqb.256", 64: "llvm.x86.vgf2p8affineqb.512"}


class _Step:
    """A writer of one step. Every method appends IR at the builder's position."""

    def __init__(self, builder: ir.IRBuilder, kernel: VectorKernel) -> None:
        self.builder = builder
        self.width = kernel.width
        self.vector = ir.VectorType(BYTE, self.width)
        self.coefficient_bytes = COEFFICIENT_BYTES[kernel.method]
        self.products = {
            "doubling": self.doubled_products,
            "shuffle": self.shuffle_products,
            "affine": self.affine_products,
        }[kernel.method]

    def pointer(self, address: ir.Value, to: ir.Type) -> ir.Value:
        return self.builder.inttoptr(address, to.as_pointer())

    def fill(self, sixteen: ir.Value) -> ir.Value:
        """Repeat a vector of 16 bytes up to the width."""
        places = ir.Constant(ir.VectorType(I32, self.width), list(range(16)) * (self.width // 16))
        return self.builder.shuffle_vector(sixteen, ir.Constant(sixteen.type, ir.Undefined), places)

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
        """Double the inputs seven times; return the emitter of their product by the masks at an address."""
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
                mask = build.load(self.pointer(build.add(address, I64(bit)), BYTE), align=1)
                mask = splat(build, mask, self.width)
                kept = [build.and_(value, mask) for value in values]
                sums = [build.xor(total, value) for total, value in zip(sums, kept, strict=True)]
            return sums

        return times

    def shuffle_products(self, inputs: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Split the inputs into nibbles; return the emitter of their product by the tables at an address."""
        build = self.builder
        low = [build.and_(value, self.constant(15)) for value in inputs]
        high = [build.lshr(value, self.constant(4)) for value in inputs]
        half = ir.VectorType(BYTE, 16)

        def times(address: ir.Value) -> list[ir.Value]:
            tables = []
            for offset in (0, 16):
                entry = build.load(self.pointer(build.add(address, I64(offset)), half), align=1)
                tables.append(self.fill(entry))
            pairs = zip(low, high, strict=True)
            return [build.xor(self.look_up(tables[0], lo), self.look_up(tables[1], hi)) for lo, hi in pairs]

        return times

    def affine_products(self, inputs: list[ir.Value]) -> Callable[[ir.Value], list[ir.Value]]:
        """Return the emitter of the inputs' product by the bit matrix at an address."""
        build = self.builder

        def times(address: ir.Value) -> list[ir.Value]:
            matrix = build.load(self.pointer(address, I64), align=1)
            matrix = build.bitcast(splat(build, matrix, self.width // 8), self.vector)
            name = _AFFINES[self.width]
            return [self.call(name, self.vector, [value, matrix, BYTE(0)]) for value in inputs]

        return times

    def write(self, rows: int, vectors: int, arguments: list[ir.Value]) -> None:
        """Write the step for `rows` output rows and `vectors` vectors of columns."""
        table, b, b_stride, depth, out, out_stride = arguments
        build = self.builder

        def emit_row(p: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            row = build.add(b, build.mul(p, b_stride))
            addresses = [build.add(row, I64(v * self.width)) for v in range(vectors)]
            times = self.products([build.load(self.pointer(at, self.vector), align=1) for at in addresses])
            coefficients = build.add(table, build.mul(p, I64(rows * self.coefficient_bytes)))
            products = []
            for i in range(rows):
                products += times(build.add(coefficients, I64(i * self.coefficient_bytes)))
            return [build.xor(total, value) for total, value in zip(sums, products, strict=True)]

        sums = emit_loop(build, I64(0), depth, 1, [self.constant(0)] * (rows * vectors), emit_row)
        for i in range(rows):
            for v in range(vectors):
                address = build.add(out, build.add(build.mul(I64(i), out_stride), I64(v * self.width)))
                build.store(sums[i * vectors + v], self.pointer(address, self.vector), align=1)


@intrinsic(prefer_literal=True)
def step(  # type: ignore[no-untyped-def]
    typing_context, number, rows, table, b, b_stride, depth, out, out_stride
):
    """Compute `rows` x (`vectors` * width) bytes of the product.

    All arguments are 64-bit integers. The first two are constants: the number of one of `VECTOR_KERNELS`, and
    the number of output rows. The others are the address of the coefficients, ordered `[p][i]` (nibble tables
    of 2 x 16 bytes, aligned to 16, or bit matrices of 8 bytes); the address of b at the first column, and the
    bytes from one of its rows to the next; the number of rows of b; and the same two for the output.
    """
    kernel, count = VECTOR_KERNELS[number.literal_value], rows.literal_value

    def write(context: Any, builder: ir.IRBuilder, signature: Any, arguments: list[ir.Value]) -> ir.Value:
        _Step(builder, kernel).write(count, kernel.vectors, arguments[2:])
        return context.get_dummy_value()

    return types.void(number, rows, *[types.int64] * 6), write


# ---- kernels ----------------------------------------------------------------------------------------------

_READ = types.Array(types.uint8, 2, "A", readonly=True)
_WRITE = types.Array(types.uint8, 2, "A")

BLOCK_BYTES = 32 << 10
"""Bytes of b in a block of columns, which stays in the first-level cache while all rows of a use it."""

CHUNK_BYTES = 256 << 10
"""Bytes of b below which another thread does not pay."""


def _multiply_by_logs(a: Bytes, b: Bytes, out: Bytes) -> None:
    """Multiply by sums of logs, one result at a time."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = 0
            for p in range(a.shape[1]):
                x, y = a[i, p], b[p, j]
                if x != 0 and y != 0:
                    total ^= EXP[np.intp(LOG[x]) + np.intp(LOG[y])]
            out[i, j] = total


def _multiply_by_table(a: Bytes, b: Bytes, out: Bytes) -> None:
    """Multiply by look-ups in the coefficient's row of a table; read the rows of b in order."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0
        for p in range(a.shape[1]):
            products = PRODUCT[a[i, p]]
            for j in range(b.shape[1]):
                out[i, j] ^= products[b[p, j]]


def _make_vector_kernel(number: int, width: int) -> Callable[..., None]:
    """Return a kernel that walks over the columns, `width` at a time, with steps of 4, 2 and 1 rows."""

    def kernel(
        table: int, row_bytes: int, m: int, k: int, b: int, b_stride: int, out: int, out_stride: int, n: int
    ) -> None:
        block = max(width, BLOCK_BYTES // k // width * width)
        for start in range(0, n, block):
            stop = min(n, start + block)
            i = 0
            while i < m:
                rows = 4 if m - i >= 4 else 2 if m - i >= 2 else 1
                coefficients = table + i * row_bytes
                j = start
                while j < stop:
                    # The last vectors overlap those before: n is at least one width, and a result may be
                    # written twice.
                    at = min(j, n - width)
                    to = out + i * out_stride + at
                    if rows == 4:
                        step(number, 4, coefficients, b + at, b_stride, k, to, out_stride)
                    elif rows == 2:
                        step(number, 2, coefficients, b + at, b_stride, k, to, out_stride)
                    else:
                        step(number, 1, coefficients, b + at, b_stride, k, to, out_stride)
                    j += width
                i += rows

    return kernel


@functools.cache
def _compile_table_kernel(function: Callable[..., None]) -> Callable[..., None]:
    compiled: Callable[..., None] = jit(types.void(_READ, _READ, _WRITE), nogil=True)(function)
    return compiled


@functools.cache
def _compile_vector_kernel(kernel: VectorKernel) -> Callable[..., None]:
    function = _make_vector_kernel(VECTOR_KERNELS.index(kernel), kernel.width * kernel.vectors)
    compiled: Callable[..., None] = jit(types.void(*[types.int64] * 9), nogil=True)(function)
    return compiled


def _group_rows(m: int) -> list[slice]:
    """Return the rows in groups of 4, 2 and 1, as a vector kernel takes them."""
    groups, i = [], 0
    while i < m:
        rows = 4 if m - i >= 4 else 2 if m - i >= 2 else 1
        groups.append(slice(i, i + rows))
        i += rows
    return groups


def _arrange_coefficients(method: str, a: Bytes) -> Bytes:
    """Return the coefficients as a step reads them: `[group][p][i in the group]`."""
    if method == "shuffle":
        forms = nibble_tables(a).reshape(*a.shape, 32)
    elif method == "affine":
        forms = bit_matrices(a)[..., None].view(np.uint8)
    else:
        forms = np.unpackbits(a[..., None], axis=-1, bitorder="little") * np.uint8(255)
    return np.concatenate([forms[group].swapaxes(0, 1).ravel() for group in _group_rows(a.shape[0])])


# ---- the ladder, and a product by one of its rungs --------------------------------------------------------

# fmt: off
LADDER = (
    TableKernel("log_exp", "a product is a sum of logs; one result at a time", "any CPU", _multiply_by_logs),
    TableKernel("product_rows",
                "a product is one look-up in a row of the 64 KiB table; rows of b are read in order",
                "any CPU", _multiply_by_table),
    *VECTOR_KERNELS,
)
# fmt: on
"""The rungs in order, including those that this processor cannot run."""

BEST = [kernel for kernel in LADDER if kernel.available][-1]
"""The last rung that this processor can run."""


@functools.lru_cache(maxsize=64)
def _prepare_task(kernel: CpuKernel, shape: tuple[int, int], coefficients: bytes) -> Task:
    """Return the task for these coefficients, kept because a code multiplies by the same ones again."""
    return kernel.prepare(np.frombuffer(coefficients, np.uint8).reshape(shape))


def multiply(kernel: CpuKernel, a: Bytes, b: Bytes, out: Bytes) -> None:
    """Compute `out = a b`.

    Parameters
    ----------
    kernel : CpuKernel
    a : uint8, shape (m, k), neither size 0
    b : uint8, shape (k, n), columns adjacent
    out : uint8, shape (m, n), not empty, columns adjacent, sharing no memory with a or b
    """
    k, n = b.shape
    task = _prepare_task(kernel, a.shape, a.tobytes())
    parts = max(1, min(get_num_threads(), k * n // CHUNK_BYTES))
    if parts == 1:
        task(b, out)
        return
    edges = [*(n * part // parts // 64 * 64 for part in range(parts)), n]
    runs = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    run([functools.partial(task, b[:, part], out[:, part]) for part in runs], parts)
