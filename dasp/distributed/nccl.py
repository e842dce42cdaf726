"""Messages and sums between GPUs: NCCL, through CuPy, started by whatever engine the ranks have.

Every call works on CuPy's current stream and can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dasp.distributed.engine import Engine, Message, agree
from dasp.distributed.exchange import Span, runs
from dasp.distributed.packing import packs
from dasp.distributed.waiting import await_event

Array = Any

ALIGNMENT = 16
"""Bytes of an address that NCCL reads in its widest loads; elsewhere it moves byte by byte."""


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


class NcclRows:
    """Rows of arrays that come later, packed where those for a neighbour do not lie together."""

    def __init__(
        self,
        communicator: Any,
        sends: Sequence[Span],
        places: Array | None,
        receives: Sequence[Span],
        received: Array,
    ) -> None:
        import cupy

        self._stream = cupy.cuda.get_current_stream
        came = [(rank, received[first:end]) for rank, first, end in receives]
        row_bytes = received.dtype.itemsize * int(np.prod(received.shape[1:], dtype=int))
        count = max((end for _, _, end in sends), default=0)
        places = cupy.arange(count, dtype=np.int64) if places is None else places
        found, self._runs = runs(sends, places.get()) if received.ndim == 1 else None, None
        if found is not None and not any(row_bytes * first % ALIGNMENT for _, first, _ in found):
            pieces = [(rank, row_bytes * first, row_bytes * rows) for rank, first, rows in found]
            self._runs = NcclExchange(communicator, pieces, came)
        packed = cupy.zeros((count, *received.shape[1:]), received.dtype)
        self._pack = packs(received.dtype, places, packed)
        pieces = [(rank, packed[first:end].data.ptr, packed[first:end].nbytes) for rank, first, end in sends]
        self._packed = NcclExchange(communicator, pieces, came, packed)

    def start(self, x: Array) -> None:
        """Send rows of x, and receive, on the current stream."""
        if self._runs is not None and x.flags.c_contiguous and x.data.ptr % ALIGNMENT == 0:
            self._runs.start(x.data.ptr)
        else:
            self._pack(self._stream().ptr, x)
            self._packed.start()


class NcclLinks:
    """What moves arrays between the GPUs of ranks; see `dasp.distributed.engine.Links`.

    Messages and sums have a communicator each, because they are on different streams.

    Attributes
    ----------
    name : str
        `nccl`.

    Raises
    ------
    RankError
        On all ranks, if CuPy finds no NCCL on one of them.
    """

    name = "nccl"

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

    def rows(
        self, sends: Sequence[Span], places: Array | None, receives: Sequence[Span], received: Array
    ) -> NcclRows:
        """Prepare to send rows of arrays that come later; see `dasp.distributed.cuda.DeviceLinks`."""
        return NcclRows(self._messages, sends, places, receives, received)

    def wait(self, event: Any = None) -> None:
        """Wait on the host for an event.

        Raises
        ------
        RankError
            If time is up: the communicators are given up then, so that the GPU ends too.
        """
        await_event(self._engine, event, self._abort)

    def _abort(self) -> None:
        self._sums.abort()
        self._messages.abort()
        self._engine.let_go()
