"""Ranks that are threads of one process: an engine for tests, quick enough for hypothesis."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dasp.distributed.engine import RankError

SECONDS = 60.0


class _Exchange:
    def __init__(self, engine: ThreadEngine, sends: Sequence[Any], receives: Sequence[Any]) -> None:
        self._engine, self._sends, self._receives = engine, sends, receives

    def start(self) -> None:
        for rank, array in self._sends:
            self._engine.box(self._engine.rank, rank).put(array.tobytes())

    def finish(self) -> None:
        for rank, array in self._receives:
            try:
                found = self._engine.box(rank, self._engine.rank).get(timeout=self._engine.timeout)
            except queue.Empty:
                raise RankError(f"rank {self._engine.rank} waited in vain for rank {rank}") from None
            assert len(found) == array.nbytes, "a message of another size"
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(found, np.uint8)


class ThreadEngine:
    """The engine of one rank; `shared` is that of all."""

    def __init__(self, rank: int, size: int, shared: dict[str, Any]) -> None:
        self.rank, self.size, self.timeout, self._shared = rank, size, SECONDS, shared

    def box(self, source: int, target: int) -> queue.Queue[bytes]:
        with self._shared["lock"]:
            return self._shared["boxes"].setdefault((source, target), queue.Queue())

    def gather(self, value: Any) -> list[Any]:
        self._shared["values"][self.rank] = value
        try:
            self._shared["barrier"].wait(self.timeout)
        except threading.BrokenBarrierError:
            raise RankError(f"rank {self.rank} waited in vain") from None
        found = list(self._shared["values"])
        with contextlib.suppress(threading.BrokenBarrierError):  # another has left with an error
            self._shared["barrier"].wait(self.timeout)
        return found

    def sum(self, array: np.ndarray) -> Callable[[], None]:
        def add() -> None:
            array[...] = np.add.reduce(np.array(self.gather(array.copy())), axis=0)

        return add

    def sums(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Callable[[], None]:
        def add() -> None:
            found = self.gather([source.copy() for source, _ in pairs])
            for k, (_, target) in enumerate(pairs):
                target[...] = np.add.reduce(np.array([each[k] for each in found]), axis=0)

        return add

    def exchange(self, sends: Sequence[Any], receives: Sequence[Any]) -> _Exchange:
        for _, array in (*sends, *receives):
            assert array.flags.c_contiguous
        return _Exchange(self, sends, receives)

    def wait(self, event: Any = None) -> None:
        return None

    def links(self, device: str) -> ThreadEngine:
        return self

    def abort(self, reason: str) -> None:
        self._shared["barrier"].abort()


def run_ranks(size: int, work: Callable[[ThreadEngine], Any], *, leave: bool = False) -> list[Any]:
    """Return what each rank's work returned, or raise what the first one raised.

    Where a rank leaves early, messages may be left that nobody took.
    """
    shared: dict[str, Any] = {
        "lock": threading.Lock(), "boxes": {}, "values": [None] * size, "barrier": threading.Barrier(size)
    }  # fmt: skip
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadEngine(rank, size, shared))
        except BaseException as error:
            errors[rank] = error
            shared["barrier"].abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [error for error in errors if error is not None]
    first = next((error for error in failed if not isinstance(error, RankError)), None)
    if failed:
        raise first or failed[0]
    assert leave or not any(box.qsize() for box in shared["boxes"].values()), "a message that nobody took"
    return results
