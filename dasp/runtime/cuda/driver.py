"""Calls of the CUDA driver through ctypes, for functions that CuPy does not offer.

They set limits of a kernel, make graphs that repeat their work without the host and graphs whose kernels keep
the priorities of their streams, and keep memory as long as a captured graph.

Calls release the GIL: a launch waits while the stream's queue is full, perhaps for a Python function that the
stream has to call.

Source: CUDA Driver API (CUDA 12.4), execution control and graph management.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import NamedTuple

from dasp.runtime.types import KernelFunction

MOST_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


@cache
def driver() -> ctypes.CDLL:
    """Return the driver's library, which CuPy has loaded."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def check(status: int, problem: str) -> None:
    """Raise RuntimeError with the driver's name of the error if a status is not 0."""
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(text))
        raise RuntimeError(f"{problem}: {(text.value or b'unknown error').decode()}")


_shared_bytes: dict[int, int] = {}
"""Bytes of dynamic shared memory that `allow_shared` gave to blocks of a kernel, by the driver's handle."""

_shared_lock = threading.Lock()


def allow_shared(kernel: KernelFunction, nbytes: int) -> None:
    """Let blocks of a compiled kernel have at least `nbytes` bytes of dynamic shared memory.

    Raises
    ------
    RuntimeError
        If the driver reports an error: a multiprocessor has less.

    Notes
    -----
    All launches of a kernel share one limit. It never falls, for launches that were prepared before need it.
    """
    with _shared_lock:
        if nbytes <= _shared_bytes.get(kernel.ptr, 0):
            return
        status = driver().cuFuncSetAttribute(ctypes.c_void_p(kernel.ptr), MOST_SHARED_BYTES, nbytes)
        check(status, f"a block cannot have {nbytes} bytes of shared memory")
        _shared_bytes[kernel.ptr] = nbytes


@contextmanager
def in_relaxed_mode() -> Iterator[None]:
    """Let the calling thread load modules although it, or another thread, captures a stream.

    Most captures forbid that to all threads, because memory that is allocated meanwhile is not the graph's.
    """
    mode = ctypes.c_int(RELAXED)
    exchange = partial(driver().cuThreadExchangeStreamCaptureMode, ctypes.byref(mode))
    exchanged = exchange() == 0  # else nobody has used the driver yet, and nothing is captured
    try:
        yield
    finally:
        if exchanged:
            exchange()


# ---- graphs ------------------------------------------------------------------------------------------

CONDITIONAL_NODE, WHILE, ASSIGN_DEFAULT, RELAXED = 13, 1, 1, 2
"""CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_COND_TYPE_WHILE, CU_GRAPH_COND_ASSIGN_DEFAULT,
CU_STREAM_CAPTURE_MODE_RELAXED."""

NODE_PRIORITIES = 8
"""CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY; else kernels have the priority of the launching stream."""

WHILE_NODES = 12_040
"""The driver's CUDA version from which graphs have while nodes."""


class _Conditional(ctypes.Structure):
    """CUDA_CONDITIONAL_NODE_PARAMS."""

    _fields_ = (
        ("handle", ctypes.c_uint64),
        ("type", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
    )


class _Union(ctypes.Union):
    _fields_ = (("reserved", ctypes.c_longlong * 29), ("conditional", _Conditional))


class NodeParameters(ctypes.Structure):
    """CUgraphNodeParams: 256 bytes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("reserved0", ctypes.c_int * 3),
        ("of", _Union),
        ("reserved2", ctypes.c_longlong),
    )


class _Executable:
    """A graph of the driver, ready to launch.

    Raises
    ------
    RuntimeError
        If the driver reports an error.
    """

    def __init__(self) -> None:
        self._driver, self._graph, self._executable = driver(), ctypes.c_void_p(), ctypes.c_void_p()

    def _instantiate(self, flags: int) -> None:
        self._call(
            "cuGraphInstantiateWithFlags",
            ctypes.byref(self._executable), self._graph, ctypes.c_ulonglong(flags),
        )  # fmt: skip

    def launch(self, stream: int) -> None:
        """Run the graph on a stream; return at once."""
        self._call("cuGraphLaunch", self._executable, ctypes.c_void_p(stream))

    def _call(self, name: str, *arguments: object) -> None:
        check(getattr(self._driver, name)(*arguments), f"{name} failed")

    def __del__(self) -> None:
        if self._executable.value:
            self._driver.cuGraphExecDestroy(self._executable)
        if self._graph.value:
            self._driver.cuGraphDestroy(self._graph)


class PriorityGraph(_Executable):
    """A graph of a function's launches, in which each kernel keeps the priority of its stream.

    Parameters
    ----------
    stream : int
        A stream that nothing else uses meanwhile.
    function : callable
        Launches on the stream, and on others that branch from it and join it. It runs once, here. The caller
        must keep what its launches use.

    Raises
    ------
    RuntimeError
        If the driver reports an error.
    """

    def __init__(self, stream: int, function: Callable[[], None]) -> None:
        super().__init__()
        on = ctypes.c_void_p(stream)
        self._call("cuStreamBeginCapture_v2", on, RELAXED)
        try:
            function()
        finally:
            self._call("cuStreamEndCapture", on, ctypes.byref(self._graph))
        self._instantiate(NODE_PRIORITIES)


class LoopGraph(_Executable):
    """A graph whose only node repeats a body as long as the body says.

    Parameters
    ----------
    stream : int
        A stream that nothing else uses meanwhile; the body is captured from it.
    body : callable
        Takes the handle of the condition (an int, for `cudaGraphSetConditional`) and launches the body on the
        stream. It runs once, here. The caller must keep what its launches use.

    Raises
    ------
    RuntimeError
        If the driver reports an error.
    """

    def __init__(self, stream: int, body: Callable[[int], None]) -> None:
        super().__init__()
        context, handle, node = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        self._call("cuGraphCreate", ctypes.byref(self._graph), 0)
        self._call(
            "cuGraphConditionalHandleCreate",
            ctypes.byref(handle), self._graph, context, 1, ASSIGN_DEFAULT,
        )  # fmt: skip
        parameters = NodeParameters(type=CONDITIONAL_NODE)
        parameters.of.conditional = _Conditional(handle.value, WHILE, 1, None, context)
        self._call(
            "cuGraphAddNode",
            ctypes.byref(node), self._graph, None, ctypes.c_size_t(0), ctypes.byref(parameters),
        )  # fmt: skip
        inside = ctypes.c_void_p(parameters.of.conditional.graphs[0])
        on = ctypes.c_void_p(stream)
        self._call("cuStreamBeginCaptureToGraph", on, inside, None, None, ctypes.c_size_t(0), RELAXED)
        try:
            body(handle.value)
        finally:
            self._call("cuStreamEndCapture", on, ctypes.byref(ctypes.c_void_p()))
        self._instantiate(0)


# ---- memory of captured graphs -----------------------------------------------------------------------

NO_DESTRUCTOR_SYNC, MOVE = 1, 1
"""CU_USER_OBJECT_NO_DESTRUCTOR_SYNC and CU_GRAPH_USER_OBJECT_MOVE."""


def in_pool(cupy: ModuleType) -> AbstractContextManager[None]:
    """Return a context in which arrays come from CuPy's pool, so that `keep` may hold them.

    During a capture the caller's allocator may return memory of the graph, which must be freed in the graph.
    """
    context: AbstractContextManager[None] = cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc)
    return context


def find_capture(stream: int) -> tuple[int, int]:
    """Return the unique number of a stream's capture, and the handle of its graph.

    Raises
    ------
    RuntimeError
        If the driver reports an error, or the capture is no longer valid.
    """
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    check(
        driver().cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream),
            ctypes.byref(status),
            ctypes.byref(number),
            ctypes.byref(graph),
            None,
            None,
        ),
        "the graph of a capture was not found",
    )
    if not graph.value:
        raise RuntimeError("the stream's capture is no longer valid; end it and capture again")
    return number.value, graph.value


class _Kept(NamedTuple):
    """A thing that a graph uses, and a lock of Python's that CUDA releases when the graph has ended."""

    thing: object
    lock: int


_kept: list[_Kept] = []
_kept_lock = threading.Lock()


def keep(thing: object, graph: int) -> None:
    """Keep a thing alive until a graph, its copies and their executions have ended, and no longer.

    The things of graphs that have ended are dropped at the next call.

    Parameters
    ----------
    thing : object
    graph : int
        The driver's handle; the graph may still be under capture.

    Raises
    ------
    RuntimeError
        If the driver reports an error.

    Notes
    -----
    CUDA's thread must neither call CUDA nor wait for Python: it calls `PyThread_release_lock`, which needs no
    interpreter, so a graph may end while Python does. For the same reason the locks are not Python objects.
    """
    drop_ended()
    lock = _locks().PyThread_allocate_lock()
    _locks().PyThread_acquire_lock(lock, 1)
    with _kept_lock:
        _kept.append(_Kept(thing, lock))
    handle, release = ctypes.c_void_p(), ctypes.cast(_locks().PyThread_release_lock, ctypes.c_void_p)
    status = driver().cuUserObjectCreate(
        ctypes.byref(handle), ctypes.c_void_p(lock), release, 1, NO_DESTRUCTOR_SYNC
    )
    if status:
        _locks().PyThread_release_lock(lock)
    else:
        status = driver().cuGraphRetainUserObject(ctypes.c_void_p(graph), handle, 1, MOVE)
        if status:
            driver().cuUserObjectRelease(handle, 1)
    check(status, "nothing could be tied to the graph of a capture")


def drop_ended() -> None:
    """Drop the things of graphs that have ended."""
    locks = _locks()
    ended: list[_Kept] = []
    living: list[_Kept] = []
    with _kept_lock:
        for kept in _kept:
            (ended if locks.PyThread_acquire_lock(kept.lock, 0) else living).append(kept)
        _kept[:] = living
    for kept in ended:
        locks.PyThread_release_lock(kept.lock)
        locks.PyThread_free_lock(kept.lock)


@cache
def _locks() -> ctypes.PyDLL:
    """Return the interpreter's own library, with the types of its functions for locks."""
    library = ctypes.PyDLL(None, handle=ctypes.pythonapi._handle)
    library.PyThread_allocate_lock.restype = ctypes.c_void_p
    library.PyThread_acquire_lock.argtypes = ctypes.c_void_p, ctypes.c_int
    library.PyThread_release_lock.argtypes = library.PyThread_free_lock.argtypes = (ctypes.c_void_p,)
    library.PyThread_release_lock.restype = library.PyThread_free_lock.restype = None
    return library
