"""Open and replace files safely: regular files only, errors of one line, no half-written file left."""

from __future__ import annotations

import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dasp.runtime.sizes import OversizeError

_FAULTS: tuple[tuple[type[Exception], str, str], ...] = (
    (gzip.BadGzipFile, "is damaged", "download or write it again"),
    (OSError, "cannot be read", "a readable file is needed"),
    (EOFError, "was cut short", "download or write it again"),
    (MemoryError, "does not fit in this machine's memory", "choose a smaller matrix"),
    # SciPy and NumPy raise nearly every kind of error on damaged input; the cause stays for a debugger.
    (Exception, "is damaged", "download or write it again"),
)
"""Error that reading a file raised, fault of the file, remedy; the first row that fits is used."""


class MatrixFileError(ValueError):
    """A matrix or a plan could not be read or written; the message is one line for the user."""

    def __init__(self, message: str) -> None:
        """Keep the message, on one line."""
        super().__init__(" ".join(message.split()))


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file, or a link to one, for reading; never wait for the writer of a pipe.

    Raises
    ------
    MatrixFileError
        If the path is a folder, a pipe or a device.
    OSError
        If the file cannot be opened.
    """
    _refuse_other_kinds(path)
    return open(path, "rb")


def _refuse_other_kinds(path: Path) -> None:
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device"
        raise MatrixFileError(f"{path} is {kind}; a regular file is needed")


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a MatrixFileError that names the file."""
    try:
        yield
    except MatrixFileError:
        raise
    except OversizeError as error:
        raise MatrixFileError(str(error)) from error
    except Exception as error:
        fault, remedy = next((fault, remedy) for kind, fault, remedy in _FAULTS if isinstance(error, kind))
        reason = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
        # Some errors quote whole members of a damaged archive.
        raise MatrixFileError(f"{path} {fault} ({reason:.300}); {remedy}") from error


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `target` once all of it is on the disk.

    Its name, in the folder of `target`, is unpredictable, so that two writers of one target do not collide.
    If anything is raised, the new file is removed and an older one stays as it was.

    Raises
    ------
    MatrixFileError
        If `target` cannot be written, or exists and is no regular file.
    """
    partial = target.parent / f".{secrets.token_hex(8)}.partial"
    try:
        _refuse_other_kinds(target)
        try:
            with open(partial, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise MatrixFileError(
            f"{target} cannot be written: {error.strerror or error}; name a file in a writable folder"
        ) from error
