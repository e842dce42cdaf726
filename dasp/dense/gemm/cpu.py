"""The CPU ladder: nine ways to multiply two dense matrices, each a step from the one before.

Rungs 1 to 6 are plain Numba loops over contiguous, row-major matrices (anything else is copied first). From
rung 7 on the innermost product is the micro-kernel of `dasp.dense.gemm.goto`, and any strides are read while
operands are packed.

Every loop releases the GIL. Only the last rung uses several threads, from dasp's own pool: Numba's parallel
loops end the process when two Python threads enter them under the default threading layer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasp.dense.gemm.goto import Tile, host_tile, multiply_add, packed_product
from dasp.dense.gemm.ladder import REAL, DenseProduct, GemmKernel
from dasp.runtime import arrays as _arrays
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import LINE
from dasp.runtime.sizes import round_up

Floats = NDArray[Any]


@jit(nogil=True)
def _multiply_dot(a: Floats, b: Floats, c: Floats) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for p in range(a.shape[1]):
                c[i, j] = multiply_add(a[i, p], b[p, j], c[i, j])


@jit(nogil=True)
def _multiply_edge(a: Floats, b: Floats, c: Floats, rows: int, columns: int) -> None:
    """Compute the results outside the first `rows` x `columns`, one at a time."""
    for i in range(a.shape[0]):
        for j in range(columns if i < rows else 0, b.shape[1]):
            total = c[i, j]
            for p in range(a.shape[1]):
                total = multiply_add(a[i, p], b[p, j], total)
            c[i, j] = total


@jit(nogil=True)
def _multiply_square(a: Floats, b: Floats, c: Floats) -> None:
    rows, columns = a.shape[0] // 4 * 4, b.shape[1] // 4 * 4
    for i in range(0, rows, 4):
        for j in range(0, columns, 4):
            for p in range(a.shape[1]):
                for v in range(4):
                    for w in range(4):
                        c[i + v, j + w] = multiply_add(a[i + v, p], b[p, j + w], c[i + v, j + w])
    _multiply_edge(a, b, c, rows, columns)


@jit(nogil=True)
def _multiply_registers(a: Floats, b: Floats, c: Floats) -> None:
    rows, columns = a.shape[0] // 4 * 4, b.shape[1] // 4 * 4
    zero = a.dtype.type(0)
    for i in range(0, rows, 4):
        for j in range(0, columns, 4):
            c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = zero
            c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = zero
            for p in range(a.shape[1]):
                a0, a1, a2, a3 = a[i, p], a[i + 1, p], a[i + 2, p], a[i + 3, p]
                b0, b1, b2, b3 = b[p, j], b[p, j + 1], b[p, j + 2], b[p, j + 3]
                c00 = multiply_add(a0, b0, c00)
                c01 = multiply_add(a0, b1, c01)
                c02 = multiply_add(a0, b2, c02)
                c03 = multiply_add(a0, b3, c03)
                c10 = multiply_add(a1, b0, c10)
                c11 = multiply_add(a1, b1, c11)
                c12 = multiply_add(a1, b2, c12)
                c13 = multiply_add(a1, b3, c13)
                c20 = multiply_add(a2, b0, c20)
                c21 = multiply_add(a2, b1, c21)
                c22 = multiply_add(a2, b2, c22)
                c23 = multiply_add(a2, b3, c23)
                c30 = multiply_add(a3, b0, c30)
                c31 = multiply_add(a3, b1, c31)
                c32 = multiply_add(a3, b2, c32)
                c33 = multiply_add(a3, b3, c33)
            c[i, j], c[i, j + 1], c[i, j + 2], c[i, j + 3] = c00, c01, c02, c03
            c[i + 1, j], c[i + 1, j + 1], c[i + 1, j + 2], c[i + 1, j + 3] = c10, c11, c12, c13
            c[i + 2, j], c[i + 2, j + 1], c[i + 2, j + 2], c[i + 2, j + 3] = c20, c21, c22, c23
            c[i + 3, j], c[i + 3, j + 1], c[i + 3, j + 2], c[i + 3, j + 3] = c30, c31, c32, c33
    _multiply_edge(a, b, c, rows, columns)


@jit(nogil=True)
def _add_row(c: Floats, a0: float, b: Floats) -> None:
    for j in range(b.shape[0]):
        c[j] = multiply_add(a0, b[j], c[j])


@jit(nogil=True)
def _add_four_rows(
    c0: Floats, c1: Floats, c2: Floats, c3: Floats, a0: float, a1: float, a2: float, a3: float, b: Floats
) -> None:
    """Add multiples of one row of B to four rows of C: contiguous in j, so LLVM works on whole vectors.

    All reads come before the writes: rows of a matrix whose width is a power of two are multiples of 4 KiB
    apart, and a processor that compares the low 12 bits of addresses would let the read of a row wait for the
    write of the row before.
    """
    for j in range(b.shape[0]):
        x, y0, y1, y2, y3 = b[j], c0[j], c1[j], c2[j], c3[j]
        c0[j], c1[j] = multiply_add(a0, x, y0), multiply_add(a1, x, y1)
        c2[j], c3[j] = multiply_add(a2, x, y2), multiply_add(a3, x, y3)


@jit(nogil=True)
def _multiply_vectorised(a: Floats, b: Floats, c: Floats) -> None:
    rows = a.shape[0] // 4 * 4
    for i in range(0, rows, 4):
        for p in range(a.shape[1]):
            _add_four_rows(
                c[i], c[i + 1], c[i + 2], c[i + 3], a[i, p], a[i + 1, p], a[i + 2, p], a[i + 3, p], b[p]
            )
    for i in range(rows, a.shape[0]):
        for p in range(a.shape[1]):
            _add_row(c[i], a[i, p], b[p])


@jit(nogil=True)
def _multiply_blocked(a: Floats, b: Floats, c: Floats) -> None:
    rows = a.shape[0] // 4 * 4
    wide = 4096 // b.itemsize
    for p0 in range(0, a.shape[1], 128):
        for j0 in range(0, b.shape[1], wide):
            j1 = min(j0 + wide, b.shape[1])
            for i in range(0, rows, 4):
                c0, c1, c2, c3 = c[i, j0:j1], c[i + 1, j0:j1], c[i + 2, j0:j1], c[i + 3, j0:j1]
                for p in range(p0, min(p0 + 128, a.shape[1])):
                    a0, a1, a2, a3 = a[i, p], a[i + 1, p], a[i + 2, p], a[i + 3, p]
                    _add_four_rows(c0, c1, c2, c3, a0, a1, a2, a3, b[p, j0:j1])
            for i in range(rows, a.shape[0]):
                for p in range(p0, min(p0 + 128, a.shape[1])):
                    _add_row(c[i, j0:j1], a[i, p], b[p, j0:j1])


@jit(nogil=True)
def _add_four_by_four(
    c0: Floats, c1: Floats, c2: Floats, c3: Floats, a: Floats, b0: Floats, b1: Floats, b2: Floats, b3: Floats
) -> None:
    """Add multiples of four rows of B to four rows of C: a quarter of the loads and stores of C."""
    a00, a01, a02, a03 = a[0], a[1], a[2], a[3]
    a10, a11, a12, a13 = a[4], a[5], a[6], a[7]
    a20, a21, a22, a23 = a[8], a[9], a[10], a[11]
    a30, a31, a32, a33 = a[12], a[13], a[14], a[15]
    for j in range(b0.shape[0]):
        x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
        y0 = multiply_add(a00, x0, c0[j])
        y0 = multiply_add(a10, x1, y0)
        y0 = multiply_add(a20, x2, y0)
        y0 = multiply_add(a30, x3, y0)
        y1 = multiply_add(a01, x0, c1[j])
        y1 = multiply_add(a11, x1, y1)
        y1 = multiply_add(a21, x2, y1)
        y1 = multiply_add(a31, x3, y1)
        y2 = multiply_add(a02, x0, c2[j])
        y2 = multiply_add(a12, x1, y2)
        y2 = multiply_add(a22, x2, y2)
        y2 = multiply_add(a32, x3, y2)
        y3 = multiply_add(a03, x0, c3[j])
        y3 = multiply_add(a13, x1, y3)
        y3 = multiply_add(a23, x2, y3)
        y3 = multiply_add(a33, x3, y3)
        c0[j], c1[j], c2[j], c3[j] = y0, y1, y2, y3


@jit(nogil=True)
def _multiply_packed(a: Floats, b: Floats, c: Floats) -> None:
    block = np.empty((128, 512), a.dtype)
    panel = np.empty(4 * 128, a.dtype)
    rows = a.shape[0] // 4 * 4
    for p0 in range(0, a.shape[1], 128):
        depth = min(128, a.shape[1] - p0)
        for j0 in range(0, b.shape[1], 512):
            j1 = min(j0 + 512, b.shape[1])
            for p in range(depth):
                block[p, : j1 - j0] = b[p0 + p, j0:j1]
            for i in range(0, rows, 4):
                for p in range(depth):
                    for v in range(4):
                        panel[4 * p + v] = a[i + v, p0 + p]
                _add_panel(c, i, j0, j1, panel, block, depth)
            for i in range(rows, a.shape[0]):
                for p in range(depth):
                    _add_row(c[i, j0:j1], a[i, p0 + p], block[p, : j1 - j0])


@jit(nogil=True)
def _add_panel(c: Floats, i: int, j0: int, j1: int, panel: Floats, block: Floats, depth: int) -> None:
    """Add a packed panel of A times a packed block of B to four rows of C."""
    width, whole = j1 - j0, depth // 4 * 4
    c0, c1, c2, c3 = c[i, j0:j1], c[i + 1, j0:j1], c[i + 2, j0:j1], c[i + 3, j0:j1]
    for p in range(0, whole, 4):
        b0, b1, b2, b3 = block[p, :width], block[p + 1, :width], block[p + 2, :width], block[p + 3, :width]
        _add_four_by_four(c0, c1, c2, c3, panel[4 * p : 4 * p + 16], b0, b1, b2, b3)
    for p in range(whole, depth):
        a0, a1, a2, a3 = panel[4 * p], panel[4 * p + 1], panel[4 * p + 2], panel[4 * p + 3]
        _add_four_rows(c0, c1, c2, c3, a0, a1, a2, a3, block[p, :width])


Loops = Callable[[Floats, Floats, Floats], None]


def _finish(product: DenseProduct, sums: Floats) -> None:
    """Set out = alpha sums + beta c, for rungs and a BLAS that compute the plain product only."""
    if product.alpha != 1:
        sums *= sums.dtype.type(product.alpha)
    if product.c is not None:
        sums += product.c.dtype.type(product.beta) * product.c
    product.out[...] = sums


def _run_loops(loops: Loops, product: DenseProduct) -> None:
    """Run a rung of plain loops, which takes contiguous row-major operands and adds into zeros."""
    m, n, _ = product.sizes
    sums = np.zeros((m, n), product.a.dtype)
    loops(_make_adjacent(product.a), _make_adjacent(product.b), sums)
    _finish(product, sums)


@dataclass(frozen=True)
class Blocking:
    """The sizes of one packed rung: its micro-tile, its blocks in elements, and the layout of its buffers.

    `height` rows of A, `depth` columns of A and rows of B, and `width` columns of B are packed at a time.
    """

    tile: Tile
    height: int
    depth: int
    width: int
    vectors: bool
    alignment: int  # bytes past a cache line at which the packed buffers start


def _choose_depth(size: int) -> int:
    """Return the elements in a row of packed A, 1.5 or 2 KiB: a panel is half of a cache of 32 KiB."""
    return 384 if size == 4 else 256


def _choose_width(tile: Tile, size: int) -> int:
    """Return the columns of B whose packed block is under half of a second-level cache of 1 MiB."""
    return 450_000 // (_choose_depth(size) * size * tile.columns) * tile.columns


@functools.cache
def _choose_wide(size: int) -> Blocking:
    tile = Tile(4, 2, host_tile(size).lanes)
    return Blocking(tile, 64, _choose_depth(size) // 2, 8 * tile.columns, vectors=False, alignment=16)


@functools.cache
def _choose_aligned(size: int) -> Blocking:
    tile = host_tile(size)
    width = _choose_width(tile, size)
    return Blocking(tile, 8 * tile.rows, _choose_depth(size), width, vectors=True, alignment=0)


@functools.cache
def _choose_goto(size: int) -> Blocking:
    tile = host_tile(size)
    width = _choose_width(tile, size)
    return Blocking(
        tile, 1032 // tile.rows * tile.rows, _choose_depth(size), width, vectors=True, alignment=0
    )


_buffers = threading.local()


def _take_workspace(blocking: Blocking, m: int, n: int, size: int) -> tuple[Floats, tuple[int, int, int]]:
    """Return memory that this thread keeps, and the addresses in it of packed A, packed B and a spare tile.

    The memory is the caller's alone until it is put back into `_buffers.held`: a product in the handler of a
    signal, which may interrupt another product, allocates its own.
    """
    tile = blocking.tile
    tall = round_up(min(m, blocking.height), tile.rows) * blocking.depth
    wide = round_up(min(n, blocking.width), tile.columns) * blocking.depth
    sizes = [round_up(count * size, LINE) for count in (tall, wide, tile.rows * tile.columns)]
    held = _buffers.__dict__.pop("held", None)
    if held is None or held.nbytes < sum(sizes) + 2 * LINE:
        held = np.zeros(sum(sizes) + 2 * LINE, np.uint8)
    start = round_up(_arrays.address(held), LINE) + blocking.alignment
    return held, (start, start + sizes[0], start + sizes[0] + sizes[1])


def _multiply_part(blocking: Blocking, product: DenseProduct) -> None:
    """Compute one thread's product; the columns of `out` are adjacent."""
    a, b, out = product.a, product.b, product.out
    m, n, k = product.sizes
    real = out.dtype.type
    if product.c is not None and product.c is not product.out:
        out[...] = product.c
    beta = 0.0 if product.c is None else product.beta
    held, work = _take_workspace(blocking, m, n, out.itemsize)
    packed_product(out.itemsize, blocking.tile, blocking.depth, blocking.vectors)(
        m,
        n,
        k,
        (_arrays.address(a), *a.strides),
        (_arrays.address(b), *b.strides),
        (_arrays.address(out), out.strides[0]),
        real(product.alpha),
        real(beta),
        work,
        blocking.height,
        blocking.width,
    )
    _buffers.held = held


def _run_packed(
    blocking_for: Callable[[int], Blocking], product: DenseProduct, most_threads: int = 1
) -> None:
    """Run a packed rung.

    It computes the transpose if only C's columns are contiguous, and a new array if neither its rows nor its
    columns are. It copies arrays whose address or strides are not multiples of an element's size.
    """
    out, size = product.out, product.out.itemsize
    if not (product.a.flags.aligned and product.b.flags.aligned):
        product = product._replace(a=_make_adjacent(product.a), b=_make_adjacent(product.b))
    if not out.flags.aligned or size not in out.strides:
        straight = np.empty(out.shape, out.dtype)
        _run_packed(blocking_for, product._replace(out=straight), most_threads)
        out[...] = straight
        return
    if out.strides[1] != size:
        product = product.T
    blocking = blocking_for(size)
    parts = _cut_product(product, blocking.tile, most_threads)
    if len(parts) == 1:
        _multiply_part(blocking, product)
    else:
        _threads.run([functools.partial(_multiply_part, blocking, part) for part in parts])


def _make_adjacent(array: Floats) -> Floats:
    """Return the same values as a contiguous, aligned, row-major array; copy only if need be."""
    in_rows = array.strides == (array.shape[1] * array.itemsize, array.itemsize)
    if in_rows and array.flags.aligned:
        return array
    return np.array(array, order="C")


def _cut_product(product: DenseProduct, tile: Tile, most: int) -> list[DenseProduct]:
    """Cut C into one rectangle per thread, as square as the sizes allow, at multiples of the tile."""
    m, n, k = product.sizes
    count = min(most, m * n * k // SERIAL_WORK)
    if count <= 1:
        return [product]
    shapes = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    rows, columns = min(shapes, key=lambda shape: m / shape[0] * k + n / shape[1] * k)
    down, across = _cut_length(m, rows, tile.rows), _cut_length(n, columns, tile.columns)
    return [_take_part(product, i, j) for i in down for j in across]


def _cut_length(length: int, count: int, step: int) -> list[slice]:
    """Return at most `count` slices of nearly equal length, all but the last a multiple of `step`."""
    share = round_up(length, count * step) // count
    return [slice(start, min(start + share, length)) for start in range(0, length, share)]


def _take_part(product: DenseProduct, rows: slice, columns: slice) -> DenseProduct:
    out = product.out[rows, columns]
    c = product.c
    if c is not None:
        c = out if c is product.out else c[rows, columns]
    return product._replace(a=product.a[rows], b=product.b[:, columns], c=c, out=out)


# Below this many multiply-adds a thread, waking a second one costs more than it saves.
SERIAL_WORK = 128**3


def _run_goto(product: DenseProduct) -> None:
    m, n, k = product.sizes
    _run_packed(_choose_goto, product, _threads.get_num_threads() if m * n * k > SERIAL_WORK else 1)


def _run_blas(product: DenseProduct) -> None:
    """Multiply by NumPy's BLAS, always in row-major order: other memory orders would round differently."""
    a, b, out = _make_adjacent(product.a), _make_adjacent(product.b), product.out
    plain = out.flags.aligned and out.strides == (out.shape[1] * out.itemsize, out.itemsize)
    if product.alpha == 1 and product.c is None and plain:
        np.matmul(a, b, out=out)
    else:
        _finish(product, np.matmul(a, b))


def _make_rung(name: str, summary: str, loops: Loops) -> GemmKernel:
    return GemmKernel(name, summary, REAL, functools.partial(_run_loops, loops))


# fmt: off
LADDER: tuple[GemmKernel, ...] = (
    _make_rung("dot", "One dot product of a row of A and a column of B per result, summed in memory.",
               _multiply_dot),
    _make_rung("square", "4 x 4 results at a time: each element of A and B that is loaded serves four.",
               _multiply_square),
    _make_rung("registers", "The 16 sums in registers: C is written once, not k times.", _multiply_registers),
    _make_rung("vectorised", "Four rows of C gain multiples of a row of B: contiguous, so whole vectors.",
               _multiply_vectorised),
    _make_rung("blocked", "128 rows of 4 KiB of B at a time stay in the second-level cache.",
               _multiply_blocked),
    _make_rung("packed", "Blocks of A and B are copied to lie in a row; four rows of B for each pass over C.",
               _multiply_packed),
    GemmKernel("wide", "A 4 x 2-vector micro-kernel at the host's full vector width, sums in registers.",
               REAL, functools.partial(_run_packed, _choose_wide)),
    GemmKernel("aligned",
           "The largest micro-tile the registers hold, cache-line aligned panels, packing by vectors.", REAL,
           functools.partial(_run_packed, _choose_aligned)),
    GemmKernel("goto", "GEPP and GEBP: panels for three levels of cache, several threads.", REAL, _run_goto),
)
# fmt: on


VENDOR = GemmKernel(
    "vendor", "NumPy's matmul, which calls the BLAS that NumPy was built with.", REAL, _run_blas
)
DTYPES = REAL
PLACE = "the CPU"


def using(*arrays: Floats | None) -> AbstractContextManager[int]:
    """Return a context that gives the number of the only CPU, 0."""
    return nullcontext(0)


def same_view(x: Floats, y: Floats) -> bool:
    """Return True if two arrays are the same elements in the same memory."""
    return x.ctypes.data == y.ctypes.data and x.strides == y.strides and x.shape == y.shape


def choose(dtype: str, m: int, n: int, k: int) -> tuple[str, str]:
    """Return the kernel for C (m, n) with dot products of length k, and why, in words."""
    return "vendor", "NumPy's BLAS is as fast as our last rung at most sizes, and faster at small ones"
