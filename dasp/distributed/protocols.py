"""The protocol of a transport, which moves arrays between the GPUs of ranks.

Operations are prepared once, with the arrays that they work on, and made many times: so they can be captured
in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.types import Array, DeviceArray, Event

Span = tuple[int, int, int]
"""A rank, and the first and one past the last of the rows that are for it or from it."""

Message = tuple[int, Array]
"""The rank that an array goes to or comes from, and the array, which is contiguous."""


class RankError(RuntimeError):
    """Another rank failed, ended, or did not answer in time."""


class ExchangeRows(NamedTuple):
    """The rows of a rank that its neighbours exchange with it.

    Attributes
    ----------
    sends : sequence of Span
        Of `places`, or of the rows themselves; neighbour by neighbour.
    places : array of int64 or None
        The rows that are sent.
    receives : sequence of Span
        Of `received`.
    received : array, shape (rows,) or (rows, k)
        Contiguous; of the type and number of columns of the rows that are sent.
    """

    sends: Sequence[Span]
    places: DeviceArray | None
    receives: Sequence[Span]
    received: DeviceArray


class Transport(Protocol):
    """Messages and sums between GPUs, on CuPy's current stream; all ranks prepare alike.

    Attributes
    ----------
    name : str
        `peers` or `nccl`.
    solver_device : CudaDevice or None
        The GPU as solvers see it, from the first solve on; see `dasp.distributed.space_cuda.RanksDevice`.
    count : int
        Messages, sums and graphs of them that were begun: the same on all ranks that are at the same place.
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
        """Leave the memory of other ranks: the communicator is gone, and nothing is sent any more."""

    def end(self) -> None:
        """Wait, not for long, for messages that other ranks may still need; this process ends."""
