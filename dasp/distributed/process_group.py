"""Ranks of a process group of torch.distributed: gloo moves the host's memory, NCCL that of GPUs.

A group with gloo (or gloo for the CPU and NCCL for GPUs) waits for a rank that is gone as long as the
group's own timeout says, and notices at once when its connection breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dasp.distributed.engine import Message, RankError
from dasp.distributed.host import HostEngine


class GroupExchange:
    """Messages between neighbours; see `dasp.distributed.engine.Exchange`."""

    def __init__(self, engine: GroupEngine, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        self._engine = engine
        self._sends = [(engine.peer(rank), engine.tensor(array)) for rank, array in sends if array.nbytes]
        self._receives = [
            (engine.peer(rank), engine.tensor(array)) for rank, array in receives if array.nbytes
        ]
        self._works: list[Any] = []

    def start(self) -> None:
        """Post what is to be received, then send."""
        dist, group = self._engine.dist, self._engine.group
        with self._engine.told():
            works = [dist.irecv(to, peer, group=group) for peer, to in self._receives]
            self._works = works + [dist.isend(what, peer, group=group) for peer, what in self._sends]

    def finish(self) -> None:
        """Wait for all of them."""
        with self._engine.told():
            for work in self._works:
                work.wait()
        self._works = []


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

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        """Return the bytes of an array as a tensor that shares them."""
        return self._torch.from_numpy(array.reshape(-1).view(np.uint8))

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank gave."""
        every: list[Any] = [None] * self.size
        with self.told():
            self.dist.all_gather_object(every, value, group=self.group)
        return every

    def sum(self, array: np.ndarray[Any, Any]) -> Callable[[], None]:
        """Prepare a sum over all ranks, in their order."""
        parts = np.empty((self.size, array.size), np.float64)
        mine = array.reshape(-1)
        source, targets = self._torch.from_numpy(mine), list(self._torch.from_numpy(parts).unbind(0))

        def add() -> None:
            with self.told():
                self.dist.all_gather(targets, source, group=self.group)
            np.add.reduce(parts, axis=0, out=mine)

        return add

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> GroupExchange:
        """Prepare messages."""
        return GroupExchange(self, sends, receives)

    def abort(self, reason: str) -> None:
        """End this process; its connections break, which the others notice."""
        import os
        import sys

        print(f"rank {self.rank}: {reason}", file=sys.stderr, flush=True)
        os._exit(1)
