"""Matrices of the SuiteSparse collection, fetched from its site by name into a folder.

An archive, and the matrix in it, must be whole and of the sizes that suite.csv lists. What is downloaded, and
what it unpacks to, is bounded by those sizes; links in it are refused.

Source: Davis and Hu, "The University of Florida sparse matrix collection", ACM TOMS 38 (2011).
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import http.client
import os
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = [root / "matrices" / "suite.csv" for root in (PACKAGE, PACKAGE.parent)]
SUITE = next((place for place in _PLACES if place.exists()), _PLACES[0])
"""The matrices that are known by name: inside the package in a wheel, beside it in a checkout."""
SOURCE = "https://sparse.tamu.edu/MM"
_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60
_MOST_REMARKS, _BYTES_PER_ENTRY, _BYTES_PER_ROW = 1 << 24, 128, 256
"""Generous sizes of what a file holds besides its entries, of the line of an entry, and of a row or a column
in the files that come with a matrix (right-hand sides, coordinates, names)."""

_MOST_MEMBERS = 1000
_LONGEST_LINE = 1 << 16


class FetchError(RuntimeError):
    """A matrix could not be fetched; the message is one line for the user."""


@dataclass(frozen=True)
class KnownMatrix:
    """A line of suite.csv; `entries` counts what the file stores, explicit zeros too."""

    name: str
    group: str
    rows: int
    cols: int
    entries: int
    kind: str


def read_suite(path: Path = SUITE) -> dict[str, KnownMatrix]:
    """Read the list of known matrices, by name, smallest first."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = [
            KnownMatrix(
                line["name"],
                line["group"],
                int(line["rows"]),
                int(line["cols"]),
                int(line["entries"]),
                line["kind"],
            )
            for line in csv.DictReader(file)
        ]
    return {matrix.name: matrix for matrix in sorted(lines, key=lambda matrix: matrix.entries)}


def fetch(matrix: KnownMatrix, folder: Path, source: str = SOURCE) -> Path:
    """Download, verify and unpack one matrix.

    Parameters
    ----------
    matrix : KnownMatrix
    folder : Path
        Where NAME.mtx goes; it exists.
    source : str
        The address under which GROUP/NAME.tar.gz lies.

    Returns
    -------
    Path
        The .mtx file; the archive is removed.

    Raises
    ------
    FetchError
        If there is no network or no such file, or if what came is not whole, or not of the matrix's sizes.
    """
    name = f"{matrix.name}.tar.gz"
    target = folder / f"{matrix.name}.mtx"
    # Nobody else can plant anything in a folder of our own, and what is in it can be renamed into the other.
    with tempfile.TemporaryDirectory(prefix=f".{matrix.name}.", dir=folder) as own:
        archive = Path(own) / name
        _download(f"{source.rstrip('/')}/{matrix.group}/{name}", archive, _bound_bytes(matrix))
        os.replace(unpack(matrix, archive), target)
    return target


def _download(address: str, archive: Path, most_bytes: int) -> None:
    """Write the file at an address; FetchError if it cannot be had whole, or is larger than it may be."""
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as reply, open(archive, "xb") as file:
            with _add_bar(reply) as content:
                while chunk := content.read(_CHUNK):
                    file.write(chunk)
                    if file.tell() > most_bytes:
                        raise FetchError(
                            f"the download has more than {most_bytes:,} bytes; no such matrix has; try again"
                        )
            length = int(reply.headers.get("Content-Length") or file.tell())
            if file.tell() < length:
                raise FetchError(f"{address} ended after {file.tell():,} of {length:,} bytes; try again")
    except urllib.error.HTTPError as error:
        raise FetchError(
            f"{address} answered {error.code} {error.reason}; check the name and the group"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", "") or str(error) or type(error).__name__
        raise FetchError(f"{address} cannot be fetched: {reason}; try again later") from error


def _add_bar(reply: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a reply whose reading draws a bar, on a terminal and if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext(reply)
    length = reply.headers.get("Content-Length")
    bar: contextlib.AbstractContextManager[Any] = tqdm.wrapattr(
        reply, "read", total=length and int(length), file=sys.stderr, disable=None
    )
    return bar


def _bound_bytes(matrix: KnownMatrix) -> int:
    """Return the size that no archive of a matrix reaches, packed or not."""
    return _MOST_REMARKS + _BYTES_PER_ENTRY * matrix.entries + _BYTES_PER_ROW * (matrix.rows + matrix.cols)


class _BoundedStream:
    """The unpacked bytes of an archive: read forwards, in small pieces, and up to a bound."""

    def __init__(self, stream: gzip.GzipFile, most_bytes: int) -> None:
        self._stream, self._most = stream, most_bytes
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; tarfile asks for as many as a header in the archive says."""
        if size > _CHUNK:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        content = self._stream.read(size)
        if self._stream.tell() > self._most:
            raise tarfile.ReadError(f"more than {self._most:,} bytes, and no such matrix has")
        return content

    def seek(self, place: int) -> int:
        """Read on to a place further behind."""
        if place < self._stream.tell():
            raise tarfile.ReadError("members that overlap")
        while left := min(place - self._stream.tell(), _CHUNK):
            if not self.read(left):
                break
        return self._stream.tell()


def unpack(matrix: KnownMatrix, archive: Path) -> Path:
    """Take NAME/NAME.mtx out of the archive and put it beside; check both to their ends."""
    path = archive.with_name(f"{matrix.name}.mtx")
    try:
        with gzip.open(archive) as stream, open(path, "xb") as file:
            bounded = _BoundedStream(stream, _bound_bytes(matrix))
            _take_member(matrix, bounded, file)
            file.flush()
            os.fsync(file.fileno())
            while bounded.read(_CHUNK):  # behind the last member stands the checksum of all
                pass
        check_content(matrix, path)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise FetchError(
            f"{matrix.name}.tar.gz cannot be unpacked: {error}; run the same command again"
        ) from error
    return path


def _take_member(matrix: KnownMatrix, bounded: _BoundedStream, file: IO[bytes]) -> None:
    """Write the matrix of an archive to a file; every member is a plain file or a folder."""
    wanted, found = f"{matrix.name}/{matrix.name}.mtx", False
    with tarfile.TarFile(fileobj=bounded, mode="r") as pack:  # type: ignore[arg-type]
        for _ in range(_MOST_MEMBERS):
            member = pack.next()
            if member is None:
                break
            pack.members = []  # type: ignore[attr-defined]  # it would keep them all
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise FetchError(
                    f"{member.name!r:.60} in {matrix.name}.tar.gz is neither a file nor a folder; "
                    "check the name and the group"
                )
            if member.name == wanted and member.isreg() and not found:
                found = True
                content = pack.extractfile(member)
                while content and (chunk := content.read(_CHUNK)):
                    file.write(chunk)
        else:
            raise FetchError(
                f"{matrix.name}.tar.gz holds more than {_MOST_MEMBERS} files; no such archive does"
            )
    if not found:
        raise FetchError(f"{matrix.name}.tar.gz holds no {wanted}; check the name and the group")


def check_content(matrix: KnownMatrix, path: Path) -> None:
    """Compare a Matrix Market file's size line with suite.csv, and the number of its lines with that."""
    with open(path, "rb") as file:
        line = b"%"
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline(_LONGEST_LINE)
        sizes = line.decode("latin-1").split()
        if sizes[:2] != [str(matrix.rows), str(matrix.cols)]:
            raise FetchError(
                f"{matrix.name}.mtx has the size line {' '.join(sizes)[:60]!r}; suite.csv says "
                f"{matrix.rows} x {matrix.cols}; one of them is wrong"
            )
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
    # Two of a matrix's entries may share a line, and its last line may lack an end.
    if len(sizes) == 3 and (not sizes[2].isdecimal() or lines < int(sizes[2]) - 1):
        raise FetchError(
            f"{matrix.name}.mtx has {lines:,} lines of the {sizes[2]:.20} that it promises; run the same "
            "command again"
        )


def choose(names: Sequence[str], everything: bool, max_entries: int | None) -> list[KnownMatrix]:
    """Return the matrices that the command line asks for, smallest first."""
    suite = read_suite()
    for name in names:
        if name not in suite:
            near = difflib.get_close_matches(name, suite, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see --list"
            raise FetchError(f"{name} is not in {SUITE.name}; {hint}")
    chosen = [matrix for matrix in suite.values() if everything or matrix.name in names]
    return [matrix for matrix in chosen if max_entries is None or matrix.entries <= max_entries]
