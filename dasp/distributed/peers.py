"""Messages and sums between GPUs of one machine that write in each other's memory.

The communicator tells where that memory is (CUDA's handles for other processes); kernels do the rest:
kernels/distributed/peers.cu. Every call works on CuPy's current stream and can be
captured in a CUDA graph. Ranks make the same calls in the same order, as with NCCL.

Source: CUDA Runtime API, cudaIpcGetMemHandle and cudaIpcOpenMemHandle.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.halo_cuda import define_scalar, find_steps
from dasp.distributed.transport import ExchangeRows, Span
from dasp.distributed.watching import (
    LAST_SECONDS,
    await_event,
    end_with_process,
    find_machine,
    make_freed_error,
    make_given_up_error,
    watch_processes,
)
from dasp.runtime.cuda.device import CudaDevice, shared_with_host
from dasp.runtime.cuda.launch import OVERLAPPING, Launch, Signature
from dasp.runtime.sizes import ceil_div, round_up
from dasp.runtime.types import CupyDevice, DeviceArray, Event
from dasp.solvers.cuda.passes import THREADS

MOST_BLOCKS = 128
"""The most blocks of a launch that brings rows, and so the number of flags that each rank has for each other,
the same on all. They leave room for the blocks of the product beside them."""

IN_FLIGHT = 4
"""Elements that a thread of such a launch reads at once."""

ALIGNMENT = 256
"""Bytes, of which every array in memory that all ranks write in begins at a multiple."""

LEAST_BYTES = 2**21
"""The least bytes of memory that other processes see: the driver would put less into one allocation with
memory of this process alone, and they would see that too."""

NUMBERS = 4096
"""The most numbers of a sum before the mailboxes grow."""

TRIAL = 20.0
"""Seconds that the first messages may take."""

GAVE_UP, ENDED = 1, 2
"""Places in the array `limit` that kernels read (kernels/distributed/peers.cu). Its first number is the
milliseconds that they wait, `limit[GAVE_UP]` is 1 if a kernel or the host gave up, and `limit[ENDED + rank]`
is 1 if the process of that rank has ended."""

BRING = Signature(
    "distributed/peers.cu",
    "dasp_bring_rows",
    """
    unsigned char*    memory
    const long long*  neighbours [9 * count]
    int               count
    long long         own
    long long         own_step
    const long long*  places
    long long         columns
    unsigned*         turns
    int*              limit
    unsigned*         lost [1]
    Scalar*           received
    const Scalar*     x
    long long         row
    long long         column
    """,
)

SUM = Signature(
    "distributed/peers.cu",
    "dasp_sum_over_ranks",
    """
    unsigned char*    memory
    const long long*  mailboxes [ranks]
    int               ranks
    int               rank
    int               capacity
    unsigned*         turns [capacity]
    int*              limit
    unsigned*         lost [1]
    const double*     numbers [count]
    double*           totals [count]
    int               count
    """,
)


def align(nbytes: int) -> int:
    """Return bytes rounded up to the alignment."""
    return round_up(nbytes, ALIGNMENT)


def count_left_bytes(ranks: int) -> int:
    """Return the number of bytes after a rank's memory in which others say that they have left it."""
    return align(4 * ranks)


class Block:
    """Memory of every rank, equally much on each, that all ranks write in.

    After it each rank has a word for every rank, 1 once that one has left.

    Attributes
    ----------
    nbytes : int
        The size of each rank's part.
    places : list of int
        Where the part of each rank begins, in bytes from `memory`.
    memory : cupy.ndarray of uint8
        Begins at the lowest address of all parts.
    """

    def __init__(self, comm: Communicator, device: CupyDevice, nbytes: int) -> None:
        import cupy

        self.nbytes, self._rank, self._device, self._runtime = nbytes, comm.rank, device, cupy.cuda.runtime
        whole, runtime = nbytes + count_left_bytes(comm.size), self._runtime

        def allocate() -> tuple[int, bytes]:
            address = runtime.malloc(whole)
            runtime.memset(address, 0, whole)
            return address, bytes(runtime.ipcGetMemHandle(address))

        address, handle = agree(comm, allocate)
        handles = comm.gather(handle)

        def reach() -> list[int]:
            lazy = runtime.cudaIpcMemLazyEnablePeerAccess
            return [
                address if rank == comm.rank else int(runtime.ipcOpenMemHandle(one, lazy))
                for rank, one in enumerate(handles)
            ]

        self._addresses = agree(comm, reach)
        base = min(self._addresses)
        self.places = [one - base for one in self._addresses]
        held = cupy.cuda.UnownedMemory(base, 1, self, device.id)
        self.memory = cupy.ndarray((1,), np.uint8, cupy.cuda.MemoryPointer(held, 0))

    def clear(self) -> None:
        """Set this rank's part to 0."""
        self._runtime.memset(self._addresses[self._rank], 0, self.nbytes)

    def leave(self) -> None:
        """Tell others that this rank writes here no more, close their parts, and keep its own for them."""
        one, to_device = np.ones(1, np.uint32), self._runtime.memcpyHostToDevice
        for rank, address in enumerate(self._addresses):
            if rank != self._rank:
                mine = address + self.nbytes + one.nbytes * self._rank
                self._runtime.memcpy(mine, one.ctypes.data, one.nbytes, to_device)
                self._runtime.ipcCloseMemHandle(address)
        LEFT.append(self)

    def give_back(self) -> bool:
        """Free this rank's part if all others have left it; return True if it is freed."""
        left, address = np.zeros(len(self._addresses), np.uint32), self._addresses[self._rank]
        with self._device:
            to_host = self._runtime.memcpyDeviceToHost
            self._runtime.memcpy(left.ctypes.data, address + self.nbytes, left.nbytes, to_host)
            left[self._rank] = 1
            if left.all():
                self._runtime.free(address)
        return bool(left.all())


LEFT: deque[Block] = deque()
"""Blocks that this rank has left and others may not have left."""


def give_back_all() -> None:
    """Free the parts of this rank that all others have left."""
    for _ in range(len(LEFT)):
        with contextlib.suppress(IndexError):  # ranks that are threads share this
            block = LEFT.popleft()
            if not block.give_back():
                LEFT.append(block)


def make_neighbour_table(
    rank: int,
    places: Sequence[int],
    facts: Sequence[tuple[int, int, dict[int, int]]],
    sends: Sequence[Span],
    receives: Sequence[Span],
) -> list[list[int]]:
    """Return the nine numbers that `dasp_bring_rows` takes for each neighbour.

    Parameters
    ----------
    rank : int
        This one.
    places : sequence of int
        Where each rank's part of a block begins, in bytes.
    facts : sequence of (row bytes, slot bytes, dict)
        For each rank: the bytes of a row, those of a slot, and the first row from each of its neighbours.
    sends, receives : sequence of Span
    """
    sent = {other: (first, end) for other, first, end in sends}
    received = {other: (first, end) for other, first, end in receives}
    flags = count_flag_bytes(len(places))
    table = []
    for other in sorted({*sent, *received}):
        row_bytes, slot_bytes, firsts = facts[other]
        slot = places[other] + flags + row_bytes * firsts.get(rank, 0)
        their_flags = places[other] + 4 * MOST_BLOCKS * rank
        own_flags = places[rank] + 4 * MOST_BLOCKS * other
        to_other, from_other = sent.get(other, (0, 0)), received.get(other, (0, 0))
        table.append([*to_other, slot, slot_bytes, their_flags, *from_other, own_flags, other])
    return table


def count_flag_bytes(ranks: int) -> int:
    """Return the bytes that a rank's flags take, before its two slots."""
    return align(4 * MOST_BLOCKS * ranks)


def find_power_of_two(number: int) -> int:
    """Return the least power of two that is at least a number."""
    return 1 << (number - 1).bit_length()


class PeerRows:
    """Messages between neighbours, as one launch; see `PeerTransport.rows`."""

    def __init__(self, transport: PeerTransport, exchange: ExchangeRows) -> None:
        import cupy

        sends, places, receives, received = exchange
        comm, dtype, columns = transport.comm, received.dtype, int(np.prod(received.shape[1:], dtype=int))
        row_bytes = dtype.itemsize * columns
        slot_bytes = align(row_bytes * len(received))
        facts = row_bytes, slot_bytes, {rank: first for rank, first, _ in receives}
        elements = columns * sum(end - first for _, first, end in sends)
        answers = comm.gather((facts, elements))
        most = max(one for _, one in answers)
        blocks = max(1, min(ceil_div(most, THREADS * IN_FLIGHT), MOST_BLOCKS))
        room = transport.room(count_flag_bytes(comm.size) + 2 * slot_bytes, self)
        table = make_neighbour_table(comm.rank, room.places, [one for one, _ in answers], sends, receives)
        self._transport, self._stream = transport, cupy.cuda.get_current_stream
        arguments = {
            "memory": room.memory, "neighbours": cupy.asarray(np.array(table, np.int64).reshape(-1)),
            "count": len(table), "own": room.places[comm.rank] + count_flag_bytes(comm.size),
            "own_step": slot_bytes, "places": places, "columns": columns,
            "turns": cupy.zeros(blocks, np.uint32), "received": received, **transport.patience,
        }  # fmt: skip
        kernel = BRING.load(define_scalar(dtype))
        varying = "x", "row", "column"
        self._launch = Launch(
            kernel, BRING, {"Scalar": dtype}, arguments, varying, blocks=blocks, threads=THREADS
        )
        transport.settle()

    def __call__(self, x: DeviceArray) -> None:
        """Send rows of x, and wait for those of others, on the current stream."""
        self._transport.check()
        self._transport.count += 1
        self._launch(self._stream().ptr, x.data.ptr, *find_steps(x))


def can_reach(comm: Communicator, device: CupyDevice) -> bool:
    """Return True if all ranks are on one machine, and their GPUs can write in each other's memory."""
    import cupy

    runtime = cupy.cuda.runtime
    mine = find_machine()[:2], runtime.deviceGetPCIBusId(device.id)
    every = comm.gather(mine)

    def reaches(bus: str) -> bool:
        try:
            number = runtime.deviceGetByPCIBusId(bus)
        except runtime.CUDARuntimeError:
            return True  # not visible to this process, as where each rank sees its own alone: a trial tells
        return number == device.id or bool(runtime.deviceCanAccessPeer(device.id, number))

    together = all(machine == mine[0] for machine, _ in every) and os.name != "nt"
    return all(comm.gather(together and all(reaches(bus) for _, bus in every)))


class PeerTransport:
    """Messages and sums by writing in each other's memory; see `dasp.distributed.transport.Transport`.

    Attributes
    ----------
    name : str
        `peers`.
    comm : Communicator
    patience : dict
        Arguments of kernels that say how long they wait for other ranks; see kernels/distributed/peers.cu.
    """

    name = "peers"
    solver_device: CudaDevice | None = None
    count = 0

    def __init__(self, comm: Communicator, device: CupyDevice) -> None:
        import cupy

        self.comm, self._device, self._cupy = comm, device, cupy
        self._current = cupy.cuda.get_current_stream
        self._blocks: dict[int, Block] = {}
        self._released: list[int] = []
        limit, self._limit = shared_with_host(device, ENDED + comm.size, np.int32)
        self._limit[:] = 0
        self._made, self._is_tried = 0, False
        self._wait_for(comm.timeout)
        with device:
            self.patience = {"limit": limit, "lost": cupy.zeros(1, np.uint32)}
            self._event = cupy.cuda.Event(disable_timing=True)
            self._grow(NUMBERS)
        end_with_process(self)
        watch_processes(comm, weakref.WeakMethod(self._note_end))

    def _wait_for(self, seconds: float) -> None:
        """Set how long kernels wait for other ranks, including kernels that wait already."""
        self._seconds = seconds
        self._limit[0] = int(min(1000 * seconds, np.iinfo(np.int32).max))

    def _note_end(self, rank: int) -> None:
        """Let kernels wait no longer for a rank whose process has ended."""
        self._limit[ENDED + rank] = 1

    def check(self) -> None:
        """Raise RankError if the communicator is freed, or this rank has given up waiting for another."""
        if not self._blocks:
            raise make_freed_error(self.comm)
        if self._limit[GAVE_UP]:
            self._abort_at_exit()
            raise make_given_up_error(self.comm, np.flatnonzero(self._limit[ENDED:]))
        if self._seconds != self.comm.timeout:
            self._wait_for(self.comm.timeout)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's memory that others write in, in use or kept for later."""
        return sum(block.nbytes + count_left_bytes(self.comm.size) for block in self._blocks.values())

    def settle(self) -> None:
        """Wait until all ranks are here, and their GPUs have finished all launches."""
        self._device.synchronize()
        self.comm.gather(None)

    def room(self, nbytes: int, holder: object) -> Block:
        """Return a block of zeros, in use until `holder` is gone on all ranks; all ranks call this."""
        with self._device:
            self._device.synchronize()  # earlier users of this memory have finished
            answers = self.comm.gather((nbytes, set(self._released)))
            most, behind = max(one for one, _ in answers), count_left_bytes(self.comm.size)
            free = set.intersection(*(released for _, released in answers))
            fitting = [k for k in free if self._blocks[k].nbytes >= most]
            if fitting:
                number = min(fitting, key=lambda k: (self._blocks[k].nbytes, k))
                self._released.remove(number)
            else:
                self._drop(sorted(free))
                size, number = find_power_of_two(max(LEAST_BYTES, most + behind)), self._made
                self._made += 1
                self._blocks[number] = Block(self.comm, self._device, size - behind)
            self._blocks[number].clear()
            self.settle()
        weakref.finalize(holder, self._released.append, number).atexit = False
        return self._blocks[number]

    def _drop(self, numbers: Sequence[int]) -> None:
        """Leave blocks that all ranks have released and that are too small; all ranks call this."""
        for number in numbers:
            self._released.remove(number)
            self._blocks.pop(number).leave()
        self.comm.gather(None)
        give_back_all()

    def _grow(self, numbers: int) -> None:
        """Make mailboxes for sums of more numbers; the earlier ones stay, for graphs that hold them."""
        self._capacity = find_power_of_two(numbers)
        ranks = self.comm.size
        room = self.room(32 * ranks * self._capacity, self)
        self._mailboxes = {
            "memory": room.memory, "mailboxes": self._cupy.asarray(np.array(room.places, np.int64)),
            "ranks": ranks, "rank": self.comm.rank, "capacity": self._capacity,
            "turns": self._cupy.zeros(self._capacity, np.uint32), **self.patience,
        }  # fmt: skip
        self._device.synchronize()  # sums may be on any stream

    def sum(self, numbers: DeviceArray, totals: DeviceArray) -> Callable[[], None]:
        """Prepare a sum over all ranks, on the current stream; all ranks call this."""
        count = int(numbers.size)
        with self._device:
            if count > self._capacity:
                self._grow(count)
            arguments = {**self._mailboxes, "numbers": numbers, "totals": totals, "count": count}
            kernel, blocks = SUM.load({"DASP_THREADS": str(THREADS)}), max(1, ceil_div(count, THREADS))
            overlaps = int(self._device.compute_capability) >= OVERLAPPING
            launch = Launch(kernel, SUM, {}, arguments, blocks=blocks, threads=THREADS, overlaps=overlaps)

        def add() -> None:
            self.check()
            self.count += 1
            launch(self._current().ptr)

        return add

    def rows(self, exchange: ExchangeRows) -> PeerRows:
        """Prepare to send rows of arrays that come later; see `dasp.distributed.transport.Transport`."""
        with self._device:
            return PeerRows(self, exchange)

    def wait(self, event: Event) -> None:
        """Wait on the host for an event.

        Raises
        ------
        RankError
            If time is up, for the host or for a kernel: no GPU of this rank waits for another after that.
        """
        await_event(self.comm, event, self.give_up)
        self.check()

    def give_up(self) -> None:
        """Let kernels of this rank wait for no other rank any more."""
        self._limit[GAVE_UP] = 1
        self._abort_at_exit()

    def _abort_at_exit(self) -> None:
        if self._is_tried:  # a trial that fails leaves the job as it is
            self.comm.abort_at_exit()

    def works(self) -> bool:
        """Return True if messages and sums are right on all ranks; all ranks call this."""
        xp, rank, size = self._cupy, self.comm.rank, self.comm.size
        others = [(other, 3 * other, 3 * other + 3) for other in range(size) if other != rank]
        own, want = np.arange(3) + 3.0 * rank, size * np.arange(3 * size) + 50.0 * size * (size - 1)
        with self._device:
            sent = xp.arange(3 * size, dtype=np.float64) + 100 * rank
            received, total = (xp.full(3 * size, np.nan) for _ in range(2))
            rows, add = self.rows(ExchangeRows(others, None, others, received)), self.sum(sent, total)
            try:
                for _ in range(3):
                    rows(sent)
                    add()
                self._event.record(self._current())
                await_event(self.comm, self._event, self.give_up, TRIAL)
                good = bool((total.get() == want).all()) and all(
                    (received[first:end].get() == own + 100 * other).all() for other, first, end in others
                )
            except RuntimeError:  # of this module or of CUDA's
                good = False
        self._is_tried = all(self.comm.gather(good))
        return self._is_tried

    def end(self) -> None:
        """Wait for messages on their way, which other ranks may need; not for long."""
        self._wait_for(min(self._seconds, LAST_SECONDS))
        with contextlib.suppress(RuntimeError):
            self._device.synchronize()

    def close(self) -> None:
        """Leave the memory of other ranks, whether they leave now or later; nothing is sent any more.

        Graphs that are launched nevertheless do not touch it, and their products are NaN. This rank's own
        memory is freed when a later block is made, once the others have left it.
        """
        self.end()
        with self._device, contextlib.suppress(RuntimeError):
            self.patience["lost"].fill(1)
            self._device.synchronize()
            for block in self._blocks.values():
                block.leave()
        self._blocks.clear()
