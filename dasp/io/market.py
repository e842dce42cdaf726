"""Matrix Market files, plain or compressed by gzip, read strictly.

The format is that of Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats: Initial Design",
NISTIR 5935 (1996). SciPy's reader (C++, several threads) skips text after a number, so that 1,5 becomes 1,
and crashes at a zero byte. Here it reads from a stream that checks the form of each line first.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import scipy.io
from scipy.sparse import coo_array, csr_array

from dasp.io.files import MatrixFileError, open_regular
from dasp.runtime.sizes import BYTES_PER_COLUMN, BYTES_PER_ENTRY, BYTES_PER_ROW, refuse_oversize

_LONGEST_LINE = 1 << 16
_MOST_REMARKS = 1 << 20
"""Lines that may stand above the size line."""

_BLOCK = 1 << 22
"""Bytes that are checked at a time."""

_REMEDY = "mend it or download the file again"

_UNPACK = {
    (".tar.gz", ".tgz", ".tar"): "tar xf",
    (".bz2",): "bunzip2",
    (".xz",): "unxz",
    (".zst",): "unzstd",
}
"""The commands that unpack files with other endings."""

_REAL = rb"[+-]?+(?:(?:0++(?:\.0*+)?+|\.0++)(?:[eEdD][+-]?+0++)?+|(?i:nan|inf(?:inity)?+))"
_NUMBERS: dict[str, list[bytes]] = {
    "real": [_REAL],
    "double": [_REAL],
    "integer": [rb"[+-]?+0++"],
    "unsigned-integer": [rb"\+?+0++"],
    "pattern": [],
    "complex": [_REAL, _REAL],
}
"""Patterns of the numbers after row and column in a line, by field; 0 stands for any digit."""

_SYMMETRIES = "general", "symmetric", "skew-symmetric", "hermitian"
_HEADER = re.compile(
    rf"%%matrixmarket[ \t]+matrix[ \t]+(coordinate|array)[ \t]+({'|'.join(_NUMBERS)})[ \t]+"
    rf"({'|'.join(_SYMMETRIES)})(?:[ \t].*)?",
    re.IGNORECASE,
)
_SIZES = re.compile(r"[ \t]*0*([0-9]{1,30})[ \t]+0*([0-9]{1,30})(?:[ \t]+0*([0-9]{1,30}))?[ \t]*")

_TO_SHAPE = bytes.maketrans(b"123456789", 9 * b"0")
"""The shape of a line is the line with every digit replaced by 0: a file has few different shapes."""

_TO_SCIPY, _NOT_FOR_SCIPY = bytes.maketrans(b"dD", b"ee"), b"+\r"
"""SciPy's reader cannot read these: Fortran's exponents, plus signs, the line ends of Windows."""


class _Head(NamedTuple):
    """The header and the size line, with its number `line`; `entries` is None for an array."""

    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int | None
    line: int

    def count_lines(self) -> int:
        """Return the number of lines below the size line; a symmetric array stores its lower triangle."""
        if self.entries is not None:
            return self.entries
        if self.symmetry == "general":
            return self.rows * self.columns
        return self.rows * (self.rows + (-1 if self.symmetry == "skew-symmetric" else 1)) // 2


def read_matrix_market(path: Path) -> csr_array:
    """Read a Matrix Market file.

    Parameters
    ----------
    path : Path
        A regular file, plain or compressed by gzip.

    Returns
    -------
    scipy.sparse.csr_array, shape (m, n)
        float64; int64 or uint64 for the integer fields, complex128 for complex; a pattern's values
        are 1. Decimals are rounded to the nearest; their exponents may be written with e or, as Fortran
        does, with d. Symmetric storage is written out in full. Duplicates are summed; explicit zeros of a
        coordinate file are kept.

    Raises
    ------
    MatrixFileError
        If the file is of another kind, or contradicts itself.
    OversizeError
        If the matrix would take more than half of this machine's memory.
    ValueError, OverflowError
        If the file has too few or too many lines, or a line has an index or a whole number out of range.
    OSError, EOFError, zlib.error
        If the file cannot be read or unpacked.
    """
    for endings, unpack in _UNPACK.items():
        if path.name.lower().endswith(endings):
            raise MatrixFileError(
                f"{path} is packed; a .mtx or .mtx.gz file is needed; unpack it with: {unpack} {path}"
            )
    with open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
        head = _read_head(path, stream)
        lines = _CheckedLines(path, stream, head)
        matrix = scipy.io.mmread(lines, spmatrix=False)
    if lines.count != head.count_lines():  # SciPy does not count the values of a symmetric array
        raise MatrixFileError(
            f"{path} has {lines.count:,} values; its size line promises {head.count_lines():,}; {_REMEDY}"
        )
    values = matrix if isinstance(matrix, np.ndarray) else matrix.data
    if values.dtype.kind in "fc" and not lines.has_infinity and np.isinf(values).any():
        raise MatrixFileError(f"{path} has a value beyond the largest float64; {_REMEDY}")
    if isinstance(matrix, np.ndarray):
        _check_diagonal(path, head.symmetry, matrix.diagonal())
    elif head.symmetry != "general":
        matrix = _write_out(path, head, matrix)
    return csr_array(matrix)


def _read_head(path: Path, stream: IO[bytes]) -> _Head:
    """Read the header and the size line; check them before any memory is allocated for the matrix."""
    header = _read_line(path, stream, 1)
    words = _HEADER.fullmatch(header)
    if not words:
        raise MatrixFileError(
            f"{path} starts with {header[:60]!r}; a Matrix Market file starts with '%%MatrixMarket matrix "
            f"coordinate real general', or another field ({', '.join(_NUMBERS)}) or symmetry "
            f"({', '.join(_SYMMETRIES)}); give a file of that format"
        )
    layout, field, symmetry = (word.lower() for word in words.groups())
    number, line = 1, "%"
    while line.startswith("%") or not line.strip(" \t"):
        number += 1
        line = _read_line(path, stream, number)
    sizes = _SIZES.fullmatch(line)
    if not sizes or (sizes[3] is None) != (layout == "array"):
        names = "rows and columns" if layout == "array" else "rows, columns and entries"
        raise MatrixFileError(
            f"{path} has {line[:60]!r} in line {number}; that line must give {names} as whole numbers; "
            + _REMEDY
        )
    entries = int(sizes[3]) if sizes[3] else None
    head = _Head(field, symmetry, int(sizes[1]), int(sizes[2]), entries, number)
    if symmetry != "general" and head.rows != head.columns:
        raise MatrixFileError(
            f"{path} is {head.rows} x {head.columns} and {symmetry}; such a matrix is square; mend its header"
        )
    if (field, symmetry) == ("unsigned-integer", "skew-symmetric"):
        raise MatrixFileError(
            f"{path} is skew-symmetric and unsigned; its other half has signs; mend its header"
        )
    if (layout, field) == ("array", "pattern"):
        raise MatrixFileError(f"{path} is an array of a pattern, which has no values; mend its header")
    stored = head.count_lines() * (1 if symmetry == "general" else 2)
    refuse_oversize(
        f"{path} with {head.rows:,} rows and {stored:,} entries",
        BYTES_PER_ENTRY * max(len(_NUMBERS[field]), 1) * stored
        + BYTES_PER_ROW * head.rows
        + BYTES_PER_COLUMN * head.columns,
        "choose a smaller matrix",
    )
    return head


def _read_line(path: Path, stream: IO[bytes], number: int) -> str:
    raw = stream.readline(_LONGEST_LINE)
    if not raw and number > 1:
        raise MatrixFileError(f"{path} ends before its size line; it was cut short; download it again")
    is_other = number == 1 and not raw.startswith(b"%%")  # perhaps binary: its header is refused
    too_much = len(raw) == _LONGEST_LINE or number > _MOST_REMARKS or b"\0" in raw
    if too_much and not is_other:
        raise MatrixFileError(
            f"{path} holds zero bytes in line {number}, or more than {_LONGEST_LINE:,} bytes, or more than "
            f"{_MOST_REMARKS:,} lines of remarks; {_REMEDY}"
        )
    return raw.decode("latin-1").rstrip("\r\n")


class _CheckedLines:
    """A file for SciPy's reader: a head, then the lines of a stream, after a check of their form."""

    def __init__(self, path: Path, stream: IO[bytes], head: _Head) -> None:
        self.count, self.has_infinity = 0, False
        self._path, self._stream, self._line = path, stream, head.line
        # SciPy divides by the height of an array, and ends the process if it is 0.
        is_array = head.entries is None and head.count_lines() > 0
        indices = [rb"0++", rb"0++"] * (not is_array)
        self._form = re.compile(
            rb"[ \t]*+" + rb"[ \t]++".join(indices + _NUMBERS[head.field]) + rb"[ \t]*+\r?+"
        )
        values = [f"a value of the field {head.field}"] if _NUMBERS[head.field] else []
        self._needed = " and ".join(["a row", "a column"] * (not is_array) + values)
        layout, entries = ("array", "") if is_array else ("coordinate", head.entries or 0)
        # As many remarks as the file has lines above its sizes, so that SciPy counts lines as the file does.
        header = f"%%MatrixMarket matrix {layout} {head.field} {head.symmetry if is_array else 'general'}\n"
        remarks = (head.line - 2) * "%\n"
        self._text = f"{header}{remarks}{head.rows} {head.columns} {entries}\n".encode()
        self._place = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end.

        Raises
        ------
        MatrixFileError
            If a line has another form.
        """
        if self._place == len(self._text):
            self._text, self._place = self._read_block(), 0
        begin = self._place
        self._place = min(begin + size, len(self._text))
        return self._text[begin : self._place]

    def _read_block(self) -> bytes:
        """Read some lines, check them, and return them in the form that SciPy reads."""
        text = self._stream.read(_BLOCK)
        if text and not text.endswith(b"\n"):
            tail = self._stream.readline(_LONGEST_LINE)
            if len(tail) == _LONGEST_LINE:
                raise MatrixFileError(
                    f"{self._path} has a line of more than {_LONGEST_LINE:,} bytes; an entry is shorter; "
                    + _REMEDY
                )
            text += tail
        shapes = text.translate(_TO_SHAPE).removesuffix(b"\n").split(b"\n")
        different = set(shapes)
        blank = {shape for shape in different if not shape.removesuffix(b"\r").strip(b" \t")}
        faults = {shape for shape in different - blank if not self._form.fullmatch(shape)}
        if faults:
            place = next(place for place, shape in enumerate(shapes) if shape in faults)
            shown = text.split(b"\n")[place].decode("latin-1").rstrip("\r")
            raise MatrixFileError(
                f"{self._path} has {shown if len(shown) <= 60 else shown[:57] + '...'!r} in line "
                f"{self._line + place + 1}; a line has {self._needed}, and nothing else; {_REMEDY}"
            )
        if text and not text.endswith(b"\n"):
            text += b"\n"  # SciPy ends the process at a space that ends the file
        self._line += len(shapes)
        self.count += len(shapes) - sum(map(shapes.count, blank))
        self.has_infinity |= any(b"i" in shape or b"I" in shape for shape in different)
        return text.translate(_TO_SCIPY, _NOT_FOR_SCIPY)


def _write_out(path: Path, head: _Head, matrix: coo_array) -> coo_array:
    """Return a symmetrically stored matrix in full; no entry may be given on both sides of the diagonal."""
    rows, columns, values = matrix.row, matrix.col, matrix.data
    _check_diagonal(path, head.symmetry, values[rows == columns])
    below, above, height = rows > columns, rows < columns, np.uint64(head.rows)
    if below.any() and above.any():
        wide = rows.astype(np.uint64), columns.astype(np.uint64)
        keys = [
            big[side] * height + small[side] for big, small, side in ((*wide, below), (*wide[::-1], above))
        ]
        twice = np.intersect1d(*keys)
        if len(twice):
            row, column = divmod(int(twice[0]), head.rows)
            raise MatrixFileError(
                f"{path} is {head.symmetry} and has both entries ({row + 1}, {column + 1}) and "
                f"({column + 1}, {row + 1}); one of them is needed; {_REMEDY}"
            )
    off = below | above
    # SciPy multiplies by -1, which turns a complex infinity into NaN.
    mirror = {"skew-symmetric": np.negative, "hermitian": np.conj}.get(head.symmetry, np.asarray)
    data = np.concatenate([values, mirror(values[off])])
    places = np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]])
    return coo_array((data, places), shape=matrix.shape)


def _check_diagonal(path: Path, symmetry: str, diagonal: np.ndarray[Any, Any]) -> None:
    """Check that the diagonal of a skew-symmetric matrix is 0, and that of a hermitian one real."""
    wrong = {"skew-symmetric": diagonal != 0, "hermitian": diagonal.imag != 0}.get(symmetry)
    if wrong is not None and wrong.any():
        raise MatrixFileError(
            f"{path} is {symmetry} and has {diagonal[wrong][0]} on its diagonal; the diagonal of a "
            f"skew-symmetric matrix is 0, that of a hermitian one real; {_REMEDY}"
        )
