"""The benchmark over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bench import command, scaling
from dasp.cli import main as cli
from dasp.models import generate
from tests.support import reference
from tests.support.ranks import run_ranks


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_each_rank_makes_its_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "CHUNK", 7)
    whole = generate(f"poisson3d:{n}")
    for first, end in ((0, n**3), (n**3 // 3, n**3 // 2), (4 % n**3, 4 % n**3)):
        reference.assert_same_entries(scaling.local_rows(n, first, end, "cpu"), whole[first:end])


def test_a_wrong_row_is_found() -> None:
    n = 6
    x = scaling.wave(np.arange(n**3), np)
    y = generate("poisson3d:6") @ x
    assert scaling.wrong_rows(y, n, 0, np) == 0
    assert scaling.wrong_rows(y[50:90], n, 50, np) == 0
    y[17] *= 1 + 1e-13
    y[60] = np.nan
    assert scaling.wrong_rows(y, n, 0, np) == 2


def test_rows_of_all_kinds_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "REPEATS", 1)
    monkeypatch.setattr(scaling, "TIMES", 1)

    def work(comm: Any) -> list[Any]:
        bench = scaling.Scaling(comm, "cpu", tmp_path / "rows.csv")
        bench.measure_links((8, 64))
        assert bench.measure(6, "weak")
        return bench.rows

    rows, others = run_ranks(2, work)
    assert not others
    assert [row["kernel"] for row in rows] == [
        "sum",
        "sum",
        "message",
        "message",
        "product",
        "cg",
    ]
    assert {row["ranks"] for row in rows} == {"2"}
    product = rows[4]
    assert (product["verified"], product["halo"], product["rows"]) == ("yes", "36", "216")
    assert all(float(row["us"]) > 0 for row in rows[:5])
    assert "over ranks" in scaling.report(rows).text()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["scaling"]) == 2
    assert "was started alone; ranks are needed" in capsys.readouterr().err
    assert cli.main(["partition", "poisson2d:6", "--ranks", "2", "--out", str(tmp_path / "parts")]) == 0
    assert "columns of others" in capsys.readouterr().out
    assert cli.main(["partition", "poisson2d:6", "--ranks", "2", "--out", str(tmp_path / "parts")]) == 2
