"""The matrix that the entries of a Matrix Market file mean: symmetric storage is written out, and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dasp.io.files import MatrixFileError

Vector = np.ndarray[Any, Any]

REMEDY = "mend it or download the file again"


class Head(NamedTuple):
    """The header and the size line; `lines` entries follow, `line` is the size line's number."""

    is_coordinate: bool
    field: str
    symmetry: str
    rows: int
    columns: int
    lines: int
    line: int


class Entries(NamedTuple):
    """All entries of a file: rows and columns counted from 0, and values; an array has values alone."""

    rows: Vector
    columns: Vector
    values: Vector


def assemble(path: Path, head: Head, entries: Entries) -> csr_array:
    """Make the matrix of a file's entries; MatrixFileError if they contradict its header."""
    rows, columns, values = entries
    skew = head.symmetry == "skew-symmetric"
    if skew and values.dtype.kind == "i" and np.any(values == np.iinfo(values.dtype).min):
        least = np.iinfo(values.dtype).min
        raise MatrixFileError(f"{path} is skew-symmetric and has {least}, whose opposite is beyond int64")
    if not head.is_coordinate:
        full = _write_out(head, values)
        if head.symmetry == "hermitian":
            _check_real(path, full.diagonal().imag, np.arange(head.rows))
        return csr_array(full)
    if head.symmetry != "general":
        _check_triangle(path, head, entries)
        off = rows != columns
        rows, columns, values = (
            np.concatenate([rows, columns[off]]),
            np.concatenate([columns, rows[off]]),
            np.concatenate([values, _mirror(head, values[off])]),
        )
    shape = head.rows, head.columns
    if values.dtype.kind in "iu" and _may_overflow(values):
        _check_sums(path, shape, Entries(rows, columns, values))
    return csr_array((values, (rows, columns)), shape=shape)


def _mirror(head: Head, values: Vector) -> Vector:
    """Return the values on the other side of the diagonal."""
    if head.symmetry == "hermitian":
        return values.conj()
    return -values if head.symmetry == "skew-symmetric" else values


def _write_out(head: Head, values: Vector) -> Vector:
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
        full[j, below] = _mirror(head, column)
        if head.symmetry == "hermitian" and len(column):
            full[j, j] = column[0]
        start += len(column)
    return full


def _check_triangle(path: Path, head: Head, entries: Entries) -> None:
    """Check that entries of symmetric storage lie on one side of the diagonal, or at least do not meet."""
    rows, columns, values = entries
    on_diagonal = rows == columns
    diagonal, place = values[on_diagonal], rows[on_diagonal]
    if head.symmetry == "skew-symmetric" and np.any(diagonal != 0):
        row = int(place[0]) + 1
        raise MatrixFileError(
            f"{path} has an entry in row {row} and column {row}; the diagonal of a skew-symmetric matrix "
            f"is 0; {REMEDY}"
        )
    if head.symmetry == "hermitian":
        _check_real(path, diagonal.imag, place)
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
            f"({column + 1}, {row + 1}); one of them is needed; {REMEDY}"
        )


def _check_real(path: Path, imaginary: Vector, rows: Vector) -> None:
    """Check that the diagonal of a hermitian matrix, given with its rows, has no imaginary parts."""
    if imaginary.any():
        row = int(rows[np.flatnonzero(imaginary)[0]]) + 1
        raise MatrixFileError(
            f"{path} has an imaginary part in row {row} and column {row}; the diagonal of a hermitian matrix "
            f"is real; {REMEDY}"
        )


def _may_overflow(values: Vector) -> bool:
    """Return True if the sum of all integers might be too large for their type."""
    most = max(int(values.max()), -int(values.min())) if len(values) else 0
    return bool(most * len(values) > np.iinfo(values.dtype).max)


def _check_sums(path: Path, shape: tuple[int, int], entries: Entries) -> None:
    """Check that the integers at each place can be summed, by summing their halves apart."""
    rows, columns, values = entries
    low, high = (
        csr_array((half.astype(np.int64), (rows, columns)), shape=shape).data
        for half in (values & values.dtype.type(2**32 - 1), values >> 32)
    )
    high = high + (low >> 32)
    limits = np.iinfo(values.dtype)
    if len(high) and not (limits.min >> 32 <= high.min() and high.max() <= limits.max >> 32):
        raise MatrixFileError(
            f"{path} has several entries at one place whose sum is beyond {values.dtype}; {REMEDY}"
        )
