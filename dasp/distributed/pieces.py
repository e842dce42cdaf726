"""The two pieces of a rank's rows: the interior has the columns whose x the rank holds, the halo all others.

The halo has no empty rows: it leaves out those without entries in its columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.launch import find_rank_device
from dasp.distributed.partition import Parts, find_parts, read_rows, send_to_owners
from dasp.formats.csr.matrix import Csr, csr_from_coo
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.planning import Request, pack
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import Array, Vector

Entries = tuple[Vector, Vector, Vector]
"""Row numbers, column numbers and values."""

SPLIT_AT_ONCE = 2**27
"""Entries that are split at a time; each takes some 20 bytes more meanwhile."""


class Split(NamedTuple):
    """A rank's rows, split by columns.

    Attributes
    ----------
    interior : Csr or dasp.SpMatrix
        All rows; columns are numbered from the first one whose x the rank holds.
    halo : Csr
        The rows that have entries in other columns: row i is `rows[i]`, column k is `columns[k]`.
    rows : Array of int64
        Numbers of rows, counted from the rank's first, in ascending order.
    columns : numpy.ndarray of int64
        Global numbers of columns, in ascending order.
    own : Array of bool, shape (nnz,), or None
        True for each entry of the interior, in the order of the rows that were split; None for a transpose.
    """

    interior: Csr | SpMatrix
    halo: Csr
    rows: Array
    columns: Vector
    own: Array | None


def read_pieces(
    comm: Communicator, local: object, columns: int | None, device: str
) -> tuple[tuple[Parts, Parts], Split, str]:
    """Return which rank has what, the pieces of this rank's rows, and its device; all ranks call this.

    Raises
    ------
    TypeError, ValueError, RankError
        The same on all ranks.
    """

    def read() -> tuple[str, Csr]:
        if columns is not None and (isinstance(columns, bool) or not isinstance(columns, (int, np.integer))):
            raise TypeError(f"columns is {columns!r}; an int is needed")
        place = find_rank_device(comm, device, local)
        return place, read_rows("local", local, place)

    place, mine = agree(
        comm, read, lambda two: {"kind of device": two[0][:3], "columns of A": two[1].shape[1]}
    )
    counts = comm.gather((mine.shape[0], columns))

    def cut() -> tuple[tuple[Parts, Parts], Split]:
        parts = find_parts(counts, mine.shape[1], comm.rank)
        return parts, split(mine, parts[1])

    return *agree(comm, cut), place


def split(rows: Csr, columns: Parts) -> Split:
    """Split rows, whose columns are numbered globally, into interior and halo."""
    xp = _arrays.namespace(rows.data)
    first, nnz = columns.first, len(rows.data)
    spans = [slice(low, min(low + SPLIT_AT_ONCE, nnz)) for low in range(0, nnz, SPLIT_AT_ONCE)]
    own, outside = xp.empty(nnz, bool), [xp.empty(0, np.int64)]
    for span in spans:
        places = rows.indices[span]
        own[span] = (places >= first) & (places < first + columns.count)
        outside.append(xp.flatnonzero(~own[span]) + span.start)
    entries = xp.concatenate(outside)  # of the halo
    lengths = xp.bincount(xp.searchsorted(rows.indptr, entries, "right") - 1, minlength=rows.shape[0])

    halo_rows = xp.flatnonzero(lengths)
    needed = places = rows.indices[entries]
    if len(entries):
        needed, places = xp.unique(places, return_inverse=True)
    places = places.astype(narrowest(len(needed)))
    shape = len(halo_rows), len(needed)
    halo = Csr(shape, _add_up(lengths[halo_rows]), places, rows.data[entries])

    indices = xp.empty(nnz - len(entries), narrowest(columns.count))
    data = xp.empty(nnz - len(entries), rows.data.dtype)
    end = 0
    for span in spans:
        inside = rows.indices[span][own[span]]
        start, end = end, end + len(inside)
        if start < end:  # else the first column may be beyond what the type of indices holds
            indices[start:end] = inside - first
            data[start:end] = rows.data[span][own[span]]
    interior = Csr((rows.shape[0], columns.count), rows.indptr - _add_up(lengths), indices, data)
    host = _arrays.to_host(needed).astype(np.int64)
    if len(host) and not 0 <= host[0] <= host[-1] < columns.total:  # CuPy's arrays come unchecked
        raise ValueError(f"local has entries in columns {host[0]} to {host[-1]}; A has {columns.total}")
    return Split(interior, halo, halo_rows.astype(np.int64), host, own)


def _add_up(lengths: Array) -> Array:
    """Return the indptr of rows that have these lengths."""
    xp = _arrays.namespace(lengths)
    indptr: Array = xp.zeros(len(lengths) + 1, np.int64)
    indptr[1:] = xp.cumsum(lengths)
    return indptr


def plan_piece(piece: Csr | SpMatrix, policy: Policy | None, device: str) -> SpMatrix:
    """Plan a piece on the device that packs it; return a planned one as it is."""
    if isinstance(piece, SpMatrix):
        return piece
    request = Request.make(device, policy)
    if request.packing_device(piece.shape) == "cpu":
        piece = Csr(piece.shape, *map(_arrays.to_host, piece[1:]))
    return SpMatrix(pack(piece, None, request), device=device)


def read_halo(halo: SpMatrix, rows: Array, columns: Vector) -> Entries:
    """Return the entries of a planned halo whose row i is `rows[i]` and whose column k is `columns[k]`."""
    entries = halo.to_scipy().tocoo()
    return _arrays.to_host(rows)[entries.coords[0]], columns[entries.coords[1]], entries.data


def join(interior: SpMatrix, halo: Entries, columns: Parts) -> scipy.sparse.csr_array:
    """Return the rows that were split, as a new CSR array on the host with sorted, global columns."""
    own = interior.to_scipy().tocoo()
    rows = np.concatenate([own.coords[0], halo[0]])
    indices = np.concatenate([own.coords[1].astype(np.int64) + columns.first, halo[1]])
    data = np.concatenate([own.data, halo[2]])
    order = np.lexsort((indices, rows))
    indptr = np.searchsorted(rows[order], np.arange(interior.shape[0] + 1))
    shape = (interior.shape[0], columns.total)
    return scipy.sparse.csr_array((data[order], indices[order], indptr), shape=shape)


def transpose(comm: Communicator, columns: Parts, interior: SpMatrix, halo: Entries) -> Split:
    """Return the pieces of the transpose, whose rows are cut as `columns`; all ranks call this.

    Parameters
    ----------
    comm : Communicator
    columns : Parts
    interior : SpMatrix
        The transpose of this rank's interior.
    halo : Entries
        Of this rank's halo, not transposed; rows and columns are numbered globally.
    """
    (numbers, rows, data), _, _ = send_to_owners(comm, columns, halo[1], (halo[1], halo[0], halo[2]))

    def sort() -> Split:
        halo_rows, row = np.unique(numbers - columns.first, return_inverse=True)
        needed, column = np.unique(rows, return_inverse=True)
        piece = Csr((len(halo_rows), len(needed)), *csr_from_coo(len(halo_rows), row, column, data))
        return Split(interior, piece, halo_rows, needed, None)

    return agree(comm, sort)
