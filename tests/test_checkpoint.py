"""Solves that go on after they were ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasp import solvers
from dasp.distributed import SpMatrix, resume
from dasp.models import generate
from tests.ranks import run_ranks

A = generate("poisson2d:30")
B = np.random.default_rng(0).standard_normal(900)


class EndedError(Exception):
    """Stands for a kill."""


def part(engine: Any, folder: Path, **options: Any) -> Any:
    D = SpMatrix.from_scipy(A if engine.rank == 0 else None, engine, device="cpu")
    b = B[D.rows.first : D.rows.first + D.rows.count]
    return resume(solvers.cg, D, b, folder, seconds=0.0, check_every=10, rtol=1e-9, **options)


def test_a_solve_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = run_ranks(3, lambda engine: part(engine, folder, maxiter=40))
    assert not first[0][1].converged
    told = json.loads((folder / "checkpoint.json").read_text())
    assert (told["iterations"], told["ranks"]) == (40, 3)
    assert len(list(folder.iterdir())) == 4  # one generation, and its name
    second = run_ranks(3, lambda engine: part(engine, folder))
    stats = second[0][1]
    assert stats.converged
    assert stats.iterations > 40
    assert stats.residuals[: len(told["residuals"])] == told["residuals"]
    x = np.concatenate([x for x, _ in second])
    assert np.linalg.norm(B - A @ x) <= 1.0001e-9 * np.linalg.norm(B)
    third = run_ranks(3, lambda engine: part(engine, folder))
    assert third[0][1].iterations == stats.iterations


@pytest.mark.parametrize("when", [3, 5])
def test_a_write_that_is_ended_leaves_the_checkpoint_before(
    when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 ends as it writes its third x; or rank 0 as it lets the second count."""
    from dasp.distributed import checkpoint

    write, count = checkpoint.replacing, {"x": 0, "json": 0}

    def ending(target: Path) -> Any:
        kind = "json" if target.suffix == ".json" else "x" if "rank-00001" in target.name else ""
        count[kind] = count.get(kind, 0) + 1
        if kind == ("x" if when == 3 else "json") and count[kind] == when:
            raise EndedError
        return write(target)

    monkeypatch.setattr(checkpoint, "replacing", ending)
    with pytest.raises(RuntimeError, match="Ended"):
        run_ranks(2, lambda engine: part(engine, tmp_path))
    monkeypatch.setattr(checkpoint, "replacing", write)
    told = json.loads((tmp_path / "checkpoint.json").read_text())
    assert told["iterations"] == 10 * (when - 1)
    stats = run_ranks(2, lambda engine: part(engine, tmp_path))[0][1]
    assert stats.converged


def test_one_rank_and_no_ranks_at_all(tmp_path: Path) -> None:
    x, stats = resume(solvers.cg, A, B, tmp_path, seconds=0.0, maxiter=20, check_every=10)
    assert not stats.converged
    x, stats = resume(solvers.cg, A, B, tmp_path, rtol=1e-8)
    assert stats.converged
    assert np.linalg.norm(B - A @ x) <= 1.0001e-8 * np.linalg.norm(B)


def test_checkpoints_of_other_systems_are_refused(tmp_path: Path) -> None:
    run_ranks(2, lambda engine: part(engine, tmp_path, maxiter=10))
    with pytest.raises(ValueError, match=r"checkpoint with ranks 2; this solve has 3"):
        run_ranks(3, lambda engine: part(engine, tmp_path))
    other = generate("poisson2d:6")
    with pytest.raises(ValueError, match="checkpoint with"):
        resume(solvers.cg, other, np.ones(36), tmp_path)
    with pytest.raises(ValueError, match="seconds is -1"):
        resume(solvers.cg, other, np.ones(36), tmp_path, seconds=-1)
    (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        run_ranks(2, lambda engine: part(engine, tmp_path))
