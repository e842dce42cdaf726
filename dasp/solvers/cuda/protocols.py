"""What runs the kernels of solvers, and what passes and loops ask of the space that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dasp.runtime.cuda.launch import Signature
from dasp.solvers.cuda.tape import Tape

Array = Any


class Device(Protocol):
    """What runs kernels and holds arrays."""

    processors: int

    def zeros(self, count: int, dtype: Any) -> Array:
        """Return a new array of zeros."""

    def empty(self, count: int, dtype: Any) -> Array:
        """Return a new array that holds anything."""

    def shared_with_host(self, count: int) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return float64 numbers in the host's memory, as kernels write them and as the host reads them."""

    def wait(self) -> None:
        """Wait for all that was launched before."""

    def fence(self) -> Callable[[], None]:
        """Return a function that makes the current stream of its call wait for all launches so far."""

    def upload(self, target: Array, source: np.ndarray[Any, Any]) -> None:
        """Copy from the host."""

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""

    def asarray(self, array: Any, dtype: np.dtype[Any]) -> Array:
        """Return an array of this type on the device."""

    def address(self, array: Array) -> int:
        """Return where an array begins."""

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
        """Return a launch of a kernel, ready to be made again and again; `together` if it is cooperative.

        It takes arrays and numbers, those of `varying`.
        """

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what does again what a function launches, and keeps all that it launches with."""

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0; `captured` if that is possible."""


class PassSpace(Protocol):
    """What vectors and loops ask of the space of a GPU, or of a rank's.

    Attributes
    ----------
    dtype : numpy.dtype
    on : Device
    tape : Tape
        On which passes and products are written down.
    captures : bool
        Whether all products written down can be captured in a graph.
    """

    dtype: np.dtype[Any]
    on: Device
    tape: Tape
    captures: bool

    def threads(self, n: int) -> int:
        """Return the threads of a block of a pass over vectors of n numbers."""

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass over vectors of n numbers."""

    def turn(self, rows: int, products: int) -> int:
        """Return the iterations, an even number, between two questions whether to go on."""

    def totals(self, sums: Array) -> Array:
        """Return where `combine` shall leave the totals of sums over ranks."""

    def combine(self, sums: Array, totals: Array, *, beside: bool = False) -> list[Callable[[], None]]:
        """Return what makes totals of the sums that blocks left."""
