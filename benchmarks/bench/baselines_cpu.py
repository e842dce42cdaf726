"""Baselines on the host: SciPy, a plain numba-parallel CSR loop, and MKL.

MKL is called through its C interface, not through a wrapper: one inspector-executor handle per matrix,
hinted with many expected products and optimised (`mkl_sparse_set_mv_hint`, `mkl_sparse_optimize`), x and y
in place. That is the fastest way to use it; `sparse_dot_mkl` builds and destroys a handle at every product.
The library is found at the path in MKL_RT, or in the environment's `lib` folder, or where the system's
loader looks.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import time
from collections.abc import Collection
from ctypes import POINTER, byref, c_double, c_float, c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dasp.cli.devices import Makers, numba_candidate, scipy_candidate
from dasp.cli.timing import Candidate

NAMES = ("scipy", "numba_csr", "mkl")
"""The host's baselines, as `--baselines` and the columns name them."""

NON_TRANSPOSE, TRANSPOSE = 10, 11
GENERAL, LOWER, NON_UNIT = 20, 40, 50
EXPECTED_PRODUCTS = 100_000
OPENMP_SPIN_SECONDS = 0.25
"""Intel's OpenMP keeps its threads spinning for 200 ms after a parallel region (KMP_BLOCKTIME)."""


class MatrixDescription(ctypes.Structure):
    """MKL's `struct matrix_descr`: the kind of matrix, its triangle, its diagonal."""

    _fields_ = (("type", c_int), ("mode", c_int), ("diagonal", c_int))


def _scalar(dtype: np.dtype[Any]) -> tuple[str, Any]:
    """Return MKL's letter and ctypes' type of a dtype."""
    return ("d", c_double) if dtype == np.float64 else ("s", c_float)


@cache
def load_mkl() -> ctypes.CDLL | None:
    """Load MKL's single dynamic library, with its OpenMP runtime; None where there is none."""
    folder = Path(sys.prefix) / "lib"
    places = [os.environ.get("MKL_RT"), *sorted(map(str, folder.glob("libmkl_rt.so*")))]
    places += [str(Path(sys.prefix) / "Library" / "bin" / "mkl_rt.2.dll"), ctypes.util.find_library("mkl_rt")]
    for place in places:
        if not place:
            continue
        try:
            openmp = folder / "libiomp5.so"
            if openmp.exists():
                ctypes.CDLL(str(openmp))  # MKL looks for it by name, and this folder is on nobody's path
            library = ctypes.CDLL(place)
        except OSError:
            continue
        _declare(library)
        return library
    return None


def _declare(library: ctypes.CDLL) -> None:
    """Give every MKL function that is called its argument types."""
    pointer = c_void_p
    for letter, real in (("d", c_double), ("s", c_float)):
        create = getattr(library, f"mkl_sparse_{letter}_create_csr")
        create.argtypes = [POINTER(c_void_p), c_int, c_int, c_int, pointer, pointer, pointer, pointer]
        multiply = getattr(library, f"mkl_sparse_{letter}_mv")
        multiply.argtypes = [c_int, real, c_void_p, MatrixDescription, pointer, real, pointer]
        create.restype = multiply.restype = c_int
    library.mkl_sparse_set_mv_hint.argtypes = [c_void_p, c_int, MatrixDescription, c_int]
    library.mkl_sparse_optimize.argtypes = [c_void_p]
    library.mkl_sparse_destroy.argtypes = [c_void_p]
    library.MKL_Set_Num_Threads.argtypes = [c_int]
    library.MKL_Set_Num_Threads.restype = None


def _checked(status: int, name: str) -> None:
    """Raise where an MKL call did not return SPARSE_STATUS_SUCCESS."""
    if status != 0:
        raise RuntimeError(f"{name} returned status {status}; 0 is needed")


def mkl_candidate(csr: Any, x: NDArray[Any], threads: int, operation: int = NON_TRANSPOSE) -> Candidate:
    """Return MKL's inspector-executor product, plain or transposed, with a persistent, optimised handle.

    Raises
    ------
    RuntimeError
        If MKL is not found, or one of its calls fails.
    """
    if x.dtype.name not in ("float64", "float32"):
        raise RuntimeError(f"MKL is asked for products of float64 and float32, not of {x.dtype}")
    library = load_mkl()
    if library is None:
        raise RuntimeError("MKL was not found; `pip install mkl` or a path in MKL_RT is needed")
    started = time.perf_counter()
    letter, _ = _scalar(x.dtype)
    offsets = np.ascontiguousarray(csr.indptr, dtype=np.int32)
    columns = np.ascontiguousarray(csr.indices, dtype=np.int32)
    values = np.ascontiguousarray(csr.data)
    y = np.empty(csr.shape[1 if operation == TRANSPOSE else 0], dtype=x.dtype)
    description = MatrixDescription(GENERAL, LOWER, NON_UNIT)
    handle = c_void_p()
    library.MKL_Set_Num_Threads(threads)
    create = getattr(library, f"mkl_sparse_{letter}_create_csr")
    place = offsets.ctypes.data
    arguments = (place, place + 4, columns.ctypes.data, values.ctypes.data)
    _checked(create(byref(handle), 0, csr.shape[0], csr.shape[1], *arguments), "mkl_sparse_create_csr")
    # Both may answer 6, not supported, for a shape that has no optimised kernel; the product still works.
    hint = library.mkl_sparse_set_mv_hint(handle, operation, description, EXPECTED_PRODUCTS)
    _checked(0 if hint == 6 else hint, "mkl_sparse_set_mv_hint")
    optimized = library.mkl_sparse_optimize(handle)
    _checked(0 if optimized == 6 else optimized, "mkl_sparse_optimize")
    multiply = getattr(library, f"mkl_sparse_{letter}_mv")
    x_place, y_place = x.ctypes.data, y.ctypes.data

    def run() -> None:
        _checked(multiply(operation, 1.0, handle, description, x_place, 0.0, y_place), "mkl_sparse_mv")

    return Candidate(
        "mkl",
        run,
        y,
        setup_ms=1e3 * (time.perf_counter() - started),
        cooldown_seconds=OPENMP_SPIN_SECONDS,
        close=lambda: library.mkl_sparse_destroy(handle),
        owned=(offsets, columns, values, x, y, handle, description),
    )


def build(
    csr: Any, x: NDArray[Any], *, names: Collection[str] = NAMES, threads: int = 1, transpose: bool = False
) -> Makers:
    """Return the makers of the host's baselines of one matrix, or of the product with its transpose.

    Parameters
    ----------
    csr : scipy.sparse CSR matrix or array
        Shape (m, n), a type of `dasp.runtime.dtypes.TABLE`.
    x : numpy.ndarray
        Shape (n,), or (m,) for the transpose; same dtype.
    names : collection of str
        Which baselines, of `NAMES`.
    threads : int
        Threads of numba and MKL.
    transpose : bool
    """
    numba.set_num_threads(threads)

    def loop() -> Candidate:
        if transpose:
            raise RuntimeError("the loop over rows has no product with the transpose")
        return numba_candidate(csr, x)

    operation = TRANSPOSE if transpose else NON_TRANSPOSE
    makers: Makers = {
        "scipy": lambda: scipy_candidate(csr.T if transpose else csr, x),
        "numba_csr": loop,
        "mkl": lambda: mkl_candidate(csr, x, threads, operation),
    }
    return {name: makers[name] for name in NAMES if name in names}
