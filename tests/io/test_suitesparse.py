"""`dasp fetch` against a small server of its own: download, verify, unpack, refuse."""

from __future__ import annotations

import csv
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dasp.cli import main as cli
from dasp.io import suitesparse
from dasp.io.matrices import load_matrix

TEXT = b"%%MatrixMarket matrix coordinate real general\n3 4 1\n2 2 7\n"


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as pack:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_mtx", ".mtx"))
            info.size = len(content)
            pack.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `files` by path, up to the byte `cut`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None
        self.redirects: dict[str, str] = {}
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/MM"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        if self.path in self.server.redirects:
            self.send_response(302)
            self.send_header("Location", self.server.redirects[self.path])
            self.end_headers()
            return
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "suite.csv"
    path.write_text("name,group,rows,cols,entries,kind\none,G,3,4,1,test\n")
    monkeypatch.setattr(suitesparse, "SUITE", path)
    return path


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = cli.main(["fetch", *[str(word) for word in words]])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def failed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    status, _, err = call(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("dasp: error: ")]
    assert status == 2
    assert len(lines) == 1
    return lines[0]


def leftovers(folder: Path) -> list[str]:
    """What a failed fetch may not leave: anything but the suite, hidden files too."""
    names = {path.name for path in folder.iterdir()}
    return sorted(names - {"suite.csv"})


def test_the_list_is_sound() -> None:
    with open(suitesparse.SUITE, newline="") as file:
        names = [line["name"] for line in csv.DictReader(file)]
    suite = suitesparse.read_suite()
    assert len(names) == len(set(names)) == len(suite)
    for matrix in suite.values():
        assert 0 < matrix.entries <= matrix.rows * matrix.cols
        assert matrix.group
        assert matrix.kind


def test_the_list_agrees_with_the_matrices_that_are_here(matrices: Path) -> None:
    checked = 0
    for known in suitesparse.read_suite().values():
        if (matrices / f"{known.name}.npz").exists() and known.entries < 1_000_000:
            matrix = load_matrix(matrices / f"{known.name}.npz")
            assert (*matrix.shape, matrix.nnz) == (known.rows, known.cols, known.entries), known.name
            checked += 1
    if not checked:
        pytest.skip("no matrix of suite.csv is in DASP_MATRICES")


def test_a_matrix_is_fetched(
    suite: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    content = archive(one__one_mtx=TEXT, one__one_b_mtx=b"not wanted")
    server.files["/MM/G/one.tar.gz"] = content
    status, out, _ = call(capsys, "one", "--folder", folder, "--url", server.url)
    assert status == 0
    assert str(folder / "one.mtx") in out
    assert sorted(path.name for path in folder.iterdir()) == ["one.mtx"]
    assert load_matrix(folder / "one.mtx").nnz == 1
    umask = os.umask(0)
    os.umask(umask)
    assert (folder / "one.mtx").stat().st_mode & 0o777 == 0o666 & ~umask
    assert "there already" in call(capsys, "one", "--folder", folder, "--url", server.url)[1]


def test_a_broken_download_leaves_nothing_and_says_where_it_broke(
    suite: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1).bytes(300_000)
    server.files["/MM/G/one.tar.gz"] = archive(one__one_mtx=TEXT, one__one_b_mtx=noise)
    server.cut = 200_000
    assert "cannot be unpacked" in failed(capsys, "one", "--folder", tmp_path, "--url", server.url)
    assert leftovers(tmp_path) == []


def test_a_redirection_is_followed(
    suite: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/elsewhere"] = archive(one__one_mtx=TEXT)
    server.redirects["/MM/G/one.tar.gz"] = "/elsewhere"
    assert call(capsys, "one", "--folder", tmp_path, "--url", server.url)[0] == 0
    assert (tmp_path / "one.mtx").read_bytes() == TEXT


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (archive(other__one_mtx=TEXT), "holds no one/one.mtx"),
        (archive(one__one_mtx=TEXT)[:-8], "cannot be unpacked"),
        (archive(one__one_mtx=TEXT)[:-8] + bytes(8), "cannot be unpacked"),
        (archive(one__one_mtx=TEXT * 999)[:60], "cannot be unpacked"),
        (b"<html>sorry</html>", "cannot be unpacked"),
    ],
    ids=["another name", "no checksum", "a wrong checksum", "cut short", "a web page"],
)
def test_a_bad_archive_leaves_nothing(
    suite: Path,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    words: str,
) -> None:
    server.files["/MM/G/one.tar.gz"] = content
    assert words in failed(capsys, "one", "--folder", tmp_path, "--url", server.url)
    assert leftovers(tmp_path) == []


def test_only_the_matrix_leaves_the_archive(
    suite: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    server.files["/MM/G/one.tar.gz"] = archive(**{"../evil": b"x", "one__one_mtx": TEXT, "one__evil": b"x"})
    assert call(capsys, "one", "--folder", folder, "--url", server.url)[0] == 0
    assert not list(tmp_path.rglob("evil"))


def test_a_link_in_place_of_the_matrix_is_refused(
    suite: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as pack:
        link = tarfile.TarInfo("one/one.mtx")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        pack.addfile(link)
    server.files["/MM/G/one.tar.gz"] = buffer.getvalue()
    failed(capsys, "one", "--folder", tmp_path, "--url", server.url)
    assert leftovers(tmp_path) == []


def test_mistakes_are_one_line(
    suite: Path,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DASP_MATRICES", raising=False)
    assert "DASP_MATRICES is not set" in failed(capsys, "one")
    assert "did you mean one?" in failed(capsys, "onee", "--folder", tmp_path)
    assert "--list" in failed(capsys, "--folder", tmp_path)
    assert "404" in failed(capsys, "one", "--folder", tmp_path, "--url", server.url)
    unused = "http://127.0.0.1:9/MM"  # the discard port: nobody listens
    assert "cannot be fetched" in failed(capsys, "one", "--folder", tmp_path, "--url", unused)
    (tmp_path / "file").write_text("")
    assert "file cannot be made" in failed(capsys, "one", "--folder", tmp_path / "file")
    failed(capsys, "one", "--folder", tmp_path, "--url", "nonsense")


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "--list", "--max-entries", "1000000")
    assert status == 0
    assert "memplus" in out
    assert "audikw_1" not in out
