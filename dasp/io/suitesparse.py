"""Fetch matrices of the SuiteSparse collection by name, from its site into a folder.

Source: Davis and Hu, "The University of Florida sparse matrix collection", ACM TOMS 38 (2011).
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import http.client
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dasp.io.files import replacing

PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = [root / "matrices" / "suite.csv" for root in (PACKAGE, PACKAGE.parent)]
SUITE = next((place for place in _PLACES if place.exists()), _PLACES[0])
"""The list of known matrices: inside the package in a wheel, beside it in a checkout."""
SOURCE = "https://sparse.tamu.edu/MM"
_TIMEOUT_SECONDS = 60


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


def read_suite() -> dict[str, KnownMatrix]:
    """Return the known matrices by name, smallest first."""
    with open(SUITE, newline="", encoding="utf-8") as file:
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
    """Download a matrix and unpack it as it arrives; gzip's checksum tells whether it is whole.

    Parameters
    ----------
    matrix : KnownMatrix
    folder : Path
        An existing folder, in which NAME.mtx is written.
    source : str
        The address under which GROUP/NAME.tar.gz lies.

    Returns
    -------
    Path
        The .mtx file.

    Raises
    ------
    FetchError
        If there is no network or no such file, or if the archive is not whole or lacks the matrix.
    MatrixFileError
        If the file cannot be written.
    """
    target = folder / f"{matrix.name}.mtx"
    address = f"{source.rstrip('/')}/{matrix.group}/{matrix.name}.tar.gz"
    with replacing(target) as file:
        try:
            with (
                urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as reply,
                _add_bar(reply) as content,
            ):
                _take_matrix(matrix.name, content, file)
        except urllib.error.HTTPError as error:
            raise FetchError(
                f"{address} answered {error.code} {error.reason}; check the name and the group"
            ) from error
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FetchError(f"{address} cannot be unpacked: {error}; run the same command again") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", "") or str(error) or type(error).__name__
            raise FetchError(f"{address} cannot be fetched: {reason}; try again later") from error
    return target


def _add_bar(reply: http.client.HTTPResponse) -> contextlib.AbstractContextManager[Any]:
    """Return the reply; reading it draws a progress bar on a terminal, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext(reply)
    length = int(reply.headers.get("Content-Length") or 0) or None
    bar: contextlib.AbstractContextManager[Any] = tqdm.wrapattr(
        reply, "read", total=length, file=sys.stderr, disable=None
    )
    return bar


def _take_matrix(name: str, packed: IO[bytes], file: IO[bytes]) -> None:
    """Write NAME/NAME.mtx of a gzipped archive to a file; read on to the archive's checksum."""
    found = False
    with gzip.GzipFile(fileobj=packed) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.name == f"{name}/{name}.mtx" and member.isreg() and not found:
                    found = True
                    shutil.copyfileobj(cast(IO[bytes], archive.extractfile(member)), file)
        while stream.read(1 << 20):  # the checksum follows the last member
            pass
    if not found:
        raise FetchError(f"the archive of {name} holds no {name}/{name}.mtx; check the name and the group")


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
