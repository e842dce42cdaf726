"""A plan on an NVIDIA GPU: one launch for each product by a vector."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from dasp import _source
from dasp._arrays import is_cupy
from dasp._dtypes import C_NAMES
from dasp._launch import Launch
from dasp.backends.cuda import published, sliced
from dasp.formats.array import WARP, Plan, arrays_of, with_arrays
from dasp.formats.published.pattern import NAME as PUBLISHED
from dasp.formats.sliced.pattern import NAME as SLICES

KERNELS: dict[str, Any] = {SLICES: sliced, PUBLISHED: published}
"""What multiplies a plan of each format: a module with the functions of `sliced`."""

VARYING = "x", "y", "alpha", "beta"
"""Arguments that come with each product."""

ABSENT = {np.dtype(np.float32): np.uint32(0x7FA0DA5F), np.dtype(np.float64): np.uint64(0x7FF4DA5F00000000)}
"""Bits of a partial sum that is not there yet, by the type of y; the same as in kernels/spmv/partial.cuh."""

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
            self.plan = plan if all(map(is_cupy, arrays_of(plan))) else _upload(plan)
            _compiled(plan, plan.dtype)
        self._blocks, self._threads = blocks(plan), kernel_of(plan).threads(plan)
        self._partials = kernel_of(plan).partials(plan)
        driver = cupy.cuda.runtime.driverGetVersion()
        self._overlaps = capability >= OVERLAPPING and driver >= OVERLAPPING_DRIVER
        self._lock = threading.Lock()
        self._captured: list[Launch] = []
        self._launches: dict[Any, Launch] = {}
        self._x_shape, self._m, self._dtype = (plan.shape[1],), plan.shape[0], plan.dtype

    def quick(self, x: Any, out: Any = None) -> Any | None:
        """Return A x if x is the plainest of vectors and no `out` is given, else None."""
        if (
            out is not None
            or type(x) is not self._cupy.ndarray
            or x.dtype != self._dtype
            or x.shape != self._x_shape
        ):
            return None
        if not x.flags.c_contiguous or x.device != self._device or not x.data.ptr:
            return None
        with self._device:
            y = self._cupy.empty(self._m, self._dtype)
            self._launch(x, y, 1.0, 0.0)
        return y

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
            self._launch(vector, result, alpha, beta)
            if result is not y:
                y[...] = result

    def _launch(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        if self._blocks:
            stream = self._cupy.cuda.get_current_stream().ptr
            self._launch_on(stream, y.dtype)(stream, x.data.ptr, y.data.ptr, alpha, beta)

    def _launch_on(self, stream: int, dtype: np.dtype[Any]) -> Launch:
        """Return a launch with partial sums that nothing running at the time shares.

        Products of one stream follow each other, so a stream has its own. So has a captured product, for as
        long as the matrix lives, because its graph may run on any stream.
        """
        key: Any = dtype
        if self._partials:
            if self._cupy.cuda.runtime.streamIsCapturing(stream):
                launch = self._new_launch(dtype)
                self._captured.append(launch)
                return launch
            key = dtype, stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0
        if key not in self._launches:
            with self._lock:
                if key not in self._launches:
                    self._launches[key] = self._new_launch(dtype)
        return self._launches[key]

    def _new_launch(self, dtype: np.dtype[Any]) -> Launch:
        """Return a launch with new partial sums; they are filled when this returns, and in no graph."""
        kernel = kernel_of(self.plan)
        with self._cupy.cuda.Stream(non_blocking=True) as stream:
            scratch = self._cupy.asarray(np.full(self._partials, ABSENT[dtype]))
            stream.synchronize()
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


def defines(plan: Plan, scalar: np.dtype[Any]) -> dict[str, str]:
    """Return the compile-time constants of the kernel for a plan and the type of x and y."""
    kernel = kernel_of(plan)
    constants: dict[str, str] = kernel.defines(plan)
    if scalar != np.float64:
        constants["DASP_MMA"] = "0"
    return constants | {
        "DASP_VALUE": C_NAMES[plan.dtype.name],
        "DASP_SCALAR": C_NAMES[scalar.name],
        "DASP_THREADS": str(kernel.threads(plan)),
    }


def types(plan: Plan, scalar: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return what the kernel's own names of types stand for."""
    known: dict[str, np.dtype[Any]] = kernel_of(plan).types(plan)
    return known | {"Value": plan.dtype, "Scalar": scalar, "Bits": np.dtype(f"u{scalar.itemsize}")}


def blocks(plan: Plan) -> int:
    """Return the blocks of a launch."""
    kernel = kernel_of(plan)
    return int(-(-kernel.warps(plan) * WARP // kernel.threads(plan)))


def _compiled(plan: Plan, scalar: np.dtype[Any]) -> Any:
    signature = kernel_of(plan).SIGNATURE
    return _source.load(signature.source, defines(plan, scalar)).get_function(signature.entry)


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
