"""The space of a GPU as passes and loops see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dasp.runtime.cuda.device import CudaDevice
from dasp.solvers.cuda.trace import Trace

Array = Any


class PassSpace(Protocol):
    """The space of a GPU, or of a rank's, as vectors and loops see it.

    Attributes
    ----------
    dtype : numpy.dtype
    on : CudaDevice
    trace : Trace
        On which passes and products are written down.
    captures : bool
        Whether all products written down can be captured in a graph.
    """

    dtype: np.dtype[Any]
    on: CudaDevice
    trace: Trace
    captures: bool

    def threads(self, n: int) -> int:
        """Return the threads of a block of a pass over vectors of n numbers."""

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass over vectors of n numbers."""

    def turn(self, rows: int, products: int, *, costly: bool) -> int:
        """Return the iterations, an even number, after which the loop looks at their verdict."""

    def totals(self, sums: Array) -> Array:
        """Return the array in which `combine` leaves the totals of sums over ranks."""

    def combine(self, sums: Array, totals: Array, *, beside: bool = False) -> list[Callable[[], None]]:
        """Return the launches that add the sums of blocks up over ranks."""
