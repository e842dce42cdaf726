"""A process: what may come in the middle of its work, a fork or a signal.

A forked child has the thread that forked and none of the others. A lock that another thread held, that of a
module half loaded among them, stays locked there for ever. So a fork takes the locks first, and modules that
are loaded when they are first used are loaded here.

Before a fork the functions that were registered last are called first. `logging` registers one too, for a
lock that a thread wants which loads or compiles; imported here, it takes its lock after ours.

A signal's handler that Python runs may raise, as that of Ctrl-C does, between any two instructions of the
main thread. Where other threads still write into a caller's array, or LLVM is half-way through a module, that
would leave more behind than an exception. So signals wait until such work is done.
"""

from __future__ import annotations

import contextlib
import importlib
import logging as logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

# ---- forks -------------------------------------------------------------------------------------------

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


# ---- signals -----------------------------------------------------------------------------------------

# `signal` wraps the functions of CPython's own module, to return enumerations, which takes ten times as long:
# too much where a product of 50 microseconds is shielded.
_fast: Any = sys.modules.get("_signal", signal)
_get: Callable[[int], Any] = _fast.getsignal
_set: Callable[[int, Any], Any] = _fast.signal

HELD = tuple(int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name))
"""The signals whose handlers raise: those of Ctrl-C, of schedulers and of timeouts."""


class Deferred:
    """Holds back the signals of `HELD` that Python functions handle, while it lasts; then delivers them.

    Outside the main thread, where Python runs no handler, it does nothing. Contexts may be nested. What a
    handler raises comes out at the end of the outermost context.

    Examples
    --------
    >>> before = signal.signal(signal.SIGTERM, lambda *_: print("handled"))
    >>> with Deferred():
    ...     signal.raise_signal(signal.SIGTERM)
    ...     print("still here")
    still here
    handled
    >>> _ = signal.signal(signal.SIGTERM, before)
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Any]] = []
        self._pending: list[int] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for number in HELD:
                if callable(handler := _get(number)):
                    _set(number, self._note)
                    self._handlers.append((number, handler))
        except ValueError:  # a subinterpreter, which runs no handlers either
            pass
        except BaseException:  # a handler that was not held back yet
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            while self._handlers:  # that of Ctrl-C is given back last
                _set(*self._handlers[-1])
                self._handlers.pop()
            while self._pending:
                signal.raise_signal(self._pending.pop(0))
        finally:  # the others, if a handler raised
            if self._handlers or self._pending:
                self.__exit__()

    def _note(self, number: int, _: FrameType | None) -> None:
        if number not in self._pending:  # as signals of one kind do that the system holds back
            self._pending.append(number)


@contextlib.contextmanager
def as_raised() -> Iterator[None]:
    """Let out what a handler of a signal raised where a library made another exception of it.

    Compiled code answers with a SystemError that it causes, and archives that are closed too early with a
    ValueError: what handles exceptions would take an interrupt for a failure.
    """
    before = sys.exception()
    try:
        yield
    except (SystemError, ValueError) as error:
        first: BaseException = error
        while (cause := first.__cause__ or first.__context__) is not None and cause is not before:
            first = cause
        if first is not error and (isinstance(error, SystemError) or not isinstance(first, Exception)):
            raise first from None
        raise
