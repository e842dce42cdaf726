"""cuBLAS called directly: CuPy's own calls of it refuse to be captured in a CUDA graph."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from pathlib import Path
from typing import Any

ENTRIES = {"float32": ("cublasSgemm_v2", ctypes.c_float), "float64": ("cublasDgemm_v2", ctypes.c_double)}
HALF_TYPES = {"float16": 2, "bfloat16": 14}  # cudaDataType_t: CUDA_R_16F, CUDA_R_16BF
COMPUTE_32F, DEFAULT_ALGORITHM = 68, -1
PLAIN, TRANSPOSED = 0, 1
# Sums in float32 to their end, also where cuBLAS adds parts of one; and no TF32.
DISALLOW_REDUCED_PRECISION_REDUCTION = 16

_lock = threading.Lock()
_handles: dict[tuple[int, int, int], ctypes.c_void_p] = {}


def multiply(a: Any, b: Any, out: Any, alpha: float) -> bool:
    """Set out = alpha a b on CuPy's current stream, in the arrays' own precision (true float32, never TF32).

    Half precisions are summed in float32, as our own kernels sum them.

    Parameters
    ----------
    a, b, out : cupy.ndarray, shapes (m, k), (k, n) and (m, n)
        float32, float64, float16 or bfloat16, all of one type.
    alpha : float

    Returns
    -------
    bool
        False, and nothing is done, where cuBLAS cannot take the arrays as they lie: an empty product, a
        stride of neither rows nor columns, an `out` that is not in C order, or another type.

    Raises
    ------
    RuntimeError
        If cuBLAS reports an error.
    """
    (m, k), n = a.shape, b.shape[1]
    item = out.itemsize
    first, second = _order(a), _order(b)
    half = HALF_TYPES.get(out.dtype.name)
    if half is None and out.dtype.name not in ENTRIES:
        return False
    if not min(m, n, k) or first is None or second is None:
        return False
    if out.strides[1] != item or out.strides[0] < n * item:
        return False
    import cupy

    name, scalar = ENTRIES.get(out.dtype.name, ("cublasGemmEx", ctypes.c_float))
    kind = [] if half is None else [ctypes.c_int(half)]
    # Row-major out is column-major out^T = b^T a^T.
    status = getattr(_library(), name)(
        _handle(cupy.cuda.get_current_stream().ptr),
        *(ctypes.c_int(value) for value in (second[0], first[0], n, m, k)),
        ctypes.byref(scalar(alpha)),
        *(ctypes.c_void_p(b.data.ptr), *kind, ctypes.c_int(second[1])),
        *(ctypes.c_void_p(a.data.ptr), *kind, ctypes.c_int(first[1])),
        ctypes.byref(scalar(0)),
        *(ctypes.c_void_p(out.data.ptr), *kind, ctypes.c_int(out.strides[0] // item)),
        *([] if half is None else [ctypes.c_int(COMPUTE_32F), ctypes.c_int(DEFAULT_ALGORITHM)]),
    )
    _check(status, name)
    return True


def _order(x: Any) -> tuple[int, int] | None:
    """Return how a row-major reader sees x (as it is, or transposed) and its leading dimension."""
    rows, columns = x.shape
    row, column = (stride // x.itemsize for stride in x.strides)
    if column == 1 and row >= columns:
        return PLAIN, row
    if row == 1 and column >= rows:
        return TRANSPOSED, column
    return None


def _handle(stream: int) -> ctypes.c_void_p:
    """Return a handle of this thread for the current GPU and the stream; cuBLAS's handles are not shared."""
    import cupy

    key = threading.get_ident(), cupy.cuda.Device().id, stream
    if key not in _handles:
        handle = ctypes.c_void_p()
        _check(_library().cublasCreate_v2(ctypes.byref(handle)), "cublasCreate_v2")
        _check(_library().cublasSetStream_v2(handle, ctypes.c_void_p(stream)), "cublasSetStream_v2")
        mode = ctypes.c_int(DISALLOW_REDUCED_PRECISION_REDUCTION)
        _check(_library().cublasSetMathMode(handle, mode), "cublasSetMathMode")
        with _lock:
            _handles[key] = handle
    return _handles[key]


def _check(status: int, name: str) -> None:
    if status:
        raise RuntimeError(f"{name} returned status {status}; cuBLAS could not do it")


@cache
def _library() -> Any:
    """The cuBLAS that CuPy has loaded into this process."""
    import cupy

    cupy.cuda.device.get_cublas_handle()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith("libcublas.so"):
            library = ctypes.CDLL(path)
            calls = ("cublasCreate_v2", "cublasSetStream_v2", "cublasSetMathMode", "cublasGemmEx")
            for name in (*calls, *(entry for entry, _ in ENTRIES.values())):
                getattr(library, name).restype = ctypes.c_int
            return library
    raise RuntimeError("CuPy has loaded no libcublas.so; a CuPy with its CUDA libraries is needed")
