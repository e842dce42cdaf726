"""Watch whether other ranks still run, and limit how long a host waits for a GPU that waits for them.

A kernel that waits for another GPU, and a host that waits for that kernel, have no connection that would
break when a process is killed. One thread of a process looks whether the processes of the other ranks on its
machine still run. NCCL waits for ever, so another thread ends the waits that are in vain: kernels around
NCCL's messages tell the host how far they have come (kernels/distributed/halo.cu).

Sources: proc(5), /proc/PID/stat: state is field 3, and the time at which the process began field 22; NCCL
user guide, fault tolerance: ncclCommGetAsyncError, and ncclCommAbort, which another thread may call.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dasp.distributed.communicator import Communicator
from dasp.distributed.transport import RankError, Transport
from dasp.runtime.types import Event, Vector

LOOK = 0.5
"""Seconds between two looks at other processes, or at NCCL."""

ENDED = "ZXx"
"""States of a process that runs no more, but whose parent has not asked how it ended."""

AFTER_END = 1.0
"""Seconds to wait for messages of a process that has ended: what it sent is here by then."""

SPIN, PAUSE = 2e-3, 5e-5
"""Seconds for which the host polls a GPU without a pause, and seconds between two later polls."""

LAST_SECONDS = 10.0
"""Seconds for which GPUs may wait for other ranks when this process ends."""


# Processes


def find_machine() -> tuple[str, ...]:
    """Return a name that is equal on processes that see the same machine and the same processes on it."""
    boot, names = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return (
        platform.node(),
        boot.read_text().strip() if boot.exists() else "",
        str(names.readlink()) if names.is_symlink() else "",
    )


def find_start(process: int) -> str:
    """Return when a process began, as the kernel counts; "" if it has ended or cannot be seen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ENDED else fields[19]


def watch_processes(
    comm: Communicator, tell: Callable[[], Callable[[int], None] | None]
) -> threading.Thread | None:
    """Start a thread that looks from time to time whether another rank has ended; all ranks call this.

    Parameters
    ----------
    comm : Communicator
    tell : weakref.WeakMethod
        Its method is called once with each rank whose process has ended. The thread ends with its object.

    Returns
    -------
    threading.Thread or None
        None if no other rank can be seen.
    """
    mine = find_machine(), os.getpid(), find_start(os.getpid())
    others = {
        rank: (process, start)
        for rank, (machine, process, start) in enumerate(comm.gather(mine))
        if rank != comm.rank and machine == mine[0] and start and find_start(process) == start
    }

    def look() -> None:
        while others and tell() is not None:
            for rank in [one for one, (process, start) in others.items() if find_start(process) != start]:
                del others[rank]
                if (listener := tell()) is not None:
                    listener(rank)
                del listener  # a name would keep its object
            time.sleep(LOOK)

    if not others:
        return None
    thread = threading.Thread(target=look, name="dasp ranks", daemon=True)
    thread.start()
    return thread


# The host and its GPU


def end_with_process(transport: Transport) -> None:
    """Call `end` of a transport when this process ends; not in a fork of it, whose GPU is not its own."""
    atexit.register(_end, weakref.ref(transport), os.getpid())


def _end(transport: Callable[[], Transport | None], process: int) -> None:
    alive = transport()
    if alive is not None and os.getpid() == process:
        alive.end()


def await_event(
    comm: Communicator,
    event: Event,
    give_up: Callable[[], None],
    seconds: float | None = None,
    look: Callable[[], None] | None = None,
) -> None:
    """Wait on the host for an event of a GPU, no longer than `seconds`, or else the communicator's timeout.

    Parameters
    ----------
    comm : Communicator
    event : cupy.cuda.Event
    give_up : callable
        Makes the GPU wait for other ranks no longer.
    seconds : float, optional
    look : callable, optional
        Called now and then; raises an error that is found in another way.

    Raises
    ------
    RankError
        If time is up: the GPU then gives up too, so that it ends.
    """
    limit = comm.timeout if seconds is None else seconds
    began = time.monotonic()
    while not event.done:
        waited = time.monotonic() - began
        if waited > limit:
            give_up()
            raise RankError(
                f"rank {comm.rank} of {comm.size} waited {limit:g} s for "
                "its GPU, which waits for another rank; that has ended, failed, or does something else"
            )
        if waited > SPIN:
            time.sleep(PAUSE)
            if look is not None:
                look()


def make_given_up_error(comm: Communicator, ended: Iterable[int]) -> RankError:
    """Return the error of a rank that has given up waiting for others, some of which may have ended."""
    gone = ", ".join(map(str, ended))
    return RankError(
        f"rank {comm.rank} of {comm.size} has given up waiting for another rank"
        f"{gone and f' (ended: {gone})'}; GPUs send each other nothing after that"
    )


def make_freed_error(comm: Communicator) -> RankError:
    """Return the error of a rank whose communicator has been freed."""
    return RankError(
        f"the communicator of rank {comm.rank} has been freed; make the matrix anew with one that has not"
    )


# NCCL


class NcclWatch:
    """A watch on the messages that a rank's GPU waits for; it gives up if they will not come.

    Parameters
    ----------
    comm : Communicator
    communicators : sequence of cupy.cuda.nccl.NcclCommunicator
    given_up : numpy.ndarray of uint32, shape (1,)
        In the host's memory, where kernels see it too; 0 at first.
    group : callable
        Returns a context that groups the calls of NCCL in it.
    """

    def __init__(
        self,
        comm: Communicator,
        communicators: Sequence[Any],
        given_up: Vector,
        group: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._comm, self._communicators, self._given_up = comm, tuple(communicators), given_up
        self._group, self._wake, self._deadline = group, threading.Event(), math.inf
        self._turns: list[Vector] = []
        self._waits: dict[int, tuple[int, float]] = {}
        self._ended: dict[int, float] = {}
        self._lock = threading.Lock()

    def start(self) -> threading.Thread:
        """Start a thread that looks from time to time, until this object is gone or has given up.

        The thread must start before it is needed: a process that is ending starts no threads.
        """
        reference, wake = weakref.ref(self), self._wake

        def run() -> None:
            while (watch := reference()) is not None:
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
        """True if this rank sends nothing any more."""
        return bool(self._given_up[0])

    def add(self, turns: Vector) -> None:
        """Watch messages that write, to two numbers of the host, which turn began last and which ended."""
        self._turns.append(turns)

    def note_end(self, rank: int) -> None:
        """Note that the process of a rank has ended."""
        self._ended[rank] = time.monotonic()

    def is_in_vain(self, since: float, now: float) -> bool:
        """Return True if messages awaited since a time will not come, because another process has ended."""
        return now - max(since, min(self._ended.values(), default=now)) > AFTER_END

    def hurry(self, seconds: float = math.inf) -> None:
        """Give up after a number of seconds, whatever is awaited; by default never."""
        self._deadline = time.monotonic() + seconds

    def look(self, now: float) -> None:
        """Give up if NCCL reports an error, or messages are overdue."""
        if now > self._deadline or self._is_broken():
            self.give_up()
            return
        for number, turns in enumerate(self._turns):
            begun = int(turns[0])
            if begun == int(turns[1]):
                self._waits.pop(number, None)
                continue
            turn, since = self._waits.get(number, (begun, now))
            if turn != begun:
                since = now
            self._waits[number] = begun, since
            if now - since > self._comm.timeout or self.is_in_vain(since, now):
                self.give_up()
                return

    def _is_broken(self) -> bool:
        """Return True if NCCL reports an error; under the lock its communicators are not freed meanwhile."""
        with self._lock:
            try:
                for each in () if self.has_given_up else self._communicators:
                    each.check_async_error()
            except RuntimeError:
                return True
        return False

    def give_up(self) -> None:
        """Let the GPU wait for no other rank any more; the thread ends NCCL's communicators at once."""
        with self._lock:
            if self.has_given_up:
                return
            self._given_up[0] = 1  # before kernels that see it go on
        self._wake.set()
        self._comm.abort_at_exit()

    def end(self) -> None:
        """End the communicators.

        The calls are one group (NCCL 2.22 and later): NCCL tells all communicators before it frees any, and
        frees one when graphs that hold its calls are gone.
        """
        with contextlib.suppress(RuntimeError), self._group():
            for each in self._communicators:
                each.abort()

    def check(self) -> None:
        """Raise RankError if this rank has given up."""
        if self.has_given_up:
            raise make_given_up_error(self._comm, self._ended)
