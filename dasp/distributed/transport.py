"""What moves arrays between GPUs: each other's memory where the GPUs of one machine reach it, else NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dasp.distributed.communicator import Communicator, RankError, agree
from dasp.distributed.halo import Span
from dasp.distributed.watching import find_machine

if TYPE_CHECKING:
    from dasp.distributed.space_cuda import RanksDevice

DeviceArray = Any
"""A cupy.ndarray; CuPy has no types."""

TRANSPORT_VARIABLE = "DASP_RANK_TRANSPORT"
"""The environment variable that says `nccl` where GPUs must not write in each other's memory."""


class RowMessages(Protocol):
    """Messages of rows, prepared."""

    def start(self, x: DeviceArray) -> None:
        """Send rows of an array, and put what comes in its place, on the current stream."""


class Transport(Protocol):
    """Messages and sums between GPUs, on CuPy's current stream; all ranks prepare alike.

    Attributes
    ----------
    name : str
        `peers` or `nccl`.
    solver_device : RanksDevice or None
        The GPU as solvers see it, once they do.
    count : int
        Messages, sums and graphs of them that were begun: the same on all ranks that are at the same place.
    """

    name: str
    solver_device: RanksDevice | None
    count: int

    def sum(self, numbers: DeviceArray, totals: DeviceArray) -> Callable[[], None]:
        """Prepare to set `totals` to the sum of `numbers`, float64, over all ranks; all get the same bits.

        They may be one array.
        """

    def rows(
        self,
        sends: Sequence[Span],
        places: DeviceArray | None,
        receives: Sequence[Span],
        received: DeviceArray,
    ) -> RowMessages:
        """Prepare to send rows of arrays that come later.

        Parameters
        ----------
        sends : sequence of Span
            Of `places`, or of the rows themselves; neighbour by neighbour.
        places : array of int64, optional
            The rows that are sent.
        receives : sequence of Span
            Of `received`.
        received : array, shape (rows,) or (rows, k)
            Contiguous; of the type and number of columns of what is sent.
        """

    def check(self) -> None:
        """Raise RankError if this rank has given up waiting for another."""

    def wait(self, event: Any) -> None:
        """Wait on the host for an event of the GPU, no longer than the timeout."""

    def give_up(self) -> None:
        """Wait for no other rank any more; later operations raise `RankError`."""

    def close(self) -> None:
        """Leave the memory of other ranks: the communicator is gone, and nothing is sent any more."""

    def end(self) -> None:
        """Wait, not for long, for messages that other ranks may still need; this process ends."""


def find_transport(comm: Communicator, device: str) -> Transport:
    """Return the transport between the GPUs of ranks, the same kind on all ranks; all ranks call it.

    Raises
    ------
    ValueError
        On all ranks, if the environment variable DASP_RANK_TRANSPORT is not `auto` or `nccl`, or differs.
    RankError
        On all ranks, if NCCL is needed and one of them has none.
    """
    import cupy

    from dasp.distributed.nccl import NcclTransport
    from dasp.distributed.peers import PeerTransport

    def read() -> str:
        kind = os.environ.get(TRANSPORT_VARIABLE, "auto")
        if kind not in ("auto", "nccl"):
            raise ValueError(f"{TRANSPORT_VARIABLE} is {kind!r}; auto or nccl is needed")
        return kind

    wanted = agree(comm, read, lambda kind: {TRANSPORT_VARIABLE: kind})
    own = cupy.cuda.Device(int(device.partition(":")[2] or 0))
    if comm.size > 1 and wanted == "auto" and can_reach(comm, own):
        try:
            peers = PeerTransport(comm, own)
            if peers.works():
                return peers
        except RankError:  # on all ranks the same: memory that cannot be shared
            pass
    return NcclTransport(comm, device)


def can_reach(comm: Communicator, device: Any) -> bool:
    """Return True if all ranks are on one machine, and their GPUs can write in each other's memory."""
    import cupy

    runtime = cupy.cuda.runtime
    mine = find_machine()[:2], runtime.deviceGetPCIBusId(device.id)
    every = comm.gather(mine)

    def reaches(bus: str) -> bool:
        try:
            number = runtime.deviceGetByPCIBusId(bus)
        except runtime.CUDARuntimeError:
            return True  # not visible to this process, as where each rank sees its own alone: a trial tells
        return number == device.id or bool(runtime.deviceCanAccessPeer(device.id, number))

    together = all(machine == mine[0] for machine, _ in every) and os.name != "nt"
    return all(comm.gather(together and all(reaches(bus) for _, bus in every)))
