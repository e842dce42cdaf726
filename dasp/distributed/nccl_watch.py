"""A thread that ends what NCCL waits for in vain.

NCCL waits for ever for a rank that is gone, also where the host waits for its GPU and nobody could raise.
Kernels around its messages tell the host how far they have come (kernels/distributed/watched.cu).

Source: NCCL user guide, fault tolerance: ncclCommGetAsyncError, and ncclCommAbort, which another thread may
call.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
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
    together : callable
        Returns a context whose calls of NCCL's are one.
    """

    def __init__(
        self,
        engine: Engine,
        communicators: Sequence[Any],
        given_up: Any,
        together: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._engine, self._communicators, self._given_up = engine, tuple(communicators), given_up
        self._together, self._wake, self._deadline = together, threading.Event(), math.inf
        self._told: list[Any] = []
        self._waits: dict[int, tuple[int, float]] = {}
        self._ended: dict[int, float] = {}
        self._lock = threading.Lock()

    def start(self) -> threading.Thread:
        """Look from time to time, in a thread of its own, while this is there and nothing is wrong.

        It is there before it is needed: a process that ends starts no threads.
        """
        found, wake = weakref.ref(self), self._wake

        def run() -> None:
            while (watch := found()) is not None:
                watch.look(time.monotonic())
                if watch.has_given_up:
                    watch.end()
                    return
                del watch
                wake.wait(LOOK)

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

    def hurry(self, seconds: float = math.inf) -> None:
        """Give up after so many seconds, whatever is waited for."""
        self._deadline = time.monotonic() + seconds

    def look(self, now: float) -> None:
        """Give up if NCCL reports an error, or messages are overdue."""
        if now > self._deadline or self._is_broken():
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
        """Have the GPU wait for no other rank any more; the thread that looks does so at once."""
        with self._lock:
            if self.has_given_up:
                return
            self._given_up[0] = 1  # before kernels go on that see it
        self._wake.set()
        self._engine.let_go()

    def end(self) -> None:
        """End the communicators.

        One group of calls (NCCL 2.22 and later): all are told before any is freed, and NCCL frees one when
        graphs that hold its calls are gone.
        """
        with contextlib.suppress(RuntimeError), self._together():
            for each in self._communicators:
                each.abort()

    def check(self) -> None:
        """Raise RankError if this rank has given up."""
        if self.has_given_up:
            raise has_given_up(self._engine, self._ended)
