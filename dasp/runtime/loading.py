"""Modules that are loaded when they are first used, and locks that fork with the process.

A child has the thread that forked and none of the others. A lock that another thread held, that of a module
half loaded among them, stays locked there for ever. So a fork takes the locks first.

Before a fork the functions that were registered last are called first. `logging` registers one too, for a
lock that a thread wants which loads or compiles; imported here, it takes its lock after ours.
"""

from __future__ import annotations

import importlib
import logging as logging
import os
import threading
from collections.abc import Callable
from types import ModuleType

_loaded: dict[str, ModuleType] = {}
_loading = threading.RLock()
_locks: list[tuple[Callable[[], object], Callable[[], object]]] = [(_loading.acquire, _loading.release)]
_taken: list[Callable[[], object]] = []
_forks = 0
"""How often a process forked on the way from the first one to this one."""


def load(name: str) -> ModuleType:
    """Return the module of a name, loaded if need be; a fork of another thread waits for that.

    A finalizer at the end of the process gets what was loaded before, when Python itself finds nothing more.
    """
    if name not in _loaded:
        with _loading:
            _loaded[name] = importlib.import_module(name)
    return _loaded[name]


def hold_at_fork(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    """Let each fork take a lock, after those named before it, and give it back in parent and child."""
    _locks.append((acquire, release))


class ProcessLock:
    """A lock that threads of one process may take again and again, and that is open in a forked child.

    There nobody would give it back if another thread had it when the process forked. Such a thread's work is
    undone in the child, so what the lock guards must be whole until the work is done.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> threading.RLock:
        """Return this process's lock, for `with`."""
        return self._locks.setdefault(_forks, threading.RLock())


def _take() -> None:
    for acquire, release in _locks:  # what is loaded while the first is waited for may name more
        acquire()
        _taken.append(release)


def _give_back() -> None:
    while _taken:
        _taken.pop()()


def _begin_child() -> None:
    global _forks
    _forks += 1
    _give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_give_back, after_in_child=_begin_child)
