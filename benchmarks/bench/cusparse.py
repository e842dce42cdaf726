"""The few cuSPARSE functions that the baselines need, through ctypes, every status checked.

CuPy's own binding creates and destroys its descriptors around every product. A baseline is given its best:
descriptors, workspace and analysis made once per matrix, as a program in C would keep them.

Signatures and enumerations are those of cusparse.h of cuSPARSE 12.6 to 12.9. SpMVOp is experimental and
changed: it is absent before 12.7, takes no algorithm in 12.7, and takes one from 12.8.1 on; only the last
form, compared in the headers of 12.8.1, 12.8.6 and 12.9.4, is called here.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

from dasp.runtime.dtypes import TABLE

NON_TRANSPOSE, TRANSPOSE = 0, 1
INDEX_32 = 2
BASE_ZERO = 0
SPMV_CSR_ALG1, SPMV_CSR_ALG2, SPMV_SELL_ALG1 = 2, 3, 5
SPMVOP_ALG1, SPMVOP_ALG2 = 1, 2
SPMM_CSR_ALG1, SPMM_CSR_ALG2, SPMM_CSR_ALG3 = 4, 6, 12
ORDERS = {"F": 1, "C": 2}
"""cusparseOrder_t of dense matrices: CUSPARSE_ORDER_COL, CUSPARSE_ORDER_ROW."""

VALUE_TYPES = {
    TABLE[name].dtype: number
    for name, number in (
        ("float32", 0),
        ("float64", 1),
        ("float16", 2),
        ("complex64", 4),
        ("complex128", 5),
        ("bfloat16", 14),
    )
}
"""cudaDataType of the dtypes that the baselines take: CUDA_R_32F, R_64F, R_16F, C_32F, C_64F, R_16BF."""

SPMVOP_VERSIONS = (12801, 13000)
"""First version with the SpMVOp interface used here, and the first one that nobody has compared."""

_POINTER = c_void_p
_SPMV = [_POINTER, c_int, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, c_int, c_int]
_SPMM = [_POINTER, c_int, c_int, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, c_int, c_int]
SIGNATURES: dict[str, list[Any]] = {
    "cusparseCreate": [POINTER(c_void_p)],
    "cusparseDestroy": [_POINTER],
    "cusparseGetVersion": [_POINTER, POINTER(c_int)],
    "cusparseSetStream": [_POINTER, _POINTER],
    "cusparseCreateCsr": [POINTER(c_void_p), *[c_int64] * 3, *[_POINTER] * 3, *[c_int] * 4],
    "cusparseCreateSlicedEll": [POINTER(c_void_p), *[c_int64] * 5, *[_POINTER] * 3, *[c_int] * 4],
    "cusparseDestroySpMat": [_POINTER],
    "cusparseCreateDnVec": [POINTER(c_void_p), c_int64, _POINTER, c_int],
    "cusparseDestroyDnVec": [_POINTER],
    "cusparseCreateDnMat": [POINTER(c_void_p), *[c_int64] * 3, _POINTER, c_int, c_int],
    "cusparseDestroyDnMat": [_POINTER],
    "cusparseSpMM_bufferSize": [*_SPMM, POINTER(c_size_t)],
    "cusparseSpMM_preprocess": [*_SPMM, _POINTER],
    "cusparseSpMM": [*_SPMM, _POINTER],
    "cusparseSpMV_bufferSize": [*_SPMV, POINTER(c_size_t)],
    "cusparseSpMV_preprocess": [*_SPMV, _POINTER],
    "cusparseSpMV": [*_SPMV, _POINTER],
}
"""Argument types of every function called; each returns a cusparseStatus_t."""

_SPMVOP = [c_int, _POINTER, _POINTER, _POINTER, _POINTER, c_int, c_int]
SPMVOP_SIGNATURES: dict[str, list[Any]] = {
    "cusparseSpMVOp_bufferSize": [_POINTER, *_SPMVOP, POINTER(c_size_t)],
    "cusparseSpMVOp_createDescr": [_POINTER, POINTER(c_void_p), *_SPMVOP, _POINTER],
    "cusparseSpMVOp_destroyDescr": [_POINTER],
    "cusparseSpMVOp_createPlan": [_POINTER, _POINTER, POINTER(c_void_p), _POINTER, c_size_t],
    "cusparseSpMVOp_destroyPlan": [_POINTER],
    "cusparseSpMVOp": [_POINTER] * 7,
}
"""Argument types of SpMVOp from 12.8.1 on."""


class CuSparse:
    """One loaded cuSPARSE with one handle.

    Attributes
    ----------
    version : int
        1000 major + 100 minor + patch, as cusparseGetVersion returns it; 12801 is 12.8.1.
    """

    def __init__(self, library: Any) -> None:
        """Declare the functions, make a handle, ask for the version."""
        self._library = library
        self._declare(SIGNATURES)
        self.handle = c_void_p()
        self.call("cusparseCreate", byref(self.handle))
        number = c_int()
        self.call("cusparseGetVersion", self.handle, byref(number))
        self.version = int(number.value)
        if self.has_spmvop:
            self._declare(SPMVOP_SIGNATURES)

    def _declare(self, signatures: dict[str, list[Any]]) -> None:
        for name, arguments in signatures.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = c_int

    @property
    def has_spmvop(self) -> bool:
        """Whether SpMVOp has the interface that is called here."""
        first, beyond = SPMVOP_VERSIONS
        return first <= self.version < beyond and hasattr(self._library, "cusparseSpMVOp_createPlan")

    @property
    def version_text(self) -> str:
        """The version with dots."""
        return f"{self.version // 1000}.{self.version % 1000 // 100}.{self.version % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and check its status.

        Raises
        ------
        RuntimeError
            If the status is not CUSPARSE_STATUS_SUCCESS.
        """
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned status {status} ({self._explain(status)}); 0 is needed")

    def _explain(self, status: int) -> str:
        explain = self._library.cusparseGetErrorString
        explain.argtypes, explain.restype = [c_int], c_char_p
        text = explain(status)
        return text.decode() if text else "unknown"

    def set_stream(self, pointer: int) -> None:
        """Enqueue later calls on this CUDA stream."""
        self.call("cusparseSetStream", self.handle, pointer)

    def matrix_csr(self, shape: tuple[int, int], data: Any, indices: Any, indptr: Any) -> c_void_p:
        """Return a descriptor of a CSR matrix whose int32 and value arrays are on the GPU."""
        made = c_void_p()
        arrays = (indptr.data.ptr, indices.data.ptr, data.data.ptr)
        kinds = (INDEX_32, INDEX_32, BASE_ZERO, VALUE_TYPES[data.dtype])
        self.call("cusparseCreateCsr", byref(made), *shape, data.size, *arrays, *kinds)
        return made

    def matrix_sell(
        self, shape: tuple[int, int], entries: int, height: int, data: Any, indices: Any, offsets: Any
    ) -> c_void_p:
        """Return a descriptor of a sliced ELL matrix: `height` rows a slice, by columns, pads at -1."""
        made = c_void_p()
        arrays = (offsets.data.ptr, indices.data.ptr, data.data.ptr)
        kinds = (INDEX_32, INDEX_32, BASE_ZERO, VALUE_TYPES[data.dtype])
        self.call("cusparseCreateSlicedEll", byref(made), *shape, entries, data.size, height, *arrays, *kinds)
        return made

    def vector(self, values: Any) -> c_void_p:
        """Return a descriptor of a dense vector on the GPU."""
        made = c_void_p()
        self.call("cusparseCreateDnVec", byref(made), values.size, values.data.ptr, VALUE_TYPES[values.dtype])
        return made

    def matrix_dense(self, values: Any) -> c_void_p:
        """Return a descriptor of a dense matrix on the GPU, C- or F-ordered."""
        made = c_void_p()
        order = "C" if values.flags.c_contiguous else "F"
        rows, columns = values.shape
        stride = columns if order == "C" else rows
        kind = VALUE_TYPES[values.dtype]
        place = values.data.ptr
        self.call("cusparseCreateDnMat", byref(made), rows, columns, stride, place, kind, ORDERS[order])
        return made


def open_library() -> Any:
    """Return the cuSPARSE to measure: the file in DASP_CUSPARSE, else the one CuPy uses, else the system's.

    Raises
    ------
    RuntimeError
        If none can be loaded.
    """
    if given := os.environ.get("DASP_CUSPARSE"):
        return ctypes.CDLL(given)
    with suppress(ImportError, RuntimeError, OSError):
        path = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cusparse").abs_path
        if path:
            return ctypes.CDLL(path)
    try:
        return ctypes.CDLL("libcusparse.so.12")
    except OSError as error:
        raise RuntimeError(
            f"cuSPARSE cannot be loaded ({error}); a file in DASP_CUSPARSE is needed"
        ) from error


@cache
def load() -> CuSparse:
    """Load cuSPARSE once, with a handle for the current GPU; `CuSparse` says what can be asked of it."""
    import cupy

    cupy.cuda.Device().use()
    cupy.cuda.runtime.free(0)  # creates the context that the handle is made in
    return CuSparse(open_library())
