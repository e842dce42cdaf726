"""Products with the transpose of a distributed matrix: the same messages, the other way round.

Each rank multiplies its rows' part of x by the transposes of its interior and of its halo (by the conjugated
ones, for the adjoint). What comes of the halo belongs to other ranks, which get it and add it in the order of
ranks.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dasp.distributed.engine import Links
from dasp.distributed.exchange import Route

Array = Any


class BackMover(Protocol):
    """Brings products of the transposed halo to their owners; for one type and number of columns."""

    def start(self, x: Array, halo: Any, alpha: Any) -> None:
        """Multiply and send."""

    def add(self, y: Array) -> None:
        """Wait, and add what came to y, neighbour by neighbour."""


def turned(route: Route) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return what is sent and received on the way back: slices of the halo, and of the places."""
    return route.receives, route.sends


class HostBackMover:
    """A mover in the memory of the host."""

    def __init__(
        self, links: Links, route: Route, rows: np.ndarray[Any, Any], shape: tuple[int, ...], x: Any, y: Any
    ) -> None:
        self._route, self._rows = route, rows
        self._taken = np.zeros((len(rows), *shape), x)
        self._product, self._came = (np.zeros((k, *shape), y) for k in (route.columns, len(route.places)))
        sends, receives = turned(route)
        self._exchange = links.exchange(
            [(rank, self._product[first:end]) for rank, first, end in sends],
            [(rank, self._came[first:end]) for rank, first, end in receives],
            f"halo back of {route.number}, {np.dtype(y)}, {shape}",
        )

    def start(self, x: np.ndarray[Any, Any], halo: Any, alpha: Any) -> None:
        """Multiply and send."""
        np.take(x, self._rows, axis=0, out=self._taken, mode="clip")
        halo.matvec(self._taken, out=self._product, alpha=alpha)
        self._exchange.start()

    def add(self, y: np.ndarray[Any, Any]) -> None:
        """Wait, and add."""
        self._exchange.finish()
        for _, first, end in self._route.sends:  # inside one no place comes twice
            y[self._route.places[first:end]] += self._came[first:end]


class Transposed:
    """The transpose of a distributed matrix; made by `SpMatrix.T`.

    Its vectors are each rank's own parts, and its methods those of `dasp.distributed.SpMatrix`.

    Attributes
    ----------
    T : SpMatrix
        The matrix itself.
    """

    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    name = "T"

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        setattr(self, self.name, matrix)
        self.engine, self.device = matrix.engine, matrix.device
        self.shape = matrix.shape[::-1]
        self.local_shape = matrix.local_shape[::-1]
        self.rows, self.columns = matrix.columns, matrix.rows
        self.nnz, self.dtype = matrix.nnz, matrix.dtype
        self.solver_space, self.agree, self.call = matrix.solver_space, matrix.agree, matrix.call
        self.hidden_sums = False

    def matvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        """Return this rank's part of alpha A.T x + beta out (A.H x of `A.H`); all ranks call it.

        Arguments, results and errors are those of `SpMatrix.matvec`, with rows and columns exchanged. Each
        sum is rounded once more for every neighbour that adds to it.
        """
        return self._matrix.multiply_transposed(x, out, alpha, beta, self.name)

    def dot(self, x: Any, out: Any = None) -> Any:
        """Return this rank's part of the product with x."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: Any) -> Any:
        """Return this rank's part of the product with x."""
        return self.matvec(x)

    def __repr__(self) -> str:
        """Return the whole's size."""
        return f"<{self.name} of {self._matrix!r}>"


class Adjoint(Transposed):
    """The conjugate transpose; made by `SpMatrix.H`, whose matrix is its `H`."""

    name = "H"
