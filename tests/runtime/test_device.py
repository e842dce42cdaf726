"""A GPU as a device, without one: addresses, and graphs that keep what their launches use."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dasp.runtime.cuda import device as cuda_device
from dasp.runtime.cuda import driver as cuda_driver
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Signature


def test_addresses_and_numbers_as_launches_take_them(monkeypatch):
    """A kernel gets the address of an array, a number as it is, 0 for None, in the order of the source."""

    class Array:
        data = SimpleNamespace(ptr=9)

    device, words = object.__new__(CudaDevice), []
    device._ndarray, device._stream = Array, lambda: SimpleNamespace(ptr=5)
    monkeypatch.setattr(device, "_load", lambda *_: None)
    monkeypatch.setattr(cuda_device, "Launch", lambda *_: lambda *given: words.extend(given))
    signature = Signature("a.cu", "a", "const double* x\n long long n\n int k\n const double* y")
    launch = device.prepare_kernel(signature, {}, {})
    launch(3, 64, {"n": np.int64(8), "x": Array(), "y": None, "k": 7, "other": 1})
    assert words == [5, 3, 1, 64, 0, 9, 8, 7, 0]


class Kept:
    """Stands for an array that a launch uses."""


def fake_cupy_device(monkeypatch):
    """The device of CuPy with streams that capture nothing and graphs that run again."""
    stream = SimpleNamespace(ptr=7, begin_capture=lambda: None)
    graph = SimpleNamespace(launch=lambda stream: None)
    stream.end_capture = lambda: graph
    device = object.__new__(cuda_device.CudaDevice)
    device._device, device._loops, device._stream = nullcontext(), True, lambda: stream
    monkeypatch.setattr(cuda_device, "on_stream", nullcontext)
    device._cupy = SimpleNamespace(cuda=SimpleNamespace(Stream=lambda non_blocking: stream))
    device.prepare_launch = lambda *given, **more: lambda *values: None
    monkeypatch.setattr(cuda_device._source, "load", lambda *given: None)
    loop = SimpleNamespace(launch=lambda stream: None)
    monkeypatch.setattr(cuda_device, "LoopGraph", lambda stream, body: (body(0), loop)[1])
    return device


@pytest.mark.parametrize("way", ["record", "repeat"])
def test_a_graph_keeps_what_its_launches_use(monkeypatch, way):
    """A graph holds addresses alone: an array that nobody else keeps would be given to somebody else."""
    device, kept = fake_cupy_device(monkeypatch), Kept()
    watched, calls = weakref.ref(kept), []

    def function(kept: Any = kept) -> None:
        calls.append(1)

    launch = device.record(function) if way == "record" else device.repeat(function, None, captured=True)
    del kept, function
    gc.collect()
    assert calls == [1]
    assert watched() is not None
    launch()
    del launch
    gc.collect()
    assert watched() is None


def test_a_graph_that_the_driver_refuses_is_told(monkeypatch):
    def name_error(status: int, text: Any) -> None:
        text._obj.value = b"CUDA_ERROR_%d" % status

    driver = SimpleNamespace(cuGraphLaunch=lambda *given: 700, cuGetErrorName=name_error)
    monkeypatch.setattr(cuda_driver, "driver", lambda: driver)
    with pytest.raises(RuntimeError, match="cuGraphLaunch failed: CUDA_ERROR_700"):
        cuda_driver._Executable().launch(7)
