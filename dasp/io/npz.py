"""Archives of arrays (.npz), and the matrices of `scipy.sparse.save_npz` in them: sizes first, then contents.

Nothing is unpickled. An archive is refused for members of unknown names before their content is looked at,
and for what its table of contents and the heads of its arrays announce together. Every index of a matrix is
checked before SciPy's compiled code reads it.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dasp.formats.csr.matrix import check_compressed, check_entries
from dasp.io.files import MatrixFileError, open_regular
from dasp.runtime.sizes import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

# ---- matrices --------------------------------------------------------------------------------------------

_ARRAYS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}
"""The arrays that `scipy.sparse.save_npz` writes for each format, besides the three below."""

_HEADS = {"format", "shape", "_is_array"}


def read_npz(path: Path) -> csr_array:
    """Read a file of `scipy.sparse.save_npz`; never unpickle; check every index."""
    with open_archive(path, "scipy.sparse.save_npz", partial(_check_names, path)) as archive:
        form, shape = _read_heads(archive)
        announced = {name: archive.announced[name] for name in _ARRAYS[form]}
        _check_announced(path, form, shape, announced)
        entries = announced["data"].size
        refuse_oversize(
            f"{path} with {shape[0]:,} rows and {entries:,} values",
            BYTES_PER_ENTRY * entries + BYTES_PER_ROW * shape[0] + BYTES_PER_COLUMN * shape[1],
            "choose a smaller matrix",
        )
        arrays = [archive.read(name) for name in _ARRAYS[form]]
    return _to_csr(form, shape, arrays)


def _check_names(path: Path, names: Collection[str]) -> None:
    """Check that the members are those of a matrix in one of SciPy's formats."""
    if "dasp_plan" in names:
        raise MatrixFileError(f"{path} is a saved plan; a matrix is needed; load it with dasp.load_plan")
    known = any(set(names) - _HEADS == set(arrays) for arrays in _ARRAYS.values())
    if not known or not {"format", "shape"} <= set(names):
        shown = ", ".join(sorted(f"{name:.20}" for name in names)[:6])
        raise MatrixFileError(
            f"{path} has the arrays {shown or '(none)'}; those of a sparse matrix are needed; "
            "write it with scipy.sparse.save_npz"
        )


def _read_heads(archive: Archive) -> tuple[str, tuple[int, int]]:
    """Read the format and the shape, which are short."""
    for name in _HEADS & archive.announced.keys():
        if archive.announced[name].nbytes > 64:
            raise ValueError(f"{name} has {archive.announced[name].nbytes:,} bytes")
    form, shape = archive.read("format").item(), archive.read("shape")
    form = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if set(_ARRAYS.get(form, ())) != archive.announced.keys() - _HEADS:
        raise ValueError(f"its format is {form!r:.20}, which its arrays are not of")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or not (0 <= shape.min() <= shape.max() < 2**63):
        raise ValueError(f"its shape is {shape.tolist()!r:.60}")
    return form, (int(shape[0]), int(shape[1]))


def _check_announced(path: Path, form: str, shape: tuple[int, int], announced: dict[str, Announced]) -> None:
    """Check that values are numbers and indices integers, of as many dimensions as the format has."""
    if announced["data"].dtype.kind not in "biufc":
        raise MatrixFileError(f"{path} holds values of type {announced['data'].dtype}; numbers are needed")
    for name, array in announced.items():
        if name != "data" and (array.dtype.kind not in "iu" or len(array.shape) != 1):
            raise ValueError(
                f"{name} is of type {array.dtype} and shape {array.shape}, not a list of integers"
            )
    sizes = announced["data"].shape
    if len(sizes) != {"bsr": 3, "dia": 2}.get(form, 1):
        raise ValueError(f"data has shape {sizes}")
    if form == "bsr" and any(
        not size or length % size for size, length in zip(sizes[1:], shape, strict=True)
    ):
        raise ValueError(f"its blocks have shape {sizes[1:]}, of which {shape} is no multiple")


def _to_csr(form: str, shape: tuple[int, int], arrays: list[np.ndarray[Any, Any]]) -> csr_array:
    """Let SciPy make and convert the matrix; every index is checked before its compiled code reads it."""
    make = getattr(scipy.sparse, f"{form}_array")
    if form == "coo":
        data, *coords = arrays
        check_entries(shape, coords[0], coords[1], data)
        matrix = csr_array(make((data, tuple(coords)), shape=shape))
        if data.dtype.kind in "iu" and matrix.nnz < len(data):
            _check_sums(data, make((np.abs(data.astype(np.float64)), tuple(coords)), shape=shape))
        return matrix
    if form == "dia":
        data, offsets = arrays
        if len(offsets) != len(data):
            raise ValueError(f"it has {len(offsets)} offsets and {len(data)} diagonals")
        inside = (offsets > -shape[0]) & (offsets < shape[1])
        return csr_array(make((data[inside], offsets[inside]), shape=shape))
    data, indices, indptr = arrays
    lines, places = shape[::-1] if form == "csc" else shape
    if form == "bsr":
        lines, places = lines // data.shape[1], places // data.shape[2]
    # SciPy looks at the last of indptr first, and no further where that is 0.
    end = int(indptr[-1]) if len(indptr) else 0
    if 0 <= end <= min(len(indices), len(data)):
        data, indices = data[:end], indices[:end]
    check_compressed(form.upper(), (lines, places), indptr, indices, data)
    return csr_array(make((data, indices, indptr), shape=shape))


def _check_sums(data: np.ndarray[Any, Any], sizes: Any) -> None:
    """Check that the integers at each place can be summed; their sizes are given."""
    if csr_array(sizes).data.max() >= np.iinfo(data.dtype).max:
        raise ValueError(f"the sum of several entries at one place may be beyond {data.dtype}")


# ---- archives --------------------------------------------------------------------------------------------


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
        start = file.read(2)
        if start != b"PK":
            what = "not an .npz file" if start else "empty"
            raise MatrixFileError(f"{path} is {what}; an .npz of {writer} is needed; write it again")
        file.seek(0)
        bounded = _Bounded(file, 1 << 20)  # a table of contents of thousands of members
        with zipfile.ZipFile(cast(Any, bounded)) as members:
            bounded.bound = None
            names = _read_names(path, members.infolist())
            known(names.keys())
            announced = {name: _read_announced(name, info, members) for name, info in names.items()}
            yield Archive(path, members, announced)


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


def _read_names(path: Path, contents: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the names of their arrays; each lies behind the one before it."""
    names: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(contents, key=lambda info: info.header_offset):
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in names:
            what = "twice" if name in names else "and it is no array"
            raise MatrixFileError(f"{path} holds {info.filename!r:.60} {what}; write it again")
        usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if info.flag_bits & 1 or not usual or info.header_offset < end:
            raise MatrixFileError(
                f"{path} holds {info.filename!r:.60}, encrypted, packed in an unknown way or inside another "
                "member; write it again"
            )
        # 30 bytes stand before the name of each member.
        end = info.header_offset + 30 + len(info.filename) + info.compress_size
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
    if dtype.kind not in "biufcSU" or min(shape, default=0) < 0:
        raise ValueError(f"{name} has type {dtype} and shape {shape}; real numbers are needed")
    if start + announced.nbytes != info.file_size:
        raise ValueError(
            f"{name} has {info.file_size:,} bytes; its head says {announced.nbytes:,} behind byte {start}"
        )
    return announced
