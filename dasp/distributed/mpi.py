"""Ranks of MPI, through mpi4py: messages of the host's memory; those of GPUs by NCCL (nccl.py).

Every operation is one that does not block, and is waited for with an end: a rank that is gone is noticed.
Sums are gathered and added in the order of ranks, because MPI promises neither one order nor the same bits
on all ranks for its own.
"""

from __future__ import annotations

import atexit
import time
from functools import cache
from typing import Any

import numpy as np

from dasp.distributed.engine import RankError
from dasp.distributed.host import HostEngine
from dasp.distributed.waiting import is_freed

SPIN = 2e-3
"""Seconds for which a rank asks without pause whether something has arrived; then it sleeps between."""

PAUSE = 1e-4
"""Seconds between two questions after that."""

TAG = 7

MOST_BYTES = 2**30
"""Of a message: MPI counts them in an int. Longer ones go in pieces, which arrive in their order."""


def mpi_engine(comm: Any, timeout: float) -> MpiEngine:
    """Return the engine of a communicator, the one that was made first: it has a communicator of its own."""
    key = _key()
    found: MpiEngine | None = comm.Get_attr(key)
    if found is None:
        found = MpiEngine(comm, timeout)
        comm.Set_attr(key, found)
    found.timeout = timeout
    return found


@cache
def _key() -> int:
    from mpi4py import MPI

    return int(MPI.Comm.Create_keyval(delete_fn=_freed))


def _freed(comm: Any, key: int, engine: MpiEngine) -> None:
    """Let go of the engine of a communicator that is freed, which all its ranks do together."""
    engine.close()


class MpiEngine(HostEngine):
    """All that ranks of MPI do together; see `dasp.distributed.engine.Engine`."""

    def __init__(self, comm: Any, timeout: float) -> None:
        if comm.Is_inter():
            raise TypeError("comm joins two groups of ranks; a communicator within one group is needed")
        self.comm = comm.Dup()
        super().__init__(int(self.comm.Get_rank()), int(self.comm.Get_size()), timeout)
        self._aborts = False

    def open_comm(self) -> Any:
        """Return the communicator.

        Raises
        ------
        RankError
            If it has been freed.
        """
        if not self.comm:
            raise is_freed(self)
        return self.comm

    def send(self, rank: int, array: np.ndarray[Any, Any]) -> list[Any]:
        """Begin to send bytes."""
        comm = self.open_comm()
        return [comm.Isend(piece, dest=rank, tag=TAG) for piece in _pieces(array)]

    def receive(self, rank: int, array: np.ndarray[Any, Any]) -> list[Any]:
        """Begin to receive bytes."""
        comm = self.open_comm()
        return [comm.Irecv(piece, source=rank, tag=TAG) for piece in _pieces(array)]

    def is_done(self, request: list[Any]) -> bool:
        """Whether all pieces are sent, or have come.

        Raises
        ------
        RankError
            If MPI reports an error.
        """
        from mpi4py import MPI

        try:
            return bool(MPI.Request.Testall(request))
        except MPI.Exception as error:
            raise RankError(f"rank {self.rank}: MPI says {error}; another rank may have ended") from error

    def pause(self, began: float) -> None:
        """Sleep if this takes long.

        Raises
        ------
        RankError
            If time is up.
        """
        waited = time.monotonic() - began
        if waited > self.timeout:
            raise RankError(self._gone("another rank"))
        if waited > SPIN:
            time.sleep(PAUSE)

    def _gone(self, what: str) -> str:
        self.let_go()
        return (
            f"rank {self.rank} of {self.size} waited {self.timeout:g} s for {what}, in vain; another rank "
            "has ended, failed, or works on something else; set DASP_RANK_TIMEOUT to wait longer"
        )

    def let_go(self) -> None:
        """End all ranks with this one: MPI_Finalize would wait for the rank that is gone, for ever."""
        if not self._aborts:
            self._aborts = True
            atexit.register(self.abort, "a rank did not answer")

    def close(self) -> None:
        """Let go of what GPUs hold of each other's, and of the communicator that is the engine's own."""
        super().close()
        if not self._aborts:
            self.comm.Free()

    def abort(self, reason: str) -> None:
        """End every rank of the job."""
        self.comm.Abort(1)


def _pieces(array: np.ndarray[Any, Any]) -> list[list[Any]]:
    """Return bytes as buffers of MPI, none too long for its counts."""
    from mpi4py import MPI

    return [[array[first : first + MOST_BYTES], MPI.BYTE] for first in range(0, len(array), MOST_BYTES)]
