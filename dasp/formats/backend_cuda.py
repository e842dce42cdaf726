"""The backend of NVIDIA GPUs; see `dasp.formats.backends.Backend`.

CuPy is imported when a GPU is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dasp import formats
from dasp.formats.cost import CostModel, Gpu, apply_own_numbers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Plan, arrays_of, with_arrays
from dasp.formats.product_cuda import CudaProduct
from dasp.formats.sell.cuda.primitives import find_primitives
from dasp.formats.sell.primitives import Primitives
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime import foreign as _foreign
from dasp.runtime.arrays import Order
from dasp.runtime.cuda.gpus import find_number
from dasp.runtime.cuda.stream import upload
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import AnyArray, Array, DeviceArray


@cache
def find_cost_model(device: str) -> CostModel:
    """Return the cost model of a GPU, with the user's own numbers."""
    gpu = describe_gpu(device)
    return apply_own_numbers(CostModel.for_gpu(gpu), gpu.name)


def describe_gpu(device: str) -> Gpu:
    """Return the properties that a GPU reports."""
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(find_number(device))["name"].decode()
    attributes = cupy.cuda.Device(find_number(device)).attributes
    # Clocks are in kHz, the bus in bits, and memory moves two words a cycle. Some drivers do not report them.
    traffic = 2e3 * attributes.get("MemoryClockRate", 0) * attributes.get("GlobalMemoryBusWidth", 0) / 8
    return Gpu(
        name,
        int(attributes["MultiProcessorCount"]),
        int(attributes["MaxThreadsPerMultiProcessor"]) // WARP,
        int(attributes["L2CacheSize"]),
        1e3 * attributes.get("ClockRate", 0),
        traffic,
    )


@contextmanager
def use_primitives(device: str, *, wait: bool = False) -> Iterator[Primitives]:
    """Yield the primitives of a GPU, for work on its current stream; with `wait`, wait for it at the end.

    While that stream is captured, memory that is allocated in this context belongs to the graph alone.
    """
    import cupy

    cuda, here = cupy.cuda, find_number(device)
    with ExitStack() as contexts:
        if cuda.runtime.getDevice() != here:
            contexts.enter_context(cuda.Device(here))
        if not wait and cuda.runtime.streamIsCapturing(cuda.get_current_stream().ptr):
            contexts.enter_context(cuda.using_allocator(cuda.malloc_async))
        yield find_primitives(here)
        if wait:
            cuda.get_current_stream().synchronize()


@contextmanager
def bring_to_device(csr: Csr, device: str) -> Iterator[tuple[Csr, Primitives]]:
    """Yield a matrix of NumPy or CuPy on a GPU, and the primitives; `make_product` waits for their work."""
    with use_primitives(device) as on:
        find_primitives(find_number(device)).begin_loading(csr)  # while the matrix is on its way
        if isinstance(csr.data, np.ndarray):
            csr = Csr(csr.shape, *upload(csr[1:]))
        yield csr, on


def as_values(data: object, device: str) -> DeviceArray:
    """Return values of a matrix as a CuPy array on the GPU.

    Raises
    ------
    TypeError, ValueError
        If they are not on that GPU, not numbers, or not one-dimensional.
    """
    import cupy

    if not isinstance(data, cupy.ndarray) or data.device.id != find_number(device):
        raise TypeError(
            f"data is {_check.kind_of(data)} and A is on {device}; a cupy.ndarray there is needed"
        )
    if data.ndim != 1:
        raise ValueError(f"data has shape {data.shape}; one dimension is needed")
    values = cupy.ascontiguousarray(data, _dtypes.stored(data.dtype, "data"))
    if values.data.ptr % values.itemsize == 0:
        return values
    # CuPy may align complex numbers only to their parts, but kernels, CuPy's own too, load them whole.
    return values.view(_dtypes.real_type(values.dtype)).copy().view(values.dtype)


def as_csr(matrix: Any) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return indptr, indices and data of a CSR matrix of CuPy, in types that a plan takes; not checked.

    Raises
    ------
    TypeError
        For values that are not numbers.
    """
    import cupy

    data = cupy.ascontiguousarray(matrix.data, _dtypes.stored(matrix.data.dtype))
    return cupy.ascontiguousarray(matrix.indptr), cupy.ascontiguousarray(matrix.indices), data


def make_product(plan: Plan, device: str, like: CudaProduct | None = None) -> CudaProduct:
    """Return the product by a plan on a GPU; wait for the work of the current stream if the plan lies there.

    `like` is the product by a plan with the same pattern, whose compiled kernel may serve again.
    """
    made = None if like is None else like.of(plan)
    if made is None:
        made = formats.find(plan.format).products["cuda"]()(plan, device)
    if made.plan is plan:
        made.wait()
    return made


def as_operand(x: AnyArray, device: str, name: str = "x") -> DeviceArray:
    """Return x as a CuPy array.

    Raises
    ------
    TypeError
        If x is not an array on the GPU that `device` names: nothing is copied between devices unasked.
    """
    import cupy

    if not isinstance(x, cupy.ndarray):
        if not hasattr(x, "__cuda_array_interface__"):
            raise TypeError(
                f"{name} is {_check.kind_of(x, library=True)} and A is on {device}; "
                f"a cupy.ndarray is needed; pass cupy.asarray({name}) or use A.to_device('cpu')"
            )
        x = cupy.asarray(x)
    if x.device.id != find_number(device):
        raise TypeError(f"{name} is on cuda:{x.device.id} and A is on {device}; both must be on one GPU")
    return x


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: str, order: Order) -> DeviceArray:
    """Return a new array for a result, in C or F order."""
    import cupy

    with cupy.cuda.Device(find_number(device)):
        return cupy.empty(shape, dtype, order)


def check_out(
    out: object, x: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
) -> DeviceArray:
    """Return `out`, a CuPy array for this result that does not overlap x.

    Raises
    ------
    TypeError, ValueError
    """
    import cupy

    if not isinstance(out, cupy.ndarray) or out.device.id != find_number(device):
        raise TypeError(f"out is {_check.kind_of(out)} and A is on {device}; a cupy.ndarray there is needed")
    _check.out(out, shape, dtype)
    if cupy.may_share_memory(out, x):
        raise ValueError("out overlaps x; pass another array")
    return out


def to_host(plan: Plan) -> Plan:
    """Return the plan with NumPy arrays."""

    def download(array: DeviceArray) -> Array:
        copy: Array = array.get()
        copy.flags.writeable = False
        return copy

    return with_arrays(plan, map(download, arrays_of(plan)))


def add_scaled(y: DeviceArray, factor: complex, x: DeviceArray) -> None:
    """Add `factor` times x to y, of the same shape, on the current stream; nothing is allocated."""
    import cupy

    with cupy.cuda.Device(y.device.id):
        total = _dtypes.sum_type(y.dtype)
        _adder(total.name)(x, total.type(factor), y)


@cache
def _adder(total: str) -> Any:
    """Return the kernel that adds a multiple of x to y in the type `total`, whatever the types of x and y."""
    import cupy

    real = "double" if total in ("float64", "complex128") else "float"
    name = f"complex<{real}>" if total.startswith("complex") else real
    work = f"y = Y({name}(y) + factor * {name}(x))"
    return cupy.ElementwiseKernel(f"X x, {total} factor", "Y y", work, "dasp_add_scaled")


def asarray(x: AnyArray, device: str, dtype: npt.DTypeLike | None = None) -> DeviceArray:
    """Return an array of any library and device as a CuPy array on the GPU."""
    import cupy

    with cupy.cuda.Device(find_number(device)):
        if _foreign.is_foreign(x):
            x = _foreign.take_anywhere(x)
        return cupy.asarray(x, dtype)


def make_sparse(shape: tuple[int, int], indptr: DeviceArray, indices: DeviceArray, data: DeviceArray) -> Any:
    """Return a CSR matrix of CuPy.

    indptr takes the type of indices if that is wide enough: CuPy reads index arrays of two types, and waits.
    """
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    with cupy.cuda.Device(data.device.id):
        if data.size <= np.iinfo(indices.dtype).max:
            indptr = indptr.astype(indices.dtype, copy=False)
        return csr_matrix((data, indices, indptr), shape=shape)


def find_entries(dense: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return indptr, indices and data of the non-zero numbers of a dense matrix of CuPy.

    Raises
    ------
    TypeError
        For values that are not numbers.
    """
    import cupy

    (m, n), kind = dense.shape, _dtypes.stored(dense.dtype)
    part, bits = _dtypes.real_type(kind).itemsize, _dtypes.bits_type(kind)
    with cupy.cuda.Device(dense.device.id):
        plain = cupy.ascontiguousarray(dense, kind)
        words = plain.view(f"u{part}").reshape(m, n, kind.itemsize // part)
        # Test all bits but the sign: compared as a number, a subnormal one would be 0.
        kept = ((words << 1) != 0).any(axis=2)
        indptr = cupy.zeros(m + 1, np.int64)
        indptr[1:] = kept.sum(axis=1).cumsum()
        places = cupy.flatnonzero(kept)
        columns = (places % max(n, 1)).astype(narrowest(n))
        return indptr, columns, plain.view(bits).reshape(-1)[places].view(kind)


def find_operator_type() -> Any:
    """Return CuPy's LinearOperator."""
    from cupyx.scipy.sparse.linalg import LinearOperator

    return LinearOperator
