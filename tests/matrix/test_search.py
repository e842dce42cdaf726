"""Policies that are timed: the choice follows the times, and what comes back multiplies."""

from __future__ import annotations

import numpy as np
import pytest

from dasp import Policy, SpMatrix, find_policy
from dasp.matrix import search as measure
from tests.support.gallery import from_lengths
from tests.support.planned import plan_of
from tests.support.reference import assert_close


def timed_by(monkeypatch, cost):
    """Let a function of the plan stand for the clock; return the plans that were timed."""
    seen = []

    def times(one, other, seconds):
        seen.append((one.plan, other.plan))
        return cost(one.plan), cost(other.plan)

    monkeypatch.setattr(measure, "times", times)
    return seen


def most_steps(plan):
    return int((plan.pattern.headers[:, 3] & 4095).max(initial=0))


MATRIX = from_lengths(np.random.default_rng(0).integers(1, 90, 400), 500)


def test_the_fastest_layout_wins(monkeypatch):
    timed_by(monkeypatch, lambda plan: 1.0 if plan.format == "sell" else 2.0)
    assert find_policy(MATRIX, device="cpu").format_for((1, 1)).name == "sell"
    timed_by(monkeypatch, lambda plan: 2.0 if plan.format == "sell" else 1.0)
    assert find_policy(MATRIX, device="cpu").format_for((1, 1)).name == "dasp"


def test_window_and_steps_are_found(monkeypatch):
    seen = timed_by(monkeypatch, lambda plan: abs(most_steps(plan) - 16) + 100 * len(plan.pattern.rows) + 1)
    best = find_policy(MATRIX, device="cpu", format="sell")
    plan = plan_of(MATRIX, best)
    assert (best.steps, len(plan.pattern.rows)) == (16, 0)
    assert len({most_steps(other) for _, other in seen}) > 2
    seen = timed_by(monkeypatch, lambda plan: 1.0 + (len(plan.pattern.rows) == 0))
    assert len(plan_of(MATRIX, find_policy(MATRIX, device="cpu", format="sell")).pattern.rows)


def test_equal_times_keep_the_default(monkeypatch):
    timed_by(monkeypatch, lambda plan: 1.0)
    assert find_policy(MATRIX, device="cpu") == Policy()


def test_choices_that_are_made_hold(monkeypatch):
    seen = timed_by(monkeypatch, lambda plan: float(len(seen) < 3) + 1)
    best = find_policy(MATRIX, device="cpu", format="sell", steps=5, narrow=False)
    assert (best.format, best.steps, best.narrow) == ("sell", 5, False)
    assert all(most_steps(plan) <= 5 for pair in seen for plan in pair)


@pytest.mark.parametrize("matrix", [MATRIX, from_lengths([0] * 9, 5), from_lengths([], 5)])
def test_any_matrix_can_be_measured(matrix):
    best = find_policy(matrix, device="cpu", seconds=0.001)
    x = np.random.default_rng(1).standard_normal(matrix.shape[1])
    assert_close(SpMatrix.from_scipy(matrix, policy=best, device="cpu") @ x, matrix, x)


@pytest.mark.cuda
def test_a_gpu_is_measured_too():
    best = find_policy(MATRIX, device="cuda")
    x = np.random.default_rng(1).standard_normal(500)
    import cupy

    planned = SpMatrix.from_scipy(MATRIX, policy=best, device="cuda")
    assert_close((planned @ cupy.asarray(x)).get(), MATRIX, x)
