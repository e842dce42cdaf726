"""Baselines on the GPU: every cuSPARSE product, with persistent descriptors, and CuPy's `A @ x`.

Settings: CSR ALG1 and ALG2, each without and with `cusparseSpMV_preprocess` (`_pre`); sliced ELL with
slices of 32 rows in the caller's order; SpMVOp ALG1 and ALG2 where the loaded cuSPARSE has them. `cupy` is
what a user of CuPy gets: descriptors and workspace anew at every product, so its time contains the cost of
the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from ctypes import byref, c_double, c_float, c_size_t, c_void_p
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench.cusparse import (
    NON_TRANSPOSE,
    SPMV_CSR_ALG1,
    SPMV_CSR_ALG2,
    SPMV_SELL_ALG1,
    SPMVOP_ALG1,
    SPMVOP_ALG2,
    TRANSPOSE,
    VALUE_TYPES,
    CuSparse,
    load,
)
from dasp.cli.devices import Makers
from dasp.cli.timing import Candidate
from dasp.runtime.dtypes import real_type, sum_type
from dasp.runtime.sizes import ceil_div

CSR_SETTINGS = {
    "cusparse_alg1": (SPMV_CSR_ALG1, False),
    "cusparse_alg2": (SPMV_CSR_ALG2, False),
    "cusparse_alg1_pre": (SPMV_CSR_ALG1, True),
    "cusparse_alg2_pre": (SPMV_CSR_ALG2, True),
}
SPMVOP_SETTINGS = {"cusparse_spmvop1": SPMVOP_ALG1, "cusparse_spmvop2": SPMVOP_ALG2}
NAMES = (*CSR_SETTINGS, "cusparse_sell", *SPMVOP_SETTINGS, "cupy")
"""The GPU's baselines, as `--baselines` and the columns name them."""

SLICE_HEIGHT = 32
SLICE_LIMIT = 4
"""Sliced ELL is left out where it would store more than four slots an entry."""

POISON = 2.5e37
"""What y holds before a baseline is verified; finite, because SpMVOp may read y and multiply it by 0."""

HALF_POISON = 6e4
"""The same for float16."""

INDEX_LIMIT = 2**31


def poison(y: Any) -> float:
    """Return the number that stands in y before a baseline is verified."""
    return HALF_POISON if y.dtype == np.float16 else POISON


class Device:
    """One CSR matrix and its vectors on the GPU, shared by all settings.

    Parameters
    ----------
    csr : scipy.sparse CSR matrix or array
        Shape (m, n), a type of `dasp.runtime.dtypes.TABLE`, fewer than 2^31 entries.
    x : cupy.ndarray
        Shape (n,), same dtype; (m,) for the product with the transpose.
    transpose : bool
        Whether that is what is measured, by cuSPARSE's own operation on the matrix as it is.
    """

    def __init__(self, csr: Any, x: Any, transpose: bool = False) -> None:
        """Copy the matrix to the current GPU."""
        import cupy

        if csr.nnz >= INDEX_LIMIT:
            raise RuntimeError(
                f"the matrix has {csr.nnz} entries; fewer than 2^31 are needed by the baselines"
            )
        self.shape = (int(csr.shape[0]), int(csr.shape[1]))
        self.data = cupy.asarray(csr.data)
        self.indices = cupy.asarray(csr.indices.astype(np.int32, copy=False))
        self.indptr = cupy.asarray(csr.indptr.astype(np.int32, copy=False))
        self.x = x
        self.operation = TRANSPOSE if transpose else NON_TRANSPOSE
        self.y = cupy.empty(self.shape[1 if transpose else 0], dtype=csr.dtype)
        total = sum_type(np.dtype(csr.dtype))
        real = c_double if real_type(total) == np.float64 else c_float
        parts = real * (2 if total.kind == "c" else 1)
        self.one, self.zero = parts(1.0), parts(0.0)
        self.kind = VALUE_TYPES[total]

    def matrix(self, library: CuSparse) -> c_void_p:
        """Return a new descriptor of the matrix."""
        return library.matrix_csr(self.shape, self.data, self.indices, self.indptr)


class Descriptors:
    """The cuSPARSE objects of one setting, destroyed in reverse order."""

    def __init__(self, library: CuSparse) -> None:
        """Hold nothing yet."""
        self.library = library
        self._made: list[tuple[str, c_void_p]] = []

    def keep(self, destroy: str, made: c_void_p) -> c_void_p:
        """Remember to destroy `made` with the function named `destroy`."""
        self._made.append((destroy, made))
        return made

    def close(self) -> None:
        """Destroy everything."""
        while self._made:
            self.library.call(*self._made.pop())


def synchronize() -> None:
    """Wait until the current stream has finished."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def enqueuing(library: CuSparse, name: str, arguments: tuple[Any, ...]) -> Callable[[], None]:
    """Return a run that calls one cuSPARSE function on CuPy's current stream."""
    import cupy

    def run() -> None:
        library.set_stream(cupy.cuda.get_current_stream().ptr)
        library.call(name, *arguments)

    return run


def product_candidate(
    name: str,
    library: CuSparse,
    function: str,
    describe: Callable[[Descriptors], tuple[Any, ...]],
    prepare: bool,
    y: Any,
    owned: Any,
) -> Candidate:
    """Return a product through cusparseSpMV or cusparseSpMM: descriptors and workspace are made once.

    Parameters
    ----------
    name : str
        The setting's name.
    library : CuSparse
    function : str
        "cusparseSpMV" or "cusparseSpMM".
    describe : callable
        Returns its arguments but the workspace, with descriptors that it gives to what it is called with.
    prepare : bool
        Whether the function's `_preprocess` is called.
    y : cupy.ndarray
        Where the product goes.
    owned : object
        What must live as long as the candidate.

    Raises
    ------
    RuntimeError
        If cuSPARSE refuses it.
    """
    import cupy

    started = time.perf_counter()
    held = Descriptors(library)
    try:
        library.set_stream(cupy.cuda.get_current_stream().ptr)
        arguments = describe(held)
        size = c_size_t()
        library.call(f"{function}_bufferSize", *arguments, byref(size))
        workspace = cupy.empty(max(size.value, 1), dtype=cupy.uint8)
        if prepare:
            library.call(f"{function}_preprocess", *arguments, workspace.data.ptr)
        synchronize()
    except RuntimeError:
        held.close()
        raise
    return Candidate(
        name,
        enqueuing(library, function, (*arguments, workspace.data.ptr)),
        y,
        poison(y),
        setup_ms=1e3 * (time.perf_counter() - started),
        close=held.close,
        owned=(y, workspace, held, arguments, owned),
    )


def spmv_candidate(
    name: str,
    library: CuSparse,
    device: Device,
    matrix: Callable[[], c_void_p],
    algorithm: int,
    prepare: bool,
) -> Candidate:
    """Return a product through cusparseSpMV by one cusparseSpMVAlg_t.

    `matrix` makes the matrix descriptor: one for each setting, because preprocessing leaves its analysis in
    it.
    """

    def describe(held: Descriptors) -> tuple[Any, ...]:
        return (
            library.handle,
            device.operation,
            byref(device.one),
            held.keep("cusparseDestroySpMat", matrix()),
            held.keep("cusparseDestroyDnVec", library.vector(device.x)),
            byref(device.zero),
            held.keep("cusparseDestroyDnVec", library.vector(device.y)),
            device.kind,
            algorithm,
        )

    return product_candidate(name, library, "cusparseSpMV", describe, prepare, device.y, (device, matrix))


def spmvop_candidate(name: str, library: CuSparse, device: Device, algorithm: int) -> Candidate:
    """Return a product through cusparseSpMVOp, which plans (and compiles) for one matrix."""
    import cupy

    if not library.has_spmvop:
        raise RuntimeError(f"not available in cuSPARSE {library.version_text}; 12.8.1 to 12.9 is needed")
    started = time.perf_counter()
    held = Descriptors(library)
    try:
        library.set_stream(cupy.cuda.get_current_stream().ptr)
        matrix = held.keep("cusparseDestroySpMat", device.matrix(library))
        x = held.keep("cusparseDestroyDnVec", library.vector(device.x))
        y = held.keep("cusparseDestroyDnVec", library.vector(device.y))
        arguments = (device.operation, matrix, x, y, y, device.kind, algorithm)
        size = c_size_t()
        library.call("cusparseSpMVOp_bufferSize", library.handle, *arguments, byref(size))
        workspace = cupy.empty(max(size.value, 1), dtype=cupy.uint8)
        description, plan = c_void_p(), c_void_p()
        place = workspace.data.ptr
        library.call("cusparseSpMVOp_createDescr", library.handle, byref(description), *arguments, place)
        held.keep("cusparseSpMVOp_destroyDescr", description)
        library.call("cusparseSpMVOp_createPlan", library.handle, description, byref(plan), None, 0)
        held.keep("cusparseSpMVOp_destroyPlan", plan)
        synchronize()
    except RuntimeError:
        held.close()
        raise
    scalars = (byref(device.one), byref(device.zero))
    return Candidate(
        name,
        enqueuing(library, "cusparseSpMVOp", (library.handle, plan, *scalars, x, y, y)),
        device.y,
        poison(device.y),
        setup_ms=1e3 * (time.perf_counter() - started),
        close=held.close,
        owned=(device, workspace, held, scalars),
    )


def sliced_ell(
    csr: Any, height: int = SLICE_HEIGHT
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32]]:
    """Store a CSR matrix as sliced ELL in the caller's row order.

    Parameters
    ----------
    csr : scipy.sparse CSR matrix or array
        Shape (m, n).
    height : int
        Rows of a slice. The last slice is as high as the others.

    Returns
    -------
    values, columns : numpy.ndarray
        One slot after another down a column of the slice; a pad has value 0 and column -1.
    offsets : numpy.ndarray
        Shape (ceil(m / height) + 1,), int32: where each slice begins.

    Raises
    ------
    RuntimeError
        If the slots are more than `SLICE_LIMIT` an entry, or 2^31 or more.
    """
    rows = csr.shape[0]
    lengths = np.diff(csr.indptr)
    slices = ceil_div(rows, height)
    padded = np.zeros(slices * height, dtype=np.int64)
    padded[:rows] = lengths
    widths = padded.reshape(slices, height).max(axis=1, initial=0)
    offsets = np.concatenate([[0], np.cumsum(widths * height)])
    slots = int(offsets[-1])
    if slots > SLICE_LIMIT * max(csr.nnz, 1) or slots >= INDEX_LIMIT:
        raise RuntimeError(f"{slots} slots for {csr.nnz} entries; at most {SLICE_LIMIT} an entry are tried")
    row = np.repeat(np.arange(rows), lengths)
    place = np.arange(csr.nnz) - csr.indptr[row]
    place = offsets[row // height] + place * height + row % height
    values = np.zeros(slots, dtype=csr.dtype)
    columns = np.full(slots, -1, dtype=np.int32)
    values[place] = csr.data
    columns[place] = csr.indices
    return values, columns, offsets.astype(np.int32)


def sell_candidate(library: CuSparse, device: Device, csr: Any) -> Candidate:
    """Return a product on cuSPARSE's sliced ELL format; the conversion counts as setup."""
    import cupy

    started = time.perf_counter()
    data, indices, offsets = (cupy.asarray(part) for part in sliced_ell(csr))
    converted_ms = 1e3 * (time.perf_counter() - started)

    def matrix() -> c_void_p:
        return library.matrix_sell(device.shape, int(csr.nnz), SLICE_HEIGHT, data, indices, offsets)

    made = spmv_candidate("cusparse_sell", library, device, matrix, SPMV_SELL_ALG1, prepare=False)
    made.setup_ms += converted_ms
    return made


def cupy_candidate(device: Device) -> Candidate:
    """Return CuPy's `A @ x`, with call overhead."""
    from cupyx.scipy.sparse import csr_matrix

    matrix = csr_matrix((device.data, device.indices, device.indptr), shape=device.shape)
    if device.operation == TRANSPOSE:
        matrix = matrix.T
    return Candidate("cupy", lambda: matrix @ device.x)


def _make(name: str, library: CuSparse, device: Device, csr: Any) -> Candidate:
    """Return the candidate of one setting."""
    if name == "cupy":
        return cupy_candidate(device)
    if name == "cusparse_sell":
        return sell_candidate(library, device, csr)
    if name in SPMVOP_SETTINGS:
        return spmvop_candidate(name, library, device, SPMVOP_SETTINGS[name])
    algorithm, prepare = CSR_SETTINGS[name]
    return spmv_candidate(name, library, device, lambda: device.matrix(library), algorithm, prepare)


def build(csr: Any, x: Any, *, names: Collection[str] = NAMES, transpose: bool = False) -> Makers:
    """Return the makers of the GPU's baselines of one matrix, or of the product with its transpose.

    Parameters
    ----------
    csr : scipy.sparse CSR matrix or array
        Shape (m, n), on the host, a type of `dasp.runtime.dtypes.TABLE`.
    x : cupy.ndarray
        Shape (n,), or (m,) for the transpose; same dtype.
    names : collection of str
        Which settings, of `NAMES`.
    transpose : bool
    """

    @cache
    def shared() -> tuple[CuSparse, Device]:
        return load(), Device(csr, x, transpose)

    def make(name: str) -> Candidate:
        return _make(name, *shared(), csr)

    return {name: partial(make, name) for name in NAMES if name in names}
