"""Products over GF(2^8) on the CPU: the ladder of kernels, and the threads that share the columns.

Every kernel computes `out = a b` for `a` (m, k) and columns of `b` (k, n); b and out need their columns
adjacent in memory, their rows may lie anywhere. Kernels release the GIL, and columns are independent, so
threads take runs of columns.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import types

from dasp.dense.gf256 import instructions
from dasp.dense.gf256.field import EXP, LOG, PRODUCT, Bytes, Kernel, bit_matrices, nibble_tables
from dasp.dense.gf256.instructions import Instruction, step
from dasp.runtime.arrays import address
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.threads import run

_READ = types.Array(types.uint8, 2, "A", readonly=True)
_WRITE = types.Array(types.uint8, 2, "A")

BLOCK_BYTES = 32 << 10
"""Bytes of b in a block of columns: what stays in the first-level cache while all rows of a use it."""

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
    """Multiply by a look-up in the coefficient's row of a table; rows of b are read in order."""
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
def _compile_vector_kernel(instruction: Instruction) -> Callable[..., None]:
    number = instructions.INSTRUCTIONS.index(instruction)
    kernel = _make_vector_kernel(number, instruction.width * instruction.vectors)
    compiled: Callable[..., None] = jit(types.void(*[types.int64] * 9), nogil=True)(kernel)
    return compiled


def _group_rows(m: int) -> list[slice]:
    """Return the rows in the groups of 4, 2 and 1 in which a vector kernel takes them."""
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


Task = Callable[[Bytes, Bytes], None]
"""Computes some columns: takes those columns of b and of out."""


def _make_vector_task(instruction: Instruction, a: Bytes) -> Task:
    kernel = _compile_vector_kernel(instruction)
    width = instruction.width * instruction.vectors
    coefficients = _arrange_coefficients(instruction.method, a)
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


@dataclass(frozen=True, eq=False)
class CpuKernel(Kernel):
    """A rung of the CPU ladder.

    Attributes
    ----------
    prepare : callable
        Takes `a` (m, k), neither of them 0, and returns the task that computes columns.
    """

    prepare: Callable[[Bytes], Task]


def _make_table_rung(name: str, summary: str, function: Callable[..., None]) -> CpuKernel:
    return CpuKernel(
        name, summary, "any CPU", lambda a: functools.partial(_compile_table_kernel(function), a)
    )


def _make_vector_rung(instruction: Instruction, summary: str) -> CpuKernel:
    needs = " and ".join(instruction.features) or "any CPU"
    prepare = functools.partial(_make_vector_task, instruction)
    return CpuKernel(instruction.name, summary, needs, prepare, available=instruction.available)


# fmt: off
LADDER = (
    _make_table_rung("log_exp", "a product is a sum of logs; one result at a time", _multiply_by_logs),
    _make_table_rung("product_rows",
                     "a product is one look-up in a row of the 64 KiB table; rows of b are read in order",
                     _multiply_by_table),
    _make_vector_rung(instructions.DOUBLING,
                      "no table: vectors doubled seven times, multiples kept by masks"),
    _make_vector_rung(instructions.SHUFFLE_16,
                      "two shuffles a product look up 16 bytes at once; sums in registers"),
    _make_vector_rung(instructions.SHUFFLE_32, "the same with 32 bytes a vector"),
    _make_vector_rung(instructions.SHUFFLE_64, "the same with 64 bytes a vector"),
    _make_vector_rung(instructions.AFFINE_32,
                      "one instruction a product: 32 bytes times an 8 x 8 matrix of bits"),
    _make_vector_rung(instructions.AFFINE_64, "the same with 64 bytes a vector"),
)
# fmt: on
"""The rungs in order, those that this processor cannot run included."""

BEST = [kernel for kernel in LADDER if kernel.available][-1]
"""The last rung that this processor can run."""


@functools.lru_cache(maxsize=64)
def _prepare_task(kernel: CpuKernel, shape: tuple[int, int], coefficients: bytes) -> Task:
    """Return the task for these coefficients: codes multiply by the same ones again and again."""
    return kernel.prepare(np.frombuffer(coefficients, np.uint8).reshape(shape))


def product(kernel: CpuKernel, a: Bytes, b: Bytes, out: Bytes, threads: int) -> None:
    """Compute `out = a b`.

    Parameters
    ----------
    kernel : CpuKernel
    a : uint8, shape (m, k)
    b : uint8, shape (k, n), columns adjacent
    out : uint8, shape (m, n), columns adjacent, sharing no memory with b
    threads : int
        The most threads to use, at least 1.
    """
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0:
        return
    if k == 0:
        out[...] = 0
        return
    task = _prepare_task(kernel, a.shape, a.tobytes())
    parts = max(1, min(threads, k * n // CHUNK_BYTES))
    if parts == 1:
        task(b, out)
        return
    edges = [*(n * part // parts // 64 * 64 for part in range(parts)), n]
    runs = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    run([functools.partial(task, b[:, part], out[:, part]) for part in runs], parts)
