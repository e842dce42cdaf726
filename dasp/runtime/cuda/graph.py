"""CUDA graphs that CuPy does not make: a loop that runs on the GPU without the host, and one whose kernels
keep the priorities of the streams that they were captured from.

CuPy captures streams into graphs, but has no conditional nodes, and instantiates without flags, so the driver
is called for those.

Source: CUDA Driver API, graph management (CUDA 12.4): cuGraphConditionalHandleCreate, cuGraphAddNode,
cuStreamBeginCaptureToGraph; cuGraphInstantiateWithFlags.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from dasp.runtime.cuda.driver import check, driver

CONDITIONAL_NODE, WHILE, ASSIGN_DEFAULT, RELAXED = 13, 1, 1, 2
"""CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_COND_TYPE_WHILE, CU_GRAPH_COND_ASSIGN_DEFAULT,
CU_STREAM_CAPTURE_MODE_RELAXED."""

NODE_PRIORITIES = 8
"""CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY; without it kernels have that of the stream of the launch."""

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
    """A graph of the driver's, ready to be launched.

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
        """Run it on a stream; returns at once."""
        self._call("cuGraphLaunch", self._executable, ctypes.c_void_p(stream))

    def _call(self, name: str, *arguments: object) -> None:
        check(getattr(self._driver, name)(*arguments), f"{name} failed")

    def __del__(self) -> None:
        if self._executable.value:
            self._driver.cuGraphExecDestroy(self._executable)
        if self._graph.value:
            self._driver.cuGraphDestroy(self._graph)


class PriorityGraph(_Executable):
    """The launches of a function, each kernel with the priority of the stream that it was captured from.

    Parameters
    ----------
    stream : int
        One that nothing else uses meanwhile.
    function : callable
        Launches on the stream, and on others that branch from it and join it. It runs once, here. What its
        launches use must be kept by the caller.

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
        One that nothing else uses meanwhile; the body is captured from it.
    body : callable
        Takes the handle of the condition (an int, for `cudaGraphSetConditional`) and launches the body on the
        stream. It runs once, here. What its launches use must be kept by the caller.

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


def in_turn(functions: Sequence[Callable[[], None]], times: int | None = None) -> Callable[[], None]:
    """Return a function that calls functions one after the other, round and round, so many times in all."""
    calls = len(functions) if times is None else times

    def call() -> None:
        for k in range(calls):
            functions[k % len(functions)]()

    return call
