"""What captured graphs use: how long they keep it, shown by a stand-in for CUDA's driver."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import weakref

import pytest

from dasp.runtime.cuda import driver as cuda_driver
from dasp.runtime.cuda.driver import drop_ended, find_capture, keep


class Thing:
    """Something that can be seen to end."""


class Driver:
    """Stands for libcuda: graphs own objects, and call their destructors from a thread of its own."""

    def __init__(self, fails=""):
        self.fails = fails
        self.handles = itertools.count(0x100)
        self.objects: dict[int, tuple[int, int]] = {}
        self.graphs: dict[int, list[int]] = {}

    def cuUserObjectCreate(self, handle, pointer, destroy, count, flags):
        assert (count, flags) == (1, 1)  # one reference; CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        if self.fails == "create":
            return 2
        handle._obj.value = next(self.handles)
        self.objects[handle._obj.value] = pointer.value, destroy.value
        return 0

    def cuGraphRetainUserObject(self, graph, handle, count, flags):
        assert (count, flags) == (1, 1)  # the caller's reference, moved
        if self.fails == "retain":
            return 1
        self.graphs.setdefault(graph.value, []).append(handle.value)
        return 0

    def cuUserObjectRelease(self, handle, count):
        assert count == 1
        self._destroy(handle.value)
        return 0

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_%d" % status
        return 0

    def end(self, graph):
        """End a graph and all that was made from it."""
        for handle in self.graphs.pop(graph):
            self._destroy(handle)

    def _destroy(self, handle):
        pointer, destroy = self.objects.pop(handle)
        thread = threading.Thread(target=ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy), args=(pointer,))
        thread.start()
        thread.join()


@pytest.fixture
def driver(monkeypatch):
    stand_in = Driver()
    monkeypatch.setattr(cuda_driver, "driver", lambda: stand_in)
    yield stand_in
    drop_ended()
    assert not cuda_driver._kept


def kept(graph):
    """Keep a thing for a graph, and return a way to see whether it is there."""
    thing = Thing()
    keep(thing, graph)
    return weakref.ref(thing)


def test_a_graph_keeps_what_it_uses_until_it_ends(driver):
    first, second = kept(7), kept(7)
    other = kept(8)
    drop_ended()
    gc.collect()
    assert all(ref() is not None for ref in (first, second, other))
    driver.end(7)
    drop_ended()
    assert first() is None
    assert second() is None
    assert other() is not None
    driver.end(8)
    drop_ended()
    assert other() is None


def test_what_has_ended_goes_when_something_else_is_kept(driver):
    alive = []
    for graph in range(1, 50):
        alive.append(kept(graph))
        assert sum(ref() is not None for ref in alive) <= 2
        if graph > 1:
            driver.end(graph - 1)
    driver.end(49)


@pytest.mark.parametrize(("fails", "status"), [("create", 2), ("retain", 1)])
def test_an_error_of_the_driver_is_named_and_nothing_is_kept(driver, fails, status):
    driver.fails = fails
    with pytest.raises(RuntimeError, match=f"tied to the graph of a capture: CUDA_ERROR_{status}"):
        keep(Thing(), 7)
    drop_ended()
    assert not cuda_driver._kept
    assert not driver.objects


def test_threads_may_capture_at_once(driver):
    def capture_some(base):
        for graph in range(base + 1, base + 100):
            keep(Thing(), graph)
            driver.end(graph)

    threads = [threading.Thread(target=capture_some, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drop_ended()
    assert not cuda_driver._kept


@pytest.mark.parametrize(("graph", "status"), [(0x500, 0), (0, 0), (0, 901)])
def test_the_graph_of_a_capture(monkeypatch, graph, status):
    class Stand(Driver):
        def cuStreamGetCaptureInfo_v2(self, stream, state, number, handle, dependencies, count):
            assert stream.value == 77
            assert dependencies is None
            assert count is None
            state._obj.value, number._obj.value, handle._obj.value = 1, 2**40, graph
            return status

    monkeypatch.setattr(cuda_driver, "driver", Stand)
    if graph:
        assert find_capture(77) == (2**40, graph)
    else:
        with pytest.raises(RuntimeError, match="901" if status else "capture is no longer valid"):
            find_capture(77)
