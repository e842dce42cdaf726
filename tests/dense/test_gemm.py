"""The front door of dense products and the CPU ladder, against long double and a rounding-error bound."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasp.runtime.cpu.threads
from dasp.dense import explain, gemm, kernels
from dasp.runtime.cuda import gpus

CPU = [kernel.name for kernel in kernels("cpu")]
REAL = ("float32", "float64")
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_product(got, a, b, c, alpha, beta):
    """Each result within gamma(k + 3) (|alpha| |A| |B| + |beta| |C|); written so that NaN fails."""
    unit = np.finfo(got.dtype).eps / 2
    a, b = a.astype(np.longdouble), b.astype(np.longdouble)
    want, scale = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if beta != 0:
        want, scale = want + beta * c.astype(np.longdouble), scale + abs(beta) * np.abs(c)
    assert got.shape == want.shape
    terms = (a.shape[1] + 3) * unit
    assert (np.abs(got - want) <= terms / (1 - terms) * scale).all()


def spread(rng, shape, dtype, order, values=None):
    """A matrix with the given memory order: "C", "F", every second element, or backwards."""
    values = rng.standard_normal(shape).astype(dtype) if values is None else values
    if order == "C":
        return values
    if order == "F":
        return np.asfortranarray(values)
    if order == "gaps":
        wide = np.full((2 * shape[0], 3 * shape[1]), np.nan, dtype)
        wide[::2, ::3] = values
        return wide[::2, ::3]
    return values[::-1, ::-1].copy()[::-1, ::-1]


ORDERS = st.sampled_from(["C", "F", "gaps", "backwards"])
SIZES = st.integers(0, 70)
SCALARS = st.sampled_from([0, 1, -1, 0.5, 3])


@pytest.mark.slow
@few
@given(
    kernel=st.sampled_from([*CPU, "auto", "vendor"]),
    dtype=st.sampled_from(REAL),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    orders=st.tuples(ORDERS, ORDERS, ORDERS, ORDERS),
    transposed=st.tuples(st.booleans(), st.booleans()),
    alpha=SCALARS,
    beta=SCALARS,
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_order_and_scalars(kernel, dtype, sizes, orders, transposed, alpha, beta, seed):
    (m, n, k), (trans_a, trans_b) = sizes, transposed
    rng = np.random.default_rng(seed)
    a = spread(rng, (k, m) if trans_a else (m, k), dtype, orders[0])
    b = spread(rng, (n, k) if trans_b else (k, n), dtype, orders[1])
    c = spread(rng, (m, n), dtype, orders[2])
    out = spread(rng, (m, n), dtype, orders[3], np.full((m, n), np.nan, dtype))
    if beta == 0:
        c[...] = np.nan
    before = [x.tobytes() for x in (a, b, c)]
    options = dict(alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, kernel=kernel)
    result = gemm(a, b, c, out=out, **options)
    assert result is out
    assert [x.tobytes() for x in (a, b, c)] == before
    assert_product(out, a.T if trans_a else a, b.T if trans_b else b, c, alpha, beta)
    fresh = gemm(a, b, c, **options)
    assert fresh.dtype == a.dtype
    assert_product(fresh, a.T if trans_a else a, b.T if trans_b else b, c, alpha, beta)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("kernel", CPU)
def test_sizes_around_every_block(kernel, dtype):
    rng = np.random.default_rng(7)
    for m, n, k in ((8, 48, 384), (9, 49, 385), (130, 600, 300), (1, 513, 129), (257, 1, 400), (31, 200, 1)):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        assert_product(gemm(a, b, kernel=kernel), a, b, None, 1, 0)


@pytest.mark.parametrize("dtype", REAL)
def test_last_rung_beyond_its_largest_block(dtype):
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((1100, 40)).astype(dtype), rng.standard_normal((40, 700)).astype(dtype)
    c = rng.standard_normal((1100, 700)).astype(dtype)
    assert_product(gemm(a, b, c, alpha=2, beta=-1, kernel="goto"), a, b, c, 2, -1)


def test_c_may_be_out():
    rng = np.random.default_rng(9)
    for kernel in (*CPU, "vendor"):
        for order in ("C", "F", "gaps"):
            a, b = rng.standard_normal((2, 30, 30))
            c = spread(rng, (30, 30), "float64", order)
            old = c.copy()
            assert gemm(a, b, c, beta=0.5, out=c, kernel=kernel) is c
            assert_product(c, a, b, old, 1, 0.5)


@pytest.mark.parametrize("kernel", [*CPU, "auto"])
def test_nan_and_infinity_stay_in_their_row_and_column(kernel):
    a, b = np.ones((70, 90)), np.ones((90, 80))
    a[13, 5], b[7, 61] = np.nan, np.inf
    got = gemm(a, b, kernel=kernel)
    assert np.isnan(got[13]).all()
    assert np.isinf(np.delete(got[:, 61], 13)).all()
    rest = np.delete(np.delete(got, 13, 0), 61, 1)
    assert (rest == 90).all()


@pytest.mark.parametrize("dtype", REAL)
def test_equal_inputs_give_equal_bits_whatever_the_threads(dtype):
    rng = np.random.default_rng(10)
    a, b = rng.standard_normal((2, 300, 300)).astype(dtype)
    results = set()
    try:
        for threads in (1, 2, 3, 4, 2):
            dasp.runtime.cpu.threads.set_num_threads(threads)
            results.add(gemm(a, b, kernel="goto").tobytes())
    finally:
        dasp.runtime.cpu.threads.set_num_threads(None)
    assert len(results) == 1


@pytest.mark.parametrize("kernel", [*CPU, "vendor", "auto"])
@pytest.mark.parametrize("dtype", REAL)
def test_equal_inputs_give_equal_bits_whatever_their_memory(kernel, dtype):
    """In every order, byte order and alignment, with strides of 0, and into every kind of out."""
    rng = np.random.default_rng(12)
    for m, n, k in ((9, 7, 11), (64, 64, 64), (67, 50, 33), (1, 40, 70), (40, 1, 70), (75, 90, 80)):
        a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
        a[:] = a[0]
        want = gemm(a, b, c, alpha=0.7, beta=-0.3, kernel=kernel)
        assert_product(want, a, b, c, 0.7, -0.3)
        for order in ("C", "F", "gaps", "backwards"):
            left, right, old = (spread(rng, x.shape, dtype, order, x) for x in (a, b, c))
            out = spread(rng, (m, n), dtype, order, np.full((m, n), np.nan, dtype))
            gemm(left, right, old, alpha=0.7, beta=-0.3, out=out, kernel=kernel)
            assert out.tobytes() == want.tobytes(), order
            old = spread(rng, c.shape, dtype, order, c.copy())
            gemm(a, b, old, alpha=0.7, beta=-0.3, out=old, kernel=kernel)
            assert old.tobytes() == want.tobytes(), order
        swapped = [x.astype(x.dtype.newbyteorder(">")) for x in (a, b, c)]
        others = [swapped, [unaligned(x) for x in (a, b, c)], [np.broadcast_to(a[0], a.shape), b, c]]
        for left, right, old in [*others, [x.view(np.matrix) for x in (a, b, c)]]:
            got = gemm(left, right, old, alpha=0.7, beta=-0.3, kernel=kernel)
            assert type(got) is np.ndarray
            assert got.tobytes() == want.tobytes()
        out = unaligned(np.full((m, n), np.nan, dtype))
        assert gemm(a, b, c, alpha=0.7, beta=-0.3, out=out, kernel=kernel) is out
        assert out.tobytes() == want.tobytes()


def unaligned(values):
    """A copy that starts at an odd address."""
    memory = np.zeros(values.nbytes + 1, np.uint8)[1:]
    memory[:] = np.frombuffer(values.tobytes(), np.uint8)
    return np.ndarray(values.shape, values.dtype, memory)


def test_read_only_and_mapped_memory(tmp_path):
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((2, 70, 70))
    want = gemm(a, b).tobytes()
    a.tofile(tmp_path / "a")
    mapped = np.memmap(tmp_path / "a", np.float64, "r", shape=a.shape)
    b.flags.writeable = False
    assert gemm(mapped, b).tobytes() == want
    out = np.memmap(tmp_path / "out", np.float64, "w+", shape=a.shape)
    assert gemm(mapped, b, out=out) is out
    assert out.tobytes() == want


def test_several_python_threads_at_once():
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((2, 200, 200))
    want = gemm(a, b).tobytes()
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: gemm(a, b).tobytes(), range(24)))
    assert set(results) == {want}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (
            ([[1.0]], np.ones((1, 1))),
            {},
            TypeError,
            "a is a list; a numpy.ndarray or a cupy.ndarray is needed",
        ),
        ((np.ones((2, 2)), np.ones((2, 2), "f")), {}, TypeError, "b has dtype float32, a has dtype float64"),
        ((np.ones((2, 2), "f2"),) * 2, {}, TypeError, "a's dtype is float16"),
        ((np.ones((2, 2), int),) * 2, {}, TypeError, "convert it first"),
        ((np.ones((2, 3)), np.ones((2, 3))), {}, ValueError, r"\(2, 3\) and op\(b\) \(2, 3\)"),
        ((np.ones(3), np.ones((3, 3))), {}, ValueError, "a has 1 dimensions"),
        ((np.ones((2, 2)),) * 2, {"beta": 2}, ValueError, "beta is 2 and c is None; give c"),
        ((np.ones((2, 2)),) * 2, {"alpha": 1j}, TypeError, "alpha is 1j and the product has dtype float64"),
        ((np.ones((2, 2)),) * 2, {"c": np.ones((2, 3))}, ValueError, r"c has shape \(2, 3\)"),
        ((np.ones((2, 2)),) * 2, {"out": np.ones((3, 2))}, ValueError, r"out has shape \(3, 2\)"),
        ((np.ones((2, 2)),) * 2, {"out": np.ones((2, 2), "f")}, TypeError, "out has dtype float32"),
        ((np.ones((2, 2)),) * 2, {"alpha": 10**400}, ValueError, "alpha is beyond float64; a number"),
        ((np.ones((2, 2), "f"),) * 2, {"beta": -1e39}, ValueError, "beta is -1e\\+39; the sums of float32"),
        ((np.ones((2, 2)),) * 2, {"alpha": np.ones(1)}, TypeError, "alpha is an ndarray.*; a real number"),
        ((np.ones((2, 2)),) * 2, {"kernel": ["goto"]}, TypeError, "kernel is a list; the name of a kernel"),
        (
            (np.ones((2, 2), bool),) * 2,
            {},
            TypeError,
            "a's dtype is bool; a product on the CPU needs float32",
        ),
        ((np.ones((2, 2), "g"),) * 2, {}, TypeError, "a's dtype is float128"),
        ((np.ones((2, 2), "D"),) * 2, {}, TypeError, "a's dtype is complex128"),
        ((np.ones((2, 2), object),) * 2, {}, TypeError, "a has dtype object; an array of numbers is needed"),
        ((np.ma.ones((2, 2)), np.ones((2, 2))), {}, TypeError, "a is a masked array; one without a mask"),
        ((np.ones((2, 2)),) * 2, {"out": np.ma.ones((2, 2))}, TypeError, "out is a MaskedArray; a numpy.nda"),
        (
            (np.ones((2, 2)),) * 2,
            {"out": np.ones((2, 2), ">f8")},
            TypeError,
            "out has dtype >f8; the product",
        ),
        (
            (np.ones((2, 2)),) * 2,
            {"out": np.lib.stride_tricks.as_strided(np.ones(4), (2, 2), (8, 8))},
            ValueError,
            r"out has strides \(8, 8\); each of its elements must have memory of its own",
        ),
        ((np.ones((2, 2)),) * 2, {"kernel": "magic"}, ValueError, "kernel is 'magic'; it must be 'auto'"),
        (
            (np.ones((2, 2)),) * 2,
            {"out": np.broadcast_to(np.zeros((1, 2)), (2, 2))},
            ValueError,
            "out is read-only",
        ),
    ],
)
def test_errors_name_what_was_given(arguments, options, error, words):
    with pytest.raises(error, match=words):
        gemm(*arguments, **options)


def test_out_must_not_overlap():
    a, c = np.ones((3, 3)), np.zeros((4, 3))
    with pytest.raises(ValueError, match="out shares memory with a"):
        gemm(a, np.ones((3, 3)), out=a)
    with pytest.raises(ValueError, match="out shares memory with b"):
        gemm(np.ones((3, 3)), a, out=a.T)
    with pytest.raises(ValueError, match="out shares part of its memory with c"):
        gemm(a, a, c[:3], beta=1, out=c[1:])
    both = np.ones((3, 6))
    gemm(both[:, ::2], a, out=both[:, 1::2])  # interleaved, but nothing is shared
    assert (both[:, 1::2] == 3).all()


def test_ladders_are_described():
    for device in ("cpu", "cuda"):
        names = [kernel.name for kernel in kernels(device)]
        assert len(set(names)) == len(names) >= 9
        for kernel in kernels(device):
            assert kernel.summary.endswith(".")
            assert "float" in kernel.needs
    with pytest.raises(ValueError, match="device is 'tpu'"):
        kernels("tpu")


def test_explain_says_which_and_why():
    chosen = explain((500, 300), (700, 300), trans_b=True, device="cpu")
    assert chosen.kernel == "vendor"
    assert str(chosen).startswith("vendor: NumPy's BLAS")
    assert explain((4, 4), (4, 4), device="cpu").kernel == "vendor"
    with pytest.raises(ValueError, match=r"op\(a\) has shape \(2, 3\) and op\(b\) \(4, 5\)"):
        explain((2, 3), (4, 5), device="cpu")
    with pytest.raises(TypeError, match="float16"):
        explain((2, 3), (3, 5), "float16", device="cpu")
    with pytest.raises(ValueError, match=r"shape is \(2, -3\)"):
        explain((2, -3), (-3, 5), device="cpu")
    if not gpus.try_gpu()[0]:
        with pytest.raises(RuntimeError, match="device is 'cuda'; a working GPU is needed"):
            explain((2, 3), (3, 5))


def test_import_loads_no_compiler():
    code = "import sys, dasp.dense; assert not {'numba', 'cupy'} & set(sys.modules), 'loaded'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
