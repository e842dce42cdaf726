"""GPUs that write in each other's memory: their kernels in the emulator, one rank at a time.

What the other ranks say is played by NumPy, as kernels/distributed/peers.cu has it; then what a rank says
itself must be, byte by byte, what was played for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasp.distributed import RankError, launch, nccl, peers, watching
from dasp.distributed.halo_cuda import define_scalar, find_steps
from dasp.distributed.peers import (
    BRING,
    LEAST_BYTES,
    MOST_BLOCKS,
    SUM,
    count_flag_bytes,
    find_power_of_two,
    make_neighbour_table,
)
from dasp.distributed.transport import Span
from dasp.solvers.cuda.passes import THREADS
from tests.simt.launch import SimtError
from tests.support.ranks import run_ranks
from tests.support.simt_device import EmulatedDevice

pytestmark = [pytest.mark.simt, pytest.mark.ranks]

ROWS = 400
"""That each rank has of x."""


class Ranks:
    """Messages of three ranks, and the memory of all."""

    sends: tuple[list[Span], ...] = ([(1, 0, 5), (2, 5, 305)], [(0, 0, 300)], [])
    """The first rank and the second send each other something; the third only receives."""

    receives: tuple[list[Span], ...] = ([(1, 0, 300)], [(0, 0, 5)], [(0, 0, 300)])

    def __init__(self, dtype: Any, shape: tuple[int, ...], packed: bool, order: Any) -> None:
        rng = np.random.default_rng(0)
        self.dtype, self.shape = np.dtype(dtype), shape
        self.columns = int(np.prod(shape, dtype=int))
        self.row_bytes = self.columns * self.dtype.itemsize
        self.places = [rng.integers(0, ROWS, sum(e - f for _, f, e in one)) for one in self.sends]
        if not packed:
            self.places = [np.arange(len(one)) for one in self.places]
        self.packed, self.slots = packed, [1 << 15, 1 << 14, 1 << 15]
        self.order, self.size = order, count_flag_bytes(3) + (1 << 16)
        self.told = [
            (self.row_bytes, slot, {rank: first for rank, first, _ in one})
            for slot, one in zip(self.slots, self.receives, strict=True)
        ]

    def fresh(self, rank: int, turn: int) -> np.ndarray:
        """Return a rank's x in a turn."""
        rng = np.random.default_rng(10 * turn + rank)
        return np.asarray(rng.standard_normal((ROWS, *self.shape)).astype(self.dtype), order=self.order)

    def play(self, memory: np.ndarray, source: int, target: int, turn: int, blocks: int) -> None:
        """Do what a rank does for a neighbour in a turn."""
        begin = target * self.size
        for rank, first, end in self.sends[source]:
            if rank == target:
                rows = np.ascontiguousarray(self.fresh(source, turn)[self.places[source][first:end]])
                at = begin + count_flag_bytes(3) + turn % 2 * self.slots[target]
                at += self.told[target][2][source] * self.row_bytes
                memory[at : at + rows.nbytes] = rows.reshape(-1).view(np.uint8)
        flags = memory[begin + 4 * MOST_BLOCKS * source :][: 4 * blocks]
        flags.view(np.uint32)[:] = turn % 2**32

    def run(
        self, memory: np.ndarray, rank: int, turn: int, blocks: int, gave_up: int = 0, lost: Any = None
    ) -> np.ndarray:
        """Launch what a rank does in a turn; return what it received."""
        lost = np.zeros(1, np.uint32) if lost is None else lost
        starts = [k * self.size for k in range(3)]
        table = make_neighbour_table(rank, starts, self.told, self.sends[rank], self.receives[rank])
        x = self.fresh(rank, turn)
        row, column = find_steps(x)
        received = np.full((self.receives[rank][-1][2], *self.shape), 77, self.dtype)
        arguments = {
            "memory": memory, "neighbours": np.array(table, np.int64).reshape(-1), "count": len(table),
            "own": starts[rank] + count_flag_bytes(3), "own_step": self.slots[rank], "columns": self.columns,
            "places": self.places[rank] if self.packed else None, "received": received,
            "turns": np.full(blocks, (turn - 1) % 2**32, np.uint32),
            "limit": np.array([0, gave_up, 0, 0, 0], np.int32), "lost": lost,
            "x": x.reshape(-1, order="A"), "row": row, "column": column,
        }  # fmt: skip
        constants, types = define_scalar(self.dtype), {"Scalar": self.dtype}
        EmulatedDevice().prepare_launch(BRING, constants, arguments, blocks, THREADS, types)()
        assert (arguments["turns"] == turn % 2**32).all()
        return received


@pytest.mark.parametrize(
    ("dtype", "shape", "packed", "order"),
    [
        ("f8", (), True, "C"),
        ("f8", (3,), True, "F"),
        ("f4", (2,), False, "C"),
        ("f2", (), False, "C"),
        ("c16", (2,), True, "C"),
    ],
)
@pytest.mark.parametrize(("blocks", "before"), [(1, 0), (3, 0), (2, 2**31 - 2), (2, 2**32 - 2)])
def test_rows_are_written_in_the_memory_of_neighbours(
    dtype: str, shape: tuple[int, ...], packed: bool, order: str, blocks: int, before: int
) -> None:
    """Also where a turn is no longer what 31 or 32 bits hold."""
    ranks, memory = (
        Ranks(dtype, shape, packed, order),
        np.zeros(3 * (count_flag_bytes(3) + (1 << 16)), np.uint8),
    )
    near = {0: (1, 2), 1: (0,), 2: (0,)}
    for rank, others in near.items():
        for other in others if before else ():
            ranks.play(memory, rank, other, before, blocks)
    for turn in (before + 1, before + 2, before + 3):
        for rank in range(3):
            seen = memory.copy()
            for other in near[rank]:
                ranks.play(seen, other, rank, turn, blocks)
            want = seen.copy()
            received = ranks.run(seen, rank, turn, blocks)
            for other in near[rank]:
                ranks.play(want, rank, other, turn, blocks)
            np.testing.assert_array_equal(seen, want)
            for source, first, end in ranks.receives[rank]:
                places = next(span for span in ranks.sends[source] if span[0] == rank)
                rows = ranks.fresh(source, turn)[ranks.places[source][places[1] : places[2]]]
                np.testing.assert_array_equal(received[first:end], rows)
        for rank, others in near.items():
            for other in others:
                ranks.play(memory, rank, other, turn, blocks)


def test_a_rank_waits_for_its_neighbours_until_the_host_gives_up() -> None:
    """Also for one that sends it nothing: its slot for this rank may still be read."""
    ranks = Ranks("f8", (), True, "C")
    memory = np.zeros(3 * ranks.size, np.uint8)
    ranks.play(memory, 1, 0, 1, 1)
    with pytest.raises(SimtError) as caught:
        ranks.run(memory.copy(), 0, 1, 1)
    assert caught.value.kind == "deadlock"
    lost = np.zeros(1, np.uint32)
    assert np.isnan(ranks.run(memory.copy(), 0, 1, 1, gave_up=1, lost=lost)).all()
    assert lost == 1
    ranks.play(memory, 2, 0, 1, 1)
    ranks.run(memory, 0, 1, 1)


@pytest.mark.parametrize("dtype", ["f2", "f8", "c8"])
def test_a_rank_that_has_given_up_says_nothing_any_more(dtype: str) -> None:
    """Others might find numbers of a later turn than theirs; the rank itself receives NaN."""
    ranks = Ranks(dtype, (2,), True, "C")
    memory = np.zeros(3 * ranks.size, np.uint8)
    for other in (1, 2):
        ranks.play(memory, other, 0, 1, 2)
    seen = memory.copy()
    received = ranks.run(seen, 0, 1, 2, lost=np.ones(1, np.uint32))
    np.testing.assert_array_equal(seen, memory)
    assert np.isnan(received.astype(complex)).all()


def test_a_neighbour_may_be_a_turn_ahead() -> None:
    """It goes on as soon as it has heard this rank, which may not have looked yet."""
    ranks = Ranks("f8", (), True, "C")
    memory = np.zeros(3 * ranks.size, np.uint8)
    for turn in (1, 2):
        ranks.play(memory, 1, 0, turn, 1)
    ranks.play(memory, 2, 0, 1, 1)
    _, first, end = ranks.sends[1][0]
    want = ranks.fresh(1, 1)[ranks.places[1][first:end]]
    np.testing.assert_array_equal(ranks.run(memory, 0, 1, 1), want)


def say(mailbox: np.ndarray, rank: int, numbers: np.ndarray, turns: np.ndarray) -> None:
    """Write numbers and their turns as a rank does: (slot, rank, number, word)."""
    at = np.arange(len(numbers))
    mailbox[turns % 2, rank, at, 0::2] = numbers.view(np.uint32).reshape(-1, 2)
    mailbox[turns % 2, rank, at, 1::2] = turns[:, None]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(("same", "before"), [(False, 0), (True, 0), (False, 2**31 - 2), (False, 2**32 - 2)])
def test_numbers_are_added_in_the_order_of_ranks(rank: int, same: bool, before: int) -> None:
    """Some launches after each other; each number has its own turn, and its sum may take its place."""
    rng, capacity, others = np.random.default_rng(1), 512, {0, 1, 2} - {rank}
    memory, turns = np.zeros((3, 2, 3, capacity, 4), np.uint32), np.full(capacity, before, np.uint32)
    fixed = {
        "mailboxes": np.arange(3) * memory[0].nbytes, "ranks": 3, "rank": rank, "capacity": capacity,
        "turns": turns, "memory": memory.reshape(-1).view(np.uint8),
        "limit": np.zeros(5, np.int32), "lost": np.zeros(1, np.uint32),
    }  # fmt: skip
    for count in (300, 3, 293):
        numbers = rng.standard_normal((3, count)) * 10.0 ** rng.integers(-20, 20, (3, count))
        next_turns = turns[:count] + np.uint32(1)
        for other in others:
            say(memory[rank], other, numbers[other], next_turns)
        want = memory.copy()
        for other in others:
            say(want[other], rank, numbers[rank], next_turns)
        given = numbers[rank].copy()
        totals = given if same else np.full(count, np.nan)
        arguments = fixed | {"numbers": given, "totals": totals, "count": count}
        EmulatedDevice().prepare_launch(SUM, {"DASP_THREADS": str(THREADS)}, arguments, 2, THREADS, {})()
        np.testing.assert_array_equal(totals, (0.0 + numbers[0] + numbers[1]) + numbers[2])
        np.testing.assert_array_equal(memory, want)
        np.testing.assert_array_equal(turns[:count], next_turns)


@pytest.mark.parametrize(("gave_up", "lost"), [(1, 0), (0, 1)])
def test_a_sum_that_some_number_lacks_is_nan(gave_up: int, lost: int) -> None:
    """And a rank that has given up in an earlier launch says nothing."""
    memory, turns, total = np.zeros((3, 2, 3, 4, 4), np.uint32), np.zeros(4, np.uint32), np.zeros(3)
    here = np.full(1, lost, np.uint32)
    arguments = {
        "mailboxes": np.arange(3) * memory[0].nbytes, "ranks": 3, "rank": 0, "capacity": 4,
        "turns": turns, "memory": memory.reshape(-1).view(np.uint8),
        "limit": np.array([0, gave_up, 0, 0, 0], np.int32), "lost": here,
        "numbers": np.ones(3), "totals": total, "count": 3,
    }  # fmt: skip
    say(memory[0], 1, np.ones(3), np.ones(3, np.uint32))
    EmulatedDevice().prepare_launch(SUM, {"DASP_THREADS": str(THREADS)}, arguments, 1, THREADS, {})()
    assert np.isnan(total).all()
    assert here == 1
    assert memory[1:].any() == (not lost)


def test_memory_is_asked_for_in_powers_of_two() -> None:
    assert [find_power_of_two(k) for k in (1, 2, 3, 4096, 4097)] == [1, 2, 4, 4096, 8192]


@pytest.mark.parametrize(
    ("told", "reached", "made", "works", "want"),
    [
        ("auto", True, True, True, "peers"),
        ("auto", True, True, False, "nccl"),
        ("auto", True, False, True, "nccl"),
        ("auto", False, True, True, "nccl"),
        ("nccl", True, True, True, "nccl"),
    ],
)
def test_nccl_is_taken_where_gpus_cannot_write_in_each_others_memory(
    told: str, reached: bool, made: bool, works: bool, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")

    class Peers:
        name = "peers"

        def __init__(self, comm: Any, device: Any) -> None:
            if not made:
                raise RankError("rank 1: no memory to share")

        def works(self) -> bool:
            return works

    monkeypatch.setenv(launch.TRANSPORT_VARIABLE, told)
    monkeypatch.setattr(peers, "can_reach", lambda comm, device: reached)
    monkeypatch.setattr(peers, "PeerTransport", Peers)
    monkeypatch.setattr(nccl, "NcclTransport", lambda comm, device: SimpleNamespace(name="nccl"))
    assert run_ranks(2, lambda comm: launch.find_transport(comm, "cuda:0").name) == [want] * 2
    assert run_ranks(1, lambda comm: launch.find_transport(comm, "cuda:0").name) == ["nccl"]


def test_other_words_for_a_transport_are_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy")
    monkeypatch.setenv(launch.TRANSPORT_VARIABLE, "wires")
    with pytest.raises(ValueError, match="rank 0: DASP_RANK_TRANSPORT is 'wires'; auto or nccl is needed"):
        run_ranks(2, lambda comm: launch.find_transport(comm, "cuda:0"))


class Memory:
    """The runtime of CUDA of ranks that are threads, as far as memory goes that they share.

    Freeing what another rank has open is undefined there, and an error here.
    """

    cudaIpcMemLazyEnablePeerAccess, memcpyHostToDevice, memcpyDeviceToHost = 1, 1, 2

    def __init__(self) -> None:
        self.lock, self.blocks, self.opened = threading.Lock(), {}, Counter[int]()

    def malloc(self, nbytes: int) -> int:
        block = np.full(nbytes, 99, np.uint8)
        with self.lock:
            self.blocks[block.ctypes.data] = block
        return int(block.ctypes.data)

    def ipcGetMemHandle(self, address: int) -> bytes:
        return address.to_bytes(8, "little")

    def ipcOpenMemHandle(self, handle: bytes, flags: int) -> int:
        with self.lock:
            self.opened[int.from_bytes(handle, "little")] += 1
        return int.from_bytes(handle, "little")

    def ipcCloseMemHandle(self, address: int) -> None:
        with self.lock:
            self.opened[address] -= 1
            assert self.opened[address] >= 0

    def free(self, address: int) -> None:
        with self.lock:
            assert not self.opened[address], "another rank has it open"
            del self.blocks[address]

    def memset(self, address: int, value: int, nbytes: int) -> None:
        ctypes.memset(address, value, nbytes)

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        ctypes.memmove(target, source, nbytes)

    @property
    def size(self) -> tuple[int, int]:
        """Bytes that there are, and how many times one is open."""
        return sum(map(len, self.blocks.values())), sum(self.opened.values())


class Sharing(peers.PeerTransport):
    """A transport without a GPU, as far as memory goes that ranks share."""

    def __init__(self, comm: Any) -> None:
        self.comm, self._released, self._blocks, self._made = comm, [], {}, 0
        self._limit, self._seconds = np.zeros(2 + comm.size, np.int32), 0.0
        self._device, self.patience = Here(), {"lost": np.zeros(1, np.uint32)}


class Here(contextlib.nullcontext):
    """A device that has always done what it was asked for."""

    id = 0

    def synchronize(self) -> None:
        """Wait for nothing."""


@pytest.fixture
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    cupy = pytest.importorskip("cupy")
    memory = Memory()
    monkeypatch.setattr(cupy.cuda, "runtime", memory)
    monkeypatch.setattr(peers, "LEFT", deque())
    return memory


class Holder:
    """The holder of memory of every rank, while it lives."""


def test_memory_of_matrices_that_are_gone_is_used_again_or_given_back(shared_memory: Memory) -> None:
    """Whenever ranks notice that one is gone; and nobody frees what another still has open."""
    sizes, sums = [10, 3 << 20, 20, 9 << 20, 3 << 20, 1 << 10], []

    def run(comm: Any) -> None:
        sharing, rng, kept = Sharing(comm), np.random.default_rng(comm.rank), []
        for turn in range(60):
            holder = Holder()
            kept.append((sharing.room(sizes[turn % 6], holder), holder))
            assert kept[-1][0].nbytes >= sizes[turn % 6]
            del holder, kept[: int(rng.integers(0, 3))]  # ranks drop them at different times
            del kept[:-3]
            if turn % 20 == 19:
                kept.clear()
                sharing.room(17 << 20 << turn // 20, Holder())  # more than any other: they go
                comm.gather(None)
                sums.append((sharing.nbytes, *shared_memory.size))
                comm.gather(None)
        sharing.close()
        assert sharing.patience["lost"] == 1  # kernels that are launched nevertheless say nothing
        with pytest.raises(RankError, match=r"of rank . has been freed; make the matrix anew"):
            sharing.check()
        comm.gather(None)
        assert shared_memory.size[1] == 0
        Sharing(comm).room(1, Holder())  # with a later transport all of it is given back
        comm.gather(None)
        assert shared_memory.size == (3 * LEAST_BYTES, 6)

    run_ranks(3, run)
    assert set(sums) == {(size << 20, 3 * size << 20, 6) for size in (32, 64, 128)}


def test_memory_is_not_given_back_while_a_rank_has_not_left_it(shared_memory: Memory) -> None:
    def run(comm: Any) -> None:
        sharing = Sharing(comm)
        sharing.room(1, sharing)
        comm.gather(None)
        if comm.rank:
            sharing.close()
        comm.gather(None)
        peers.give_back_all()
        comm.gather(None)
        assert shared_memory.size == (2 * LEAST_BYTES, 1)
        comm.gather(None)
        sharing.close()
        comm.gather(None)
        peers.give_back_all()
        comm.gather(None)
        assert shared_memory.size == (0, 0)

    run_ranks(2, run)


class Waiting(peers.PeerTransport):
    """A transport without a GPU, as far as waiting goes."""

    def __init__(self) -> None:
        self.comm: Any = SimpleNamespace(rank=2, size=4, timeout=600.0, abort_at_exit=self.abort_at_exit)
        self._limit, self._seconds, self.ends = np.zeros(2 + 4, np.int32), 0.0, 0
        self.aborts, self._is_tried, self._blocks = 0, True, {0: None}
        self._device = SimpleNamespace(synchronize=self.synchronize)

    def synchronize(self) -> None:
        self.ends += 1

    def abort_at_exit(self) -> None:
        self.aborts += 1


def test_kernels_are_told_how_long_to_wait_and_for_whom() -> None:
    waiting = Waiting()
    waiting.check()
    assert list(waiting._limit) == [600_000, 0, 0, 0, 0, 0]
    for seconds in (1e9, float("inf")):
        waiting.comm.timeout = seconds
        waiting.check()
        assert waiting._limit[0] == 2**31 - 1
    waiting._note_end(3)
    assert list(waiting._limit[1:]) == [0, 0, 0, 0, 1]
    waiting.wait(SimpleNamespace(done=True))
    waiting._limit[peers.GAVE_UP] = 1  # as a kernel does
    with pytest.raises(RankError, match=r"rank 2 of 4 has given up .* \(ended: 3\); GPUs send"):
        waiting.wait(SimpleNamespace(done=True))
    assert waiting.aborts == 1


def test_the_host_waits_no_longer_than_the_timeout() -> None:
    waiting = Waiting()
    waiting.comm.timeout = 0.01
    with pytest.raises(RankError, match=r"rank 2 of 4 waited 0\.01 s for its GPU"):
        waiting.wait(SimpleNamespace(done=False))
    assert waiting.aborts == 1
    with pytest.raises(RankError, match="has given up waiting for another rank; GPUs"):
        waiting.check()


def test_a_trial_in_vain_leaves_the_job_as_it_is() -> None:
    """Ranks go on with NCCL then; those of MPI would be ended with the first one that ends."""
    waiting = Waiting()
    waiting._is_tried = False
    waiting.give_up()
    with pytest.raises(RankError, match="has given up"):
        waiting.check()
    assert waiting.aborts == 0


def test_a_fork_leaves_the_gpu_alone_when_it_ends() -> None:
    """A fork has no pinned memory, and the GPU is not its own."""
    waiting = Waiting()
    waiting.check()
    watching._end(weakref.ref(waiting), os.getpid() + 1)
    assert (waiting.ends, waiting._limit[0]) == (0, 600_000)
    watching._end(weakref.ref(waiting), os.getpid())
    assert (waiting.ends, waiting._limit[0]) == (1, 10_000)


@pytest.mark.parametrize(
    ("near", "visible", "same", "want"),
    [
        (True, True, True, True), (False, True, True, False), (False, False, True, True),
        (True, True, False, False),
    ],
)  # fmt: skip
def test_gpus_that_a_process_does_not_see_may_be_reached(
    near: bool, visible: bool, same: bool, want: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each process sees its own alone: whether they can be written in is tried."""
    cupy = pytest.importorskip("cupy")

    class Unseen(RuntimeError):
        pass

    def number(bus: str) -> int:
        if bus != f"bus {known.rank}" and not visible:
            raise Unseen
        return int(bus[-1])

    known = threading.local()

    def name() -> str:
        return "here" if same else f"host {known.rank}"

    runtime = SimpleNamespace(
        CUDARuntimeError=Unseen, deviceGetPCIBusId=lambda _: f"bus {known.rank}",
        deviceGetByPCIBusId=number, deviceCanAccessPeer=lambda one, other: int(near),
    )  # fmt: skip
    monkeypatch.setattr(cupy.cuda, "runtime", runtime)
    monkeypatch.setattr(
        peers, "find_machine", lambda: ("here" if same else f"host {known.rank}", "boot", "pids")
    )

    def run(comm: Any) -> bool:
        known.rank = comm.rank
        return peers.can_reach(comm, SimpleNamespace(id=comm.rank))

    assert run_ranks(2, run) == [want] * 2
