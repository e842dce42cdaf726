"""What a kernel takes, compared with its source; what a launch hands to the driver, kept by a stand-in."""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
import re
from types import SimpleNamespace

import numpy as np
import pytest

import dasp
from dasp.formats.sell.cuda.vector import DOT_SIGNATURE
from dasp.runtime.cuda import driver as cuda_driver
from dasp.runtime.cuda import launch as cuda_launch
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import Launch, Signature

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(dasp.__path__, "dasp.")
    if (".cuda." in f"{module.name}." and ".pack." not in module.name) or module.name.endswith("persistent")
]
SIGNATURES = {
    value.entry: value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, Signature)
}

SCALE = Signature(
    "scale.cu",
    "dasp_scale",
    """
    const uint4*  headers  [count]
    const Index*  starts   [rows + 1]
    const Value*  table    [4]
    Value*        out      [rows]
    const Index*  any
    int           small
    long long     count
    Value         alpha
    """,
)
TYPES = {"Index": np.dtype(np.int32), "Value": np.dtype(np.float64)}


def given(**changes):
    """What `SCALE` takes, but alpha."""
    right = {
        "headers": np.zeros((3, 4), np.uint32),
        "starts": np.zeros(6, np.int32),
        "table": np.zeros(4),
        "out": np.zeros(5),
        "any": np.zeros((2, 7), np.int32),
        "small": -7,
        "count": 3,
    }
    return right | changes


# ---- signatures ----------------------------------------------------------------------------------


def test_a_signature_is_found_for_both_formats():
    assert {"dasp_slices", "dasp_spmv"} <= SIGNATURES.keys()


@pytest.mark.parametrize("signature", [*SIGNATURES.values(), DOT_SIGNATURE], ids=lambda each: each.entry)
def test_a_signature_is_what_the_source_declares(signature):
    text = _source.read(signature.source)
    text += "".join(map(_source.read, re.findall(r'#include "(.+\.cuh)"', text)))
    text = re.sub(r"//.*", "", text)
    (inside,) = re.findall(rf"\b{signature.entry}\(([^)]*)\)", text)
    for macro, parameters in re.findall(r"#define (DOT_\w+) (,.*)", text):
        inside = inside.replace(macro, parameters if signature is DOT_SIGNATURE else "")
    declared = [" ".join(part.replace("__restrict__", "").split()) for part in inside.split(",") if part]
    assert declared == [f"{p.type} {p.name}" for p in signature.parameters]


def test_arguments_come_in_the_order_of_the_kernel():
    arguments = given()
    ordered = SCALE.ordered(TYPES, dict(reversed(arguments.items())), ["alpha"])
    names = [p.name for p in SCALE.parameters]
    for name, value in zip(names, ordered, strict=True):
        if name == "alpha":
            assert value is None
        elif name in ("small", "count"):
            assert value == arguments[name]
            assert value.dtype == (np.int32 if name == "small" else np.int64)
        else:
            assert value is arguments[name]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"starts": np.zeros(6, np.int64)}, TypeError, "starts of dasp_scale is an array of int64; int32 is"),
        (
            {"table": np.zeros(4, np.float32)},
            TypeError,
            "table of dasp_scale is an array of float32; float64",
        ),
        (
            {"starts": np.zeros(5, np.int32)},
            ValueError,
            r"starts .* has 5 elements; 6, for \[rows \+ 1\], are",
        ),
        ({"headers": np.zeros((4, 4), np.uint32)}, ValueError, r"has 16 elements; 12, for \[count\], are"),
        ({"table": np.zeros(5)}, ValueError, r"has 5 elements; 4, for \[4\], are"),
        ({"out": np.zeros((5, 2))[:, 0]}, ValueError, r"out of dasp_scale has strides \(16,\); a contiguous"),
        ({"small": 2**31}, ValueError, "small of dasp_scale is 2147483648; a number that int32 holds is"),
        ({"small": -(2**31) - 1}, ValueError, "small of dasp_scale is -2147483649"),
        ({"extra": 1}, TypeError, "extra: missing or unknown; dasp_scale takes any, count, headers"),
        ({"alpha": 1.0}, TypeError, "alpha: missing or unknown"),
    ],
)
def test_a_wrong_argument_is_refused(changes, error, text):
    with pytest.raises(error, match=text):
        SCALE.ordered(TYPES, given(**changes), ["alpha"])


def test_a_missing_argument_is_refused():
    arguments = given()
    del arguments["any"]
    with pytest.raises(TypeError, match="any: missing or unknown"):
        SCALE.ordered(TYPES, arguments, ["alpha"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int", "'int' is no parameter"),
        ("const int* a [n - 1]", "is no parameter"),
        ("const int* a [2 * n + 1]", "a of k has size 2 \\* n \\+ 1; nothing says what n is"),
    ],
)
def test_a_wrong_declaration_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Signature("k.cu", "k", text)


def test_a_size_may_depend_on_a_number_that_varies():
    signature = Signature("k.cu", "k", "const int* a [n]\nint n")
    array = np.zeros(3, np.int32)
    assert signature.ordered({}, {"a": array}, ["n"]) == [array, None]


# ---- launches ------------------------------------------------------------------------------------


class Driver:
    """Stands for libcuda: keeps what a launch was given and answers with a status."""

    def __init__(self, kinds, status=0):
        fields = [(f"p{k}", kind) for k, kind in enumerate(kinds)]
        self.block = type("Block", (ctypes.Structure,), {"_fields_": fields})
        self.status = status
        self.launches: list[dict] = []

    def cuLaunchKernelEx(self, config, kernel, parameters, extra):
        config = config._obj
        taken = {"kernel": kernel.value, "grid": list(config.grid), "block": list(config.block)}
        taken |= {
            "stream": config.stream,
            "attributes": config.attribute_count,
            "shared": config.shared_bytes,
        }
        if config.attributes:
            taken["attribute"] = config.attributes[0].id, config.attributes[0].value[0]
        assert parameters is None
        at, block, size_at, size, end = (ctypes.c_void_p * 5).from_buffer(extra._obj)
        assert (at, size_at, end) == (1, 2, None)
        last = getattr(self.block, self.block._fields_[-1][0])
        assert ctypes.c_size_t.from_address(size).value == last.offset + last.size
        values = self.block.from_address(block)
        taken["parameters"] = [getattr(values, name) for name, _ in self.block._fields_]
        self.launches.append(taken)
        return self.status

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_%d" % status
        return 0


def stand_in(monkeypatch, driver):
    """Let a function give the driver until the test ends."""
    for module in (cuda_driver, cuda_launch):
        monkeypatch.setattr(module, "driver", driver)


class Array:
    """Stands for a CuPy array at an address."""

    def __init__(self, array, address):
        self.dtype, self.size, self.flags = array.dtype, array.size, array.flags
        self.data = SimpleNamespace(ptr=address)


def prepared(monkeypatch, driver, number=np.float64, overlaps=True):
    """A launch with numbers of 4 and of 8 bytes before and after what varies."""
    stand_in(monkeypatch, lambda: driver)
    signature = Signature(
        "k.cu", "k", "const T* a\nunsigned seed\nconst T* x\nT* y\nT alpha\nT beta\nint i\nlong long n\nint j"
    )
    vector = np.zeros(2, number)
    return Launch(
        SimpleNamespace(ptr=0x1234),
        signature,
        {"T": np.dtype(number)},
        {"a": Array(vector, 2**47), "n": 2**40, "i": -7, "j": 5, "seed": 2**32 - 1},
        ["x", "y", "alpha", "beta"],
        blocks=2**31 - 1,
        threads=128,
        shared_bytes=96,
        overlaps=overlaps,
    )


def kinds(number):
    pointer, real, integer = ctypes.c_void_p, np.ctypeslib.as_ctypes_type(number), ctypes.c_int32
    return [pointer, ctypes.c_uint32, pointer, pointer, real, real, integer, ctypes.c_int64, integer]


def test_the_structures_are_those_of_cuda():
    assert ctypes.sizeof(cuda_launch._Attribute) == 72
    assert cuda_launch._Attribute.value.offset == 8
    assert ctypes.sizeof(cuda_launch._Config) == 56
    config = cuda_launch._Config
    assert (config.stream.offset, config.attributes.offset, config.attribute_count.offset) == (32, 40, 48)


@pytest.mark.parametrize("number", [np.float64, np.float32])
@pytest.mark.parametrize("overlaps", [True, False])
def test_every_launch_gets_its_own_vectors(monkeypatch, number, overlaps):
    driver = Driver(kinds(number))
    launch = prepared(monkeypatch, driver, number, overlaps)
    launch(0, 0x10, 0x20, 0.5, 0.0)
    launch(77, 2**46, 0x40, -2.0, 1.5)
    launch(77, 1, 2, number(np.inf), np.nan)
    one, two, three = driver.launches
    assert three["stream"] == 77
    assert three["parameters"][4] == np.inf
    assert np.isnan(three["parameters"][5])
    assert one["parameters"] == [2**47, 2**32 - 1, 0x10, 0x20, 0.5, 0.0, -7, 2**40, 5]
    assert two["parameters"] == [2**47, 2**32 - 1, 2**46, 0x40, -2.0, 1.5, -7, 2**40, 5]
    assert (one["stream"], two["stream"]) == (None, 77)
    for taken in (one, two):
        assert taken["kernel"] == 0x1234
        assert taken["grid"] == [2**31 - 1, 1, 1]
        assert taken["block"] == [128, 1, 1]
        assert taken["shared"] == 96
        assert taken["attributes"] == int(overlaps)
        assert taken["attribute"] == (6, 1)


def test_threads_launch_beside_each_other(monkeypatch):
    class Interrupted(Driver):
        def cuLaunchKernelEx(self, *arguments):
            if others:
                others.pop()(78, 3, 4, 0.0, 1.0)  # as another thread would, which finds Python's lock free
            return super().cuLaunchKernelEx(*arguments)

    others: list = []
    driver = Interrupted(kinds(np.float64))
    launch = prepared(monkeypatch, driver)
    for _ in range(2):
        others[:] = [launch, launch]
        launch(77, 1, 2, 1.0, 0.0)
    assert [taken["stream"] for taken in driver.launches] == [78, 78, 77] * 2
    wanted = [[3, 4, 0.0, 1.0], [3, 4, 0.0, 1.0], [1, 2, 1.0, 0.0]] * 2
    assert [taken["parameters"][2:6] for taken in driver.launches] == wanted


def test_a_complex_number_may_be_fixed(monkeypatch, recwarn):
    driver = Driver([ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_float])
    stand_in(monkeypatch, lambda: driver)
    signature = Signature("k.cu", "k", "const T* x\nT* y\nT alpha")
    arguments, types = {"alpha": np.complex64(2 - 3j)}, {"T": np.dtype(np.complex64)}
    kernel = SimpleNamespace(ptr=1)
    Launch(kernel, signature, types, arguments, ["x", "y"], blocks=1, threads=32)(0, 8, 16)
    assert driver.launches[0]["parameters"] == [8, 16, 2.0, -3.0]
    assert not recwarn.list


def test_a_driver_error_is_named(monkeypatch):
    driver = Driver(kinds(np.float64), status=719)
    with pytest.raises(RuntimeError, match="the kernel was not launched: CUDA_ERROR_719"):
        prepared(monkeypatch, driver)(0, 1, 2, 1.0, 0.0)


@pytest.mark.parametrize(
    ("varying", "message"),
    [
        (["y", "x"], "y, x vary; parameters that follow each other are needed"),
        (["b", "x"], "b has 4 bytes; a first parameter of 8 that varies is needed"),
    ],
)
def test_what_varies_lies_side_by_side(monkeypatch, varying, message):
    stand_in(monkeypatch, lambda: Driver([]))
    signature = Signature("k.cu", "k", "int a\nint b\nint* x\nint* y")
    arguments = {p.name: 1 for p in signature.parameters if not p.is_array and p.name not in varying}
    arguments |= {p.name: Array(np.zeros(1, np.int32), 8) for p in signature.parameters if p.is_array}
    arguments = {name: value for name, value in arguments.items() if name not in varying}
    with pytest.raises(ValueError, match=message):
        Launch(SimpleNamespace(ptr=1), signature, {}, arguments, varying, blocks=1, threads=32)


def test_a_kernel_takes_other_arguments_and_another_grid_every_time(monkeypatch):
    driver = Driver([ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64])
    stand_in(monkeypatch, lambda: driver)
    signature = Signature("k.cu", "k", "int* x\nint n\nint* y\nlong long m")
    launch = Launch(SimpleNamespace(ptr=0x1234), signature, {}, {}, signature.names)
    launch(7, 3, 4, 64, 0, 2**40, -5, 0, 2**50)
    launch(0, 1, 1, 1024, 36, 2**40, 9, 2**40, 1)
    one, two = driver.launches
    assert (one["stream"], one["grid"], one["block"]) == (7, [3, 4, 1], [64, 1, 1])
    assert one["parameters"] == [2**40, -5, None, 2**50]
    assert (two["stream"], two["grid"], two["block"]) == (None, [1, 1, 1], [1024, 1, 1])
    assert two["parameters"] == [2**40, 9, 2**40, 1]
    assert [taken["attributes"] for taken in driver.launches] == [0, 0]
    assert [taken["shared"] for taken in driver.launches] == [0, 36]


def test_the_shared_memory_of_a_kernel_is_never_lowered(monkeypatch):
    """All launches of a kernel share the limit: one that was prepared with more would fail."""
    limits: dict[int, list[int]] = {}

    def set_attribute(handle, attribute, nbytes):
        assert attribute == cuda_driver.MOST_SHARED_BYTES
        limits.setdefault(handle.value, []).append(nbytes)
        return 0

    stand_in(monkeypatch, lambda: SimpleNamespace(cuFuncSetAttribute=set_attribute))
    monkeypatch.setattr(cuda_driver, "_shared_bytes", {})
    for ptr, nbytes in ((16, 60_000), (16, 90_000), (16, 50_000), (32, 50_000), (16, 90_000)):
        cuda_driver.allow_shared(SimpleNamespace(ptr=ptr), nbytes)
    assert limits == {16: [60_000, 90_000], 32: [50_000]}
