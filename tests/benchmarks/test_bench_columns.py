"""The benchmark of several columns: rows, verified, and their tables."""

from __future__ import annotations

import numpy as np
import pytest

import dasp
from benchmarks.bench import columns, command, results
from benchmarks.bench.device import HostDevice
from tests.benchmarks.test_bench import matrix


def test_rows_on_the_cpu_are_verified_and_make_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)
    words = ["poisson2d:9", "--device", "cpu", "--threads", "1", "--repeat", "3", "--dtype", "float64"]
    words += ["--columns", "1,4", "--csv", str(tmp_path / "rows.csv")]
    assert command.main(["columns", *words]) == 0
    rows = results.read(tmp_path / "rows.csv")
    assert [row["kernel"] for row in rows] == [f"{k} columns, {order}" for k in (1, 4) for order in "CF"]
    assert all(row["verified"] == "yes" and row["best_baseline"] == "scipy" for row in rows)
    assert "4, F" in capsys.readouterr().out
    mean = float(rows[2]["speedup_best"])
    assert f"| float64 | C | {mean:.3g}" in columns.report(rows).markdown()
    slow = [{**row, "speedup_best": "0.5"} for row in rows]
    assert "poisson2d:9 (4, least 0.500)" in columns.report(slow).text()
    assert command.main(["columns", *words, "--dtype", "int8"]) == 2
    assert "--dtype names int8; some of float64" in capsys.readouterr().err


@pytest.mark.parametrize("k", [1, 8])
def test_a_wrong_product_is_seen_and_not_timed(k, monkeypatch):
    csr, device = matrix(rows=75), HostDevice(1, seconds=0.002)
    products = columns.Products(csr, dasp.SpMatrix(csr, "cpu"), device, 8)
    right = products.planned @ products.operand(k, "C")
    assert products.worst(right) <= 1
    for wrong in (1e-3, np.nan):
        right[3, -1] += wrong
        assert products.worst(right) > 1
    products.planned = csr * (1 + 1e-13)
    row = products.measure(k, "C", samples=3)
    assert (row["verified"], row["time_us"]) == ("no", "nan")
