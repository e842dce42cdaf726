"""Messages and sums between GPUs: NCCL, through CuPy, started through the communicator of the hosts.

Every call works on CuPy's current stream and can be captured in a CUDA graph. A kernel before messages and
one after them tell the host how far they are; the second sets to NaN what was given up: see watching.py.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.halo_cuda import count_blocks, find_cupy_device, prepare_packing
from dasp.distributed.transport import ExchangeRows, RankError
from dasp.distributed.watching import (
    LAST_SECONDS,
    NcclWatch,
    await_event,
    end_with_process,
    watch_processes,
)
from dasp.runtime.cuda.device import CudaDevice, shared_with_host
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.types import DeviceArray, Event
from dasp.solvers.cuda.passes import THREADS

MOST_BLOCKS = 16
"""The most blocks of the kernel after messages, which hardly ever writes anything."""


BEGIN = Signature(
    "distributed/halo.cu",
    "dasp_begin_messages",
    """
    const unsigned*  turns [1]
    unsigned*        mailbox [2]
    """,
)

END = Signature(
    "distributed/halo.cu",
    "dasp_end_messages",
    """
    unsigned char*   received [nbytes]
    long long        nbytes
    const unsigned*  given_up [1]
    unsigned*        turns [1]
    unsigned*        mailbox [2]
    """,
)


@contextlib.contextmanager
def _group(nccl: ModuleType) -> Iterator[None]:
    """Group calls of NCCL; end the group after an error too, or later calls of this thread would join it."""
    nccl.groupStart()
    try:
        yield
    finally:
        nccl.groupEnd()


class NcclRows:
    """Messages of rows of arrays that come later: packed, and sent by one group of NCCL's calls."""

    def __init__(self, transport: NcclTransport, exchange: ExchangeRows) -> None:
        import cupy

        sends, places, receives, received = exchange
        self._transport, self._stream = transport, cupy.cuda.get_current_stream
        self._begin, self._end = transport.around(received, self)
        count = max((end for _, _, end in sends), default=0)
        places = cupy.arange(count, dtype=np.int64) if places is None else places
        packed = cupy.zeros((count, *received.shape[1:]), received.dtype)
        self._pack = prepare_packing(places, packed)
        self._sends = [(rank, packed[first:end]) for rank, first, end in sends if packed.size]
        self._receives = [(rank, received[first:end]) for rank, first, end in receives if received.size]

    def __call__(self, x: DeviceArray) -> None:
        """Send rows of x, and receive, on the current stream."""
        stream = self._stream().ptr
        with self._transport.calls():
            self._begin(stream)
            self._pack(stream, x)
            if self._sends or self._receives:
                self._transport.exchange(self._sends, self._receives, stream)
            self._end(stream)


class NcclTransport:
    """Messages and sums by NCCL; see `dasp.distributed.transport.Transport`.

    Messages and sums have a communicator each, because they run on different streams.

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
    solver_device: CudaDevice | None = None
    count = 0

    def __init__(self, comm: Communicator, device: str) -> None:
        import cupy
        from cupy.cuda import nccl

        self._comm, self._device = comm, find_cupy_device(device)

        def begin() -> list[Any]:
            if not nccl.available:
                raise RuntimeError(
                    "CuPy finds no NCCL; GPUs of several ranks need it; pip install nvidia-nccl-cu13"
                )
            return [nccl.get_unique_id() for _ in range(2)] if comm.rank == 0 else []

        keys = comm.gather(agree(comm, begin))[0]
        with self._device:
            self._sums, self._messages = (nccl.NcclCommunicator(comm.size, key, comm.rank) for key in keys)
            self._event = cupy.cuda.Event(disable_timing=True)
        self._cupy, self._nccl, self._current = cupy, nccl, cupy.cuda.get_current_stream
        self._given_up, host = shared_with_host(self._device, 1, np.uint32)
        host[:] = 0
        self._free: list[tuple[DeviceArray, Any, DeviceArray]] = []
        self._watch = NcclWatch(comm, (self._sums, self._messages), host, partial(_group, nccl))
        self._watch.start()
        watch_processes(comm, weakref.WeakMethod(self._watch.note_end))
        end_with_process(self)

    def around(
        self, received: DeviceArray, holder: object
    ) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """Return two launches on a stream, for before and after messages that write in `received`.

        They tell the host how far the messages are, in a mailbox that is theirs while `holder` lives.
        """
        with self._device:
            self._device.synchronize()  # launches that wrote there before have ended
            mailbox, host, turns = self._free.pop() if self._free else self._make_mailbox()
            weakref.finalize(holder, self._free.append, (mailbox, host, turns)).atexit = False
            arguments = {"turns": turns, "mailbox": mailbox}
            constants = {"DASP_THREADS": str(THREADS)}
            begin = Launch(BEGIN.load(constants), BEGIN, {}, arguments, blocks=1, threads=1)
            flat = received.reshape(-1).view(np.uint8)
            arguments |= {"received": flat, "nbytes": flat.size, "given_up": self._given_up}
            blocks = min(count_blocks(flat.size), MOST_BLOCKS)
            return begin, Launch(END.load(constants), END, {}, arguments, blocks=blocks, threads=THREADS)

    def _make_mailbox(self) -> tuple[DeviceArray, Any, DeviceArray]:
        """Return two numbers in the host's memory, as arrays of the GPU and of the host, and a counter."""
        mailbox, host = shared_with_host(self._device, 2, np.uint32)
        host[:] = 0
        self._watch.add(host)
        return mailbox, host, self._cupy.zeros(1, np.uint32)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Return a context for calls of NCCL, which counts them as one and raises their errors.

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

    def exchange(
        self,
        sends: Sequence[tuple[int, DeviceArray]],
        receives: Sequence[tuple[int, DeviceArray]],
        stream: int,
    ) -> None:
        """Send arrays to ranks and receive others, as one group of NCCL's calls, on a stream."""
        nccl = self._nccl
        with _group(nccl):
            for rank, array in receives:
                self._messages.recv(array.data.ptr, array.nbytes, nccl.NCCL_INT8, rank, stream)
            for rank, array in sends:
                self._messages.send(array.data.ptr, array.nbytes, nccl.NCCL_INT8, rank, stream)

    def rows(self, exchange: ExchangeRows) -> NcclRows:
        """Prepare to send rows of arrays that come later; see `dasp.distributed.transport.Transport`."""
        return NcclRows(self, exchange)

    def wait(self, event: Event) -> None:
        """Wait on the host for an event.

        Raises
        ------
        RankError
            If time is up, or another rank has ended: this rank then gives up NCCL's communicators, so that
            its GPU waits no longer.
        """
        began = time.monotonic()

        def look() -> None:
            if self._watch.is_in_vain(began, time.monotonic()):
                self._watch.give_up()
            self.check()

        await_event(self._comm, event, self._watch.give_up, look=look)
        self.check()

    def give_up(self) -> None:
        """Let the GPU wait for no other rank any more."""
        self._watch.give_up()

    def close(self) -> None:
        """Do nothing: NCCL's communicators end with this object."""

    def end(self) -> None:
        """Wait for messages on their way, which other ranks may need; not for long."""
        self._watch.hurry(min(self._comm.timeout, LAST_SECONDS))
        with contextlib.suppress(RuntimeError):
            self._device.synchronize()
        self._watch.hurry()
