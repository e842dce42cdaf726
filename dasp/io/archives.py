"""Archives of arrays (.npz), with every size bounded before anything is read.

Nothing is unpickled. An archive is refused for members of unknown names before their content is looked at,
and for what its table of contents and the heads of its arrays announce together.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from dasp.io.files import MatrixFileError, open_regular
from dasp.runtime.sizes import refuse_oversize

_MAGIC = b"PK"
_MOST_CONTENTS = 1 << 20
"""Bytes that a table of contents may have: room for thousands of members."""

_LOCAL_HEADER = 30
"""Bytes of the header that stands before each member, without its name."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = "biufcSU"


class Announced(NamedTuple):
    """An array of an archive, before it is read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.size * self.dtype.itemsize


class Archive:
    """An .npz file whose table of contents was checked; made by `open_archive`."""

    def __init__(self, path: Path, members: zipfile.ZipFile, announced: dict[str, Announced]) -> None:
        self.path = path
        self.announced = announced
        self._members = members

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read one array, in native byte order.

        Raises
        ------
        zipfile.BadZipFile, zlib.error, EOFError, ValueError
            If its content is damaged.
        """
        with self._members.open(f"{name}.npy") as file:
            array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):  # at the end the checksum is compared
                raise ValueError(f"{name} goes on after its end")
        return array.astype(array.dtype.newbyteorder("="), copy=False)


class _Bounded:
    """A file that refuses to be read in large pieces, for as long as a bound stands."""

    def __init__(self, file: IO[bytes], bound: int) -> None:
        self._file = file
        self.bound: int | None = bound
        self.seek, self.tell = file.seek, file.tell

    def seekable(self) -> bool:
        """Return True: one can go back."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes.

        Raises
        ------
        zipfile.BadZipFile
            If that is more than the bound.
        """
        if self.bound is not None and size > self.bound:
            raise zipfile.BadZipFile(f"a table of contents of {size:,} bytes")
        return self._file.read(size)


@contextmanager
def open_archive(path: Path, writer: str, known: Callable[[Collection[str]], None]) -> Iterator[Archive]:
    """Open an .npz file.

    Parameters
    ----------
    path : Path
        A regular file.
    writer : str
        The function that writes such files, for messages.
    known : callable
        Is given the names of the members and raises if it cannot use them, before any of them is opened.

    Raises
    ------
    MatrixFileError
        If it is no archive of arrays, has a member twice, or one that is encrypted or lies inside another.
    ValueError
        If an array is not what its head and the table of contents say of it.
    """
    with open_regular(path) as file:
        _check_start(path, writer, file.read(2))
        file.seek(0)
        bounded = _Bounded(file, _MOST_CONTENTS)
        with zipfile.ZipFile(cast(Any, bounded)) as members:
            bounded.bound = None
            names = _read_names(path, members.infolist())
            known(names.keys())
            announced = {name: _read_announced(name, info, members) for name, info in names.items()}
            yield Archive(path, members, announced)


def _check_start(path: Path, writer: str, start: bytes) -> None:
    if start != _MAGIC:
        what = "not an .npz file" if start else "empty"
        raise MatrixFileError(f"{path} is {what}; an .npz of {writer} is needed; write it again")


def _read_names(path: Path, contents: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the names of their arrays; each lies behind the one before it."""
    names: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(contents, key=lambda info: info.header_offset):
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in names:
            what = "twice" if name in names else "and it is no array"
            raise MatrixFileError(f"{path} holds {info.filename!r:.60} {what}; write it again")
        if info.flag_bits & 1 or info.compress_type not in _METHODS or info.header_offset < end:
            raise MatrixFileError(
                f"{path} holds {info.filename!r:.60}, encrypted, packed in an unknown way or inside another "
                "member; write it again"
            )
        end = info.header_offset + _LOCAL_HEADER + len(info.filename) + info.compress_size
        names[name] = info
    return names


def _read_announced(name: str, info: zipfile.ZipInfo, members: zipfile.ZipFile) -> Announced:
    """Read the head of an array, and hold that the member is as long as it says."""
    with members.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{name} is an array of format {version}, not (1, 0)")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
    announced = Announced(dtype, shape)
    if dtype.kind not in _KINDS or min(shape, default=0) < 0:
        raise ValueError(f"{name} has type {dtype} and shape {shape}; real numbers are needed")
    if start + announced.nbytes != info.file_size:
        raise ValueError(
            f"{name} has {info.file_size:,} bytes; its head says {announced.nbytes:,} behind byte {start}"
        )
    return announced


def refuse_oversize_archive(archive: Archive, factor: float, more_bytes: float = 0.0) -> None:
    """Refuse an archive that takes more than half of this machine's memory.

    Parameters
    ----------
    archive : Archive
    factor : float
        Bytes needed for each byte of its arrays.
    more_bytes : float
        Bytes needed besides.

    Raises
    ------
    OversizeError
    """
    total = sum(announced.nbytes for announced in archive.announced.values())
    refuse_oversize(str(archive.path), factor * total + more_bytes, "choose a smaller matrix")
