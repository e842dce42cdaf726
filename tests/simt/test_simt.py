"""Test the emulator itself: each feature that kernels use works, and each mistake is caught."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tests.simt.build as build
from tests.simt import SimtError, compile_kernels, compile_text, poisoned

pytestmark = pytest.mark.simt

SELFTEST = Path(__file__).with_name("selftest.cu")
SEEDS = [None, 1]


@pytest.fixture(scope="module")
def kernels():
    return compile_text(SELFTEST.read_text(), title="selftest.cu")


@pytest.fixture(scope="module")
def no_fence():
    return compile_text(SELFTEST.read_text(), {"NO_FENCE": 1, "NO_BARRIER": 1}, title="selftest.cu")


def caught(kernels, name, grid, block, args, **more):
    """Return the error of a launch that must fail."""
    with pytest.raises(SimtError) as info:
        kernels.launch(name, grid, block, args, **more)
    error = info.value
    assert error.kernel == name
    assert error.kind in str(error)
    assert str(error.block) in str(error)
    return error


# ---- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_indices_of_blocks_and_threads(kernels, seed):
    grid, block = (3, 2, 2), (5, 4, 3)
    out = np.full((*grid[::-1], *block[::-1], 7), -1, dtype=np.int32)
    kernels.launch("geometry", grid, block, [out], seed=seed)
    want = np.indices(out.shape[:-1])[[2, 1, 0, 5, 4, 3]]
    np.testing.assert_array_equal(np.moveaxis(out[..., :6], -1, 0), want)
    assert (out[..., 6] == 32).all()


def shuffle_sources(argument, width):
    """Return for each of the four shuffles the lane that each lane reads (PTX ISA, shfl.sync)."""
    lane = np.arange(32)
    first, last = lane & ~(width - 1), lane | (width - 1)
    up, down, flipped = lane - argument, lane + argument, lane ^ argument
    return [
        first | (argument & (width - 1)),
        np.where(up < first, lane, up),
        np.where(down > last, lane, down),
        np.where(flipped > last, lane, flipped),
    ]


@pytest.mark.parametrize("width", [32, 4, 1])
@pytest.mark.parametrize("argument", [1, 3, 31])
@pytest.mark.parametrize(("name", "dtype"), [("shuffles", np.float64), ("shuffles_int", np.int32)])
def test_shuffles(kernels, name, dtype, argument, width):
    values = (np.random.default_rng(1).random(32) * 1000).astype(dtype)
    out = np.zeros((4, 32), dtype)
    kernels.launch(name, 1, 32, [values, out, np.int32(argument), np.int32(width)], seed=argument)
    np.testing.assert_array_equal(out, [values[s] for s in shuffle_sources(argument, width)])


@pytest.mark.parametrize("seed", SEEDS)
def test_votes_of_two_groups_at_once(kernels, seed):
    values = np.random.default_rng(2).integers(0, 3, 32).astype(np.int32)
    values[16:] = [1] * 16
    out = np.zeros((5, 32), np.uint32)
    kernels.launch("votes", 1, 32, [values, out], seed=seed)
    ballot = (values != 0).astype(np.uint64) @ (np.uint64(1) << np.arange(32, dtype=np.uint64))
    low, high = int(ballot) & 0xFFFF, int(ballot) & 0xFFFF0000
    np.testing.assert_array_equal(out[0], [low] * 16 + [high] * 16)
    np.testing.assert_array_equal(out[1], [low != 0] * 16 + [True] * 16)
    np.testing.assert_array_equal(out[2], [low == 0xFFFF] * 16 + [True] * 16)
    np.testing.assert_array_equal(out[3], [sum(1 << j for j in np.flatnonzero(values == v)) for v in values])
    np.testing.assert_array_equal(out[4], [values[:16].sum()] * 16 + [16] * 16)


@pytest.mark.parametrize("seed", SEEDS)
def test_exchanges_in_a_row_do_not_mix(kernels, seed):
    values = np.arange(32, dtype=np.int32) ** 2
    out = np.zeros(32, np.int32)
    kernels.launch("uneven_loop", 1, 32, [values, out], seed=seed)
    want = 2 * values.sum() + np.arange(32).sum()
    np.testing.assert_array_equal(out, np.full(32, want))


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_and_barriers(kernels, seed):
    x = np.random.default_rng(3).integers(0, 1000, 5000).astype(np.float64)
    y = np.full(3, np.nan)
    kernels.launch("block_sum", 3, 256, [x, poisoned(y), np.int32(x.size)], seed=seed)
    assert y.sum() == x.sum()


@pytest.mark.parametrize("threads", [1, 33, 1024])
def test_dynamic_shared_memory(kernels, threads):
    x = np.arange(threads, dtype=np.float32)
    y = np.zeros_like(x)
    kernels.launch("reverse_in_dynamic_memory", 1, threads, [x, y], shared_bytes=4 * threads, seed=4)
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_that_count(kernels, seed):
    for x in (np.ones(70, np.int32), np.zeros(70, np.int32), np.arange(70, dtype=np.int32) % 3):
        y = np.zeros((70, 3), np.int32)
        kernels.launch("counting_barriers", 1, 70, [x, y], seed=seed)
        assert (y[:, 0] == np.count_nonzero(x)).all()
        assert ((y[:, 1] != 0) == x.all()).all()
        assert ((y[:, 2] != 0) == x.any()).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_integer_atomics(kernels, seed):
    threads = 64
    arrays = [np.zeros(7, np.int32), np.zeros(7, np.uint32), np.zeros(7, np.uint64)]
    for array in arrays:
        array[2], array[5] = 1000, np.iinfo(array.dtype).max
    kernels.launch("atomics", 1, threads, arrays, seed=seed)
    t = np.arange(threads)
    for array, values in zip(arrays, (t - 20, t, 5_000_000_000 + t), strict=True):
        values = values.astype(array.dtype)
        bits = sum(1 << int(b) for b in range(31))
        assert array[0] == values.sum(dtype=array.dtype)
        assert array[1] == max(values.max(), 0)
        assert array[2] == min(values.min(), 1000)
        assert array[3] == bits
        assert array[4] == np.bitwise_xor.reduce(values)
        assert array[5] == np.iinfo(array.dtype).max & ~bits
        assert array[6] == values.sum(dtype=array.dtype)


def test_floating_point_atomics_do_not_compile():
    text = 'extern "C" __global__ void k(double* y) { atomicAdd(y, 1.0); }'
    with pytest.raises(RuntimeError, match="use of deleted function"):
        compile_text(text)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "grid", "block"),
    [
        ("last_block_sums", 9, 32),
        ("last_warp_sums", 3, 96),
        ("last_warp_sums", 1, 1024),
        ("last_block_sums_all_write", 4, 64),
        ("last_block_sums_all_fence", 4, 64),
    ],
)
def test_the_last_one_may_read_what_all_wrote_and_fenced(kernels, name, grid, block, seed):
    x = np.random.default_rng(5).integers(0, 1000, grid * block).astype(np.float64)
    partial, y, ticket = np.zeros(grid * block), np.full(1, np.nan), np.zeros(1, np.uint32)
    kernels.launch(name, grid, block, [x, poisoned(partial), ticket, poisoned(y)], seed=seed)
    assert y[0] == x.sum() * (2 if "all" in name else 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("grid", "block"), [(5, 32), (1, 160), (3, 96)])
def test_a_warp_may_wait_for_earlier_ones(kernels, grid, block, seed):
    slots = np.zeros(grid * block // 32, np.uint32)
    kernels.launch("relay", grid, block, [slots, np.int32(1)], seed=seed, blocks_in_order=True)
    np.testing.assert_array_equal(slots, 1 + np.arange(len(slots)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_that_waits_for_a_later_block_is_a_deadlock(kernels, seed):
    error = caught(
        kernels, "relay", 3, 32, [np.zeros(3, np.uint32), np.int32(-1)], seed=seed, blocks_in_order=True
    )
    assert error.kind == "deadlock"
    assert "waits in vain" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_draw_their_numbers_may_start_in_any_order(kernels, seed):
    slots, tickets = np.zeros(9, np.uint32), np.zeros(1, np.uint32)
    kernels.launch("relay_in_turn", 9, 64, [slots, tickets], seed=seed)
    np.testing.assert_array_equal(slots, 1 + np.arange(9))
    assert tickets[0] == 0


def test_blocks_that_trust_the_order_of_the_grid_may_wait_for_ever(kernels):
    slots = np.zeros(9, np.uint32)
    error = caught(kernels, "relay", 9, 32, [slots, np.int32(1)], seed=1)
    assert error.kind == "deadlock"


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_of_a_cooperative_launch_wait_for_each_other(kernels, seed):
    blocks, rounds = 5, 7
    out = np.zeros(64 * blocks, np.int32)
    args = [
        poisoned(np.zeros(64 * blocks, np.int32)),
        out,
        np.zeros(4 * blocks**2, np.uint64),
        np.int32(rounds),
    ]
    kernels.launch("ring", blocks, 64, [*args, np.int32(0)], 64 * 4, seed=seed, cooperative=True)
    block, thread = np.divmod(np.arange(64 * blocks), 64)
    want = sum((block - k) % blocks * 64 + thread for k in range(1, rounds + 1))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_the_grid_that_is_missing_is_a_race(kernels, seed):
    args = [np.zeros(320, np.int32), np.zeros(320, np.int32), np.zeros(100, np.uint64), np.int32(4)]
    more = {"shared_bytes": 256, "seed": seed, "cooperative": True}
    error = caught(kernels, "ring", 5, 64, [*args, np.int32(1)], **more)
    assert (error.kind, error.array) == ("race", "slots")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_write_after_reads_by_all_blocks_needs_a_barrier_of_the_grid(kernels, seed):
    args = [np.zeros(1, np.int32), np.ones(256, np.int32)]
    for early in (0, 1):
        given, messages = (
            [*args, np.zeros(64, np.uint64), np.int32(early)],
            {"seed": seed, "cooperative": True},
        )
        if early:
            error = caught(kernels, "all_read_one_writes", 4, 64, given, **messages)
            assert (error.kind, error.array) == ("race", "slot")
        else:
            kernels.launch("all_read_one_writes", 4, 64, given, **messages)
            assert args[0][0] == 1
            assert not args[1].any()


# 40 and 70 blocks are more than a warp has lanes, 70 also more than a block has threads.
@pytest.mark.parametrize(
    ("blocks", "seed"), [*((n, seed) for n in (1, 3, 40) for seed in SEEDS), (70, SEEDS[1])]
)
def test_sums_over_the_grid(kernels, blocks, seed):
    x = np.random.default_rng(blocks).integers(-9, 9, 64 * blocks).astype(float)
    messages = np.zeros(2 * 2 * blocks**2, np.uint64)
    want = np.arange(5)[:, None, None] * x.sum() * [0, 1] + x.sum() * np.array([1, 0])
    for _ in range(2):
        out = poisoned(np.zeros((5, 64 * blocks, 2)))
        kernels.launch("sums_of_grid", blocks, 64, [x, out, messages], seed=seed, cooperative=True)
        np.testing.assert_array_equal(out.array, np.broadcast_to(want, out.array.shape))
        assert not messages.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_that_stays_away_from_a_barrier_of_the_grid_is_a_deadlock(kernels, seed):
    for cooperative in (True, False):  # else blocks run one after another
        more = {"seed": seed, "cooperative": cooperative}
        error = caught(kernels, "one_block_stays_away", 3, 64, [np.zeros(36, np.uint64)], **more)
        assert error.kind == "deadlock"
        assert "waits in vain" in str(error)


def test_a_cooperative_launch_has_a_most_of_threads(kernels):
    with pytest.raises(ValueError, match="which live at the same time"):
        kernels.launch("one_block_stays_away", 300, 64, [np.zeros(36, np.uint64)], cooperative=True)


def test_a_seed_changes_the_order_and_none_keeps_it(kernels):
    orders = []
    for seed in (None, None, 1, 1, 2):
        order = np.zeros(128, np.uint32)
        kernels.launch("arrival_order", 2, 64, [np.zeros(1, np.uint32), order], seed=seed)
        np.testing.assert_array_equal(np.sort(order), np.arange(128))
        orders.append(order.tolist())
    assert orders[0] == orders[1] == list(range(128))
    assert orders[2] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_vector_types(kernels):
    rng = np.random.default_rng(6)
    a, b = rng.random((32, 2)), rng.integers(-9, 9, (32, 4)).astype(np.int32)
    c, out = rng.integers(0, 255, (32, 4)).astype(np.uint8), np.zeros(32)
    kernels.launch("vectors", 1, 32, [a.view("f8,f8"), b.view("i4,i4,i4,i4"), c.view("u1,u1,u1,u1"), out])
    np.testing.assert_allclose(
        out, a[:, 0] + 10 * a[:, 1] + b.sum(1) + c[:, 0].astype(int) + c[:, 3], rtol=1e-14
    )


def test_half_and_bfloat16_round_to_nearest_even(kernels):
    every_half = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        finite = np.sort(every_half[np.isfinite(every_half)].astype(np.float32))
        between = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
        edges = np.concatenate([finite, between, np.nextafter(between, 9e9, dtype=np.float32)])
        wild = np.random.default_rng(7).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
        x = np.concatenate(
            [edges[::7], between[:50], [65519.99, 65520, -65520, np.inf, -np.inf, 0.0, -0.0], wild]
        )
        x = x.astype(np.float32)
        want_half = x.astype(np.float16)
    h, b = np.zeros(x.size, np.float16), np.zeros(x.size, np.uint16)
    from_h, from_b = np.zeros_like(x), np.zeros_like(x)
    n = x.size
    kernels.launch("halves", -(-n // 256), 256, [x, h, b, from_h, from_b, np.int32(n)])
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(h.view(np.uint16)[numbers], want_half.view(np.uint16)[numbers])
    np.testing.assert_array_equal(from_h, want_half.astype(np.float32))
    # bfloat16: the nearer of the two neighbours, the even one half way.
    bits = x.view(np.uint32).astype(np.uint64)
    low, rest = bits >> 16, bits & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (low & 1 == 1))
    np.testing.assert_array_equal(b[numbers], (low + up)[numbers].astype(np.uint16))
    assert np.isnan(from_h[~numbers]).all()
    assert np.isnan(from_b[~numbers]).all()


def test_bit_intrinsics(kernels):
    x = np.random.default_rng(8).integers(0, 2**32, 32, dtype=np.uint32)
    x[:3] = [0, 1, 2**31]
    out = np.zeros((32, 8), np.uint32)
    kernels.launch("bit_tricks", 1, 32, [x, out])
    for value, row in zip(x.tolist(), out.tolist(), strict=True):
        binary = f"{value:032b}"
        both = value.to_bytes(4, "little") + (~value & 0xFFFFFFFF).to_bytes(4, "little")
        lowest = 32 - binary.rindex("1") if value else 0
        assert row[:4] == [
            binary.count("1"),
            lowest,
            len(binary) - len(binary.lstrip("0")),
            int(binary[::-1], 2),
        ]
        assert row[4] == int.from_bytes(bytes(both[i] for i in (5, 3, 7, 1)), "little")
        assert row[5] == value & 0x3FFFFFFF
        assert row[6] == value * 0x9E3779B9 >> 32
        assert row[7] == min(value, 7) + max(3, value & 7) + min(2, value)


def test_constant_memory_is_set_from_outside(kernels):
    table, out = np.random.default_rng(9).random(4), np.zeros(4)
    kernels.set_symbol("table", table)
    kernels.launch("reads_constant", 1, 4, [out])
    np.testing.assert_array_equal(out, table)
    with pytest.raises(ValueError, match="no variable 'chair'"):
        kernels.set_symbol("chair", table)


@pytest.mark.parametrize("case", range(20))
def test_mma_m8n8k4_is_the_product_of_the_tiles(kernels, case):
    rng = np.random.default_rng(case)
    a, b, c = rng.integers(-50, 50, (8, 4)), rng.integers(-50, 50, (4, 8)), rng.integers(-50, 50, (8, 8))
    a, b, c = a.astype(float), b.astype(float), c.astype(float)
    d = np.full((8, 8), np.nan)
    kernels.launch("one_tile", 1, 32, [a, b, c, poisoned(d)], seed=case)
    np.testing.assert_array_equal(d, c + a @ b)  # whole numbers: exact in any order


def test_mma_m16n8k4_is_the_product_of_the_tiles(kernels):
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-50, 50, shape).astype(float) for shape in ((16, 4), (4, 8), (16, 8)))
    d = np.full((16, 8), np.nan)
    kernels.launch("tall_tile", 1, 32, [a, b, c, poisoned(d)])
    np.testing.assert_array_equal(d, c + a @ b)


def test_mma_keeps_a_nan_in_its_row_and_column(kernels):
    a, b, d = np.ones((8, 4)), np.ones((4, 8)), np.zeros((8, 8))
    a[3, 1] = np.nan
    b[2, 5] = np.inf
    kernels.launch("one_tile", 1, 32, [a, b, np.zeros((8, 8)), d])
    want = np.full((8, 8), 4.0)
    want[:, 5] = np.inf
    want[3] = np.nan
    np.testing.assert_array_equal(d, want)


def test_overlapping_arguments_share_memory(kernels):
    x = np.arange(8, dtype=np.float32)
    kernels.launch("saxpy", 1, 8, [x, x, np.float32(2), np.int32(8)])
    np.testing.assert_array_equal(x, 3 * np.arange(8))


# ---- mistakes: bounds ----------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "thread", "index"), [(1, 31, 32), (-2, 0, -2), (100, 0, 100)])
def test_reading_out_of_bounds(kernels, offset, thread, index):
    x, y = np.zeros(32), np.zeros(32)
    error = caught(kernels, "reads_beyond", 2, 32, [x, y, np.int32(offset)])
    assert (error.kind, error.argument, error.array, error.index) == ("out of bounds", 0, "x", index)
    assert error.thread == (thread, 0, 0)
    assert error.lane == thread
    assert "reads 8 bytes" in str(error)
    line = 1 + SELFTEST.read_text().splitlines().index(
        next(s for s in SELFTEST.read_text().splitlines() if "reads_beyond" in s)
    )
    assert error.where.endswith(f":{line}")


def test_reading_out_of_bounds_far_away(kernels):
    error = caught(kernels, "reads_beyond", 1, 32, [np.zeros(32), np.zeros(32), np.int32(2**30)])
    assert error.kind == "out of bounds"


@pytest.mark.parametrize("offset", [1, -1])
def test_writing_out_of_bounds_changes_nothing(kernels, offset):
    whole = np.zeros(40, np.int32)
    error = caught(kernels, "writes_beyond", 1, 32, [whole[4:36], np.int32(offset)])
    assert error.kind == "out of bounds"
    assert error.index == (32 if offset > 0 else -1)
    assert not whole.any()


def test_null_pointer(kernels):
    assert caught(kernels, "writes_beyond", 1, 32, [None, np.int32(0)]).kind == "out of bounds"


def test_memcpy_out_of_bounds(kernels):
    x, y = np.arange(8.0), np.zeros(8)
    kernels.launch("copies_beyond", 1, 32, [y, x, np.int32(8)])
    np.testing.assert_array_equal(x, y)
    assert caught(kernels, "copies_beyond", 1, 32, [y, x, np.int32(9)]).kind == "out of bounds"


@pytest.mark.parametrize("i", [-1, 4])
def test_indexing_a_local_array_out_of_bounds(kernels, i):
    y = np.zeros(32, np.int32)
    kernels.launch("indexes_beyond", 1, 32, [y, np.int32(2)])
    assert (y == 3).all()
    assert caught(kernels, "indexes_beyond", 1, 32, [y, np.int32(i)]).kind == "out of bounds"


def test_dynamic_shared_memory_out_of_bounds(kernels):
    y = np.zeros(32, np.int32)
    kernels.launch("beyond_dynamic_memory", 1, 32, [y], shared_bytes=128)
    error = caught(kernels, "beyond_dynamic_memory", 1, 32, [y], shared_bytes=124)
    assert (error.kind, error.lane) == ("out of bounds", 31)
    assert caught(kernels, "beyond_dynamic_memory", 1, 32, [y]).kind == "out of bounds"


def test_writing_to_a_read_only_array(kernels):
    y = np.zeros(32)
    y.flags.writeable = False
    error = caught(kernels, "adds_to", 1, 32, [y])
    assert (error.kind, error.argument, error.index) == ("read-only", 0, 0)


# ---- mistakes: poison ----------------------------------------------------------------------------


def test_reading_shared_memory_that_was_never_written(kernels):
    error = caught(kernels, "reads_unwritten_shared", 1, 32, [np.zeros(32, np.int32)])
    assert (error.kind, error.lane, error.array, error.index) == ("uninitialised", 7, "row", 28)


def test_shared_memory_does_not_outlive_a_block(kernels):
    y = np.zeros(64, np.int32)
    kernels.launch("reads_shared_of_another_block", 1, 32, [y])
    error = caught(kernels, "reads_shared_of_another_block", 2, 32, [y])
    assert (error.kind, error.block) == ("uninitialised", (1, 0, 0))


def test_reading_a_poisoned_array(kernels):
    y = np.zeros(32)
    kernels.launch("adds_to", 1, 32, [y])
    error = caught(kernels, "adds_to", 1, 32, [poisoned(y)])
    assert (error.kind, error.array, error.index) == ("uninitialised", "y", 0)


def test_poison_counts_bytes(kernels):
    out = np.zeros(1, np.uint32)
    assert caught(kernels, "half_written", 1, 1, [poisoned(np.zeros(4, np.uint8)), out]).index == 2
    kernels.launch("half_written", 1, 1, [np.zeros(4, np.uint8), out])
    assert out[0] == 0x01000101


def test_poisoned_remembers_what_was_written(kernels):
    y = poisoned(np.zeros((4, 16), np.int32))
    assert not y.written.any()
    kernels.launch("blocks_write_the_same", 1, 32, [y])
    np.testing.assert_array_equal(y.written, np.repeat([True, True, False, False], 16).reshape(4, 16))
    kernels.launch("blocks_write_the_same", 1, 64, [y])
    assert y.written.all()


# ---- mistakes: races -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_a_shared_array_read_without_a_barrier(kernels, how, seed):
    """__syncthreads (1) and, in a warp, __syncwarp (2) order memory; nothing (0) and a shuffle (3) do not."""
    x = np.full(64, how, np.int32)
    y = np.zeros(64, np.int32)
    if how in (1, 2):
        kernels.launch("reads_neighbour", 1, 64, [x, y], seed=seed)
        return
    error = caught(kernels, "reads_neighbour", 1, 64, [x, y], seed=seed)
    # Without a barrier, the neighbour may be caught before or after it has written.
    assert error.kind in ("race", "uninitialised")
    assert error.array == "row"


@pytest.mark.parametrize("seed", SEEDS)
def test_overwriting_what_others_read(kernels, seed):
    error = caught(kernels, "overwrites_what_is_read", 1, 64, [np.zeros(64, np.int32)], seed=seed)
    assert (error.kind, error.array) == ("race", "row")
    assert "__syncthreads" in str(error) or "__syncwarp" in str(error)


def test_two_warps_writing_one_element(kernels):
    kernels.launch("two_warps_write", 1, 32, [np.zeros(1, np.int32)])
    error = caught(kernels, "two_warps_write", 1, 64, [np.zeros(1, np.int32)])
    assert (error.kind, error.argument, error.index) == ("race", 0, 0)
    assert "thread (0,0,0)" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_blocks_writing_one_element(kernels, seed):
    error = caught(kernels, "blocks_write_the_same", 2, 32, [np.zeros(32, np.int32)], seed=seed)
    assert error.kind == "race"
    assert "block" in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_reading_what_another_one_writes(kernels, seed):
    error = caught(kernels, "blocks_read_and_write", 2, 32, [np.zeros(33, np.int32)], seed=seed)
    assert (error.kind, error.index) == ("race", 0)


def test_a_plain_read_of_what_others_change_atomically(kernels):
    assert caught(kernels, "atomic_and_plain", 1, 64, [np.zeros(65, np.uint32)]).kind == "race"


def test_bytes_beside_each_other_are_no_race(kernels):
    y = np.zeros(64, np.uint8)
    kernels.launch("flag_bytes", 1, 64, [y])
    np.testing.assert_array_equal(y, np.arange(64))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "grid", "block"),
    [("last_block_sums", 9, 32), ("last_warp_sums", 3, 96), ("last_block_sums_all_write", 4, 64)],
)
def test_a_handshake_without_its_fence_or_barrier(no_fence, name, grid, block, seed):
    x, partial, y = np.ones(grid * block), np.zeros(grid * block), np.zeros(1)
    error = caught(no_fence, name, grid, block, [x, partial, np.zeros(1, np.uint32), y], seed=seed)
    assert (error.kind, error.array) == ("race", "partial")


# ---- mistakes: barriers and warps ----------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["barrier_for_some", "two_barriers"])
def test_a_barrier_that_not_all_reach(kernels, name, seed):
    error = caught(kernels, name, 1, 64, [np.zeros(64, np.int32)], seed=seed)
    assert error.kind == "barrier"
    assert "__syncthreads at selftest.cu:" in str(error)


def test_a_barrier_against_a_shuffle_is_a_deadlock(kernels):
    error = caught(kernels, "barrier_against_shuffle", 1, 32, [np.zeros(32, np.int32)])
    assert error.kind == "deadlock"
    assert re.search(
        r"waits in __shfl_sync with mask 0xffffffff at \S+; thread \(3,0,0\) waits in __sync", str(error)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shuffle_for_some", "has exited|exits while other lanes wait"),
        ("shuffle_from_outside", "reads lane 20, which the mask leaves out"),
        ("shuffle_without_me", "called by lane 31, which the mask leaves out"),
        (
            "shuffle_with_other_mask",
            "must execute the same instruction|which has exited|exits while other lanes wait",
        ),
        ("shuffle_meets_vote", "must execute the same instruction"),
    ],
)
def test_a_shuffle_with_a_wrong_mask(kernels, name, text, seed):
    error = caught(kernels, name, 1, 32, [np.zeros(32, np.int32)], seed=seed)
    assert error.kind == "warp"
    assert re.search(text, str(error))


def test_a_full_mask_in_a_warp_that_is_not_full(kernels):
    values, out = np.zeros(32, np.int32), np.zeros(128, np.int32)
    error = caught(kernels, "shuffles_int", 1, 24, [values, out, np.int32(0), np.int32(32)])
    assert error.kind == "warp"
    assert "does not exist in this block" in str(error)


# ---- mistakes: the rest --------------------------------------------------------------------------


def test_a_misaligned_vector_load(kernels):
    error = caught(kernels, "misaligned_vector", 1, 4, [np.zeros(16), np.zeros(4)])
    assert (error.kind, error.array, error.index) == ("misaligned", "x", 1)
    kernels.launch(
        "misaligned_vector", 1, 4, [np.zeros(17)[1:], np.zeros(4)]
    )  # a view that starts 8 bytes in


def test_a_misaligned_atomic(kernels):
    assert caught(kernels, "misaligned_atomic", 1, 1, [np.zeros(8, np.uint8)]).kind == "misaligned"


@pytest.mark.parametrize(("name", "good", "bad"), [("shifts_too_far", 31, 32), ("overflows", 32767, 32768)])
def test_arithmetic_without_a_meaning(kernels, name, good, bad):
    y = np.zeros(4, np.int32)
    kernels.launch(name, 1, 4, [np.full(4, good, np.int32), y])
    assert caught(kernels, name, 1, 4, [np.full(4, bad, np.int32), y]).kind == "arithmetic"


def test_a_trap_is_told(kernels):
    kernels.launch("traps", 1, 1, [np.zeros(1, np.int32)])
    assert caught(kernels, "traps", 1, 1, [np.full(1, 5, np.int32)]).kind == "trap"


def test_a_launch_after_an_error_is_none_the_worse(kernels):
    for _ in range(3):
        caught(kernels, "barrier_against_shuffle", 1, 32, [np.zeros(32, np.int32)])
        test_mma_m8n8k4_is_the_product_of_the_tiles(kernels, 1)


# ---- launching -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (lambda x: [x, x, np.float32(1)], TypeError, "takes 4 arguments"),
        (lambda x: [x, x, 1.0, np.int32(8)], TypeError, "is float; a NumPy scalar"),
        (
            lambda x: [x, x, np.float64(1), np.int32(8)],
            TypeError,
            "`a`.* is float64; the parameter is float32",
        ),
        (lambda x: [x, x, np.float32(1), np.uint32(8)], TypeError, "is uint32; the parameter is int32"),
        (
            lambda x: [x.astype(np.float64), x, np.float32(1), np.int32(8)],
            TypeError,
            "`x`.* has dtype float64",
        ),
        (lambda x: [np.float32(1), x, np.float32(1), np.int32(8)], TypeError, "is a pointer|pointer, so"),
        (lambda x: [x[::2], x, np.float32(1), np.int32(8)], ValueError, "not C-contiguous"),
    ],
)
def test_arguments_that_do_not_fit(kernels, args, error, text):
    with pytest.raises(error, match=text):
        kernels.launch("saxpy", 1, 8, args(np.zeros(8, np.float32)))


@pytest.mark.parametrize(
    ("grid", "block", "shared", "text"),
    [
        (1, 65, 0, "65 threads; bounded takes 1 to 64"),
        (0, 1, 0, "at least 1"),
        (1, 1, 300_000, "a block has"),
    ],
)
def test_sizes_that_do_not_fit(kernels, grid, block, shared, text):
    with pytest.raises(ValueError, match=text):
        kernels.launch("bounded", grid, block, [np.zeros(64, np.int32)], shared_bytes=shared)
    kernels.launch("bounded", 1, 64, [np.zeros(64, np.int32)])


def test_unknown_kernels_and_files_are_refused(kernels):
    with pytest.raises(ValueError, match=r"no kernel 'sum' in selftest.cu; it has adds_to, "):
        kernels.launch("sum", 1, 1, [])
    with pytest.raises(FileNotFoundError, match="no kernel file"):
        compile_kernels("spmv/absent.cu")


# ---- building ------------------------------------------------------------------------------------


def test_code_that_does_not_compile_is_an_error_with_the_compilers_words():
    with pytest.raises(RuntimeError, match=r"(?s)does not compile odd.cu.*nonsense"):
        compile_text("nonsense", title="odd.cu")


def test_without_a_compiler_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.compiler.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"no C\+\+ compiler .*install it"):
            compile_text("")
    finally:
        monkeypatch.undo()
        build.compiler.cache_clear()


def test_several_processes_may_build_the_same_kernel_at_once(tmp_path):
    program = (
        "import numpy as np; from tests.simt import compile_text; y = np.zeros(32, np.int32);"
        "m = compile_text('extern \"C\" __global__ void one(int* y) { y[threadIdx.x] = 1; }');"
        "m.launch('one', 1, 32, [y]); assert y.all()"
    )
    shutil.copy(build._runtime_object(), tmp_path)
    environment = {**os.environ, "DASP_SIMT_CACHE": str(tmp_path), "PYTHONPATH": str(SELFTEST.parents[2])}
    workers = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_a_kernel_is_kept_until_a_file_that_it_includes_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "KERNELS", tmp_path)
    (tmp_path / "spmv").mkdir()
    files = {"a.cuh": "", "spmv/b.cuh": '#include "../a.cuh"', "spmv/c.cu": '  # include "b.cuh"', "a.cu": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = build._included('#include "spmv/c.cu"\n#include <cuda_fp16.h>\n')
    assert {str(path.relative_to(tmp_path)) for path in found} == set(files) - {"a.cu"}


def test_defines_and_their_absence_reach_the_kernel(kernels, no_fence):
    assert kernels is compile_text(SELFTEST.read_text(), title="selftest.cu")
    assert kernels is not no_fence


def test_a_million_checked_accesses_take_about_a_second(kernels):
    x, y = np.zeros(100_000, np.float32), np.zeros(100_000, np.float32)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        kernels.launch("saxpy", -(-x.size // 256), 256, [x, y, np.float32(1), np.int32(x.size)])
        best = min(best, time.process_time() - start)
    assert kernels.accesses == 3 * x.size
    assert kernels.accesses / best > 5e5
