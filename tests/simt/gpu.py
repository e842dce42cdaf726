"""A simulated GPU: CuPy's own arrays over the host's memory, and a driver that launches into the emulator.

dasp's work around its kernels (checks, launches, streams, captures, scratch) runs as on a GPU, but in order
and at once. Until a test ends, `attach` puts a stand-in for CuPy into `sys.modules`.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import weakref
from contextlib import nullcontext
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from dasp.formats import kernel_cuda
from dasp.formats import product_cuda as product
from dasp.formats.plan import arrays_of
from dasp.formats.sell.cuda import columns, row_blocks
from dasp.formats.sell.cuda import product as sell
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.runtime.cuda import driver as _driver
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda import launch as _launch
from tests.simt import compile_kernels
from tests.support.pack_device import PackingDevice

ALIGNMENT = 256
"""Bytes to which CUDA aligns memory at least."""

FIRST_STREAM, NEXT_STREAM = 7, 0x100
"""Handles of the first current stream, and of each new one: CUDA reuses the handle of a stream that ended."""


class Gpu:
    """One device, its memory, its driver and its streams.

    Attributes
    ----------
    stream : int
        Handle of the current stream.
    graphs : dict
        The graph of each stream that is capturing: a number and a handle. Captured launches run at once.
    resident_blocks : int
        Blocks of any kernel that its only multiprocessor holds.
    taken : dict
        The stream on which memory was taken, by its address; later work on that stream may reuse it.
    launches : list of (stream, kernel, scratch)
        The launches so far; the address of the partial sums tells launches with their own scratch apart.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.stream, self.device = FIRST_STREAM, 0
        self.entered: list[int] = []  # streams of the `with`s around
        self.resident_blocks = 3
        self.graphs: dict[int, tuple[int, int]] = {}
        self.launches: list[tuple[int, str, int]] = []
        self.destructors: dict[int, list[tuple[int, int]]] = {}
        self._objects: dict[int, tuple[int, int]] = {}
        self._memory: dict[int, tuple[np.ndarray[Any, Any], weakref.ref[_Held]]] = {}
        self._nbytes: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self._kernels: dict[int, Any] = {}
        self._handles = itertools.count(1)

    # ---- memory ----

    def allocate(self, size: int) -> Any:
        """Return memory for CuPy's arrays, which no other array gets, even after it was given back."""
        memory, held = self._cupy.cuda.memory, _Held()
        room = np.full(size + ALIGNMENT, 0xA5, np.uint8)
        skip = -room.ctypes.data % ALIGNMENT
        self._memory[room.ctypes.data + skip] = room[skip : skip + size], weakref.ref(held)
        self.taken[room.ctypes.data + skip] = self.stream
        owned = memory.UnownedMemory(room.ctypes.data + skip, max(size, 1), held, self.device)
        return memory.MemoryPointer(owned, 0)

    def apart(self, arrays: Any) -> None:
        """Let a kernel that gets one of several arrays in one piece of memory see that array alone."""
        self._nbytes |= {array.data.ptr: array.nbytes for array in arrays if array.nbytes}

    def given_back(self) -> list[int]:
        """Return the streams on which the memory was taken that no array holds any more."""
        return [self.taken[start] for start, (_, held) in self._memory.items() if held() is None]

    def put(self, array: Any) -> Any:
        """Return a copy of a NumPy array as a CuPy array."""
        array = np.asarray(array)
        made = self._cupy.ndarray(array.shape, array.dtype, self.allocate(array.nbytes))
        self.get(made)[...] = array
        return made

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the memory of a CuPy array as a NumPy array."""
        start = self._start(array.data.ptr)
        place, _ = self._memory[start]
        return (
            np.ndarray(array.shape, array.dtype, place.data, array.data.ptr - start, array.strides)
            if array.size
            else np.empty(array.shape, array.dtype)
        )

    def _start(self, address: int) -> int:
        return max(start for start in self._memory if start <= address)

    # ---- CuPy ----

    def attach(self, monkeypatch: Any) -> None:
        """Replace CuPy and the driver until the test ends."""
        real = self._cupy
        monkeypatch.setattr(gpus, "try_gpu", lambda: (True, "a stand-in"))
        monkeypatch.setattr(product, "begin_loading", lambda wanted: None)
        monkeypatch.setattr(product, "compile_product", self._compile)
        monkeypatch.setattr(sell, "compile_product", self._compile)
        monkeypatch.setattr(product, "_upload", partial(self._in_one_block, product._upload, arrays_of))
        monkeypatch.setattr(product, "new_scratch", partial(self._in_one_block, product.new_scratch, list))
        settling = partial(self._kernel, kernel_cuda.SETTLE, {}, {})
        monkeypatch.setattr(product, "compile_settling", settling)
        monkeypatch.setattr(columns, "compile_block", self._compile_block)
        monkeypatch.setattr(sell, "compile_diagonal", self._compile_diagonal)
        monkeypatch.setattr(columns, "compile_transpose", self._compile_transposing)
        monkeypatch.setattr(columns, "on_host", self.get)
        monkeypatch.setattr(columns, "zero_row", cache(columns.zero_row.__wrapped__))
        monkeypatch.setattr(row_blocks, "find_primitives", lambda number: CudaPrimitives(_Packing(self)))
        for module in (_driver, _launch):
            monkeypatch.setattr(module, "driver", lambda: self)
        runtime = SimpleNamespace(
            getDevice=lambda: self.device,
            getDeviceCount=lambda: 1,
            driverGetVersion=lambda: 13_000,
            deviceGetAttribute=lambda attribute, number: 1,
            streamIsCapturing=lambda stream: stream in self.graphs,
        )
        count_blocks = SimpleNamespace(
            occupancyMaxActiveBlocksPerMultiprocessor=lambda kernel, threads, nbytes: self.resident_blocks
        )
        cuda = SimpleNamespace(
            driver=count_blocks,
            memory=real.cuda.memory,
            using_allocator=lambda allocator: nullcontext(),
            alloc=self.allocate,
            get_allocator=real.cuda.get_allocator,
            ExternalStream=SimpleNamespace,
            malloc_async=None,
            runtime=runtime,
            Device=lambda number=0: _Context(id=number, compute_capability="90"),
            Stream=lambda non_blocking: _Stream(self, NEXT_STREAM),
            get_current_stream=lambda: _Stream(self, self.stream),
        )
        stand_in = SimpleNamespace(
            ndarray=real.ndarray,
            may_share_memory=real.may_share_memory,
            get_default_memory_pool=lambda: SimpleNamespace(malloc=None),
            cuda=cuda,
            asarray=self.put,
            ascontiguousarray=self._contiguous,
            copyto=lambda to, array: self.get(to).__setitem__(..., self.get(array)),
            empty=real.empty,
            zeros=lambda count, dtype: self.put(np.zeros(count, dtype)),
            __version__=real.__version__,
        )
        monkeypatch.setitem(sys.modules, "cupy", stand_in)

    def _in_one_block(self, function: Any, arrays: Any, *given: Any) -> Any:
        made = function(*given)
        self.apart(arrays(made))
        return made

    def _contiguous(self, array: Any, dtype: Any = None) -> Any:
        if array.flags.c_contiguous and (dtype is None or dtype == array.dtype):
            return array
        return self.put(np.ascontiguousarray(self.get(array), dtype))

    def _compile(
        self, kernel: Any, plan: Any, kinds: Any, signature: Any = None, more: Any = MappingProxyType({})
    ) -> Any:
        constants = {**kernel_cuda.define_constants(kernel, plan, kinds), **more}
        return self._kernel(
            signature or kernel.SIGNATURE, constants, kernel_cuda.find_types(kernel, plan, kinds)
        )

    def _compile_diagonal(self, plan: Any, kinds: Any) -> Any:
        return self._kernel(sell.DIAGONAL, sell.define_diagonal(plan, kinds), columns.find_types(plan, kinds))

    def _compile_block(self, signature: Any, plan: Any, kinds: Any, block: Any) -> Any:
        if signature is not row_blocks.SIGNATURE and block.share == 1:
            block = block._replace(steps=4)  # any number of steps gives the same bits
        return self._kernel(
            signature, columns.define_constants(plan, kinds, block), columns.find_types(plan, kinds)
        )

    def _compile_transposing(self, item: int, width: int, to_rows: bool) -> Any:
        constants = {"DASP_BYTES": str(item), "DASP_COLUMNS": str(width), "DASP_TO_ROWS": str(int(to_rows))}
        return self._kernel(columns.TRANSPOSE, constants, {"Word": columns.word(item)})

    def _kernel(self, signature: Any, constants: dict[str, str], types: Any) -> Any:
        handle = next(self._handles)
        self._kernels[handle] = compile_kernels(signature.source, constants), signature, types
        return SimpleNamespace(ptr=handle)

    # ---- the driver ----

    def cuLaunchKernelEx(self, config: Any, kernel: Any, parameters: Any, extra: Any) -> int:
        config, (module, signature, types) = config._obj, self._kernels[kernel.value]
        laid = signature.block(types).fields
        kinds = {"Q": ctypes.c_uint64, "q": ctypes.c_int64, "i": ctypes.c_int32, "I": ctypes.c_uint32}
        kinds |= {"d": ctypes.c_double, "f": ctypes.c_float}
        kinds |= {"dd": 2 * ctypes.c_double, "ff": 2 * ctypes.c_float}
        fields = [(f.parameter.name, kinds[f.code]) for f in laid]
        assert (extra is None) == (not fields)
        address = extra._obj.parameters if fields else 0
        block = type("Block", (ctypes.Structure,), {"_fields_": fields}).from_address(address)
        numbers = {p.name: getattr(block, p.name) for p in signature.parameters if not p.is_array}
        arguments = []
        for p, dtype, parts, *_ in laid:
            value = getattr(block, p.name)
            number = complex(*value) if dtype.kind == "c" and not p.is_array else value
            arguments.append(
                _declared(p, self._array(value, dtype), parts, numbers) if p.is_array else dtype.type(number)
            )
        self.launches.append((config.stream or 0, signature.entry, getattr(block, "partials", 0)))
        module.launch(signature.entry, config.grid[0], config.block[0], arguments, config.shared_bytes)
        return 0

    def _array(self, address: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """Return the memory from an address to the end of its allocation, or None for address 0."""
        if not address:
            return None
        start = self._start(address)
        place, held = self._memory[start]
        assert address - start <= place.size, "a kernel is told of memory that nobody was given"
        assert held() is not None, "a kernel is told of memory that was given back"
        rest = place[address - start :][: self._nbytes.get(address)]
        return rest[: rest.size // dtype.itemsize * dtype.itemsize].view(dtype)

    def cuFuncSetAttribute(self, kernel: Any, attribute: int, value: int) -> int:
        return 0 if kernel.value in self._kernels else 1

    def cuStreamGetCaptureInfo_v2(
        self, stream: Any, status: Any, number: Any, graph: Any, dependencies: Any, count: Any
    ) -> int:
        number._obj.value, graph._obj.value = self.graphs[stream.value]
        return 0

    def cuUserObjectCreate(self, handle: Any, pointer: Any, destroy: Any, count: int, flags: int) -> int:
        handle._obj.value = next(self._handles)
        self._objects[handle._obj.value] = pointer.value, destroy.value
        return 0

    def cuGraphRetainUserObject(self, graph: Any, handle: Any, count: int, flags: int) -> int:
        self.destructors.setdefault(graph.value, []).append(self._objects.pop(handle.value))
        return 0

    def end(self, graph: int) -> None:
        """End a graph, and call its destructors from another thread."""
        for pointer, destroy in self.destructors.pop(graph, []):
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)
            thread = threading.Thread(target=call, args=(pointer,))
            thread.start()
            thread.join()


class _Held:
    """An object that all arrays of one allocation hold, so that its end tells when the memory is free."""


def _declared(p: Any, array: Any, parts: int, told: Any) -> Any:
    """Return as much of an array as its kernel's signature declares, given the kernel's sizes."""
    factor, word, more = _launch._size(p.size)
    if array is None or not p.size or (word and word not in told):
        return array
    count = parts * (factor * told.get(word, 0) + more)
    assert array.size >= count, f"{p.name} has room for {array.size} elements; {count} are needed"
    return array[:count]


class _Packing(PackingDevice):
    """A stand-in for `dasp.runtime.cuda.device.CudaDevice` that makes row blocks in CuPy arrays."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self._gpu.put(np.empty(shape, dtype))

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return self._gpu.put(np.zeros(shape, dtype))

    def read(self, numbers: Any) -> Any:
        return super().read(self._gpu.get(numbers))

    def _marked(self, value: Any) -> Any:
        there = hasattr(value, "data") and hasattr(value.data, "ptr")
        return super()._marked(self._gpu.get(value) if there else value)


class _Stream:
    """A stream whose work is done. As in CuPy, the end of a `with` forgets a stream chosen by `use`."""

    def __init__(self, gpu: Gpu, ptr: int) -> None:
        self._gpu, self.ptr = gpu, ptr

    def __enter__(self) -> _Stream:
        self._gpu.entered.append(self.ptr)
        return self.use()

    def __exit__(self, *_: object) -> None:
        self._gpu.entered.pop()
        self._gpu.stream = self._gpu.entered[-1] if self._gpu.entered else FIRST_STREAM

    def use(self) -> _Stream:
        """Become the current stream."""
        self._gpu.stream = self.ptr
        return self

    def synchronize(self) -> None:
        """Return at once: all work is done."""


class _Context(SimpleNamespace):
    """A device, current inside a `with`."""

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *_: object) -> None:
        return None
