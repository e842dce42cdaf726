"""How long the host of a rank waits for its GPU, which may wait for other ranks."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from dasp.distributed.engine import Engine, RankError

SPIN, PAUSE = 2e-3, 5e-5
"""Seconds for which the host asks a GPU without pause whether it is done, and those between questions after
that."""


LAST_SECONDS = 10.0
"""For which GPUs may wait for other ranks when this process ends."""


def at_the_end(links: Any) -> None:
    """Have links `end` when this process ends; not in a fork of it, whose GPU is not its own."""
    atexit.register(_end, weakref.ref(links), os.getpid())


def _end(links: Any, process: int) -> None:
    found = links()
    if found is not None and os.getpid() == process:
        found.end()


def await_event(
    engine: Engine,
    event: Any,
    give_up: Callable[[], None],
    seconds: float | None = None,
    look: Callable[[], None] | None = None,
) -> None:
    """Wait on the host for an event of a GPU, no longer than the engine's timeout, or so many seconds.

    Parameters
    ----------
    engine : Engine
    event : cupy.cuda.Event
    give_up : callable
        Has the GPU wait for other ranks no longer.
    seconds : float, optional
    look : callable, optional
        Raises what is known by other ways to be the matter; called now and then.

    Raises
    ------
    RankError
        If time is up: what the GPU waits for is given up then, so that it ends too.
    """
    limit = engine.timeout if seconds is None else seconds
    began = time.monotonic()
    while not event.done:
        waited = time.monotonic() - began
        if waited > limit:
            give_up()
            raise RankError(
                f"rank {engine.rank} of {engine.size} waited {limit:g} s for "
                "its GPU, which waits for another rank; that has ended, failed, or does something else"
            )
        if waited > SPIN:
            time.sleep(PAUSE)
            if look is not None:
                look()


def has_given_up(engine: Engine, ended: Iterable[int]) -> RankError:
    """Return the error of a rank that has given up waiting for others, some of which may have ended."""
    gone = ", ".join(map(str, ended))
    return RankError(
        f"rank {engine.rank} of {engine.size} has given up waiting for another rank"
        f"{gone and f' (ended: {gone})'}; GPUs send each other nothing after that"
    )


def is_freed(engine: Engine) -> RankError:
    """Return the error of a rank whose communicator has been freed."""
    return RankError(
        f"the communicator of rank {engine.rank} has been freed; make the matrix anew with one that has not"
    )
