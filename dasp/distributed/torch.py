"""Ranks of a process group of torch.distributed: gloo moves the host's memory, NCCL that of GPUs.

A group with gloo (or gloo for the CPU and NCCL for GPUs) waits for a rank that is gone until the group's own
timeout is up, and notices at once if the connection breaks.

gloo cannot tell whether a message has been sent, and a message to a rank that has left the call is not sent
before that rank receives again. So copies are sent, and a thread waits for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dasp.distributed.communicator import Communicator
from dasp.distributed.transport import RankError
from dasp.distributed.watching import make_freed_error
from dasp.runtime.types import Vector

LOOK = 0.05
"""Seconds between two looks for messages on their way: a thread that woke for each would slow sums down."""


@contextmanager
def _rank_errors(rank: int) -> Iterator[None]:
    """Raise a `RankError` in place of an error of torch.distributed."""
    try:
        yield
    except RuntimeError as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RankError(
            f"rank {rank}: torch.distributed says {first}; another rank has ended, failed or is late"
        ) from error


def find_torch_communicator(group: Any, timeout: float) -> TorchCommunicator:
    """Return our communicator for a process group, made by the first call; forget groups that are gone."""
    forget_groups(lambda other: not _is_there(other))
    for other, comm in _GROUPS:
        if other is group:
            return comm
    comm = TorchCommunicator(group, timeout)
    _GROUPS.append((group, comm))
    return comm


_GROUPS: list[tuple[Any, TorchCommunicator]] = []
"""Our communicator for each group: a group cannot be the key of a dictionary with weak references."""


def forget_groups(is_meant: Callable[[Any], bool] = lambda group: True) -> None:
    """Close our communicators of groups, by default of all, before torch.distributed ends the groups."""
    for group, comm in _GROUPS[:]:
        if is_meant(group):
            comm.close()
            _GROUPS.remove((group, comm))


def _is_there(group: Any) -> bool:
    """Return True if torch.distributed has not ended a group yet."""
    import torch.distributed as dist

    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False


def _wait_for_each(requests: deque[Any]) -> None:
    """Wait for requests until one is None: one that is dropped earlier would block all later ones."""
    while True:
        time.sleep(LOOK)
        while requests:
            if (request := requests.popleft()) is None:
                return
            with suppress(RuntimeError):
                request.wait()


class TorchCommunicator(Communicator):
    """The ranks of a process group; see `dasp.distributed.communicator.Communicator`.

    Raises
    ------
    ValueError
        If this process is not in the group, or the group has NCCL alone and not all processes.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        import torch
        import torch.distributed as dist

        self.dist, self.group, self._torch = dist, group, torch
        super().__init__(int(dist.get_rank(group)), int(dist.get_world_size(group)), timeout)
        if self.rank < 0:
            raise ValueError("this process is not in the group comm; only its ranks take part")
        if str(dist.get_backend(group)) == "nccl":  # which moves no memory of the host
            # All processes must make a group: if some alone do, the later groups of the others do not match.
            if self.size < int(dist.get_world_size()):
                raise ValueError(
                    f"comm is a group of NCCL of {self.size} of {dist.get_world_size()} processes; one that "
                    "moves the host's memory too is needed; make it with backend='cpu:gloo,cuda:nccl'"
                )
            self.group = dist.new_group(backend="gloo")
        self._on_their_way: deque[Any] = deque()
        threading.Thread(target=_wait_for_each, args=(self._on_their_way,), daemon=True).start()

    def _find_process(self, rank: int) -> int:
        """Return the number of a rank among all processes.

        Raises
        ------
        RankError
            If the group has been destroyed.
        """
        if not _is_there(self.group):
            raise make_freed_error(self)
        return int(self.dist.get_global_rank(self.group, rank))

    def send(self, rank: int, array: Vector) -> None:
        """Begin to send a copy of bytes, for which nobody has to wait."""
        copy = self._torch.from_numpy(array.copy())
        with _rank_errors(self.rank):
            self._on_their_way.append(self.dist.isend(copy, self._find_process(rank), group=self.group))

    def receive(self, rank: int, array: Vector) -> Any:
        """Begin to receive bytes."""
        with _rank_errors(self.rank):
            return self.dist.irecv(self._torch.from_numpy(array), self._find_process(rank), group=self.group)

    def is_done(self, request: Any) -> bool:
        """Wait for a message of another rank, no longer than the group's timeout; return True."""
        if request is not None:
            with _rank_errors(self.rank):
                request.wait()
        return True

    def close(self) -> None:
        """Stop using the memory of other GPUs; nothing is sent any more."""
        super().close()
        self._on_their_way.append(None)

    def abort(self) -> None:
        """End this process; its connections break, which the others notice."""
        os._exit(1)
