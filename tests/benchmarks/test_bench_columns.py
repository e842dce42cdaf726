"""The benchmark of several columns: cuSPARSE's SpMM through a stand-in library, rows, and their tables."""

from __future__ import annotations

import ctypes
import types

import numpy as np
import pytest

from benchmarks.bench import baselines_cuda, columns
from tests.benchmarks.test_bench import cupy_stand_in, matrix, open_stand_in, reference_of, stand_in_path

__all__ = ["cupy_stand_in", "stand_in_path"]


class Dense:
    """A NumPy matrix that looks like CuPy's."""

    def __init__(self, values):
        self.values = values
        self.data = types.SimpleNamespace(ptr=values.ctypes.data)
        self.shape, self.dtype, self.flags = values.shape, values.dtype, values.flags
        self.view = values.view


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_spmm_setting_passes_its_arguments_in_order(stand_in_path, cupy_stand_in, dtype, order):
    library, opened = open_stand_in(stand_in_path, 12801)
    csr = matrix(rows=75, dtype=dtype)
    x = np.asarray(np.random.default_rng(4).standard_normal((50, 3)).astype(dtype), order=order)
    y = np.empty((75, 3), dtype, order=order)
    device = baselines_cuda.Device(csr, x[:, 0])
    for name in columns.SETTINGS:
        made = columns.spmm_candidate(name, opened, device, Dense(x), Dense(y))
        made.poison()
        made.run()
        for j in range(3):
            assert columns.check_rows(y[:, j], reference_of(csr, np.ascontiguousarray(x[:, j]))).passed
        made.close()
    assert ctypes.c_int.in_dll(library, "alive").value == 0


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
