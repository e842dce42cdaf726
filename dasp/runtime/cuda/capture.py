"""Memory of captured graphs: it is kept until the graph, and all that was made from it, has ended.

A graph holds addresses alone. CUDA tells when it has ended.

Source: CUDA Driver API, Graph Management (cuUserObjectCreate, cuGraphRetainUserObject).
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

from dasp.runtime.cuda.driver import check, driver

NO_DESTRUCTOR_SYNC, MOVE = 1, 1
"""CU_USER_OBJECT_NO_DESTRUCTOR_SYNC and CU_GRAPH_USER_OBJECT_MOVE: both are asked for."""


def in_pool(cupy: Any) -> AbstractContextManager[None]:
    """Return a context in which arrays come from CuPy's pool, so that `keep` may hold them.

    During a capture the caller's allocator may give memory of the graph, which must be given back in it.
    """
    context: AbstractContextManager[None] = cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc)
    return context


def captured_in(stream: int) -> tuple[int, int]:
    """Return the number of a stream's capture, which no other has, and the handle of its graph.

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
    """Something that a graph uses, and a lock of Python's that CUDA opens when the graph has ended."""

    thing: object
    lock: int


_kept: list[_Kept] = []
_kept_lock = threading.Lock()


def keep(thing: object, graph: int) -> None:
    """Keep a thing alive until a graph, its copies and their executions have ended, and nothing longer.

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
    interpreter, so a graph may end while Python does. The locks are the C library's, for the same reason.
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
    """Drop everything that only graphs that have ended used."""
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
