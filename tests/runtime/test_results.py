"""Results cut from one block of memory: each piece once, for the stream and the allocator of its block."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dasp.runtime.cuda.results import MOST_BYTES, PIECES, Results
from dasp.runtime.cuda.scratch import PER_THREAD_STREAM

cupy = pytest.importorskip("cupy")


class Pool:
    """A stand-in for CuPy: arrays in memory that nobody touches, and a count of allocations."""

    def __init__(self):
        self.allocated, self.capturing, self._at = 0, False, 1 << 20
        self.allocator = self.allocate
        memory = SimpleNamespace(PooledMemory=cupy.cuda.UnownedMemory)
        runtime = SimpleNamespace(streamIsCapturing=lambda stream: self.capturing)
        self.cuda = SimpleNamespace(memory=memory, runtime=runtime, get_allocator=lambda: self.allocator)

    def allocate(self, nbytes):
        self.allocated, self._at = self.allocated + 1, self._at + (1 << 22)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(self._at, nbytes, self, 0), 0)

    def ndarray(self, *arguments):
        with cupy.cuda.using_allocator(self.allocate):
            return cupy.ndarray(*arguments)


def starts(arrays):
    return [array.data.ptr for array in arrays]


@pytest.mark.parametrize("dtype", ["d", "F", np.dtype("e")])
def test_results_never_share_memory(dtype):
    pool = Pool()
    results = Results(pool, 100, dtype)
    made = [results.new(0) for _ in range(3 * PIECES)]
    assert {(y.shape, y.dtype) for y in made} == {((100,), np.dtype(dtype))}
    places = sorted(starts(made))
    assert min(np.diff(places)) >= made[0].nbytes
    assert all(place % 512 == 0 for place in places)
    assert pool.allocated == 6  # a result and a block for each eight
    for y in made:
        assert y.data.ptr + y.nbytes <= y.data.mem.ptr + y.data.mem.size


def test_a_block_is_for_one_stream():
    results = Results(Pool(), 100, "d")
    of_one = {y.data.mem.ptr for y in [results.new(0), results.new(0)]}
    assert of_one.isdisjoint({y.data.mem.ptr for y in [results.new(7), results.new(7)]})


def test_another_allocator_is_asked():
    pool = Pool()
    results = Results(pool, 100, "d")
    results.new(0), results.new(0)
    before, pool.allocator = pool.allocated, object()
    results.new(0)
    assert pool.allocated > before


@pytest.mark.parametrize("case", ["other memory", "a thread's own stream", "large", "empty", "captured"])
def test_others_are_allocated_alone(case):
    pool = Pool()
    if case == "other memory":
        pool.cuda.memory.PooledMemory = cupy.cuda.Memory
    pool.capturing = case == "captured"
    size = {"large": MOST_BYTES // 8 + 1, "empty": 0}.get(case, 100)
    results = Results(pool, size, "d")
    for _ in range(PIECES):
        results.new(PER_THREAD_STREAM if case == "a thread's own stream" else 0)
    assert pool.allocated == PIECES


def test_threads_never_get_the_same_piece():
    results, made = Results(Pool(), 100, "d"), []
    threads = [
        threading.Thread(target=lambda: made.extend([results.new(0) for _ in range(500)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(starts(made))) == len(made) == 2000
