"""The way back from slices: the CPU's and the CUDA kernels' in the emulator, against NumPy, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp import formats, set_num_threads
from dasp.formats.cost import H200
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import Plan, arrays_of, csr_of_slots, diagonal_rows, slots_of_entries
from dasp.formats.sell import SELL, choose
from dasp.formats.sell.cpu import primitives as cpu
from dasp.formats.sell.cpu import unpack as unpacking
from dasp.formats.sell.cuda import columns
from dasp.formats.sell.cuda import product as cuda
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.formats.sell.pattern import BITS_8, Choice, Coding, Pattern, Values, pack_shape
from dasp.matrix import planning
from dasp.models import generate
from dasp.runtime.cpu import threads
from dasp.runtime.dtypes import find_arithmetic_into, sum_type
from tests.formats.sell.test_pack_cuda import (
    VALUES,
    bits,
    choices,
    csr_of,
    draw_values,
    matrices,
    rows_of_five,
)
from tests.simt import compile_kernels
from tests.support.gallery import GALLERY
from tests.support.pack_device import PackingDevice
from tests.support.planned import Tuned, frozen, plan_of, widened
from tests.support.slots import expand

pytestmark = pytest.mark.simt


def assert_same(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(bits(got), bits(want))


def pack(csr, model=H200, **choices):
    """Return the plan of the CPU."""
    return planning.make_plan(csr, Tuned("sell", **choices), model, cpu)


def assert_unpacks(plan, seed=None):
    """Both backends give the matrix, and find the slots of its entries, as NumPy does."""
    device = PackingDevice(seed)
    rows, columns, values = expand(plan)
    want = csr_of_slots(plan, rows, columns, values)
    slots = slots_of_entries(plan, rows, columns)
    for on in (cpu, CudaPrimitives(device)):
        for mine, theirs in zip(formats.find(plan.format).unpack(plan, on), want, strict=True):
            assert_same(mine, theirs)
        found = formats.find(plan.format).find_slots(plan, on)
        numbers = 1.0 + np.arange(plan.nnz)
        stored = np.zeros(len(rows))
        stored[slots] = numbers
        assert_same(on.code_values(numbers, found, len(rows), Coding.PLAIN, None).codes, stored)
    assert device.reads == 0
    assert_finds_diagonals(plan, rows, columns, values)


def assert_finds_diagonals(plan, rows, columns, values):
    """Both backends find diagonals; both say where they cannot add two entries of one place."""
    (m, n), total = plan.shape, sum_type(plan.dtype)
    for k in {0, 1, -2, n - 1, 1 - m}:
        first, count = diagonal_rows(plan.shape, k)
        slots = np.flatnonzero((columns >= 0) & (columns == rows.astype(np.int64) + k))
        times = np.bincount(rows[slots] - first, minlength=count)
        found, twice = unpacking.diagonal(plan, k), first + np.flatnonzero(times > 1)
        assert (found is None) == (len(twice) > 0)
        cut = np.intersect1d(twice, plan.pattern.long_rows)
        for got, unsure in ((found, twice), (emulated_diagonal(plan, k), cut)):
            if got is None:
                assert len(unsure)
                continue
            want = np.zeros(count, total)
            with np.errstate(all="ignore"):
                np.add.at(want, rows[slots] - first, values[slots].astype(total))
            assert (got.dtype, got.shape) == (total, (count,))
            assert_same(got[times < 2], want[times < 2])
            np.testing.assert_array_equal(got, want)  # in the order of the entries


def emulated_diagonal(plan, k):
    """The diagonal that the CUDA kernel finds; None if it says that segments of a row both have an entry."""
    kinds, (first, count) = (
        find_arithmetic_into(plan.dtype, plan.dtype, plan.dtype),
        diagonal_rows(plan.shape, k),
    )
    cut, y = len(plan.pattern.long_rows), np.full(count, np.nan, sum_type(plan.dtype))
    claims = np.zeros(cut + 1, np.uint64)
    if not count or not plan.nnz:
        return np.zeros_like(y)
    if cut:
        y[:] = 0
    arguments = cuda.list_diagonal_arguments(plan) | {"claims": claims, "y": y}
    arguments |= {"further": k, "first_row": first, "length": count}
    kernel = compile_kernels(cuda.DIAGONAL.source, cuda.define_diagonal(plan, kinds))
    ordered = cuda.DIAGONAL.ordered(columns.find_types(plan, kinds), arguments)
    kernel.launch(cuda.DIAGONAL.entry, cuda.count_diagonal_blocks(plan), cuda.DIAGONAL_THREADS, ordered)
    return None if claims[cut] else y


def assert_clears_pads(plan):
    columns = expand(plan)[1]
    for dtype in (np.float16, np.float64, np.complex128):
        for on in (cpu, CudaPrimitives(PackingDevice())):
            codes = np.full(len(columns), np.nan).astype(dtype)
            want = np.where(columns < 0, dtype(0), codes).astype(dtype)
            on.clear_pads(plan.pattern, codes)
            assert_same(codes, want)


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    plan = plan_of(GALLERY[name])
    assert_unpacks(plan)
    assert_clears_pads(plan)


@pytest.mark.parametrize("name", ["lengths around every threshold", "every row long"])
def test_numbers_of_64_bits(name):
    plan = widened(plan_of(GALLERY[name]))
    assert_unpacks(plan)
    order = np.random.default_rng(0).permutation(plan.nnz)
    assert_unpacks(dataclasses.replace(plan, order=order))


@settings(max_examples=12, deadline=None)
@given(
    csr=matrices(),
    choice=choices,
    seed=st.none() | st.integers(0, 99),
    turned=st.booleans(),
)
def test_any_matrix_in_any_order(csr, choice, seed, turned):
    plan = pack(csr, **choice)
    if turned:  # as if the entries had come in another order of rows, too
        order = np.random.default_rng(0).permutation(plan.nnz).astype(np.int32)
        plan = dataclasses.replace(plan, order=order)
    assert_unpacks(plan, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", VALUES)
def test_every_coding_gives_every_bit_back(kind, dtype):
    data = draw_values(kind, 3000, dtype, np.random.default_rng(6))
    csr = rows_of_five(data)
    plan = pack(csr)
    assert_unpacks(plan)
    assert_same(formats.find(plan.format).unpack(plan, cpu)[2], data)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [np.negative, lambda values: values * 2, lambda values: values / 0])
@pytest.mark.parametrize("kind", VALUES)
def test_both_devices_map_values_where_they_lie_or_neither_does(kind, function):
    data = draw_values(kind, 3000, np.float64, np.random.default_rng(6))
    csr = rows_of_five(data)
    plan = SELL.pack(csr, SELL.options(), H200, cpu)
    made = [SELL.map_values(plan, function, on) for on in (cpu, CudaPrimitives(PackingDevice()))]
    assert (made[0] is None) == (made[1] is None)
    assert made[0] is not None or kind not in ("equal", "few")
    if made[0] is not None:
        for mine, theirs in zip(*(arrays_of(each.values) for each in made), strict=True):
            assert_same(mine, theirs)
        formats.find(plan.format).check(made[0])
        assert_same(formats.find(plan.format).unpack(made[0], cpu)[2], function(data))


@pytest.mark.parametrize("kind", VALUES)
def test_new_values_are_coded_as_they_need_whatever_the_old_ones_did(kind):
    rng = np.random.default_rng(6)
    old, new = (draw_values(each, 3000, np.float64, rng) for each in (VALUES[-1], kind))
    plan = pack(rows_of_five(old))
    assert plan.values.coding == Coding.PLAIN
    made, want = (
        SELL.values_from(plan, new, SELL.find_slots(plan, on), on)
        for on in (CudaPrimitives(PackingDevice()), cpu)
    )
    assert made.coding == want.coding
    assert_same(made.codes, want.codes)
    assert_same(made.table, want.table)
    assert_same(cpu.unpack(frozen(plan.of(made, new.dtype)))[2], new)


def test_segments_in_the_order_of_their_columns(monkeypatch):
    monkeypatch.setattr(choose, "MOST_SEGMENTS", 4)
    csr = csr_of(generate("spikes:300:2:9000"))
    model = dataclasses.replace(H200, wave_slices=3)
    plan = pack(csr, model)
    numbers = plan.pattern.headers[: plan.pattern.segments, 1].astype(int)
    assert (np.diff(numbers) < 0).any()
    assert_unpacks(plan)


def test_pads_may_lie_between_the_entries_of_a_row():
    deltas = np.arange(96, dtype=np.uint8).reshape(3, 32)
    deltas[0, ::2] = deltas[1, 5:20] = deltas[2, 1::3] = 255
    codes = np.arange(1.0, 97.0).reshape(3, 32)
    codes[deltas == 255] = 0
    none = np.zeros(0, np.int32)
    pattern = Pattern(
        choice=Choice(H200, 8, 8, 0, 4, True, False),
        index_dtype=np.dtype(np.int32),
        entries=int((deltas != 255).sum()),
        segments=0,
        positions=8,
        rows=np.array([3, 1, 0, 2, 7, 6, 4, 5], np.int32),
        headers=np.array([[0, 0, 0, pack_shape(3, 0, 2, BITS_8)]], np.uint32),
        bases=np.array([0, 7, 2], np.int32),
        deltas=deltas.ravel(),
        long_rows=none,
        segment_offsets=np.zeros(1, np.int32),
        segment_rows=none,
    )
    dtype = np.dtype(np.float64)
    plan = Plan("sell", (8, 200), dtype, pattern, Values(Coding.PLAIN, codes.ravel(), np.zeros(0)))
    SELL.check(plan)
    for array in arrays_of(plan):
        array.flags.writeable = False
    assert_unpacks(plan)
    assert_clears_pads(plan)


def test_few_launches_and_little_memory():
    matrix = generate("stencil27:12")
    matrix.data = np.random.default_rng(0).standard_normal(matrix.nnz)
    plan = plan_of(matrix)
    device = PackingDevice()
    on = CudaPrimitives(device)
    slots = formats.find(plan.format).find_slots(plan, on)
    assert slots.nbytes == 8 * (matrix.shape[0] + 1)
    assert device.peak <= 2 * slots.nbytes + 4096
    arrays = formats.find(plan.format).unpack(plan, on)
    assert device.bytes <= slots.nbytes + sum(array.nbytes for array in arrays) + 4096
    assert device.launches == 2 * ["dasp_count_entries", "dasp_sum_tiles", "dasp_scan_tiles"] + [
        "dasp_fill_entries"
    ]


# ---- the transpose -------------------------------------------------------------------------------------


def assert_transposes(csr, seed=None):
    """Both backends give what NumPy does, bit for bit, or know a symmetric matrix; returns whether it is."""
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    want = np.argsort(csr.indices, kind="stable")
    starts = np.searchsorted(csr.indices[want], np.arange(csr.shape[1] + 1))
    device = PackingDevice(seed)
    arrays = starts, rows[want].astype(csr.indices.dtype), csr.data[want]
    equal = zip(arrays, csr[1:], strict=True)
    same = csr.shape[0] == csr.shape[1] and all(np.array_equal(bits(a), bits(b)) for a, b in equal)
    for on in (cpu, CudaPrimitives(device)):
        made = on.transpose(csr)
        assert (made is None) == same
        if same:
            continue
        turned, order = made
        assert turned.shape == csr.shape[::-1]
        assert_same(order, want.astype(np.int32))
        assert_same(turned.indptr, starts.astype(np.int64))
        assert_same(turned.indices, rows[want].astype(csr.indices.dtype))
        assert_same(turned.data, csr.data[want])
    return same


@pytest.mark.parametrize("name", GALLERY)
def test_the_transpose_of_the_gallery(name):
    csr = csr_of(GALLERY[name])
    assert_transposes(csr._replace(indptr=csr.indptr.astype(np.int64)))


@settings(max_examples=20, deadline=None)
@given(csr=matrices(), seed=st.none() | st.integers(0, 99))
def test_the_transpose_of_any_matrix(csr, seed):
    assert_transposes(csr._replace(indptr=csr.indptr.astype(np.int64)), seed)


@pytest.mark.parametrize("change", [None, "value", "sign of a zero", "column", "row"])
def test_a_symmetric_matrix_is_known(change):
    csr = csr_of(generate("poisson2d:20"))
    data, indptr, indices = csr.data.astype(float), csr.indptr.astype(np.int64), csr.indices.copy()
    data[[1, np.flatnonzero(indices == 0)[1]]] = 0.0
    if change == "value":
        data[7] += 1
    elif change == "sign of a zero":
        data[1] = -0.0
    elif change == "column":
        indices[2] += 1
    elif change == "row":
        indptr[1] += 1
    assert assert_transposes(Csr(csr.shape, indptr, indices, data)) == (change is None)


@pytest.mark.parametrize("columns", [5, 64, 4000])
def test_threads_transpose_as_one_does(monkeypatch, columns):
    monkeypatch.setattr(threads, "SERIAL_ENTRIES", 100)
    rng = np.random.default_rng(columns)
    rows, indices = np.sort(rng.integers(0, 300, 5000)), rng.integers(0, columns, 5000).astype(np.int32)
    indptr = np.searchsorted(rows, np.arange(301))
    try:
        set_num_threads(3)
        assert not assert_transposes(Csr((300, columns), indptr, indices, rng.standard_normal(5000)))
    finally:
        set_num_threads(None)


def test_many_tiles_and_columns():
    rng = np.random.default_rng(0)
    rows, columns = np.sort(rng.integers(0, 300, 40_000)), rng.integers(0, 2**20, 40_000).astype(np.int32)
    indptr = np.searchsorted(rows, np.arange(301))
    assert_transposes(Csr((300, 2**20), indptr, columns, rng.standard_normal(40_000)))
