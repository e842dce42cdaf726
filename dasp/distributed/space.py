"""The space of a distributed system: vectors are each rank's own part, dot products are summed over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.distributed.communicator import Communicator, find_largest
from dasp.runtime.types import Vector
from dasp.solvers.cpu.space import CpuSpace
from dasp.solvers.cpu.vectors import CpuVectors
from dasp.solvers.scalars import Scalar
from dasp.solvers.space import Pass, parse_dot


class RanksPass:
    """A pass over a rank's parts whose dot products are summed over the ranks, all of them at once."""

    def __init__(self, comm: Communicator, own: Pass, whole: list[bool]) -> None:
        """Prepare the sum; `whole` marks complex dot products, whose parts travel as two real numbers."""
        self._own, self._whole = own, whole
        self._sums = np.zeros(len(whole), np.complex128 if any(whole) else np.float64)
        numbers = self._sums.view(np.float64)
        self._add = comm.sum(numbers, numbers)

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""
        self._sums[:] = self._own(**coefficients)
        self._add()
        return tuple(
            one if whole else one.real for one, whole in zip(self._sums.copy(), self._whole, strict=True)
        )


class RanksVectors(CpuVectors):
    """Vectors on the CPUs of several ranks."""

    def __init__(self, comm: Communicator, n: int, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        super().__init__(n, names, dtype)
        self._comm = comm

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass whose dot products are summed over the ranks."""
        own = super().fuse(*updates, dots=dots)
        if not dots:
            return own
        complex = self.block.dtype.kind == "c"
        return RanksPass(self._comm, own, [complex and parse_dot(dot).whole for dot in dots])


class RanksSpace(CpuSpace):
    """Vectors on the CPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(self, comm: Communicator, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        self._comm = comm

    def vectors(self, n: int, *names: str) -> RanksVectors:
        """Return vectors, of which this rank's part is n zeros each."""
        return RanksVectors(self._comm, n, names, self.dtype)

    def largest(self, array: Vector) -> float:
        """Return the largest absolute value on any rank."""
        return find_largest(self._comm, super().largest(array))
