"""Ranks of a process group of torch.distributed: gloo moves the host's memory, NCCL that of GPUs.

A group with gloo (or gloo for the CPU and NCCL for GPUs) waits for a rank that is gone as long as the
group's own timeout says, and notices at once when its connection breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.distributed.engine import RankError
from dasp.distributed.host import HostEngine


class _Told:
    """Makes a `RankError` of what torch raises."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):
            first = str(error).strip().splitlines()[0] if str(error).strip() else kind.__name__
            raise RankError(
                f"rank {self._rank}: torch.distributed says {first}; another rank has ended, failed "
                "or is late"
            ) from error


def group_engine(group: Any, timeout: float) -> GroupEngine:
    """Return the engine of a process group, the one that was made first; let go of groups that are gone."""
    forget_engines(lambda known: not _is_there(known))
    for known, engine in _ENGINES:
        if known is group:
            engine.timeout = timeout
            return engine
    made = GroupEngine(group, timeout)
    _ENGINES.append((group, made))
    return made


_ENGINES: list[tuple[Any, GroupEngine]] = []
"""Of each group that was asked for: a group cannot be the key of a dictionary that lets go of it."""


def forget_engines(is_meant: Callable[[Any], bool] = lambda group: True) -> None:
    """Let go of groups, of all of them before torch.distributed ends them."""
    for group, engine in _ENGINES[:]:
        if is_meant(group):
            engine.close()
            _ENGINES.remove((group, engine))


def _is_there(group: Any) -> bool:
    """Whether torch.distributed has not ended a group yet."""
    import torch.distributed as dist

    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False


class GroupEngine(HostEngine):
    """All that ranks of a process group do together; see `dasp.distributed.engine.Engine`.

    Raises
    ------
    ValueError
        If this process is not in the group, or that is one of NCCL alone and not of all processes.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        import torch
        import torch.distributed as dist

        self.dist, self.group, self._torch = dist, group, torch
        super().__init__(int(dist.get_rank(group)), int(dist.get_world_size(group)), timeout)
        if self.rank < 0:
            raise ValueError("this process is not in the group comm; only its ranks take part")
        if str(dist.get_backend(group)) == "nccl":  # which moves no memory of the host
            # All processes must make a group: one made by some alone gets the others' later ones out of step.
            if self.size < int(dist.get_world_size()):
                raise ValueError(
                    f"comm is a group of NCCL of {self.size} of {dist.get_world_size()} processes; one that "
                    "moves the host's memory too is needed; make it with backend='cpu:gloo,cuda:nccl'"
                )
            self.group = dist.new_group(backend="gloo")

    def told(self) -> _Told:
        """Return a context that makes a `RankError` of what torch raises."""
        return _Told(self.rank)

    def peer(self, rank: int) -> int:
        """Return the number of a rank among all processes."""
        return int(self.dist.get_global_rank(self.group, rank))

    def send(self, rank: int, array: np.ndarray[Any, Any]) -> Any:
        """Begin to send bytes."""
        with self.told():
            return self.dist.isend(self._torch.from_numpy(array), self.peer(rank), group=self.group)

    def receive(self, rank: int, array: np.ndarray[Any, Any]) -> Any:
        """Begin to receive bytes."""
        with self.told():
            return self.dist.irecv(self._torch.from_numpy(array), self.peer(rank), group=self.group)

    def is_done(self, request: Any) -> bool:
        """Wait for a request, as long as the group was made to."""
        with self.told():
            request.wait()
        return True

    def abort(self, reason: str) -> None:
        """End this process; its connections break, which the others notice."""
        import os
        import sys

        print(f"rank {self.rank}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)
