"""Messages and sums between GPUs: NCCL, through CuPy, started by whatever engine the ranks have.

Every call works on CuPy's current stream and can be captured in a CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dasp.distributed.engine import Engine, Message, RankError, agree

Array = Any

SPIN, PAUSE = 2e-3, 5e-5
"""Seconds for which the host asks a GPU without pause whether it is done, and those between questions after
that."""


class NcclExchange:
    """Messages between neighbours, as one group of NCCL's calls.

    Parameters
    ----------
    communicator : cupy.cuda.nccl.NcclCommunicator
    sends : sequence of (rank, place, bytes)
        Places are counted from what `start` is given.
    receives : sequence of (rank, array)
    kept
        What must live as long.
    """

    def __init__(
        self,
        communicator: Any,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[Message],
        kept: Any = None,
    ) -> None:
        from cupy.cuda import get_current_stream, nccl

        self._nccl, self._communicator, self._stream = nccl, communicator, get_current_stream
        self._sends = [one for one in sends if one[2]]
        self._receives = [(rank, array.data.ptr, array.nbytes) for rank, array in receives if array.nbytes]
        self._kept = receives, kept

    def start(self, base: int = 0) -> None:
        """Send and receive on the current stream; `base` is the address that places are counted from."""
        if not (self._sends or self._receives):
            return
        nccl, stream = self._nccl, self._stream().ptr
        nccl.groupStart()
        for rank, to, size in self._receives:
            self._communicator.recv(to, size, nccl.NCCL_INT8, rank, stream)
        for rank, place, size in self._sends:
            self._communicator.send(base + place, size, nccl.NCCL_INT8, rank, stream)
        nccl.groupEnd()

    def finish(self) -> None:
        """Do nothing: what follows on the stream waits."""


class NcclLinks:
    """What moves arrays between the GPUs of ranks; see `dasp.distributed.engine.Links`.

    Messages and sums have a communicator each, because they are on different streams.

    Raises
    ------
    RankError
        On all ranks, if CuPy finds no NCCL on one of them.
    """

    def __init__(self, engine: Engine, device: str) -> None:
        import cupy
        from cupy.cuda import nccl

        self._engine, self._device = engine, cupy.cuda.Device(int(device.partition(":")[2]))

        def begin() -> list[Any]:
            if not nccl.available:
                raise RuntimeError(
                    "CuPy finds no NCCL; GPUs of several ranks need it; pip install nvidia-nccl-cu13"
                )
            return [nccl.get_unique_id() for _ in range(2)] if engine.rank == 0 else []

        keys = engine.gather(agree(engine, begin))[0]
        with self._device:
            self._sums, self._messages = (
                nccl.NcclCommunicator(engine.size, key, engine.rank) for key in keys
            )
        self._nccl, self._current = nccl, cupy.cuda.get_current_stream

    def sum(self, array: Array) -> Callable[[], None]:
        """Prepare a sum over all ranks, on the current stream; all ranks call this."""
        return self.sums([(array, array)])

    def sums(self, pairs: Sequence[tuple[Array, Array]]) -> Callable[[], None]:
        """Prepare to set the second array of each pair to the sum of the first over ranks, all at once."""
        kept = list(pairs)
        # The first sums of a size connect ranks, which cannot be captured.
        self._add([(copy, copy) for copy in (source.copy() for source, _ in kept)])
        self._current().synchronize()
        return partial(self._add, kept)

    def _add(self, pairs: Sequence[tuple[Array, Array]]) -> None:
        nccl, stream = self._nccl, self._current().ptr
        nccl.groupStart()
        for source, target in pairs:
            places = source.data.ptr, target.data.ptr
            self._sums.allReduce(*places, source.size, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream)
        nccl.groupEnd()

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> NcclExchange:
        """Prepare messages."""
        addresses = [(rank, array.data.ptr, array.nbytes) for rank, array in sends]
        return NcclExchange(self._messages, addresses, receives, sends)

    def exchange_of_runs(
        self, sends: Sequence[tuple[int, int, int]], receives: Sequence[Message]
    ) -> NcclExchange:
        """Prepare messages of which those that are sent are runs of bytes of an array that comes later.

        Parameters
        ----------
        sends : sequence of (rank, first byte, bytes)
        receives : sequence of (rank, array)
        """
        return NcclExchange(self._messages, sends, receives)

    def wait(self, event: Any = None) -> None:
        """Wait on the host for an event.

        Raises
        ------
        RankError
            If time is up: the communicators are given up then, so that the GPU ends too.
        """
        began = time.monotonic()
        while not event.done:
            waited = time.monotonic() - began
            if waited > self._engine.timeout:
                self._sums.abort()
                self._messages.abort()
                raise RankError(
                    f"rank {self._engine.rank} of {self._engine.size} waited {self._engine.timeout:g} s for "
                    "its GPU, which waits for another rank; that has ended, failed, or does something else"
                )
            if waited > SPIN:
                time.sleep(PAUSE)
