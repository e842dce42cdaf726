"""Matrices of the SuiteSparse collection, fetched from its site by name into a folder.

A broken download is resumed by the next one. The SHA-256 of an archive is compared with the one in suite.csv,
or with the one that SHA256SUMS in the folder holds from an earlier download. One that is new is added there
when the archive and the matrix in it were found whole and of the sizes that suite.csv lists. What an archive
unpacks to is bounded by those sizes, and links in it are refused.

Source: Davis and Hu, "The University of Florida sparse matrix collection", ACM TOMS 38 (2011).
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import hashlib
import http.client
import os
import secrets
import stat
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
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
    sums = folder / "SHA256SUMS"
    with _kept_partial(folder, matrix.name) as (archive, file):
        download(f"{source.rstrip('/')}/{matrix.group}/{matrix.name}.tar.gz", file, _most_bytes(matrix))
        try:
            digest = check_digest(matrix, file, sums)
            target = unpack(matrix, file, folder)
            record_digest(matrix, digest, sums)
        finally:
            archive.unlink(missing_ok=True)
    return target


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
            if not os.fstat(file.fileno()).st_size:
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


def download(address: str, file: IO[bytes], most_bytes: int) -> None:
    """Download to the end of a file, from where an earlier attempt ended if the server allows that."""
    have = file.seek(0, os.SEEK_END)
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:
            if not (have and _goes_on(reply, have)):
                have = file.seek(0)
                file.truncate()
            total = int(reply.headers.get("Content-Length") or 0)
            title = address.rpartition("/")[2]
            copied = _copy(reply, file, title, have, have + total, most_bytes)
        if total and copied != total:
            raise FetchError(
                f"{address} ended after {copied:,} of {total:,} bytes; run the same command again to go on"
            )
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # nothing is left to fetch; the digest and the archive's own sums tell whether it is whole
        raise FetchError(
            f"{address} answered {error.code} {error.reason}; check the name and the group"
        ) from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error) or type(error).__name__
        raise FetchError(
            f"{address} cannot be reached: {reason}; fetching needs a network; try again later"
        ) from error


def _goes_on(reply: Any, have: int) -> bool:
    """Whether a reply holds what follows the first `have` bytes, and not all of them again."""
    given = str(reply.headers.get("Content-Range") or f"bytes {have}-")
    partial: bool = reply.status == http.HTTPStatus.PARTIAL_CONTENT
    return partial and given.startswith(f"bytes {have}-")


def _copy(source: IO[bytes], target: IO[bytes], title: str, start: int, total: int, most_bytes: int) -> int:
    copied = 0
    with _progress(title, start, total) as bar:
        while chunk := source.read(_CHUNK):
            copied += len(chunk)
            if start + copied > most_bytes:
                target.truncate(0)
                raise FetchError(f"{title} has more than {most_bytes:,} bytes; no such matrix has; try again")
            target.write(chunk)
            bar.update(len(chunk))
    target.flush()
    return copied


class _Silent:
    """Stands for a progress bar where there is none."""

    def update(self, count: int) -> None:
        """Do nothing."""


def _progress(title: str, start: int, total: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext(_Silent())
    return tqdm(desc=title, initial=start, total=total or None, unit="B", unit_scale=True, disable=None)


def check_digest(matrix: Matrix, archive: IO[bytes], sums: Path) -> str:
    """Compare a download with the digest known for it, if one is; return its own."""
    archive.seek(0)
    found = hashlib.file_digest(archive, "sha256").hexdigest()  # type: ignore[arg-type]
    name = f"{matrix.name}.tar.gz"
    known = matrix.sha256 or read_digests(sums).get(name)
    if known and known != found:
        raise FetchError(
            f"{name} has SHA-256 {found}; {known} is known for it; the download was removed; try again"
        )
    return found


def read_digests(sums: Path) -> dict[str, str]:
    """Read the digests by file name; lines of another form are passed over."""
    digests = {}
    with contextlib.suppress(FileNotFoundError):
        for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if len(words) == 2 and len(words[0]) == hashlib.sha256().digest_size * 2:
                digests[words[1].removeprefix("*")] = words[0].lower()
    return digests


def record_digest(matrix: Matrix, digest: str, sums: Path) -> None:
    """Add a digest to those of earlier downloads, if it is new."""
    name = f"{matrix.name}.tar.gz"
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


def unpack(matrix: Matrix, archive: IO[bytes], folder: Path) -> Path:
    """Take NAME/NAME.mtx out of the archive, and nothing else; check both to their ends."""
    target, partial = folder / f"{matrix.name}.mtx", folder / f".{secrets.token_hex(8)}.partial"
    try:
        archive.seek(0)
        with gzip.GzipFile(fileobj=archive) as stream:
            bounded = _Bounded(stream, _most_bytes(matrix))
            with os.fdopen(
                os.open(partial, _flags(os.O_WRONLY | os.O_CREAT | os.O_EXCL), 0o666), "wb"
            ) as file:
                _take_member(matrix, bounded, file)
                file.flush()
                os.fsync(file.fileno())
            while bounded.read(_CHUNK):  # behind the last member stands the checksum of all
                pass
        check_content(matrix, partial)
        os.replace(partial, target)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise FetchError(
            f"{matrix.name}.tar.gz cannot be unpacked: {error}; run the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


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
