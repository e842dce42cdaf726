"""What ranks owe each other: the protocol of a communicator, and how ranks agree.

A rank is a process (or, in tests, a thread) with a part of a matrix. A communicator moves bytes between the
hosts of ranks, by mpi4py or torch.distributed; its transport moves them between GPUs. Operations are prepared
once, with the arrays that they work on, and made many times: so they can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from dasp.runtime.launcher import EVERYWHERE
from dasp.runtime.types import Array

T = TypeVar("T")

DeviceArray = Any
"""A cupy.ndarray; CuPy has no types."""

Span = tuple[int, int, int]
"""A rank, and the first and one past the last of the rows that are for it or from it."""

Message = tuple[int, Array]
"""The rank that an array goes to or comes from, and the array, which is contiguous."""


class RankError(RuntimeError):
    """Another rank failed, ended, or did not answer in time."""


class Exchange(Protocol):
    """Messages between neighbours, prepared."""

    def start(self) -> None:
        """Send the present contents of the arrays."""

    def finish(self) -> None:
        """Wait until all has arrived and the arrays that were sent may be overwritten."""


class RowMessages(Protocol):
    """Messages of rows, prepared."""

    def start(self, x: DeviceArray) -> None:
        """Send rows of an array, and put what comes in its place, on the current stream."""


class Transport(Protocol):
    """Messages and sums between GPUs, on CuPy's current stream; all ranks prepare alike.

    Attributes
    ----------
    name : str
        `peers` or `nccl`.
    solver_device : dasp.distributed.space_cuda.RanksDevice or None
        The GPU as solvers see it, once they do.
    count : int
        Messages, sums and graphs of them that were begun: the same on all ranks that are at the same place.
    """

    name: str
    solver_device: Any
    count: int

    def sum(self, numbers: DeviceArray, totals: DeviceArray) -> Callable[[], None]:
        """Prepare to set `totals` to the sum of `numbers`, float64, over all ranks; all get the same bits.

        They may be one array.
        """

    def rows(
        self,
        sends: Sequence[Span],
        places: DeviceArray | None,
        receives: Sequence[Span],
        received: DeviceArray,
    ) -> RowMessages:
        """Prepare to send rows of arrays that come later.

        Parameters
        ----------
        sends : sequence of Span
            Of `places`, or of the rows themselves; neighbour by neighbour.
        places : array of int64, optional
            The rows that are sent.
        receives : sequence of Span
            Of `received`.
        received : array, shape (rows,) or (rows, k)
            Contiguous; of the type and number of columns of what is sent.
        """

    def check(self) -> None:
        """Raise RankError if this rank has given up waiting for another."""

    def wait(self, event: Any) -> None:
        """Wait on the host for an event of the GPU, no longer than the timeout."""

    def give_up(self) -> None:
        """Wait for no other rank any more; later operations raise `RankError`."""

    def close(self) -> None:
        """Leave the memory of other ranks: the communicator is gone, and nothing is sent any more."""

    def end(self) -> None:
        """Wait, not for long, for messages that other ranks may still need; this process ends."""


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
