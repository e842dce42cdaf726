"""How long the host of a rank waits for its GPU, which may wait for other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dasp.distributed.engine import Engine, RankError

SPIN, PAUSE = 2e-3, 5e-5
"""Seconds for which the host asks a GPU without pause whether it is done, and those between questions after
that."""


def await_event(
    engine: Engine, event: Any, give_up: Callable[[], None], seconds: float | None = None
) -> None:
    """Wait on the host for an event of a GPU, no longer than the engine's timeout, or so many seconds.

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
