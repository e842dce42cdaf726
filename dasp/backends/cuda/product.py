"""A plan on an NVIDIA GPU: one launch for each product by a vector."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np

from dasp import _source
from dasp._arrays import is_cupy
from dasp._dtypes import C_NAMES, arithmetic
from dasp._launch import Launch
from dasp.backends.cuda import published, sliced
from dasp.backends.cuda.scratch import Scratch, captured_in, keep, new_scratch
from dasp.formats.array import WARP, Plan, arrays_of, with_arrays
from dasp.formats.published.pattern import NAME as PUBLISHED
from dasp.formats.sliced.pattern import NAME as SLICES

KERNELS: dict[str, Any] = {SLICES: sliced, PUBLISHED: published}
"""What multiplies a plan of each format: a module with the functions of `sliced`."""

VARYING = "x", "y", "alpha", "beta"
"""Arguments that come with each product."""

OVERLAPPING, OVERLAPPING_DRIVER = 90, 12_030
"""Compute capability, and CUDA version of the driver, from which the start of a product may overlap the end
of the kernel before it, in a captured graph too."""

ALIGNMENT = 256
"""Bytes to which each array of a plan is aligned in the plan's one block of device memory."""

PER_THREAD_STREAM = 2
"""CUDA's handle of the default stream that every host thread has of its own."""


class Product:
    """A plan, ready to be multiplied by vectors on one GPU.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays, which are copied to the GPU in one block, or with CuPy's there.
    device : str
        `cuda:N`.

    Raises
    ------
    RuntimeError
        If the plan wants float64 tensor cores and the GPU has none.
    """

    def __init__(self, plan: Plan, device: str) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(number(device))
        capability = int(self._device.compute_capability)
        if defines(plan, plan.dtype)["DASP_MMA"] == "1" and capability < 80:
            raise RuntimeError(
                f"this GPU is sm_{capability}; float64 tensor cores need sm_80; pass Policy(mma=False)"
            )
        with self._device:
            self.plan = plan if is_cupy(next(arrays_of(plan))) else _upload(plan)
            _compiled(plan, plan.dtype)
        self._blocks, self._threads = blocks(plan), kernel_of(plan).threads(plan)
        self._segments = kernel_of(plan).partials(plan)
        driver = cupy.cuda.runtime.driverGetVersion()
        self._overlaps = capability >= OVERLAPPING and driver >= OVERLAPPING_DRIVER
        self._lock = threading.Lock()
        self._launches: dict[np.dtype[Any], dict[Any, Launch]] = defaultdict(dict)
        self._own = self._launches[plan.dtype]
        self._captured: tuple[Any, Launch] | None = None
        # What `quick` needs, looked up once.
        self._number, self._dtype = self._device.id, np.dtype(plan.dtype.type)
        self._m, self._n = plan.shape
        self._strides = (self._dtype.itemsize,)
        self._several = cupy.cuda.runtime.getDeviceCount() > 1
        self._ndarray = cupy.ndarray
        self._current_device = cupy.cuda.runtime.getDevice
        self._current_stream = cupy.cuda.get_current_stream
        self._is_capturing = cupy.cuda.runtime.streamIsCapturing

    def quick(self, x: Any, out: Any = None) -> Any | None:
        """Return A x, in `out` if that is given, if nothing has to be converted or refused; else None.

        Few instructions, because the kernels of many matrices take no longer than what the host does here.
        """
        if (
            type(x) is not self._ndarray
            or x.dtype is not self._dtype
            or x.size != self._n
            or x.strides != self._strides  # so it has one dimension
            or (self._several and not self._is_here(x))
        ):
            return None
        start = x.data.ptr
        if out is None:
            out = self._ndarray((self._m,), self._dtype.char)
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
            if start < result + out.nbytes and result < start + x.nbytes:
                return None
        if self._blocks:
            stream = self._current_stream().ptr
            launch = self._own.get(stream if self._segments else 0)
            if launch is None or (self._segments and self._is_capturing(stream)):
                launch = self._launch_on(stream, self._dtype)
            launch(stream, start, result, 1.0, 0.0)
        return out

    def _is_here(self, vector: Any) -> bool:
        """Whether a vector lies on the matrix's device, and that is the current one."""
        return bool(vector.data.device_id == self._number == self._current_device())

    def multiply(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        """Set y = alpha A x + beta y on CuPy's current stream, column by column; y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n,) or (n, k)
            Any real type that y's type holds.
        y : cupy.ndarray, shape (m,) or (m, k), float32 or float64
            Not overlapping x.
        alpha, beta : float
        """
        if x.ndim == 2:
            for k in range(x.shape[1]):
                self.multiply(x[:, k], y[:, k], alpha, beta)
            return
        with self._device:
            vector = self._cupy.ascontiguousarray(x, y.dtype)
            result = self._cupy.ascontiguousarray(y)
            self._launch(vector.data.ptr, result.data.ptr, y.dtype, alpha, beta)
            if result is not y:
                self._cupy.copyto(y, result)

    def _launch(self, x: int, y: int, dtype: np.dtype[Any], alpha: float, beta: float) -> None:
        """Launch on CuPy's current stream of the current device, which is the matrix's."""
        if self._blocks:
            stream = self._current_stream().ptr
            scale = dtype.type  # what a float32 cannot hold is infinite, as on the CPU
            self._launch_on(stream, dtype)(stream, x, y, scale(alpha), scale(beta))

    def _launch_on(self, stream: int, dtype: np.dtype[Any]) -> Launch:
        """Return a launch with scratch that nothing running at the time shares."""
        place: Any = 0
        if self._segments:
            if self._is_capturing(stream):
                return self._captured_launch(stream, dtype)
            place = (stream, threading.get_ident()) if stream == PER_THREAD_STREAM else stream
        launches = self._launches[dtype]
        if place not in launches:
            with self._lock:
                if place not in launches:
                    launches[place] = self._new_launch(dtype, self._scratch(dtype))
        return launches[place]

    def _captured_launch(self, stream: int, dtype: np.dtype[Any]) -> Launch:
        """Return a launch with scratch that ends with the graph; products captured on one stream share it."""
        number, graph = captured_in(stream)
        key = number, stream, threading.get_ident(), dtype
        latest = self._captured
        if latest is not None and latest[0] == key:
            return latest[1]
        scratch = self._scratch(dtype)
        keep(scratch, graph)
        launch = self._new_launch(dtype, scratch)
        self._captured = key, launch
        return launch

    def _scratch(self, dtype: np.dtype[Any]) -> Scratch:
        """Return new scratch; it is filled when this returns, and in no graph."""
        with self._cupy.cuda.Stream(non_blocking=True) as stream:
            scratch = new_scratch(self._segments, arithmetic(self.plan.dtype, dtype).sum, self._cupy)
            stream.synchronize()
        return scratch

    def _new_launch(self, dtype: np.dtype[Any], scratch: Scratch) -> Launch:
        kernel = kernel_of(self.plan)
        return Launch(
            _compiled(self.plan, dtype),
            kernel.SIGNATURE,
            types(self.plan, dtype),
            kernel.arguments(self.plan, scratch),
            VARYING,
            blocks=self._blocks,
            threads=self._threads,
            overlaps=self._overlaps,
        )


def kernel_of(plan: Plan) -> Any:
    """Return the module of the format's kernel.

    Raises
    ------
    RuntimeError
        If GPUs have no product for the plan's format.
    """
    if plan.format not in KERNELS:
        raise RuntimeError(f"the plan has format {plan.format!r}; GPUs multiply {', '.join(KERNELS)}")
    return KERNELS[plan.format]


def defines(plan: Plan, y: np.dtype[Any]) -> dict[str, str]:
    """Return the compile-time constants of the kernel for a plan and the type of y."""
    kernel = kernel_of(plan)
    constants: dict[str, str] = kernel.defines(plan)
    kinds = arithmetic(plan.dtype, y)
    if kinds.sum != np.float64:
        constants["DASP_MMA"] = "0"
    return constants | {
        "DASP_VALUE": C_NAMES[kinds.value],
        "DASP_X": C_NAMES[kinds.x],
        "DASP_SUM": C_NAMES[kinds.sum],
        "DASP_Y": C_NAMES[kinds.y],
        "DASP_THREADS": str(kernel.threads(plan)),
        "DASP_TICKETS": str(int(kernel.partials(plan) > 0)),
    }


def types(plan: Plan, y: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return what the kernel's own names of types stand for."""
    known: dict[str, np.dtype[Any]] = kernel_of(plan).types(plan)
    kinds = arithmetic(plan.dtype, y)
    known |= {"Value": kinds.value, "X": kinds.x, "Sum": kinds.sum, "Y": kinds.y}
    return known | {"Bits": np.dtype(f"u{kinds.sum.itemsize}")}


def blocks(plan: Plan) -> int:
    """Return the blocks of a launch."""
    kernel = kernel_of(plan)
    return int(-(-kernel.warps(plan) * WARP // kernel.threads(plan)))


def _compiled(plan: Plan, y: np.dtype[Any]) -> Any:
    signature = kernel_of(plan).SIGNATURE
    return _source.load(signature.source, defines(plan, y)).get_function(signature.entry)


def number(device: str) -> int:
    """Return N of `cuda:N`."""
    return int(device.partition(":")[2])


def _upload(plan: Plan) -> Plan:
    """Copy a plan to the current GPU: one block of memory, one transfer, done when this returns."""
    import cupy

    arrays = list(arrays_of(plan))
    sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
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
    uploaded: Plan = with_arrays(plan, iter(views))
    return uploaded
