"""What commands share, and those that write files or compile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, save_npz

import dasp
from dasp.cli import main as cli
from dasp.cli import options
from dasp.models import generate
from tests.support.command import error, run


def test_a_plan_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["plan", "poisson2d:12", str(tmp_path / "a.plan"), "--device", "cpu"]) == 0
    assert "144 x 144" in capsys.readouterr().out
    planned = dasp.SpMatrix(dasp.load_plan(tmp_path / "a.plan"), "cpu")
    x = np.arange(144.0)
    np.testing.assert_array_equal(planned @ x, dasp.SpMatrix.from_scipy(planned.to_scipy(), device="cpu") @ x)


def test_a_plan_does_not_replace_its_matrix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    matrix = tmp_path / "a.npz"
    save_npz(matrix, generate("poisson2d:3"))
    kept = matrix.read_bytes()
    assert "which is read" in error(capsys, "plan", str(matrix), str(matrix), "--device", "cpu")
    assert matrix.read_bytes() == kept


def test_a_folder_that_cannot_be_written_is_named_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dasp.cli.options.os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ValueError, match=f"--out is '.*'; the folder {tmp_path} must be writable"):
        options.check_file("--out", str(tmp_path / "x"))


def test_parts_are_solved_by_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parts = str(tmp_path / "parts")
    assert run(capsys, "partition", "poisson2d:9", "--ranks", "3", "--out", parts)[0] == 0
    assert f"mpirun -n 3 dasp solve {parts}" in error(capsys, "solve", parts)


def test_usual_calls_are_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasp.cli.machine.MODELS", ("poisson2d:12", "powerlaw:300"))
    status, out, _ = run(capsys, "warmup", "--device", "cpu", "--dtype", "float64")
    assert status == 0
    assert [line.rsplit(maxsplit=2)[0] for line in out.splitlines()[1:]] == [
        "products of float64 with poisson2d:12",
        "products of float64 with powerlaw:300",
        "solves of float64",
    ]


def test_missing_matplotlib_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in (["info", "--html", "a.html"], ["solve", "--plot", "a.png"]):
        command, option, name = words
        assert "pip install matplotlib" in error(capsys, command, "poisson2d:3", option, str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_the_second_of_two_plans_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    real = dasp.SpMatrix.__init__

    def count(A: dasp.SpMatrix, matrix: csr_array, *given: Any, **options: Any) -> None:
        made.append(matrix.shape)
        real(A, matrix, *given, **options)

    monkeypatch.setattr(dasp.SpMatrix, "__init__", count)
    planned, seconds = options.plan_timed(generate("poisson2d:9"), "auto", "cpu")
    assert (made, planned.shape, seconds > 0) == ([(81, 81)] * 2, (81, 81), True)
