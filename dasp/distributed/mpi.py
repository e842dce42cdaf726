"""Ranks of MPI, through mpi4py: messages of the host's memory.

No operation blocks, and a wait ends with an error if the other rank is gone. Sums are gathered and added in
the order of ranks, because MPI's own sums promise neither one order nor the same bits on all ranks.
"""

from __future__ import annotations

import atexit
import time
from functools import cache
from typing import Any

from dasp.distributed.communicator import Communicator
from dasp.distributed.transport import RankError
from dasp.distributed.watching import make_freed_error
from dasp.runtime.types import Vector

SPIN = 2e-3
"""Seconds for which a rank looks for messages without a pause; later it sleeps between two looks."""

PAUSE = 1e-4
"""Seconds of that sleep."""

TAG = 7

MOST_BYTES = 2**30
"""The most bytes of a message: MPI counts them in an int. Longer ones go in pieces, in order."""


def find_mpi_communicator(comm: Any, timeout: float) -> MpiCommunicator:
    """Return our communicator for MPI's; the first call makes it, with a duplicate of MPI's.

    Raises
    ------
    TypeError
        If `comm` joins two groups of ranks.
    ValueError
        If `comm` is MPI.COMM_NULL, as on a rank that is not in it, or after `comm.Free()`.
    """
    if not comm:
        raise ValueError("comm is MPI.COMM_NULL; a communicator with this rank, not yet freed, is needed")
    key = _make_key()
    own: MpiCommunicator | None = comm.Get_attr(key)
    if own is None:
        own = MpiCommunicator(comm, timeout)
        comm.Set_attr(key, own)
    return own


@cache
def _make_key() -> int:
    from mpi4py import MPI

    return int(MPI.Comm.Create_keyval(delete_fn=_close))


def _close(comm: Any, key: int, own: MpiCommunicator) -> None:
    """Close our communicator when MPI's is freed, by all its ranks together."""
    own.close()


class MpiCommunicator(Communicator):
    """The ranks of a communicator of MPI; see `dasp.distributed.communicator.Communicator`.

    Attributes
    ----------
    mpi : mpi4py.MPI.Comm
        A duplicate of the caller's, which carries our messages alone.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        if comm.Is_inter():
            raise TypeError("comm joins two groups of ranks; a communicator within one group is needed")
        self.mpi = comm.Dup()
        super().__init__(int(self.mpi.Get_rank()), int(self.mpi.Get_size()), timeout)
        self._aborts = False

    def check_mpi(self) -> Any:
        """Return the communicator of MPI.

        Raises
        ------
        RankError
            If it has been freed.
        """
        if not self.mpi:
            raise make_freed_error(self)
        return self.mpi

    def send(self, rank: int, array: Vector) -> list[Any]:
        """Begin to send bytes."""
        mpi = self.check_mpi()
        return [mpi.Isend(piece, dest=rank, tag=TAG) for piece in _cut(array)]

    def receive(self, rank: int, array: Vector) -> list[Any]:
        """Begin to receive bytes."""
        mpi = self.check_mpi()
        return [mpi.Irecv(piece, source=rank, tag=TAG) for piece in _cut(array)]

    def is_done(self, request: list[Any]) -> bool:
        """Return True once all pieces are sent, or have come.

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

    def has_message(self, rank: int) -> bool:
        """Return True if a message from a rank has come and its reception has not begun."""
        return bool(self.check_mpi().Iprobe(source=rank, tag=TAG))

    def pause(self, began: float) -> None:
        """Sleep and look whether any rank has failed, once the wait takes long.

        Raises
        ------
        RankError, TypeError, ValueError
            If time is up, or another rank has left the call.
        """
        waited = time.monotonic() - began
        if waited > self.timeout:
            self.abort_at_exit()
            raise RankError(
                f"rank {self.rank} of {self.size} waited {self.timeout:g} s for another rank, in vain; it "
                "has ended, failed, or works on something else; set DASP_RANK_TIMEOUT to wait longer"
            )
        if waited > SPIN:
            self.look_for_failures()
            time.sleep(PAUSE)

    def abort_at_exit(self) -> None:
        """End all ranks when this process ends: MPI_Finalize would wait for ever for one that is gone."""
        if not self._aborts:
            self._aborts = True
            atexit.register(self.abort)

    def close(self) -> None:
        """Stop using the memory of other GPUs, and free the duplicate."""
        super().close()
        if not self._aborts:
            self.mpi.Free()

    def abort(self) -> None:
        """End every rank of the job."""
        self.mpi.Abort(1)


def _cut(array: Vector) -> list[list[Any]]:
    """Return bytes as buffers of MPI, none too long for its counts."""
    from mpi4py import MPI

    return [[array[first : first + MOST_BYTES], MPI.BYTE] for first in range(0, len(array), MOST_BYTES)]
