"""Matrix Market files, plain or compressed by gzip, read strictly and in bounded memory.

The format is that of Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats: Initial Design",
NISTIR 5935 (1996). SciPy's reader skips what stands behind a number, so that 1,5 becomes 1. Here the form of
each line is checked first, and SciPy (C++, several threads) converts only lines that passed.
"""

from __future__ import annotations

import gzip
import inspect
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.io
from scipy.sparse import csr_array

from dasp.io.files import MatrixFileError, open_regular
from dasp.io.market_entries import REMEDY, Entries, Head, Vector, assemble
from dasp.runtime.sizes import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

_GZIP_MAGIC = b"\x1f\x8b"
_OTHERS = {
    b"PK": ("a zip file", "name it .npz if SciPy wrote it"),
    b"MATLAB": ("a MATLAB file", "convert it with scipy.io"),
    b"BZh": ("compressed, and not by gzip", "unpack it with bunzip2"),
    b"\xfd7zXZ\0": ("compressed, and not by gzip", "unpack it with unxz"),
    b"(\xb5/\xfd": ("compressed, and not by gzip", "unpack it with unzstd"),
}
"""Other kinds of files by their first bytes, and what to do with them."""

_LONGEST_LINE = 1 << 16
_MOST_REMARKS = 1 << 24
"""Bytes that the lines above the size line may have together."""

_SHORTEST_ENTRY, _SHORTEST_VALUE = 4, 2
"""Bytes of "1 1" and a line end, and of "1" and a line end."""

_LARGEST_GZIP_RATIO = 1032
_BLOCK = 1 << 22
"""Bytes that are checked and converted at a time."""

_WORDS = (
    ("matrix",),
    ("coordinate", "array"),
    ("real", "double", "integer", "unsigned-integer", "pattern", "complex"),
    ("general", "symmetric", "skew-symmetric", "hermitian"),
)
_DTYPES = {
    "real": np.dtype(np.float64),
    "integer": np.dtype(np.int64),
    "unsigned-integer": np.dtype(np.uint64),
    "pattern": np.dtype(np.float64),
    "complex": np.dtype(np.complex128),
}

_TO_SHAPE = bytes.maketrans(b"123456789", 9 * b"0")
"""The shape of a line is the line with every digit replaced by 0: few lines have a shape of their own."""

_TO_SCIPY, _NOT_FOR_SCIPY = bytes.maketrans(b"dD", b"ee"), b"+\r"
"""SciPy's reader does not know these: Fortran's exponents, plus signs, the line ends of Windows."""

_INDICES = rb"0++[ \t]++0++"
_REAL = rb"[+-]?+(?:(?:0++(?:\.0*+)?+|\.0++)(?:[eEdD][+-]?+0++)?+|(?i:nan|inf(?:inity)?+))"
_NUMBERS: dict[str, list[bytes]] = {
    "real": [_REAL],
    "integer": [rb"[+-]?+0++"],
    "unsigned-integer": [rb"\+?+0++"],
    "pattern": [],
    "complex": [_REAL, _REAL],
}
"""The shapes of the numbers that a line holds behind its row and column."""


def read_matrix_market(path: Path) -> csr_array:
    """Read a Matrix Market file.

    Parameters
    ----------
    path : Path
        A regular file, plain or compressed by gzip.

    Returns
    -------
    scipy.sparse.csr_array, shape (m, n)
        float64, for the integer fields int64 or uint64, for the complex one complex128; a pattern's values
        are 1. Decimals are rounded to the nearest; their exponents may be written with e or, as Fortran
        does, with d. Symmetric storage is written out in full. Duplicates are summed; explicit zeros of a
        coordinate file are kept.

    Raises
    ------
    MatrixFileError
        Naming the line that is wrong.
    OversizeError
        If it would take more than half of this machine's memory.
    OSError, EOFError, zlib.error
        If the file cannot be read or unpacked.

    Notes
    -----
    While it is read, an entry of the file takes 16 bytes (24 where an index needs 64 bits), and one of the
    result 12 (16) more; a block of lines takes some 20 MB besides.
    """
    with open_regular(path) as file:
        start = file.read(512)
        _refuse_other_kinds(path, start)
        file.seek(0)
        packed = start.startswith(_GZIP_MAGIC)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        head = _read_head(path, stream, packed)
        entries = _Reader(path, stream, head).read()
    return assemble(path, head, entries)


# Above the entries


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
    for magic, (kind, remedy) in _OTHERS.items():
        if start.startswith(magic):
            raise MatrixFileError(f"{path} is {kind}; .mtx, .mtx.gz or .npz is needed; {remedy}")


def _read_head(path: Path, stream: IO[bytes], packed: bool) -> Head:
    """Read the header and the size line, and check them before memory is asked for on their word."""
    header = _decode(stream.readline(_LONGEST_LINE))
    lowered = header.lower()
    if lowered.lstrip("\ufeff").startswith(("<", "{")):
        what = "a web page" if lowered.startswith("<") else "JSON"
        raise MatrixFileError(
            f"{path} holds {what}, not a matrix; a Matrix Market file starts with %%MatrixMarket; "
            "download the file itself, not the page about it"
        )
    words = _split_words(lowered)
    if "\0" in header and words and words[0] == "%%matrixmarket":
        raise MatrixFileError(
            f"{path} holds zero bytes in line 1, which no text has; download or write it again"
        )
    if not words or words[0] != "%%matrixmarket":
        raise MatrixFileError(
            f"{path} starts with {header[:40]!r}; a Matrix Market file starts with "
            "'%%MatrixMarket matrix coordinate real general'; give a file of that format"
        )
    for place, (word, allowed) in enumerate(zip([*words[1:], "", "", "", ""], _WORDS, strict=False)):
        if word not in allowed:
            raise MatrixFileError(
                f"{path} has {word!r:.40} as word {place + 2} of its header; it must be "
                f"{' or '.join(allowed)}; mend the header or download the file again"
            )
    if words[3:5] == ["unsigned-integer", "skew-symmetric"]:
        raise MatrixFileError(
            f"{path} is skew-symmetric and unsigned; its other half has signs; mend its header"
        )
    if words[2:4] == ["array", "pattern"]:
        raise MatrixFileError(f"{path} is an array of a pattern, which has no values; mend its header")
    return _read_size(path, stream, words, packed)


def _read_size(path: Path, stream: IO[bytes], words: list[str], packed: bool) -> Head:
    number, line, remarks = 1, "%", 0
    while line.startswith("%") or not _split_words(line):
        raw = stream.readline(_LONGEST_LINE)
        remarks += len(raw)
        if not raw:
            raise MatrixFileError(f"{path} ends before its size line; it was cut short; download it again")
        if len(raw) == _LONGEST_LINE or remarks > _MOST_REMARKS:
            raise MatrixFileError(
                f"{path} has {remarks:,} bytes of remarks; at most {_MOST_REMARKS:,} are read, and "
                f"{_LONGEST_LINE:,} in a line; shorten them"
            )
        number, line = number + 1, _decode(raw)
        if b"\0" in raw:
            raise MatrixFileError(
                f"{path} holds zero bytes in line {number}, which no text has; download or write it again"
            )
    coordinate = words[2] == "coordinate"
    sizes = [
        int(word) if word.isdecimal() and len(word.lstrip("0")) < 40 else -1 for word in _split_words(line)
    ]
    if len(sizes) != (3 if coordinate else 2) or min(sizes) < 0 or not line.isascii():
        names = "rows, columns and entries" if coordinate else "rows and columns"
        raise MatrixFileError(
            f"{path} has {line[:60]!r} in line {number}; that line must give {names} as whole numbers; "
            + REMEDY
        )
    rows, columns = sizes[:2]
    symmetry = words[4]
    if symmetry != "general" and rows != columns:
        raise MatrixFileError(
            f"{path} is {rows} x {columns} and {symmetry}; such a matrix is square; mend its header"
        )
    lines = sizes[2] if coordinate else _count_lines(rows, columns, symmetry)
    head = Head(coordinate, words[3].replace("double", "real"), symmetry, rows, columns, lines, number)
    _check_promise(path, head, packed)
    return head


def _count_lines(rows: int, columns: int, symmetry: str) -> int:
    """Return the number of values of an array; a symmetric one stores its lower triangle."""
    if symmetry == "general":
        return rows * columns
    return rows * (rows - 1) // 2 if symmetry == "skew-symmetric" else rows * (rows + 1) // 2


def _check_promise(path: Path, head: Head, packed: bool) -> None:
    """Refuse a size line that the file cannot keep, however its entries are written, or the machine."""
    size, shortest = path.stat().st_size, _SHORTEST_ENTRY if head.is_coordinate else _SHORTEST_VALUE
    if shortest * head.lines > size * (_LARGEST_GZIP_RATIO if packed else 1) + shortest:
        raise MatrixFileError(
            f"{path} promises {head.lines:,} entries but has {size:,} bytes; it was cut short, or its size "
            "line is wrong; download it again"
        )
    if max(head.rows, head.columns) >= 2**63:
        raise MatrixFileError(
            f"{path} is {head.rows} x {head.columns}; rows and columns must be below 2^63; mend its size line"
        )
    stored = head.lines if head.symmetry == "general" else 2 * head.lines
    refuse_oversize(
        f"{path} with {head.rows:,} rows and {stored:,} entries",
        BYTES_PER_ENTRY * max(len(_NUMBERS[head.field]), 1) * stored
        + BYTES_PER_ROW * head.rows
        + BYTES_PER_COLUMN * head.columns,
        "choose a smaller matrix",
    )


def _decode(raw: bytes) -> str:
    return raw.decode("latin-1").rstrip("\r\n")


def _split_words(line: str) -> list[str]:
    """Return the words between spaces and tabs: Python's own `split` knows more blanks."""
    return re.findall(r"[^ \t]+", line)


# Entries


class _Grammar:
    """The form of a file's lines; it names the fault of a line that has another."""

    def __init__(self, head: Head) -> None:
        self._head = head
        parts = [_INDICES] * head.is_coordinate + _NUMBERS[head.field]
        self._line = _compile_pattern(parts, rb"[ \t]*+\r?+")
        self._blank = re.compile(rb"[ \t]*+\r?+")
        self._indices = _compile_pattern(parts[:1], b"")
        self._parts = _compile_pattern(parts, b"")

    def is_blank(self, shape: bytes) -> bool:
        """Return True if a line is blank."""
        return self._blank.fullmatch(shape) is not None

    def is_sound(self, shape: bytes) -> bool:
        """Return True if a line is blank, or holds one entry and nothing else."""
        return (self._line.fullmatch(shape) or self._blank.fullmatch(shape)) is not None

    def find_fault(self, line: bytes) -> str:
        """Return the fault of a line that is not blank, in words; "" if it is sound."""
        shape = line.translate(_TO_SHAPE)
        if b"\0" in line:
            return "it holds zero bytes, which no text has"
        if self._head.is_coordinate and not self._indices.match(shape):
            return "a row and a column are needed, as whole numbers"
        if not self._parts.match(shape):
            return "its value must be a number of the kind that the header says"
        if not self.is_sound(shape):
            return "a line holds one entry and nothing else"
        words = line.split()
        if self._head.is_coordinate:
            for name, size in (("row", self._head.rows), ("column", self._head.columns)):
                if not 1 <= _to_integer(words.pop(0)) <= size:
                    return f"its {name} is out of bounds"
        if any(_is_too_large(word, _DTYPES[self._head.field]) for word in words):
            return "its value is beyond the largest number of the field's type"
        return ""


def _compile_pattern(parts: list[bytes], end: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"[ \t]*+" + rb"[ \t]++".join(parts) + end)


def _to_integer(word: bytes) -> int:
    """Return a whole number; 10^40, with its sign, for one that has more digits."""
    digits = word.lstrip(b"+-0") or b"0"
    value = int(digits) if len(digits) <= 40 else 10**40
    return -value if word.startswith(b"-") else value


def _is_too_large(word: bytes, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return not limits.min <= _to_integer(word) <= limits.max
    return b"n" not in word.lower() and math.isinf(float(word.translate(_TO_SCIPY)))


class _Reader:
    """Reads all lines below the size line into one set of arrays."""

    def __init__(self, path: Path, stream: IO[bytes], head: Head) -> None:
        self._path, self._stream, self._head = path, stream, head
        self._line, self._found = head.line, 0
        self._grammar = _Grammar(head)
        index = np.dtype(np.int32 if max(head.rows, head.columns) < 2**31 else np.int64)
        places = head.lines if head.is_coordinate else 0
        values = np.empty(head.lines, _DTYPES[head.field])
        self._entries = Entries(np.empty(places, index), np.empty(places, index), values)

    def read(self) -> Entries:
        """Read to the end of the stream.

        Raises
        ------
        MatrixFileError
            At the first line at fault, and where there are too few.
        """
        while text := self._read_block():
            self._read_lines(text)
        if self._found < self._head.lines:
            raise MatrixFileError(
                f"{self._path} was cut short: it has {self._found:,} of the {self._head.lines:,} entries "
                "that its size line promises; download it again"
            )
        return self._entries

    def _read_block(self) -> bytes:
        """Read whole lines, each with its end; nothing at the end of the stream."""
        text = self._stream.read(_BLOCK)
        if text and not text.endswith(b"\n"):
            tail = self._stream.readline(_LONGEST_LINE)
            text += tail
            if not tail.endswith(b"\n"):
                text += b"\n"  # the last line of a file may lack its end
        return text

    def _read_lines(self, text: bytes) -> None:
        """Check some lines, convert them and append what they hold."""
        shapes = text.translate(_TO_SHAPE).split(b"\n")[:-1]
        different = set(shapes)
        if max(map(len, different)) >= _LONGEST_LINE:
            raise MatrixFileError(
                f"{self._path} has a line of more than {_LONGEST_LINE:,} bytes; an entry is shorter; "
                + REMEDY
            )
        blank = sum(shapes.count(shape) for shape in different if self._grammar.is_blank(shape))
        count, begin = len(shapes) - blank, self._found
        end = begin + count
        if end > self._head.lines or not all(map(self._grammar.is_sound, different)):
            self._refuse_fault(text)
        if count:
            try:
                parts = _convert(text, self._head, count)
            except (ValueError, OverflowError):
                self._refuse_fault(text)
                raise
            if parts[-1].dtype.kind in "fc" and np.isinf(parts[-1]).any():
                self._refuse_fault(text)
            for whole, part in zip(reversed(self._entries), reversed(parts), strict=False):
                whole[begin:end] = part
        self._found, self._line = end, self._line + len(shapes)

    def _refuse_fault(self, text: bytes) -> None:
        """Find the first line at fault and raise an error that names it; return if there is none."""
        left = self._head.lines - self._found
        for number, line in enumerate(text.split(b"\n")[:-1], self._line + 1):
            if self._grammar.is_blank(line):
                continue
            fault = self._grammar.find_fault(line) if left else "the size line promises fewer lines"
            left -= 1
            if fault:
                shown = _decode(line)
                raise MatrixFileError(
                    f"{self._path} has {shown if len(shown) <= 60 else shown[:57] + '...'!r} in line "
                    f"{number}; {fault}; {REMEDY}"
                )


_AS_ARRAY = {"spmatrix": False} if "spmatrix" in inspect.signature(scipy.io.mmread).parameters else {}
"""Asks a SciPy that can for a sparse array; older ones know sparse matrices alone."""


def _convert(text: bytes, head: Head, count: int) -> Sequence[Vector]:
    """Convert `count` lines, and return their values, behind rows and columns unless the file is an array.

    Raises
    ------
    ValueError, OverflowError
        If an index is out of bounds or a whole number beyond its type. Decimals beyond float64 become inf.
    """
    text = text.translate(_TO_SCIPY, _NOT_FOR_SCIPY)
    if not head.is_coordinate:  # SciPy adds an array's values to zeros, so that -0 loses its sign
        dtype = _DTYPES[head.field]
        if dtype.kind in "iu":
            return (np.array(list(map(int, text.split())), dtype),)
        return (np.array(list(map(float, text.split()))).view(dtype),)
    above = f"%%MatrixMarket matrix coordinate {head.field} general\n{head.rows} {head.columns} {count}\n"
    matrix = scipy.io.mmread(io.BytesIO(above.encode() + text), **_AS_ARRAY)
    return matrix.row, matrix.col, matrix.data
