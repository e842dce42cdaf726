"""A GPU: its memory, launches of kernels, and graphs of launches. All arrays are CuPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import WHILE_NODES, LoopGraph, allow_shared
from dasp.runtime.cuda.launch import OVERLAPPING, Kinds, Launch, Signature
from dasp.runtime.cuda.source import Source
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import CupyDevice, DeviceArray, KernelFunction, Stream, Vector

STATIC_SHARED = 10 << 10
"""Bytes of shared memory left for the static arrays of a kernel."""

MOST_PINNED = 1 << 15
"""Most bytes of an array that comes to the host through pinned memory, in half the time of CuPy's copy."""

TURNS_BLIND = 4
"""Turns of a loop between two readings by the host, where graphs have no while nodes."""

BLOCKS_PER_PROCESSOR = 4
"""Most blocks for each multiprocessor in the launch of a grid-stride loop: with 256 threads each they keep it
busy, and more blocks would read the same facts again."""

LOOP_END = Signature(
    "loop.cu",
    "dasp_loop",
    """
    unsigned long long    loop
    const double*         number
    """,
)


class CudaDevice:
    """A GPU with CuPy's arrays.

    Memory is allocated on this GPU, whichever is current. Launches, copies and waits go to CuPy's current
    stream, so this GPU must be the current one for them.

    Parameters
    ----------
    number : int
    """

    def __init__(self, number: int) -> None:
        import cupy

        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        self._ndarray = cupy.ndarray
        self._stream: Callable[[], Stream] = cupy.cuda.get_current_stream

    # ---- properties ------------------------------------------------------------------------------------

    @cached_property
    def _attributes(self) -> dict[str, int]:
        return dict(self._device.attributes)

    @cached_property
    def processors(self) -> int:
        """The number of multiprocessors."""
        return int(self._attributes["MultiProcessorCount"])

    @cached_property
    def shared_words(self) -> int:
        """Words of 4 bytes of dynamic shared memory that a block may have."""
        return (int(self._attributes["MaxSharedMemoryPerBlockOptin"]) - STATIC_SHARED) // 4

    @cached_property
    def _overlaps(self) -> bool:
        return int(self._device.compute_capability) >= OVERLAPPING

    @cached_property
    def _loops(self) -> bool:
        return bool(self._cupy.cuda.runtime.driverGetVersion() >= WHILE_NODES)

    # ---- memory ----------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return a new, uninitialized array."""
        with self._device:
            return self._ndarray(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return a new array of zeros."""
        with self._device:
            return self._cupy.zeros(shape, dtype)

    def asarray(self, array: npt.ArrayLike | DeviceArray, dtype: np.dtype[Any]) -> DeviceArray:
        """Return an array as one of this type on the device."""
        with self._device:
            return self._cupy.asarray(array, dtype)

    def shared_with_host(self, count: int) -> tuple[DeviceArray, Vector]:
        """Return two arrays on the same float64 numbers in host memory: for kernels, and for the host."""
        return shared_with_host(self._device, count, np.float64)

    # ---- copies ----------------------------------------------------------------------------------------

    def upload(self, target: DeviceArray, source: Vector) -> None:
        """Copy an array from the host."""
        target.set(source)

    def download(self, array: DeviceArray) -> Vector:
        """Wait for all launches so far, and return a copy of an array on the host."""
        nbytes = array.nbytes
        if not 0 < nbytes <= MOST_PINNED or not array.flags.c_contiguous:
            return np.asarray(array.get())
        cuda, stream = self._cupy.cuda, self._stream()
        pinned = cuda.alloc_pinned_memory(nbytes)  # from CuPy's pool
        cuda.runtime.memcpyAsync(
            pinned.ptr, array.data.ptr, nbytes, cuda.runtime.memcpyDeviceToHost, stream.ptr
        )
        stream.synchronize()
        numbers = np.frombuffer(pinned, np.uint8, nbytes).copy()
        return np.asarray(numbers.view(array.dtype).reshape(array.shape))

    def read(self, numbers: DeviceArray) -> list[int]:
        """Wait for all launches so far, and return the numbers of a small vector."""
        found: list[int] = self.download(numbers).tolist()
        return found

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Fill an array with the first numbers of another; a copy of a view takes CuPy twice as long."""
        runtime, stream = self._cupy.cuda.runtime, self._stream().ptr
        addresses = target.data.ptr, source.data.ptr
        runtime.memcpyAsync(*addresses, target.nbytes, runtime.memcpyDeviceToDevice, stream)

    # ---- launches --------------------------------------------------------------------------------------

    def address(self, array: DeviceArray) -> int:
        """Return the address of an array."""
        return int(array.data.ptr)

    def begin_loading(self, wanted: Iterable[Source]) -> None:
        """Let helpers load sources; a launch waits for its own."""
        with self._device:
            _source.begin_loading(wanted)

    def prepare_kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Callable[[int | tuple[int, int], int, Mapping[str, Any]], None]:
        """Return a function that launches a compiled kernel.

        It takes the blocks of the grid, along x or along x and y, the threads of a block, and the arguments
        by name: an array, a number, or None (the null pointer) for every parameter. It ignores other names.
        """
        array = self._ndarray
        shared = signature.shared_words
        function = self._load(signature, constants, 4 * self.shared_words if shared else 0)
        launch, names = Launch(function, signature, types, {}, signature.names), signature.names

        def launch_on(blocks: int | tuple[int, int], threads: int, arguments: Mapping[str, Any]) -> None:
            x, y = (blocks, 1) if isinstance(blocks, int) else blocks
            nbytes = 4 * arguments[shared] if shared else 0
            values = (arguments[name] for name in names)
            words = [value.data.ptr if isinstance(value, array) else value or 0 for value in values]
            launch(self._stream().ptr, x, y, threads, nbytes, *words)

        return launch_on

    def prepare_launch(
        self,
        signature: Signature,
        defines: Mapping[str, str],
        arguments: Mapping[str, Any],
        blocks: int,
        threads: int,
        types: Mapping[str, np.dtype[Any]] | None = None,
        varying: Sequence[str] = (),
        *,
        shared_bytes: int = 0,
        together: bool = False,
    ) -> Callable[..., None]:
        """Return a function that launches a kernel, cooperatively with `together`, and may be called again.

        It takes the arrays and numbers of `varying`.
        """
        ready = Launch(
            self._load(signature, defines, shared_bytes),
            signature,
            types or {},
            arguments,
            varying,
            blocks=blocks,
            threads=threads,
            shared_bytes=shared_bytes,
            overlaps=self._overlaps and not together,
            cooperative=together,
        )
        current, array = self._stream, self._ndarray
        if not any(p.is_array for p in signature.parameters if p.name in varying):
            return lambda *values: ready(current().ptr, *values)
        return lambda *values: ready(
            current().ptr, *(value.data.ptr if isinstance(value, array) else value for value in values)
        )

    def _load(self, signature: Signature, constants: Mapping[str, str], shared_bytes: int) -> KernelFunction:
        with self._device:
            kernel = signature.load(constants)
            if shared_bytes:
                allow_shared(kernel, shared_bytes)
        return kernel

    # ---- streams and graphs ----------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for all launches so far."""
        self._stream().synchronize()

    def is_capturing(self) -> bool:
        """Return True if CuPy's current stream is captured in a graph, or was until an error."""
        try:
            return bool(self._cupy.cuda.runtime.streamIsCapturing(self._stream().ptr))
        except RuntimeError:  # CuPy raises it for a capture that an error has ended
            return True

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats all launches of `function` in a graph, and keeps what they use."""
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            stream.begin_capture()
            try:
                function()
            finally:
                graph = stream.end_capture()
        current = self._stream

        def launch(kept: object = function) -> None:
            graph.launch(current())

        return launch

    def repeat(
        self, function: Callable[[], None], numbers: DeviceArray, *, captured: bool
    ) -> Callable[[], None]:
        """Return a function that repeats `function` until the first of the float64 `numbers` is not 0.

        `captured` says that all launches of `function` can be captured in a graph. If graphs have no while
        nodes, a few more turns may follow.
        """
        if not (captured and self._loops):
            many = self.record(in_turn([function], TURNS_BLIND)) if captured else function

            def repeat_from_host() -> None:
                going = True
                while going:
                    many()
                    going = float(numbers[0].get()) == 0

            return repeat_from_host
        ends: list[Callable[..., None]] = []

        def body(handle: int) -> None:
            function()
            ends.append(self.prepare_launch(LOOP_END, {}, {"loop": handle, "number": numbers}, 1, 1))
            ends[0]()

        _source.load(LOOP_END.source, {})
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            graph = LoopGraph(stream.ptr, body)
        current = self._stream

        def launch(kept: object = (function, ends)) -> None:
            graph.launch(current().ptr)

        return launch


class KernelLauncher:
    """A launcher of kernels, which compiles each once for its kinds.

    Parameters
    ----------
    device : CudaDevice
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._kernels: dict[tuple[Signature, Kinds], Callable[..., None]] = {}

    def launch(
        self,
        signature: Signature,
        kinds: Kinds,
        blocks: int | tuple[int, int],
        threads: int = 256,
        /,
        **arguments: DeviceArray | int | None,
    ) -> None:
        """Launch a kernel; arguments are arrays, ints, or None for the null pointer."""
        kernel = self._kernels.get((signature, kinds))
        if kernel is None:
            kernel = self.device.prepare_kernel(signature, kinds.constants, kinds.types)
            self._kernels[signature, kinds] = kernel
        kernel(blocks, threads, arguments)

    def count_blocks(self, count: int, each: int, per_processor: int = BLOCKS_PER_PROCESSOR) -> int:
        """Return how many blocks to launch for a grid-stride loop over an array.

        Parameters
        ----------
        count : int
            Elements of the array.
        each : int
            Elements that a block takes at a time.
        per_processor : int
            Blocks for each multiprocessor, at most.
        """
        return max(min(ceil_div(count, each), per_processor * self.device.processors), 1)


def in_turn(functions: Sequence[Callable[[], None]], times: int | None = None) -> Callable[[], None]:
    """Return a function that makes `times` calls of functions in turn; without `times`, one of each."""
    calls = len(functions) if times is None else times

    def call() -> None:
        for k in range(calls):
            functions[k % len(functions)]()

    return call


def shared_with_host(device: CupyDevice, count: int, dtype: npt.DTypeLike) -> tuple[DeviceArray, Vector]:
    """Return two arrays on the same numbers in host memory: CuPy's for kernels, NumPy's for the host."""
    import cupy

    cuda, nbytes = cupy.cuda, np.dtype(dtype).itemsize * count
    pinned = cuda.alloc_pinned_memory(nbytes)
    memory = cuda.UnownedMemory(pinned.ptr, nbytes, pinned, device.id)
    array = cupy.ndarray(count, dtype, cuda.MemoryPointer(memory, 0))
    return array, np.frombuffer(pinned, dtype, count)


@cache
def device_of_number(number: int) -> CudaDevice:
    """Return the GPU of a number, the same object for each call: it keeps compiled kernels."""
    return CudaDevice(number)
