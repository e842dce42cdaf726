"""Matrices in from files, names and models; plans saved and loaded.

`load_matrix` turns what a user types into a matrix. Whatever is wrong with it comes back as a
`MatrixFileError` of one line: what was given, what is needed, what to do.
"""

from __future__ import annotations

import difflib
import gzip
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.io
import scipy.sparse
from scipy.sparse import csr_array

from dasp import models
from dasp._memory import OversizeError, refuse_oversize
from dasp.io.plans import check_plan, pack_plan, unpack_plan
from dasp.plan import Plan

__all__ = ["MatrixFileError", "load_matrix", "load_plan", "save_plan"]

FOLDER_VARIABLE = "DASP_MATRICES"
"""The environment variable that names the folder of the matrix collection."""

_SUFFIXES = (".npz", ".mtx", ".mtx.gz")
_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGIC = b"PK"
_LONGEST_LINE = 1 << 16
# The shortest entry of a Matrix Market file is "1 1" and its line end; gzip shrinks no more than this.
_SHORTEST_ENTRY = 4
_LARGEST_GZIP_RATIO = 1032
_BYTES_PER_ENTRY = 64
_BYTES_PER_ROW = 32


class MatrixFileError(ValueError):
    """A matrix or a plan could not be read; the message is one line for the user."""

    def __init__(self, message: str) -> None:
        """Keep the message, on one line."""
        super().__init__(" ".join(message.split()))


def load_matrix(spec: str | os.PathLike[str], *, seed: int = 0) -> csr_array:
    """Load or build the matrix that a user names.

    Parameters
    ----------
    spec : str or path
        A model (``poisson3d:100``, see `dasp.models.families`), a file (.mtx, .mtx.gz, or an .npz of
        `scipy.sparse.save_npz`), or a name found in the folder that the environment variable
        DASP_MATRICES names: NAME.npz, NAME.mtx, NAME.mtx.gz or NAME/NAME.mtx.
    seed : int
        For a model: which of its random members.

    Returns
    -------
    scipy.sparse.csr_array
        On the host, of the file's own type (int64 for the integer field, float64 for a pattern's ones).
        Symmetric and skew-symmetric storage is written out in full. Explicit zeros are kept; duplicates
        of a Matrix Market file are summed, as SciPy does.

    Raises
    ------
    MatrixFileError
        If there is no such file, name or model, if the file is damaged, complex, or of another kind, or if
        the matrix would take more than half of this machine's memory.

    Examples
    --------
    >>> load_matrix("poisson2d:10").shape
    (100, 100)
    """
    text = os.fspath(spec)
    if ":" in text and models.is_model(text):
        return _build_model(text, seed)
    path = _find(text)
    with _one_line_errors(path):
        if path.name.lower().endswith(".npz"):
            return _read_npz(path)
        return _read_matrix_market(path)


def check_spec(spec: str) -> None:
    """Check that there is a file, a name or a model for what a user names, without reading or building it.

    Raises
    ------
    MatrixFileError
        As `load_matrix` raises it for what it cannot find.
    """
    if not (":" in spec and models.is_model(spec)):
        _find(spec)
        return
    try:
        models.check(spec)
    except ValueError as error:
        raise MatrixFileError(str(error)) from error


def _build_model(spec: str, seed: int) -> csr_array:
    try:
        return models.generate(spec, seed)
    except (ValueError, MemoryError) as error:
        raise MatrixFileError(
            str(error) or f"{spec} does not fit in memory; choose smaller parameters"
        ) from error


def _find(text: str) -> Path:
    """Find the file that a path or a name of the collection means; MatrixFileError if there is none."""
    if not text or "\0" in text:
        raise MatrixFileError(
            f"the matrix is {text!r}; it must be a file, a name or a model such as poisson3d:50"
        )
    path = Path(text)
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        found = _existing_file(path, text) or (_in_folder(Path(folder), text) if folder else None)
    except OSError as error:
        raise MatrixFileError(
            f"{text:.200} cannot be looked up: {error.strerror}; give a file's path"
        ) from error
    if found is None:
        raise MatrixFileError(_not_found(path, text, folder))
    return found


def _existing_file(path: Path, text: str) -> Path | None:
    """The path itself if it is a file; a folder that SuiteSparse unpacked stands for the file within."""
    if path.is_dir():
        inside = path / f"{path.name}.mtx"
        if inside.is_file():
            return inside
        raise MatrixFileError(
            f"{text} is a folder; a matrix is a file; choose one of its .mtx, .mtx.gz or .npz files"
            + _examples_in(path)
        )
    return path if path.exists() else None


def _examples_in(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES))
    return f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else " (it has none)"


def _in_folder(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    candidates += [folder / name, folder / name / f"{Path(name).name}.mtx"]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _stem(name: str) -> str:
    for suffix in (".gz", ".mtx", ".npz"):
        name = name.removesuffix(suffix)
    return name


def _not_found(path: Path, text: str, folder: str | None) -> str:
    """The message for a text that is no file, no name and no model, with the nearest thing that is one."""
    shown = text if len(text) <= 200 else text[:197] + "..."
    known = [*models.examples()]
    if models.is_model(text):
        return f"{shown} is a model without parameters; give them, for example {models.examples()[text]}"
    head, colon, _ = text.partition(":")
    if colon and "/" not in head:
        near = difflib.get_close_matches(head, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{shown} is neither a file nor a known model; the models are {', '.join(known)}{hint}"
    places = {entry.name: str(entry) for entry in _entries(path.parent) if entry.name.endswith(_SUFFIXES)}
    if folder:
        places |= {_stem(entry.name): _stem(entry.name) for entry in _entries(Path(folder))}
    places |= {name: models.examples()[name] for name in known}
    near = difflib.get_close_matches(path.name, places, n=3, cutoff=0.7)
    where = (
        f"a name in {folder}" if folder else f"a name (set {FOLDER_VARIABLE} to the folder of your matrices)"
    )
    remedy = "did you mean " + " or ".join(places[name] for name in near) + "?" if near else "check the path"
    return f"{shown} was not found; a matrix is a file, {where} or a model such as poisson3d:50; {remedy}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a MatrixFileError that names the file."""
    again = "download or write it again"
    try:
        yield
    except MatrixFileError:
        raise
    except OversizeError as error:
        raise MatrixFileError(str(error)) from error
    except gzip.BadGzipFile as error:
        raise MatrixFileError(f"{path} is damaged ({error}); a gzip file is needed; {again}") from error
    except EOFError as error:
        raise MatrixFileError(f"{path} was cut short; the whole file is needed; {again}") from error
    except (zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise MatrixFileError(f"{path} is damaged or cut short ({error}); {again}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise MatrixFileError(f"{path} cannot be read: {reason}; a readable file is needed") from error
    except MemoryError as error:
        raise MatrixFileError(
            f"{path} does not fit in this machine's memory; choose a smaller matrix"
        ) from error
    except Exception as error:
        if "runcated" in str(error):
            raise MatrixFileError(f"{path} was cut short ({_reason(error)}); {again}") from error
        # SciPy and NumPy raise nearly every kind on damaged input; the cause stays for a debugger.
        raise MatrixFileError(f"{path} is damaged: {_reason(error)}; {again}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error).rstrip(".") or type(error).__name__


# Matrix Market


def _read_matrix_market(path: Path) -> csr_array:
    """Read a Matrix Market file, compressed or not, after checking its first lines."""
    with open(path, "rb") as file:
        start = file.read(512)
    _refuse_other_kinds(path, start)
    packed = start.startswith(_GZIP_MAGIC)
    with _opened(path, packed) as stream:
        _check_head(path, stream, packed)
    with _opened(path, packed) as stream:
        matrix = scipy.io.mmread(_TextOnly(stream))
    return csr_array(matrix)


class _TextOnly:
    """A stream without the two things on which SciPy's reader (1.17) may end the process.

    Those are a zero byte, which is refused, and a last line without a line end, which gets one. Zero bytes
    are what a broken disk, a download written in pieces or `scipy.io.mmwrite` with a precision above 16
    leaves behind; a last line without its end, what is left of a file that was cut short.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._last = b"\n"

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; ValueError if a zero byte is among them."""
        block = self._stream.read(size)
        if b"\0" in block:
            raise ValueError("it holds zero bytes, which no text has")
        if not block and size and self._last != b"\n":
            block = b"\n"
        self._last = block[-1:] or self._last
        return block


def _opened(path: Path, packed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else open(path, "rb")


def _refuse_other_kinds(path: Path, start: bytes) -> None:
    """Refuse what is no Matrix Market file by its first bytes, saying what it is instead."""
    if not start:
        raise MatrixFileError(
            f"{path} is empty; a Matrix Market file starts with %%MatrixMarket; download or write it again"
        )
    name = path.name.lower()
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        raise MatrixFileError(f"{path} is an archive; a .mtx file is needed; unpack it with: tar xf {path}")
    if start.startswith(_GZIP_MAGIC):
        return
    if name.endswith(".gz"):
        raise MatrixFileError(
            f"{path} is not a gzip file, though its name ends in .gz; "
            "compress it with gzip, or name it .mtx if it is plain text"
        )
    if start.startswith(_ZIP_MAGIC):
        raise MatrixFileError(
            f"{path} is a zip file; a Matrix Market file is needed; name it .npz if SciPy wrote it"
        )
    if start.startswith(b"MATLAB"):
        raise MatrixFileError(
            f"{path} is a MATLAB file; .mtx, .mtx.gz or .npz is needed; convert it with scipy.io"
        )


def _check_head(path: Path, stream: IO[bytes], packed: bool) -> None:
    """Check the header and the size line, before memory is asked for on their word."""
    header = _text(stream.readline(_LONGEST_LINE))
    lowered = header.lower()
    if lowered.lstrip("\ufeff").startswith(("<", "{")):
        what = "a web page" if lowered.startswith("<") else "JSON"
        raise MatrixFileError(
            f"{path} holds {what}, not a matrix; a Matrix Market file starts with %%MatrixMarket; "
            "download the file itself, not the page about it"
        )
    words = lowered.split()
    if not words or words[0] != "%%matrixmarket":
        raise MatrixFileError(
            f"{path} starts with {header[:40]!r}; a Matrix Market file starts with "
            "'%%MatrixMarket matrix coordinate real general'; give a file of that format"
        )
    expected = (
        ("matrix",),
        ("coordinate", "array"),
        ("real", "double", "integer", "unsigned-integer", "pattern", "complex"),
        ("general", "symmetric", "skew-symmetric", "hermitian"),
    )
    for place, (word, allowed) in enumerate(zip([*words[1:], "", "", "", ""], expected, strict=False)):
        if word not in allowed:
            raise MatrixFileError(
                f"{path} has {word!r:.40} as word {place + 2} of its header; it must be "
                f"{' or '.join(allowed)}; mend the header or download the file again"
            )
    if words[3] == "complex":
        raise MatrixFileError(
            f"{path} is complex; dasp multiplies real matrices; give its real or imaginary part"
        )
    _check_size(path, stream, words, packed)


def _check_size(path: Path, stream: IO[bytes], words: list[str], packed: bool) -> None:
    line_number, line = 1, "%"
    while line.startswith("%") or not line.strip():
        raw = stream.readline(_LONGEST_LINE)
        if not raw:
            raise MatrixFileError(f"{path} ends before its size line; it was cut short; download it again")
        line_number, line = line_number + 1, _text(raw)
    coordinate = words[2] == "coordinate"
    names = "rows, columns and entries" if coordinate else "rows and columns"
    try:
        sizes = [int(word) for word in line.split()]
    except ValueError:
        sizes = []
    if len(sizes) != (3 if coordinate else 2) or min(sizes) < 0:
        raise MatrixFileError(
            f"{path} has {line[:60]!r} in line {line_number}; that line must give {names} as whole numbers; "
            "mend it or download the file again"
        )
    rows, columns = sizes[:2]
    entries = sizes[2] if coordinate else rows * columns
    if words[4] != "general" and rows != columns:
        raise MatrixFileError(
            f"{path} is {rows} x {columns} and {words[4]}; such a matrix is square; mend its header"
        )
    _check_promise(path, rows, columns, entries, _SHORTEST_ENTRY if coordinate else 2, packed)
    stored = entries if words[4] == "general" else 2 * entries
    refuse_oversize(
        f"{path} with {rows:,} rows and {stored:,} entries",
        _BYTES_PER_ENTRY * stored + _BYTES_PER_ROW * (rows + columns),
        "choose a smaller matrix",
    )


def _check_promise(path: Path, rows: int, columns: int, entries: int, shortest: int, packed: bool) -> None:
    """Refuse a size line that the file cannot keep, however its entries are written."""
    size = path.stat().st_size
    if shortest * entries > size * (_LARGEST_GZIP_RATIO if packed else 1) + shortest:
        raise MatrixFileError(
            f"{path} promises {entries:,} entries but has {size:,} bytes; it was cut short, or its size "
            "line is wrong; download it again"
        )
    if max(rows, columns) >= 2**63:
        raise MatrixFileError(
            f"{path} is {rows} x {columns}; rows and columns must be below 2^63; mend its size line"
        )


def _text(raw: bytes) -> str:
    return raw.decode("latin-1").rstrip("\r\n")


# SciPy's .npz


def _read_npz(path: Path) -> csr_array:
    """Read what `scipy.sparse.save_npz` wrote; never unpickles; checks every index."""
    _check_npz(path)
    matrix = scipy.sparse.load_npz(path)
    if matrix.dtype.kind == "c":
        raise MatrixFileError(
            f"{path} is complex; dasp multiplies real matrices; give its real or imaginary part"
        )
    if matrix.dtype.kind not in "biuf":
        raise MatrixFileError(f"{path} holds values of type {matrix.dtype}; real numbers are needed")
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)
    if matrix.format == "coo":
        for name, index, length in zip(("row", "column"), matrix.coords, matrix.shape, strict=True):
            if index.size and not (index.min() >= 0 and index.max() < length):
                raise ValueError(f"{name} index {index.min()} or {index.max()} is outside 0..{length - 1}")
    return csr_array(matrix)


def _check_npz(path: Path) -> None:
    """Refuse an .npz that is no sparse matrix, or too large for the memory, by its table of contents."""
    with open(path, "rb") as file:
        start = file.read(2)
    if not start:
        raise MatrixFileError(f"{path} is empty; an .npz of scipy.sparse.save_npz is needed; write it again")
    if start != _ZIP_MAGIC:
        raise MatrixFileError(
            f"{path} is not an .npz file; one of scipy.sparse.save_npz is needed; write it again"
        )
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        for name in {"indices", "indptr", "row", "col"} & members.keys():
            _check_index_type(name, archive)
    if "dasp_plan" in members:
        raise MatrixFileError(f"{path} is a saved plan; a matrix is needed; load it with dasp.load_plan")
    if not {"format", "shape", "data"} <= members.keys():
        raise MatrixFileError(
            f"{path} has the arrays {', '.join(sorted(members)[:6]) or '(none)'}; a sparse matrix is needed; "
            "write it with scipy.sparse.save_npz"
        )
    refuse_oversize(f"{path}", 2.0 * sum(members.values()), "choose a smaller matrix")


def _check_index_type(name: str, archive: zipfile.ZipFile) -> None:
    """Refuse indices that are no integers, which SciPy would round; reads a header only."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        dtype = read(file)[2]
    if dtype.kind not in "iu":
        raise ValueError(f"{name} is of type {dtype}, not an integer type")


# Plans


def save_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan to an .npz file, which replaces an older one only when it is complete.

    Parameters
    ----------
    path : str or path
        Where to; the name is used as it is.
    plan : Plan
        Its arrays may live on the host or on a GPU; they are written with their own types.

    Raises
    ------
    MatrixFileError
        If the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        try:
            with open(partial, "wb") as file:
                np.savez(file, allow_pickle=False, **pack_plan(plan))
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise MatrixFileError(
            f"{target} cannot be written: {error.strerror}; name a file in a writable folder"
        ) from error


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan that `save_plan` wrote, and check every invariant of its arrays.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    Plan
        On the host; arrays and types as they were saved, read-only.

    Raises
    ------
    MatrixFileError
        If the file is missing, is no plan, was written by another version of the format, or holds arrays
        that do not make a plan.
    """
    target = Path(path)
    if target.is_dir():
        raise MatrixFileError(f"{target} is a folder; a plan is a file; name the .npz file")
    with _one_line_errors(target):
        with open(target, "rb") as file:
            if file.read(2) != _ZIP_MAGIC:
                raise MatrixFileError(f"{target} is not a saved plan; write one with dasp.save_plan")
        with np.load(target, allow_pickle=False) as archive:
            if "dasp_plan" not in archive.files:
                raise MatrixFileError(f"{target} holds no plan; write one with dasp.save_plan")
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        plan = unpack_plan(arrays)
        check_plan(plan)
        return plan
