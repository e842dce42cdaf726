"""Dense products on a GPU: the rungs of `rungs_cuda` on CuPy's arrays, cuBLAS, and the choice of a kernel."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dasp.dense.gemm import cublas_cuda
from dasp.dense.gemm.ladder import HALF, REAL, DenseProduct, GemmKernel
from dasp.dense.gemm.rungs_cuda import (
    ARRAYS,
    BY_NAME,
    ITEM,
    LAST,
    RUNGS,
    OperandLayout,
    Rung,
    entry,
    launches,
)
from dasp.dense.launch_cuda import PreparedCalls, current_device, load_cupy, processors
from dasp.dense.launch_cuda import using as using
from dasp.runtime.cuda.launch import address
from dasp.runtime.sizes import round_up
from dasp.runtime.types import Array

DTYPES = (*REAL, *HALF)
PLACE = "a GPU"
FASTER_DEEP = (9, 0)
"""From this compute capability on, deeper float64 tensor-core instructions pay."""

LEAST_BUSY = 0.9
"""If tiles take several turns on a GPU's multiprocessors and keep them less busy than this, cuBLAS, which
has tiles of more sizes, is faster: benchmarks/results/gemm_sizes.csv."""


# ---- functions for the front door ------------------------------------------------------------------------


def same_view(x: Array, y: Array) -> bool:
    """Return True if two arrays are the same elements in the same memory."""
    return bool(address(x) == address(y) and x.strides == y.strides and x.shape == y.shape)


# ---- a product by one of our kernels ---------------------------------------------------------------------


class Ready(NamedTuple):
    """The launches of a product, whether they compute its transpose, and the elements of their workspace."""

    launch: PreparedCalls
    transposed: bool
    sums: int


def run(rung: Rung, product: DenseProduct) -> None:
    """Compute a checked product on the current stream."""
    a, b, c, out, alpha, beta = product
    addend = out if c is None else c
    pointers = address(a), address(b), address(addend), address(out)
    together = pointers[0] | pointers[1] | pointers[2] | pointers[3] | 16
    forms = a.shape, a.strides, b.shape, b.strides, addend.strides, out.strides
    ready = _prepare(rung, current_device(), out.dtype, *forms, together & -together, alpha, beta)
    stream = _stream()
    if ready is None:
        with _use_memory(stream):
            _run_copies(rung, product)
        return
    left, right = (1, 0) if ready.transposed else (0, 1)
    ends = pointers[left], pointers[right], pointers[2], pointers[3]
    if not ready.sums:
        ready.launch(stream, *ends, 0)
        return
    with _use_memory(stream):
        sums = load_cupy().cuda.alloc(ready.sums * out.itemsize)
        ready.launch(stream, *ends, sums.ptr)
        del sums  # freed while this allocator is the current one


@functools.lru_cache(maxsize=4096)
def _prepare(
    rung: Rung,
    device: int,
    dtype: np.dtype[Any],
    a_shape: tuple[int, int],
    a_strides: tuple[int, int],
    b_shape: tuple[int, int],
    b_strides: tuple[int, int],
    c_strides: tuple[int, int],
    d_strides: tuple[int, int],
    multiple: int,
    alpha: float,
    beta: float,
) -> Ready | None:
    """Prepare a product whose addresses are all multiples of `multiple` bytes; return None if an array must
    be copied first."""
    item = dtype.itemsize
    if multiple % item:
        raise ValueError(
            f"an array starts at a multiple of {multiple} bytes; one of {item} is needed; copy it"
        )
    (m, k), n = a_shape, b_shape[1]
    transposed = not _is_unit((m, n), d_strides, 1, item)
    if transposed:
        m, n = n, m
        a_strides, b_strides = b_strides[::-1], a_strides[::-1]
        c_strides, d_strides = c_strides[::-1], d_strides[::-1]
    along_a, along_b = _is_unit((m, k), a_strides, 1, item), not _is_unit((k, n), b_strides, 1, item)
    reads_a = along_a or (rung.tiles.staged and _is_unit((m, k), a_strides, 0, item))
    reads_b = not along_b or (rung.tiles.staged and _is_unit((k, n), b_strides, 0, item))
    if not (
        reads_a and reads_b and _is_unit((m, n), c_strides, 1, item) and _is_unit((m, n), d_strides, 1, item)
    ):
        return None
    lds = (
        _find_leading((m, k), a_strides, 0 if along_a else 1, item),
        _find_leading((k, n), b_strides, 1 if along_b else 0, item),
        _find_leading((m, n), c_strides, 0, item),
        _find_leading((m, n), d_strides, 0, item),
    )
    if max(m, n, k) >= 2**31:
        raise ValueError(f"a matrix has {max(m, n, k)} rows or columns; fewer than 2^31 are needed")
    aligned = multiple == 16 and all(ld * item % 16 == 0 for ld in lds)
    layout = OperandLayout(m, n, k, *lds, along_a, along_b, aligned)
    setting = rung.find(dtype.name, (m, n, k), _find_name(device), processors(device))
    if rung.deepest and not setting.mma_k and _find_capability(device) >= FASTER_DEEP:
        setting = replace(setting, mma_k=rung.deepest)
    steps = launches(rung, dtype.name, layout, setting, alpha, beta)
    return Ready(PreparedCalls(steps, device, ARRAYS), transposed, steps[0].sums)


def _is_unit(shape: tuple[int, ...], strides: tuple[int, ...], axis: int, item: int) -> bool:
    """Return True if neighbours along `axis` lie side by side, and the other stride is in whole elements."""
    return (shape[axis] == 1 or strides[axis] == item) and strides[1 - axis] % item == 0


def _find_leading(shape: tuple[int, int], strides: tuple[int, int], axis: int, item: int) -> int:
    """Return the elements between neighbours along `axis`; if there are none, an aligned number."""
    return round_up(shape[1 - axis], 8) if shape[axis] == 1 else strides[axis] // item


def _run_copies(rung: Rung, product: DenseProduct) -> None:
    """Compute a product with copies of the operands that a rung cannot read or the result it cannot write."""
    out = product.out
    item = out.itemsize
    if _is_unit(out.shape, out.strides, 0, item) and not _is_unit(out.shape, out.strides, 1, item):
        product = product.T
    elif not _is_unit(out.shape, out.strides, 1, item):
        straight = load_cupy().empty(out.shape, out.dtype)
        run(rung, product._replace(out=straight))
        out[...] = straight
        return

    def readable(x: Array, either: bool) -> Array:
        rows, columns = (_is_unit(x.shape, x.strides, axis, item) for axis in (1, 0))
        return x if rows or (either and columns) else x.copy()

    c = None if product.c is None else readable(product.c, False)
    a, b = (readable(x, rung.tiles.staged) for x in (product.a, product.b))
    run(rung, product._replace(a=a, b=b, c=c))


def _use_memory(stream: int) -> AbstractContextManager[Any]:
    """Return a context in which arrays come from CuPy's pool or, while a stream is captured, from the graph.

    Memory that is allocated and freed inside a capture becomes a pair of nodes of the graph: nothing else may
    have it while the graph runs, and it ends with the graph.
    """
    cuda = load_cupy().cuda
    return cuda.using_allocator(cuda.malloc_async) if _is_capturing(stream) else nullcontext()


def _is_capturing(stream: int) -> bool:
    """Return True if a stream records a CUDA graph."""
    return bool(load_cupy().cuda.runtime.streamIsCapturing(stream))


# ---- cuBLAS ----------------------------------------------------------------------------------------------


def _run_vendor(product: DenseProduct) -> None:
    """Compute a product by cuBLAS, with copies of arrays that it cannot take."""
    if product.c is not None and product.c is not product.out:
        product.out[...] = product.c
        product = product._replace(c=product.out)
    stream = _stream()
    if cublas_cuda.multiply(product, current_device(), stream):
        return
    with _use_memory(stream):
        straight = product.out.copy()
        copied = product._replace(a=product.a.copy(), b=product.b.copy(), out=straight)
        cublas_cuda.multiply(copied, current_device(), stream)
        del copied
        product.out[...] = straight
        del straight


# ---- the ladder and the choice ---------------------------------------------------------------------------


def _stream() -> int:
    """Return CUDA's handle of CuPy's current stream."""
    return int(load_cupy().cuda.get_current_stream().ptr)


def device_name() -> str:
    """Return the current GPU's name, as the autotuned table has it."""
    return _find_name(current_device())


@functools.cache
def _find_name(device: int) -> str:
    return str(load_cupy().cuda.runtime.getDeviceProperties(device)["name"].decode())


@functools.cache
def _find_capability(device: int) -> tuple[int, int]:
    digits = str(load_cupy().cuda.Device(device).compute_capability)
    return int(digits[:-1]), int(digits[-1])


def _run_if_able(rung: Rung, product: DenseProduct) -> None:
    found = _find_capability(current_device())
    if found < rung.capability:
        raise RuntimeError(
            f"this GPU is sm_{found[0]}{found[1]}; kernel {rung.name!r} needs "
            f"sm_{rung.capability[0]}{rung.capability[1]}; pass kernel='vendor'"
        )
    run(rung, product)


LADDER: tuple[GemmKernel, ...] = tuple(
    GemmKernel(rung.name, rung.summary, rung.dtypes, functools.partial(_run_if_able, rung), rung.capability)
    for rung in RUNGS
)
VENDOR = GemmKernel(
    "vendor", "cuBLAS, in the dtype's own precision: true float32, never TF32.", DTYPES, _run_vendor
)


def choose(dtype: str, m: int, n: int, k: int) -> tuple[str, str]:
    """Return the kernel for C (m, n) with dot products of length k on the current GPU, and why, in words."""
    device = current_device()
    last = BY_NAME[LAST[dtype]]
    if _find_capability(device) < last.capability:
        return "vendor", "our last rungs need sm_80"
    name, count = _find_name(device), processors(device)
    line = entry(name, dtype, (m, n, k))
    if line is not None:
        kernel, why = line.kernel, line.why(name, dtype)
    elif dtype == "float32":
        kernel, why = last.name, f"the last rung for {dtype}"
    else:
        kernel, why = "vendor", f"cuBLAS is as fast as our last rung for {dtype} or faster"
    if kernel == "vendor" or not m * n * k:
        return kernel, why
    if any(length * ITEM[dtype] % 16 for length in (n, k)):
        return "vendor", f"{why}; but rows of {k} and {n} elements are not made of whole pieces of 16 bytes"
    setting = BY_NAME[kernel].find(dtype, (m, n, k), name, count)
    busy = setting.busy(m, n, count)
    if setting.blocks(m, n) * setting.parts > count and busy < LEAST_BUSY:
        return "vendor", f"{why}; but tiles of {setting.bm} x {setting.bn} keep {name} {100 * busy:.0f}% busy"
    return kernel, why
