"""The plan on an NVIDIA GPU: one launch for each product.

Where is a row multiplied? In a slice: kernels/spmv/slices.cu. In the published format, by its length:
kernels/spmv/long.cuh, medium.cuh or short.cuh, all launched by product.cu. CuPy is imported when a GPU is
first asked for.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np

from dasp import _check, _source
from dasp.backends.cuda import signatures
from dasp.backends.cuda.launch import Launch, Signature
from dasp.plan import ONE_WAVE, WARP, Plan, arrays_of, plain_values, with_arrays

SLICES = "spmv/slices.cu", "dasp_slices"
PUBLISHED = "spmv/product.cu", "dasp_spmv"
"""Source file and entry point of the kernel of each layout."""

VARYING = "x", "y", "alpha", "beta"
"""Arguments that come with each product."""

THREADS, SHORT_THREADS = 128, 256
"""Threads of a block of the published format, and where most rows are short: those warps end soon."""

ABSENT = {np.dtype(np.float32): np.uint32(0x7FA0DA5F), np.dtype(np.float64): np.uint64(0x7FF4DA5F00000000)}
"""Bits of a partial sum that is not there yet, by the type of y; the same as in kernels/spmv/partial.cuh."""

IN_FLIGHT, FEW_IN_FLIGHT, FEW_STEPS = 8, 4, 7.5
"""Steps of a slice whose loads are in flight at once, as a rule and where slices take turns and have at most
`FEW_STEPS` on average: with fewer registers more warps run. Measured on an H200."""

OVERLAPPING, OVERLAPPING_DRIVER = 90, 12_030
"""Compute capability, and CUDA version of the driver, from which the start of a product may overlap the end
of the kernel before it, in a captured graph too."""

ALIGNMENT = 256
"""Bytes to which each array of a plan is aligned in the plan's one block of device memory."""

C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}

PER_THREAD_STREAM = 2
"""CUDA's handle of the default stream that every host thread has of its own."""


@cache
def available() -> tuple[bool, str]:
    """Return whether a GPU works, and the reason in words."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            return False, "CuPy is not installed; pip install 'dasp-spmv[cuda13]' (or cuda12)"
        return False, f"CuPy cannot be imported: {error}"
    except OSError as error:
        return False, f"CuPy cannot be imported: {error}; set CUPY_CACHE_DIR to a folder that can be written"
    except Exception as error:
        return False, f"CuPy cannot be imported: {type(error).__name__}: {error}"
    version = getattr(cupy, "__version__", "of no version")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        cupy.zeros(1).get()
    except Exception as error:  # whatever the driver says, the CPU still works
        return False, f"CuPy {version} finds no working GPU: {error}"
    return True, f"CuPy {version}, {count} x {name}"


def resolve(device: str) -> str | None:
    """Return `auto`, `cuda` or `cuda:N` as `cuda:N`; None if `auto` finds no GPU.

    Raises
    ------
    RuntimeError
        If a GPU was asked for by name and none works.
    ValueError
        If there is no GPU of that number.
    """
    works, reason = available()
    if not works:
        if device == "auto":
            return None
        raise RuntimeError(f"device is {device!r}; a working GPU is needed; {reason}")
    import cupy

    number = device.partition(":")[2]
    count = cupy.cuda.runtime.getDeviceCount()
    if number and int(number) >= count:
        raise ValueError(f"device is {device!r}; this machine has {count} GPUs, numbered from 0")
    return f"cuda:{int(number) if number else cupy.cuda.Device().id}"


def as_operand(x: Any, device: str) -> Any:
    """Return x as a CuPy array.

    Raises
    ------
    TypeError
        If x is not an array on the GPU that `device` names: nothing is copied behind the caller's back.
    """
    import cupy

    if not isinstance(x, cupy.ndarray):
        if not hasattr(x, "__cuda_array_interface__"):
            raise TypeError(
                f"x is a {type(x).__module__}.{type(x).__name__} and A is on {device}; "
                "a cupy.ndarray is needed; pass cupy.asarray(x) or use A.to_device('cpu')"
            )
        x = cupy.asarray(x)
    if x.device.id != _number(device):
        raise TypeError(f"x is on cuda:{x.device.id} and A is on {device}; both must be on one GPU")
    return x


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> Any:
    """Return a new array for a result, columns contiguous."""
    import cupy

    with cupy.cuda.Device(_number(device)):
        return cupy.empty(shape, dtype, order="F")


def check_out(out: Any, x: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> None:
    """Hold that `out` is a CuPy array for this result that does not overlap x.

    Raises
    ------
    TypeError, ValueError
    """
    import cupy

    if not isinstance(out, cupy.ndarray) or out.device.id != _number(device):
        raise TypeError(f"out is a {type(out).__name__} and A is on {device}; a cupy.ndarray there is needed")
    _check.out(out, shape, dtype)
    if cupy.may_share_memory(out, x):
        raise ValueError("out overlaps x; pass another array")


def to_host(plan: Plan) -> Plan:
    """Return the plan with NumPy arrays."""

    def download(array: Any) -> Any:
        copy = array.get()
        copy.flags.writeable = False
        return copy

    downloaded: Plan = with_arrays(plan, map(download, arrays_of(plan)))
    return downloaded


def linear_operator(matrix: Any) -> Any:
    """Return a CuPy LinearOperator that multiplies by `matrix`."""
    from cupyx.scipy.sparse.linalg import LinearOperator

    return LinearOperator(matrix.shape, matrix.matvec, matmat=matrix.matvec, dtype=matrix.dtype)


class Product:
    """A plan, ready to be multiplied by vectors on one GPU.

    Parameters
    ----------
    plan : Plan
        With NumPy arrays; they are copied to the GPU in one block.
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
        self._device = cupy.cuda.Device(_number(device))
        capability = int(self._device.compute_capability)
        if plan.mma and plan.dtype == np.float64 and capability < 80:
            raise RuntimeError(
                f"this GPU is sm_{capability}; float64 tensor cores need sm_80; pass Policy(mma=False)"
            )
        with self._device:
            self.plan = _upload(plan)
            _kernel(plan, plan.dtype)
        self._threads = threads(plan)
        self._blocks = -(-warps(plan) * WARP // self._threads)
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

    def __call__(self, x: Any, y: Any, alpha: float, beta: float) -> None:
        """Set y = alpha A x + beta y on CuPy's current stream; y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n,)
            Any real type that y's type holds.
        y : cupy.ndarray, shape (m,), float32 or float64
            Not overlapping x.
        alpha, beta : float
        """
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
        if partials(self.plan):
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
        kernel = _kernel(self.plan, dtype)
        with self._cupy.cuda.Stream(non_blocking=True) as stream:
            scratch = self._cupy.asarray(np.full(partials(self.plan), ABSENT[dtype]))
            stream.synchronize()
        return Launch(
            kernel,
            signature(self.plan),
            types(self.plan, dtype),
            arguments(self.plan, scratch),
            VARYING,
            blocks=self._blocks,
            threads=self._threads,
            overlaps=self._overlaps,
        )


def source(plan: Plan) -> tuple[str, str]:
    """Return the source file and the entry point of the kernel that multiplies a plan."""
    return SLICES if len(plan.slices.headers) else PUBLISHED


def defines(plan: Plan, scalar: np.dtype[Any]) -> dict[str, str]:
    """Return the compile-time constants of the kernel for a plan and the type of x and y."""
    constants = {
        "DASP_VALUE": C_TYPES[plan.dtype.name],
        "DASP_SCALAR": C_TYPES[scalar.name],
        "DASP_INDEX": C_TYPES[plan.index_dtype.name],
        "DASP_OFFSET": C_TYPES[plan.offset_dtype.name],
        "DASP_MMA": "1" if plan.mma and scalar == np.float64 else "0",
        "DASP_THREADS": str(threads(plan)),
    }
    if source(plan) == SLICES:
        constants["DASP_CODING"] = str(int(plan.slices.coding))
        constants["DASP_IN_FLIGHT"] = str(in_flight(plan))
    return constants


def warps(plan: Plan) -> int:
    """Return how many warps a product of the plan needs."""
    if source(plan) == SLICES:
        return len(plan.slices.headers)
    medium, short = plan.medium, plan.short
    return (
        len(plan.long.segment_rows)
        + -(-(len(medium.regular.offsets) - 1) // medium.blocks_per_warp)
        + -(-(short.pairs_13 + short.pairs_22) // WARP)
        + -(-short.fours // (2 * WARP))
        + -(-short.singles // (2 * WARP))
        + -(-len(plan.empty_rows) // WARP)
    )


def threads(plan: Plan) -> int:
    """Return the threads of a block."""
    if source(plan) == SLICES:
        return WARP * plan.slices.warps_per_block
    return SHORT_THREADS if 2 * len(plan.short.rows) > plan.shape[0] else THREADS


def in_flight(plan: Plan) -> int:
    """Return how many steps of a slice a warp loads before it multiplies the first."""
    slices, steps = len(plan.slices.headers), len(plan.slices.bases)
    return FEW_IN_FLIGHT if slices > ONE_WAVE and steps <= FEW_STEPS * slices else IN_FLIGHT


def partials(plan: Plan) -> int:
    """Return how many partial sums a product of the plan needs."""
    return plan.slices.segments if source(plan) == SLICES else len(plan.long.segment_rows)


def signature(plan: Plan) -> Signature:
    """Return what the kernel that multiplies a plan takes."""
    return signatures.SLICED if source(plan) == SLICES else signatures.PUBLISHED


def types(plan: Plan, scalar: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return what the kernel's own names of types stand for."""
    known = {"Index": plan.index_dtype, "Offset": plan.offset_dtype, "Value": plan.dtype, "Scalar": scalar}
    return known | {"Bits": np.dtype(f"u{scalar.itemsize}"), "Code": plain_values(plan.slices).dtype}


def arguments(plan: Plan, scratch: Any) -> dict[str, Any]:
    """Return the kernel's arguments but `VARYING`; `scratch` is all `ABSENT` before and after a product."""
    values = (
        _slice_arguments(plan, scratch) if source(plan) == SLICES else _published_arguments(plan, scratch)
    )
    names = [parameter.name for parameter in signature(plan).parameters]
    return dict(zip(names, values, strict=False))


def _slice_arguments(plan: Plan, scratch: Any) -> list[Any]:
    part = plan.slices
    return [
        part.headers,
        part.bases,
        part.deltas,
        plain_values(part),
        part.table,
        part.rows,
        part.long_rows,
        part.segment_offsets,
        part.segment_rows,
        scratch,
        np.int64(len(part.headers)),
        np.int64(part.segments),
        np.int64(part.positions),
        np.int32(len(part.rows) == 0),
    ]


def _published_arguments(plan: Plan, scratch: Any) -> list[Any]:
    long, medium, short = plan.long, plan.medium, plan.short
    regular, irregular = medium.regular, medium.irregular
    return [
        long.rows,
        long.offsets,
        long.segment_offsets,
        long.segment_rows,
        long.columns,
        long.values,
        scratch,
        np.int32(long.segment),
        np.int64(len(long.segment_rows)),
        medium.rows,
        regular.offsets,
        regular.columns,
        regular.values,
        irregular.offsets,
        irregular.columns,
        irregular.values,
        np.int64(len(regular.offsets) - 1),
        np.int32(medium.blocks_per_warp),
        short.rows,
        short.columns,
        short.values,
        np.int64(short.pairs_13),
        np.int64(short.pairs_22),
        np.int64(short.fours),
        np.int64(short.singles),
        plan.empty_rows,
        np.int64(len(plan.empty_rows)),
    ]


def _kernel(plan: Plan, scalar: np.dtype[Any]) -> Any:
    file, entry = source(plan)
    return _source.load(file, defines(plan, scalar)).get_function(entry)


def _number(device: str) -> int:
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
