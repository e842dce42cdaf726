"""Whether the processes of other ranks on this machine still run.

A kernel that waits for another GPU, and a host that waits for that kernel, have no connection that would
break when a process is killed.

Source: proc(5), /proc/PID/stat: state is field 3, and the time at which the process began field 22.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

from dasp.distributed.engine import Engine

LOOK = 0.5
"""Seconds between two looks."""

ENDED = "ZXx"
"""States of a process that runs no more, but whose parent has not asked how it ended."""


def machine() -> tuple[str, ...]:
    """Return what processes have in common that see the same machine and the same processes on it."""
    boot, names = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return (
        platform.node(),
        boot.read_text().strip() if boot.exists() else "",
        str(names.readlink()) if names.is_symlink() else "",
    )


def began(process: int) -> str:
    """Return when a process began, as the kernel counts; nothing if it has ended or cannot be seen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ENDED else fields[19]


def watch(engine: Engine, tell: Any) -> threading.Thread | None:
    """Look from time to time, in a thread of its own, whether another rank has ended; all ranks call this.

    Parameters
    ----------
    engine : Engine
    tell : weakref.WeakMethod
        Takes each rank whose process has ended, once. Nobody looks any more when it is gone.

    Returns
    -------
    threading.Thread or None
        Where none of the other ranks can be seen.
    """
    mine = machine(), os.getpid(), began(os.getpid())
    every = engine.gather(mine)
    others = {
        rank: (process, start)
        for rank, (place, process, start) in enumerate(every)
        if rank != engine.rank and place == mine[0] and start and began(process) == start
    }

    def nobody(rank: int) -> None:
        """Hear nothing."""

    def look() -> None:
        while others and tell() is not None:
            for rank in [one for one, (process, start) in others.items() if began(process) != start]:
                del others[rank]
                (tell() or nobody)(rank)
            time.sleep(LOOK)

    if not others:
        return None
    thread = threading.Thread(target=look, name="dasp ranks", daemon=True)
    thread.start()
    return thread
