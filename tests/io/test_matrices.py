"""Matrices by their names: files, the collection's folder, models."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import scipy.io
import scipy.sparse

from dasp.io import load_matrix
from dasp.models import generate
from tests.support.files import GOOD, refusal, same, write


def test_names_are_found_in_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = generate("random:9:8:0.3")
    scipy.sparse.save_npz(tmp_path / "one.npz", matrix)
    write(tmp_path / "two.mtx", GOOD)
    write(tmp_path / "three.mtx.gz", gzip.compress(GOOD.encode()))
    (tmp_path / "four").mkdir()
    write(tmp_path / "four" / "four.mtx", GOOD)
    monkeypatch.setenv("DASP_MATRICES", str(tmp_path))
    assert same(load_matrix("one"), matrix)
    for name in ("two", "three", "four", "two.mtx", str(tmp_path / "four")):
        assert load_matrix(name).shape == (3, 4)
    assert "was not found" in refusal("thre")
    monkeypatch.delenv("DASP_MATRICES")
    assert "DASP_MATRICES" in refusal("one")


def test_a_model_is_built() -> None:
    assert same(load_matrix("rmat:6", seed=3), generate("rmat:6", seed=3))


def test_a_file_goes_before_a_model_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "dense", GOOD)
    assert load_matrix("dense").shape == (3, 4)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["must be a file"]),
        ("  ", ["the matrix is ' '", "must be a file"]),
        ("nosuchfile.mtx", ["nosuchfile.mtx", "not found", "DASP_MATRICES"]),
        ("no/such/folder/a.mtx", ["not found"]),
        ("a\0b", ["must be a file"]),
        ("x" * 5000, ["xxx"]),
        ("poison3d:4", ["unknown model", "did you mean poisson3d?"]),
        ("poisson3d", ["was given 0 parameters", "poisson3d:20"]),
        ("poisson3d:-1", ["at least 1"]),
        ("dense:10000000", ["half of this machine's memory"]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_bad_name_is_one_clear_line(
    spec: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASP_MATRICES", raising=False)
    message = refusal(spec)
    for word in words:
        assert word in message, message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mtx", GOOD)
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_real_matrices_load_by_their_names(matrices: Path) -> None:
    files = sorted(matrices.glob("*.npz"))[:5]
    assert files, f"{matrices} holds no .npz file"
    for path in files:
        assert load_matrix(path.stem).nnz == scipy.sparse.load_npz(path).nnz
