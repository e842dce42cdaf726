"""A linear map over ranks: the part that a matrix and its transpose share."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.split import Parts
from dasp.runtime.types import Array, ArrayLike, Number
from dasp.solvers.space import Space

T = TypeVar("T")

SPACES = {"cpu": "dasp.distributed.space", "cuda": "dasp.distributed.space_cuda"}
"""The module that makes the space of a kind of device."""


class RankOperator(ABC):
    """A linear map over ranks; a vector is each rank's own part of it.

    Attributes
    ----------
    comm : Communicator
    device : str
        `cpu` or `cuda:N`, of this rank.
    rows, columns : Parts
        Which rank has which elements of y, and of x.
    """

    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2
    comm: Communicator
    device: str
    rows: Parts
    columns: Parts

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), of the whole."""
        return self.rows.total, self.columns.total

    @property
    def local_shape(self) -> tuple[int, int]:
        """The elements of y that this rank has, and those of x."""
        return self.rows.count, self.columns.count

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""

    @abstractmethod
    def matvec(
        self, x: ArrayLike, *, out: Array | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Array:
        """Return this rank's part of alpha A x + beta out; all ranks call it."""

    def dot(self, x: ArrayLike, out: Array | None = None) -> Array:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: ArrayLike) -> Array:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x)

    @property
    def call(self) -> AbstractContextManager[None]:
        """A context for work that all ranks do together, as one call: see `Communicator.call`."""
        return self.comm.call

    def agree(self, work: Callable[[], T], alike: Callable[[T], dict[str, Any]] | None = None) -> T:
        """Do some work on every rank; return its result, or raise the error of one rank on all."""
        return agree(self.comm, work, alike)

    def solver_space(self, dtype: np.dtype[Any]) -> Space:
        """Return the space in which solvers add and measure vectors: dot products are summed over ranks."""
        name = SPACES[self.device.partition(":")[0]]
        space: Space = importlib.import_module(name).make_space(self.comm, self.device, dtype)
        return space
