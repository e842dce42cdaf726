"""The types of what callers pass, and of CuPy's objects, for signatures."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]
"""An array of NumPy, or one of CuPy, which has the same methods."""

Vector = np.ndarray[Any, Any]
"""An array of NumPy, most often of one dimension."""

ArrayLike = npt.ArrayLike
"""An array of any library, or a list of numbers."""

DTypeLike = npt.DTypeLike

Number = complex | np.number[Any]
"""A real or complex number of Python or NumPy."""


class DenseArray(Protocol):
    """An array of NumPy, CuPy, PyTorch or JAX."""

    @property
    def shape(self) -> Any:
        """Its length in each dimension."""

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""

    @property
    def dtype(self) -> Any:
        """The type of its elements."""


ForeignArray = Any
"""An array of a library that is neither NumPy nor CuPy: a tensor of PyTorch, an array of JAX, or another."""

AnyArray = Any
"""An array of any library: `Array` or `ForeignArray`."""

DeviceArray = Any
"""A cupy.ndarray, which has NumPy's methods but no annotations; NumPy's array where tests emulate a GPU."""

CupyDevice = Any
"""A cupy.cuda.Device."""


class KernelFunction(Protocol):
    """A kernel that is loaded on a GPU, as cupy.cuda.Function."""

    @property
    def ptr(self) -> int:
        """The driver's handle."""


class ModuleFunction(Protocol):
    """A kernel of a module, as cupy.RawKernel."""

    @property
    def kernel(self) -> KernelFunction:
        """The kernel."""


class KernelModule(Protocol):
    """Kernels that are compiled together, as cupy.RawModule."""

    def compile(self) -> None:
        """Compile and load the kernels."""

    def get_function(self, name: str, /) -> ModuleFunction:
        """Return the kernel of a name."""


class Graph(Protocol):
    """A CUDA graph, as cupy.cuda.Graph."""

    def launch(self, stream: Stream, /) -> None:
        """Run the graph on a stream."""


class Event(Protocol):
    """An event of a GPU, as cupy.cuda.Event."""

    @property
    def done(self) -> bool:
        """True once the GPU has done the marked work."""

    def record(self, stream: Stream, /) -> None:
        """Mark the work on a stream so far."""

    def synchronize(self) -> None:
        """Wait for the marked work."""


class Stream(Protocol):
    """A stream of a GPU, as cupy.cuda.Stream; in `with` it is the current one."""

    @property
    def ptr(self) -> int:
        """CUDA's handle."""

    def use(self) -> Stream:
        """Make this the current stream."""

    def record(self) -> Event:
        """Return an event after the work so far."""

    def wait_event(self, event: Event, /) -> None:
        """Let later work wait for an event."""

    def synchronize(self) -> None:
        """Wait for all work."""

    def begin_capture(self) -> None:
        """Capture later work in a graph instead of running it."""

    def end_capture(self) -> Graph:
        """End the capture and return its graph."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...
