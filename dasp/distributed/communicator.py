"""Calls, gathers, sums and exchanges between the hosts of ranks, for MPI and torch alike.

A rank is a process (or, in tests, a thread) with a part of a matrix.

Every message begins with a head of fixed size: its label (the numbers of a call and of an operation in that
call, and the operation's name) and the bytes of the message. A short message stands in its head, a longer one
follows it. A rank that leaves a call with an error tells the others, and all go on with the next call: a
message of an older call is received and dropped, and one of another operation is an error, which names both.
So no rank mistakes one for another.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dasp.distributed.transport import Message, RankError, Transport
from dasp.io.files import MatrixFileError
from dasp.runtime.ranks import EVERYWHERE, is_raised_everywhere
from dasp.runtime.types import Vector

T = TypeVar("T")

Request = Any
"""A message on its way, as mpi4py, torch or a test represents it."""

INSIDE = 424
"""The most bytes of a message that stands in its head."""

HEAD = np.dtype(
    [("call", "i8"), ("step", "i8"), ("name", "S64"), ("nbytes", "i8"), ("inside", np.uint8, (INSIDE,))]
)
"""The head of a message."""

FAILED = -1
"""The step of a message which says that a rank left the call with an error, and with which."""

HEARD = "Another rank raised this."
"""The note of an error that another rank has left the call with; its text begins with that rank's number."""

KINDS = RankError, TypeError, MatrixFileError, ValueError
"""The types of errors that other ranks raise too; the first one replaces all other types."""


class Call(AbstractContextManager[None]):
    """A call that all ranks make, as a context; calls inside it belong to it.

    Raises
    ------
    RuntimeError
        If another thread of this rank is in a call: ranks cannot know which of their threads belong together.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self.depth, self._lock = comm, 0, threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"another thread of rank {self._comm.rank} makes a call with this communicator; one thread "
                "of each rank must make all calls, or each thread needs a communicator of its own"
            )
        self.depth += 1
        if self.depth == 1:
            self._comm.begin_call()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.depth == 1 and not is_raised_everywhere(error):
                self._comm.fail(error)
        finally:
            self.depth -= 1
            self._lock.release()


class Label(NamedTuple):
    """An operation that ranks make together: the number of its call, its own number there, and its name."""

    call: int
    step: int
    name: bytes

    def __str__(self) -> str:
        """Return the label in words."""
        return f"call {self.call}, {self.name.decode(errors='replace')}"


class Arrived(NamedTuple):
    """A message that has come from another rank."""

    label: Label
    data: Vector


class Inbox:
    """Messages from one rank, in the order in which it sent them."""

    def __init__(self, comm: Communicator, rank: int) -> None:
        self._comm, self._rank = comm, rank
        self._head = np.zeros(1, HEAD)
        self._request: Request = None
        self._rest: Vector | None = None  # a message that follows its head
        self._early: deque[Arrived] = deque()  # messages for which no call has waited yet

    def receive(self, label: Label, target: Vector) -> bool:
        """Take the bytes that have come; return True once the message with this label is in `target`.

        Raises
        ------
        RankError, TypeError, ValueError
            If the other rank has failed, or is at another operation or call.
        """
        while message := self._early.popleft() if self._early else self._take_next(label, target):
            other, data = message
            if (other, data.nbytes) == (label, target.nbytes):
                if data is not target:
                    target[:] = data
                return True
            if (other.call, other.step) == (label.call, FAILED):
                raise self._make_error(data)
            if other.call >= label.call:
                self._early.appendleft(message)  # of a later call, perhaps
                self._comm.latest_call = max(self._comm.latest_call, other.call)
                raise _make_order_error(self._comm.rank, label, self._rank, other)
        return False

    def look_for_failure(self, call: int) -> None:
        """Raise the error of the other rank if it has left this call; keep other messages for later."""
        while self._request is not None or self._comm.has_message(self._rank):
            message = self._take_next(None, np.empty(0, np.uint8))
            if message is None:
                break
            self._early.append(message)
        self._early = deque(one for one in self._early if one.label.call >= call)
        for label, data in self._early:
            if (label.call, label.step) == (call, FAILED):
                raise self._make_error(data)

    def _take_next(self, label: Label | None, target: Vector) -> Arrived | None:
        """Return the next message, in `target` if it is long and has this label; None if it is incomplete."""
        if self._request is None:
            self._request = self._comm.receive(self._rank, self._head.view(np.uint8))
        if not self._comm.is_done(self._request):
            return None
        call, step, name, nbytes, inside = self._head[0].item()
        own = Label(call, step, name)
        if self._rest is None and nbytes > INSIDE:
            wanted = (own, nbytes) == (label, target.nbytes)
            self._rest = target if wanted else np.empty(nbytes, np.uint8)
            self._request = self._comm.receive(self._rank, self._rest)
            if not self._comm.is_done(self._request):
                return None
        data = inside[:nbytes].copy() if self._rest is None else self._rest
        self._request, self._rest = None, None
        return Arrived(own, data)

    def _make_error(self, data: Vector) -> Exception:
        text = data.tobytes().decode(errors="replace")
        error: Exception = KINDS[int(text[0])](text[1:])
        error.add_note(HEARD)
        return error


def _make_order_error(rank: int, mine: object, other: int, theirs: object) -> RankError:
    return RankError(
        f"rank {rank} and rank {other} are not at the same operation: rank {rank} is at {mine}; rank {other} "
        f"at {theirs}; all ranks must make the same calls in the same order, with as many columns of one type"
    )


class Exchange:
    """Prepared messages between neighbours; a receiver prepares each with the same name and bytes."""

    def __init__(
        self, comm: Communicator, sends: Sequence[Message], receives: Sequence[Message], name: str
    ) -> None:
        self._comm, self._name = comm, name.encode()[: HEAD["name"].itemsize]
        self._sends = [(rank, _flat(array)) for rank, array in sends]
        self._receives = [(rank, _flat(array)) for rank, array in receives]
        self._heads = np.zeros(len(self._sends), HEAD)
        self._heads["nbytes"] = [array.nbytes for _, array in self._sends]
        self._sending: list[Request] = []
        self._label = Label(0, 0, self._name)

    def start(self) -> None:
        """Begin to send."""
        if self._sending:  # a failed call left messages on their way: their heads must stay as they are
            self._heads = self._heads.copy()
        self._label = self._comm.begin_operation(self._name)
        self._heads["call"], self._heads["step"], self._heads["name"] = self._label
        self._sending = []
        self._comm.keep(self._sending, self._heads)
        for k, (rank, array) in enumerate(self._sends):
            if array.nbytes <= INSIDE:
                self._heads["inside"][k, : array.nbytes] = array
            self._sending.append(self._comm.send(rank, self._heads[k : k + 1].view(np.uint8)))
            if array.nbytes > INSIDE:
                self._sending.append(self._comm.send(rank, array))

    def finish(self) -> None:
        """Wait until all messages have come and are sent."""
        waiting: list[Callable[[], bool]] = [
            partial(self._comm.inbox(rank).receive, self._label, array) for rank, array in self._receives
        ]
        waiting += [partial(self._comm.is_done, request) for request in self._sending]
        self._comm.wait_for(waiting)
        self._comm.forget(self._sending)
        self._sending = []

    def complete(self) -> None:
        """Send, and wait."""
        self.start()
        self.finish()


def _flat(array: Vector) -> Vector:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)


class Communicator:
    """A group of ranks, and the messages and sums between their hosts.

    A subclass sends and receives bytes, says if a request is done, and pauses between two looks.

    Attributes
    ----------
    rank, size : int
        The number of this rank, and how many there are.
    timeout : float
        Seconds that a rank waits for another before it raises `RankError`.
    call : Call
        A context for work that all ranks do together, as one call. If an error ends it on one rank, the ranks
        that wait for this one raise it too if it is a `TypeError` or `ValueError`, else a `RankError`. The
        next call is made as if nothing had happened.
    latest_call : int
        The latest call in which this rank has met another.
    transports : dict
        Those between the ranks' GPUs, by device; see `dasp.distributed.launch.find_transport`.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.transports: dict[str, Transport] = {}
        self.call = Call(self)
        self._number, self._step, self._has_failed = 0, 0, False
        self.latest_call = 0
        self._inboxes: dict[int, Inbox] = {}
        self._kept: dict[int, tuple[list[Request], Vector]] = {}

    def send(self, rank: int, array: Vector) -> Request:
        """Begin to send bytes, which must not change until they are sent; return a request."""
        raise NotImplementedError

    def receive(self, rank: int, array: Vector) -> Request:
        """Begin to receive bytes; return a request. Messages of a rank come in the order it sent them."""
        raise NotImplementedError

    def is_done(self, request: Request) -> bool:
        """Return True once a request is done; a communicator may wait until it is."""
        raise NotImplementedError

    def has_message(self, rank: int) -> bool:
        """Return True if a message from a rank has come and its reception has not begun."""
        raise NotImplementedError

    def pause(self, began: float) -> None:
        """Pause between two looks for messages; raise RankError if time is up."""

    def look_for_failures(self) -> None:
        """Raise the error of any rank that has left this call, even if this rank does not wait for it."""
        for rank in range(self.size):
            if rank != self.rank:
                self.inbox(rank).look_for_failure(self._number)

    def begin_call(self) -> None:
        """Count a call; after one that failed, give up transports whose GPUs are not at the same place."""
        self._number, self._step = self._number + 1, 0
        if self._has_failed:
            self._has_failed = False
            if self.transports:
                self._meet_again()

    def _meet_again(self) -> None:
        """Give up the transports unless all GPUs have begun equally many messages, which have no numbers."""
        try:
            counts = self.gather(tuple(transport.count for transport in self.transports.values()))
        except (RankError, TypeError, ValueError):  # another rank has not failed, and does not gather
            counts = []
        if len(set(counts)) != 1:
            for transport in self.transports.values():
                transport.give_up()

    def begin_operation(self, name: bytes) -> Label:
        """Return the label of the next operation."""
        if not self.call.depth:
            self.begin_call()
        self._step += 1
        return Label(self._number, self._step, name)

    def fail(self, error: BaseException) -> None:
        """Tell all ranks that this one has left the call; after calls that others alone made, catch up."""
        self._has_failed = True
        self._number = max(self._number, self.latest_call)
        kind = next((k for k, one in enumerate(KINDS) if isinstance(error, one)), 0)
        origin = "" if HEARD in getattr(error, "__notes__", ()) else f"rank {self.rank}: "
        name = "" if isinstance(error, KINDS) else f"{type(error).__name__}: "
        text = f"{kind}{origin}{name}{error}".encode()[:INSIDE]
        head = np.zeros(1, HEAD)
        head[0] = self._number, FAILED, b"an error", len(text), 0
        head["inside"][0, : len(text)] = np.frombuffer(text, np.uint8)
        try:
            sent = [self.send(rank, head.view(np.uint8)) for rank in range(self.size) if rank != self.rank]
        except RankError:  # the other ranks cannot be reached any more
            return
        self.keep(sent, head)

    def keep(self, requests: list[Request], array: Vector) -> None:
        """Keep messages on their way, whose bytes MPI reads until they are sent."""
        self._kept[id(requests)] = requests, array

    def forget(self, requests: list[Request]) -> None:
        """Drop messages that are sent."""
        self._kept.pop(id(requests), None)

    def inbox(self, rank: int) -> Inbox:
        """Return the messages from a rank."""
        return self._inboxes.setdefault(rank, Inbox(self, rank))

    def wait_for(self, waiting: list[Callable[[], bool]]) -> None:
        """Call functions until each has returned True once.

        Raises
        ------
        RankError, TypeError, ValueError
            If time is up, or another rank has failed.
        """
        began = time.monotonic()
        while waiting := [one for one in waiting if not one()]:
            self.pause(began)

    def gather(self, value: T, name: str = "values") -> list[T]:
        """Return the values of all ranks, in the order of ranks: small objects that can be pickled.

        Ranks that gather by different names are not at the same operation.
        """
        with self.call:
            mine = np.frombuffer(pickle.dumps(value), np.uint8)
            sizes = np.empty((self.size, 1), np.int64)
            sizes[0] = len(mine)
            sizes = self._prepare_gather(sizes, f"sizes of {name}")()
            rows = np.empty((self.size, int(sizes.max())), np.uint8)
            rows[0, : len(mine)] = mine
            rows = self._prepare_gather(rows, name)()
            return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes[:, 0], strict=True)]

    def sum(self, numbers: Vector, totals: Vector) -> Callable[[], None]:
        """Prepare to set `totals` to the sum of `numbers`, two vectors of float64, over all ranks.

        They may be one array. Numbers are added in the order of ranks, so that all get the same bits, and the
        same ones run after run for one number of ranks.
        """
        rows = np.empty((self.size, len(numbers)), np.float64)
        gather = self._prepare_gather(rows, f"sum of {len(numbers)} numbers")

        def add() -> None:
            rows[0] = numbers
            np.add.reduce(gather(), axis=0, out=totals)

        return add

    def _prepare_gather(self, rows: Vector, name: str) -> Callable[[], Vector]:
        """Prepare to gather row 0 of all ranks; row k comes from the k-th rank after this one.

        Source: Bruck et al., Efficient algorithms for all-to-all communications, IEEE TPDS 8 (1997).
        """
        rounds, order = [], (np.arange(self.size) - self.rank) % self.size
        for k in range((self.size - 1).bit_length()):
            first, end = 1 << k, min(2 << k, self.size)
            sends = [((self.rank - first) % self.size, rows[: end - first])]
            receives = [((self.rank + first) % self.size, rows[first:end])]
            rounds.append(Exchange(self, sends, receives, name))

        def gather() -> Vector:
            for exchange in rounds:
                exchange.complete()
            in_order: Vector = rows[order]
            return in_order

        return gather

    def locate_call(self) -> int:
        """Return a number for the latest operation: equal on all ranks, and given to no other."""
        return self._number << 20 | self._step

    def abort_at_exit(self) -> None:
        """End all ranks when this process ends, if its end would wait for one that did not answer."""

    def abort(self) -> None:
        """End all ranks, as far as possible, for an error that others cannot learn of otherwise."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop using the memory of other GPUs; nothing is sent any more."""
        for transport in self.transports.values():
            transport.close()
        self.transports.clear()


def agree(
    comm: Communicator,
    work: Callable[[], T],
    alike: Callable[[T], dict[str, Any]] | None = None,
    name: str = "agreement",
) -> T:
    """Do some work on every rank and return its result, if it succeeded on all of them.

    Parameters
    ----------
    comm : Communicator
    work : callable
        Nothing in it may wait for another rank.
    alike : callable, optional
        Takes the result; returns by name the values that must be equal on all ranks.
    name : str
        Says what the ranks agree on, for the error where they are not at the same operation.

    Returns
    -------
    object
        The result of this rank's work.

    Raises
    ------
    TypeError, ValueError, RankError
        The same on every rank: the error of the first rank that failed, with its number, a ValueError that
        says which value differs, or a RankError if ranks have no value in common, as in different calls.
    """
    problem: tuple[type[Exception], str] | None = None
    cause: Exception | None = None
    values: dict[str, Any] = {}
    try:
        result = work()
        values = {} if alike is None else alike(result)
    except Exception as error:
        kind = next((one for one in KINDS if isinstance(error, one)), RankError)
        problem, cause = (kind, str(error) or repr(error)), error
    answers = comm.gather((problem, values), name)
    for rank, (failure, _) in enumerate(answers):
        if failure is not None:
            raise _mark_everywhere(failure[0](f"rank {rank}: {failure[1]}")) from cause
    own = answers[0][1]
    for rank, (_, other) in enumerate(answers):
        if own.keys() != other.keys() and own.keys().isdisjoint(other.keys()):
            first, second = (f"{name} on {', '.join(keys)}" for keys in (own, other))
            raise _mark_everywhere(_make_order_error(0, first, rank, second))
    for one in own:
        for rank, (_, other) in enumerate(answers):
            if other.get(one, own[one]) != own[one]:
                differ = f"{one} is {own[one]} on rank 0 and {other[one]} on rank {rank}"
                raise _mark_everywhere(ValueError(f"{differ}; all ranks must be given the same"))
    return result


def _mark_everywhere(error: Exception) -> Exception:
    error.add_note(EVERYWHERE)
    return error


def find_largest(comm: Communicator, value: float) -> float:
    """Return the largest value of any rank; NaN if one is NaN."""
    return float(np.max(np.array(comm.gather(value))))
