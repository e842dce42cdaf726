"""Worker threads for compiled code that releases the GIL.

Numba's own thread layers are not used: the default one ends the process when two Python threads enter
it at once. Here any number of threads may call `run` at any time, and no thread exists before the
first call that needs one.

Workers never keep a process from ending, and nothing waits for one that has not begun: where no thread can be
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
from numbers import Integral
from pathlib import Path
from threading import Lock, Thread
from types import ModuleType
from typing import TypeVar

from dasp._version import __version__
from dasp.runtime.process import Deferred

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

T = TypeVar("T")

JOIN_SECONDS = 10.0
"""Seconds for which the end of the process waits for a worker in the middle of something: it may be compiling
for a GPU."""

CPU_QUOTA = "/sys/fs/cgroup/cpu.max"
"""The file where Linux says how much of the processors a container may use: microseconds of a period."""

SERIAL_ENTRIES = 100_000
"""Entries of a matrix from which on a thread that sleeps is worth waking, to plan it or to multiply by it."""

_MOST = os.cpu_count() or 1  # asking takes 10 microseconds


# ---- how many threads --------------------------------------------------------------------------------

_threads: int | None = None


def get_num_threads() -> int:
    """Return how many threads a product on the CPU uses, the caller's among them.

    Unless `set_num_threads` said otherwise, this is `OMP_NUM_THREADS` where that is a positive int, and
    else the number of processors that this process may use; both as they are when first asked for, and
    again after `set_num_threads(None)`. Fewer run while the process may use fewer processors.

    Returns
    -------
    int
        At least 1.
    """
    return _default() if _threads is None else _threads


def set_num_threads(threads: int | None) -> None:
    """Set how many threads a product on the CPU uses, the caller's among them.

    The result of a product does not depend on it, bit for bit.

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
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, Integral):
            raise TypeError(f"threads is {threads!r}; it must be an int or None")
        if threads < 1:
            raise ValueError(f"threads is {threads}; it must be at least 1")
    _threads = None if threads is None else int(threads)
    _default.cache_clear()


def register_with_threadpoolctl() -> None:
    """Make dasp's threads known to threadpoolctl, if that is installed: `threadpool_limits` holds for them.

    threadpoolctl knows thread pools by the shared libraries that they live in. dasp's live in what llvmlite
    compiled, so that library stands for them; `user_api` is "dasp".
    """
    with contextlib.suppress(ImportError):
        import threadpoolctl

        class Controller(threadpoolctl.LibController):  # type: ignore[misc]  # threadpoolctl has no types
            """dasp's threads."""

            user_api = internal_api = "dasp"
            filename_prefixes = ("libllvmlite", "llvmlite")

            def get_num_threads(self) -> int:
                """Return how many threads a product uses."""
                return get_num_threads()  # the module's

            def set_num_threads(self, num_threads: int) -> None:
                """Set how many threads a product uses; as many as by default stay a default."""
                set_num_threads(None)
                if num_threads != get_num_threads():
                    set_num_threads(num_threads)

            def get_version(self) -> str:
                """Return the version of dasp."""
                return __version__

        threadpoolctl.register(Controller)


@functools.cache
def _default() -> int:
    """Ask the environment and the system; once, because each takes a microsecond."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdecimal() and int(requested) > 0:
        return int(requested)
    return processors()


def running(threads: int) -> int:
    """Return how many of so many threads to run now: no more than processors, unless the user set them."""
    return threads if _threads is not None else min(threads, processors())


def processors() -> int:
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
    """Return how often the system gave the calling thread's processor to others; 0 where it does not say.

    Threads that give it away while they wait for each other count too, if somebody took it.
    """
    if resource is None:
        return 0
    whose = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return int(resource.getrusage(whose).ru_nivcsw)


# ---- tasks -------------------------------------------------------------------------------------------

_helpers: list[Worker] = []
_offered: deque[_Share] = deque()


def over_ranges(items: int, entries: int, work: Callable[[int, int], T]) -> list[T]:
    """Do work on ranges of items that together hold so many entries, by as many threads as that pays for.

    Parameters
    ----------
    items, entries : int
    work : callable
        (begin, end) -> whatever; it must let go of Python's lock for more than one thread to pay.

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
    """Run every task, in the calling thread and others: as many in all as products use, or `threads`.

    Returns when all have ended; the first exception of a task is raised then, and so is what the handler of a
    signal raises. Tasks may call `run`. A task that no worker has begun is run by the caller. In one thread
    an exception ends the call at once.
    """
    together = running(min(threads or get_num_threads(), len(tasks)))
    if together < 2:  # not offered, for a helper that is awake would take them
        for task in tasks:
            task()
        return
    with Deferred():
        Offer(tasks, together - 1).finish()


class Offer:
    """Tasks that so many helpers do in their order, if they can, while the caller does something else.

    The latest offer comes first, because its results are wanted first.
    """

    def __init__(self, tasks: Sequence[Callable[[], None]], helpers: int) -> None:
        self._shares = [_Share(task) for task in tasks]
        with Deferred():
            _offered.extendleft(reversed(self._shares))
            _wake_helpers(helpers)

    def finish(self) -> None:
        """Do the tasks that no helper has begun, and wait for the others.

        The first exception of a task is raised then, and so is what the handler of a signal raises.
        """
        begun = []
        with Deferred():
            for share in reversed(self._shares):  # while helpers come from the beginning
                try:
                    _offered.remove(share)
                except ValueError:  # a helper has begun it
                    begun.append(share)
                else:
                    share.work()
            for share in begun:
                with share.ended:
                    pass
        for share in self._shares:
            if share.failure is not None:
                raise share.failure


class _Share:
    """A task of a call of `run` that a helper may do."""

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
        Of the thread.
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
        """Let the thread go on, if it sleeps; if not, it will not sleep the next time."""
        with contextlib.suppress(RuntimeError):  # it was let go on already
            self._asleep.release()

    def join(self) -> None:
        """Wait for the thread to end, for a while."""
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
