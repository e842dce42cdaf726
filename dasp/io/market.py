"""Matrix Market files, plain or compressed by gzip, read strictly and in bounded memory.

The format is that of Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats: Initial Design",
NISTIR 5935 (1996). Lines are read by several threads while the next ones are decompressed.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from scipy.sparse import csr_array

from dasp.io.decimal import powers_of_five
from dasp.io.files import MatrixFileError, open_regular
from dasp.io.lines import NEEDED, SHORTEST_LINE, Fault, Field, compress_rows, read_lines
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.integers import ceil_div
from dasp.runtime.memory import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

Vector = np.ndarray[Any, Any]

_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGIC = b"PK"
_UNPACKERS = {b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"(\xb5/\xfd": "unzstd"}
_LONGEST_LINE = 1 << 16
_MOST_REMARKS = 1 << 24
"""Bytes that the lines above the size line may have together."""

_SHORTEST_ENTRY = 4
"""Bytes of "1 1" and a line end."""

_LARGEST_GZIP_RATIO = 1032
_BLOCK = 1 << 20
"""Bytes that one thread reads at a time."""

_MOST_THREADS = 16
_WORDS = (
    ("matrix",),
    ("coordinate", "array"),
    ("real", "double", "integer", "unsigned-integer", "pattern", "complex"),
    ("general", "symmetric", "skew-symmetric", "hermitian"),
)
_FIELDS = {
    "real": Field.REAL,
    "double": Field.REAL,
    "integer": Field.INTEGER,
    "unsigned-integer": Field.UNSIGNED,
    "pattern": Field.PATTERN,
    "complex": Field.COMPLEX,
}
_DTYPES = {
    Field.REAL: np.dtype(np.float64),
    Field.INTEGER: np.dtype(np.int64),
    Field.UNSIGNED: np.dtype(np.uint64),
    Field.PATTERN: np.dtype(np.float64),
    Field.COMPLEX: np.dtype(np.complex128),
}
_NUMBERS = {field: _DTYPES[field].itemsize // 8 for field in Field} | {Field.PATTERN: 0}
"""Words of 64 bits in which the value of a line is read."""

_MIRRORED = np.uint64(1 << 63)
"""Set in the number of an entry that stands on the other side of the diagonal."""

_REMEDY = "mend it or download the file again"


class _Head(NamedTuple):
    """What stands above the first entry; `lines` entries follow, `line` is the size line's number."""

    is_coordinate: bool
    field: Field
    symmetry: str
    rows: int
    columns: int
    lines: int
    line: int


class _Entries(NamedTuple):
    """Room for all entries: rows and columns counted from 0, and the bits of the values."""

    rows: Vector
    columns: Vector
    bits: Vector


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
        are 1. Decimals are rounded to
        the nearest; their exponents may be written with e or, as Fortran does, with d. Symmetric storage is
        written out in full. Duplicates are summed; explicit zeros of a coordinate file are kept.

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
    result 12 (16) more.
    """
    with open_regular(path) as file:
        start = file.read(512)
        _refuse_other_kinds(path, start)
        file.seek(0)
        packed = start.startswith(_GZIP_MAGIC)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        head = _read_head(path, stream, packed)
        entries = _Reader(path, stream, head).read()
    return _assemble(path, head, entries)


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
    if start.startswith(_ZIP_MAGIC):
        raise MatrixFileError(
            f"{path} is a zip file; a Matrix Market file is needed; name it .npz if SciPy wrote it"
        )
    if start.startswith(b"MATLAB"):
        raise MatrixFileError(
            f"{path} is a MATLAB file; .mtx, .mtx.gz or .npz is needed; convert it with scipy.io"
        )
    for magic, program in _UNPACKERS.items():
        if start.startswith(magic):
            raise MatrixFileError(
                f"{path} is compressed, and not by gzip; .mtx or .mtx.gz is needed; unpack it with {program}"
            )


def _read_head(path: Path, stream: IO[bytes], packed: bool) -> _Head:
    """Read the header and the size line, and check them before memory is asked for on their word."""
    header = _text(stream.readline(_LONGEST_LINE))
    lowered = header.lower()
    if lowered.lstrip("\ufeff").startswith(("<", "{")):
        what = "a web page" if lowered.startswith("<") else "JSON"
        raise MatrixFileError(
            f"{path} holds {what}, not a matrix; a Matrix Market file starts with %%MatrixMarket; "
            "download the file itself, not the page about it"
        )
    words = _words(lowered)
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


def _read_size(path: Path, stream: IO[bytes], words: list[str], packed: bool) -> _Head:
    number, line, remarks = 1, "%", 0
    while line.startswith("%") or not _words(line):
        raw = stream.readline(_LONGEST_LINE)
        remarks += len(raw)
        if not raw:
            raise MatrixFileError(f"{path} ends before its size line; it was cut short; download it again")
        if len(raw) == _LONGEST_LINE or remarks > _MOST_REMARKS:
            raise MatrixFileError(
                f"{path} has {remarks:,} bytes of remarks; at most {_MOST_REMARKS:,} are read, and "
                f"{_LONGEST_LINE:,} in a line; shorten them"
            )
        number, line = number + 1, _text(raw)
        if b"\0" in raw:
            raise MatrixFileError(
                f"{path} holds zero bytes in line {number}, which no text has; download or write it again"
            )
    coordinate = words[2] == "coordinate"
    sizes = [int(word) if word.isdecimal() and len(word.lstrip("0")) < 40 else -1 for word in _words(line)]
    if len(sizes) != (3 if coordinate else 2) or min(sizes) < 0 or not line.isascii():
        names = "rows, columns and entries" if coordinate else "rows and columns"
        raise MatrixFileError(
            f"{path} has {line[:60]!r} in line {number}; that line must give {names} as whole numbers; "
            + _REMEDY
        )
    rows, columns = sizes[:2]
    symmetry = words[4]
    if symmetry != "general" and rows != columns:
        raise MatrixFileError(
            f"{path} is {rows} x {columns} and {symmetry}; such a matrix is square; mend its header"
        )
    lines = sizes[2] if coordinate else _array_lines(rows, columns, symmetry)
    head = _Head(coordinate, _FIELDS[words[3]], symmetry, rows, columns, lines, number)
    _check_promise(path, head, packed)
    return head


def _array_lines(rows: int, columns: int, symmetry: str) -> int:
    """Return how many values an array has: of a symmetric one the lower triangle is stored."""
    if symmetry == "general":
        return rows * columns
    return rows * (rows - 1) // 2 if symmetry == "skew-symmetric" else rows * (rows + 1) // 2


def _check_promise(path: Path, head: _Head, packed: bool) -> None:
    """Refuse a size line that the file cannot keep, however its entries are written, or the machine."""
    size, shortest = path.stat().st_size, _SHORTEST_ENTRY if head.is_coordinate else SHORTEST_LINE
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
        BYTES_PER_ENTRY * max(_NUMBERS[head.field], 1) * stored
        + BYTES_PER_ROW * head.rows
        + BYTES_PER_COLUMN * head.columns,
        "choose a smaller matrix",
    )


def _text(raw: bytes) -> str:
    return raw.decode("latin-1").rstrip("\r\n")


def _words(line: str) -> list[str]:
    """Return what stands between spaces and tabs: Python's own `split` knows more blanks."""
    return re.findall(r"[^ \t]+", line)


# Entries


class _Piece:
    """Whole lines that one thread reads, and room for what it finds there."""

    def __init__(self, size: int, head: _Head, index: np.dtype[Any]) -> None:
        most = size // (_SHORTEST_ENTRY if head.is_coordinate else SHORTEST_LINE) + 1
        places = most if head.is_coordinate else 0
        self.entries = _Entries(
            np.empty(places, index), np.empty(places, index), np.empty(_NUMBERS[head.field] * most, np.uint64)
        )
        self.unsure = np.empty((size // 20 + 1, 3), np.int64)
        self._head = head
        self.lines = self.count = self.hard = self.place = 0
        self.fault = Fault.NONE

    def read(self, text: Vector, first: int, last: int, most: int) -> None:
        """Read the lines from byte `first` to byte `last`, up to the first at fault."""
        head = self._head
        self.lines, self.count, self.hard, self.place, fault = read_lines(
            text,
            first,
            last,
            most,
            head.is_coordinate,
            int(head.field),
            head.rows,
            head.columns,
            *self.entries,
            self.unsure,
            powers_of_five(),
        )
        self.fault = Fault(fault)
        for number, start, end in self.unsure[: self.hard].tolist():
            value = float(text[start:end].tobytes().lower().replace(b"d", b"e"))
            self.entries.bits[number] = np.float64(value).view(np.uint64)
            if math.isinf(value):
                self._end_at(text, first, start, number // _NUMBERS[head.field])
                return

    def _end_at(self, text: Vector, first: int, start: int, entry: int) -> None:
        """Let the line in which byte `start` lies be the first at fault."""
        before = text[first:start].tobytes()
        self.fault, self.count, self.lines = Fault.TOO_LARGE, entry, before.count(b"\n")
        self.place = first + before.rfind(b"\n") + 1


class _Reader:
    """Reads all lines below the size line into one set of arrays."""

    def __init__(self, path: Path, stream: IO[bytes], head: _Head) -> None:
        self._path, self._stream, self._head = path, stream, head
        self._line, self._found, self._ended = head.line, 0, False
        threads = min(_threads.get_num_threads(), _MOST_THREADS)
        index = np.dtype(np.int32 if max(head.rows, head.columns) < 2**31 else np.int64)
        self._pieces = [_Piece(_BLOCK + _LONGEST_LINE, head, index) for _ in range(threads)]
        self._texts = [np.empty(threads * _BLOCK, np.uint8) for _ in range(2)]
        self._rest = b""
        places = head.lines if head.is_coordinate else 0
        words = _NUMBERS[head.field] * head.lines
        self._entries = _Entries(np.empty(places, index), np.empty(places, index), np.empty(words, np.uint64))

    def read(self) -> _Entries:
        """Read to the end of the stream.

        Raises
        ------
        MatrixFileError
            At the first line at fault, and where there are too few.
        """
        turn, text_end = 0, self._fill(0)
        while text_end:
            ends: list[int] = []
            tasks: list[Callable[[], None]] = []
            if not self._ended:
                tasks.append(lambda turn=turn, ends=ends: ends.append(self._fill(1 - turn)))  # type: ignore[misc]
            cuts = self._cuts(self._texts[turn], text_end)
            used = list(zip(self._pieces, cuts[:-1], cuts[1:], strict=False))
            left = self._head.lines - self._found
            tasks += [
                partial(piece.read, self._texts[turn], first, last, left) for piece, first, last in used
            ]
            _threads.run(tasks)
            for piece, first, last in used:
                self._take(piece, self._texts[turn], first, last)
            turn, text_end = 1 - turn, ends[0] if ends else 0
        if self._found < self._head.lines:
            raise MatrixFileError(
                f"{self._path} was cut short: it has {self._found:,} of the {self._head.lines:,} entries "
                "that its size line promises; download it again"
            )
        return self._entries

    def _fill(self, turn: int) -> int:
        """Read the next bytes into a text; return the end of its last whole line, 0 if none is left."""
        text, have = self._texts[turn], len(self._rest)
        text[:have] = np.frombuffer(self._rest, np.uint8)
        view = memoryview(cast(Any, text))
        while have < len(text) - 1:
            got = self._stream.readinto(view[have:-1])  # type: ignore[attr-defined]
            if not got:
                self._ended = True
                break
            have += got
        if self._ended and have and text[have - 1] != ord("\n"):
            text[have] = ord("\n")  # the last line of a file may lack its end
            have += 1
        tail = max(have - _LONGEST_LINE, 0)
        end = tail + self._line_end(text[tail:have], last=True) + 1 if have else 0
        self._rest = text[end:have].tobytes()
        return end

    def _cuts(self, text: Vector, end: int) -> list[int]:
        """Return where pieces of about equal sizes start, at line starts, and the end of the last."""
        cuts = [0]
        for _ in self._pieces:
            goal = min(cuts[-1] + max(ceil_div(end, len(self._pieces)), _LONGEST_LINE), end)
            cuts.append(goal + self._line_end(text[goal - 1 : min(goal + _LONGEST_LINE, end)]))
            if cuts[-1] == end:
                break
        return cuts

    def _line_end(self, text: Vector, last: bool = False) -> int:
        """Return where the first line of a text ends, or the last one."""
        content = text.tobytes()
        place = content.rfind(b"\n") if last else content.find(b"\n")
        if place < 0:
            raise MatrixFileError(
                f"{self._path} has a line of more than {_LONGEST_LINE:,} bytes; an entry is shorter; "
                + _REMEDY
            )
        return place

    def _take(self, piece: _Piece, text: Vector, first: int, last: int) -> None:
        """Append what a piece holds; where there is too much of it, find the first line too many."""
        left = self._head.lines - self._found
        if piece.count > left:
            piece.read(text, first, last, left)
        if piece.fault:
            raise self._error(piece, text)
        for whole, part, each in zip(
            self._entries, piece.entries, (1, 1, _NUMBERS[self._head.field]), strict=True
        ):
            if len(part):
                whole[each * self._found : each * (self._found + piece.count)] = part[: each * piece.count]
        self._found += piece.count
        self._line += piece.lines

    def _error(self, piece: _Piece, text: Vector) -> MatrixFileError:
        line = text[piece.place : piece.place + _LONGEST_LINE].tobytes().partition(b"\n")[0]
        needed = "it holds zero bytes, which no text has" if b"\0" in line else NEEDED[piece.fault]
        shown = _text(line)
        return MatrixFileError(
            f"{self._path} has {shown if len(shown) <= 60 else shown[:57] + '...'!r} in line "
            f"{self._line + piece.lines + 1}; {needed}; {_REMEDY}"
        )


# The matrix


def _assemble(path: Path, head: _Head, entries: _Entries) -> csr_array:
    """Make the matrix that the entries mean."""
    dtype = _DTYPES[head.field]
    _check_opposites(path, head, entries.bits)
    if not head.is_coordinate:
        full = _write_out(head, entries.bits.view(dtype))
        if head.symmetry == "hermitian":
            _check_real(path, full.diagonal().imag, np.arange(head.rows))
        return csr_array(full)
    mirror = head.symmetry != "general"
    if mirror:
        _check_triangle(path, head, entries)
    rows, columns, bits = entries
    if head.field == Field.PATTERN:
        bits = np.ones(len(rows)).view(np.uint64)
    if head.field == Field.COMPLEX:
        bits = np.arange(len(rows), dtype=np.uint64)  # numbers of entries, whose values take two words
    stored = len(rows) + (int(np.count_nonzero(rows != columns)) if mirror else 0)
    index = np.dtype(np.int64) if stored >= 2**31 else rows.dtype
    indptr, indices, data = (
        np.zeros(head.rows + 1, index),
        np.empty(stored, index),
        np.empty(stored, np.uint64),
    )
    sign, flip = _negation(head)
    compress_rows(head.rows, rows, columns, bits, mirror, sign, flip, indptr, indices, data)
    values = _by_number(head, entries, data) if head.field == Field.COMPLEX else data.view(dtype)
    matrix = csr_array((values, indices, indptr), shape=(head.rows, head.columns))
    if dtype.kind in "iu" and not matrix.has_canonical_format and _may_overflow(matrix):
        _check_sums(path, matrix)
    matrix.sum_duplicates()
    return matrix


def _check_opposites(path: Path, head: _Head, bits: Vector) -> None:
    """Hold that the other side of a skew-symmetric matrix of integers can be stored."""
    least = np.iinfo(np.int64).min
    if head.symmetry != "skew-symmetric" or _DTYPES[head.field].kind == "f":
        return
    if np.any(bits.view(np.int64) == least):
        raise MatrixFileError(f"{path} is skew-symmetric and has {least}, whose opposite is beyond int64")


def _negation(head: _Head) -> tuple[np.uint64, np.uint64]:
    """Return what makes the bits of the other side, or their entry's number: (bits ^ sign) + flip."""
    if head.field == Field.COMPLEX:
        return _MIRRORED, np.uint64(0)
    if head.symmetry != "skew-symmetric":
        return np.uint64(0), np.uint64(0)
    if _DTYPES[head.field].kind == "f":
        return np.uint64(1 << 63), np.uint64(0)
    return np.uint64(2**64 - 1), np.uint64(1)


def _by_number(head: _Head, entries: _Entries, numbers: Vector) -> Vector:
    """Return complex values by the numbers of their entries, turned on the other side of the diagonal."""
    values: Vector = entries.bits.view(np.complex128)[numbers & ~_MIRRORED]
    mirrored = numbers >= _MIRRORED
    values[mirrored] = _turned(head, values[mirrored])
    return values


def _turned(head: _Head, values: Vector) -> Vector:
    """Return what stands on the other side of the diagonal."""
    if head.symmetry == "hermitian":
        return values.conj()
    return -values if head.symmetry == "skew-symmetric" else values


def _write_out(head: _Head, values: Vector) -> Vector:
    """Return an array, whose values are stored by columns, in full."""
    if head.symmetry == "general":
        return values.reshape(head.columns, head.rows).T
    skew = head.symmetry == "skew-symmetric"
    full = np.zeros((head.rows, head.rows), values.dtype)
    start = 0
    for j in range(head.rows):
        below = slice(j + skew, None)
        column = values[start : start + head.rows - j - skew]
        full[below, j] = column
        full[j, below] = _turned(head, column)
        if head.symmetry == "hermitian" and len(column):
            full[j, j] = column[0]
        start += len(column)
    return full


def _check_triangle(path: Path, head: _Head, entries: _Entries) -> None:
    """Hold that entries of symmetric storage lie on one side of the diagonal, or at least do not meet."""
    rows, columns, bits = entries
    on_diagonal = rows == columns
    stored = np.ones((np.count_nonzero(on_diagonal), 1), np.uint64)
    if _NUMBERS[head.field]:
        stored = bits.reshape(len(rows), _NUMBERS[head.field])[on_diagonal]
    if head.symmetry == "skew-symmetric" and np.any(stored << np.uint64(1)):
        row = int(rows[on_diagonal][0]) + 1
        raise MatrixFileError(
            f"{path} has an entry in row {row} and column {row}; the diagonal of a skew-symmetric matrix "
            f"is 0; {_REMEDY}"
        )
    if head.symmetry == "hermitian" and head.field == Field.COMPLEX:
        _check_real(path, stored[:, 1].view(np.float64), rows[on_diagonal])
    below, above = rows > columns, rows < columns
    if not below.any() or not above.any():
        return
    keys = [
        big.astype(np.uint64) * np.uint64(head.rows) + small.astype(np.uint64)
        for big, small in ((rows[below], columns[below]), (columns[above], rows[above]))
    ]
    twice = np.intersect1d(keys[0], keys[1])
    if len(twice):
        row, column = divmod(int(twice[0]), head.rows)
        raise MatrixFileError(
            f"{path} is {head.symmetry} and has both entries ({row + 1}, {column + 1}) and "
            f"({column + 1}, {row + 1}); one of them is needed; {_REMEDY}"
        )


def _check_real(path: Path, imaginary: Vector, rows: Vector) -> None:
    """Hold that the diagonal of a hermitian matrix has no imaginary parts, which lie in some rows."""
    if imaginary.any():
        row = int(rows[np.flatnonzero(imaginary)[0]]) + 1
        raise MatrixFileError(
            f"{path} has an imaginary part in row {row} and column {row}; the diagonal of a hermitian matrix "
            f"is real; {_REMEDY}"
        )


def _may_overflow(matrix: csr_array) -> bool:
    """Whether all entries together might be too large for their type, were they at one place."""
    most = max(int(matrix.data.max()), -int(matrix.data.min()))
    return bool(most * matrix.nnz > np.iinfo(matrix.dtype).max)


def _check_sums(path: Path, matrix: csr_array) -> None:
    """Hold that the integers at one place can be summed, by summing their halves apart."""
    halves = []
    for half in (matrix.data >> 32, matrix.data & matrix.dtype.type(2**32 - 1)):
        arrays = half.astype(np.int64), matrix.indices.copy(), matrix.indptr.copy()
        summed = csr_array(arrays, shape=matrix.shape)
        summed.sum_duplicates()
        halves.append(summed.data)
    high = halves[0] + (halves[1] >> 32)
    limits = np.iinfo(matrix.dtype)
    if len(high) and not (limits.min >> 32 <= high.min() and high.max() <= limits.max >> 32):
        raise MatrixFileError(
            f"{path} has several entries at one place whose sum is beyond {matrix.dtype}; {_REMEDY}"
        )
