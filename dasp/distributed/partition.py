"""The partition of a matrix: which rank has which rows, how they come to it, and how it splits them.

Rows are cut so that entries are balanced, and sent from one rank or left in files. A rank splits its own by
columns: those whose x it holds are the interior, the others the halo. Only rows that have entries there stand
in the halo's matrix.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.protocols import Span
from dasp.formats import devices
from dasp.formats.csr.matrix import Csr
from dasp.io.files import MatrixFileError
from dasp.io.matrices import load_matrix
from dasp.matrix.convert import Coordinates, take_sparse
from dasp.matrix.matrix import SpMatrix
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime.sizes import narrowest
from dasp.runtime.types import Array, ArrayLike, Vector

Piece = tuple[Vector, Vector, Vector]
"""A rank's rows: indptr, indices and data, contiguous."""


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

    starts: Vector
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

    def find_owners(self, places: Vector) -> Vector:
        """Return the rank that has each place."""
        return np.searchsorted(self.starts, places, "right") - 1


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


def check_starts(name: str, given: ArrayLike, ranks: int, total: int) -> Vector:
    """Return where each rank's share begins, as it was given, and where the last one ends.

    Raises
    ------
    TypeError, ValueError
        If these are no ints, or not as many rising ones as needed.
    """
    starts, needed = np.asarray(given), f"{ranks + 1} rising numbers from 0 to {total} are needed"
    if starts.dtype.kind not in "iu":
        raise TypeError(f"{name} is {given!r}; {needed}, ints")
    if starts.shape != (ranks + 1,) or starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
        raise ValueError(f"{name} is {starts.tolist()}; {needed}")
    return starts.astype(np.int64)


def cut_rows(indptr: Vector, ranks: int) -> Vector:
    """Return where each rank's rows begin, so that entries (and rows, which cost one entry) are balanced.

    Parameters
    ----------
    indptr : numpy.ndarray of integers, shape (m + 1,)
    ranks : int

    Returns
    -------
    numpy.ndarray of int64, shape (ranks + 1,)

    Examples
    --------
    >>> cut_rows(np.array([0, 9, 10, 11, 12, 13]), 2)
    array([0, 1, 5])
    """
    weights = indptr.astype(np.int64) + np.arange(len(indptr))
    wanted = np.arange(1, ranks) * (weights[-1] / ranks)
    after = np.searchsorted(weights, wanted)
    before = np.maximum(after - 1, 0)
    inner = np.where(wanted - weights[before] < weights[after] - wanted, before, after)
    return np.concatenate([[0], np.maximum.accumulate(inner), [len(indptr) - 1]]).astype(np.int64)


def _cut(whole: Csr, first: int, end: int) -> Piece:
    """Return some rows."""
    indptr = whole.indptr[first : end + 1].astype(np.int64)
    entries = slice(int(indptr[0]), int(indptr[-1]))
    return indptr - indptr[0], *map(np.ascontiguousarray, (whole.indices[entries], whole.data[entries]))


def scatter(comm: Communicator, A: Any, root: int, rows: ArrayLike | None = None) -> scipy.sparse.csr_array:
    """Send each rank its rows of a matrix that one holds, from `rows[rank]` on; else balanced by entries.

    Raises
    ------
    TypeError, ValueError, RankError
        On all ranks the same.
    """

    def cut() -> tuple[int, list[Piece]]:
        if not 0 <= root < comm.size:
            raise ValueError(f"root is {root}; there are {comm.size} ranks, numbered from 0")
        if comm.rank != root:
            return 0, []
        if not scipy.sparse.issparse(A):
            raise TypeError(f"A is {_check.kind_of(A)}; a scipy.sparse matrix is needed on rank {root}")
        whole = read_rows(A, "cpu")
        if rows is None:
            starts = cut_rows(whole.indptr, comm.size)
        else:
            starts = check_starts("rows", rows, comm.size, whole.shape[0])
        return whole.shape[1], [_cut(whole, *ends) for ends in pairwise(starts.tolist())]

    columns, pieces = agree(comm, cut, lambda _: {"root": root})
    kinds = [[(array.size, array.dtype) for array in piece] for piece in pieces]
    columns, kinds = comm.gather((columns, kinds))[root]
    mine = agree(comm, lambda: [np.empty(size, dtype) for size, dtype in kinds[comm.rank]])
    for k, target in enumerate(mine):
        if comm.rank == root:
            target[...] = pieces[root][k]
            sends = [(rank, piece[k]) for rank, piece in enumerate(pieces) if rank != root]
            comm.exchange(sends, []).complete()
        else:
            comm.exchange([], [(root, target)]).complete()
    indptr, indices, data = mine
    return scipy.sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, columns))


def collect(comm: Communicator, part: Vector, parts: Parts, root: int = 0) -> Vector | None:
    """Return on one rank the whole vector of which each holds a part, elsewhere None; all ranks call this."""
    with comm.call:
        if comm.rank != root:
            comm.exchange([(root, part)], []).complete()
            return None
        whole = np.empty(parts.total, part.dtype)
        spans = [whole[first:end] for first, end in pairwise(parts.starts.tolist())]
        spans[root][...] = part
        comm.exchange([], [(rank, span) for rank, span in enumerate(spans) if rank != root]).complete()
        return whole


def send_to_owners(
    comm: Communicator, owners: Parts, columns: Vector, arrays: Sequence[Vector]
) -> tuple[list[Vector], list[Span], list[Span]]:
    """Send entries to the ranks that have their columns, and take those that come, in the order of ranks.

    Parameters
    ----------
    comm : Communicator
    owners : Parts
        Which rank has which columns; none of the entries is in this rank's own.
    columns : numpy.ndarray of int64, shape (entries,)
    arrays : sequence of numpy.ndarray, shape (entries,)
        The numbers of each entry that are sent; arrays of as many types are returned.

    Returns
    -------
    arrived : list of numpy.ndarray
    sends, receives : list of Span
        Of the entries that were sent, in the order of their owners, and of those that came.
    """
    ranks = owners.find_owners(columns)
    order = np.argsort(ranks, kind="stable")
    sends = find_spans(np.bincount(ranks, minlength=comm.size))
    counts = comm.gather({rank: end - first for rank, first, end in sends})
    receives = find_spans([count.get(comm.rank, 0) for count in counts])
    arrived = []
    for array in arrays:
        sent, received = array[order], np.empty(receives[-1][2] if receives else 0, array.dtype)
        comm.exchange(
            [(rank, sent[first:end]) for rank, first, end in sends],
            [(rank, received[first:end]) for rank, first, end in receives],
        ).complete()
        arrived.append(received)
    return arrived, sends, receives


def find_spans(counts: Iterable[int]) -> list[Span]:
    """Return where each rank's share of an array lies, of those that have some.

    Examples
    --------
    >>> find_spans([2, 0, 3])
    [(0, 0, 2), (2, 2, 5)]
    """
    ends = np.cumsum([0, *counts]).tolist()
    return [(rank, first, end) for rank, (first, end) in enumerate(pairwise(ends)) if first < end]


def write_parts(matrix: Any, ranks: int, folder: str | os.PathLike[str]) -> list[tuple[int, int, int]]:
    """Write a matrix cut for ranks into a new folder, which appears when all of it is there.

    Each rank gets consecutive rows, balanced by entries. Rank 1 of 4 finds them, as `scipy.sparse.save_npz`
    writes them, in `rank-00001-of-00004.npz`.

    Parameters
    ----------
    matrix : scipy.sparse matrix, shape (m, n)
    ranks : int
    folder : path
        Must not exist.

    Returns
    -------
    list of (rows, entries, columns of other ranks), one for each rank

    Raises
    ------
    ValueError
        If `ranks` is no int, or the matrix has fewer rows.
    MatrixFileError
        If the folder exists or cannot be written.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, (int, np.integer)) or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}; an int of at least 1 is needed")
    target = Path(folder)
    if target.exists():
        raise MatrixFileError(f"{target} exists; a partition is written into a new folder; remove it first")
    whole = read_rows(matrix, "cpu")
    rows = scipy.sparse.csr_array((whole.data, whole.indices, whole.indptr), shape=whole.shape)
    if ranks > max(1, rows.shape[0]):
        raise ValueError(f"ranks is {ranks}; the matrix has {rows.shape[0]} rows; a rank needs at least one")
    partial = target.parent / f".{secrets.token_hex(8)}.partial"
    try:
        partial.mkdir()
        sizes = _write(partial, rows, cut_rows(rows.indptr, ranks))
        os.replace(partial, target)
    except OSError as error:
        raise MatrixFileError(
            f"{target} cannot be written: {error.strerror or error}; name a new folder in a writable one"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sizes


def _write(folder: Path, rows: scipy.sparse.csr_array, starts: Vector) -> list[tuple[int, int, int]]:
    sizes = []
    for rank, (first, end) in enumerate(pairwise(starts.tolist())):
        part = rows[first:end]
        scipy.sparse.save_npz(folder / _name(rank, len(starts) - 1), part, compressed=False)
        others = part.indices[(part.indices < first) | (part.indices >= end)]
        sizes.append((end - first, int(part.nnz), len(np.unique(others))))
    return sizes


def _name(rank: int, ranks: int) -> str:
    return f"rank-{rank:05}-of-{ranks:05}.npz"


def find_cuts(folder: Path) -> list[int]:
    """Return for how many ranks a folder holds partitions: one number in a folder of `write_parts`."""
    return [int(path.stem.rpartition("-")[2]) for path in folder.glob("rank-00000-of-[0-9]*.npz")]


def read_part(folder: str | os.PathLike[str], rank: int, ranks: int) -> scipy.sparse.csr_array:
    """Read a rank's rows.

    Raises
    ------
    MatrixFileError
        If they are missing or damaged, or the partition is for other ranks.
    """
    cuts = find_cuts(Path(folder))
    if not cuts:
        raise MatrixFileError(f"{folder} holds no part of rank 0; a folder of dasp partition is needed")
    if ranks not in cuts:
        raise MatrixFileError(
            f"{folder} was cut for {cuts[0]} ranks and there are {ranks}; start {cuts[0]}, or partition again"
        )
    return load_matrix((Path(folder) / _name(rank, ranks)).absolute())


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


def sort_by_rows(shape: tuple[int, int], rows: Vector, columns: Vector, data: Vector) -> Csr:
    """Return coordinates by rows; duplicates stay."""
    order = np.argsort(rows, kind="stable")
    return Csr(shape, np.searchsorted(rows[order], np.arange(shape[0] + 1)), columns[order], data[order])


class Split(NamedTuple):
    """A rank's rows, split by columns.

    Attributes
    ----------
    interior : Csr or dasp.SpMatrix
        All rows; columns numbered from the first one whose x the rank holds.
    halo : Csr
        The rows that have entries in other columns; column k is `columns[k]`.
    rows : Array of int64
        The numbers of these rows.
    columns : numpy.ndarray of int64
        The global numbers of these columns, rising.
    own : Array of bool, shape (nnz,), or None
        True for an entry of the interior; None if entries have no order of their own.
    """

    interior: Csr | SpMatrix
    halo: Csr
    rows: Array
    columns: Vector
    own: Array | None


def split(rows: Csr, columns: Parts) -> Split:
    """Split rows whose columns are numbered globally."""
    xp = _arrays.namespace(rows.data)
    first, nnz = columns.first, len(rows.data)
    pieces = [slice(low, min(low + PIECE, nnz)) for low in range(0, nnz, PIECE)]
    own, outside = xp.empty(nnz, bool), [xp.empty(0, np.int64)]
    for piece in pieces:
        places = rows.indices[piece]
        own[piece] = (places >= first) & (places < first + columns.count)
        outside.append(xp.flatnonzero(~own[piece]) + piece.start)
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
    for piece in pieces:
        inside = rows.indices[piece][own[piece]]
        start, end = end, end + len(inside)
        if start < end:  # else the first column may be beyond what the type of indices holds
            indices[start:end] = inside - first
            data[start:end] = rows.data[piece][own[piece]]
    interior = Csr((rows.shape[0], columns.count), rows.indptr - _add_up(lengths), indices, data)
    host = _arrays.to_host(needed).astype(np.int64)
    return Split(interior, halo, halo_rows.astype(np.int64), host, own)


def _add_up(lengths: Array) -> Array:
    """Return the indptr of rows of these lengths."""
    xp = _arrays.namespace(lengths)
    indptr: Array = xp.zeros(len(lengths) + 1, np.int64)
    indptr[1:] = xp.cumsum(lengths)
    return indptr
