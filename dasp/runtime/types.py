"""The types of what callers pass, and of CuPy's objects, for signatures."""

from __future__ import annotations

from typing import Any, Protocol

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

Stream = Any
"""A cupy.cuda.Stream."""

Event = Any
"""A cupy.cuda.Event."""

Graph = Any
"""A cupy.cuda.Graph."""

KernelModule = Any
"""Kernels that are compiled together: a cupy.RawModule."""

KernelFunction = Any
"""A kernel that is loaded on a GPU: a cupy.cuda.Function."""
