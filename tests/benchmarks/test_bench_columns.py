"""The benchmark of several columns: rows, verified, and their tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bench import columns
from tests.benchmarks.test_bench import matrix


def test_rows_on_the_cpu_are_verified_and_make_tables(monkeypatch):
    monkeypatch.setattr(columns, "SAMPLES_CPU", 1)
    subject = columns.Subject(matrix(rows=75), "cpu")
    rows = [
        {"matrix": "random", **subject.measure(k, order), **columns.known_columns("cpu", 1e10)}
        for k in (4, 8)
        for order in "CF"
    ]
    assert all(row["verified"] == "yes" and row["best_baseline"] == "scipy" for row in rows)
    text = columns.report(rows)
    assert "| float64 | C | 4 | 1 |" in text
    slow = [{**row, "speedup_best": "0.5"} for row in rows]
    assert "random (4, least 0.500)" in columns.report(slow)


@pytest.mark.parametrize("k", [1, 8])
def test_a_wrong_product_is_seen(k):
    subject = columns.Subject(matrix(rows=75), "cpu")
    right = subject.planned @ subject.operand(k, "C")
    assert subject.worst(right) <= 1
    right[3, -1] += 1e-3
    assert subject.worst(right) > 1
    right[3, -1] = np.nan
    assert subject.worst(right) > 1
