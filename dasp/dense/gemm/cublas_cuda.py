"""Direct calls of cuBLAS: CuPy's own calls cannot be captured in a CUDA graph."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from ctypes import c_void_p
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dasp.dense.gemm.ladder import DenseProduct
from dasp.runtime.cuda.launch import address

HALF_TYPES = {"float16": 2, "bfloat16": 14}  # cudaDataType_t: CUDA_R_16F, CUDA_R_16BF
COMPUTE_32F, DEFAULT_ALGORITHM = 68, -1
PLAIN, TRANSPOSED = 0, 1
# Sums stay in float32 to their end, even where cuBLAS adds partial sums; TF32 is not used.
DISALLOW_REDUCED_PRECISION_REDUCTION = 16
MOST_HANDLES = 8
"""Handles that a thread keeps: one for each GPU and stream, because a handle that changes its stream promises
no equal bits. Each holds some megabytes of workspace."""


class Form(NamedTuple):
    """The place of a matrix in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def T(self) -> Form:
        """Its transpose."""
        return Form(self.shape[::-1], self.strides[::-1])

    def order(self, item: int) -> tuple[int, int] | None:
        """Return PLAIN or TRANSPOSED, as a row-major reader sees it, and the leading dimension; or None."""
        for kind, form in ((PLAIN, self), (TRANSPOSED, self.T)):
            (rows, columns), (row, column) = form
            leading = row // item if rows > 1 else columns
            adjacent = columns == 1 or column == item
            if adjacent and leading >= columns and (rows == 1 or row % item == 0):
                return kind, max(leading, 1)
        return None


def multiply(product: DenseProduct, device: int, stream: int) -> bool:
    """Compute a product on a stream, in the arrays' own precision (true float32, never TF32).

    Half precisions are summed in float32, as our own kernels sum them.

    Parameters
    ----------
    product : DenseProduct
        Not empty; c, if there is one, is out itself.
    device, stream : int
        The current GPU's number, and a stream of it.

    Returns
    -------
    bool
        False, with nothing done, if cuBLAS cannot take an array as it lies: neither its rows nor its columns
        are contiguous.

    Raises
    ------
    ValueError
        If a size or stride is beyond the 32 bits that cuBLAS takes.
    RuntimeError
        If cuBLAS reports an error.
    """
    a, b, _, out, alpha, beta = product
    forms = a.shape, a.strides, b.shape, b.strides, out.shape, out.strides
    call = _prepare(out.dtype, *forms, alpha, beta)
    if call is None:
        return False
    first, second = (a, b) if call.swapped else (b, a)
    addresses = map(c_void_p, (address(first), address(second), address(out)))
    _check(call.function(_find_handle(device, stream), *call.arguments(*addresses)), "cuBLAS")
    return True


class _Call(NamedTuple):
    """A call of cuBLAS, complete but for the handle and the addresses."""

    function: Callable[..., int]
    swapped: bool
    head: tuple[int, ...]
    alpha: ctypes._Pointer
    beta: ctypes._Pointer
    leading: tuple[int, int, int]
    half: int | None

    def arguments(self, first: c_void_p, second: c_void_p, out: c_void_p) -> tuple[Any, ...]:
        """Return the arguments after the handle: plain ints are C's, addresses are ctypes' own."""
        one, two, three = self.leading
        if self.half is None:
            return *self.head, self.alpha, first, one, second, two, self.beta, out, three
        kind = self.half
        return (
            *(*self.head, self.alpha, first, kind, one, second, kind, two),
            *(self.beta, out, kind, three, COMPUTE_32F, DEFAULT_ALGORITHM),
        )


@lru_cache(maxsize=4096)
def _prepare(
    kind: np.dtype[Any],
    a_shape: tuple[int, int],
    a_strides: tuple[int, int],
    b_shape: tuple[int, int],
    b_strides: tuple[int, int],
    out_shape: tuple[int, int],
    out_strides: tuple[int, int],
    alpha: float,
    beta: float,
) -> _Call | None:
    a, b, out = Form(a_shape, a_strides), Form(b_shape, b_strides), Form(out_shape, out_strides)
    dtype, item = kind.name, kind.itemsize
    target = out.order(item)
    # A row-major result is the column-major out^T = b^T a^T; any other one is the column-major out = a b.
    swapped = target is not None and target[0] == TRANSPOSED
    first, second = (a.T, b.T) if swapped else (b, a)
    orders = first.order(item), second.order(item)
    if target is None or orders[0] is None or orders[1] is None:
        return None
    m, n = out.shape if swapped else out.shape[::-1]
    numbers = m, n, a.shape[1], orders[0][1], orders[1][1], target[1]
    if max(numbers) >= 2**31:
        raise ValueError(f"a size or leading dimension is {max(numbers)}; cuBLAS takes numbers below 2^31")
    scalar = ctypes.c_double if dtype == "float64" else ctypes.c_float
    name = {"float64": "cublasDgemm_v2", "float32": "cublasSgemm_v2"}.get(dtype, "cublasGemmEx")
    head = orders[0][0], orders[1][0], m, n, a.shape[1]
    factor, weight = ctypes.pointer(scalar(alpha)), ctypes.pointer(scalar(beta))
    leading = orders[0][1], orders[1][1], target[1]
    return _Call(
        getattr(_load_library(), name), swapped, head, factor, weight, leading, HALF_TYPES.get(dtype)
    )


class _Handles(threading.local):
    """The handles of one thread, by GPU and stream; cuBLAS's handles are not shared between threads."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], _Handle] = {}


class _Handle:
    """A cuBLAS handle that is destroyed with this object."""

    def __init__(self, stream: int) -> None:
        self._destroy, self._finalizing = _load_library().cublasDestroy_v2, sys.is_finalizing
        self.value = c_void_p()
        _check(_load_library().cublasCreate_v2(ctypes.byref(self.value)), "cublasCreate_v2")
        _check(_load_library().cublasSetStream_v2(self.value, c_void_p(stream)), "cublasSetStream_v2")
        mode = DISALLOW_REDUCED_PRECISION_REDUCTION
        _check(_load_library().cublasSetMathMode(self.value, mode), "cublasSetMathMode")

    def __del__(self) -> None:
        if self.value and not self._finalizing():
            self._destroy(self.value)


_handles = _Handles()


def _find_handle(device: int, stream: int) -> c_void_p:
    """Return this thread's handle for a stream of the current GPU."""
    known, key = _handles.known, (device, stream)
    found = known.get(key)
    if found is None:
        from cupy.cuda import runtime

        if len(known) >= MOST_HANDLES and not runtime.streamIsCapturing(stream):
            del known[next(iter(known))]
        found = known[key] = _Handle(stream)
    return found.value


def _check(status: int, name: str) -> None:
    if status:
        raise RuntimeError(f"{name} returned status {status}; cuBLAS could not do it")


@cache
def _load_library() -> Any:
    """Return the cuBLAS that CuPy has loaded into this process."""
    import cupy

    cupy.cuda.device.get_cublas_handle()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith("libcublas.so"):
            return ctypes.CDLL(path)
    raise RuntimeError("CuPy has loaded no libcublas.so; a CuPy with its CUDA libraries is needed")
