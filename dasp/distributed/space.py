"""The space of a distributed system: vectors are each rank's own part, dot products are summed over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.distributed.engine import Engine, largest
from dasp.solvers.cpu import CpuArnoldi, CpuSpace, CpuVectors
from dasp.solvers.scalars import Scalar
from dasp.solvers.space import Fused


class RanksFused:
    """A pass over a rank's parts whose dot products are summed over the ranks, all of them at once."""

    def __init__(self, own: Fused, add: Callable[[], None], sums: np.ndarray[Any, Any]) -> None:
        self._own, self._add, self._sums = own, add, sums

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""
        self._sums[:] = self._own(**coefficients)
        self._add()
        return tuple(self._sums.copy())


class RanksVectors(CpuVectors):
    """Vectors on the CPUs of several ranks."""

    def __init__(self, engine: Engine, n: int, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(n, names, dtype)
        self._engine = engine

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Any:
        """Prepare a pass."""
        own = super().fuse(*updates, dots=dots)
        if not dots:
            return own
        sums = np.zeros(len(dots))
        return RanksFused(own, self._engine.sum(sums), sums)


class RanksSpace(CpuSpace):
    """Vectors on the CPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(self, engine: Engine, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        self._engine = engine

    def vectors(self, n: int, *names: str) -> RanksVectors:
        """Return vectors of which this rank has n zeros."""
        return RanksVectors(self._engine, n, names, self.dtype)

    def arnoldi(self, vectors: CpuVectors, names: list[str]) -> CpuArnoldi:
        """Return a Krylov basis; its coefficients come from passes, so they are of all ranks."""
        return CpuArnoldi(vectors, names)

    def largest(self, array: np.ndarray[Any, Any]) -> float:
        """Return the largest absolute value on any rank."""
        return largest(self._engine, super().largest(array))


def make_space(engine: Engine, device: str, dtype: np.dtype[Any]) -> RanksSpace:
    """Return the space of the CPUs of ranks for vectors of this type."""
    return RanksSpace(engine, dtype)
