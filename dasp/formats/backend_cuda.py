"""The backend of an NVIDIA GPU. CuPy is imported when a GPU is first used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np

from dasp import formats
from dasp.formats.backend import Backend
from dasp.formats.cost import CostModel, Gpu, apply_own_numbers
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import WARP, Plan, arrays_of, with_arrays
from dasp.formats.product import Product
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
from dasp.runtime.types import AnyArray, Array, DeviceArray, DTypeLike, Number


class CudaBackend(Backend):
    """One GPU, with CuPy's arrays.

    Parameters
    ----------
    device : str
        `cuda:N`.
    """

    def __init__(self, device: str) -> None:
        self.device, self._number = device, find_number(device)

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model of this GPU, with the user's own numbers."""
        gpu = describe_gpu(self.device)
        return apply_own_numbers(CostModel.for_gpu(gpu), gpu.name)

    def as_operand(self, x: AnyArray, name: str = "x") -> DeviceArray:
        """See `Backend`."""
        import cupy

        if not isinstance(x, cupy.ndarray):
            if not hasattr(x, "__cuda_array_interface__"):
                raise TypeError(
                    f"{name} is {_check.kind_of(x, library=True)} and A is on {self.device}; "
                    f"a cupy.ndarray is needed; pass cupy.asarray({name}) or use A.to_device('cpu')"
                )
            x = cupy.asarray(x)
        if x.device.id != self._number:
            raise TypeError(
                f"{name} is on cuda:{x.device.id} and A is on {self.device}; both must be on one GPU"
            )
        return x

    def as_values(self, data: object) -> DeviceArray:
        """See `Backend`."""
        import cupy

        if not isinstance(data, cupy.ndarray) or data.device.id != self._number:
            raise TypeError(
                f"data is {_check.kind_of(data)} and A is on {self.device}; a cupy.ndarray there is needed"
            )
        if data.ndim != 1:
            raise ValueError(f"data has shape {data.shape}; one dimension is needed")
        values = cupy.ascontiguousarray(data, _dtypes.stored(data.dtype, "data"))
        if values.data.ptr % values.itemsize == 0:
            return values
        # CuPy may align complex numbers only to their parts, but kernels, CuPy's own too, load them whole.
        return values.view(_dtypes.real_type(values.dtype)).copy().view(values.dtype)

    def asarray(self, x: AnyArray, dtype: DTypeLike | None = None) -> DeviceArray:
        """See `Backend`."""
        import cupy

        with cupy.cuda.Device(self._number):
            if _foreign.is_foreign(x):
                x = _foreign.take_anywhere(x)
            return cupy.asarray(x, dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: Order) -> DeviceArray:
        """See `Backend`."""
        import cupy

        with cupy.cuda.Device(self._number):
            return cupy.empty(shape, dtype, order)

    def check_out(
        self, out: object, x: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> DeviceArray:
        """See `Backend`."""
        import cupy

        if not isinstance(out, cupy.ndarray) or out.device.id != self._number:
            raise TypeError(
                f"out is {_check.kind_of(out)} and A is on {self.device}; a cupy.ndarray there is needed"
            )
        _check.out(out, shape, dtype)
        if cupy.may_share_memory(out, x):
            raise ValueError("out overlaps x; pass another array")
        return out

    def add_scaled(self, y: DeviceArray, factor: Number, x: DeviceArray) -> None:
        """See `Backend`."""
        import cupy

        with cupy.cuda.Device(self._number):
            total = _dtypes.sum_type(y.dtype)
            _adder(total.name)(x, total.type(factor), y)

    @contextmanager
    def use_primitives(self, *, wait: bool = False) -> Iterator[Primitives]:
        """See `Backend`.

        While the current stream is captured, memory that is allocated in this context belongs to the graph
        alone.
        """
        import cupy

        cuda = cupy.cuda
        with ExitStack() as contexts:
            if cuda.runtime.getDevice() != self._number:
                contexts.enter_context(cuda.Device(self._number))
            if not wait and cuda.runtime.streamIsCapturing(cuda.get_current_stream().ptr):
                contexts.enter_context(cuda.using_allocator(cuda.malloc_async))
            yield find_primitives(self._number)
            if wait:
                cuda.get_current_stream().synchronize()

    @contextmanager
    def bring_to_device(self, csr: Csr) -> Iterator[tuple[Csr, Primitives]]:
        """See `Backend`; the matrix is NumPy's or CuPy's."""
        with self.use_primitives() as on:
            find_primitives(self._number).begin_loading(csr)  # while the matrix is on its way
            if isinstance(csr.data, np.ndarray):
                csr = Csr(csr.shape, *upload(csr[1:]))
            yield csr, on

    def make_product(self, plan: Plan, like: Product | None = None) -> CudaProduct:
        """See `Backend`; wait for the work of the current stream if the plan lies on the GPU."""
        made = like.of(plan) if isinstance(like, CudaProduct) else None
        if made is None:
            made = formats.find(plan.format).products["cuda"]()(plan, self.device)
        if made.plan is plan:
            made.wait()
        return made

    def to_host(self, plan: Plan) -> Plan:
        """See `Backend`."""

        def download(array: DeviceArray) -> Array:
            copy: Array = array.get()
            copy.flags.writeable = False
            return copy

        return with_arrays(plan, map(download, arrays_of(plan)))

    def make_sparse(
        self, shape: tuple[int, int], indptr: DeviceArray, indices: DeviceArray, data: DeviceArray
    ) -> Any:
        """Return a CSR matrix of CuPy.

        indptr takes the type of indices if that is wide enough: CuPy reads index arrays of two types, and
        waits.
        """
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        with cupy.cuda.Device(self._number):
            if data.size <= np.iinfo(indices.dtype).max:
                indptr = indptr.astype(indices.dtype, copy=False)
            return csr_matrix((data, indices, indptr), shape=shape)

    def find_operator_type(self) -> Any:
        """See `Backend`."""
        from cupyx.scipy.sparse.linalg import LinearOperator

        return LinearOperator

    def as_csr(self, matrix: Any) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """See `Backend`."""
        import cupy

        data = cupy.ascontiguousarray(matrix.data, _dtypes.stored(matrix.data.dtype))
        return cupy.ascontiguousarray(matrix.indptr), cupy.ascontiguousarray(matrix.indices), data

    def find_entries(self, dense: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """See `Backend`."""
        import cupy

        (m, n), kind = dense.shape, _dtypes.stored(dense.dtype)
        part, bits = _dtypes.real_type(kind).itemsize, _dtypes.bits_type(kind)
        with cupy.cuda.Device(self._number):
            plain = cupy.ascontiguousarray(dense, kind)
            words = plain.view(f"u{part}").reshape(m, n, kind.itemsize // part)
            # Test all bits but the sign: compared as a number, a subnormal one would be 0.
            kept = ((words << 1) != 0).any(axis=2)
            indptr = cupy.zeros(m + 1, np.int64)
            indptr[1:] = kept.sum(axis=1).cumsum()
            places = cupy.flatnonzero(kept)
            columns = (places % max(n, 1)).astype(narrowest(n))
            return indptr, columns, plain.view(bits).reshape(-1)[places].view(kind)


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


@cache
def _adder(total: str) -> Any:
    """Return the kernel that adds a multiple of x to y in the type `total`, whatever the types of x and y."""
    import cupy

    real = "double" if total in ("float64", "complex128") else "float"
    name = f"complex<{real}>" if total.startswith("complex") else real
    work = f"y = Y({name}(y) + factor * {name}(x))"
    return cupy.ElementwiseKernel(f"X x, {total} factor", "Y y", work, "dasp_add_scaled")
