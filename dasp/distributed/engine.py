"""What ranks owe each other: the protocol of an engine, and how ranks agree.

A rank is a process (or, in tests, a thread) with a part of a matrix. An engine moves bytes between ranks;
what moves them is mpi4py or torch.distributed, and between GPUs NCCL. Operations are prepared once, with the
arrays that they work on, and made many times: so they can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from dasp.runtime.launcher import EVERYWHERE

Array = Any
"""numpy.ndarray or cupy.ndarray."""

Message = tuple[int, Array]
"""The rank that an array goes to or comes from, and the array, which is contiguous."""

TIMEOUT = 600.0
"""Seconds that a rank waits for another, where nothing else is said."""

TIMEOUT_VARIABLE = "DASP_RANK_TIMEOUT"
"""The environment variable that says otherwise."""


class RankError(RuntimeError):
    """Another rank failed, ended, or did not answer in time."""


class Exchange(Protocol):
    """Messages between neighbours, prepared."""

    def start(self) -> None:
        """Send what the arrays hold now; on a GPU, on the current stream."""

    def finish(self) -> None:
        """Wait until all has arrived and what was sent may be overwritten; on a GPU the stream does that."""


class Links(Protocol):
    """What moves arrays of one kind of device between ranks."""

    def sum(self, array: Array) -> Callable[[], None]:
        """Prepare to set an array of float64 to its sum over all ranks.

        All ranks get the same bits, and the same ones run after run for one number of ranks.
        """

    def exchange(
        self, sends: Sequence[Message], receives: Sequence[Message], name: str = "exchange"
    ) -> Exchange:
        """Prepare messages; for each that is sent, its receiver prepares one of as many bytes and name."""

    def wait(self, event: Any = None) -> None:
        """Wait on the host for an event of a GPU, no longer than the timeout."""


class Engine(Links, Protocol):
    """All that ranks do together; its links are those of the host.

    Attributes
    ----------
    rank, size : int
        The number of this rank, and how many there are.
    timeout : float
        Seconds that a rank waits for another before it raises `RankError`.
    call : context manager
        What all ranks do together, as one. Where an error ends it on one rank, those that wait for this one
        raise a `TypeError` or `ValueError` too, or else a `RankError`; the next call is made as if nothing
        had happened.
    """

    rank: int
    size: int
    timeout: float
    call: AbstractContextManager[None]

    def count_routes(self) -> int:
        """Return a number that is the same on all ranks, and another one each time; all ranks call it."""

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank gave, in the order of ranks: small objects that can be pickled."""

    def links(self, device: str) -> Any:
        """Return what moves arrays of a device: of `cpu` as `Links`, of `cuda:N` as `DeviceLinks`."""

    def let_go(self) -> None:
        """Have this process end without the other ranks, which may be gone; for one that was waited for in
        vain."""

    def abort(self, reason: str) -> None:
        """End all ranks, as far as the engine can; for an error that others cannot learn otherwise."""


def timeout_from(given: float | None) -> float:
    """Return the seconds to wait: those given, those of the environment, or `TIMEOUT`.

    Raises
    ------
    ValueError
        If that is no positive number.
    """
    told = os.environ.get(TIMEOUT_VARIABLE, TIMEOUT) if given is None else given
    try:
        seconds = float(told)
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        name = "timeout" if given is not None else TIMEOUT_VARIABLE
        raise ValueError(f"{name} is {told!r}; a positive number of seconds is needed")
    return seconds


def agree(
    engine: Engine, work: Callable[[], Any], alike: Callable[[Any], dict[str, Any]] | None = None
) -> Any:
    """Do some work on every rank and return its result, if it succeeded on all of them.

    Parameters
    ----------
    engine : Engine
    work : callable
        Nothing in it may wait for another rank.
    alike : callable, optional
        Takes the result; returns by name what must be equal on all ranks.

    Returns
    -------
    Any
        What this rank's work returned.

    Raises
    ------
    TypeError, ValueError, RankError
        On every rank the same, that of the first rank that failed, with the rank's number; or what differs.
    """
    result, problem, told = None, None, {}
    try:
        result = work()
        told = {} if alike is None else alike(result)
    except Exception as error:
        problem = isinstance(error, TypeError), isinstance(error, ValueError), str(error) or repr(error)
        cause: Exception | None = error
    else:
        cause = None
    answers = engine.gather((problem, told))
    for rank, (found, _) in enumerate(answers):
        if found is not None:
            kind = TypeError if found[0] else ValueError if found[1] else RankError
            raise _everywhere(kind(f"rank {rank}: {found[2]}")) from cause
    for name, first in answers[0][1].items():
        for rank, (_, other) in enumerate(answers):
            if other.get(name) != first:
                differ = f"{name} is {first} on rank 0 and {other.get(name)} on rank {rank}"
                raise _everywhere(ValueError(f"{differ}; all ranks must be given the same"))
    return result


def _everywhere(error: Exception) -> Exception:
    error.add_note(EVERYWHERE)
    return error


def total(engine: Engine, value: float) -> float:
    """Return the sum of a number over all ranks, the same bits on each."""
    return float(np.add.reduce(np.array(engine.gather(value))))


def largest(engine: Engine, value: float) -> float:
    """Return the largest of a number on all ranks; NaN if one is NaN."""
    return float(np.max(np.array(engine.gather(value))))
