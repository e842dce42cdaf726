"""Fetch matrices of the SuiteSparse collection that `suite.csv` lists into the folder DASP_MATRICES.

    python matrices/fetch.py --list
    python matrices/fetch.py cant webbase-1M
    python matrices/fetch.py --all --max-entries 10000000

Each matrix becomes NAME.mtx, which `dasp` then finds by its name. A broken download is resumed by the next
run. The SHA-256 of a download is compared with the one in suite.csv, or with the one that SHA256SUMS in
the folder holds from an earlier download; a new one is added there. Nothing but the standard library is
needed; tqdm, if it is installed, shows the progress.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import difflib
import hashlib
import http.client
import os
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SUITE = Path(__file__).with_name("suite.csv")
SOURCE = "https://sparse.tamu.edu/MM"
_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60


class FetchError(Exception):
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
    archive = folder / f"{matrix.name}.tar.gz.partial"
    download(f"{source.rstrip('/')}/{matrix.group}/{matrix.name}.tar.gz", archive)
    try:
        check_digest(matrix, archive, folder / "SHA256SUMS")
        target = unpack(matrix, archive, folder)
    finally:
        archive.unlink(missing_ok=True)
    return target


def download(address: str, target: Path) -> None:
    """Download to a file, from where an earlier attempt ended if the server allows that."""
    have = target.stat().st_size if target.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as reply:
            resumed = have > 0 and reply.status == http.HTTPStatus.PARTIAL_CONTENT
            total = int(reply.headers.get("Content-Length") or 0)
            start = have if resumed else 0
            with open(target, "ab" if resumed else "wb") as file:
                copied = _copy(reply, file, target.name.removesuffix(".partial"), start, start + total)
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


def _copy(source: IO[bytes], target: IO[bytes], title: str, start: int, total: int) -> int:
    copied = 0
    with _progress(title, start, total) as bar:
        while chunk := source.read(_CHUNK):
            target.write(chunk)
            copied += len(chunk)
            bar.update(len(chunk))
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


def check_digest(matrix: Matrix, archive: Path, sums: Path) -> None:
    """Compare a download with the digest known for it; record the digest of one that is new."""
    with open(archive, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    name = f"{matrix.name}.tar.gz"
    recorded = {}
    if sums.exists():
        recorded = {
            line.split()[-1]: line.split()[0] for line in sums.read_text().splitlines() if line.strip()
        }
    known = matrix.sha256 or recorded.get(name)
    if known and known != found:
        raise FetchError(
            f"{name} has SHA-256 {found}; {known} is known for it; the download was removed; try again"
        )
    if name not in recorded:
        with open(sums, "a") as file:
            file.write(f"{found}  {name}\n")


def unpack(matrix: Matrix, archive: Path, folder: Path) -> Path:
    """Take NAME/NAME.mtx out of the archive, and nothing else; check its size line."""
    target, partial = folder / f"{matrix.name}.mtx", folder / f"{matrix.name}.mtx.partial"
    member = f"{matrix.name}/{matrix.name}.mtx"
    try:
        with tarfile.open(archive, "r:gz") as pack:
            content = pack.extractfile(member)
            if content is None:
                raise FetchError(f"{member} is no file in {matrix.name}.tar.gz; check the name and the group")
            with content, open(partial, "wb") as file:
                while chunk := content.read(_CHUNK):
                    file.write(chunk)
        check_size(matrix, partial)
        os.replace(partial, target)
    except KeyError as error:
        raise FetchError(f"{matrix.name}.tar.gz holds no {member}; check the name and the group") from error
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise FetchError(
            f"{matrix.name}.tar.gz cannot be unpacked: {error}; run the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def check_size(matrix: Matrix, path: Path) -> None:
    """Compare the rows and columns of a Matrix Market file with those of suite.csv."""
    with open(path, encoding="latin-1") as file:
        line = next((line for line in file if line.strip() and not line.startswith("%")), "")
    if line.split()[:2] != [str(matrix.rows), str(matrix.cols)]:
        raise FetchError(
            f"{matrix.name}.mtx has the size line {line.strip()[:60]!r}; suite.csv says "
            f"{matrix.rows} x {matrix.cols}; one of them is wrong"
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Fetch matrices of the SuiteSparse collection.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="matrices of suite.csv")
    parser.add_argument("--all", action="store_true", help="every matrix of suite.csv")
    parser.add_argument("--max-entries", type=int, help="leave out larger ones")
    parser.add_argument("--list", action="store_true", help="print what suite.csv lists, and fetch nothing")
    parser.add_argument("--folder", type=Path, help="where to (default: the environment's DASP_MATRICES)")
    parser.add_argument("--url", default=SOURCE, help=f"where GROUP/NAME.tar.gz lies ({SOURCE})")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch what the command line names; return the exit status, 2 if anything failed."""
    arguments = _parser().parse_args(argv)
    try:
        chosen = choose(arguments.names, arguments.all or arguments.list, arguments.max_entries)
        if arguments.list:
            for matrix in chosen:
                size = f"{matrix.rows:>10,} x {matrix.cols:<10,}"
                print(f"{matrix.name:30} {size} {matrix.entries:>12,} {matrix.kind}")
            return 0
        if not chosen:
            raise FetchError("no matrix was chosen; name some, or give --all; see --list")
        folder = arguments.folder or Path(os.environ.get("DASP_MATRICES") or "")
        if folder == Path():
            raise FetchError(
                "DASP_MATRICES is not set; it must name the folder for matrices; or give --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except (FetchError, OSError) as error:
        print(f"fetch: error: {error}", file=sys.stderr)
        return 2
    return max(_fetch_one(matrix, folder, arguments.url) for matrix in chosen)


def _fetch_one(matrix: Matrix, folder: Path, source: str) -> int:
    target = folder / f"{matrix.name}.mtx"
    if target.exists():
        print(f"{target} is there already")
        return 0
    try:
        print(fetch(matrix, folder, source))
    except (FetchError, OSError, ValueError) as error:
        print(f"fetch: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
