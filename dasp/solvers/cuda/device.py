"""A GPU as CuPy offers it: arrays, launches and graphs, for solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.driver import allow_shared, driver
from dasp.runtime.cuda.launch import OVERLAPPING, Launch, Signature
from dasp.runtime.cuda.stream import on_stream
from dasp.solvers.cuda.graph import WHILE_NODES, LoopGraph
from dasp.solvers.cuda.protocols import Array
from dasp.solvers.cuda.tape import CODE, SLOTS
from dasp.solvers.scalars import RUNNING

GLANCE = 2048
"""Residuals that are read along with the scalars."""

STAGED = 8 * (SLOTS + GLANCE)
"""Bytes of pinned memory through which scalars come to the host."""

TURNS_BLIND = 4
"""Turns between two readings by the host where graphs have no loops."""

TURN_END = Signature(
    "solve/turn.cu",
    "dasp_turn",
    """
    unsigned long long    loop
    const double*         bank
    """,
)


class CupyDevice:
    """A GPU as CuPy offers it."""

    def __init__(self, number: int) -> None:
        import cupy

        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        self.processors = int(self._device.attributes["MultiProcessorCount"])
        self._overlaps = int(self._device.compute_capability) >= OVERLAPPING
        self._lock = threading.Lock()
        self._kernels: dict[tuple[Any, ...], Any] = {}
        with self._device:
            self._staging = np.frombuffer(cupy.cuda.alloc_pinned_memory(STAGED), np.uint8, STAGED)
        self._loops = cupy.cuda.runtime.driverGetVersion() >= WHILE_NODES

    def zeros(self, count: int, dtype: Any) -> Array:
        """Return a new array of zeros."""
        with self._device:
            return self._cupy.zeros(count, dtype)

    def empty(self, count: int, dtype: Any) -> Array:
        """Return a new array that holds anything."""
        with self._device:
            return self._cupy.empty(count, dtype)

    def shared_with_host(self, count: int) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return float64 numbers in the host's memory, as kernels write them and as the host reads them."""
        return shared_with_host(self._device, count, np.float64)

    def wait(self) -> None:
        """Wait for all that was launched before."""
        self._cupy.cuda.get_current_stream().synchronize()

    def fence(self) -> Callable[[], None]:
        """Return a function that makes the current stream of its call wait for all launches so far.

        Those launches are the ones on the stream that is current now.
        """
        current = self._cupy.cuda.get_current_stream
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(current())
        return lambda: current().wait_event(event)

    def upload(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Copy from the host."""
        target.set(source)

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""
        size = array.nbytes
        if size > self._staging.nbytes or array.ndim != 1 or not array.flags.c_contiguous:
            return np.asarray(array.get())
        with self._lock:
            staged = self._staging[:size].view(array.dtype)
            array.get(out=staged)
            return np.array(staged)

    def asarray(self, array: Any, dtype: np.dtype[Any]) -> Array:
        """Return an array of this type on the device."""
        with self._device:
            return self._cupy.asarray(array, dtype)

    def address(self, array: Array) -> int:
        """Return where an array begins."""
        return int(array.data.ptr)

    def launch(
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
        """Return a launch of a kernel, ready to be made again and again; `together` if it is cooperative."""
        key = signature.source, signature.entry, shared_bytes, *defines.items()
        kernel = self._kernels.get(key)
        if kernel is None:
            with self._device:
                kernel = _source.load(signature.source, defines).get_function(signature.entry)
                if shared_bytes:
                    allow_shared(kernel, shared_bytes)
            self._kernels[key] = kernel
        sizes = {"blocks": blocks, "threads": threads, "shared_bytes": shared_bytes}
        ready = Launch(
            kernel,
            signature,
            types or {},
            arguments,
            varying,
            **sizes,
            overlaps=self._overlaps and not together,
            cooperative=together,
        )
        current, array = self._cupy.cuda.get_current_stream, self._cupy.ndarray
        if not any(p.is_array for p in signature.parameters if p.name in varying):
            return lambda *values: ready(current().ptr, *values)
        return lambda *values: ready(
            current().ptr, *(value.data.ptr if isinstance(value, array) else value for value in values)
        )

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what does again what a function launches."""
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            stream.begin_capture()
            try:
                function()
            finally:
                graph = stream.end_capture()
        current = self._cupy.cuda.get_current_stream

        def launch(
            kept: Any = function,
        ) -> None:  # the graph reads and writes what the function launches with
            graph.launch(current())

        return launch

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0."""
        if not (captured and self._loops):
            many = self.record(in_turn([function], TURNS_BLIND)) if captured else function
            return lambda: self._ask(many, bank)
        ends: list[Any] = []

        def body(handle: int) -> None:
            function()
            ends.append(self.launch(TURN_END, {}, {"loop": handle, "bank": bank}, 1, 1))
            ends[0]()

        _source.load(TURN_END.source, {})
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            graph = LoopGraph(driver(), stream.ptr, body)
        current = self._cupy.cuda.get_current_stream

        def launch(kept: Any = (function, ends)) -> None:
            graph.launch(current().ptr)

        return launch

    def _ask(self, function: Callable[[], None], bank: Array) -> None:
        going = True
        while going:
            function()
            going = float(bank[CODE].get()) == RUNNING


def shared_with_host(device: Any, count: int, dtype: Any) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return numbers in the host's memory, as kernels of a device of CuPy see them and as the host does."""
    import cupy

    cuda, nbytes = cupy.cuda, np.dtype(dtype).itemsize * count
    pinned = cuda.alloc_pinned_memory(nbytes)
    memory = cuda.UnownedMemory(pinned.ptr, nbytes, pinned, device.id)
    array = cupy.ndarray(count, dtype, cuda.MemoryPointer(memory, 0))
    return array, np.frombuffer(pinned, dtype, count)


@cache
def device_of_number(number: int) -> CupyDevice:
    """Return a GPU, the same one whenever it is asked for: it keeps what was compiled."""
    return CupyDevice(number)


def in_turn(functions: Sequence[Callable[[], None]], times: int | None = None) -> Callable[[], None]:
    """Return what calls functions one after the other, round and round, so many times in all."""
    calls = len(functions) if times is None else times

    def call() -> None:
        for k in range(calls):
            functions[k % len(functions)]()

    return call
