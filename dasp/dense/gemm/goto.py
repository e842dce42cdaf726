"""Products by packed blocks: a panel of A in the first-level cache, blocks of B and of A in the others.

The loops are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS
34(3), 2008), mirrored for a row-major C: a panel of A stays in the first-level cache, a block of B in the
second, a block of A in the third. Addresses and strides are in bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.dense.gemm.micro_kernel import Tile, copy_vector, load, micro_kernel, store, transpose
from dasp.runtime.cpu.compile import jit

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
