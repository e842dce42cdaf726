"""Matrices of the SuiteSparse collection, fetched from its site by name into a folder.

Pooch downloads, and compares the SHA-256 of an archive with the one in suite.csv, or with the one that
SHA256SUMS in the folder holds from an earlier download. One that is new is added there when the archive and
the matrix in it were found whole and of the sizes that suite.csv lists. Beyond what pooch does, a broken
download is resumed by the next one; what is downloaded, and what it unpacks to, is bounded by those sizes;
and links in it are refused.

Source: Davis and Hu, "The University of Florida sparse matrix collection", ACM TOMS 38 (2011).
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import importlib.util
import os
import re
import secrets
import stat
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = [root / "matrices" / "suite.csv" for root in (PACKAGE, PACKAGE.parent)]
SUITE = next((place for place in _PLACES if place.exists()), _PLACES[0])
"""The matrices that are known by name: inside the package in a wheel, beside it in a checkout."""
SOURCE = "https://sparse.tamu.edu/MM"
_CHUNK = 1 << 20
_PIECE = 1 << 16
"""Bytes of a download that are written at once; where it breaks, the last piece is lost."""

_TIMEOUT_SECONDS = 60
_MOST_REMARKS, _BYTES_PER_ENTRY, _BYTES_PER_ROW = 1 << 24, 128, 256
"""Generous sizes of what a file holds besides its entries, of the line of an entry, and of a row or a column
in the files that come with a matrix (right-hand sides, coordinates, names)."""

_MOST_MEMBERS = 1000
_LONGEST_LINE = 1 << 16


class FetchError(RuntimeError):
    """A matrix could not be fetched; the message is one line for the user."""


@dataclass(frozen=True)
class Matrix:
    """A line of suite.csv; `entries` counts what the file stores, explicit zeros too."""

    name: str
    group: str
    rows: int
    cols: int
    entries: int
    kind: str
    sha256: str


def read_suite(path: Path = SUITE) -> dict[str, Matrix]:
    """Read the list of known matrices, by name, smallest first."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = [
            Matrix(
                line["name"],
                line["group"],
                int(line["rows"]),
                int(line["cols"]),
                int(line["entries"]),
                line["kind"],
                line["sha256"],
            )
            for line in csv.DictReader(file)
        ]
    return {matrix.name: matrix for matrix in sorted(lines, key=lambda matrix: matrix.entries)}


def fetch(matrix: Matrix, folder: Path, source: str = SOURCE) -> Path:
    """Download, verify and unpack one matrix.

    Parameters
    ----------
    matrix : Matrix
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
        If there is no network or no such file, or if what came differs from what is known of the matrix.
    """
    import pooch

    sums, name = folder / "SHA256SUMS", f"{matrix.name}.tar.gz"
    address = f"{source.rstrip('/')}/{matrix.group}/{name}"
    known = matrix.sha256 or read_digests(sums).get(name)
    target = folder / f"{matrix.name}.mtx"
    # Nobody else can plant anything in a folder of our own, and what is in it can be renamed into the other.
    with tempfile.TemporaryDirectory(prefix=f".{matrix.name}.", dir=folder) as own:
        archive = Path(own) / name
        _download(address, archive, known, partial(_resume, matrix, folder))
        digest = pooch.file_hash(archive)
        os.replace(unpack(matrix, archive), target)
    record_digest(name, digest, sums)
    return target


def _download(address: str, archive: Path, known: str | None, downloader: Any) -> None:
    """Download an archive by pooch, which compares its digest if one is known."""
    import pooch
    import requests

    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            address,
            known_hash=f"sha256:{known}" if known else None,
            fname=archive.name,
            path=archive.parent,
            downloader=downloader,
        )
    except requests.HTTPError as error:
        answer: Any = error.response
        raise FetchError(
            f"{address} answered {answer.status_code} {answer.reason}; check the name and the group"
        ) from error
    except requests.RequestException as error:
        cause = getattr(error.args[0], "reason", error) if error.args else error
        reason = str(cause).rpartition(": ")[2]
        raise FetchError(
            f"{address} cannot be reached: {reason}; fetching needs a network; try again later"
        ) from error
    except ValueError as error:
        raise FetchError(
            f"{archive.name} has another SHA-256 than {known}, which is known for it; the download was "
            "removed; try again"
        ) from error


def _resume(matrix: Matrix, folder: Path, address: str, output: str, _: Any) -> None:
    """Download for pooch, by way of a file that outlives a failure and that the next attempt goes on with."""
    with _kept_partial(folder, matrix.name) as (path, file):
        _Reply(file, _most_bytes(matrix)).read(address)
        if os.name == "nt":  # an open file cannot be renamed there, nor is it locked
            file.close()
        os.replace(path, output)


class _Reply:
    """Takes what pooch reads from a server: behind what there is, or in its place, and up to a bound."""

    def __init__(self, file: IO[bytes], most_bytes: int) -> None:
        self._file, self._most = file, most_bytes
        self._have = file.seek(0, os.SEEK_END)
        self._begun = False
        self._end: int | None = None
        self.flush = file.flush

    def read(self, address: str) -> None:
        """Download the rest of a file."""
        import pooch
        import requests

        headers = {"Accept-Encoding": "identity"}
        if self._have:
            headers["Range"] = f"bytes={self._have}-"
        download = pooch.HTTPDownloader(
            progressbar=bool(importlib.util.find_spec("tqdm")) and sys.stderr.isatty(),
            chunk_size=_PIECE,
            headers=headers,
            timeout=_TIMEOUT_SECONDS,
            hooks={"response": self._begin},
        )
        try:
            download(address, self, None)
        except requests.HTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if not (self._have and status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                raise
            return  # nothing is left to fetch; the digest and the archive's own sums tell whether it is whole
        except requests.RequestException as error:
            if not self._begun:
                raise
            raise self._short(address) from error
        if self._end is not None and self._file.tell() < self._end:
            raise self._short(address)

    def _begin(self, response: Any, **_: Any) -> None:
        """Look at the head of a reply: does it go on, or hold everything again?"""
        if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            return
        given = response.headers.get("Content-Range", f"bytes {self._have}-")
        if response.status_code == HTTPStatus.OK or not given.startswith(f"bytes {self._have}-"):
            self._file.seek(0)
            self._file.truncate()
        length = response.headers.get("Content-Length", "")
        self._begun = True
        self._end = self._file.tell() + int(length) if length.isdecimal() else None

    def _short(self, address: str) -> FetchError:
        whole = "" if self._end is None else f" of {self._end:,}"
        return FetchError(
            f"{address} ended after {self._file.tell():,}{whole} bytes; run the same command again to go on"
        )

    def write(self, content: bytes) -> None:
        """Take some bytes."""
        if self._file.tell() + len(content) > self._most:
            self._file.truncate(0)
            self._file.seek(0)
            raise FetchError(
                f"the download has more than {self._most:,} bytes; no such matrix has; try again"
            )
        self._file.write(content)


def _most_bytes(matrix: Matrix) -> int:
    """Return the size that no archive of a matrix reaches, packed or not."""
    return _MOST_REMARKS + _BYTES_PER_ENTRY * matrix.entries + _BYTES_PER_ROW * (matrix.rows + matrix.cols)


@contextlib.contextmanager
def _kept_partial(folder: Path, name: str) -> Iterator[tuple[Path, IO[bytes]]]:
    """Open the file of an earlier attempt, or a new one under an unpredictable name; it is locked meanwhile.

    A link, a pipe, a file of somebody else's and one that another process has locked are no earlier attempt.
    """
    for path in sorted(folder.glob(f".{name}.*.partial")):
        file = _claim(path)
        if file is not None:
            break
    else:
        path = folder / f".{name}.{secrets.token_hex(8)}.partial"
        file = os.fdopen(os.open(path, _flags(os.O_RDWR | os.O_CREAT | os.O_EXCL), 0o666), "r+b")
        _lock(file)
    with file:
        try:
            yield path, file
        finally:
            if not file.closed and not os.fstat(file.fileno()).st_size:
                path.unlink(missing_ok=True)


def _claim(path: Path) -> IO[bytes] | None:
    try:
        file = os.fdopen(os.open(path, _flags(os.O_RDWR)), "r+b")
    except OSError:
        return None
    locked, state = _lock(file), os.fstat(file.fileno())
    owned = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
    if locked and owned and stat.S_ISREG(state.st_mode) and state.st_nlink == 1:
        return file
    file.close()
    return None


def _flags(flags: int) -> int:
    """Return the flags that open a file itself, and neither what a link points to nor the end of a pipe."""
    return flags | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def _lock(file: IO[bytes]) -> bool:
    """Lock a file against other runs of this program, where the system can; tell whether none has it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        return False
    return True


def read_digests(sums: Path) -> dict[str, str]:
    """Read the digests by file name; lines of another form are passed over."""
    digests = {}
    with contextlib.suppress(FileNotFoundError):
        for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if len(words) == 2 and re.fullmatch("[0-9A-Fa-f]{64}", words[0]):
                digests[words[1].removeprefix("*")] = words[0].lower()
    return digests


def record_digest(name: str, digest: str, sums: Path) -> None:
    """Add the digest of a file to those of earlier downloads, if it is new."""
    if name in read_digests(sums):
        return
    with os.fdopen(os.open(sums, _flags(os.O_RDWR | os.O_APPEND | os.O_CREAT), 0o666), "r+b") as file:
        content = file.read()
        torn = b"\n" if content and not content.endswith(b"\n") else b""
        file.write(torn + f"{digest}  {name}\n".encode())


class _Bounded:
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


def unpack(matrix: Matrix, archive: Path) -> Path:
    """Take NAME/NAME.mtx out of the archive and put it beside; check both to their ends."""
    path = archive.with_name(f"{matrix.name}.mtx")
    try:
        with gzip.open(archive) as stream, open(path, "xb") as file:
            bounded = _Bounded(stream, _most_bytes(matrix))
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


def _take_member(matrix: Matrix, bounded: _Bounded, file: IO[bytes]) -> None:
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


def check_content(matrix: Matrix, path: Path) -> None:
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


def choose(names: Sequence[str], everything: bool, max_entries: int | None) -> list[Matrix]:
    """The matrices that the command line asks for, smallest first."""
    suite = read_suite()
    for name in names:
        if name not in suite:
            near = difflib.get_close_matches(name, suite, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see --list"
            raise FetchError(f"{name} is not in {SUITE.name}; {hint}")
    chosen = [matrix for matrix in suite.values() if everything or matrix.name in names]
    return [matrix for matrix in chosen if max_entries is None or matrix.entries <= max_entries]
