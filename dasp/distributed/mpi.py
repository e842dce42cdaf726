"""Ranks of MPI, through mpi4py: messages of the host's memory; those of GPUs by NCCL (nccl.py).

Every operation is one that does not block, and is waited for with an end: a rank that is gone is noticed.
Sums are gathered and added in the order of ranks, because MPI promises neither one order nor the same bits
on all ranks for its own.
"""

from __future__ import annotations

import atexit
import pickle
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dasp.distributed.engine import Message, RankError
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


def _pieces(messages: Sequence[Message]) -> list[tuple[int, Any]]:
    from mpi4py import MPI

    found = []
    for rank, array in messages:
        whole = array.reshape(-1).view(np.uint8) if array.nbytes else array
        for first in range(0, array.nbytes, MOST_BYTES):
            found.append((rank, [whole[first : first + MOST_BYTES], MPI.BYTE]))
    return found


class MpiExchange:
    """Messages between neighbours; see `dasp.distributed.engine.Exchange`."""

    def __init__(self, engine: MpiEngine, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._engine = engine
        self._sends, self._receives = _pieces(sends), _pieces(receives)
        self._requests: list[Any] = []

    def start(self) -> None:
        """Post what is to be received, then send."""
        comm = self._engine.open_comm()
        self._requests = [comm.Irecv(to, source=rank, tag=TAG) for rank, to in self._receives]
        self._requests += [comm.Isend(what, dest=rank, tag=TAG) for rank, what in self._sends]

    def finish(self) -> None:
        """Wait for all of them."""
        if self._requests:
            self._engine.complete(self._requests, "a message of a neighbour")
            self._requests = []


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

    def complete(self, requests: list[Any], what: str) -> None:
        """Wait for requests, no longer than the timeout.

        Raises
        ------
        RankError
            If time is up, or MPI reports an error.
        """
        from mpi4py import MPI

        began = time.monotonic()
        try:
            while not MPI.Request.Testall(requests):
                waited = time.monotonic() - began
                if waited > self.timeout:
                    raise RankError(self._gone(what))
                if waited > SPIN:
                    time.sleep(PAUSE)
        except MPI.Exception as error:
            raise RankError(f"rank {self.rank}: MPI says {error}; another rank may have ended") from error

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

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank gave."""
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        what = "the other ranks to come to the same point"
        self.complete([self.open_comm().Iallgather(np.array([len(mine)], np.int64), sizes)], what)
        every = np.empty(int(sizes.sum()), np.uint8)
        starts = np.cumsum(sizes) - sizes
        target = [every, (sizes.tolist(), starts.tolist())]
        self.complete([self.comm.Iallgatherv(mine, target)], what)
        return [
            pickle.loads(every[start : start + size].tobytes())
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]

    def sum(self, array: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Prepare a sum over all ranks, in their order."""
        parts = np.empty((self.size, array.size), np.float64)
        mine = array.reshape(-1)

        def add() -> None:
            request = self.open_comm().Iallgather(mine, parts)
            self.complete([request], "a sum over all ranks")
            np.add.reduce(parts, axis=0, out=mine)

        return add

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> MpiExchange:
        """Prepare messages."""
        return MpiExchange(self, sends, receives)

    def close(self) -> None:
        """Let go of what GPUs hold of each other's, and of the communicator that is the engine's own."""
        super().close()
        if not self._aborts:
            self.comm.Free()

    def abort(self, reason: str) -> None:
        """End every rank of the job."""
        self.comm.Abort(1)
