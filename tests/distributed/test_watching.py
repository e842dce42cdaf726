"""Processes of other ranks that end while they are watched."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from dasp.distributed import watching

pytestmark = pytest.mark.ranks


class Hearer:
    """A listener to the ends of ranks."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.heard = threading.Event()

    def hear(self, rank: int) -> None:
        self.ended.append(rank)
        self.heard.set()


def start_watch(others: list[Any], hearer: Hearer) -> threading.Thread | None:
    """Watch processes as rank 0; the others are given as (process, when it began)."""
    every = [(watching.find_machine(), *one) for one in others]
    comm: Any = SimpleNamespace(rank=0, gather=lambda mine: [mine, *every])
    return watching.watch_processes(comm, weakref.WeakMethod(hearer.hear))


def test_a_process_that_has_ended_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its parent, this one, has not asked yet how it ended."""
    monkeypatch.setattr(watching, "LOOK", 0.01)
    hearer = Hearer()
    command = [sys.executable, "-c", "print(flush=True); input()"]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        thread = start_watch([(child.pid, watching.find_start(child.pid)) for child in children], hearer)
        assert thread is not None
        assert not hearer.heard.wait(0.1)
        children[1].kill()
        assert hearer.heard.wait(30)
        assert hearer.ended == [2]
        children[0].kill()
        thread.join(30)
        assert hearer.ended == [2, 1]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_processes_that_cannot_be_told_apart_are_not_watched() -> None:
    """Of another machine, and numbers that another process has meanwhile."""
    hearer = Hearer()
    assert watching.find_start(os.getpid())
    assert start_watch([(os.getpid(), "")], hearer) is None
    assert start_watch([(os.getpid(), watching.find_start(os.getpid()) + "1")], hearer) is None
    comm: Any = SimpleNamespace(
        rank=0,
        gather=lambda mine: [mine, (("elsewhere", "", ""), os.getpid(), watching.find_start(os.getpid()))],
    )
    assert watching.watch_processes(comm, weakref.WeakMethod(hearer.hear)) is None


def test_nobody_is_watched_for_transports_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 0.01)
    hearer = Hearer()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        others = [(pid, watching.find_start(pid)) for pid in (child.pid, os.getpid())]
        thread = start_watch(others, hearer)
        assert thread is not None
        child.kill()
        assert hearer.heard.wait(30)
    del hearer
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
