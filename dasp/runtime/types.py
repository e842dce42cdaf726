"""The types of what callers pass, for signatures."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]
"""An array of NumPy, or one of CuPy, which has the same methods."""

ArrayLike = npt.ArrayLike
"""An array of any library, or a list of numbers."""

DTypeLike = npt.DTypeLike

Number = complex | np.number[Any]
"""A real or complex number of Python or NumPy."""


class DenseArray(Protocol):
    """An array of NumPy, CuPy, PyTorch or JAX."""

    @property
    def shape(self) -> Any:
        """Its lengths."""

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
