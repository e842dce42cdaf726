"""Plans by the CUDA kernels in the emulator: those of the CPU bit for bit, in few steps and little memory."""

from __future__ import annotations

import dataclasses
import functools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasp import formats
from dasp.formats.cost import H200
from dasp.formats.csr.matrix import Csr, check_compressed
from dasp.formats.plan import nbytes
from dasp.formats.sell import SELL, choose
from dasp.formats.sell.cpu import primitives as cpu
from dasp.formats.sell.cpu.values import holds
from dasp.formats.sell.cuda import windows
from dasp.formats.sell.cuda.primitives import CudaPrimitives
from dasp.formats.sell.pattern import Coding, Values, Width, code_type, may_code, unpack_shape
from dasp.formats.sell.primitives import Cut
from dasp.models import generate
from tests.support.gallery import GALLERY, LENGTHS, from_lengths
from tests.support.pack_device import PackingDevice
from tests.support.planned import MODELS, frozen
from tests.support.reference import entries_of

pytestmark = pytest.mark.simt


def csr_of(matrix):
    csr = entries_of(matrix)
    return Csr(csr.shape, csr.indptr, csr.indices, csr.data)


def plans(csr, seed=None, machine=H200, **choices):
    """The plan of the emulated GPU, held to be that of the CPU; and the device."""
    options, device = SELL.options(**choices), PackingDevice(seed)
    want = SELL.pack(csr, options, machine, cpu)
    got = SELL.pack(csr, options, machine, CudaPrimitives(device))
    assert_same_plan(got, want)
    return got, device


def assert_same_plan(got, want):
    assert (got.format, got.shape, got.dtype) == (want.format, want.shape, want.dtype)
    for part, other in ((got.pattern, want.pattern), (got.values, want.values)):
        for field in dataclasses.fields(part):
            mine, theirs = getattr(part, field.name), getattr(other, field.name)
            if not isinstance(theirs, np.ndarray):
                assert mine == theirs, field.name
                continue
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), field.name
            np.testing.assert_array_equal(bits(mine), bits(theirs), err_msg=field.name)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


# ---- whole plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    plans(csr_of(GALLERY[name]))


def test_an_equal_complex_value_comes_back():
    csr = csr_of(GALLERY["1 x 1"])
    csr, on = csr._replace(data=np.full(len(csr.data), 0.3 + 0.1j)), CudaPrimitives(PackingDevice())
    plan = SELL.pack(csr, SELL.options(), H200, on)
    new = np.full(len(csr.data), 1 / 3 - 0.7j)
    plan = dataclasses.replace(plan, values=SELL.values_from(plan, new, SELL.find_slots(plan, on), on))
    assert plan.values.coding == Coding.EQUAL
    np.testing.assert_array_equal(bits(SELL.unpack(plan, on)[2]), bits(new))


def rows_of_five(values):
    """A matrix with these values, five in each row."""
    m = len(values) // 5
    indptr, indices = (
        np.asarray(each, np.int32) for each in (5 * np.arange(m + 1), np.tile(np.arange(5), m))
    )
    return Csr((m, 9), indptr, indices, values)


VALUES = ("any", "equal", "bytes", "few", "singles", "NaNs")


def draw_values(kind, count, dtype, rng):
    """Values that one coding holds, among them those at the ends of its range."""
    any_bits = rng.integers(0, 2**63, count).astype(np.uint64)
    if kind == "equal":
        return np.full(count, rng.standard_normal(), dtype)
    if kind == "bytes":
        return rng.integers(-128, 128, count).astype(dtype)
    if kind == "few":
        return rng.standard_normal(300).astype(dtype)[rng.integers(0, rng.integers(2, 301), count)]
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "singles":
            return any_bits.astype(np.uint32).view(np.float32).astype(dtype)
        if kind == "NaNs":
            kept = any_bits & np.uint64(0xFFFFFC0000000000) if rng.integers(2) else any_bits
            return (kept | np.uint64(0x7FF << 52)).view(np.float64).astype(dtype)
        return any_bits.view(np.float64).astype(dtype)


TYPES = (
    (np.int32, np.int32, np.float64),
    (np.int64, np.int32, np.float64),
    (np.int64, np.int64, np.float64),
)
"""Types of indptr, indices and data, each of which Numba compiles the CPU's planning for."""


@st.composite
def matrices(draw):
    """CSR arrays of every integer type, with rows of all lengths, in order or not."""
    lengths = draw(st.lists(st.sampled_from((*LENGTHS, 600)), max_size=80))
    n, rng = draw(st.sampled_from((1, 40, 300, 70_000))), np.random.default_rng(draw(st.integers(0, 2**32)))
    start, index, dtype = draw(st.sampled_from(TYPES))
    matrix = from_lengths(lengths, n, seed=rng.integers(2**32))
    if draw(st.booleans()):
        matrix.sort_indices()
    data = draw_values(draw(st.sampled_from(VALUES)), matrix.nnz, dtype, rng)
    return Csr(matrix.shape, matrix.indptr.astype(start), matrix.indices.astype(index), data)


choices = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.sampled_from((1, 2, 5, 40, 4095)),
        "window": st.sampled_from((0, 1, 3, 50, 128, 200, 2**32 - 1)),
        "warps": st.just(4),
        "narrow": st.booleans(),
    },
)


@settings(max_examples=20, deadline=None)
@given(
    csr=matrices(),
    choice=choices,
    seed=st.none() | st.integers(0, 99),
    machine=st.sampled_from(list(MODELS)),
)
def test_any_matrix_has_the_plan_of_the_cpu(csr, choice, seed, machine):
    plans(csr, seed, MODELS[machine], **choice)


@pytest.mark.parametrize("window", [None, 0, 100, 8193])
def test_windows_of_many_tiles(window):
    rng = np.random.default_rng(7)
    lengths = np.where(rng.random(17_000) < 0.001, 300, rng.integers(0, 4, 17_000))
    plans(csr_of(from_lengths(lengths, 500)), window=window)


@pytest.mark.parametrize(("longest", "window"), [(900, None), (1100, 9000)])
def test_keys_of_several_digits(longest, window):
    """With long rows, and without; all rows in one launch, and some in passes."""
    rng = np.random.default_rng(8)
    lengths = np.minimum(rng.pareto(1.2, window or 3000) * 2, longest).astype(int)
    lengths[rng.integers(0, len(lengths), 5)] = longest
    plans(csr_of(from_lengths(lengths, 100_000)), window=window, steps=32)


def test_all_rows_are_sorted_whatever_block_comes_first():
    rng = np.random.default_rng(1)
    _, device = plans(csr_of(from_lengths(rng.integers(0, 4, 17_000), 500)), seed=1)
    assert "dasp_move_digits" in device.launches


@pytest.mark.parametrize(("words", "columns"), [(3072, 2_000), (3072, 500_000), (20_480, 6_000_000)])
def test_sectors_of_many_columns_have_bits_or_slots(monkeypatch, words, columns):
    """In memory of a block, and in that of all where there is too little."""
    monkeypatch.setattr(PackingDevice, "shared_words", words)
    rng = np.random.default_rng(9)
    lengths = np.where(rng.random(2000) < 0.02, 120, rng.integers(0, 9, 2000))
    plans(csr_of(from_lengths(lengths, columns)), steps=32)


def test_windows_one_after_another_where_memory_is_short(monkeypatch):
    lengths = np.zeros(6000, int)
    lengths[np.random.default_rng(2).integers(0, 6000, 50)] = 2
    csr = csr_of(from_lengths(lengths, 90))
    monkeypatch.setattr(windows, "FLOOR", 0)
    _, device = plans(csr)
    assert device.launches.count("dasp_cut_tiles") > 3


SAMPLED = dataclasses.replace(H200, sampled_rows=0)


@pytest.fixture
def two_tiles(monkeypatch):
    """Windows are tried in two tiles."""
    monkeypatch.setattr(choose, "TILES", 2)


@settings(max_examples=2)
@given(
    rows=st.integers(4 * 8192, 4 * 8192 + 100),
    kind=st.sampled_from(("even", "short", "long", "sorted", "empty")),
    on=st.sampled_from(("gpu", "cpu")),
    seed=st.integers(0, 99),
)
def test_windows_are_tried_in_tiles(rows, kind, on, seed):
    rng = np.random.default_rng(seed)
    some, few = rng.integers(0, 4, rows), rng.random(rows)
    lengths = {
        "even": lambda: some * 2,
        "short": lambda: np.where(few < 0.01, rng.integers(0, 200, rows), some),
        "long": lambda: np.where(few < 0.001, rng.integers(0, 900, rows), some),
        "sorted": lambda: np.sort(rng.integers(0, 5, rows) ** 3),
        "empty": lambda: (few < 0.001).astype(int),
    }[kind]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "TILES", 2)
        machine = dataclasses.replace(MODELS[on], sampled_rows=0)
        plans(csr_of(from_lengths(lengths, 3000)), seed if seed % 2 else None, machine)


def test_all_rows_are_tried_where_tiles_have_missed_the_long_ones(two_tiles):
    lengths = np.tile([1, 0], 2 * 8192)
    tile = choose.draw_tile(0, 2, 4)
    _, device = plans(csr_of(from_lengths(lengths, 900)), machine=SAMPLED)
    assert device.launches.count("dasp_cut_tiles") == 2
    lengths[8192 * (1 - tile) : 8192 * (2 - tile)] *= 7
    plan, device = plans(csr_of(from_lengths(lengths, 900)), machine=SAMPLED)
    assert device.launches.count("dasp_cut_tiles") == 3
    everywhere = SELL.pack(csr_of(from_lengths(lengths, 900)), SELL.options(), H200, cpu)
    assert dataclasses.replace(plan.pattern.choice, model=H200) == everywhere.pattern.choice


def test_segments_in_the_order_of_their_columns(monkeypatch):
    monkeypatch.setattr(choose, "MOST_SEGMENTS", 4)
    rng = np.random.default_rng(3)
    lengths = np.where(rng.random(400) < 0.2, rng.integers(257, 1500, 400), rng.integers(0, 9, 400))
    csr = csr_of(from_lengths(lengths, 5000))
    machine = dataclasses.replace(H200, wave_slices=100)
    plan, device = plans(csr, machine=machine)
    assert "dasp_place_segments" in device.launches
    numbers = plan.pattern.headers[: plan.pattern.segments, 1]
    assert (np.sort(numbers) == np.arange(len(numbers))).all()
    assert (np.diff(numbers.astype(int)) < 0).any()


def test_long_rows_are_sorted_run_by_run():
    rng = np.random.default_rng(4)
    csr = csr_of(from_lengths([5, 0, 5000, 1024, 1025, 33, 2048, 1, 3000], 700, seed=5))
    assert not cpu.survey(csr, SELL_CUT, False).columns_rise
    _, device = plans(csr)
    assert device.launches.count("dasp_merge_columns") == 3
    few = draw_values("few", len(csr.data), np.float64, rng)  # a dictionary in the order of the columns
    plan, _ = plans(csr._replace(data=few))
    assert plan.values.coding == Coding.DICTIONARY


SELL_CUT = Cut(8, 32, 128, 8192)


def test_lanes_are_fewer_where_long_rows_are_alike():
    shared = dataclasses.replace(H200, steps=(), long_slices=())
    alone = dataclasses.replace(shared, long_slices=((96, 1, 20, 0.0),))
    plan, _ = plans(csr_of(generate("fem3:6")), machine=alone)
    assert (plan.pattern.choice.steps, plan.pattern.choice.segment_steps) == (96, 96)
    assert {int(word) >> 24 & 7 for word in plan.pattern.headers[:, 3]} == {0}
    csr = csr_of(generate("fem3:12"))
    with_lanes, without = (nbytes(SELL.pack(csr, SELL.options(), one, cpu)) for one in (shared, alone))
    assert without < 0.92 * with_lanes


def test_samples_in_shared_and_in_global_memory():
    matrix = from_lengths(np.full(14_000, 9), 14_000)
    far = H200.far._replace(by_slice=1.0, by_many=2.0)
    machine = dataclasses.replace(H200, far=far, block_slots=(1.0, 1.0))
    csr = csr_of(matrix)
    plans(csr, machine=dataclasses.replace(machine, near=machine.far))
    plans(csr, machine=machine, steps=700, warps=4)


@pytest.mark.parametrize("width", Width)
def test_columns_of_every_width(width):
    n = {Width.NONE: 64, Width.BITS_8: 200, Width.BITS_16: 60_000, Width.BITS_32: 90_000}[width]
    indices = np.arange(64) if width == Width.NONE else np.arange(64) % 2 * (n - 1)
    csr = Csr((64, n), np.arange(65), indices.astype(np.int32), np.arange(64.0))
    plan, _ = plans(csr)
    assert set(unpack_shape(plan.pattern.headers[:, 3].astype(np.int64))[3]) == {width}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", VALUES)
def test_every_value_keeps_its_bits(kind, dtype):
    data = draw_values(kind, 5000, dtype, np.random.default_rng(6))
    plans(rows_of_five(data))


@pytest.mark.parametrize(
    ("others", "coding"), [(0, Coding.EQUAL), (255, Coding.DICTIONARY), (256, Coding.PLAIN)]
)
def test_the_value_that_stands_for_none_is_counted_as_any_other(others, coding):
    table = np.append(
        np.random.default_rng(1).standard_normal(others).view(np.uint64), np.uint64(0x7FF4DA5F7FF4DA5F)
    )
    csr, rng = csr_of(generate("spikes:300:2:290")), np.random.default_rng(2)
    bits = np.concatenate([table, rng.choice(table, len(csr.data) - len(table))])
    plan, _ = plans(csr._replace(data=rng.permutation(bits).view(np.float64)))
    assert plan.values.coding == coding


@pytest.mark.cuda
@pytest.mark.parametrize("steps", [1, 2])
def test_on_a_gpu_many_segments(steps):
    import cupy

    from dasp.formats import backends
    from dasp.formats.sell.cuda.primitives import find_primitives as on_a_gpu

    rng = np.random.default_rng(steps)
    lengths = rng.integers(0, 12, 3000)
    lengths[rng.choice(3000, 900, replace=False)] = rng.integers(400 * steps, 700 * steps, 900)
    csr, options = csr_of(from_lengths(lengths, 40_000, seed=steps)), SELL.options(steps=steps)
    want = SELL.pack(csr, options, H200, cpu)
    assert want.pattern.segments > 8192
    there = Csr(csr.shape, *map(cupy.asarray, csr[1:]))
    got = SELL.pack(there, options, H200, on_a_gpu(cupy.cuda.Device().id))
    assert_same_plan(backends.find("cuda:0").to_host(got), want)


# ---- what is not a matrix ------------------------------------------------------------------------

GOOD = {"indptr": [0, 1, 3], "indices": [0, 1, 2], "data": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": [0, 1]},
        {"indptr": [1, 2, 3]},
        {"indptr": [0, 4, 3]},
        {"indptr": [0, -1, 3]},
        {"indptr": [0, 1, 4]},
        {"indptr": [0, 2**40, 3]},
        {"indptr": [0, 1, 2]},
        {"indices": [0, 1, 3]},
        {"indices": [0, -1, 2]},
        {"indices": [0, 2**40, -(2**40)]},
        {"indices": [0, 1]},
        {"data": [1.0, 2.0]},
        {"indptr": [0, 0, 0]},
    ],
)
def test_what_is_no_matrix_is_refused_as_on_the_host(changes):
    arrays = GOOD | changes
    indptr, indices = (np.array(arrays[name]) for name in ("indptr", "indices"))
    csr = Csr((2, 3), indptr, indices, np.array(arrays["data"]))
    with pytest.raises(ValueError, match=r"indptr|indices") as wanted:
        check_compressed("CSR", csr.shape, *csr[1:])
    with pytest.raises(ValueError, match=re.escape(str(wanted.value))):
        CudaPrimitives(PackingDevice()).survey(csr, SELL_CUT, True)


# ---- what planning costs -------------------------------------------------------------------------


@pytest.mark.parametrize("unsorted", [False, True])
def test_memory_is_at_most_that_of_the_matrix_beside_the_plan_and_is_given_back(unsorted):
    matrix = generate("stencil27:8")
    matrix.data = np.random.default_rng(0).standard_normal(matrix.nnz)
    csr = csr_of(matrix)
    if unsorted:
        csr.indices[:] = csr.indices[::-1]
        csr = csr._replace(indices=np.ascontiguousarray(csr.indices))
    device = PackingDevice()
    plan = SELL.pack(csr, SELL.options(), H200, CudaPrimitives(device))
    kept = nbytes(plan)
    assert device.peak <= kept + nbytes(*csr[1:])
    shared = plan.pattern.segment_offsets.nbytes  # a 0, as in all plans without long rows
    assert kept - shared <= device.bytes <= kept + 4096


@pytest.mark.parametrize("narrow", [True, False])
def test_what_a_usual_matrix_needs_is_compiled_at_once(narrow):
    csr, device = csr_of(generate("fem3:3").astype(np.float64)), PackingDevice()
    packing = CudaPrimitives(device)
    packing.begin_loading(csr)
    at_once = set(device.sources)
    packing.begin_loading(csr)
    assert all(times == 1 for times in device.sources.values())
    SELL.pack(csr, SELL.options(narrow=narrow), H200, packing)
    assert {name for name, _ in set(device.sources) - at_once} <= {"pack/store.cu"}
    assert len({name for name, _ in at_once}) == 6
    unused = {name for name, constants in at_once if device.sources[name, constants] == 1}
    assert unused == (set() if narrow else {"pack/values.cu"})


def test_few_copies_to_the_host_and_few_launches():
    rng = np.random.default_rng(1)
    csr = csr_of(from_lengths(rng.integers(0, 12, 3000), 900, seed=2))
    indices = np.concatenate([np.sort(row) for row in np.split(csr.indices, csr.indptr[1:-1])])
    _, device = plans(csr._replace(indices=indices))
    assert device.reads <= 3
    assert len(device.launches) <= 8, device.launches


# ---- other values ----------------------------------------------------------------------------------


@functools.cache
def spikes(dtype):
    """A plan with long rows, the GPU that packed it, and the slots of its entries by either device."""
    matrix = generate("spikes:300:2:290")
    plan, device = plans(csr_of(matrix)._replace(data=matrix.data.astype(dtype)))
    gpu = CudaPrimitives(device)
    return plan, gpu, {on: formats.find(plan.format).find_slots(plan, on) for on in (gpu, cpu)}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_values_are_coded_and_placed_as_on_the_cpu(kind, dtype):
    plan, gpu, slots = spikes(dtype)
    data = draw_values(kind, plan.nnz, dtype, np.random.default_rng(3))
    got, want = (SELL.values_from(plan, data, slots[on], on) for on in (gpu, cpu))
    assert got.coding is want.coding
    for mine, theirs in ((got.codes, want.codes), (got.table, want.table)):
        np.testing.assert_array_equal(bits(mine), bits(theirs))
    every = Coding.PLAIN, Coding.EQUAL, Coding.DICTIONARY
    for coding in (*every, *(coding for coding in Coding if may_code(coding, np.dtype(dtype)))):
        for codes in (1, 40, 256) if coding == Coding.DICTIONARY else (1,):
            into = [values_by_slots(coding, codes, 32 * len(plan.pattern.bases), dtype) for _ in range(2)]
            fits = [
                on.recode_values(data, slots[on], values) for on, values in zip((gpu, cpu), into, strict=True)
            ]
            assert fits == 2 * [holds(data, coding, codes)], (coding, codes)
            one, other = into
            for mine, theirs in ((one.codes, other.codes), (one.table, other.table)):
                np.testing.assert_array_equal(bits(mine), bits(theirs))


@pytest.mark.parametrize(
    ("kind", "dtype", "launches"),
    [
        ("any", np.float64, ["dasp_refill"]),
        ("equal", np.float64, ["dasp_holds"]),
        ("few", np.float64, ["dasp_value_facts", "dasp_refill"]),
        ("few", np.complex128, ["dasp_value_facts", "dasp_refill"]),
        ("bytes", np.float32, ["dasp_holds", "dasp_refill"]),
        ("singles", np.float64, ["dasp_holds", "dasp_refill"]),
    ],
)
def test_values_in_place_are_all_written_or_none(kind, dtype, launches):
    matrix, rng = generate("spikes:300:2:290"), np.random.default_rng(5)
    old = draw_values(kind, matrix.nnz, np.float64, rng).astype(dtype)
    if kind == "few":
        old = rng.choice(old[:100], matrix.nnz)
    plan, device = plans(csr_of(matrix)._replace(data=old), seed=1)
    on, values = CudaPrimitives(device), plan.values
    slots, stored = on.find_slots(plan), (values.codes, values.table)
    unfit = np.r_[np.pi, old[1:]].astype(dtype)  # a value more
    for data in (old[::-1].copy(), unfit, old + (kind in ("few", "equal")), unfit, old):
        before, fits = [array.copy() for array in stored], data is not unfit or kind == "any"
        device.launches.clear()
        device.reads = 0
        assert on.recode_values(data, slots, values) == fits
        assert device.launches == (launches if fits else launches[:1])
        assert device.reads == (kind != "any")
        if fits:
            np.testing.assert_array_equal(bits(cpu.unpack(frozen(plan))[2]), bits(data))
        else:
            for now, then in zip(stored, before, strict=True):
                np.testing.assert_array_equal(bits(now), bits(then))


def test_a_capture_writes_values_that_are_stored_as_they_are_alone(monkeypatch):
    monkeypatch.setattr(PackingDevice, "is_capturing", lambda device: True)
    rng = np.random.default_rng(6)
    for kind in ("any", "bytes"):
        csr = csr_of(generate("spikes:300:2:290"))
        data = draw_values(kind, len(csr.data), np.float64, rng)
        plan, device = plans(csr._replace(data=data))
        on = CudaPrimitives(device)
        slots = on.find_slots(plan)
        device.launches.clear()
        if kind == "any":
            assert on.recode_values(data[::-1].copy(), slots, plan.values)
        else:
            with pytest.raises(RuntimeError, match="while a graph was captured"):
                on.recode_values(data, slots, plan.values)
            assert not device.launches


def values_by_slots(coding, codes, slots, dtype):
    """Values of a plan in a coding, all 0, with a table of so many if there is one."""
    table = {Coding.DICTIONARY: codes, Coding.EQUAL: 1}.get(coding, 0)
    stored = np.zeros(0 if coding == Coding.EQUAL else slots, code_type(coding, np.dtype(dtype)))
    return Values(coding, stored, np.zeros(table, dtype))
