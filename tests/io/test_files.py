"""Files are regular, links are followed in reading alone, and none is left half written."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dasp.io import MatrixFileError, load_matrix, load_plan, save_plan
from dasp.models import generate
from tests.support.files import GOOD, plan_of, write


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "dangling"])
@pytest.mark.parametrize("name", ["a.mtx", "a.npz", "plan"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)  # to open one for reading would wait for a writer for ever
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nothing")
    with pytest.raises(MatrixFileError) as caught:
        load_plan(path) if name == "plan" else load_matrix(path)
    assert str(path) in str(caught.value)


def test_links_to_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "real", GOOD)
    (tmp_path / "link.mtx").symlink_to(tmp_path / "real")
    assert load_matrix(tmp_path / "link.mtx").nnz == 3


def test_saving_leaves_no_half_file(tmp_path: Path) -> None:
    plan = plan_of(generate("poisson2d:4"))
    save_plan(tmp_path / "plan", plan)  # the name is used as it is
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    with pytest.raises(MatrixFileError, match="cannot be written"):
        save_plan(tmp_path / "no" / "plan.npz", plan)


@pytest.mark.parametrize("path", ["", "a\0b", "/dev/null", ".", "/"])
def test_a_plan_goes_into_a_regular_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MatrixFileError, match="file"):
        save_plan(path, plan_of(generate("poisson2d:4")))
    assert not list(tmp_path.iterdir())
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_plan_comes_from_a_file_with_a_name(path: str) -> None:
    with pytest.raises(MatrixFileError, match="it must name a file"):
        load_plan(path)


def test_savers_of_one_path_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    plans = [plan_of(generate(f"poisson2d:{size}")) for size in (20, 30, 40, 50)]
    for _ in range(5):
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(partial(save_plan, path), plans))
        assert load_plan(path).shape in [plan.shape for plan in plans]
        assert [entry.name for entry in tmp_path.iterdir()] == ["plan.npz"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_failed_save_leaves_the_older_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, at: str
) -> None:
    path = tmp_path / "plan.npz"
    old, new = (plan_of(generate(f"poisson2d:{size}")) for size in (4, 5))
    save_plan(path, old)

    def fail(*arguments: Any, **_: Any) -> None:
        if at == "write":
            arguments[0].write(b"PK")
        raise failure

    name = {"write": "numpy.savez", "fsync": "os.fsync", "replace": "os.replace"}[at]
    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        with pytest.raises((type(failure), MatrixFileError)) as caught:
            save_plan(path, new)
        if isinstance(failure, OSError):
            assert "cannot be written: No space left" in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.npz"]
    assert load_plan(path).shape == old.shape
