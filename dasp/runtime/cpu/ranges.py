"""Work that is shared out to threads, range by range."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dasp.runtime.cpu import threads as _threads

SERIAL_ENTRIES = 100_000
"""Entries for which another thread pays."""


def over_ranges(items: int, entries: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Do work on ranges of items that together hold so many entries, by as many threads as that pays for.

    Parameters
    ----------
    items, entries : int
    work : callable
        (begin, end) -> whatever; it must let go of Python's lock for more than one thread to pay.

    Returns
    -------
    list
        What each range gave, in their order.
    """
    parts = min(_threads.get_num_threads(), max(entries // SERIAL_ENTRIES, 1))
    if parts == 1:
        return [work(0, items)]
    cuts = [items * part // parts for part in range(parts + 1)]
    found: list[Any] = [None] * parts

    def do(part: int) -> None:
        found[part] = work(cuts[part], cuts[part + 1])

    _threads.run([partial(do, part) for part in range(parts)])
    return found
