"""The benchmark of solvers: what it claims is true, and a wrong solution is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.bench import command
from benchmarks.bench.device import HostDevice
from dasp import solvers
from dasp.models import generate

QUICK = ["poisson2d:12", "--device", "cpu", "--threads", "1", "--repeat", "1"]


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)


@pytest.mark.slow
def test_every_solver_is_verified_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["solvers", *QUICK, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    methods = [
        f"{library} {method}"
        for method in ("cg", "minres", "bicgstab", "gmres")
        for library in ("SciPy", "dasp")
    ]
    cycles = ["dasp cg multigrid chebyshev float32", "dasp cg multigrid jacobi float64", "PyAMG cg multigrid"]
    assert [row["kernel"] for row in rows if not row["kernel"].startswith("JAX")] == [*methods, *cycles]
    for row in rows:
        if row["kernel"] == "SciPy minres":  # which judges itself by another measure
            assert row["verified"] == (row["residual"] <= 1.01e-8) == (row["solve_ms"] is not None)
            continue
        assert row["verified"], row
        assert 0 < row["residual"] <= 1.01e-8
        assert row["solve_ms"] > 0
        ours = row["kernel"].startswith("dasp")
        assert (row.get("plan_ms") is not None) == ours
        if ours:
            assert 1 <= row["iterations"] <= 144
            each = 1e3 * row["solve_ms"] / row["iterations"]
            assert row["us_per_iteration"] == pytest.approx(each, rel=2e-5)  # six digits are written
            assert row["first_ms"] > 0
        whole = row["kernel"].startswith(("SciPy", "dasp")) and "multigrid" not in row["kernel"]
        assert (row.get("total_ms") is not None) == whole


def test_a_wrong_solution_is_told_and_has_no_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = solvers.cg

    def wrong(*given, **options):
        x, stats = real(*given, **options)
        x[5] *= 1 + 1e-6
        return x, stats

    monkeypatch.setattr(solvers, "cg", wrong)
    assert command.main(["solvers", *QUICK, "--methods", "cg"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("poisson2d")]
    assert [row[1:3] for row in rows if "missed" in row] == [["dasp", "cg"]]


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        (["--rtol", "0"], "--rtol is 0.0"),
        (["nosuch"], "nosuch was not found"),
        (["lp:5:9", "--device", "cpu"], "a square matrix"),
        (["--methods", "cg,sor"], "--methods names sor; some of cg, minres"),
    ):
        assert command.main(["solvers", *words]) == 2
        assert part in capsys.readouterr().err


def test_the_bound_on_the_residual_lets_rounding_pass_and_nothing_else() -> None:
    from benchmarks.bench.solvers import _System

    matrix = generate("poisson2d:12")
    system = _System(matrix, HostDevice(1), 1e-15, 100, 1, "poisson2d:12")
    exact = np.linalg.solve(matrix.toarray(), np.ones(144))
    assert system.verify(exact)[1]
    assert not system.verify(exact * (1 + 1e-12))[1]
    assert not system.verify(np.full(144, np.nan))[1]
