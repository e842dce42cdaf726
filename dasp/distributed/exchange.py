"""Which columns a rank lacks, who has them, and how their values travel.

A rank's rows are split by columns: those whose x it holds are its interior, the others its halo. Only rows
that have entries there stand in the halo's matrix. Before a product, each rank packs what its neighbours
lack and sends it; while that travels the interior is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasp.distributed.engine import Engine, Links
from dasp.runtime import arrays as _arrays

Array = Any
"""numpy.ndarray or cupy.ndarray."""


Span = tuple[int, int, int]
"""A rank, and the first and one past the last of the rows that are for it or from it."""


@dataclass(frozen=True)
class Parts:
    """Which rank has which rows, or which elements of x: `starts[r]` to `starts[r + 1]` are rank r's.

    Attributes
    ----------
    starts : numpy.ndarray of int64, shape (ranks + 1,)
    rank : int
        This one.
    """

    starts: np.ndarray[Any, Any]
    rank: int

    @property
    def first(self) -> int:
        """The first that this rank has."""
        return int(self.starts[self.rank])

    @property
    def count(self) -> int:
        """How many this rank has."""
        return int(self.starts[self.rank + 1]) - self.first

    @property
    def total(self) -> int:
        """How many there are."""
        return int(self.starts[-1])

    def owners(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the rank that has each place."""
        return np.searchsorted(self.starts, places, "right") - 1


class Csr(NamedTuple):
    """A matrix by rows: arrays as SciPy's, all NumPy's or all CuPy's."""

    indptr: Array
    indices: Array
    data: Array


class Split(NamedTuple):
    """A rank's rows, split by columns.

    Attributes
    ----------
    interior : Csr
        All rows; columns numbered from the first one whose x the rank holds.
    halo : Csr
        The rows that have entries in other columns; column k is `columns[k]`.
    rows : Array of int64
        Which rows those are.
    columns : numpy.ndarray of int64
        Which columns those are, globally, rising.
    own : Array of bool, shape (nnz,)
        Whether an entry is of the interior.
    """

    interior: Csr
    halo: Csr
    rows: Array
    columns: np.ndarray[Any, Any]
    own: Array


PIECE = 2**27
"""Entries that are split at once: beside them that takes some 20 bytes for each."""


def split(rows: Csr, columns: Parts) -> Split:
    """Split rows whose columns are numbered globally."""
    xp = _arrays.namespace(rows.data)
    first, end = columns.first, columns.first + columns.count
    nnz = len(rows.data)
    pieces = [slice(low, min(low + PIECE, nnz)) for low in range(0, nnz, PIECE)]
    own, indptr, found = xp.empty(nnz, bool), xp.zeros(len(rows.indptr), np.int64), [0]
    for piece in pieces:
        places = rows.indices[piece]
        own[piece] = (places >= first) & (places < end)
        counts = xp.cumsum(own[piece], dtype=np.int64)
        edges = xp.asarray([piece.start, piece.stop], rows.indptr.dtype)
        ends = slice(*xp.searchsorted(rows.indptr, edges, "right").tolist())  # of the rows that end there
        indptr[ends] = found[-1] + counts[rows.indptr[ends] - (piece.start + 1)]
        found.append(found[-1] + int(counts[-1]))
    indices, data = xp.empty(found[-1], _index_type(columns.count)), xp.empty(found[-1], rows.data.dtype)
    for piece, low, high in zip(pieces, found, found[1:], strict=False):
        if low < high:  # else the first column may be beyond what their type holds
            indices[low:high] = rows.indices[piece][own[piece]] - first
            data[low:high] = rows.data[piece][own[piece]]
    lengths = xp.diff(rows.indptr) - xp.diff(indptr)
    mine = xp.flatnonzero(lengths)
    halo_indptr = xp.zeros(len(mine) + 1, np.int64)
    halo_indptr[1:] = xp.cumsum(lengths[mine], dtype=np.int64)
    needed, values = (
        xp.concatenate([array[:0], *(array[piece][~own[piece]] for piece in pieces)])
        for array in (rows.indices, rows.data)
    )
    places = needed
    if len(needed):
        needed, places = xp.unique(needed, return_inverse=True)
    halo = Csr(halo_indptr, places.reshape(-1).astype(_index_type(len(needed)), copy=False), values)
    host = _arrays.to_host(needed).astype(np.int64)
    return Split(Csr(indptr, indices, data), halo, mine.astype(np.int64), host, own)


def _index_type(size: int) -> Any:
    """Return the type of the indices of SciPy's sparse matrices of this size."""
    return np.int32 if size < 2**31 else np.int64


class Route(NamedTuple):
    """What a rank sends and receives for a product.

    Attributes
    ----------
    places : numpy.ndarray of int64
        The elements of its part of x that it sends, neighbour by neighbour.
    sends, receives : list of Span
        Of `places`; of the columns of the halo.
    number : int
        The same on all ranks, and of no other route of theirs.
    """

    places: np.ndarray[Any, Any]
    sends: list[Span]
    receives: list[Span]
    number: int = 0

    @property
    def columns(self) -> int:
        """How many columns the halo has: as many numbers come for one of x."""
        return self.receives[-1][2] if self.receives else 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is sent, and nothing comes."""
        return not (self.sends or self.receives)


def runs(sends: Sequence[Span], places: np.ndarray[Any, Any]) -> list[tuple[int, int, int]] | None:
    """Return what is sent as runs of x, (rank, first, elements); None if some of it does not lie together.

    Slabs of a grid, and what else is cut across a band, send such runs, which nobody has to pack.
    """
    found = []
    for rank, first, end in sends:
        one = places[first:end]
        if one[-1] - one[0] != end - first - 1 or (np.diff(one) != 1).any():
            return None
        found.append((rank, int(one[0]), end - first))
    return found


def find_route(engine: Engine, columns: Parts, needed: np.ndarray[Any, Any]) -> Route:
    """Tell the owners of the columns that a rank lacks, and learn what others lack; all ranks call this."""
    owners = columns.owners(needed)
    cuts = np.flatnonzero(np.diff(owners, prepend=-1, append=engine.size))
    receives = [(int(owners[first]), int(first), int(end)) for first, end in pairwise(cuts)]
    asked = engine.gather({owner: end - first for owner, first, end in receives})
    sends, at = [], 0
    for rank, counts in enumerate(asked):
        if counts.get(engine.rank):
            sends.append((rank, at, at + counts[engine.rank]))
            at += counts[engine.rank]
    places = np.empty(at, np.int64)
    wanted = needed - columns.starts[owners] if len(needed) else needed
    exchange = engine.exchange(
        [(owner, np.ascontiguousarray(wanted[first:end])) for owner, first, end in receives],
        [(rank, places[first:end]) for rank, first, end in sends],
    )
    exchange.start()
    exchange.finish()
    return Route(places, sends, receives, engine.count_routes())


class Mover(Protocol):
    """Brings halo values of x to a rank and adds halo products to y; for one type and number of columns.

    Attributes
    ----------
    received : Array, shape (halo columns,) or (halo columns, k)
    product : Array, shape (halo rows,) or (halo rows, k)
        Where the halo's product with it is left.
    """

    received: Array
    product: Array

    def start(self, x: Array) -> None:
        """Pack and send."""

    def arrive(self) -> None:
        """Wait for what neighbours sent, where nothing is multiplied."""

    def multiply(self, halo: Any, alpha: Any) -> None:
        """Wait for what neighbours sent and set `product` to alpha times the halo's product with it."""

    def add(self, y: Array) -> None:
        """Add the product to the rows of y that have halo entries; x may be overwritten after this."""


class HostMover:
    """A mover in the memory of the host."""

    def __init__(
        self, links: Links, route: Route, rows: np.ndarray[Any, Any], shape: tuple[int, ...], x: Any, y: Any
    ) -> None:
        self._route, self._rows = route, rows
        self._packed = np.zeros((len(route.places), *shape), x)
        self.received, self.product = np.zeros((route.columns, *shape), x), np.zeros((len(rows), *shape), y)
        self._exchange = links.exchange(
            [(rank, self._packed[first:end]) for rank, first, end in route.sends],
            [(rank, self.received[first:end]) for rank, first, end in route.receives],
            f"halo of {route.number}, {np.dtype(x)}, {shape}",
        )

    def start(self, x: np.ndarray[Any, Any]) -> None:
        """Pack and send; a rank that sends nothing counts the operation too."""
        np.take(x, self._route.places, axis=0, out=self._packed, mode="clip")
        self._exchange.start()

    def arrive(self) -> None:
        """Wait."""
        self._exchange.finish()

    def multiply(self, halo: Any, alpha: Any) -> None:
        """Wait, then multiply."""
        self._exchange.finish()
        if len(self._rows):
            halo.matvec(self.received, out=self.product, alpha=alpha)

    def add(self, y: np.ndarray[Any, Any]) -> None:
        """Add: no row comes twice."""
        if len(self._rows):
            y[self._rows] += self.product
