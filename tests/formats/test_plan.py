"""What a plan holds: every entry once, every row in one category, and the invariants of each part."""

from __future__ import annotations

import dataclasses
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dasp import Policy, formats
from dasp.formats.csr import cpu as ordering
from dasp.formats.dasp.pattern import LONG_UNIT, TILE, TILE_COLUMNS, TILE_ROWS
from dasp.formats.plan import PAD, Plan, arrays_of
from tests.support.gallery import GALLERY, MILLION, from_lengths, matrices
from tests.support.planned import Tuned, plan_of, widened
from tests.support.planned import unpacked as csr_of
from tests.support.reference import assert_same_entries

pytestmark = pytest.mark.slow

tiled = st.builds(
    Tuned,
    st.just("dasp"),
    long_row=st.sampled_from([4, 20, 256, 100_000]),
    fill=st.sampled_from([0.01, 0.5, 0.75, 1.0]),
    segment=st.sampled_from([64, 128, 1024]),
    row_blocks_2=st.sampled_from([0, 20]),
    row_blocks_4=st.sampled_from([20, 400_000]),
)
sliced = st.builds(
    Tuned,
    st.just("sell"),
    steps=st.sampled_from([None, 1, 3, 8, 4095]),
    window=st.sampled_from([None, 0, 8, 33, 10**6]),
    narrow=st.booleans(),
    mma=st.booleans(),
)
policies = tiled | sliced


def unpacked(plan: Plan) -> csr_array:
    indptr, indices, data = csr_of(plan)
    return csr_array((data, indices, indptr), shape=plan.shape)


@pytest.mark.parametrize("name", GALLERY)
def test_a_plan_gives_its_matrix_back(name):
    plan = plan_of(GALLERY[name])
    assert_same_entries(unpacked(plan), GALLERY[name])
    assert plan.nnz == GALLERY[name].nnz


def test_a_plan_gives_a_row_of_a_million_back():
    assert_same_entries(unpacked(plan_of(MILLION)), MILLION)


@given(matrices(), policies)
def test_any_plan_gives_its_matrix_back(matrix, policy):
    assert_same_entries(unpacked(plan_of(matrix, policy)), matrix)


@settings(max_examples=25)
@given(matrices())
def test_wide_types_hold_the_same_matrix(matrix):
    # A matrix with so many columns needs 64 bits for each; its plan is the narrow one, widened.
    wide = csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], 2**31 + 1))
    for policy in (Policy.dasp(), Tuned("sell", window=8)):
        plan, narrow = plan_of(wide, policy), widened(plan_of(matrix, policy))
        assert plan.pattern.index_dtype == np.int64
        for one, other in zip(arrays_of(plan.pattern), arrays_of(narrow.pattern), strict=True):
            if one.dtype != np.int32:  # offsets into so few slots need no more
                np.testing.assert_array_equal(one, other, strict=True)
        assert_same_entries(unpacked(plan), wide)
        assert_same_entries(unpacked(narrow), matrix)


@pytest.mark.parametrize(
    "ranges", [[(0, 5)], [(2, 5), (0, 2)]], ids=["at the end", "before another thread's"]
)
def test_an_empty_row_writes_no_column(ranges):
    rng, lengths = np.random.default_rng(0), (40, 0, 257, 3, 0)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(0, 2**31, indptr[-1])  # too large for the sort in registers
    columns, order = np.full(len(indices) + 1, 7), np.zeros(len(indices) + 1, np.int32)
    words, places = (
        np.empty((2, 257), np.uint64),
        np.empty((ordering.MOST_DIGITS, ordering.DIGITS), np.uint64),
    )
    for begin, end in ranges:
        ordering._sort_rows(indptr, indices, 2**31, columns[:-1], order[:-1], *words, places, begin, end)
    assert columns[-1] == 7
    for first, stop in pairwise(indptr):
        np.testing.assert_array_equal(columns[first:stop], np.sort(indices[first:stop]))
    np.testing.assert_array_equal(indices[order[:-1]], columns[:-1])


@given(matrices(), tiled)
def test_every_row_is_in_one_category(matrix, policy):
    plan = plan_of(matrix, policy)
    pattern, long_row = plan.pattern, policy.chosen.long_row
    parts = [pattern.long.rows, pattern.medium.rows, pattern.short.rows, pattern.empty_rows]
    rows = np.concatenate([part[part != PAD] for part in parts])
    np.testing.assert_array_equal(np.sort(rows), np.arange(matrix.shape[0]))
    lengths = np.diff(matrix.indptr)
    assert (lengths[pattern.long.rows] > long_row).all()
    medium = lengths[pattern.medium.rows[pattern.medium.rows != PAD]]
    assert ((medium > 4) & (medium <= long_row)).all()


@given(matrices(), tiled)
def test_long_rows_are_whole_groups_with_pads_last(matrix, policy):
    plan = plan_of(matrix, policy)
    part, values = plan.pattern.long, plan.values.long
    assert not (part.offsets % LONG_UNIT).any()
    lengths = np.diff(matrix.indptr)[part.rows]
    for row, (begin, end) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True)):
        assert end - begin - lengths[row] in range(LONG_UNIT)
        assert (part.columns[begin : begin + lengths[row]] >= 0).all()
        assert (part.columns[begin + lengths[row] : end] == PAD).all()
        assert not values[begin + lengths[row] : end].any()
    segments = -(-np.diff(part.offsets) // part.segment)
    np.testing.assert_array_equal(np.diff(part.segment_offsets), segments)
    np.testing.assert_array_equal(part.segment_rows, np.repeat(np.arange(len(part.rows)), segments))


@given(matrices(), tiled)
def test_medium_rows_are_sorted_and_cut_at_the_first_emptier_tile(matrix, policy):
    plan = plan_of(matrix, policy)
    part, least = plan.pattern.medium, policy.chosen.fill * TILE
    rows = part.rows[part.rows != PAD]
    lengths = np.diff(matrix.indptr)[rows]
    assert (np.diff(lengths) <= 0).all()
    assert (np.diff(rows)[np.diff(lengths) == 0] > 0).all(), "equal lengths keep the caller's order"

    padded = np.zeros(len(part.rows), int)
    padded[: len(lengths)] = lengths
    filled = (part.regular.columns != PAD).reshape(-1, TILE)
    assert not plan.values.regular.reshape(-1, TILE)[~filled].any()
    np.testing.assert_array_equal(filled[:, -1], filled.all(axis=1))
    for block in range(len(part.regular.offsets) - 1):
        begin, end = part.regular.offsets[block : block + 2]
        assert (filled[begin:end].sum(axis=1) >= least).all()
        mine = padded[TILE_ROWS * block : TILE_ROWS * (block + 1)]
        in_next = np.clip(mine - TILE_COLUMNS * (end - begin), 0, TILE_COLUMNS).sum()
        assert in_next == 0 or in_next < least
        tails = np.diff(part.irregular.offsets)[TILE_ROWS * block : TILE_ROWS * (block + 1)]
        np.testing.assert_array_equal(tails, np.maximum(mine - TILE_COLUMNS * (end - begin), 0))


@given(matrices())
def test_short_rows_are_pieced_together(matrix):
    part = plan_of(matrix, Policy.dasp()).pattern.short
    lengths = np.diff(matrix.indptr)
    counts = [int((lengths == k).sum()) for k in range(5)]
    pairs = min(counts[1], counts[3])
    assert (part.pairs_13 + 15) // 16 == -(-pairs // 16)
    assert part.pairs_13 % 16 == part.pairs_22 % 16 == part.fours % 32 == 0
    assert part.singles == counts[1] - pairs
    # A left-over row of 3 has one pad; apart from that, and from filling up warps, no slot is lost.
    assert (part.columns != PAD).sum() == sum(k * counts[k] for k in range(5))
    assert len(part.columns) - part.entries <= (counts[3] - pairs) + 4 * (15 + 15 + 31) + 2
    assert len(part.rows) == 2 * (part.pairs_13 + part.pairs_22) + part.fours + part.singles


def test_the_papers_example_of_a_row_block():
    # Eight rows of 6: the first tile is full; the second would be half full, so 2 entries a row are left.
    part = plan_of(from_lengths(np.full(8, 6), 20), Policy.dasp()).pattern.medium
    assert part.regular.entries == 32
    assert part.irregular.entries == 16
    # Eight rows of 7: the second tile is 24/32 = 0.75 full and stays.
    part = plan_of(from_lengths(np.full(8, 7), 20), Policy.dasp()).pattern.medium
    assert part.regular.entries == 56
    assert len(part.regular.columns) == 64
    assert part.irregular.entries == 0


def test_slots_of_a_tile_are_row_major():
    matrix = from_lengths(np.full(8, 8), 50)
    columns = plan_of(matrix, Policy.dasp()).pattern.medium.regular.columns.reshape(
        2, TILE_ROWS, TILE_COLUMNS
    )
    np.testing.assert_array_equal(columns.transpose(1, 0, 2).reshape(8, 8), matrix.indices.reshape(8, 8))


@pytest.mark.parametrize(("rows", "blocks"), [(59_989, 1), (59_990, 2), (399_999, 2), (400_000, 4)])
def test_row_blocks_of_a_warp(rows, blocks):
    assert plan_of(from_lengths(np.full(rows, 5), 8), Policy.dasp()).pattern.medium.blocks_per_warp == blocks


def test_a_plan_is_frozen():
    plan = plan_of(GALLERY["lengths around every threshold"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.shape = (1, 1)
    assert not any(array.flags.writeable for array in arrays_of(plan))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"mma": 1}, TypeError, "mma is 1"),
        ({"warps": 17}, ValueError, "warps is 17; it must be from 1 to 16"),
        ({"warps": 0}, ValueError, "warps is 0"),
        *(
            ({name: number}, ValueError, f"{name} is {number}; it must be from")
            for name in ("steps", "window", "warps")
            for number in (-1, 2**63, 2**70)
        ),
        ({"warps": 4.0}, TypeError, "warps is 4.0"),
    ],
)
def test_a_wrong_option_is_a_clear_error(arguments, error, words):
    with pytest.raises(error, match=words):
        formats.find("sell").options(**arguments)


def test_a_wrong_policy_is_a_clear_error():
    with pytest.raises(ValueError, match="format is 'ell'; 'auto' or 'sell' or 'dasp' is needed"):
        Policy(format="ell")
    for name in ("narrow", "mma"):
        with pytest.raises(TypeError, match=f"{name} is None; it must be True or False"):
            Policy(**{name: None})


@given(matrices(), policies)
def test_any_plan_holds_its_invariants(matrix, policy):
    plan = plan_of(matrix, policy)
    formats.find(plan.format).check(plan)
    formats.find(plan.format).check(widened(plan))


def test_planning_takes_linear_time():
    """Ten times the entries may take at most thirty times the time; a quadratic step takes a hundred."""
    times = []
    for rows in (20_000, 200_000):
        matrix = from_lengths(np.random.default_rng(0).geometric(1 / 12, rows), rows)
        plan_of(matrix)
        runs = []
        for _ in range(3):
            start = time.process_time()
            plan_of(matrix)
            runs.append(time.process_time() - start)
        times.append(min(runs))
    assert times[1] <= 30 * times[0]
