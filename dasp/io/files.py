"""Files opened and replaced with care: regular ones only, errors of one line, no half file left behind."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dasp.runtime.sizes import OversizeError

_AGAIN = "download or write it again"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class MatrixFileError(ValueError):
    """A matrix or a plan could not be read or written; the message is one line for the user."""

    def __init__(self, message: str) -> None:
        """Keep the message, on one line."""
        super().__init__(" ".join(message.split()))


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading, or a link to one; never waits for a writer of a pipe.

    Raises
    ------
    MatrixFileError
        If it is of another kind.
    OSError
        If it cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        kind = _find_kind(os.fstat(descriptor).st_mode)
        if kind:
            raise MatrixFileError(f"{path} is {kind}; a regular file is needed")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _find_kind(mode: int) -> str:
    """Return the kind of a file in words; "" for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no regular file")


@contextmanager
def one_line_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a MatrixFileError that names the file."""
    try:
        yield
    except MatrixFileError:
        raise
    except OversizeError as error:
        raise MatrixFileError(str(error)) from error
    except gzip.BadGzipFile as error:
        raise MatrixFileError(
            f"{path} is damaged ({_shorten_reason(error)}); a gzip file is needed; {_AGAIN}"
        ) from error
    except EOFError as error:
        raise MatrixFileError(f"{path} was cut short; the whole file is needed; {_AGAIN}") from error
    except (zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise MatrixFileError(
            f"{path} is damaged or cut short ({_shorten_reason(error)}); {_AGAIN}"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise MatrixFileError(f"{path} cannot be read: {reason}; a readable file is needed") from error
    except MemoryError as error:
        raise MatrixFileError(
            f"{path} does not fit in this machine's memory; choose a smaller matrix"
        ) from error
    except Exception as error:
        # SciPy and NumPy raise nearly every kind on damaged input; the cause stays for a debugger.
        raise MatrixFileError(f"{path} is damaged: {_shorten_reason(error)}; {_AGAIN}") from error


def _shorten_reason(error: Exception) -> str:
    """Return the text of an error, shortened: some quote whole members of a damaged archive."""
    return f"{str(error).rstrip('.') or type(error).__name__:.300}"


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `target` when all of it is on the disk.

    It has an unpredictable name in the folder of `target` and is opened only if nothing has that name, so
    that savers of one target do not meet, and no link is followed. Where anything is raised, and where the
    disk is full, nothing is left behind and an older file stays as it was.

    Raises
    ------
    MatrixFileError
        If `target` cannot be written, or is there and is no regular file.
    """
    partial = target.parent / f".{secrets.token_hex(8)}.partial"
    try:
        try:
            _refuse_other_kinds(target)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            with os.fdopen(os.open(partial, flags, 0o666), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
    except OSError as error:
        raise MatrixFileError(
            f"{target} cannot be written: {error.strerror or error}; name a file in a writable folder"
        ) from error
    _settle(target.parent)


def _refuse_other_kinds(target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        kind = _find_kind(target.stat().st_mode)
        if kind:
            raise MatrixFileError(f"{target} is {kind}; a regular file, or a new one, is needed")


def _settle(folder: Path) -> None:
    """Write the folder's new entry to the disk too, if the system can open a folder for that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
