"""What only a real GPU can show: arrays, streams, graphs and the first call."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dasp import Policy, SpMatrix
from tests.gallery import GALLERY, from_lengths
from tests.reference import assert_close, assert_same_entries

pytestmark = pytest.mark.cuda


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def skewed():
    """Rows of every category, among them long ones of several segments."""
    return from_lengths([3000] * 5 + [300] * 3 + list(range(60)) * 3 + [0] * 40, 1000)


@pytest.mark.parametrize("name", GALLERY)
def test_a_plan_comes_back_from_the_gpu(name):
    planned = SpMatrix.from_scipy(GALLERY[name], device="cpu").to_device("cuda")
    assert planned.device == "cuda:0"
    assert_same_entries(planned.to_scipy(), GALLERY[name])
    assert_same_entries(planned.to_device("cpu").to_scipy(), GALLERY[name])


def test_auto_takes_the_gpu(skewed):
    assert SpMatrix.from_scipy(skewed).device == "cuda:0"


def test_cupy_in_and_out(cupy, skewed):
    import cupyx.scipy.sparse

    x = np.random.default_rng(0).standard_normal(1000)
    planned = SpMatrix.from_cupy(cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(skewed)))
    y = planned @ cupy.asarray(x)
    assert isinstance(y, cupy.ndarray)
    assert_close(y.get(), skewed, x)
    many = np.random.default_rng(1).standard_normal((1000, 3))
    assert_close((planned @ cupy.asarray(many))[:, 2].get(), skewed, many[:, 2])
    assert_close((planned @ cupy.asarray(np.repeat(x, 2))[::2]).get(), skewed, x)
    out = cupy.full(2 * skewed.shape[0], cupy.nan)
    planned.matvec(cupy.asarray(x), out=out[::2])
    assert_close(out[::2].get(), skewed, x)
    assert bool(cupy.isnan(out[1::2]).all())


def test_host_vectors_are_refused(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    with pytest.raises(TypeError, match=r"x is a numpy\.ndarray and A is on cuda:0"):
        planned @ np.ones(1000)
    with pytest.raises(TypeError, match="out is a ndarray"):
        planned.matvec(cupy.ones(1000), out=np.ones(skewed.shape[0]))
    with pytest.raises(TypeError, match="x is on a GPU and A on the CPU"):
        planned.to_device("cpu") @ cupy.ones(1000)
    with pytest.raises(ValueError, match="device is 'cuda:99'"):
        planned.to_device("cuda:99")


def test_the_first_product_of_a_matrix_is_right(cupy, skewed):
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1000))
    for _ in range(20):
        assert_close((SpMatrix.from_scipy(skewed, device="cuda") @ x).get(), skewed, x.get())


@pytest.mark.parametrize("policy", [Policy.published(segment=64), Policy(layout="slices", steps=2)])
def test_a_captured_product_replays(cupy, skewed, policy):
    planned = SpMatrix.from_scipy(skewed, policy=policy, device="cuda")
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1000))
    y = cupy.full(skewed.shape[0], cupy.nan)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(5):
            planned.matvec(x, out=y)
        graph = stream.end_capture()
    for scale in (1.0, -3.0):
        x *= scale
        y.fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        for _ in range(3):
            graph.launch(stream)
        planned.matvec(x)  # on another stream, at the same time
        stream.synchronize()
        assert_close(y.get(), skewed, x.get())


def test_products_follow_the_stream(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    x = cupy.asarray(np.random.default_rng(0).standard_normal(1000))
    cupy.cuda.Device().synchronize()
    for _ in range(10):
        with cupy.cuda.Stream(non_blocking=True):
            y = x
            for _ in range(20):
                y = planned.matvec(y[:1000] if y.size >= 1000 else x) * 1.0
            got = (planned @ x).get()
        assert_close(got, skewed, x.get())


def test_linear_operator_serves_cupys_solvers(cupy):
    import cupyx.scipy.sparse.linalg

    from dasp import models

    A = models.generate("poisson2d:30").astype(float)
    operator = SpMatrix.from_scipy(A, device="cuda").as_linear_operator()
    b = cupy.ones(900)
    x, failed = cupyx.scipy.sparse.linalg.cg(operator, b, rtol=1e-10)
    assert not failed
    assert np.linalg.norm(A @ x.get() - 1) <= 1e-9 * 30


def test_no_memory_is_taken_per_call(cupy, skewed):
    planned = SpMatrix.from_scipy(skewed, device="cuda")
    x, y = cupy.ones(1000), cupy.empty(skewed.shape[0])
    planned.matvec(x, out=y)
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    for _ in range(10):
        planned.matvec(x, out=y)
    assert pool.used_bytes() == before


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("policy", [Policy.published(segment=64), Policy(layout="slices", steps=2)])
def test_each_product_waits_for_what_comes_before_it(cupy, policy, captured):
    """The start of a product overlaps the kernel before it, be that a product or another kernel."""
    rng = np.random.default_rng(3)
    lengths = rng.permutation([2000] * 6 + [300] * 20 + list(range(60)) * 200)
    matrix = from_lengths(lengths, len(lengths))
    matrix.data /= abs(matrix).sum(axis=1).max()
    planned = SpMatrix.from_scipy(matrix, policy=policy, device="cuda")
    start = rng.standard_normal(matrix.shape[1])
    first, second = cupy.asarray(start), cupy.empty(matrix.shape[0])

    def chain():
        for _ in range(10):
            planned.matvec(first, out=second)
            planned.matvec(second, out=first)
            first.__iadd__(second)

    want = start.copy()
    for _ in range(10):
        one = matrix @ want
        want = matrix @ one + one
    chain()  # compiles what the capture needs
    first.set(start)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        if captured:
            stream.begin_capture()
            chain()
            graph = stream.end_capture()
            graph.launch(stream)
        else:
            chain()
        stream.synchronize()
    np.testing.assert_allclose(first.get(), want, rtol=1e-9, atol=1e-12 * np.abs(want).max())
