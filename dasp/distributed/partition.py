"""Rows cut for ranks: balanced by entries or by a graph partitioner, sent from one rank or left in files."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.split import Numbers, Parts, sort_by_rows
from dasp.io.files import MatrixFileError, one_line_errors, open_regular
from dasp.runtime import check as _check

FORMAT = 1
"""Of the folder that `write_parts` makes."""

MANIFEST, ORDER = "partition.json", "order.npy"

ARRAYS = "indptr", "indices", "data"


def cut_rows(indptr: Numbers, ranks: int) -> Numbers:
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


def cut_graph(matrix: Any, ranks: int) -> tuple[Numbers, Numbers]:
    """Return the rows in an order in which each rank's follow each other, few columns cut, and their starts.

    Raises
    ------
    RuntimeError
        If pymetis is not installed.
    ValueError
        If the matrix is not square.
    """
    try:
        import pymetis
    except ImportError as error:
        raise RuntimeError(
            "a graph partitioner was asked for and pymetis is not installed; pip install pymetis, "
            "or cut by entries"
        ) from error
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"the matrix is {matrix.shape}; the graph of a square one can be partitioned")
    ones = scipy.sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    graph = scipy.sparse.csr_array(ones + ones.T)
    graph.setdiag(0)
    graph.eliminate_zeros()
    weights = (np.diff(matrix.indptr) + 1).tolist()
    _, labels = pymetis.part_graph(
        ranks, xadj=graph.indptr.tolist(), adjncy=graph.indices.tolist(), vweights=weights
    )
    order = np.argsort(labels, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=ranks))]).astype(np.int64)


def scatter(comm: Communicator, A: Any, root: int, rows: Any = None) -> scipy.sparse.csr_array:
    """Send each rank its rows of a matrix that one holds, from `rows[rank]` on; else balanced by entries.

    Raises
    ------
    TypeError, ValueError, RankError
        On all ranks the same.
    """

    def cut() -> tuple[Any, Any]:
        if not 0 <= root < comm.size:
            raise ValueError(f"root is {root}; there are {comm.size} ranks, numbered from 0")
        if comm.rank != root:
            return None, None
        if not scipy.sparse.issparse(A):
            raise TypeError(f"A is {_check.kind_of(A)}; a scipy.sparse matrix is needed on rank {root}")
        matrix = _rows_of(A)
        if rows is None:
            return matrix, cut_rows(matrix.indptr, comm.size)
        return matrix, starts_from("rows", rows, comm.size, matrix.shape[0])

    matrix, starts = agree(comm, cut, lambda _: {"root": root})
    heads = comm.gather(None if matrix is None else _heads(matrix, starts))[root]
    assert heads is not None
    shape, kinds, sizes = heads

    def make_room() -> tuple[dict[int, Any], list[Any]]:
        ranks = range(comm.size) if matrix is not None else ()
        mine = [np.empty(size, kind) for size, kind in zip(sizes[comm.rank], kinds, strict=True)]
        return {rank: _piece(matrix, starts, rank) for rank in ranks}, mine

    pieces, mine = agree(comm, make_room)
    for k, target in enumerate(mine):
        if comm.rank == root:
            target[...] = pieces[root][k]
            exchange = comm.exchange([(r, pieces[r][k]) for r in pieces if r != root], [])
        else:
            exchange = comm.exchange([], [(root, target)])
        exchange.start()
        exchange.finish()
    indptr, indices, data = mine
    return scipy.sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, shape[1]))


def starts_from(name: str, given: Any, ranks: int, total: int) -> Numbers:
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


def collect(comm: Communicator, part: Numbers, parts: Parts, root: int = 0) -> Any:
    """Return on one rank the whole vector of which each holds a part, elsewhere None; all ranks call this."""
    whole = np.empty(parts.total, part.dtype) if comm.rank == root else None
    if whole is None:
        exchange = comm.exchange([(root, part)], [])
    else:
        whole[parts.first : parts.first + parts.count] = part
        ends = [(rank, *map(int, parts.starts[rank : rank + 2])) for rank in range(comm.size)]
        exchange = comm.exchange([], [(rank, whole[a:b]) for rank, a, b in ends if rank != root])
    exchange.start()
    exchange.finish()
    return whole


def _rows_of(A: Any) -> scipy.sparse.csr_array:
    """Return a matrix by rows with every entry kept; SciPy sums the duplicates of coordinates."""
    if A.format != "coo":
        return scipy.sparse.csr_array(A.tocsr())
    rows = sort_by_rows(A.coords[0], A.coords[1], A.data, A.shape[0])
    return scipy.sparse.csr_array((rows.data, rows.indices, rows.indptr), shape=A.shape)


def _piece(matrix: Any, starts: Any, rank: int) -> tuple[Any, Any, Any]:
    """Return a rank's rows as contiguous arrays."""
    first, end = matrix.indptr[starts[rank]], matrix.indptr[starts[rank + 1]]
    indptr = matrix.indptr[starts[rank] : starts[rank + 1] + 1].astype(np.int64) - int(first)
    return (
        indptr,
        np.ascontiguousarray(matrix.indices[first:end]),
        np.ascontiguousarray(matrix.data[first:end]),
    )


def _heads(matrix: Any, starts: Any) -> tuple[Any, Any, Any]:
    """Return the shape, and the types and sizes of each rank's arrays."""
    entries = np.diff(matrix.indptr[starts].astype(np.int64)).tolist()
    rows = np.diff(starts).tolist()
    kinds = np.int64, matrix.indices.dtype, matrix.data.dtype
    return matrix.shape, kinds, [(m + 1, nnz, nnz) for m, nnz in zip(rows, entries, strict=True)]


class Part(NamedTuple):
    """A rank's rows from a folder, and the stamp of the partition that they belong to."""

    rows: scipy.sparse.csr_array
    stamp: str


def write_parts(matrix: Any, ranks: int, folder: Any, *, by: str = "entries") -> list[tuple[int, int, int]]:
    """Write a matrix cut for ranks into a new folder, which appears when all of it is there.

    Parameters
    ----------
    matrix : scipy.sparse matrix, shape (m, n)
    ranks : int
    folder : path
        Must not exist.
    by : {"entries", "graph"}
        Consecutive rows, balanced by entries; or as pymetis finds few columns cut, for a square matrix, whose
        rows and columns are then reordered: see `read_order`.

    Returns
    -------
    list of (rows, entries, columns of other ranks), one for each rank

    Raises
    ------
    ValueError, RuntimeError
        For a wrong argument; if pymetis is needed and not installed.
    MatrixFileError
        If the folder exists or cannot be written.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, (int, np.integer)) or ranks < 1:
        raise ValueError(f"ranks is {ranks!r}; an int of at least 1 is needed")
    if by not in ("entries", "graph"):
        raise ValueError(f"by is {by!r}; entries or graph is needed")
    target = Path(folder)
    if target.exists():
        raise MatrixFileError(f"{target} exists; a partition is written into a new folder; remove it first")
    rows, order = _rows_of(matrix), None
    if ranks > max(1, rows.shape[0]):
        raise ValueError(f"ranks is {ranks}; the matrix has {rows.shape[0]} rows; a rank needs at least one")
    if by == "graph":
        order, starts = cut_graph(rows, ranks)
        rows = _reordered(rows, order)
    else:
        starts = cut_rows(rows.indptr, ranks)
    partial = target.parent / f".{secrets.token_hex(8)}.partial"
    try:
        partial.mkdir()
        found = _write(partial, rows, starts, order)
        os.replace(partial, target)
    except OSError as error:
        raise MatrixFileError(
            f"{target} cannot be written: {error.strerror or error}; name a new folder in a writable one"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


def _reordered(rows: Any, order: Any) -> Any:
    """Return a square matrix with rows and columns in an order, every entry kept."""
    new = np.empty(len(order), np.int64)
    new[order] = np.arange(len(order))
    lengths = np.diff(rows.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(rows.indptr[order] - indptr[:-1], lengths) + np.arange(rows.nnz)
    return scipy.sparse.csr_array((rows.data[places], new[rows.indices[places]], indptr), shape=rows.shape)


def _write(folder: Path, rows: Any, starts: Any, order: Any) -> list[tuple[int, int, int]]:
    found, digests = [], []
    for rank in range(len(starts) - 1):
        piece = _piece(rows, starts, rank)
        path = folder / _name(rank)
        with open(path, "wb") as file:
            np.savez(file, **dict(zip(ARRAYS, piece, strict=True)))
            file.flush()
            os.fsync(file.fileno())
        digests.append(_digest(path))
        others = (piece[1] < starts[rank]) | (piece[1] >= starts[rank + 1])
        found.append((len(piece[0]) - 1, len(piece[1]), len(np.unique(piece[1][others]))))
    if order is not None:
        np.save(folder / ORDER, order)
    told = {
        "format": FORMAT,
        "shape": [int(size) for size in rows.shape],
        "entries": int(rows.nnz),
        "dtype": rows.data.dtype.name,
        "starts": starts.tolist(),
        "sha256": digests,
    }
    (folder / MANIFEST).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return found


def _name(rank: int) -> str:
    return f"rank-{rank:05}.npz"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def is_partition(path: Any) -> bool:
    """Return True if this is a folder that `write_parts` made."""
    return (Path(path) / MANIFEST).is_file()


def read_manifest(folder: Any) -> dict[str, Any]:
    """Return what a folder says of its partition.

    Raises
    ------
    MatrixFileError
        If it is none.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise MatrixFileError(f"{folder} holds no {MANIFEST}; a folder that dasp partition made is needed")
    with one_line_errors(path):
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if told["format"] != FORMAT:
            raise MatrixFileError(
                f"{path} is of format {told['format']}; {FORMAT} is needed; partition again"
            )
        starts = told["starts"]
        sound = len(starts) == len(told["sha256"]) + 1 and starts[0] == 0 and starts[-1] == told["shape"][0]
        if not sound or any(a > b for a, b in pairwise(starts)):
            raise MatrixFileError(f"{path} contradicts itself; partition again")
    return told


def read_part(folder: Any, rank: int, ranks: int) -> Part:
    """Read a rank's rows.

    Raises
    ------
    MatrixFileError
        If they are missing or damaged, or the partition is for other ranks.
    """
    told = read_manifest(folder)
    cut = len(told["starts"]) - 1
    if cut != ranks:
        raise MatrixFileError(
            f"{folder} was cut for {cut} ranks and there are {ranks}; start {cut}, or partition again"
        )
    path = Path(folder) / _name(rank)
    if not path.exists():
        raise MatrixFileError(f"{path} is missing; all {cut} parts are needed; partition again")
    if _digest(path) != told["sha256"][rank]:
        raise MatrixFileError(f"{path} is not what {MANIFEST} says (sha256); partition again")
    with one_line_errors(path), np.load(path, allow_pickle=False) as members:
        indptr, indices, data = (members[name] for name in ARRAYS)
    count = told["starts"][rank + 1] - told["starts"][rank]
    if len(indptr) != count + 1 or data.dtype.name != told["dtype"]:
        raise MatrixFileError(f"{path} does not fit {MANIFEST}; partition again")
    rows = scipy.sparse.csr_array((data, indices, indptr), shape=(count, told["shape"][1]))
    return Part(rows, hashlib.sha256(json.dumps(told).encode()).hexdigest())


def read_order(folder: Any) -> Numbers:
    """Return which row of the matrix each row of the partition was, all ranks' one after the other.

    Raises
    ------
    MatrixFileError
        If the folder holds no partition.
    """
    told, path = read_manifest(folder), Path(folder) / ORDER
    if not path.exists():
        return np.arange(told["shape"][0])
    with one_line_errors(path):
        order: Numbers = np.load(path, allow_pickle=False)
    return order
