"""The benchmark of solvers: what it claims is true, and a wrong solution is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dasp import cli, solvers
from dasp.bench import solvers_report
from dasp.bench.device import HostDevice
from dasp.models import generate

QUICK = ["poisson2d:12", "--device", "cpu", "--threads", "1", "--repeat", "1"]


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)


def test_every_solver_is_verified_and_timed(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    picture = tmp_path / "systems.png"
    assert cli.main(["bench", "solvers", *QUICK, "--json", "--plot", str(picture)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["kernel"] for row in rows] == ["library", "library_on_dasp", "dasp"]
    for row in rows:
        assert row["verified"]
        assert 0 < row["residual"] <= 1.01e-8
        assert 1 <= row["iterations"] <= 144
        assert row["solve_ms"] > 0
    assert [row["plan_ms"] is None for row in rows] == [True, False, False]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_solution_is_told_and_not_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = solvers.cg

    def wrong(*given, **options):
        x, stats = real(*given, **options)
        x[5] *= 1 + 1e-6
        return x, stats

    monkeypatch.setattr(solvers, "cg", wrong)
    assert cli.main(["bench", "solvers", *QUICK]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "WRONG" in line] == ["dasp"]


def test_ratios_are_of_the_same_system_and_count_the_plan() -> None:
    shared = {"device": "cpu", "machine": "m", "threads": "2", "verified": "yes"}
    rows = [
        {**shared, "matrix": "cg:a", "kernel": "library", "solve_ms": "30"},
        {**shared, "matrix": "cg:a", "kernel": "dasp", "solve_ms": "10", "plan_ms": "5"},
        {**shared, "matrix": "cg:b", "kernel": "library", "solve_ms": "8"},
        {**shared, "matrix": "cg:b", "kernel": "dasp", "solve_ms": "4", "plan_ms": "4"},
    ]
    ours = [row for row in rows if row["kernel"] == "dasp"]
    assert [solvers_report.of_library(rows, row) for row in ours] == [3, 2]
    assert [solvers_report.of_library(rows, row, with_plan=True) for row in ours] == [2, 1]
    text = solvers_report.report(rows).text()
    assert "2.45 x with the plan at hand, 1.41 x" in " ".join(text.split())


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        (["--rtol", "0"], "--rtol is 0.0"),
        (["nosuch"], "nosuch was not found"),
        (["lp:5:9", "--device", "cpu"], "a square matrix"),
    ):
        assert cli.main(["bench", "solvers", *words]) == 2
        assert part in capsys.readouterr().err


def test_the_bound_on_the_residual_lets_rounding_pass_and_nothing_else() -> None:
    from dasp.bench.solvers import Solvers

    matrix = generate("poisson2d:12")
    subject = Solvers(["poisson2d:12"], HostDevice(1, bandwidth=1e10), rtol=1e-15)
    exact = np.linalg.solve(matrix.toarray(), np.ones(144))
    assert subject._verify(matrix, exact)[1]
    assert not subject._verify(matrix, exact * (1 + 1e-12))[1]
    assert not subject._verify(matrix, np.full(144, np.nan))[1]
