"""What passes and loops ask of the space that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dasp.runtime.cuda.device import CudaDevice
from dasp.solvers.cuda.trace import Trace

Array = Any


class PassSpace(Protocol):
    """What vectors and loops ask of the space of a GPU, or of a rank's.

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
        """Return where `combine` shall leave the totals of sums over ranks."""

    def combine(self, sums: Array, totals: Array, *, beside: bool = False) -> list[Callable[[], None]]:
        """Return what makes totals of the sums that blocks left."""
