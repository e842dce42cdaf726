"""The choice of a transport: peers if the GPUs of one machine reach each other's memory, else NCCL."""

from __future__ import annotations

import os

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.protocols import RankError, Transport
from dasp.distributed.watching import find_machine
from dasp.runtime.types import CupyDevice

TRANSPORT_VARIABLE = "DASP_RANK_TRANSPORT"
"""The environment variable that is `nccl` if GPUs must not write in each other's memory."""


def find_transport(comm: Communicator, device: str) -> Transport:
    """Return the transport between the GPUs of ranks, which the first call makes; all ranks call it.

    Raises
    ------
    ValueError
        On all ranks, if the environment variable DASP_RANK_TRANSPORT is neither `auto` nor `nccl`, or differs
        between ranks.
    RankError
        On all ranks, if NCCL is needed and one of them has none.
    """
    if device not in comm.transports:
        comm.transports[device] = _make_transport(comm, device)
    return comm.transports[device]


def _make_transport(comm: Communicator, device: str) -> Transport:
    """Return a transport of the same kind on all ranks."""
    from dasp.distributed.halo_cuda import find_cupy_device
    from dasp.distributed.nccl import NcclTransport
    from dasp.distributed.peers import PeerTransport

    def read() -> str:
        kind = os.environ.get(TRANSPORT_VARIABLE, "auto")
        if kind not in ("auto", "nccl"):
            raise ValueError(f"{TRANSPORT_VARIABLE} is {kind!r}; auto or nccl is needed")
        return kind

    wanted = agree(comm, read, lambda kind: {TRANSPORT_VARIABLE: kind})
    own = find_cupy_device(device)
    if comm.size > 1 and wanted == "auto" and can_reach(comm, own):
        try:
            peers = PeerTransport(comm, own)
            if peers.works():
                return peers
        except RankError:  # on all ranks the same: memory that cannot be shared
            pass
    return NcclTransport(comm, device)


def can_reach(comm: Communicator, device: CupyDevice) -> bool:
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
