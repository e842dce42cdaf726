"""What slices hold: their order, cut and width, the coding of their values, and the bytes they take."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import csr_array, random_array

from dasp import Policy, SpMatrix, set_num_threads
from dasp.formats.cost import H200, MOST_STEPS, ZEN4
from dasp.formats.csr.matrix import Csr
from dasp.formats.plan import PAD, WARP, arrays_of
from dasp.formats.sell import choose
from dasp.formats.sell.cpu import primitives
from dasp.formats.sell.cpu.survey import rises_at
from dasp.formats.sell.cpu.values import choose_coding, encode
from dasp.formats.sell.cuda import vector as cuda
from dasp.formats.sell.pattern import CODE_TYPES, Coding, Width, unpack_shape
from dasp.models import generate
from dasp.runtime.cpu import threads
from dasp.runtime.dtypes import find_arithmetic_into
from dasp.runtime.sizes import HUGE_PAGE, new_array
from tests.simt import build
from tests.support.executors import EXECUTORS, multiply
from tests.support.gallery import EXAMPLES, from_lengths, matrices
from tests.support.planned import MODELS, Tuned, plan_of
from tests.support.reference import assert_close
from tests.support.slots import expand, view_deltas

pytestmark = pytest.mark.simt

PADS = {Width.BITS_8: 2**8 - 1, Width.BITS_16: 2**16 - 1, Width.BITS_32: 2**32 - 1}


def slices_of(matrix: csr_array, *, machine: str = "gpu", **choices: object) -> SimpleNamespace:
    """The plan of a matrix in slices, with the fields of its pattern and values as its own."""
    plan = plan_of(matrix, Tuned("sell", **choices), machine=machine)
    return SimpleNamespace(plan=plan, **vars(plan.pattern), **vars(plan.values))


def defines_of(matrix: csr_array, policy: Policy) -> dict[str, str]:
    plan = plan_of(matrix, policy)
    return cuda.define_constants(plan, find_arithmetic_into(*3 * [plan.dtype]))


def unpack(part: SimpleNamespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row, the column and the value of every slot."""
    return expand(part.plan)


def code_values(values: np.ndarray) -> tuple[Coding, np.ndarray, np.ndarray]:
    """The coding that is chosen for some values, its table and their codes."""
    coding = choose_coding(values)[0] if len(values) else Coding.PLAIN
    codes, table = encode(values, coding)
    return coding, table, codes


def headers_of(part: SimpleNamespace) -> list[dict[str, int]]:
    """The headers of a slice part in words."""
    steps, full, shift, width = unpack_shape(part.headers[:, 3].astype(int))
    columns = {
        "first_step": part.headers[:, 0],
        "first": part.headers[:, 1],
        "first_block": part.headers[:, 2],
        "steps": steps,
        "full": full,
        "lanes": 1 << shift,
        "width": width,
    }
    return [dict(zip(columns, map(int, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def sorted_entries(matrix: csr_array, row: int) -> list[tuple[int, float]]:
    """A row's columns and values by rising column; equal columns keep the caller's order."""
    begin, end = matrix.indptr[row : row + 2]
    order = np.argsort(matrix.indices[begin:end], kind="stable")
    return list(zip(matrix.indices[begin:end][order], matrix.data[begin:end][order], strict=True))


def owners(part: SimpleNamespace, header: dict[str, int], place: int) -> list[int]:
    """The caller's row of each row of a slice, fewer than it has room for if rows run out."""
    if place < part.segments:
        return [int(part.long_rows[part.segment_rows[header["first"]]])]
    rows = part.rows if len(part.rows) else np.arange(part.positions)
    return [int(row) for row in rows[header["first"] : header["first"] + WARP // header["lanes"]]]


choices = st.fixed_dictionaries(
    {
        "steps": st.sampled_from([1, 2, 3, 8, 32]),
        "window": st.sampled_from([0, 1, 7, 32, 50, 10**6]),
        "narrow": st.booleans(),
    }
)


@given(matrices(), choices)
def test_every_slot_holds_the_entry_that_the_layout_puts_there(matrix, choice):
    part = slices_of(matrix, **choice)
    _, columns, values = unpack(part)
    columns, values = columns.reshape(-1, WARP), values.reshape(-1, WARP)
    delivered = dict.fromkeys(range(matrix.shape[0]), 0)
    for place, header in enumerate(headers_of(part)):
        rows = owners(part, header, place)
        begin, lanes = header["first_step"], header["lanes"]
        for r in range(WARP // lanes):
            mine = slice(r * lanes, (r + 1) * lanes)
            got_columns = columns[begin : begin + header["steps"], mine].ravel()
            got_values = values[begin : begin + header["steps"], mine].ravel()
            want = sorted_entries(matrix, rows[r])[delivered[rows[r]] :] if r < len(rows) else []
            want = want[: lanes * header["steps"]]
            np.testing.assert_array_equal(got_columns[: len(want)], [column for column, _ in want])
            np.testing.assert_array_equal(got_values[: len(want)], [value for _, value in want])
            assert (got_columns[len(want) :] == PAD).all()
            if r < len(rows):
                delivered[rows[r]] += len(want)
    assert list(delivered.values()) == list(np.diff(matrix.indptr))
    assert part.entries == matrix.nnz


@given(matrices(), choices)
def test_slices_follow_each_other_with_the_segments_first(matrix, choice):
    part = slices_of(matrix, **choice)
    headers, lengths = headers_of(part), np.diff(matrix.indptr)
    steps = blocks = position = 0
    for place, header in enumerate(headers):
        assert header["first_step"] == steps
        assert header["first_block"] == blocks
        steps += header["steps"]
        blocks += header["steps"] * [0, 1, 2, 4][header["width"]]
        if place < part.segments:
            assert header["lanes"] == WARP
            assert header["first"] == place
        else:
            assert header["first"] == position
            position += WARP // header["lanes"]
    assert (steps, WARP * blocks) == (len(part.bases), len(part.deltas))
    assert len(part.codes) == (0 if part.coding == Coding.EQUAL else WARP * steps)
    last = WARP // headers[-1]["lanes"] if len(headers) > part.segments else 0
    assert position - last < part.positions <= position or position == part.positions == 0

    longest = WARP * choice["steps"]
    np.testing.assert_array_equal(part.long_rows, np.flatnonzero(lengths > longest))
    np.testing.assert_array_equal(np.diff(part.segment_offsets), -(-lengths[part.long_rows] // longest))
    assert part.segment_offsets[-1] == part.segments
    np.testing.assert_array_equal(
        part.segment_rows, np.repeat(np.arange(len(part.long_rows)), np.diff(part.segment_offsets))
    )


@given(matrices(), choices)
def test_a_slice_has_as_few_lanes_and_steps_as_its_rows_allow(matrix, choice):
    part = slices_of(matrix, **choice)
    lengths, most = np.diff(matrix.indptr), choice["steps"]
    rows = part.rows if len(part.rows) else np.arange(part.positions)
    for header in headers_of(part)[part.segments :]:
        mine = lengths[rows[header["first"] : header["first"] + WARP // header["lanes"]]]
        assert header["steps"] == -(-mine.max() // header["lanes"]) <= most
        if header["lanes"] > 1:
            wider = lengths[rows[header["first"] : header["first"] + 2 * WARP // header["lanes"]]]
            assert wider.max() > most * header["lanes"] // 2, "half the lanes would have been enough"
        whole = len(mine) == WARP // header["lanes"]
        assert header["full"] == (mine.min() // header["lanes"] if whole else 0)


@given(matrices(), choices)
def test_columns_are_stored_as_narrow_as_they_fit(matrix, choice):
    part = slices_of(matrix, **choice)
    columns = unpack(part)[1].reshape(-1, WARP)
    for header in headers_of(part):
        steps = range(header["first_step"], header["first_step"] + header["steps"])
        spans = [0]
        for step in steps:
            stored = columns[step] != PAD
            assert part.bases[step] == columns[step][stored].min()
            spans.append(int(columns[step][stored].max() - part.bases[step]))
        width = header["width"]
        consecutive = header["lanes"] == 1 and header["full"] == header["steps"]
        consecutive &= all((columns[step] == part.bases[step] + np.arange(WARP)).all() for step in steps)
        if consecutive:
            assert width == Width.NONE
            continue
        narrowest = next(width for width, pad in PADS.items() if max(spans) < pad)
        assert width == narrowest
        deltas = view_deltas(part.deltas)[width - 1]
        first = WARP * header["first_block"] >> width - 1
        for step in steps:
            mine = deltas[first : first + WARP]
            np.testing.assert_array_equal(mine == PADS[width], columns[step] == PAD)
            first += WARP


@pytest.mark.parametrize(
    ("spread", "width"), [(1, 0), (2, 1), (8, 1), (9, 2), (2114, 2), (2115, 3), (10**8 // 2, 3)]
)
def test_the_width_of_a_slice_of_columns_so_far_apart(spread, width):
    # 31 * 8 = 248 < 255 <= 31 * 9; 31 * 2114 = 65,534 < 65,535 <= 31 * 2115.
    columns = spread * np.arange(32)
    matrix = csr_array((np.arange(32) + 0.5, (np.arange(32), columns)), shape=(32, columns[-1] + 1))
    part = slices_of(matrix)
    assert [header["width"] for header in headers_of(part)] == [width]
    np.testing.assert_array_equal(unpack(part)[1], columns)


@given(matrices(), choices)
def test_rows_are_sorted_inside_windows_and_leave_none(matrix, choice):
    part, window = slices_of(matrix, **choice), choice["window"]
    lengths = np.diff(matrix.indptr)
    rows = part.rows if len(part.rows) else np.arange(part.positions)
    short = np.flatnonzero(lengths <= WARP * choice["steps"])
    if window == 0:
        np.testing.assert_array_equal(rows, short)
        assert (len(part.rows) == 0) == (len(short) == len(lengths) or len(short) == 0)
        return
    keys = np.lexsort((short, -lengths[short], short // window))
    np.testing.assert_array_equal(rows, short[keys])


# ---- the coding of values -----------------------------------------------------------------------------


def bits_of(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def decoded(coding: Coding, table: np.ndarray, codes: np.ndarray, count: int, dtype) -> np.ndarray:
    if coding == Coding.EQUAL:
        assert len(codes) == 0
        return np.repeat(table, count)
    if coding == Coding.DICTIONARY:
        return table[codes]
    assert len(table) == 0
    return codes.astype(dtype)


def nan_with(payload: int) -> float:
    return float(np.array(0x7FF8_0000_0000_0000 + payload, np.uint64).view(np.float64))


SIGNALLING = float(np.array(0x7FF0_0000_0000_0001, np.uint64).view(np.float64))
LEAST_SINGLE = 2.0**-149
MANY = np.arange(300) / 4
"""More values than a dictionary holds; every one is a float32."""

VALUES = {
    "all bytes": (np.arange(-128.0, 128.0), Coding.BYTE),
    "0 and 1": (np.array([0.0, 1.0]), Coding.BYTE),
    "a byte and 128": (np.array([1.0, 128.0]), Coding.DICTIONARY),
    "a byte and -129": (np.array([1.0, -129.0]), Coding.DICTIONARY),
    "a byte and a half": (np.array([1.0, 0.5]), Coding.DICTIONARY),
    "a byte and -0.0": (np.array([1.0, -0.0]), Coding.DICTIONARY),
    "both zeros": (np.array([0.0, -0.0]), Coding.DICTIONARY),
    "a byte and NaN": (np.array([1.0, np.nan]), Coding.DICTIONARY),
    "NaNs": (np.array([np.nan, -np.nan, nan_with(1), nan_with(7), SIGNALLING]), Coding.DICTIONARY),
    "Inf": (np.array([np.inf, -np.inf, 3.0]), Coding.DICTIONARY),
    "256 values": (np.arange(256) + 0.1, Coding.DICTIONARY),
    "257 values": (np.arange(257) + 0.1, Coding.PLAIN),
    "257 singles": (np.arange(257) + 0.5, Coding.SINGLE),
    "singles to their limits": (
        np.append(MANY, [np.inf, -np.inf, -0.0, LEAST_SINGLE, 3 * LEAST_SINGLE, np.finfo(np.float32).max]),
        Coding.SINGLE,
    ),
    "singles and a NaN": (np.append(MANY / 3000, np.nan).astype(np.float32).astype(float), Coding.SINGLE),
    "below singles": (np.append(MANY, LEAST_SINGLE / 2), Coding.PLAIN),
    "beyond singles": (np.append(MANY, 1e39), Coding.PLAIN),
    "finer than singles": (np.append(MANY, 1 + 2.0**-24), Coding.PLAIN),
    "singles and a payload": (np.append(MANY, nan_with(7)), Coding.PLAIN),
    "singles and a signal": (np.append(MANY, SIGNALLING), Coding.PLAIN),
    "equal": (np.full(40, 0.1), Coding.EQUAL),
    "equal bytes": (np.full(40, 2.0), Coding.EQUAL),
    "equal NaNs": (np.full(40, nan_with(5)), Coding.EQUAL),
    "one": (np.array([-0.0]), Coding.EQUAL),
    "none": (np.zeros(0), Coding.PLAIN),
    "any": (np.random.default_rng(0).standard_normal(1000), Coding.PLAIN),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_narrowest_coding_that_keeps_every_bit(name):
    values, want = VALUES[name]
    coding, table, codes = code_values(values)
    assert coding is want
    assert codes.dtype == CODE_TYPES.get(coding, np.float64) or coding == Coding.EQUAL
    np.testing.assert_array_equal(bits_of(decoded(coding, table, codes, len(values), float)), bits_of(values))
    # The same through a plan: one entry to a row, in the caller's order.
    matrix = csr_array((values, np.zeros(len(values), int), np.arange(len(values) + 1)), (len(values), 1))
    part = slices_of(matrix, window=0)
    assert part.coding is want
    unpacked = unpack(part)
    np.testing.assert_array_equal(bits_of(unpacked[2][unpacked[1] != PAD]), bits_of(values))
    assert slices_of(matrix, narrow=False).coding is Coding.PLAIN


def test_float32_is_narrowed_too():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert code_values(values)[0] is Coding.PLAIN
    assert code_values(np.round(values))[0] is Coding.DICTIONARY  # -0.0 is no byte
    assert code_values(np.round(values) + np.float32(0))[0] is Coding.BYTE
    assert code_values(values[:256])[0] is Coding.DICTIONARY


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays.arrays(
            dtype, st.integers(0, 400), elements=arrays.from_dtype(np.dtype(dtype)), fill=st.nothing()
        )
    )
)
def test_any_values_come_back_bit_for_bit(values):
    coding, table, codes = code_values(values)
    np.testing.assert_array_equal(
        bits_of(decoded(coding, table, codes, len(values), values.dtype)), bits_of(values)
    )


# ---- choices ------------------------------------------------------------------------------------------


def window_of(lengths, n: int = 1000, steps: int = 32) -> int:
    return slices_of(from_lengths(lengths, n), steps=steps, narrow=False).choice.window


def test_equal_rows_stay_where_they_are():
    assert window_of(np.full(5000, 7)) == 0
    assert not len(slices_of(from_lengths(np.full(5000, 7), 100)).rows)


def test_ragged_rows_are_sorted():
    lengths = np.random.default_rng(3).permutation(np.repeat([1, 30], 2500))
    window = window_of(lengths)
    assert window > 0
    sliced = [slices_of(from_lengths(lengths, 1000), window=w) for w in (0, window)]
    assert len(sliced[1].bases) < 0.75 * len(sliced[0].bases)


def test_a_few_ragged_rows_are_not_worth_a_row_number_each():
    lengths = np.full(5000, 20)
    lengths[::1000] = 21
    assert window_of(lengths) == 0


def test_rows_in_order_of_length_need_no_window():
    assert window_of(np.sort(np.random.default_rng(1).integers(1, 40, 5000))[::-1]) == 0


@pytest.mark.parametrize(
    ("lengths", "row", "rises"),
    [
        ([0], 0, False),
        ([3, 3, 1, 2], 2, False),
        ([5, PAD, 5, PAD, 4], 2, False),
        ([5, 1, PAD, PAD, 2], 3, True),
        ([PAD, PAD, 2], 2, False),
        ([0, 1], 1, True),
    ],
)
def test_rows_that_get_longer_from_one_range_to_the_next_are_known(lengths, row, rises):
    assert rises_at(np.array(lengths, np.int32), row) is rises


@pytest.mark.parametrize("machine", ["gpu", "cpu"])
def test_rows_of_one_length_stay_where_they_are(machine):
    part = slices_of(from_lengths([4] * 3000, 5000), machine=machine)
    assert (len(part.rows), part.positions) == (0, 3000)


def test_no_chosen_window_makes_a_plan_much_larger_than_the_smallest():
    for spec in ("powerlaw:20000", "circuit:20000", "rmat:12", "markov:20000", "lp:1000:20000"):
        matrix = generate(spec)
        sizes = [nbytes(slices_of(matrix, window=w)) for w in (None, 0, 128, 512, 1024, 8192, 10**9)]
        assert sizes[0] <= 1.3 * min(sizes), spec


def test_blocks_are_large_where_neighbours_share_x():
    # Rows of a band of random columns gather the same sectors of x; rows of a stencil hardly do.
    assert slices_of(generate("band:60000"), steps=32).choice.warps == choose.MANY_WARPS
    assert slices_of(generate("poisson3d:40")).choice.warps == choose.SOME_WARPS
    assert slices_of(generate("poisson2d:20")).choice.warps == choose.FEW_WARPS


def test_a_cpu_sorts_all_rows_of_a_small_graph():
    matrix = generate("rmat:9")  # 512 rows of 0 to 218 entries
    part = slices_of(matrix, machine="cpu")
    assert WARP * len(part.bases) < 1.5 * matrix.nnz
    assert WARP * len(slices_of(matrix, machine="cpu", window=128).bases) > 3 * matrix.nnz


def test_a_cpu_sorts_away_pads_that_a_gpu_would_keep_and_never_over_all_rows():
    # Rows of a triangulation: 3 to 17 entries, every value equal, so that a pad is one byte for a GPU.
    matrix = generate("triangles:20000")
    gpu, cpu = (slices_of(matrix, machine=machine) for machine in ("gpu", "cpu"))
    assert len(cpu.bases) < len(gpu.bases)
    assert len(cpu.bases) * WARP < 1.05 * matrix.nnz
    for spec in ("powerlaw:20000", "short:50000", "rmat:15"):
        part = slices_of(generate(spec), machine="cpu")
        if len(part.rows):
            moved = np.abs(part.rows - np.arange(len(part.rows)))
            assert moved.max() < 8192, spec


def test_a_cpu_leaves_rows_where_they_are_if_x_is_far_and_neighbours_share_it():
    # 300,000 columns are more than a core's cache; each row reads 16 runs that its neighbours read too.
    rows = 40_000
    lengths = np.random.default_rng(0).integers(14, 17, rows)
    starts = np.repeat(np.arange(rows), lengths)
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix = csr_array((np.ones(len(starts)), (starts, starts + 16_000 * inside)), shape=(rows, 300_000))
    assert not len(slices_of(matrix, machine="cpu").rows)


def test_a_policy_chooses_for_its_device():
    matrix = generate("poisson2d:9")
    for device, machine in MODELS.items():
        assert slices_of(matrix, machine=device).choice.model == machine
    assert choose.choose_steps(10, ZEN4) == choose.choose_steps(10**9, ZEN4) == 128
    assert Policy().format_for((3, 3)).name == "sell"
    assert Policy.dasp().format_for((3, 3)).name == "dasp"


def test_more_entries_never_mean_fewer_steps():
    chosen = [choose.choose_steps(10**power, H200) for power in range(12)]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1] <= MOST_STEPS


def test_long_rows_that_are_alike_have_fewer_lanes():
    """One lane where there are many rows, two where there are fewer; not where some row is much longer."""

    def steps(rows, mean=80, longest=81, most=32, machine=H200, dtype="float64"):
        return choose.choose_long_steps(most, rows, mean * rows, longest, np.dtype(dtype), machine)

    least, (short, _, enough, _), (long, _, many, _), (of_two, _, some, share) = H200.long_slices
    assert [lanes for _, lanes, *_ in H200.long_slices] == [1, 1, 1, 2]
    assert steps(WARP * least[2], 13, least[0], most=8) == least[0] == 16
    assert steps(WARP * least[2] - 1, 13, least[0], most=8) == 8
    assert steps(WARP * many) == steps(10**6) == long
    assert steps(WARP * many - 1) == steps(WARP * some // 2) == of_two
    assert steps(WARP * some // 2 - 1) == steps(0) == 32
    assert steps(WARP * some // 2, mean=60, longest=80) == of_two
    assert steps(WARP * some // 2, mean=59, longest=80) == 32
    assert steps(WARP * some // 2, mean=59, longest=80, dtype="float16") == of_two
    assert share == 0.75
    assert steps(WARP * enough, 40, short) == short
    assert steps(WARP * enough - 1, 40, short) == 32
    assert steps(10**6, mean=32) == steps(10**6, longest=long + 1) == 32
    assert steps(10**6, most=128, machine=ZEN4) == 128


# ---- bytes --------------------------------------------------------------------------------------------


def nbytes(part: SimpleNamespace) -> int:
    return sum(array.nbytes for array in arrays_of(part.plan))


def test_a_plan_is_hardly_larger_than_csr_and_mostly_smaller():
    ratios = {}
    for spec in EXAMPLES.values():
        matrix = generate(spec)
        csr = 12 * matrix.nnz + 4 * (matrix.shape[0] + 1)
        ratios[spec] = nbytes(slices_of(matrix)) / csr
    assert all(ratio <= 1.25 for ratio in ratios.values()), ratios
    assert np.exp(np.mean(np.log(list(ratios.values())))) <= 0.9, ratios


def test_columns_too_far_apart_for_any_width_are_left_to_the_format_of_the_paper():
    columns = np.array([0, 2**33 - 1, 5, 2**33 - 1])
    matrix = csr_array((np.arange(4.0), columns, np.array([0, 2, 4])), shape=(2, 2**33))
    with pytest.raises(ValueError, match="format 'sell' cannot hold it; pass format='auto'"):
        slices_of(matrix)
    plan = plan_of(matrix)
    assert (plan.format, plan.nnz) == ("dasp", 4)
    edge = csr_array((np.arange(2.0), np.array([0, 2**32 - 2]), np.array([0, 2])), shape=(1, 2**32 - 1))
    part = slices_of(edge)
    np.testing.assert_array_equal(np.sort(unpack(part)[1])[-2:], [0, 2**32 - 2])


# ---- products -----------------------------------------------------------------------------------------

CODED = {
    Coding.PLAIN: lambda rng, count: rng.standard_normal(count),
    Coding.SINGLE: lambda rng, count: rng.standard_normal(count).astype(np.float32),
    Coding.BYTE: lambda rng, count: rng.integers(-128, 128, count),
    Coding.DICTIONARY: lambda rng, count: rng.integers(0, 40, count) / 3,
    Coding.EQUAL: lambda rng, count: np.full(count, -0.7),
}
FORMS = [(1, 0), (8, 128), (32, 10**6)]
"""Steps and windows: many lanes and segments; pads in the middle; one thread to a row."""

CODED_FORMS = [
    *((*form, coding) for form in FORMS[:2] for coding in CODED),
    *((*FORMS[2], coding) for coding in (Coding.PLAIN, Coding.DICTIONARY, Coding.EQUAL)),
]
"""Every coding where slices have segments, some where they have none."""


def coded_matrix(coding: Coding, dtype=np.float64) -> csr_array:
    """Rows of many lengths, so that there are pads everywhere; no row uses column 0."""
    lengths = np.random.default_rng(8).permutation(np.repeat([0, 1, 2, 3, 5, 8, 31, 33, 70, 300], 6))
    matrix = from_lengths(lengths, 400)
    matrix.indices[:] = np.maximum(matrix.indices, 1)
    matrix.data = CODED[coding](np.random.default_rng(9), matrix.nnz).astype(dtype)
    return matrix


def form_of(steps: int, window: int) -> Policy:
    return Tuned("sell", steps=steps, window=window, warps=4)


every_executor = pytest.mark.parametrize("executor", EXECUTORS)
every_form = pytest.mark.parametrize(("steps", "window"), FORMS)


@every_executor
@pytest.mark.parametrize(
    ("steps", "window", "types", "coding"),
    [
        *((steps, window, "dd", coding) for steps, window, coding in CODED_FORMS),
        *((8, 128, "ff", coding) for coding in (Coding.PLAIN, Coding.BYTE)),
        (8, 128, "fd", Coding.DICTIONARY),
    ],
)
def test_products_of_every_coding(executor, steps, window, coding, types):
    matrix = coded_matrix(coding, types[0])
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal(400).astype(types[1]), rng.standard_normal(60).astype(types[1])
    policy = form_of(steps, window)
    assert slices_of(matrix, steps=steps, window=window).coding is coding
    assert_close(multiply(executor, matrix, x, policy=policy), matrix, x)
    got = multiply(executor, matrix, x, policy=policy, y=y, alpha=-0.3, beta=2.5)
    assert_close(got, matrix, x, -0.3, 2.5, y)


@every_executor
@pytest.mark.parametrize(("steps", "window", "coding"), CODED_FORMS)
def test_pads_of_every_coding_read_no_x_and_mean_nothing(executor, steps, window, coding):
    matrix = coded_matrix(coding)
    x = np.random.default_rng(3).standard_normal(400)
    x[0] = np.nan
    assert np.isfinite(multiply(executor, matrix, x, policy=form_of(steps, window))).all()
    used = np.unique(matrix.indices)[:3]
    x[used] = np.nan, np.inf, -np.inf
    assert_close(multiply(executor, matrix, x, policy=form_of(steps, window)), matrix, x)


@every_executor
@every_form
@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_a_pad_whose_code_stands_for_inf_adds_nothing(executor, steps, window, special):
    x = np.random.default_rng(4).standard_normal(400)
    matrix = coded_matrix(Coding.DICTIONARY)
    matrix.sort_indices()
    # Code 0, which is also the code of pads, is of the least bits: negative numbers have the first one set.
    matrix.data[:] = -1 - matrix.data
    matrix.data[0] = special
    part = slices_of(matrix, steps=steps, window=window)
    assert not np.isfinite(part.table[0])
    got = multiply(executor, matrix, x, policy=form_of(steps, window))
    assert np.count_nonzero(~np.isfinite(got)) == 1
    assert_close(got, matrix, x)
    matrix.data[:] = special
    assert slices_of(matrix, steps=steps, window=window).coding is Coding.EQUAL
    got = multiply(executor, matrix, x, policy=form_of(steps, window))
    np.testing.assert_array_equal(np.isfinite(got), np.diff(matrix.indptr) == 0)


@every_executor
def test_subnormal_singles_of_a_double_matrix_keep_every_bit(executor):
    values = np.append(MANY, LEAST_SINGLE * np.arange(1, 30))
    matrix = csr_array((values, np.zeros(len(values), int), np.arange(len(values) + 1)), (len(values), 1))
    assert slices_of(matrix).coding is Coding.SINGLE
    got = multiply(executor, matrix, np.array([2.0**100]), policy=Policy(format="sell"))
    np.testing.assert_array_equal(got, values * 2.0**100)


@every_executor
def test_segments_of_many_slices_lie_by_their_first_columns(executor, monkeypatch):
    rng = np.random.default_rng(6)
    matrix = csr_array(random_array((40, 3000), density=0.3, random_state=rng))
    x = rng.standard_normal(3000)
    few = slices_of(matrix, steps=2)
    monkeypatch.setitem(MODELS, "gpu", replace(H200, wave_slices=100))
    many = slices_of(matrix, steps=2)
    assert len(few.headers) > 100
    firsts = [header["first"] for header in headers_of(many)]
    assert sorted(firsts) == [header["first"] for header in headers_of(few)] != firsts
    first_bases = many.bases[[header["first_step"] for header in headers_of(many)]]
    assert (np.diff(first_bases) >= 0).all()
    got = multiply(executor, matrix, x, policy=Tuned("sell", steps=2))
    assert_close(got, matrix, x)
    monkeypatch.undo()
    np.testing.assert_array_equal(multiply(executor, matrix, x, policy=Tuned("sell", steps=2)), got)


def with_parts(matrix: csr_array) -> csr_array:
    """The same entries, complex, none of which can be stored in fewer bits."""
    parts = np.random.default_rng(0).standard_normal((2, matrix.nnz))
    return csr_array((parts[0] + 1j * parts[1], matrix.indices, matrix.indptr), matrix.shape)


def flight(matrix: csr_array | str, **choices) -> int:
    """Steps in flight of the plan of a matrix, or of a model."""
    matrix = generate(matrix) if isinstance(matrix, str) else matrix
    return cuda.choose_in_flight(plan_of(matrix, Tuned("sell", **choices)))


def test_few_steps_are_in_flight_where_slices_take_turns_and_have_few():
    assert flight("poisson2d:600") == 3  # 11,250 slices of 5 steps, none of which is alone then
    assert flight("poisson3d:70") == 4  # 7 steps
    assert flight("short:300000") == 4  # 2.5 steps
    assert flight("poisson2d:300") == cuda.IN_FLIGHT  # a fourth of them
    assert flight("poisson2d9:900") == cuda.IN_FLIGHT  # 9 steps
    assert flight(with_parts(generate("poisson2d9:600"))) == 3  # 9 of 16 bytes


def test_blocks_of_slices_that_take_little_are_larger():
    """Where slices take turns, and launching a block takes as long as it runs."""

    def warps(steps: int, dtype: str) -> int:
        matrix = with_parts(from_lengths(np.full(9000 * WARP, steps), 400))
        matrix = matrix if dtype == "complex128" else matrix.real.astype(dtype)
        return int(slices_of(matrix).choice.warps)

    assert [warps(steps, "float64") for steps in (2, 4)] == [choose.SOME_WARPS, choose.FEW_WARPS]
    assert [warps(steps, "float32") for steps in (5, 7)] == [choose.SOME_WARPS, choose.FEW_WARPS]
    assert [warps(steps, "complex128") for steps in (1, 2)] == [choose.SOME_WARPS, choose.FEW_WARPS]


def test_large_blocks_pay_where_their_slices_share_what_they_gather():
    """A sector costs as much in a block of many slices as in one of few."""

    def warps(few: int, many: int) -> int:
        found = choose.SliceStatistics(20_000, 320_000, 320_000, 8000, 0, few, many)
        return choose.choose_warps(found, False, np.dtype(np.float64), 8, H200.far, H200)

    assert warps(200_000, 200_000) == choose.FEW_WARPS
    assert warps(200_000, 20_000) == choose.MANY_WARPS


def test_rows_are_sorted_among_a_few_where_y_leaves_the_cache():
    """A sort over all rows saves next to nothing more than one among 8,192, but scatters y."""

    def window(rows: int, dtype: str) -> int:
        tried = {8192: statistics(100 * rows), rows: statistics(100 * rows - 1)}
        kinds = np.dtype(dtype), np.dtype(dtype).itemsize
        return choose.choose_window(tried, rows, *kinds, H200.far, H200)

    def statistics(steps: int) -> choose.SliceStatistics:
        return choose.SliceStatistics(1, steps, steps, 0, 0, 0, 0)

    assert window(1_000_000, "float64") == 1_000_000
    assert window(2_000_000, "float64") == window(1_000_000, "complex128") == 8192


def test_rows_alone_stand_for_all_slices_where_segments_are_few():
    rows = choose.SliceStatistics(10, 75, 60, 40, 1, 2, 3)
    assert choose.add_segments(rows, 14, 100, 80, 25) == (14, 100, 80, 40, 1, 2, 3)
    assert choose.add_segments(rows, 14, 101, 80, 26) is None


def test_windows_are_tried_in_tiles_of_matrices_of_many_rows():
    windows, many = choose.WINDOWS, H200.sampled_rows
    assert choose.count_tiles((*windows, many), many, H200) == choose.TILES
    assert choose.count_tiles((*windows, many - 1), many - 1, H200) == 0
    assert choose.count_tiles((0, 100, many), many, H200) == 0  # no tile holds windows of 100 whole
    assert choose.count_tiles((), many, H200) == 0
    eager, least = replace(H200, sampled_rows=0), 2 * choose.TILES * choose.TILE_ROWS
    assert [choose.count_tiles(windows, rows, eager) for rows in (least - 1, least)] == [0, choose.TILES]
    assert choose.SliceStatistics(5, 9, 7, 4, 1, 2, 3).scale(3, 2) == (7, 13, 10, 4, 1, 2, 3)


@given(st.integers(1, 64), st.integers(0, 10_000))
def test_of_each_part_of_all_tiles_one_is_drawn(count, more):
    ends = [nth * (count + more) // count for nth in range(count + 1)]
    for nth in range(count):
        assert ends[nth] <= choose.draw_tile(nth, count, count + more) < ends[nth + 1]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=200),
    st.sampled_from((1, 3, 8, 40)),
    st.sampled_from(("gpu", "cpu")),
)
def test_no_sort_saves_more_than_is_thought(lengths, steps, machine):
    """By bytes of the plan alone, of rows as they are and of any order."""
    lengths, matrix = np.array(lengths), from_lengths(np.array(lengths), 100)
    plan, machine = slices_of(matrix, machine=machine, window=0, steps=steps), MODELS[machine]
    longest, entries, dtype = int(lengths.max()), int(lengths.sum()), matrix.dtype
    if entries == 0 or longest > WARP * steps:
        return
    saved = choose.bound_saving(len(lengths), entries, longest, steps, dtype, machine)
    of_slot = machine.slot + machine.value_byte * dtype.itemsize
    least = of_slot * entries + machine.slice * max(len(lengths), entries / steps) / WARP
    assert of_slot * WARP * len(plan.bases) + machine.slice * len(plan.headers) - least <= saved


def test_windows_are_tried_where_a_sort_may_save_more_than_it_costs():
    def tried(lengths: list[int], rows: int = 400_000, dtype: str = "float64") -> tuple[int, ...]:
        entries = rows * sum(lengths) // len(lengths)
        saved = choose.bound_saving(rows, entries, max(lengths), 32, np.dtype(dtype), H200)
        return choose.list_windows(saved, rows, entries, np.dtype(dtype), H200)

    assert tried([7] * 15 + [6]) == ()  # less than the numbers of rows take
    assert tried([7] * 3 + [5]) == (*choose.WINDOWS, 400_000)
    assert tried([27] * 9 + [18]) == (*choose.WINDOWS, 400_000)
    assert tried([200] * 9 + [198]) == ()  # less than a hundredth
    assert tried([4, 3, 2], rows=2_000_000) == choose.WINDOWS  # not all rows: y would be scattered
    assert tried([8, 3, 2], rows=2_000_000) == (*choose.WINDOWS, 2_000_000)
    assert choose.list_windows(np.inf, 2_000_000, 1, np.dtype(float), H200)[-1] == 2_000_000


def test_long_slices_among_those_that_take_turns_have_all_steps_in_flight():
    lengths = np.full(9000 * WARP, 5)
    few = from_lengths(lengths, 400)
    assert flight(few) == 3
    lengths[:2] = 40  # one slice more, of several lanes a row
    assert flight(from_lengths(lengths, 400)) == cuda.IN_FLIGHT


def test_fewer_steps_are_in_flight_where_all_slices_run_at_once_then():
    def equal(slices: int, steps: int) -> csr_array:
        return with_parts(from_lengths(np.full(slices * WARP, steps), 400))

    plan = plan_of(equal(10, 6), Tuned("sell", warps=4))
    fewer = cuda.FEWER_IN_FLIGHT[0][1]
    most, more = (cuda.estimate_slices_at_once(plan, n) for n in (cuda.IN_FLIGHT, fewer))
    assert (most, more) == (132 * 24, 132 * 32)  # 80 and 64 registers
    chosen = [flight(equal(n, 6), warps=4) for n in (most, most + 1, more, more + 1)]
    assert chosen == [cuda.IN_FLIGHT, fewer, fewer, cuda.IN_FLIGHT]
    lengths = np.full((most + 1) * WARP, 6)
    lengths[0] = 5000
    assert flight(with_parts(from_lengths(lengths, 9000)), warps=4) == cuda.IN_FLIGHT  # a row that is cut
    assert flight(with_parts(generate("stencil27:60"))) == fewer  # in two turns of three
    assert flight("stencil27:60") == cuda.IN_FLIGHT


@pytest.mark.parametrize(
    ("dtype", "warps"), [(np.float64, choose.MANY_WARPS), (np.complex128, choose.SOME_WARPS)]
)
def test_blocks_of_complex_numbers_are_smaller(dtype, warps):
    matrix = generate("band:100000")
    matrix = with_parts(matrix) if np.dtype(dtype).kind == "c" else matrix
    assert slices_of(matrix).choice.warps == warps


@pytest.mark.parametrize("executor", EXECUTORS[1:])
@pytest.mark.parametrize("in_flight", [3, 4, 8])
def test_products_with_more_steps_in_flight(executor, in_flight, monkeypatch):
    """Of slices with 0 to 16 steps. Other tests have two in flight in the emulator, and eight on a GPU."""
    monkeypatch.setattr(build, "most_in_flight", in_flight)
    monkeypatch.setattr(cuda, "IN_FLIGHT", in_flight)
    matrix = from_lengths(np.repeat(np.arange(17), 32), 400)
    matrix.indices[:] = np.maximum(matrix.indices, 1)
    x = np.random.default_rng(5).standard_normal(400)
    x[0] = np.nan  # which only pads could read
    got = multiply(executor, matrix, x, policy=Tuned("sell", steps=32, window=0, warps=4))
    assert_close(got, matrix, x)


@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_products_of_plans_of_which_a_share_stays_in_the_cache(executor, monkeypatch):
    """The same bits: the share says where they come from."""
    matrix = coded_matrix(Coding.DICTIONARY)
    x, policy = np.random.default_rng(6).standard_normal(400), Tuned("sell", warps=4)
    plain = multiply(executor, matrix, x, policy=policy)
    assert_close(plain, matrix, x)
    assert "DASP_KEEP" not in defines_of(matrix, policy)  # it is small
    monkeypatch.setitem(MODELS, "gpu", replace(H200, kept_plans=(0, 1 << 40)))
    share = defines_of(matrix, policy)["DASP_KEEP"]
    assert share == "1.0f"
    np.testing.assert_array_equal(multiply(executor, matrix, x, policy=policy), plain)
    monkeypatch.setitem(MODELS, "gpu", replace(H200, kept_plans=(0, 1 << 40), kept_bytes=8_000))
    assert defines_of(matrix, policy)["DASP_KEEP"] != share
    np.testing.assert_array_equal(multiply(executor, matrix, x, policy=policy), plain)


def test_plans_of_which_a_share_stays_in_the_cache():
    """Of small ones nothing, then all, then what there is room for beside x and y; of the largest nothing."""

    def share(nbytes, rows=0):
        pattern = SimpleNamespace(choice=SimpleNamespace(model=H200))
        sizes = {"nbytes": nbytes, "shape": (rows, rows), "dtype": np.dtype(np.float64)}
        return cuda.choose_kept_share(SimpleNamespace(pattern=pattern, **sizes))

    (least, most), room = H200.kept_plans, H200.kept_bytes
    assert [share(n) for n in (0, least - 1, least, room)] == [0.0, 0.0, 1.0, 1.0]
    assert [share(n) for n in (2 * room, 4 * room, most + 1)] == [0.5, 0.25, 0.0]
    assert [share(2 * room, rows) for rows in (room // 32, room // 16, room)] == [0.25, 0.0, 0.0]


@every_executor
def test_a_very_long_row_has_longer_segments_and_not_more(executor):
    matrix = from_lengths([100_000, 40, 300, 40_000, 5], 120_000)
    part = slices_of(matrix)
    most = WARP * choose.choose_steps(matrix.nnz, H200)
    assert list(part.long_rows) == [0, 2, 3]
    segments = np.diff(part.segment_offsets)
    np.testing.assert_array_equal(
        segments, [choose.MOST_SEGMENTS - 3, -(-300 // most), choose.MOST_SEGMENTS - 3]
    )
    x = np.random.default_rng(7).standard_normal(120_000)
    assert_close(multiply(executor, matrix, x, policy=Policy(format="sell")), matrix, x)


PORTABLE = """
import pickle
import sys
import numpy as np
from dasp.formats.sell.cpu.product import SellCpuProduct

plan = pickle.load(open(sys.argv[1], "rb"))
y = np.full(plan.shape[0], np.nan)
SellCpuProduct(plan).multiply(np.array([2.0]), y, 1.0, 0.0)
print(plan.values.codes.dtype, *y)
"""


def test_halves_need_no_instruction_of_their_own(tmp_path):
    values = np.append(np.arange(-300, 300) / 4, [np.inf, -np.inf, -0.0, 2.0**-24, 65504.0, -3 * 2.0**-24])
    matrix = csr_array((values, np.zeros(len(values), int), np.arange(len(values) + 1)), (len(values), 1))
    A = SpMatrix.from_scipy(matrix, policy=Policy(format="sell"), device="cpu").astype("float16")
    (tmp_path / "plan").write_bytes(pickle.dumps(A.plan))
    portable = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PORTABLE, str(tmp_path / "plan")]
    answer = subprocess.run(command, env=os.environ | portable, capture_output=True, text=True, timeout=300)
    kind, *got = answer.stdout.split()
    assert kind == "float16", answer.stderr
    np.testing.assert_array_equal(np.array(got, float), 2 * values)


@every_executor
@settings(max_examples=25)
@given(matrix=matrices(), coding=st.sampled_from(list(CODED)), choice=choices)
def test_any_slices_multiply(executor, matrix, coding, choice):
    matrix.data = CODED[coding](np.random.default_rng(1), matrix.nnz).astype(float)
    x = np.random.default_rng(5).standard_normal(matrix.shape[1])
    policy = Tuned("sell", warps=4, **choice)
    assert_close(multiply(executor, matrix, x, policy=policy), matrix, x)


def test_threads_say_that_values_are_too_many_for_a_dictionary(monkeypatch):
    values = np.arange(300) + 0.1
    monkeypatch.setattr(threads, "SERIAL_ENTRIES", 100)
    try:
        set_num_threads(3)
        for many in (values, np.repeat(values, 3), np.r_[np.repeat(0.5, 4000), values]):
            assert choose_coding(many) == (Coding.PLAIN, None)
    finally:
        set_num_threads(None)


def test_duplicates_and_unsorted_columns_come_out_sorted_with_each_in_its_order():
    matrix = csr_array(
        (np.arange(1.0, 9.0), np.array([5, 2, 5, 0, 2, 5, 0, 1]), np.array([0, 6, 8])), shape=(2, 6)
    )
    before = matrix.copy()
    rows, columns, values = unpack(slices_of(matrix))
    mine = [list(zip(columns[rows == r], values[rows == r], strict=True)) for r in range(2)]
    kept = [[entry for entry in row if entry[0] != PAD] for row in mine]
    assert kept == [[(0, 4), (2, 2), (2, 5), (5, 1), (5, 3), (5, 6)], [(0, 7), (1, 8)]]
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(matrix, name), getattr(before, name))
    assert all(left[0] <= right[0] for row in kept for left, right in itertools.pairwise(row))


def sorted_as_by_numpy(m: int, n: int, indptr: np.ndarray, indices: np.ndarray) -> None:
    """Sort the columns of a matrix, and compare with a stable sort by NumPy."""
    matrix = Csr((m, n), indptr, indices, np.arange(indptr[-1]) * 1.0)
    came = indices.copy()
    got, order = primitives.sort_columns(matrix)
    want = np.lexsort((indices, np.repeat(np.arange(m), np.diff(indptr))))
    np.testing.assert_array_equal(order, want)
    np.testing.assert_array_equal(got.indices, came[want])
    np.testing.assert_array_equal(indices, came)
    assert (got.indices.dtype, order.dtype) == (came.dtype, np.int32)


@pytest.mark.parametrize(
    ("bits", "dtype"), [*itertools.product([0, 1, 7, 8, 9, 16, 17, 31], ["int32", "int64"]), (40, "int64")]
)
def test_rows_of_any_length_are_sorted_by_column_and_stably(bits, dtype):
    rng = np.random.default_rng(bits)
    lengths = np.concatenate([rng.permutation([0, 0, 1, 2, 17, 63, 64, 65, 66, 512, 513, 1100]), [1000]])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
    indices = rng.integers(0, 1 << bits, indptr[-1]).astype(dtype)
    indices[-1000:].sort()  # a long row with nothing to do
    indices[0] = (1 << bits) - 1
    sorted_as_by_numpy(len(lengths), 1 << bits, indptr, indices)


def test_large_arrays_take_whole_huge_pages():
    for count in (0, 5, HUGE_PAGE // 8 - 1, HUGE_PAGE // 8, HUGE_PAGE + 3):
        array = new_array(count, np.float64)
        assert (array.shape, array.dtype, array.flags.writeable) == ((count,), np.float64, True)
        assert array.nbytes < HUGE_PAGE or array.ctypes.data % HUGE_PAGE == 0
        array[:] = 1.0


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63, 81, 255, 256, 257])
def test_what_vectors_write_behind_a_row_is_written_again(count):
    rng = np.random.default_rng(count)
    lengths = np.array([count, 0, 3, count, 1, 200, 0])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    indices = np.concatenate([rng.permutation(1000)[:length] for length in lengths]).astype("int32")
    sorted_as_by_numpy(len(lengths), 1000, indptr, indices)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bits", [10, 13, 18, 22])
def test_rows_of_distinct_columns_are_sorted_near_and_far_apart(monkeypatch, bits, dtype, count):
    monkeypatch.setattr(threads, "SERIAL_ENTRIES", 100)
    rng = np.random.default_rng(bits)
    lengths = rng.permutation([*range(70), *range(0, 1000, 37), 1 << 10])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
    rows = [rng.choice(1 << bits, length, replace=False) for length in lengths]
    again = rng.random(len(rows)) < 0.2  # rows whose first column occurs twice
    for row in (row for row, twice in zip(rows, again, strict=True) if twice and len(row)):
        row[-1] = row[0]
    try:
        set_num_threads(count)
        sorted_as_by_numpy(len(rows), 1 << bits, indptr, np.concatenate(rows).astype(dtype))
    finally:
        set_num_threads(None)


@pytest.mark.parametrize("late", [0, 1, 250, 251])
def test_threads_find_the_values_of_a_dictionary_in_the_order_of_their_bits(monkeypatch, late):
    rng = np.random.default_rng(late)
    early = rng.integers(0, 5, 4000) + 0.5
    values = np.concatenate([early, rng.permutation(np.r_[early, np.repeat(np.arange(late) + 9.5, 7)])])
    monkeypatch.setattr(threads, "SERIAL_ENTRIES", 100)
    try:
        set_num_threads(3)
        codes, table = encode(values, Coding.DICTIONARY)
        coding, coded = choose_coding(values)
    finally:
        set_num_threads(None)
    assert coding is Coding.DICTIONARY
    assert len(coded.table) == 5 + late
    np.testing.assert_array_equal(table, np.unique(values))
    np.testing.assert_array_equal(table[codes], values)
