"""What ranks owe each other: the protocol of a communicator, and how ranks agree.

A rank is a process (or, in tests, a thread) with a part of a matrix. A communicator moves bytes between the
hosts of ranks, by mpi4py or torch.distributed; its transport moves them between GPUs. Operations are prepared
once, with the arrays that they work on, and made many times: so they can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dasp.runtime import check as _check
from dasp.runtime.launcher import EVERYWHERE
from dasp.runtime.types import Array

if TYPE_CHECKING:
    from dasp.distributed.transport import Transport

T = TypeVar("T")

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
        """Send the present contents of the arrays."""

    def finish(self) -> None:
        """Wait until all has arrived and the arrays that were sent may be overwritten."""


class Communicator(Protocol):
    """All that ranks do together; messages and sums are those of the host.

    Attributes
    ----------
    rank, size : int
        The number of this rank, and how many there are.
    timeout : float
        Seconds that a rank waits for another before it raises `RankError`.
    call : context manager
        Work that all ranks do together, as one call. Where an error ends it on one rank, those that wait for
        this one raise a `TypeError` or `ValueError` too, or else a `RankError`; the next call is made as if
        nothing had happened.
    """

    rank: int
    size: int
    timeout: float

    @property
    def call(self) -> AbstractContextManager[None]:
        """A context for a call."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order: small objects that can be pickled."""

    def sum(self, array: Array) -> Callable[[], None]:
        """Prepare to set an array of float64 to its sum over all ranks.

        All ranks get the same bits, and the same ones run after run for one number of ranks.
        """

    def exchange(
        self, sends: Sequence[Message], receives: Sequence[Message], name: str = "exchange"
    ) -> Exchange:
        """Prepare messages; for each that is sent, its receiver prepares one of as many bytes and name."""

    def transport(self, device: str) -> Transport:
        """Return the transport between the GPUs of the ranks; all ranks call it."""

    def locate_call(self) -> int:
        """Return where the ranks are in their calls: the same on all, and each time another number."""

    def let_go(self) -> None:
        """Have this process end without the other ranks, which may be gone: one did not answer."""

    def abort(self, reason: str) -> None:
        """End all ranks, as far as the communicator can; for an error that others cannot learn otherwise."""


def find_communicator(comm: Any, *, timeout: float | None = None) -> Communicator:
    """Return the communicator that ranks of MPI or torch.distributed use here.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup, Communicator
        A group of torch.distributed with gloo or NCCL; its default group is
        `torch.distributed.group.WORLD`. All ranks call this at the same time.
    timeout : float, optional
        Seconds that a rank waits for another: 600, or the value of the environment variable
        DASP_RANK_TIMEOUT. A group of torch.distributed waits as long as it was made to.

    Returns
    -------
    Communicator
        The same for the same `comm`.

    Raises
    ------
    TypeError
        If `comm` is no communicator.
    ValueError
        If the timeout is not positive.
    """
    seconds = _find_timeout(timeout)
    kinds = {one.__module__.partition(".")[0] for one in type(comm).__mro__}
    if "mpi4py" in kinds:
        from dasp.distributed.mpi import find_mpi_communicator

        return find_mpi_communicator(comm, seconds)
    if "torch" in kinds:
        from dasp.distributed.torch import find_torch_communicator

        return find_torch_communicator(comm, seconds)
    if all(hasattr(comm, name) for name in ("gather", "exchange", "transport")):
        own: Communicator = comm
        if timeout is not None:
            own.timeout = seconds
        return own
    raise TypeError(
        f"comm is {_check.kind_of(comm)}; a communicator of mpi4py or a process group of torch.distributed "
        "is needed, such as mpi4py.MPI.COMM_WORLD or torch.distributed.group.WORLD"
    )


def _find_timeout(timeout: float | None) -> float:
    """Return the seconds to wait: the caller's, those of the environment, or `TIMEOUT`."""
    text = os.environ.get(TIMEOUT_VARIABLE, TIMEOUT) if timeout is None else timeout
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        name = "timeout" if timeout is not None else TIMEOUT_VARIABLE
        raise ValueError(f"{name} is {text!r}; a positive number of seconds is needed")
    return seconds


def agree(comm: Communicator, work: Callable[[], T], alike: Callable[[T], dict[str, Any]] | None = None) -> T:
    """Do some work on every rank and return its result, if it succeeded on all of them.

    Parameters
    ----------
    comm : Communicator
    work : callable
        Nothing in it may wait for another rank.
    alike : callable, optional
        Takes the result; returns by name the values that must be equal on all ranks.

    Returns
    -------
    object
        The result of this rank's work.

    Raises
    ------
    TypeError, ValueError, RankError
        On every rank the same, that of the first rank that failed, with the rank's number; or the difference.
    """
    problem: tuple[type[Exception], str] | None = None
    cause: Exception | None = None
    values: dict[str, Any] = {}
    try:
        result = work()
        values = {} if alike is None else alike(result)
    except Exception as error:
        kinds = (kind for kind in (TypeError, ValueError) if isinstance(error, kind))
        problem, cause = (next(kinds, RankError), str(error) or repr(error)), error
    answers = comm.gather((problem, values))
    for rank, (failure, _) in enumerate(answers):
        if failure is not None:
            raise _mark_everywhere(failure[0](f"rank {rank}: {failure[1]}")) from cause
    for name, first in answers[0][1].items():
        for rank, (_, other) in enumerate(answers):
            if other.get(name) != first:
                differ = f"{name} is {first} on rank 0 and {other.get(name)} on rank {rank}"
                raise _mark_everywhere(ValueError(f"{differ}; all ranks must be given the same"))
    return result


def _mark_everywhere(error: Exception) -> Exception:
    error.add_note(EVERYWHERE)
    return error


def find_largest(comm: Communicator, value: float) -> float:
    """Return the largest of a number on all ranks; NaN if one is NaN."""
    return float(np.max(np.array(comm.gather(value))))
