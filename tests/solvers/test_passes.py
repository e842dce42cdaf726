"""Passes over vectors: on the CPU, and as kernels in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dasp.solvers.cpu.space import CpuSpace
from dasp.solvers.cuda.passes import THREADS, PassText
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.cuda.trace import Slots, Trace
from dasp.solvers.cuda.vectors import CudaVectors
from dasp.solvers.scalars import TracedComplex, split, where
from tests.support.simt_device import EmulatedDevice
from tests.support.systems import PASSES, TYPES, updated


@pytest.mark.parametrize("updates", PASSES, ids="; ".join)
@pytest.mark.parametrize(
    ("n", "dtype"), [(0, "f8"), (1, "f4"), (7, "f8"), (1024, "f4"), (5000, "f4"), (5000, "f8")]
)
def test_a_pass_on_the_cpu_does_what_it_says(updates, n, dtype):
    vectors = CpuSpace(np.dtype(dtype)).vectors(n, "x", "y", "z", "w")
    rng = np.random.default_rng(n)
    want = {}
    for name in "xyzw":
        vectors[name][...] = rng.integers(-8, 8, n)
        want[name] = vectors[name].copy()
    sums = vectors.fuse(*updates, dots=("x y", "z z"))(a=0.5, b=2.0)
    want = updated(want, updates, a=0.5, b=2.0)
    for name in "xyzw":
        np.testing.assert_array_equal(vectors[name], want[name])
    assert sums == (want["x"].astype(float) @ want["y"], want["z"].astype(float) @ want["z"])


@pytest.mark.parametrize("updates", PASSES, ids="; ".join)
@pytest.mark.parametrize(
    ("n", "dtype"), [(0, "c16"), (1, "c8"), (7, "c16"), (512, "c8"), (2600, "c8"), (2600, "c16")]
)
@pytest.mark.parametrize("factors", [(0.5, 2.0), (0.5 - 0.25j, 2j)])
def test_a_complex_pass_on_the_cpu_does_what_it_says(updates, n, dtype, factors):
    vectors = CpuSpace(np.dtype(dtype)).vectors(n, "x", "y", "z", "w")
    rng = np.random.default_rng(n)
    want = {}
    for name in "xyzw":
        vectors[name][...] = rng.integers(-4, 4, n) + 1j * rng.integers(-4, 4, n)
        want[name] = vectors[name].copy()
    a, b = factors
    sums = vectors.fuse(*updates, dots=("x y", "z z", "x'y"))(a=a, b=b)
    assert vectors.fuse(dots=("x y",))() == sums[:1]
    want = updated(want, updates, a=a, b=b)
    for name in "xyzw":
        np.testing.assert_array_equal(vectors[name], want[name])
    whole = np.vdot(want["x"].astype(complex), want["y"])
    assert sums == (whole.real, np.vdot(want["z"], want["z"]).real, whole)
    assert [type(one) for one in sums] == [np.float64, np.float64, np.complex128]


@pytest.mark.parametrize("text", ["x", "x y = z", "x = a b y", "x = y + x*z", "x = x + x", "x = 2 y"])
def test_a_pass_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="an update reads"):
        CpuSpace(np.dtype(float)).vectors(3, "x", "y", "z").fuse(text)


def made(space: CudaSpace, trace: Trace, blocks_in: int = 0, sums_in: Any = None) -> tuple[Any, Any]:
    """Run the passes of a trace once; return the scalars and the sums of the last."""
    scalars, sums = np.zeros(256), np.zeros(1) if sums_in is None else sums_in
    for given in trace.passes:
        text = PassText(given, space.dtype, guard=0, carried=0)
        blocks = max(1, min(-(-given.vectors.n * space.dtype.itemsize // (16 * THREADS)), 3))
        left = np.full(max(1, len(given.dots) * blocks), np.nan)
        arguments = {f"v{k}": given.vectors[name] for k, name in enumerate(text.names)}
        arguments |= {"n": given.vectors.n, "in": np.zeros(256), "out": scalars, "history": np.zeros(4)}
        arguments |= {"sums_in": sums, "blocks_in": blocks_in, "sums_out": left}
        arguments |= {"sums_more": None, "blocks_more": 0}
        signature = text.signature()
        launch = space.on.prepare_launch(
            signature, text.defines, arguments, blocks, THREADS, {"Scalar": space.dtype}
        )
        launch()
        sums, blocks_in = left, blocks
    return scalars, sums


@pytest.mark.simt
@pytest.mark.parametrize("updates", PASSES, ids="; ".join)
@pytest.mark.parametrize(("n", "dtype"), [(0, "f8"), (1, "f8"), (7, "f4"), (3077, "f4"), (3077, "f8")])
def test_a_pass_on_a_gpu_does_what_it_says(updates, n, dtype):
    space = CudaSpace("cuda:0", np.dtype(dtype), EmulatedDevice())
    vectors = space.vectors(n, "x", "y", "z", "w")
    rng = np.random.default_rng(n)
    want = {}
    for name in "xyzw":
        vectors[name][...] = rng.integers(-8, 8, n)
        want[name] = vectors[name].copy()
    space.trace = trace = Trace(Slots())
    vectors.fuse(*updates, dots=("x y", "z z"))(a=0.5, b=2.0)
    trace.finish({}, None, CudaVectors(space, 0, ()))
    _, sums = made(space, trace)
    want = updated(want, updates, a=0.5, b=2.0)
    for name in "xyzw":
        np.testing.assert_array_equal(vectors[name], want[name])
    totals = sums.reshape(2, -1).sum(axis=1)
    np.testing.assert_array_equal(
        totals, [want["x"].astype(float) @ want["y"], want["z"].astype(float) @ want["z"]]
    )


@pytest.mark.simt
@pytest.mark.parametrize("n", [0, 1, 7, 513, 1033])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_complex_pass_on_a_gpu_does_what_it_says(n, dtype):
    """Updates and sums of a pass with real and complex coefficients, of lengths that end anywhere."""
    space = CudaSpace("cuda:0", np.dtype(dtype), EmulatedDevice())
    vectors = space.vectors(n, "x", "y", "z")
    rng = np.random.default_rng(n)
    for name in "xyz":
        vectors[name][...] = rng.integers(-4, 4, n) + 1j * rng.integers(-4, 4, n)
    x, y, z = (vectors[name].copy() for name in "xyz")
    space.trace = trace = Trace(Slots())
    first = vectors.fuse("x = x + a y - b y*z", "z = - z + y", dots=("x'y", "z z"))
    whole, zz = first(a=TracedComplex(0.5, -0.25), b=2.0)
    vectors.fuse("y = whole y")(whole=whole)
    state = {"whole": whole / TracedComplex(0.5, 2.0), "zz": zz, "part": whole / 2.0 * whole}
    trace.finish(split(state), None, CudaVectors(space, 0, ()))
    scalars, _ = made(space, trace)
    got = dict(zip(trace.slots.names, scalars, strict=False))
    x = x + (0.5 - 0.25j) * y - 2.0 * y * z
    z = y - z
    np.testing.assert_array_equal(vectors["x"], x)
    np.testing.assert_array_equal(vectors["z"], z)
    want = np.vdot(x.astype(complex), y)
    np.testing.assert_array_equal(vectors["y"], (want * y).astype(dtype))
    assert got["zz"] == np.vdot(z.astype(complex), z).real
    assert complex(got["part"], got["part.imag"]) == want / 2 * want
    quotient = complex(got["whole"], got["whole.imag"])
    assert abs(quotient - want / (0.5 + 2j)) <= 8 * np.finfo(float).eps * abs(want)


@pytest.mark.simt
def test_scalars_travel_from_pass_to_pass():
    space = CudaSpace("cuda:0", np.dtype(float), EmulatedDevice())
    vectors = space.vectors(2000, "x", "y")
    vectors["x"][...], vectors["y"][...] = 2.0, 3.0
    space.trace = trace = Trace(Slots())
    xx, xy = vectors.fuse(dots=("x x", "x y"))()
    ratio = xx / xy
    (yy,) = vectors.fuse("x = ratio x", dots=("y y",))(ratio=ratio)
    vectors.fuse("y = both y")(both=ratio * (yy / 18000.0))
    root = where(yy > xx, (yy + 0.25).sqrt() if hasattr(yy, "sqrt") else yy, -xx)
    late = vectors.fuse(dots=("x y",))()[0]
    trace.finish(
        {"ratio": ratio, "root": root, "late": 1.0 - late, "one": 1.0}, None, CudaVectors(space, 0, ())
    )
    scalars, _ = made(space, trace)
    names = trace.slots.names
    got = dict(zip(names, scalars, strict=False))
    assert got["ratio"] == 2 / 3
    assert got["root"] == np.sqrt(18000.25)
    assert got["one"] == 1.0
    x, y = 2.0 * (2 / 3), 3.0 * (2 / 3)
    assert got["late"] == pytest.approx(1.0 - 2000 * x * y, rel=1e-15)
    np.testing.assert_array_equal(vectors["y"], y)
    with pytest.raises(TypeError, match="no value on the host"):
        bool(ratio)
