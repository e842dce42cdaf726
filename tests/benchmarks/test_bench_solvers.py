"""The benchmark of solvers: what it claims is true, and a wrong solution is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench import command, results
from benchmarks.bench.device import HostDevice
from dasp import solvers
from dasp.models import generate

QUICK = ["poisson2d:12", "--device", "cpu", "--threads", "1", "--repeat", "1"]


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "bandwidth", 1e10)


@pytest.mark.slow
def test_every_solver_is_verified_and_timed(tmp_path: Path) -> None:
    assert command.main(["solvers", *QUICK, "--csv", str(tmp_path / "rows.csv")]) == 0
    rows = results.read(tmp_path / "rows.csv")
    methods = [
        f"{library} {method}"
        for method in ("cg", "minres", "bicgstab", "gmres")
        for library in ("SciPy", "dasp")
    ]
    cycles = ["dasp cg multigrid chebyshev float32", "dasp cg multigrid jacobi float64", "PyAMG cg multigrid"]
    assert [row["kernel"] for row in rows] == [*methods, *cycles]
    for row in rows:
        if row["kernel"] == "SciPy minres":  # which judges itself by another measure
            right = float(row["residual"]) <= 1.01e-8
            assert results.right(row) == right == (row["solve_ms"] != "")
            continue
        assert results.right(row), row
        assert 0 < float(row["residual"]) <= 1.01e-8
        assert float(row["solve_ms"]) > 0
        ours = row["kernel"].startswith("dasp")
        assert (row["plan_ms"] != "") == ours
        if ours:
            assert 1 <= int(row["iterations"]) <= 144
            each = 1e3 * float(row["solve_ms"]) / int(row["iterations"])
            assert float(row["us_per_iteration"]) == pytest.approx(each, rel=2e-5)  # six digits are written
        whole = row["kernel"].startswith(("SciPy", "dasp")) and "multigrid" not in row["kernel"]
        assert (row["total_ms"] != "") == whole


@pytest.mark.slow
def test_complex_systems_are_verified_and_timed(tmp_path: Path) -> None:
    assert command.main(["solvers", *QUICK, "--helmholtz", "--csv", str(tmp_path / "rows.csv")]) == 0
    rows = results.read(tmp_path / "rows.csv")
    kernels = ["SciPy bicgstab", "dasp bicgstab", "SciPy gmres", "dasp gmres"]
    assert [row["kernel"] for row in rows] == kernels
    assert {(row["dtype"], row["shift"]) for row in rows} == {("complex128", "(0.1-0.1j)")}
    assert all(map(results.right, rows))


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
