"""Memory of results that is given out again: never while anybody holds it, shown with a stand-in of CuPy."""

from __future__ import annotations

import gc
import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dasp.backends.cuda.results import MOST_BYTES, Results
from dasp.runtime.cuda.scratch import PER_THREAD_STREAM

SERIAL = itertools.count()


class Other:
    """Memory, with a number of its own."""

    def __init__(self):
        self.serial = next(SERIAL)


class Pooled(Other):
    """Memory of the pool."""


class Pointer:
    """Where an array begins: the only thing that holds the memory."""

    def __init__(self, mem):
        self.mem = mem


def stand_in(memory=Pooled):
    """A stand-in of CuPy, whose arrays are made of `memory`, and a list of all memory that was asked for."""
    asked = []

    class Array:
        def __init__(self, shape, dtype, memptr=None):
            self.nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            self.ndim = len(shape)
            if memptr is None:
                memptr = Pointer(memory())
                asked.append(memptr.mem.serial)
            self.data = memptr

        def view(self):
            new = Array.__new__(Array)
            new.data = Pointer(self.data.mem)
            return new

    module = SimpleNamespace(ndarray=Array, cuda=SimpleNamespace(memory=SimpleNamespace(PooledMemory=Pooled)))
    return module, asked


def test_memory_comes_again_when_nobody_holds_it():
    module, asked = stand_in()
    results = Results(module, 100, "d")
    for _ in range(50):
        y = results.new(0)  # the last one is held until the next is there
    assert y.nbytes == 800
    assert len(asked) == 2
    del y
    for _ in range(50):
        results.new(0)
    assert len(asked) == 2


def test_two_that_are_held_never_share():
    results = Results(stand_in()[0], 100, "d")
    held = [results.new(0) for _ in range(20)]
    assert len({one.data.mem.serial for one in held}) == 20


@pytest.mark.parametrize("way", ["array", "view", "pointer", "memory", "cycle"])
def test_whatever_holds_memory_keeps_it(way):
    results = Results(stand_in()[0], 100, "d")
    one = results.new(0)
    number = one.data.mem.serial
    holders = {"array": one, "view": one.view(), "pointer": one.data, "memory": one.data.mem, "cycle": [one]}
    holders["cycle"].append(holders["cycle"])  # ends with the next collection
    held = [holders.pop(way)]
    del one, holders
    if way == "cycle":
        held.clear()
    later = [results.new(0) for _ in range(6)]
    assert number not in {each.data.mem.serial for each in later}
    held.clear()
    gc.collect()


def test_an_array_whose_shape_was_set_does_not_come_again():
    results = Results(stand_in()[0], 100, "d")
    results.new(0).ndim = 2
    assert all(results.new(0).ndim == 1 for _ in range(6))


def test_streams_do_not_share_memory():
    results = Results(stand_in()[0], 100, "d")
    of_one = {results.new(0).data.mem.serial for _ in range(2)}
    assert of_one.isdisjoint(results.new(7).data.mem.serial for _ in range(2))


@pytest.mark.parametrize(
    ("memory", "size", "stream"),
    [(Other, 100, 0), (Pooled, 100, PER_THREAD_STREAM), (Pooled, MOST_BYTES // 8 + 1, 0)],
)
def test_what_is_not_kept(memory, size, stream):
    module, asked = stand_in(memory)
    results = Results(module, size, "d")
    for _ in range(10):
        results.new(stream)
    assert len(asked) == 10


def test_threads_never_get_the_same_memory():
    results = Results(stand_in()[0], 100, "d")
    wrong = []

    def work(name):
        for turn in range(3000):
            y = results.new(0)
            y.data.mem.owner = name, turn
            z = results.new(0)
            z.data.mem.owner = name, -turn - 1
            if y.data.mem.owner != (name, turn):
                wrong.append((name, turn))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
