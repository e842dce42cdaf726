"""What the driver is handed at a launch, shown by a driver that writes it down."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from dasp.backends.cuda import launch as cuda_launch
from dasp.backends.cuda.launch import Launch


class Driver:
    """Stands for libcuda: keeps what a launch was given and answers with a status."""

    def __init__(self, number: type, status: int = 0):
        self.status = status
        self.kinds = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, *[ctypes.c_void_p] * 2, *[number] * 2]
        self.launches: list[dict] = []

    def cuLaunchKernelEx(self, config, kernel, parameters, extra):
        config = config._obj
        taken = dict(kernel=kernel.value, grid=list(config.grid), block=list(config.block), extra=extra)
        taken |= dict(stream=config.stream, attributes=config.attribute_count)
        taken["attribute"] = config.attributes[0].id, config.attributes[0].value[0]
        taken["parameters"] = [
            ctypes.cast(address, ctypes.POINTER(kind))[0]
            for address, kind in zip(parameters, self.kinds, strict=True)
        ]
        self.launches.append(taken)
        return self.status

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_%d" % status
        return 0


def prepared(monkeypatch, driver, scalar=np.float64, overlaps=True):
    monkeypatch.setattr(cuda_launch, "_driver", lambda: driver)
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=0x1234))
    array = SimpleNamespace(data=SimpleNamespace(ptr=0x5000), dtype=np.dtype(float))
    arguments = [array, np.int64(2**40), np.int32(-7)]
    return Launch(kernel, 2**31 - 1, 128, arguments, np.dtype(scalar), overlaps=overlaps)


def test_the_structures_are_those_of_cuda():
    assert ctypes.sizeof(cuda_launch._Attribute) == 72
    assert cuda_launch._Attribute.value.offset == 8
    assert ctypes.sizeof(cuda_launch._Config) == 56
    config = cuda_launch._Config
    assert (config.stream.offset, config.attributes.offset, config.attribute_count.offset) == (32, 40, 48)


@pytest.mark.parametrize(("scalar", "number"), [(np.float64, ctypes.c_double), (np.float32, ctypes.c_float)])
@pytest.mark.parametrize("overlaps", [True, False])
def test_every_launch_gets_its_own_vectors(monkeypatch, scalar, number, overlaps):
    driver = Driver(number)
    launch = prepared(monkeypatch, driver, scalar, overlaps)
    launch(0, 0x10, 0x20, 0.5, 0.0)
    launch(77, 0x30, 0x40, -2.0, 1.5)
    one, two = driver.launches
    assert one["parameters"] == [0x5000, 2**40, -7, 0x10, 0x20, 0.5, 0.0]
    assert two["parameters"] == [0x5000, 2**40, -7, 0x30, 0x40, -2.0, 1.5]
    assert (one["stream"], two["stream"]) == (None, 77)
    for taken in (one, two):
        assert taken["kernel"] == 0x1234
        assert taken["grid"] == [2**31 - 1, 1, 1]
        assert taken["block"] == [128, 1, 1]
        assert taken["attributes"] == int(overlaps)
        assert taken["attribute"] == (6, 1)


def test_a_driver_error_is_named(monkeypatch):
    driver = Driver(ctypes.c_double, status=719)
    with pytest.raises(RuntimeError, match="the kernel was not launched: CUDA_ERROR_719"):
        prepared(monkeypatch, driver)(0, 1, 2, 1.0, 0.0)
