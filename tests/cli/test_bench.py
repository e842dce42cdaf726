"""`dasp bench`: its rows, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_array

import dasp
from tests.support.command import CPU, run

QUICK = ["bench", *CPU, "--threads", "1", "--seconds", "0.001"]


def test_bench_compares_a_plan_with_what_a_user_would_call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    status, out, _ = run(capsys, *QUICK, "poisson2d:9", "--json")
    (row,) = json.loads(out)["rows"]
    assert (status, row["matrix"], row["verified"], row["rows"]) == (0, "poisson2d:9", True, 81)
    assert row["best_baseline"] in ("scipy", "numba_csr")
    assert row["best_baseline_us"] == min(row["scipy_us"], row["numba_csr_us"])
    assert row["plan_ms"] > 0
    status, out, _ = run(capsys, *QUICK, "poisson2d:9")
    assert status == 0
    assert {"matrix", "poisson2d:9"} <= {line.partition(" ")[0] for line in out.splitlines()}
    status, out, _ = run(capsys, *QUICK, "poisson2d:9", "--dtype", "float16")
    assert (status, "SciPy has no products of float16" in out) == (0, True)


def test_bench_answers_with_its_status_where_a_product_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    real = dasp.SpMatrix.matvec

    def spoil(A: Any, x: Any, *, out: Any) -> Any:
        real(A, x, out=out)
        out[3] = np.nan
        return out

    monkeypatch.setattr(dasp.SpMatrix, "matvec", spoil)
    status, out, _ = run(capsys, *QUICK, "poisson2d:9")
    assert status == 1
    assert "WRONG in 1 rows: poisson2d:9" in out


def test_products_that_have_no_bound_are_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dasp.cli.devices.TimedHost.bandwidth", 1e10)
    scipy.sparse.save_npz(tmp_path / "a.npz", csr_array(np.array([[np.nan, 1.0]])))
    status, out, err = run(capsys, *QUICK, "poisson2d:9", str(tmp_path / "a.npz"))
    assert (status, "poisson2d:9" in out) == (2, True)  # those before it are reported
    assert "a.npz holds NaN or infinity" in err
