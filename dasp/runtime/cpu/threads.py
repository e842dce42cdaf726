"""Worker threads for compiled code that releases the GIL.

Numba's own thread layers are not used: the default one ends the process when two Python threads enter
it at once. Here any number of threads may call `run` at any time, and no thread exists before the
first call that needs one.

Workers never keep a process from ending, and nothing waits for one that has not begun. Where no thread can be
started, where the interpreter is about to end, or in a forked child, callers do the work alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread
from types import ModuleType
from typing import TypeVar

from dasp._version import __version__
from dasp.runtime import check
from dasp.runtime.process import Deferred

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

T = TypeVar("T")

JOIN_SECONDS = 10.0
"""Seconds for which the end of the process waits for a busy worker, which may be compiling for a GPU."""

CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
"""The file in which Linux limits a container's use of the processors: to some microseconds of a period."""

SERIAL_ENTRIES = 100_000
"""Entries of a matrix above which it pays to wake a thread, to plan it or to multiply by it."""

_MOST = os.cpu_count() or 1  # asking takes 10 microseconds


# ---- how many threads --------------------------------------------------------------------------------

_threads: int | None = None


def get_num_threads() -> int:
    """Return how many threads a product on the CPU uses, the caller's among them.

    Unless `set_num_threads` has set it, this is `OMP_NUM_THREADS` if that is a positive int, else the number
    of processors that this process may use. Both are read at the first call, and again after
    `set_num_threads(None)`. Fewer threads run while the process may use fewer processors.

    Returns
    -------
    int
        At least 1.
    """
    return _default() if _threads is None else _threads


def set_num_threads(threads: int | None) -> None:
    """Set how many threads a product on the CPU uses, the caller's among them.

    The result of a product does not depend on this number, bit for bit.

    Parameters
    ----------
    threads : int or None
        None restores the default: see `get_num_threads`.

    Raises
    ------
    TypeError, ValueError
        If `threads` is neither None nor a positive int.

    Examples
    --------
    >>> import dasp
    >>> dasp.set_num_threads(2)
    >>> dasp.get_num_threads()
    2
    >>> dasp.set_num_threads(None)
    """
    global _threads
    _threads = None if threads is None else check.count("threads", threads, ", or None for the default")
    _default.cache_clear()


def register_with_threadpoolctl() -> None:
    """Register dasp's threads with threadpoolctl, if it is installed: `threadpool_limits` then limits them.

    threadpoolctl knows thread pools by their shared libraries. dasp's threads run code that llvmlite
    compiled, so llvmlite's library stands for them; `user_api` is "dasp".
    """
    with contextlib.suppress(ImportError):
        import threadpoolctl

        class Controller(threadpoolctl.LibController):  # type: ignore[misc]  # threadpoolctl has no types
            """The controller of dasp's threads."""

            user_api = internal_api = "dasp"
            filename_prefixes = ("libllvmlite", "llvmlite")

            def get_num_threads(self) -> int:
                """Return how many threads a product uses."""
                return get_num_threads()  # the module's

            def set_num_threads(self, num_threads: int) -> None:
                """Set how many threads a product uses; the default number remains a default."""
                set_num_threads(None)
                if num_threads != get_num_threads():
                    set_num_threads(num_threads)

            def get_version(self) -> str:
                """Return the version of dasp."""
                return __version__

        threadpoolctl.register(Controller)


@functools.cache
def _default() -> int:
    """Return the default number of threads; cached, because the system takes a microsecond to answer."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdecimal() and int(requested) > 0:
        return int(requested)
    return count_processors()


def count_running(threads: int) -> int:
    """Return how many of `threads` to run now: at most one a processor, unless the user set the number."""
    return threads if _threads is not None else min(threads, count_processors())


def count_processors() -> int:
    """Return how many processors this process may use now."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota())
    return _MOST


@functools.cache
def _quota() -> int:
    """Return how many processors' worth of time the container may use, rounded up: at most all there are."""
    try:
        quota, period = Path(CPU_QUOTA).read_text(encoding="ascii").split()
        return _MOST if quota == "max" else max(1, min(_MOST, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # another system, or another version of this one
        return _MOST


def count_preemptions() -> int:
    """Return how often the system preempted the calling thread; 0 where it does not say.

    Yields of a waiting thread count too, if another thread took the processor.
    """
    if resource is None:
        return 0
    whose = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return int(resource.getrusage(whose).ru_nivcsw)


# ---- tasks -------------------------------------------------------------------------------------------

_helpers: list[Worker] = []
_offered: deque[_Share] = deque()


def over_ranges(items: int, entries: int, work: Callable[[int, int], T]) -> list[T]:
    """Call `work` for ranges of items, in as many threads as the number of entries pays for.

    Parameters
    ----------
    items, entries : int
        The number of items, and of the entries that they hold together.
    work : callable
        (begin, end) -> result of the range; several threads pay only if it releases the GIL.

    Returns
    -------
    list
        The results of the ranges, in their order.
    """
    parts = min(get_num_threads(), max(entries // SERIAL_ENTRIES, 1))
    if parts == 1:
        return [work(0, items)]
    cuts = [items * part // parts for part in range(parts + 1)]
    found: dict[int, T] = {}

    def do(part: int) -> None:
        found[part] = work(cuts[part], cuts[part + 1])

    run([functools.partial(do, part) for part in range(parts)])
    return [found[part] for part in range(parts)]


def run(tasks: Sequence[Callable[[], None]], threads: int | None = None) -> None:
    """Run every task in the calling thread and others: in `threads` threads, or as many as products use.

    Return when all tasks have ended; the first exception of a task, or that of a signal's handler, is raised
    then. Tasks may call `run`. The caller runs tasks that no worker has begun. In one thread an exception
    ends the call at once.
    """
    together = count_running(min(threads or get_num_threads(), len(tasks)))
    if together < 2:  # not offered, because a helper that is awake would take them
        for task in tasks:
            task()
        return
    with Deferred():
        shares = offer(tasks, together - 1)
        begun = []
        for share in reversed(shares):  # while helpers begin at the front
            try:
                _offered.remove(share)
            except ValueError:  # a helper has begun it
                begun.append(share)
            else:
                share.work()
        for share in begun:
            with share.ended:
                pass
        for share in shares:
            if share.failure is not None:
                raise share.failure


def offer(tasks: Sequence[Callable[[], None]], helpers: int) -> list[_Share]:
    """Let some helpers do tasks in order, if they can, while the caller does something else.

    Helpers take the latest offer first, because its results are needed first.
    """
    shares = [_Share(task) for task in tasks]
    _offered.extendleft(reversed(shares))
    _wake_helpers(helpers)
    return shares


class _Share:
    """An offered task; `ended` is locked until somebody has done it."""

    __slots__ = ("ended", "failure", "task")

    def __init__(self, task: Callable[[], None]) -> None:
        self.task = task
        self.failure: BaseException | None = None
        self.ended = Lock()
        self.ended.acquire()

    def work(self) -> None:
        try:
            self.task()
        except BaseException as error:
            self.failure = error
        self.ended.release()


def _wake_helpers(count: int) -> None:
    for number in range(_MOST):
        if count == 0:
            return
        if number == len(_helpers):
            _helpers.append(Worker(f"dasp-helper-{number}", _help))
        helper = _helpers[number]
        if not helper.busy:
            if not helper.wake():
                return
            count -= 1


def _help() -> None:
    with contextlib.suppress(IndexError):  # no share is left
        while not _ending:
            _offered.popleft().work()


# ---- threads, until the process ends or forks --------------------------------------------------------

_workers: list[Worker] = []
_ending = False


class Worker:
    """A thread that sleeps, calls a function whenever it is woken, and ends with the process.

    Parameters
    ----------
    name : str
        The name of the thread.
    function : callable
        Takes nothing and raises nothing.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.busy = False
        self._name, self._function = name, function
        self._asleep = Lock()
        self._asleep.acquire()
        self._thread: Thread | None = None
        _workers.append(self)

    def wake(self) -> bool:
        """Make the thread call the function once more; return False where no thread can be started."""
        if (self._thread is None or not self._thread.is_alive()) and not self._start():
            return False
        self.rouse()
        return True

    def rouse(self) -> None:
        """Wake the thread if it sleeps; else skip its next sleep."""
        with contextlib.suppress(RuntimeError):  # it was roused already
            self._asleep.release()

    def join(self) -> None:
        """Wait for the thread to end, at most `JOIN_SECONDS`."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _start(self) -> bool:
        if _ending:
            return False
        with Deferred():
            thread = self._thread = Thread(target=self._live, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                self._thread = None
        return self._thread is not None

    def _live(self) -> None:
        while True:
            self._asleep.acquire()
            if _ending:
                return
            self.busy = True
            self._function()
            self.busy = False


def _end() -> None:
    """Stop the workers before the interpreter takes down what they use; from now on callers work alone."""
    global _ending
    _ending = True
    for worker in _workers:
        worker.rouse()
    for worker in _workers:
        worker.join()


def _forget() -> None:
    """Drop the workers in a forked child, where their threads do not exist."""
    _workers.clear()
    _helpers.clear()
    _offered.clear()
    _default.cache_clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
