"""How ranks stop waiting where NCCL would wait for ever: kernels in the emulator, a watch with stand-ins."""

from __future__ import annotations

import contextlib
import gc
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasp.distributed import RankError, watching
from dasp.distributed.nccl import BEGIN, END, NcclTransport, _group
from dasp.distributed.watching import AFTER_END, NcclWatch
from dasp.solvers.cuda.passes import THREADS
from tests.support.simt_device import EmulatedDevice

pytestmark = [pytest.mark.simt, pytest.mark.ranks]


@pytest.mark.parametrize("given_up", [0, 1])
@pytest.mark.parametrize(("dtype", "count"), [("f8", 700), ("f4", 1), ("f2", 33), ("c16", 40), ("f8", 0)])
def test_messages_tell_how_far_they_are(given_up: int, dtype: str, count: int) -> None:
    """Messages that came stay as they are; those that were given up are NaN throughout."""
    received = np.random.default_rng(0).standard_normal(count).astype(dtype)
    was, on = received.copy(), EmulatedDevice()
    turns, mailbox = np.full(1, 2**32 - 2, np.uint32), np.zeros(2, np.uint32)
    begin = on.prepare_launch(
        BEGIN, {"DASP_THREADS": str(THREADS)}, {"turns": turns, "mailbox": mailbox}, 1, 1
    )
    lying = received.view(np.uint8)
    arguments = {"received": lying, "nbytes": lying.size, "turns": turns, "mailbox": mailbox}
    arguments["given_up"] = np.full(1, given_up, np.uint32)
    end = on.prepare_launch(END, {"DASP_THREADS": str(THREADS)}, arguments, 2, THREADS)
    for turn in (2**32 - 1, 0, 1):
        begin()
        assert mailbox[0] == turn
        assert mailbox[1] != turn
        end()
        assert (mailbox == turn).all()
    if given_up:
        assert np.isnan(received).all()
    else:
        np.testing.assert_array_equal(received, was)


class Communicator:
    """A communicator of NCCL's."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.ended = threading.Event()

    def check_async_error(self) -> None:
        assert not self.ended.is_set(), "it is being freed"
        if self.problem is not None:
            raise self.problem

    def abort(self) -> None:
        self.ended.set()


class Case:
    """A watch, two communicators, and messages of two matrices."""

    def __init__(self, timeout: float = 600.0) -> None:
        self.abort_at_exit, self.groups = 0, 0
        self.comm: Any = SimpleNamespace(rank=2, size=4, timeout=timeout, abort_at_exit=self.count)
        self.communicators = Communicator(), Communicator()
        self.given_up, self.told = np.zeros(1, np.uint32), np.zeros((2, 2), np.uint32)
        self.watch = NcclWatch(self.comm, self.communicators, self.given_up, self.together)
        for each in self.told:
            self.watch.add(each)

    def count(self) -> None:
        self.abort_at_exit += 1

    @contextlib.contextmanager
    def together(self) -> Any:
        yield
        assert all(each.ended.is_set() for each in self.communicators), (
            "one is freed before the other is told"
        )
        self.groups += 1

    def gives_up(self, now: float) -> bool:
        self.watch.look(now)
        return self.watch.has_given_up


def test_messages_are_given_up_when_their_time_is_over() -> None:
    """Counted from when the GPU came to them: what it does before takes as long as it takes."""
    case = Case(timeout=5.0)
    assert not case.gives_up(0.0)
    case.told[1] = 7, 6
    assert not case.gives_up(100.0)
    assert not case.gives_up(105.0)
    case.told[1] = 8, 7  # one has ended, and the next has begun
    assert not case.gives_up(106.0)
    assert not case.gives_up(111.0)
    case.watch.check()
    assert case.gives_up(111.1)
    case.watch.end()
    assert case.groups == 1
    case.watch.give_up()
    case.watch.look(1000.0)  # asks nothing of what is being freed
    assert case.abort_at_exit == 1
    with pytest.raises(RankError, match=r"rank 2 of 4 has given up waiting for another rank; GPUs send"):
        case.watch.check()


def test_nobody_waits_long_for_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    monkeypatch.setattr(watching.time, "monotonic", lambda: 50.0)
    case.told[0] = 3, 2
    assert not case.gives_up(49.0)
    case.watch.note_end(3)
    assert not case.gives_up(50.0 + AFTER_END)
    case.told[0] = 4, 3  # what it sent came
    assert not case.gives_up(60.0)
    assert not case.gives_up(60.0 + AFTER_END)
    assert case.gives_up(60.1 + AFTER_END)
    with pytest.raises(RankError, match=r"\(ended: 3\); GPUs send"):
        case.watch.check()


def test_a_process_may_end_when_nobody_waits() -> None:
    case = Case()
    case.watch.note_end(1)
    assert not case.gives_up(1e9)


def test_what_nccl_says_is_enough() -> None:
    case = Case()
    case.communicators[1].problem = RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
    assert case.gives_up(0.0)


def test_the_watch_ends_with_what_it_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 0.01)
    case = Case(timeout=0.05)
    thread = case.watch.start()
    thread.join(0.2)
    assert thread.is_alive()
    case.told[0, 0] = 1
    thread.join(30)
    assert not thread.is_alive()
    assert case.groups == 1
    other = Case()
    thread = other.watch.start()
    del other
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_the_watch_acts_at_once_where_another_thread_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 1000.0)
    case = Case()
    thread = case.watch.start()
    case.watch.give_up()
    thread.join(30)
    assert not thread.is_alive()
    assert case.groups == 1


class Waiting(NcclTransport):
    """A transport without a GPU, as far as waiting goes."""

    def __init__(self, case: Case) -> None:
        self._comm, self._watch, self._nccl = case.comm, case.watch, SimpleNamespace(NcclError=OSError)
        self.may_end = threading.Event()
        self._device = SimpleNamespace(synchronize=lambda: self.may_end.wait(30))


def test_the_host_waits_no_longer_than_the_timeout_or_for_a_process_that_has_ended() -> None:
    case = Case(timeout=0.01)
    with pytest.raises(RankError, match=r"rank 2 of 4 waited 0\.01 s for its GPU"):
        Waiting(case).wait(SimpleNamespace(done=False))
    assert case.watch.has_given_up
    case = Case()
    case.watch.note_end(0)
    with pytest.raises(RankError, match=r"given up waiting for another rank \(ended: 0\)"):
        Waiting(case).wait(SimpleNamespace(done=False))
    with pytest.raises(RankError, match="given up"):
        Waiting(case).wait(
            SimpleNamespace(done=True)
        )  # it ended because it was given up: no value of it counts


def test_an_error_of_a_call_is_that_of_a_rank() -> None:
    case = Case()
    transport = Waiting(case)
    said = r"rank 2: NCCL says remote process exited; another rank has ended"
    with pytest.raises(RankError, match=said), transport.calls():
        raise OSError("remote process exited")
    with pytest.raises(RankError, match="has given up"), transport.calls():
        raise AssertionError("nothing is called any more")


def test_a_group_of_calls_ends_after_an_error_too() -> None:
    log: list[str] = []
    nccl = SimpleNamespace(groupStart=lambda: log.append("start"), groupEnd=lambda: log.append("end"))
    with pytest.raises(OSError, match="call"), _group(nccl):
        raise OSError("call")
    assert log == ["start", "end"]


def test_a_process_does_not_wait_at_its_end_for_what_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 0.01)
    case = Case(timeout=0.05)
    transport = Waiting(case)
    case.communicators[1].ended = transport.may_end
    case.watch.start()
    transport.end()
    assert case.watch.has_given_up
    case = Case()
    transport = Waiting(case)
    transport.may_end.set()
    transport.end()
    assert not case.gives_up(1e9)
