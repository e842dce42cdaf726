"""A thread that ends what NCCL waits for in vain.

NCCL waits for ever for a rank that is gone, also where the host waits for its GPU and nobody could raise.
Kernels around its messages tell the host how far they have come (kernels/distributed/watched.cu).

Source: NCCL user guide, fault tolerance: ncclCommGetAsyncError, and ncclCommAbort, which another thread may
call.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from dasp.distributed.engine import Engine
from dasp.distributed.waiting import has_given_up

LOOK = 0.5
"""Seconds between two looks."""

AFTER_END = 1.0
"""Seconds to wait for a process that has ended: what it sent is here by then."""


class Watch:
    """Knows what the GPU of a rank waits for, and gives it up where that comes no more.

    Parameters
    ----------
    engine : Engine
    communicators : sequence of cupy.cuda.nccl.NcclCommunicator
    given_up : numpy.ndarray of uint32, shape (1,)
        In the host's memory, where kernels see it too; 0.
    """

    def __init__(self, engine: Engine, communicators: Sequence[Any], given_up: Any) -> None:
        self._engine, self._communicators, self._given_up = engine, tuple(communicators), given_up
        self._told: list[Any] = []
        self._waits: dict[int, tuple[int, float]] = {}
        self._ended: dict[int, float] = {}
        self._lock = threading.Lock()

    def start(self) -> threading.Thread:
        """Look from time to time, in a thread of its own, while this is there and nothing is wrong."""
        found = weakref.ref(self)

        def run() -> None:
            while (watch := found()) is not None and not watch.has_given_up:
                watch.look(time.monotonic())
                del watch
                time.sleep(LOOK)

        thread = threading.Thread(target=run, name="dasp NCCL", daemon=True)
        thread.start()
        return thread

    @property
    def has_given_up(self) -> bool:
        """Whether this rank sends nothing any more."""
        return bool(self._given_up[0])

    def add(self, told: Any) -> None:
        """Look at messages that tell in two numbers of the host which turn began, and which ended."""
        self._told.append(told)

    def ended(self, rank: int) -> None:
        """Take it that the process of a rank has ended."""
        self._ended[rank] = time.monotonic()

    def in_vain(self, since: float, now: float) -> bool:
        """Whether what is waited for since a time will not come, because another process has ended."""
        return now - max(since, min(self._ended.values(), default=now)) > AFTER_END

    def look(self, now: float) -> None:
        """Give up if NCCL reports an error, or messages are overdue."""
        if self._is_broken():
            self.give_up()
            return
        for number, told in enumerate(self._told):
            begun = int(told[0])
            if begun == int(told[1]):
                self._waits.pop(number, None)
                continue
            turn, since = self._waits.get(number, (begun, now))
            if turn != begun:
                since = now
            self._waits[number] = begun, since
            if now - since > self._engine.timeout or self.in_vain(since, now):
                self.give_up()
                return

    def _is_broken(self) -> bool:
        """Whether NCCL reports an error; of communicators that nobody frees meanwhile."""
        with self._lock:
            try:
                for each in () if self.has_given_up else self._communicators:
                    each.check_async_error()
            except RuntimeError:
                return True
        return False

    def give_up(self) -> None:
        """Have the GPU wait for no other rank any more.

        NCCL frees a communicator only when graphs that hold its calls are gone, and all must be told before
        one is freed: each is ended in a thread of its own, which nobody waits for.
        """
        with self._lock:
            if self.has_given_up:
                return
            self._given_up[0] = 1  # before kernels go on that see it
        for each in self._communicators:
            threading.Thread(target=each.abort, name="dasp NCCL ends", daemon=True).start()
        self._engine.let_go()

    def check(self) -> None:
        """Raise RankError if this rank has given up."""
        if self.has_given_up:
            raise has_given_up(self._engine, self._ended)
