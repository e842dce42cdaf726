"""The protocol of a transport, which moves arrays between the GPUs of ranks.

An operation is prepared once, with the arrays that it works on, and launched many times, so that a CUDA graph
can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.types import Array, DeviceArray, Event

Span = tuple[int, int, int]
"""A rank, the first row that goes to it or comes from it, and one past the last such row."""

Message = tuple[int, Array]
"""The rank that an array goes to or comes from, and the array, which is contiguous."""


class RankError(RuntimeError):
    """Another rank failed, ended, or did not answer in time."""


class ExchangeRows(NamedTuple):
    """The rows of a rank that its neighbours exchange with it.

    Attributes
    ----------
    sends : sequence of Span
        Ranges of `places`, or of the rows themselves if it is None; neighbour by neighbour.
    places : array of int64 or None
        The rows that are sent.
    receives : sequence of Span
        Ranges of `received`.
    received : array, shape (rows,) or (rows, k)
        Contiguous; has the type and number of columns of the rows that are sent.
    """

    sends: Sequence[Span]
    places: DeviceArray | None
    receives: Sequence[Span]
    received: DeviceArray


class Transport(Protocol):
    """Messages and sums between GPUs, on CuPy's current stream; all ranks prepare the same ones.

    Attributes
    ----------
    name : str
        `peers` or `nccl`.
    solver_device : CudaDevice or None
        The GPU as solvers see it, from the first solve on; see `dasp.distributed.space_cuda.RanksDevice`.
    count : int
        The messages, sums and graphs of these that were begun: equal on ranks that are at the same place.
    """

    name: str
    solver_device: CudaDevice | None
    count: int

    def sum(self, numbers: DeviceArray, totals: DeviceArray) -> Callable[[], None]:
        """Prepare to set `totals` to the sum of `numbers`, float64, over all ranks; all get the same bits.

        They may be one array.
        """

    def rows(self, exchange: ExchangeRows) -> Callable[[DeviceArray], None]:
        """Prepare to send rows of an array that comes later, and to receive those of others."""

    def check(self) -> None:
        """Raise RankError if this rank has given up waiting for another."""

    def wait(self, event: Event) -> None:
        """Wait on the host for an event of the GPU, no longer than the timeout."""

    def give_up(self) -> None:
        """Wait for no other rank any more; later operations raise `RankError`."""

    def close(self) -> None:
        """Stop using the memory of other ranks: the communicator is gone, and nothing is sent any more."""

    def end(self) -> None:
        """Wait, not for long, for messages that other ranks may still need, before this process ends."""
