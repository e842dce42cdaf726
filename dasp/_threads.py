"""Worker threads for compiled code that releases the GIL.

Numba's own thread layers are not used: the default one ends the process when two Python threads enter
it at once. Here any number of threads may call `run` at any time, and no thread exists before the
first call that needs one.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

_lock = Lock()
_pool: ThreadPoolExecutor | None = None
_threads: int | None = None


def get_num_threads() -> int:
    """Return how many threads a product on the CPU uses, the caller's among them.

    Unless `set_num_threads` said otherwise, this is `OMP_NUM_THREADS` where that is a positive int, and
    else the number of processors that this process may use; both as they are when first asked for, and
    again after `set_num_threads(None)`.
    """
    return _default() if _threads is None else _threads


@functools.cache
def _default() -> int:
    """Ask the environment and the system; once, because each takes a microsecond."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdecimal() and int(requested) > 0:
        return int(requested)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(threads: int | None) -> None:
    """Set how many threads a product on the CPU uses; None restores the default.

    The result of a product does not depend on it, bit for bit.

    Raises
    ------
    TypeError, ValueError
        If `threads` is neither None nor a positive int.
    """
    global _threads
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int):
            raise TypeError(f"threads is {threads!r}; it must be an int or None")
        if threads < 1:
            raise ValueError(f"threads is {threads}; it must be at least 1")
    _threads = threads
    _default.cache_clear()


def run(tasks: Sequence[Callable[[], None]]) -> None:
    """Run every task, at most one at a time in the calling thread and the others beside it.

    Returns when all have ended; the first exception of a task is raised then. A task must not call
    `run`. A task that no worker has begun when the caller is free is run by the caller.
    """
    futures = [_executor().submit(task) for task in tasks[1:]]
    failure: BaseException | None = None
    try:
        tasks[0]()
    except BaseException as error:
        failure = error
    for task, future in zip(tasks[1:], futures, strict=True):
        try:
            if future.cancel():
                task()
            else:
                future.result()
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="dasp")
    return _pool


def _forget_pool() -> None:
    """Drop the pool in a forked child, where its threads do not exist."""
    global _pool, _lock
    _pool, _lock = None, Lock()
    _default.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
