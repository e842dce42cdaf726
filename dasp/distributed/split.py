"""A rank's rows, and the two matrices that they are split into by columns.

Columns whose x the rank holds are the interior, the others the halo. Only rows that have entries there stand
in the halo's matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dasp.formats import devices
from dasp.formats.csr.matrix import Csr
from dasp.matrix.entries import Coordinates, take_sparse
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import Array

Numbers = np.ndarray[Any, Any]
"""An array of NumPy."""

PIECE = 2**27
"""Entries that are split at a time; each takes some 20 bytes more meanwhile."""


@dataclass(frozen=True)
class Parts:
    """The rows, or the elements of x, of each rank: `starts[r]` to `starts[r + 1]` are rank r's.

    Attributes
    ----------
    starts : numpy.ndarray of int64, shape (ranks + 1,)
    rank : int
        This one.
    """

    starts: Numbers
    rank: int

    @property
    def first(self) -> int:
        """The first one of this rank."""
        return int(self.starts[self.rank])

    @property
    def count(self) -> int:
        """The number of those of this rank."""
        return int(self.starts[self.rank + 1]) - self.first

    @property
    def total(self) -> int:
        """The number of all."""
        return int(self.starts[-1])

    def find_owners(self, places: Numbers) -> Numbers:
        """Return the rank that has each place."""
        return np.searchsorted(self.starts, places, "right") - 1


class Split(NamedTuple):
    """A rank's rows, split by columns.

    Attributes
    ----------
    interior : Csr
        All rows; columns numbered from the first one whose x the rank holds.
    halo : Csr
        The rows that have entries in other columns; column k is `columns[k]`.
    rows : Array of int64
        The numbers of these rows.
    columns : numpy.ndarray of int64
        The global numbers of these columns, rising.
    own : Array of bool, shape (nnz,)
        True for an entry of the interior.
    """

    interior: Csr
    halo: Csr
    rows: Array
    columns: Numbers
    own: Array


def read_rows(local: Any, device: str) -> Csr:
    """Return a rank's rows as arrays on the device where they are planned, every entry kept.

    Raises
    ------
    TypeError
        If `local` is no sparse matrix of SciPy's or CuPy's.
    """
    if type(local).__module__.startswith("cupyx.scipy.sparse") and hasattr(local, "get"):
        if device != "cpu" and local.format == "csr":
            return Csr(local.shape, *devices.find(device).as_csr(local))
        local = local.get()
    if not scipy.sparse.issparse(local):
        raise TypeError(
            f"local is {_check.kind_of(local)}; a scipy.sparse matrix of this rank's rows is needed"
        )
    arrays = take_sparse(local, checks=True)
    if isinstance(arrays, Coordinates):
        return sort_by_rows(local.shape, arrays.rows, arrays.columns, arrays.data)
    return Csr(local.shape, *arrays)


def sort_by_rows(shape: tuple[int, int], rows: Numbers, columns: Numbers, data: Numbers) -> Csr:
    """Return coordinates by rows; duplicates stay."""
    order = np.argsort(rows, kind="stable")
    return Csr(shape, np.searchsorted(rows[order], np.arange(shape[0] + 1)), columns[order], data[order])


def find_parts(counts: Sequence[tuple[int, int | None]], n: int, rank: int) -> tuple[Parts, Parts]:
    """Return the rows of each rank, and its elements of x.

    Parameters
    ----------
    counts : sequence of (rows, elements of x or None), one for each rank
    n : int
        The elements of x.
    rank : int
        This one.

    Raises
    ------
    ValueError
        If the elements of x are said by some ranks alone, or are not n together.
    """
    rows = np.concatenate([[0], np.cumsum([count for count, _ in counts])]).astype(np.int64)
    columns = [elements for _, elements in counts if elements is not None]
    if not columns:
        even = np.arange(len(counts) + 1) * n // len(counts)
        return Parts(rows, rank), Parts(rows if rows[-1] == n else even.astype(np.int64), rank)
    if len(columns) < len(counts):
        raise ValueError(
            f"columns is given on {len(columns)} of {len(counts)} ranks; all ranks or none are needed"
        )
    starts = np.concatenate([[0], np.cumsum(columns)]).astype(np.int64)
    if starts[-1] != n or min(columns) < 0:
        raise ValueError(f"columns are {columns}; A has {n}, which must be their sum, and none negative")
    return Parts(rows, rank), Parts(starts, rank)


def split(rows: Csr, columns: Parts) -> Split:
    """Split rows whose columns are numbered globally."""
    xp = _arrays.namespace(rows.data)
    first, end = columns.first, columns.first + columns.count
    nnz = len(rows.data)
    pieces = [slice(low, min(low + PIECE, nnz)) for low in range(0, nnz, PIECE)]
    own, indptr, kept = xp.empty(nnz, bool), xp.zeros(len(rows.indptr), np.int64), [0]
    for piece in pieces:
        places = rows.indices[piece]
        own[piece] = (places >= first) & (places < end)
        counts = xp.cumsum(own[piece], dtype=np.int64)
        edges = xp.asarray([piece.start, piece.stop], rows.indptr.dtype)
        ends = slice(*xp.searchsorted(rows.indptr, edges, "right").tolist())  # of the rows that end there
        indptr[ends] = kept[-1] + counts[rows.indptr[ends] - (piece.start + 1)]
        kept.append(kept[-1] + int(counts[-1]))
    indices, data = xp.empty(kept[-1], narrowest(columns.count)), xp.empty(kept[-1], rows.data.dtype)
    for piece, low, high in zip(pieces, kept, kept[1:], strict=False):
        if low < high:  # else the first column may be beyond what their type holds
            indices[low:high] = rows.indices[piece][own[piece]] - first
            data[low:high] = rows.data[piece][own[piece]]
    lengths = xp.diff(rows.indptr) - xp.diff(indptr)
    halo_rows = xp.flatnonzero(lengths)
    halo_indptr = xp.zeros(len(halo_rows) + 1, np.int64)
    halo_indptr[1:] = xp.cumsum(lengths[halo_rows], dtype=np.int64)
    needed, values = (
        xp.concatenate([array[:0], *(array[piece][~own[piece]] for piece in pieces)])
        for array in (rows.indices, rows.data)
    )
    places = needed
    if len(needed):
        needed, places = xp.unique(needed, return_inverse=True)
    places = places.reshape(-1).astype(narrowest(len(needed)), copy=False)
    interior = Csr((rows.shape[0], columns.count), indptr, indices, data)
    halo = Csr((len(halo_rows), len(needed)), halo_indptr, places, values)
    host = _arrays.to_host(needed).astype(np.int64)
    return Split(interior, halo, halo_rows.astype(np.int64), host, own)
