"""The field GF(2^8), its CPU ladder and the front door, against galois."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasp
from dasp.dense import gf256
from dasp.dense.gf256 import cpu, field
from tests.support.bytes_field import find_field, product, products, random_bytes

LADDER = gf256.kernels("cpu")
AVAILABLE = [kernel.name for kernel in LADDER if kernel.available]


# ---- the field ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_product_is_that_of_galois():
    np.testing.assert_array_equal(field.PRODUCT, products())


def test_every_number_times_its_inverse_is_one():
    for value in range(1, 256):
        assert field.PRODUCT[value, field.inverse(value)] == 1
    with pytest.raises(ZeroDivisionError, match="0 has no inverse"):
        field.inverse(0)


@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_invert_inverts_or_says_that_none_can(size):
    for seed in range(8):
        matrix = random_bytes(seed, size, size)
        matrix[0, 0] = 0  # a pivot must be looked for
        if np.linalg.matrix_rank(find_field()(matrix)) < size:
            with pytest.raises(
                ValueError,
                match=f"singular {size} x {size} matrix .* no inverse",
            ):
                field.invert(matrix)
            continue
        np.testing.assert_array_equal(product(field.invert(matrix), matrix), np.eye(size, dtype=np.uint8))


@pytest.mark.parametrize(("rows", "columns"), [(4, 3), (1, 6), (6, 1), (128, 128), (0, 5), (4, 252)])
def test_every_minor_of_a_cauchy_matrix_is_not_zero(rows, columns):
    matrix = field.cauchy(rows, columns)
    assert matrix.shape == (rows, columns)
    assert (matrix[:1] == 1).all()
    assert (matrix[:, :1] == 1).all()
    rng = np.random.default_rng(rows)
    for _ in range(50 if rows else 0):
        size = int(rng.integers(1, min(rows, columns) + 1))
        chosen = np.ix_(rng.choice(rows, size, False), rng.choice(columns, size, False))
        minor = np.ascontiguousarray(matrix[chosen])
        np.testing.assert_array_equal(
            field.multiply(field.invert(minor), minor), np.eye(size, dtype=np.uint8)
        )


def test_nibble_tables_make_products():
    a, b = np.arange(256, dtype=np.uint8)[:, None], np.arange(256, dtype=np.uint8)
    tables = field.nibble_tables(a)[:, 0]
    np.testing.assert_array_equal(tables[:, 0][:, b & 15] ^ tables[:, 1][:, b >> 4], field.PRODUCT)


def affine(matrix, value):
    """GF2P8AFFINEQB, constant 0, as Intel defines it: bit i is parity(byte 7 - i of the matrix & x)."""
    result = 0
    for i in range(8):
        row = int(matrix) >> 8 * (7 - i) & 0xFF
        result |= (bin(row & value).count("1") & 1) << i
    return result


def test_bit_matrices_make_products():
    matrices = field.bit_matrices(np.arange(256, dtype=np.uint8)[:, None])[:, 0]
    for a in (0, 1, 2, 3, 29, 142, 255):
        assert [affine(matrices[a], b) for b in range(256)] == field.PRODUCT[a].tolist()


# ---- the ladder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_rung_multiplies(name):
    widths, shapes = (1, 15, 63, 64, 127, 128, 129, 1000, 40_001), ((4, 10), (1, 1), (7, 3), (2, 33))
    for n, (m, k) in itertools.product(widths, shapes):
        a, b = random_bytes(m, m, k), random_bytes(n, k, n)
        a[0, 0] = 0
        out = np.full((m, n), 0xA5, np.uint8)
        assert gf256.matmul(a, b, out=out, kernel=name) is out
        np.testing.assert_array_equal(out, field.multiply(a, b))


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_product_of_two_bytes(name):
    a = np.arange(256, dtype=np.uint8)[:, None]
    np.testing.assert_array_equal(gf256.matmul(a, a.T.copy(), kernel=name), field.PRODUCT)


@pytest.mark.parametrize("name", AVAILABLE)
def test_the_number_of_threads_changes_nothing(name):
    a, b = random_bytes(1, 3, 10), random_bytes(2, 10, 70_001)
    try:
        dasp.set_num_threads(1)
        one = gf256.matmul(a, b, kernel=name)
        for threads in (2, 16):
            dasp.set_num_threads(threads)
            np.testing.assert_array_equal(gf256.matmul(a, b, kernel=name), one)
    finally:
        dasp.set_num_threads(None)


def test_several_python_threads_may_multiply():
    a, b = random_bytes(3, 4, 10), random_bytes(4, 10, 300_000)
    expected = gf256.matmul(a, b)
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: gf256.matmul(a, b), range(24)):
            np.testing.assert_array_equal(got, expected)


def test_what_the_processor_lacks_is_refused():
    for kernel in LADDER:
        if not kernel.available:
            with pytest.raises(
                RuntimeError, match=f"this processor lacks .* {kernel.name!r} needs; pass kernel"
            ):
                gf256.matmul(np.eye(1, dtype=np.uint8), np.eye(1, dtype=np.uint8), kernel=kernel.name)
    assert cpu.BEST.name == AVAILABLE[-1]


def test_a_processor_that_numba_is_told_of():
    """Numba compiles for no more than it is told; an instruction beyond that would end the process."""
    program = """
import numpy as np
from dasp.dense import gf256
available = [kernel.name for kernel in gf256.kernels("cpu") if kernel.available]
assert available == ["log_exp", "product_rows", "doubling"], available
assert (gf256.matmul(np.full((2, 3), 2, np.uint8), np.full((3, 999), 9, np.uint8)) == 18).all()
"""
    told = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=told)


def test_the_affine_step_is_the_instruction():
    """Few machines have GFNI; that the step asks LLVM for it shows on all of them."""
    from llvmlite import ir

    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 6), "step")
    builder = ir.IRBuilder(function.append_basic_block())
    affine = next(each for each in cpu.VECTOR_KERNELS if each.name == "affine_64")
    cpu._Step(builder, affine).write(4, 2, list(function.args))
    builder.ret_void()
    text = str(module)
    assert text.count('call <64 x i8> @"llvm.x86.vgf2p8affineqb.512"') == 8
    import llvmlite.binding as llvm

    llvm.parse_assembly(text).verify()


def test_every_result_is_written_and_nothing_else():
    a, b = random_bytes(5, 5, 6), random_bytes(6, 6, 777)
    for name in AVAILABLE:
        frame = np.full((7, 900), 0x5A, np.uint8)
        gf256.matmul(a, b, out=frame[1:6, 50:827], kernel=name)
        np.testing.assert_array_equal(frame[1:6, 50:827], field.multiply(a, b))
        frame[1:6, 50:827] = 0x5A
        assert (frame == 0x5A).all()


# ---- the front door -----------------------------------------------------------------------------------


def spread(values, layout):
    """The same matrix in another layout of memory."""
    if layout == "C":
        return values
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "gaps":
        wide = np.full((2 * values.shape[0], 3 * values.shape[1]), 0xEE, np.uint8)
        wide[::2, ::3] = values
        return wide[::2, ::3]
    if layout == "rows apart":
        wide = np.full((values.shape[0], values.shape[1] + 5), 0xEE, np.uint8)
        wide[:, 3 : 3 + values.shape[1]] = values
        return wide[:, 3 : 3 + values.shape[1]]
    return values[::-1, ::-1].copy()[::-1, ::-1]


LAYOUTS = st.sampled_from(["C", "F", "gaps", "rows apart", "backwards"])


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(0, 12), st.integers(0, 20), st.integers(0, 400)),
    layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
    name=st.sampled_from([*AVAILABLE, "auto"]),
    frozen=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_layout(sizes, layouts, name, frozen, seed):
    m, k, n = sizes
    rng = np.random.default_rng(seed)
    a = spread(rng.integers(0, 256, (m, k), dtype=np.uint8), layouts[0])
    b = spread(rng.integers(0, 256, (k, n), dtype=np.uint8), layouts[1])
    kept_a, kept_b = a.copy(), b.copy()
    a.flags.writeable = b.flags.writeable = not frozen
    expected = product(kept_a, kept_b)
    np.testing.assert_array_equal(gf256.matmul(a, b, kernel=name), expected)
    out = spread(np.full((m, n), 0xA5, np.uint8), layouts[2])
    assert gf256.matmul(a, b, out=out, kernel=name) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(a, kept_a)
    np.testing.assert_array_equal(b, kept_b)


def test_out_may_overlap_the_operands():
    a, b = random_bytes(7, 3, 3), random_bytes(8, 3, 500)
    expected = field.multiply(a, b)
    for name in AVAILABLE:
        both = b.copy()
        np.testing.assert_array_equal(gf256.matmul(a, both, out=both, kernel=name), expected)
    square = a.copy()
    gf256.matmul(square, a, out=square)
    np.testing.assert_array_equal(square, field.multiply(a, a))


def test_a_row_repeated_by_broadcasting():
    a, row = random_bytes(9, 2, 4), random_bytes(10, 1, 300)
    b = np.broadcast_to(row, (4, 300))
    for name in AVAILABLE:
        np.testing.assert_array_equal(gf256.matmul(a, b, kernel=name), field.multiply(a, b.copy()))


ONE = np.ones((2, 2), np.uint8)
READ_ONLY = ONE.copy()
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            TypeError,
            "b is a list; a numpy.ndarray or a cupy.ndarray is needed",
            lambda: gf256.matmul(ONE, [[1]]),
        ),
        (TypeError, "a has dtype int64; elements", lambda: gf256.matmul(ONE.astype(np.int64), ONE)),
        (ValueError, r"a has shape \(2,\); a matrix", lambda: gf256.matmul(ONE[0], ONE)),
        (
            ValueError,
            r"a has shape \(2, 2\) and b .*; a must have 1 columns",
            lambda: gf256.matmul(ONE, ONE[:1]),
        ),
        (ValueError, r"out has shape \(2, 1\)", lambda: gf256.matmul(ONE, ONE, out=ONE[:, :1].copy())),
        (TypeError, "out has dtype int8", lambda: gf256.matmul(ONE, ONE, out=ONE.astype(np.int8))),
        (ValueError, "out is read-only", lambda: gf256.matmul(ONE, ONE, out=READ_ONLY)),
        (
            ValueError,
            "kernel is 'best'; on this device it must be",
            lambda: gf256.matmul(ONE, ONE, kernel="best"),
        ),
        (ValueError, "device is 'tpu'; it must be", lambda: gf256.kernels("tpu")),
    ],
)
def test_a_wrong_argument_is_one_clear_error(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_a_fork_may_multiply_too():
    program = """
import os, dasp, numpy as np
from dasp.dense import gf256
dasp.set_num_threads(2)
a, b = np.full((2, 9), 3, np.uint8), np.full((9, 400_000), 7, np.uint8)
want = gf256.matmul(a, b)
child = os.fork()
if child == 0:
    os._exit(0 if (gf256.matmul(a, b) == want).all() else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)
