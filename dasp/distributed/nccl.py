"""Messages and sums between GPUs: NCCL, through CuPy, started by whatever comm the ranks have.

Every call works on CuPy's current stream and can be captured in a CUDA graph. Around messages kernels tell
the host how far they have come, and what came of messages that were given up is NaN: see watching.py.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dasp.distributed.communicator import Communicator, DeviceArray, RankError, Span, agree
from dasp.distributed.halo import find_runs
from dasp.distributed.halo_cuda import count_blocks, prepare_packing
from dasp.distributed.watching import (
    LAST_SECONDS,
    Event,
    NcclWatch,
    await_event,
    end_with_process,
    watch_processes,
)
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.device import shared_with_host
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.solvers.cuda.passes import THREADS

ALIGNMENT = 16
"""Bytes of an address that NCCL reads in its widest loads; elsewhere it moves byte by byte."""

MOST_BLOCKS = 16
"""Of the launch behind messages, which hardly ever writes anything."""


BEGIN = Signature(
    "distributed/watched.cu",
    "dasp_begin_messages",
    """
    const unsigned*  turns [1]
    unsigned*        told [2]
    """,
)

END = Signature(
    "distributed/watched.cu",
    "dasp_end_messages",
    """
    unsigned char*   received [nbytes]
    long long        nbytes
    const unsigned*  given_up [1]
    unsigned*        turns [1]
    unsigned*        told [2]
    """,
)


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
        receives: Sequence[tuple[int, DeviceArray]],
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
        with _group(nccl):
            for rank, to, size in self._receives:
                self._communicator.recv(to, size, nccl.NCCL_INT8, rank, stream)
            for rank, place, size in self._sends:
                self._communicator.send(base + place, size, nccl.NCCL_INT8, rank, stream)


@contextlib.contextmanager
def _group(nccl: Any) -> Iterator[None]:
    """Make calls of NCCL's one; after an error too, or later calls of this thread would belong to it."""
    nccl.groupStart()
    try:
        yield
    finally:
        nccl.groupEnd()


class NcclRows:
    """Rows of arrays that come later, packed where those for a neighbour do not lie together."""

    def __init__(
        self,
        transport: NcclTransport,
        sends: Sequence[Span],
        places: DeviceArray | None,
        receives: Sequence[Span],
        received: DeviceArray,
    ) -> None:
        import cupy

        self._transport, self._stream, communicator = (
            transport,
            cupy.cuda.get_current_stream,
            transport.messages,
        )
        self._begin, self._end = transport.around(received, self)
        came = [(rank, received[first:end]) for rank, first, end in receives]
        row_bytes = received.dtype.itemsize * int(np.prod(received.shape[1:], dtype=int))
        count = max((end for _, _, end in sends), default=0)
        places = cupy.arange(count, dtype=np.int64) if places is None else places
        runs, self._runs = find_runs(sends, places.get()) if received.ndim == 1 else None, None
        if runs is not None and not any(row_bytes * first % ALIGNMENT for _, first, _ in runs):
            pieces = [(rank, row_bytes * first, row_bytes * rows) for rank, first, rows in runs]
            self._runs = NcclExchange(communicator, pieces, came)
        packed = cupy.zeros((count, *received.shape[1:]), received.dtype)
        self._pack = prepare_packing(received.dtype, places, packed)
        pieces = [(rank, packed[first:end].data.ptr, packed[first:end].nbytes) for rank, first, end in sends]
        self._packed = NcclExchange(communicator, pieces, came, packed)

    def start(self, x: DeviceArray) -> None:
        """Send rows of x, and receive, on the current stream."""
        stream = self._stream().ptr
        with self._transport.calls():
            self._begin(stream)
            if self._runs is not None and x.flags.c_contiguous and x.data.ptr % ALIGNMENT == 0:
                self._runs.start(x.data.ptr)
            else:
                self._pack(stream, x)
                self._packed.start()
            self._end(stream)


class NcclTransport:
    """What moves arrays between the GPUs of ranks; see `dasp.distributed.transport.Transport`.

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
    solver_device: Any = None
    count = 0

    def __init__(self, comm: Communicator, device: str) -> None:
        import cupy
        from cupy.cuda import nccl

        self._comm, self._device = comm, cupy.cuda.Device(int(device.partition(":")[2]))

        def begin() -> list[Any]:
            if not nccl.available:
                raise RuntimeError(
                    "CuPy finds no NCCL; GPUs of several ranks need it; pip install nvidia-nccl-cu13"
                )
            return [nccl.get_unique_id() for _ in range(2)] if comm.rank == 0 else []

        keys = comm.gather(agree(comm, begin))[0]
        with self._device:
            self._sums, self.messages = (nccl.NcclCommunicator(comm.size, key, comm.rank) for key in keys)
            self._event = cupy.cuda.Event(disable_timing=True)
        self._cupy, self._nccl, self._current = cupy, nccl, cupy.cuda.get_current_stream
        self._given_up, host = shared_with_host(self._device, 1, np.uint32)
        host[:] = 0
        self._free: list[tuple[DeviceArray, Any, DeviceArray]] = []
        self._watch = NcclWatch(comm, (self._sums, self.messages), host, partial(_group, nccl))
        self._watch.start()
        watch_processes(comm, weakref.WeakMethod(self._watch.note_end))
        end_with_process(self)

    def around(
        self, received: DeviceArray, holder: Any
    ) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """Return what is launched on a stream before and behind messages that come to an array.

        What they tell is told somewhere for as long as an object lives.
        """
        with self._device:
            self._device.synchronize()  # what told something there before has ended
            told, host, turns = self._free.pop() if self._free else self._new_told()
            weakref.finalize(holder, self._free.append, (told, host, turns)).atexit = False
            taken = {"turns": turns, "told": told}
            begin = Launch(_kernel(BEGIN), BEGIN, {}, taken, blocks=1, threads=1)
            lying = received.reshape(-1).view(np.uint8)
            taken |= {"received": lying, "nbytes": lying.size, "given_up": self._given_up}
            blocks = min(count_blocks(lying.size), MOST_BLOCKS)
            return begin, Launch(_kernel(END), END, {}, taken, blocks=blocks, threads=THREADS)

    def _new_told(self) -> tuple[DeviceArray, Any, DeviceArray]:
        """Return two numbers in the host's memory, as kernels and as the host sees them, and what counts."""
        told, host = shared_with_host(self._device, 2, np.uint32)
        host[:] = 0
        self._watch.add(host)
        return told, host, self._cupy.zeros(1, np.uint32)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Make calls of NCCL's.

        Raises
        ------
        RankError
            If this rank has given up before, or NCCL reports an error.
        """
        self.check()
        self.count += 1
        try:
            yield
        except self._nccl.NcclError as error:
            self._watch.give_up()
            raise RankError(
                f"rank {self._comm.rank}: NCCL says {error}; another rank has ended, failed or is late"
            ) from error

    def check(self) -> None:
        """Raise RankError if this rank has given up waiting for another."""
        self._watch.check()

    def sum(self, numbers: DeviceArray, totals: DeviceArray) -> Callable[[], None]:
        """Prepare a sum over all ranks, on the current stream; all ranks call this."""
        copy = numbers.copy()
        self._add(copy, copy)  # the first sum of a size connects ranks, which cannot be captured
        self._event.record(self._current())
        self.wait(self._event)
        return partial(self._add, numbers, totals)

    def _add(self, numbers: DeviceArray, totals: DeviceArray) -> None:
        nccl, places = self._nccl, (numbers.data.ptr, totals.data.ptr)
        with self.calls():
            self._sums.allReduce(*places, numbers.size, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, self._current().ptr)

    def rows(
        self,
        sends: Sequence[Span],
        places: DeviceArray | None,
        receives: Sequence[Span],
        received: DeviceArray,
    ) -> NcclRows:
        """Prepare to send rows of arrays that come later; see `dasp.distributed.transport.Transport`."""
        return NcclRows(self, sends, places, receives, received)

    def wait(self, event: Event) -> None:
        """Wait on the host for an event.

        Raises
        ------
        RankError
            If time is up, or another rank has ended: the communicators are given up then, so that the GPU
            ends too.
        """
        began = time.monotonic()

        def look() -> None:
            if self._watch.is_in_vain(began, time.monotonic()):
                self._watch.give_up()
            self.check()

        await_event(self._comm, event, self._watch.give_up, look=look)
        self.check()

    def give_up(self) -> None:
        """Have the GPU wait for no other rank any more."""
        self._watch.give_up()

    def close(self) -> None:
        """Do nothing: NCCL's communicators end with this."""

    def end(self) -> None:
        """Wait for what is still on its way, which other ranks may wait for; not for long."""
        self._watch.hurry(min(self._comm.timeout, LAST_SECONDS))
        with contextlib.suppress(RuntimeError):
            self._device.synchronize()
        self._watch.hurry()


def _kernel(signature: Signature) -> Any:
    constants = {"DASP_THREADS": str(THREADS)}
    return _source.load(signature.source, constants).get_function(signature.entry)
