"""The partition of a matrix: which rank has which rows, and how a rank gets them.

Rows are cut so that entries are balanced. One rank sends them to the others, or each rank reads its own from
a file.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dasp.distributed.communicator import Communicator, Exchange, agree
from dasp.distributed.transport import Span
from dasp.formats import backends
from dasp.formats.csr.matrix import Csr, slice_rows
from dasp.io.files import MatrixFileError, one_line_errors, open_regular
from dasp.io.matrices import load_matrix
from dasp.matrix.convert import read_sparse
from dasp.runtime import check as _check
from dasp.runtime.arrays import is_cupy_sparse
from dasp.runtime.types import ArrayLike, Vector


@dataclass(frozen=True)
class Parts:
    """The rows, or the elements of x, that each rank has: rank r from `starts[r]` up to `starts[r + 1]`.

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
        """The number of this rank's first row or element."""
        return int(self.starts[self.rank])

    @property
    def count(self) -> int:
        """How many this rank has."""
        return int(self.starts[self.rank + 1]) - self.first

    @property
    def total(self) -> int:
        """How many all ranks have together."""
        return int(self.starts[-1])

    def find_owners(self, places: Vector) -> Vector:
        """Return, for each row or element, the rank that has it."""
        return np.searchsorted(self.starts, places, "right") - 1


def find_parts(counts: Sequence[tuple[int, int | None]], n: int, rank: int) -> tuple[Parts, Parts]:
    """Return which rank has which rows, and which elements of x.

    Parameters
    ----------
    counts : sequence of (rows, elements of x or None), one for each rank
    n : int
        The number of elements of x.
    rank : int
        This one.

    Raises
    ------
    ValueError
        If only some ranks give their elements of x, or these do not add up to n.
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
    if sum(columns) != n or min(columns) < 0:
        raise ValueError(f"columns are {columns}; A has {n}, which must be their sum, and none negative")
    return Parts(rows, rank), Parts(np.array([0, *accumulate(columns)], np.int64), rank)


def check_starts(name: str, given: ArrayLike, ranks: int, total: int) -> Vector:
    """Return, as int64, where each rank's share begins and where the last one ends, after checks.

    Raises
    ------
    TypeError, ValueError
        If `given` holds no ints, or is not `ranks` + 1 ascending numbers from 0 to `total`.
    """
    starts, needed = np.asarray(given), f"{ranks + 1} rising numbers from 0 to {total} are needed"
    if starts.dtype.kind not in "iu":
        raise TypeError(f"{name} is {given!r}; {needed}, ints")
    if starts.shape != (ranks + 1,) or starts[0] != 0 or starts[-1] != total or (np.diff(starts) < 0).any():
        raise ValueError(f"{name} is {starts.tolist()}; {needed}")
    return starts.astype(np.int64)


def cut_rows(indptr: Vector, ranks: int) -> Vector:
    """Return where each rank's rows begin, so that entries are balanced; a row counts as one entry more.

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


def check_root(comm: Communicator, root: object) -> None:
    """Raise TypeError or ValueError unless `root` is the number of a rank."""
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)):
        raise TypeError(f"root is {root!r}; an int is needed")
    if not 0 <= root < comm.size:
        raise ValueError(f"root is {root}; there are {comm.size} ranks, numbered from 0")


def scatter(
    comm: Communicator, A: object, root: int, rows: ArrayLike | None, columns: ArrayLike | None
) -> tuple[scipy.sparse.csr_array, int | None]:
    """Send each rank its rows of the matrix A of `root`, cut at `rows` or else balanced by entries.

    Return with them the number of elements of x that this rank gets by `columns`; None if these are None.

    Raises
    ------
    TypeError, ValueError, RankError
        The same on all ranks.
    """

    def cut() -> tuple[int, list[int] | None, list[tuple[Vector, ...]]]:
        check_root(comm, root)
        if comm.rank != root:
            return 0, None, []
        whole = read_rows("A", A, "cpu")
        if rows is None:
            starts = cut_rows(whole.indptr, comm.size)
        else:
            starts = check_starts("rows", rows, comm.size, whole.shape[0])
        n, shares = whole.shape[1], None
        if columns is not None:
            shares = np.diff(check_starts("columns", columns, comm.size, n)).tolist()
        return n, shares, [slice_rows(whole, *ends)[1:] for ends in pairwise(starts.tolist())]

    n, shares, pieces = agree(comm, cut, lambda _: {"root": root})
    n, shares = comm.gather((n, shares))[root]
    indptr, indices, data = (
        swap(comm, {rank: piece[k] for rank, piece in enumerate(pieces)})[root] for k in range(3)
    )
    local = scipy.sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n))
    return local, None if shares is None else shares[comm.rank]


def swap(comm: Communicator, sends: Mapping[int, Vector]) -> dict[int, Vector]:
    """Send an array to each of some ranks, and return those that come, by rank in ascending order.

    All ranks call this. An array that a rank sends to itself is returned as it is.
    """
    with comm.call:
        kinds = comm.gather({rank: (array.shape, array.dtype) for rank, array in sends.items()})
        arrived = {rank: np.empty(*of[comm.rank]) for rank, of in enumerate(kinds) if comm.rank in of}
        Exchange(
            comm,
            [(rank, array) for rank, array in sends.items() if rank != comm.rank],
            [(rank, array) for rank, array in arrived.items() if rank != comm.rank],
            "exchange",
        ).complete()
        if comm.rank in sends:
            arrived[comm.rank] = sends[comm.rank]
        return arrived


def collect(comm: Communicator, part: Vector, root: int = 0) -> Vector | None:
    """Return on `root` the vector whose parts the ranks hold, on others None; all ranks call this."""
    arrived = swap(comm, {root: part})
    return np.concatenate([*arrived.values()]) if arrived else None


def collect_rows(
    comm: Communicator, rows: scipy.sparse.csr_array, root: int = 0
) -> scipy.sparse.csr_array | None:
    """Return on `root` the matrix whose rows the ranks hold, on others None; all ranks call this."""
    lengths, indices, data = (
        collect(comm, array, root) for array in (np.diff(rows.indptr), rows.indices, rows.data)
    )
    if lengths is None:
        return None
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return scipy.sparse.csr_array((data, indices, indptr), shape=(len(lengths), rows.shape[1]))


def send_to_owners(
    comm: Communicator, owners: Parts, columns: Vector, arrays: Sequence[Vector]
) -> tuple[list[Vector], list[Span], list[Span]]:
    """Send entries to the ranks that have their columns, and receive others, in the order of ranks.

    Parameters
    ----------
    comm : Communicator
    owners : Parts
        Which rank has which columns.
    columns : numpy.ndarray of int64, shape (entries,)
    arrays : sequence of numpy.ndarray, shape (entries,)
        Numbers to send, one for each entry.

    Returns
    -------
    arrived : list of numpy.ndarray
        One for each of `arrays`, of the same type.
    sends, receives : list of Span
        The share of each rank in the entries that were sent, sorted by owner, and in those that came.
    """
    ranks = owners.find_owners(columns)
    order = np.argsort(ranks, kind="stable")
    sends = find_spans(np.bincount(ranks, minlength=comm.size))
    arrived, receives = [], []
    for array in arrays:
        ordered = array[order]
        parts = swap(comm, {rank: ordered[first:end] for rank, first, end in sends})
        receives = find_spans([len(parts.get(rank, ())) for rank in range(comm.size)])
        arrived.append(np.concatenate([array[:0], *parts.values()]))
    return arrived, sends, receives


def find_spans(counts: Iterable[int]) -> list[Span]:
    """Return where each rank's share of an array lies, without ranks that have none.

    Examples
    --------
    >>> find_spans([2, 0, 3])
    [(0, 0, 2), (2, 2, 5)]
    """
    ends = np.cumsum([0, *counts]).tolist()
    return [(rank, first, end) for rank, (first, end) in enumerate(pairwise(ends)) if first < end]


def write_parts(
    matrix: scipy.sparse.sparray | scipy.sparse.spmatrix, ranks: int, folder: str | os.PathLike[str]
) -> list[tuple[int, int, int]]:
    """Write each rank's rows of a matrix into a new folder, which appears when it is complete.

    Each rank gets consecutive rows, balanced by entries. `scipy.sparse.save_npz` writes those of rank 1 of 4
    to `rank-00001-of-00004.npz`, and `digests-of-00004.npy` has the digest of each file.

    Parameters
    ----------
    matrix : scipy.sparse matrix, shape (m, n)
    ranks : int
    folder : path
        Must not exist.

    Returns
    -------
    list of (rows, entries, halo columns), one for each rank

    Raises
    ------
    TypeError
        If `matrix` is no sparse matrix, or `ranks` is no int.
    ValueError
        If `ranks` is less than 1, or the matrix has fewer rows.
    MatrixFileError
        If the folder exists or cannot be written.
    """
    ranks, target = _check.count("ranks", ranks), Path(folder)
    if target.exists():
        raise MatrixFileError(f"{target} exists; a partition is written into a new folder; remove it first")
    whole = read_rows("matrix", matrix, "cpu")
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
    sizes, digests, ranks = [], [], len(starts) - 1
    for rank, (first, end) in enumerate(pairwise(starts.tolist())):
        part, path = rows[first:end], folder / _name(rank, ranks)
        scipy.sparse.save_npz(path, part, compressed=False)
        digests.append(_read_digest(path))
        others = part.indices[(part.indices < first) | (part.indices >= end)]
        sizes.append((end - first, int(part.nnz), len(np.unique(others))))
    np.save(folder / _name_of_digests(ranks), digests)
    return sizes


def _name(rank: int, ranks: int) -> str:
    return f"rank-{rank:05}-of-{ranks:05}.npz"


def _name_of_digests(ranks: int) -> str:
    return f"digests-of-{ranks:05}.npy"


def _read_digest(path: Path) -> int:
    """Return a digest of the checksums that an .npz file has of its arrays."""
    with zipfile.ZipFile(path) as file:
        return zlib.crc32(repr([(member.filename, member.CRC) for member in file.infolist()]).encode())


def find_cuts(folder: Path) -> list[int]:
    """Return the numbers of ranks that a folder holds partitions for: one if `write_parts` made it."""
    ends = [path.stem.removeprefix("rank-00000-of-") for path in folder.glob("rank-00000-of-*.npz")]
    return [int(end) for end in ends if end.isdecimal()]


def read_part(
    folder: str | os.PathLike[str], rank: int, ranks: int
) -> tuple[scipy.sparse.csr_array, list[int] | None]:
    """Read a rank's rows, and the digests of all parts; None where a program of the user wrote the parts.

    Raises
    ------
    MatrixFileError
        If they are missing or damaged, the partition is for another number of ranks, or the part is not the
        one that `write_parts` wrote with the digests.
    """
    cuts = find_cuts(Path(folder))
    if not cuts:
        raise MatrixFileError(f"{folder} holds no part of rank 0; a folder of dasp partition is needed")
    if ranks not in cuts:
        raise MatrixFileError(
            f"{folder} was cut for {cuts[0]} ranks and there are {ranks}; start {cuts[0]}, or partition again"
        )
    path = (Path(folder) / _name(rank, ranks)).absolute()
    part, note = load_matrix(path), path.with_name(_name_of_digests(ranks))
    if not note.exists():
        return part, None
    with one_line_errors(note), open_regular(note) as file:
        digests = np.load(file, allow_pickle=False).tolist()
        is_changed = digests[rank] != _read_digest(path)
    if is_changed:
        raise MatrixFileError(f"{path} is not the part that was written with {note.name}; partition again")
    return part, digests


def read_rows(name: str, matrix: Any, device: str) -> Csr:
    """Return a matrix with every entry kept: on a GPU if it is CSR there, else on the host.

    Raises
    ------
    TypeError
        If `matrix`, the caller's `name`, is no sparse matrix of SciPy or CuPy.
    """
    if is_cupy_sparse(matrix):
        if device != "cpu" and matrix.format == "csr":
            return Csr(matrix.shape, *backends.find(device).as_csr(matrix))
        matrix = matrix.get()
    if not scipy.sparse.issparse(matrix):
        raise TypeError(f"{name} is {_check.kind_of(matrix)}; a scipy.sparse matrix is needed")
    return read_sparse(matrix)[0]
