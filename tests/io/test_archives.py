"""Archives of arrays: sizes are bounded, and nothing is read that was not announced."""

from __future__ import annotations

import io
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from dasp.io import MatrixFileError, load_matrix, load_plan
from dasp.io.plans import pack_plan
from dasp.models import generate
from tests.support.files import CSR, dasp_plan, npy, refusal, write


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members, whose names may occur twice."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


PARTS = {f"{name}.npy": npy(value) for name, value in CSR.items()}


def overlapping() -> bytes:
    """A zip whose table of contents has a second member inside the first."""
    content = bytearray(zipped(*PARTS.items()))
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = bytes(4)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zipped(*PARTS.items(), ("data.npy", PARTS["data.npy"])), "'data.npy' twice"),
        (zipped(*PARTS.items(), ("README", b"")), "'README' and it is no array"),
        (zipped(*PARTS.items(), ("more.npy", npy([1]))), "the arrays data, format, indices, indptr, more"),
        (zipped(*PARTS.items(), method=zipfile.ZIP_LZMA), "packed in an unknown way"),
        (overlapping(), "inside another"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (1,))}.items()), "its head says 8"),
        (
            zipped(*{**PARTS, "data.npy": npy(np.ones(2), (10**12,))}.items()),
            "its head says 8,000,000,000,000",
        ),
        (zipped(*{**PARTS, "data.npy": npy(np.ones(2), (-1, -2))}.items()), "shape (-1, -2)"),
        (zipped(*{**PARTS, "data.npy": b"no array at all"}.items()), "damaged"),
        (zipped(*{**PARTS, "shape.npy": npy(np.zeros(99))}.items()), "shape has 792 bytes"),
        (zipped(*{**PARTS, "shape.npy": npy([2.5, 3])}.items()), "its shape is"),
        (zipped(*{**PARTS, "shape.npy": npy(np.array([2, 2**64 - 1], np.uint64))}.items()), "its shape is"),
        (zipped(*{**PARTS, "format.npy": npy(b"coo")}.items()), "its format is 'coo'"),
        (zipped(*{**PARTS, "indices.npy": npy(np.array([[0, 2]]))}.items()), "not a list of integers"),
        (zipped(*{**PARTS, "data.npy": npy(np.ones((2, 1)))}.items()), "data has shape (2, 1)"),
    ],
)
def test_an_archive_is_what_its_contents_say(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(write(tmp_path / "a.npz", content))


def test_an_archive_with_a_long_table_of_contents_is_refused(tmp_path: Path) -> None:
    content = zipped(*PARTS.items(), *((f"{i}", b"") for i in range(30_000)))
    assert "a table of contents of" in refusal(write(tmp_path / "a.npz", content))


def test_nothing_is_unpacked_that_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasp.runtime.sizes.machine_bytes", lambda: 10**8)
    zeros = npy(np.zeros(2 * 10**7))
    plan = {f"{name}.npy": npy(value) for name, value in pack_plan(dasp_plan()).items()}
    bombs = {
        "matrix": zipped(*{**PARTS, "data.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
        "unknown": zipped(*PARTS.items(), ("more.npy", zeros), method=zipfile.ZIP_DEFLATED),
        "plan": zipped(*{**plan, "empty_rows.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
        "unknown field": zipped(*plan.items(), ("more.npy", zeros), method=zipfile.ZIP_DEFLATED),
        "head": zipped(*{**plan, "dasp_plan.npy": zeros}.items(), method=zipfile.ZIP_DEFLATED),
    }
    for name, content in bombs.items():
        path = write(tmp_path / "a.npz", content)
        tracemalloc.start()
        try:
            with pytest.raises(MatrixFileError):
                load_matrix(path) if name in ("matrix", "unknown") else load_plan(path)
            assert tracemalloc.get_traced_memory()[1] < 10**7, name
        finally:
            tracemalloc.stop()


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    scipy.sparse.save_npz(path, generate("poisson2d:10"))
    monkeypatch.setattr("dasp.runtime.sizes.machine_bytes", lambda: 1000)
    assert "half of this machine's memory" in refusal(path)
