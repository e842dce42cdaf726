"""A matrix in compressed sparse rows, from which every format is packed.

Here are its record, checks of a caller's arrays, the conversion from coordinates, and slices. `Operations`
defines what both devices compute with a matrix; `dasp.formats.csr.cpu` and `dasp.formats.csr.cuda` do it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from scipy import sparse

from dasp.runtime.sizes import narrowest, refuse_oversize
from dasp.runtime.types import Array as Array
from dasp.runtime.types import Vector


class Csr(NamedTuple):
    """A matrix to be planned, checked (`check_compressed`), on the device that packs it.

    Attributes
    ----------
    shape : tuple of int
        (m, n).
    indptr : Array, shape (m + 1,), int32 or int64
        First entry of each row.
    indices : Array, shape (nnz,), int32 or int64
        Column of each entry, in any order inside a row, duplicates allowed.
    data : Array, shape (nnz,), a type of `dasp.runtime.dtypes.TABLE`
    """

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    data: Array


class Operations(Protocol):
    """Operations on matrices on one device. Results are equal, bit for bit, on every device."""

    def sort_columns(self, csr: Csr) -> tuple[Csr, Array]:
        """Sort each row's entries by column, stably.

        Returns
        -------
        csr : Csr
            With sorted columns, but the values in their old places.
        order : Array, shape (nnz,), int32 or int64
            The position in `data` of each entry's value.
        """

    def scan(self, numbers: Array) -> Array:
        """Return the sum of the numbers before each, and last the sum of all, in an array of their type.

        Numbers are int32 or int64 and not negative; their type holds the sum of all.
        """

    def transpose(self, csr: Csr) -> tuple[Csr, Array] | None:
        """Return the transpose of a matrix; None if it equals the matrix, bit for bit.

        Returns
        -------
        csr : Csr
            With an indptr of int64 and indices of the matrix's type. Columns rise in every row;
            duplicates keep their order.
        order : Array, shape (nnz,), int32 or int64
            The position in the matrix of each entry of the transpose.
        """


def check_room(shape: tuple[int, int]) -> None:
    """Raise an OversizeError if the rows of a matrix are too many for this machine's memory."""
    refuse_oversize(f"indptr of a matrix of shape {shape}", 8.0 * shape[0], "leave out rows without entries")


def check_entries(shape: tuple[int, int], rows: Vector, columns: Vector, data: Vector) -> None:
    """Check that coordinates fit each other and the shape; TypeError or ValueError if not."""
    if not rows.shape == columns.shape == data.shape or data.ndim != 1:
        raise ValueError(
            f"data, row and col have shapes {data.shape}, {rows.shape} and {columns.shape}; "
            "one-dimensional arrays of one length are needed"
        )
    for name, positions, size in (("row", rows, shape[0]), ("col", columns, shape[1])):
        if positions.dtype.kind not in "iu":
            raise TypeError(f"{name} has dtype {positions.dtype}; integers are needed")
        if not len(positions):
            continue
        if positions.min() < 0:
            raise ValueError(f"{name} holds {positions.min()}; numbers from 0 are needed")
        if positions.max() >= size:
            room = f"so 0 to {size - 1} is needed" if size else f"which has no {name}"
            raise ValueError(f"{name} holds {positions.max()}; A has shape {shape}, {room}")


def check_compressed(
    kind: str, shape: tuple[int, int], indptr: Vector, indices: Vector, data: Vector
) -> None:
    """Check that three arrays are compressed rows (CSR), columns (CSC) or rows of blocks (BSR).

    Parameters
    ----------
    kind : str
        The name of the format in messages.
    shape : tuple of int
        The number of compressed lines, and the number of places in each.

    Raises
    ------
    ValueError
    """
    rises = indptr.shape == (shape[0] + 1,) and indptr[0] == 0 and not np.any(indptr[1:] < indptr[:-1])
    columns = (indices.min(), indices.max()) if len(indices) else None
    end = indptr[-1] if rises else 0
    check_facts(kind, shape, bool(rises), end, (len(indices), len(data)), columns)


def check_facts(
    kind: str,
    shape: tuple[int, int],
    rises: bool,
    end: int,
    given: tuple[int, int],
    columns: tuple[int, int] | None,
) -> None:
    """Check the same by facts about such arrays, found perhaps on a GPU; ValueError if one is wrong.

    Parameters
    ----------
    kind, shape
        As for `check_compressed`.
    rises : bool
        True if indptr rises from 0 in as many steps as there are lines.
    end : int
        The last number of indptr.
    given : tuple of int
        The numbers of indices and of values.
    columns : tuple of int or None
        Least and largest index; None if there are no indices.
    """
    lines, places = shape
    if not rises:
        raise ValueError(f"indptr does not rise from 0 in {lines} steps; A is not a valid {kind} matrix")
    if not given[0] == given[1] == end:
        raise ValueError(
            f"indptr ends with {end} and A has {given[0]} indices and {given[1]} values; these must be equal"
        )
    if columns and not 0 <= columns[0] <= columns[1] < places:
        raise ValueError(
            f"indices hold {columns[0]} to {columns[1]}; "
            f"a {kind} matrix of this shape needs 0 to {places - 1}"
        )


def csr_from_coo(m: int, rows: Array, columns: Array, values: Array) -> tuple[Array, Array, Array]:
    """Sort entries by row, stably; duplicates and explicit zeros stay as they are.

    Parameters
    ----------
    m : int
        Rows of the matrix.
    rows, columns : numpy.ndarray, shape (nnz,), int32 or int64
        Each row in [0, m).
    values : numpy.ndarray, shape (nnz,)

    Returns
    -------
    indptr : numpy.ndarray, shape (m + 1,), int64
    indices, data : numpy.ndarray, shape (nnz,)
        With the types of `columns` and `values`.
    """
    indptr, order = sort_by_row(m, rows)
    return indptr, columns[order], values[order]


def sort_by_row(m: int, rows: Array) -> tuple[Array, Array]:
    """Return indptr for m rows, and the numbers of the entries, sorted stably by row."""
    count = len(rows)
    # A matrix with entry k in column k: SciPy's conversion sorts it by rows and keeps the order of columns.
    ones, starts = np.ones(count, np.bool_), np.arange(count + 1, dtype=narrowest(count))
    by_row = sparse.csc_array((ones, rows, starts), shape=(m, count)).tocsr()
    return by_row.indptr.astype(np.int64), by_row.indices


def equal(one: Csr, other: Csr) -> bool:
    """Return True if two matrices on one device have the same entries in the same order, bit for bit."""
    if one.shape != other.shape or len(one.indices) != len(other.indices):
        return False
    words = f"u{min(one.data.itemsize, 8)}"
    return (
        bool((one.indptr == other.indptr).all())
        and bool((one.indices == other.indices).all())
        and bool((one.data.view(words) == other.data.view(words)).all())
    )


def slice_rows(csr: Csr, begin: int, end: int) -> Csr:
    """Return rows `begin` to `end` - 1, where 0 <= begin <= end <= m; indices and data are views."""
    starts = csr.indptr[begin : end + 1]
    first, last = starts[[0, -1]].tolist()
    return Csr((end - begin, csr.shape[1]), starts - first, csr.indices[first:last], csr.data[first:last])


def slice_columns(on: Operations, csr: Csr, begin: int, end: int) -> Csr:
    """Return columns `begin` to `end` - 1, where 0 <= begin <= end <= n; entries keep their order."""
    kept = (csr.indices >= begin) & (csr.indices < end)
    indptr = on.scan(kept.astype(csr.indptr.dtype))[csr.indptr]
    return Csr((csr.shape[0], end - begin), indptr, csr.indices[kept] - begin, csr.data[kept])
