"""A process: its user's files, and forks and signals that come in the middle of its work.

A forked child has only the thread that forked. A lock that another thread held, such as that of a module half
loaded, stays locked there for ever. So a fork first takes the locks that are registered here, and `load`
loads a module, when it is first used, under one of them.

Before a fork Python calls the registered functions in reverse order. `logging` registers one too, for a lock
that threads need while they load or compile; it is imported here, so that a fork takes its lock after ours.

A handler of a signal that Python runs may raise, as that of Ctrl-C does, between any two instructions of the
main thread. While other threads write into a caller's array, or LLVM compiles a module, that would leave the
array or the module half done. So `Deferred` holds signals back until such work is done.
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
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

# ---- the user's files --------------------------------------------------------------------------------


def find_user_file(variable: str, name: str) -> Path:
    """Return the file that an environment variable names, else that of a name in the user's cache folder.

    Raises
    ------
    RuntimeError
        If the variable is not set, and the user has no home.
    """
    if given := os.environ.get(variable):
        return Path(given)
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise RuntimeError(f"the user has no home folder for {name}; {variable} must name a file") from None
    return root / "dasp" / name


# ---- forks -------------------------------------------------------------------------------------------

_loaded: dict[str, ModuleType] = {}
_loading = threading.RLock()
_locks: list[tuple[Callable[[], object], Callable[[], object]]] = [(_loading.acquire, _loading.release)]
_taken: list[Callable[[], object]] = []
_forks = 0
"""The number of forks between the first process and this one."""


def load(name: str) -> ModuleType:
    """Return a module, loaded if need be; a fork by another thread waits until it is loaded.

    A finalizer at the end of the process, when Python imports nothing more, gets a module that was loaded
    before.
    """
    if name not in _loaded:
        with _loading:
            _loaded[name] = importlib.import_module(name)
    return _loaded[name]


def hold_at_fork(acquire: Callable[[], object], release: Callable[[], object]) -> None:
    """Let each fork take a lock, after those registered before it, and release it in parent and child."""
    _locks.append((acquire, release))


class ProcessLock:
    """A reentrant lock for the threads of one process, which is open in a forked child.

    A thread that holds it while another forks does not exist in the child and could not release it there. The
    thread's work stays undone in the child, so the guarded data must be valid until that work is done.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> threading.RLock:
        """Return this process's lock, for `with`."""
        return self._locks.setdefault(_forks, threading.RLock())


def _take() -> None:
    for acquire, release in _locks:  # may grow: a module that loads while this waits may register locks
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

# `signal` wraps the functions of CPython's own module to return enumerations, which takes ten times as long:
# too much around a product of 50 microseconds.
_fast: ModuleType = sys.modules.get("_signal", signal)
_get: Callable[[int], Any] = _fast.getsignal
_set: Callable[[int, Any], Any] = _fast.signal

HELD = tuple(int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name))
"""The signals whose handlers may raise: those of Ctrl-C, of schedulers and of timeouts."""


class Deferred:
    """A context that holds back the signals of `HELD` with Python handlers, and delivers them at its end.

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
                    self._handlers.append((number, handler))  # first: another handler may raise now
                    _set(number, self._note)
        except ValueError:  # a subinterpreter, which runs no handlers either
            pass
        except BaseException:  # raised by a handler that was not held back yet
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            while self._handlers:  # Ctrl-C's handler is restored last
                _set(*self._handlers[-1])
                self._handlers.pop()
            while self._pending:
                signal.raise_signal(self._pending.pop(0))
        finally:  # deliver the others if a handler raised
            if self._handlers or self._pending:
                self.__exit__()

    def _note(self, number: int, _: FrameType | None) -> None:
        if number not in self._pending:  # the system, too, keeps one of a kind
            self._pending.append(number)


@contextlib.contextmanager
def as_raised() -> Iterator[None]:
    """Raise the exception of a signal's handler where a library has turned it into another one.

    Compiled code turns it into a SystemError, and an archive that is closed too early into a ValueError:
    callers would take an interrupt for a failure.
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
