"""A plan of any format on an NVIDIA GPU: one launch for each product by a vector."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from dasp.formats.kernel_cuda import (
    BETWEEN,
    SETTLE,
    TENSOR_CORES,
    VARYING,
    Scratch,
    VectorKernel,
    cast_scale,
    compile_product,
    compile_settling,
    count_blocks,
    define_constants,
    find_types,
    new_scratch,
)
from dasp.formats.plan import Plan, arrays_of, with_arrays
from dasp.formats.product import Product
from dasp.runtime.arrays import is_cupy
from dasp.runtime.cuda.driver import find_capture, in_pool, keep
from dasp.runtime.cuda.gpus import find_number
from dasp.runtime.cuda.launch import OVERLAPPING, Launch
from dasp.runtime.cuda.source import begin_loading
from dasp.runtime.cuda.stream import PER_THREAD_STREAM, THIS_THREAD, on_stream
from dasp.runtime.dtypes import BFLOAT16, Arithmetic, find_arithmetic_into, real_type
from dasp.runtime.sizes import round_up
from dasp.runtime.types import DeviceArray, KernelFunction

OVERLAPPING_DRIVER = 12_030
"""First CUDA version of a driver with which the start of a product may overlap the end of the kernel before
it, in a captured graph too."""

_HERE = nullcontext()
"""The context for work on a device that is already the current one."""

MOST_STREAMS = 8
"""Streams whose scratch a product keeps before it drops the scratch of streams that have ended."""

ALIGNMENT = 256
"""Bytes to which each array of a plan is aligned in the plan's one block of device memory."""


class CudaProduct(Product):
    """A plan, ready to be multiplied on one GPU.

    A format names the `kernel` that multiplies by a vector, and overrides methods for all else it can do.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays, which are copied to the GPU in one block, or with CuPy's there.
    device : str
        `cuda:N`.

    Raises
    ------
    RuntimeError
        If the plan needs float64 tensor cores and the GPU has none. If the kernel does not compile, the first
        product raises the error.
    """

    kernel: VectorKernel
    """The description of the format's kernel."""

    def __init__(self, plan: Plan, device: str) -> None:
        import cupy

        runtime, dtype, kernel = cupy.cuda.runtime, plan.dtype, self.kernel
        self._cupy, self._number = cupy, find_number(device)
        self._device = cupy.cuda.Device(self._number)
        self._capability = int(self._device.compute_capability)
        self._overlaps = self._capability >= OVERLAPPING and runtime.driverGetVersion() >= OVERLAPPING_DRIVER
        self._arithmetic = arithmetic = find_arithmetic_into(dtype, dtype, dtype)
        # For `multiply_if_plain`.
        self._several = runtime.getDeviceCount() > 1
        self._plain = cast_scale(arithmetic.sum, 1.0, 0.0)
        self._dtype = np.dtype(dtype.type)
        self._strides = (dtype.itemsize,)
        # CuPy looks up a letter faster than a type, but knows no letter for bfloat16.
        self._char = self._dtype if dtype == BFLOAT16 else self._dtype.char
        # CuPy may align complex numbers only to their parts, but a kernel loads a complex number at once.
        self._misaligned = dtype.itemsize - 1 if dtype.kind == "c" else 0
        self._ndarray = cupy.ndarray
        self._current_device: Callable[[], int] = runtime.getDevice
        self._current_stream: Callable[[], Any] = cupy.cuda.get_current_stream
        self._is_capturing: Callable[[int], bool] = runtime.streamIsCapturing
        constants = define_constants(kernel, plan, arithmetic)
        if constants.get("DASP_MMA") == "1" and self._capability < TENSOR_CORES:
            raise RuntimeError(
                f"this GPU is sm_{self._capability}; float64 tensor cores need sm_80; pass Policy(mma=False)"
            )
        with self._here():
            begin_loading([(kernel.SIGNATURE.source, constants)])  # the first product waits for it
            self.plan = plan if is_cupy(next(arrays_of(plan.values))) else _upload(plan)
        self._m, self._n = plan.shape
        self._threads, self._segments = kernel.count_threads(plan), kernel.count_partials(plan)
        self._blocks = count_blocks(kernel, plan)
        self._begin()

    @cached_property
    def _kernel(self) -> KernelFunction:
        """The kernel of products by vectors of the plan's own type."""
        return compile_product(self.kernel, self.plan, self._arithmetic)

    def _begin(self) -> None:
        """Reset the product to one that has launched nothing yet."""
        self._lock = threading.Lock()
        self._launches: dict[Arithmetic, dict[Any, Launch]] = defaultdict(dict)
        self._own = self._launches[self._arithmetic]
        self._captured: tuple[Any, Launch] | None = None
        self._streams: dict[int, Any] = {}
        self._plain_launch: Launch | None = None
        self._settled: Launch | None = None

    def of(self, plan: Plan) -> CudaProduct | None:
        """Return the product by another plan of the pattern on this GPU; None if it needs another kernel."""
        if not self._is_like(plan):
            return None
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, plan=plan)
        other._begin()
        return other

    def _is_like(self, plan: Plan) -> bool:
        """Return True if this product's compiled kernel can multiply another plan of the same pattern."""
        return plan.dtype == self.plan.dtype

    def multiply_if_plain(
        self, x: Any, out: Any = None, scale: tuple[float, float] | None = None
    ) -> DeviceArray | None:
        """Return A x, in `out` if that is given, or None if an argument must be converted or refused.

        The host does little here, because the kernels of many matrices take no longer than it does.
        """
        if (
            type(x) is not self._ndarray
            or x.dtype is not self._dtype
            or x.size != self._n
            or x.strides != self._strides  # so it has one dimension
            or (self._several and not self._is_here(x))
        ):
            return None
        start, stream = x.data.ptr, self._current_stream().ptr
        if start & self._misaligned:
            return None
        if out is None:
            out = self._ndarray(self._m, self._char)
            result = out.data.ptr
        else:
            if (
                type(out) is not self._ndarray
                or out.dtype is not self._dtype
                or out.size != self._m
                or out.strides != self._strides
                or (self._several and not self._is_here(out))
            ):
                return None
            result = out.data.ptr
            if (start < result + out.nbytes and result < start + x.nbytes) or result & self._misaligned:
                return None
        if self._plain_launch and scale is None:
            self._plain_launch(stream, start, result)
        elif self._blocks:
            plain = self._plain if scale is None else cast_scale(self._arithmetic.sum, *scale)
            self._find_own_launch(stream)(stream, start, result, *plain)
        return out

    def _is_here(self, vector: DeviceArray) -> bool:
        """Return True if a vector lies on the matrix's device and that is the current one."""
        return bool(vector.data.device_id == self._number == self._current_device())

    def _find_own_launch(self, stream: int) -> Launch:
        """Return the launch of a product by vectors of the plan's own type on a stream."""
        launch = self._own.get(stream if self._segments else 0)
        if launch is None or (self._segments and self._is_capturing(stream)):
            launch = self._find_launch(stream, self._arithmetic)
        if self._plain_launch is None and not self._segments:  # the launch belongs to no stream
            self._plain_launch = self._new_launch(self._arithmetic, Scratch(None, None), plain=True)
        return launch

    def multiply(self, x: DeviceArray, y: DeviceArray, alpha: complex, beta: complex) -> None:
        """Set y = alpha A x + beta y on CuPy's current stream; y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n,) or (n, k)
            Any type that y's type holds.
        y : cupy.ndarray, shape (m,) or (m, k), a type of `dasp.runtime.dtypes.TABLE`
            Not overlapping x.
        alpha, beta : float, or complex for a complex y
        """
        if x.ndim == 2:
            self._multiply_columns(x, y, alpha, beta)
            return
        arithmetic = find_arithmetic_into(self.plan.dtype, x.dtype, y.dtype)
        with self._device:
            stream = self._current_stream().ptr
            captured = self._is_capturing(stream)
            with in_pool(self._cupy) if captured else _HERE:
                vector, result = self._plain_vector(x, arithmetic.x), self._plain_vector(y, arithmetic.y)
            if self._blocks:
                scale = cast_scale(arithmetic.sum, alpha, beta)
                self._find_launch(stream, arithmetic)(stream, vector.data.ptr, result.data.ptr, *scale)
            if result is not y:
                self._cupy.copyto(y, result)
            if captured and (vector is not x or result is not y):
                keep((vector, result), find_capture(stream)[1])

    def _multiply_columns(self, x: DeviceArray, y: DeviceArray, alpha: complex, beta: complex) -> None:
        """Multiply by one column after the other."""
        for j in range(x.shape[1]):
            self.multiply(x[:, j], y[:, j], alpha, beta)

    def _plain_vector(self, vector: DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
        """Return a vector of a type, contiguous and aligned as kernels load it: itself or a copy."""
        plain = self._cupy.ascontiguousarray(vector, dtype)
        if plain.data.ptr % dtype.itemsize == 0:
            return plain
        return plain.view(real_type(dtype)).copy().view(dtype)  # CuPy's kernels load whole numbers, too

    def _find_launch(self, stream: int, arithmetic: Arithmetic) -> Launch:
        """Return a launch for a stream, with scratch that no other running launch uses."""
        place: int | tuple[int, int] = 0
        if self._segments:
            if self._is_capturing(stream):
                return self._find_captured_launch(stream, arithmetic)
            place = (stream, THIS_THREAD.number) if stream == PER_THREAD_STREAM else stream
        launches = self._launches[arithmetic]
        if place not in launches:
            with self._lock:
                if place not in launches:
                    if self._segments:
                        self._keep_stream(stream)
                    launches[place] = self._new_launch(arithmetic, self._allocate_scratch(arithmetic))
        return launches[place]

    def _new_launch(self, arithmetic: Arithmetic, scratch: Scratch, *, plain: bool = False) -> Launch:
        """Return a launch for the types of a product; if `plain`, with alpha 1 and beta 0."""
        kernel = self.kernel
        scale = {"alpha": arithmetic.sum.type(1), "beta": arithmetic.sum.type(0)} if plain else {}
        is_usual = arithmetic == self._arithmetic
        return Launch(
            self._kernel if is_usual else compile_product(kernel, self.plan, arithmetic),
            kernel.SIGNATURE,
            find_types(kernel, self.plan, arithmetic),
            kernel.list_arguments(self.plan, scratch) | scale,
            BETWEEN if plain else VARYING,
            blocks=self._blocks,
            threads=self._threads,
            overlaps=self._overlaps,
        )

    def _allocate_scratch(self, arithmetic: Arithmetic) -> Scratch:
        """Return new scratch, filled on the current stream, or before this returns if that is captured.

        A plan without segments needs none.
        """
        if not self._segments:
            return Scratch(None, None)
        if not self._is_capturing(self._current_stream().ptr):
            return new_scratch(self._segments, arithmetic.sum, self._cupy)
        with on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            scratch = new_scratch(self._segments, arithmetic.sum, self._cupy)
            stream.synchronize()
        return scratch

    def _find_captured_launch(self, stream: int, arithmetic: Arithmetic) -> Launch:
        """Return a launch with scratch that lives as long as the graph; products on one stream share it."""
        capture, graph = find_capture(stream)
        key = capture, stream, threading.get_ident(), arithmetic
        latest = self._captured
        if latest is not None and latest[0] == key:
            return latest[1]
        scratch = self._allocate_scratch(arithmetic)
        keep(scratch, graph)
        launch = self._new_launch(arithmetic, scratch)
        self._captured = key, launch
        return launch

    def _keep_stream(self, stream: int) -> None:
        """Keep CuPy's object of the current stream; drop those that have ended, and their scratch.

        CUDA may give the handle of a destroyed stream to a new one while work of the old one still runs:
        both would then use the scratch that is kept under that handle.
        """
        held = self._streams
        if len(held) >= MOST_STREAMS:
            for other in held.keys() - {stream, PER_THREAD_STREAM}:  # one handle for a stream of each thread
                if self._has_ended(other):
                    del held[other]
                    for launches in list(self._launches.values()):
                        launches.pop(other, None)
        held[stream] = self._current_stream()

    def _has_ended(self, stream: int) -> bool:
        """Return True if a stream keeps its handle valid, captures nothing and has done its work.

        CuPy's ExternalStream, which CuPy 14 deprecates, does not keep it valid.
        """
        held, without_owner = self._streams, getattr(self._cupy.cuda, "ExternalStream", ())
        return (
            not isinstance(held[stream], without_owner)
            and not self._is_capturing(stream)
            and bool(held[stream].done)
        )

    def refresh(self) -> None:
        """Make later products use values that were written into the plan on CuPy's current stream."""
        with self._here():
            self._settle(self._current_stream().ptr)

    def _settle(self, stream: int) -> None:
        """Keep later products on a stream from reading the plan before the kernels that write it have ended.

        A product may start before the kernel ahead of it has ended, and reads the plan at once. So an empty
        kernel that waits for all kernels before it is launched between the two.
        """
        if self._overlaps:
            if self._settled is None:
                self._settled = Launch(compile_settling(), SETTLE, {}, {}, blocks=1, threads=1, overlaps=True)
            self._settled(stream)

    def wait(self) -> None:
        """Wait for the work of the current stream on the matrix's device."""
        with self._here():
            self._current_stream().synchronize()

    def _here(self) -> AbstractContextManager[Any]:
        """Return a context in which the matrix's device is the current one."""
        return _HERE if self._current_device() == self._number else self._device


def _upload(plan: Plan) -> Plan:
    """Copy a plan to the current GPU: one block of memory, one transfer, done when this returns."""
    import cupy

    arrays = list(arrays_of(plan))
    sizes = [round_up(array.nbytes, ALIGNMENT) for array in arrays]
    starts = np.cumsum([0, *sizes])
    host = np.empty(int(starts[-1]), np.uint8)
    for array, start in zip(arrays, starts, strict=False):
        host[start : start + array.nbytes] = array.ravel().view(np.uint8)
    block = cupy.asarray(host)
    cupy.cuda.get_current_stream().synchronize()
    views = [
        block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
    return with_arrays(plan, iter(views))
