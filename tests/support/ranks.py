"""Run ranks as threads of one process, by a communicator that is quick enough for hypothesis."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dasp.distributed.communicator import Communicator
from dasp.distributed.transport import RankError
from tests.support import reference

SECONDS = 60.0


class ThreadCommunicator(Communicator):
    """The communicator of one rank; `shared` holds the messages and the lock of all ranks."""

    count = 0

    def __init__(self, rank: int, size: int, shared: dict[str, Any]) -> None:
        super().__init__(rank, size, SECONDS)
        self._shared = shared

    def box(self, source: int, target: int) -> queue.Queue[bytes]:
        with self._shared["lock"]:
            return self._shared["boxes"].setdefault((source, target), queue.Queue())

    def send(self, rank: int, array: np.ndarray) -> None:
        self.box(self.rank, rank).put(array.tobytes())

    def receive(self, rank: int, array: np.ndarray) -> tuple[int, np.ndarray]:
        return rank, array

    def is_done(self, request: tuple[int, np.ndarray] | None) -> bool:
        if request is None:
            return True
        rank, array = request
        try:
            found = self.box(rank, self.rank).get(timeout=0.02)
        except queue.Empty:
            return False
        assert len(found) == array.nbytes, "a message of another size"
        array[:] = np.frombuffer(found, np.uint8)
        return True

    def has_message(self, rank: int) -> bool:
        return not self.box(rank, self.rank).empty()

    def pause(self, began: float) -> None:
        self.look_for_failures()
        if self._shared["left"].is_set() or time.monotonic() - began > self.timeout:
            raise RankError(f"rank {self.rank} waited in vain")

    def wait(self, event: Any = None) -> None:
        return None


def run_ranks(size: int, work: Callable[[ThreadCommunicator], Any], *, leave: bool = False) -> list[Any]:
    """Return the result of each rank's work, or raise the error of the first that failed.

    With `leave`, ranks may leave early and messages may remain that no rank took.
    """
    shared: dict[str, Any] = {
        "lock": threading.Lock(), "boxes": {}, "left": threading.Event()
    }  # fmt: skip
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadCommunicator(rank, size, shared))
        except BaseException as error:
            errors[rank] = error
            shared["left"].set()

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


def rows_of(matrix: Any, starts: Any, rank: int) -> sp.csr_array:
    """Return a rank's rows with every entry kept."""
    first, end = starts[rank], starts[rank + 1]
    low, high = matrix.indptr[first], matrix.indptr[end]
    indptr = matrix.indptr[first : end + 1] - low
    return sp.csr_array(
        (matrix.data[low:high], matrix.indices[low:high], indptr), shape=(end - first, matrix.shape[1])
    )


def assert_within(got: Any, matrix: Any, x: Any, alpha: float = 1.0) -> None:
    """Hold every row to the bound of `SpMatrix.matvec` on several ranks: one rounding more than on one."""
    for k in range(x.shape[1] if x.ndim == 2 else 1):
        mine, y = (x[:, k], got[:, k]) if x.ndim == 2 else (x, got)
        want, size = reference.product(matrix, mine, alpha)
        lengths = np.diff(matrix.indptr)
        bound = reference.gamma(lengths + 3, y.dtype) * size
        bound += (lengths + 3) * np.finfo(y.dtype).smallest_subnormal
        assert y.shape == want.shape
        assert (abs(y - want) <= bound).all()


def everywhere(size: int, work: Any, kind: Any, words: str) -> None:
    """Hold that every rank raises the same error."""

    def run(comm: Any) -> str:
        with pytest.raises(kind, match=words) as caught:
            work(comm)
        return str(caught.value)

    assert len(set(run_ranks(size, run))) == 1
