"""The elements of x that a rank lacks, the ranks that hold them, and their way from host to host.

Before a product each rank packs the elements that its neighbours lack and sends them; while they travel it
multiplies its interior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dasp.distributed.communicator import Communicator, Exchange
from dasp.distributed.partition import Parts, send_to_owners
from dasp.distributed.transport import Span
from dasp.runtime.types import Array, Number, Vector

if TYPE_CHECKING:
    from dasp.matrix.matrix import SpMatrix


class HaloPattern(NamedTuple):
    """The elements of x that a rank sends and receives for a product.

    Attributes
    ----------
    rows : Array of int64, on the device
        The rank's rows that have entries in the halo.
    places : numpy.ndarray of int64
        The elements of its part of x that the rank sends, neighbour by neighbour.
    sends, receives : list of Span
        Ranges of `places`, and of the halo's columns.
    number : int
        Equal on all ranks, and different for each pattern.
    """

    rows: Array
    places: Vector
    sends: list[Span]
    receives: list[Span]
    number: int

    @property
    def columns(self) -> int:
        """The number of the halo's columns, and of the elements that come for each column of x."""
        return self.receives[-1][2] if self.receives else 0

    @property
    def is_idle(self) -> bool:
        """True if nothing is sent, and nothing comes."""
        return not (self.sends or self.receives)


def find_pattern(comm: Communicator, columns: Parts, rows: Array, needed: Vector) -> HaloPattern:
    """Tell the owners which columns this rank lacks, and learn what others lack; all ranks call this."""
    (places,), receives, sends = send_to_owners(comm, columns, needed, [needed])
    return HaloPattern(rows, places - columns.first, sends, receives, comm.locate_call())


class HaloExchange(Protocol):
    """Messages with elements of x, of one type and number of columns, and the halo's product with them.

    Attributes
    ----------
    received : Array
        The numbers that have come, in the order of the halo's columns.
    """

    received: Array

    def start(self, x: Array) -> None:
        """Pack and send; x must not change until `finish`."""

    def finish(self, halo: SpMatrix, alpha: Number, y: Array) -> None:
        """Wait for the neighbours' elements, and add alpha times their product with the halo to y."""

    def arrive(self) -> None:
        """Wait until the neighbours' elements are in `received`, if nothing is multiplied by them."""


class HostHaloExchange:
    """The exchange of a product in the memory of the host; see `HaloExchange`."""

    def __init__(
        self,
        comm: Communicator,
        pattern: HaloPattern,
        shape: tuple[int, ...],
        x: np.dtype[np.generic],
        y: np.dtype[np.generic],
    ) -> None:
        """Prepare for operands of type x, products of type y, and k columns if `shape` is (k,)."""
        self._places, self._rows = pattern.places, pattern.rows
        self._packed = np.zeros((len(pattern.places), *shape), x)
        self.received = np.zeros((pattern.columns, *shape), x)
        self._product = np.zeros((len(pattern.rows), *shape), y)
        self._exchange = Exchange(
            comm,
            [(rank, self._packed[first:end]) for rank, first, end in pattern.sends],
            [(rank, self.received[first:end]) for rank, first, end in pattern.receives],
            f"product {pattern.number} by {x} x" + "".join(f" of {columns} columns" for columns in shape),
        )

    def start(self, x: Array) -> None:
        """Pack and send; a rank that sends nothing counts the operation too."""
        np.take(x, self._places, axis=0, out=self._packed, mode="clip")
        self._exchange.start()

    def arrive(self) -> None:
        """Wait until the neighbours' elements are in `received`."""
        self._exchange.finish()

    def finish(self, halo: SpMatrix, alpha: Number, y: Array) -> None:
        """Wait, multiply, and add the product to y, in which no row comes twice."""
        self._exchange.finish()
        if len(self._rows):
            halo.matvec(self.received, out=self._product, alpha=alpha)
            y[self._rows] += self._product
