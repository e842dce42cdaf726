"""Rows that several warps share: blocks may start in any order if they draw tickets, and must not without."""

from __future__ import annotations

import numpy as np
import pytest

from dasp.runtime.dtypes import find_arithmetic
from tests.simt import SimtError
from tests.support.executors import emulate
from tests.support.gallery import from_lengths
from tests.support.planned import Tuned, plan_of
from tests.support.reference import assert_close

pytestmark = pytest.mark.simt

POLICIES = {"sell": Tuned("sell", steps=2), "dasp": Tuned("dasp", segment=64)}
SEEDS = range(10)


@pytest.fixture(params=POLICIES)
def split(request):
    """A matrix whose rows of every length have many segments, and its plan."""
    matrix = from_lengths([2000, 3, 700, 129, 64, 65, 1300] + [5] * 40, 300)
    return matrix, plan_of(matrix, POLICIES[request.param])


def product(matrix, plan, dtype=np.float64, **how):
    x = np.random.default_rng(1).standard_normal(matrix.shape[1]).astype(dtype)
    y = np.full(matrix.shape[0], np.nan, np.result_type(matrix.dtype, dtype))
    emulate(plan, x, y, **how)
    assert_close(y, matrix, x)
    return y.view(f"u{y.itemsize}").tolist()


def test_with_tickets_blocks_start_in_any_order(split):
    bits = product(*split, tickets=True)
    for seed in SEEDS:
        assert product(*split, tickets=True, seed=seed) == bits


def test_in_order_no_tickets_are_needed(split):
    bits = product(*split, tickets=True)
    for seed in SEEDS:
        assert product(*split, tickets=False, seed=seed, blocks_in_order=True) == bits


def test_without_tickets_an_order_exists_that_never_ends(split):
    found = []
    for seed in SEEDS:
        try:
            product(*split, tickets=False, seed=seed)
        except SimtError as error:
            found.append(error.kind)
    assert set(found) == {"deadlock"}


def test_plans_with_segments_draw_tickets_and_others_do_not(split):
    from dasp import formats
    from dasp.formats import kernel_cuda as cuda

    _, plan = split
    whole = plan_of(from_lengths([5] * 40, 300), POLICIES["sell"])
    for of, draws in ((plan, "1"), (whole, "0")):
        kernel = formats.find(of.format).products["cuda"]().kernel
        constants = cuda.define_constants(kernel, of, find_arithmetic(of.dtype, of.dtype))
        assert constants["DASP_TICKETS"] == draws
