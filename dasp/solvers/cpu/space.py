"""The space of vectors on the CPU, for the methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dasp.solvers.cpu.arnoldi import CpuArnoldi
from dasp.solvers.cpu.blocks import gram, set_product
from dasp.solvers.cpu.loop import CpuLoop
from dasp.solvers.cpu.passes import solve_triangle
from dasp.solvers.cpu.vectors import CpuVectors, Vector
from dasp.solvers.operator import Array, Operator
from dasp.solvers.space import Iterate, Start, State, Triangle


class CpuSpace:
    """Vectors in the memory of the CPU; see `dasp.solvers.space.Space`."""

    device = "cpu"
    traced = False

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def fence(self) -> Callable[[], None]:
        """Return a function that does nothing: every pass is done when it returns."""
        return lambda: None

    def vectors(self, n: int, *names: str) -> CpuVectors:
        """Return vectors of n zeros."""
        return CpuVectors(n, names, self.dtype)

    def apply(self, operator: Operator, x: Vector, y: Vector) -> None:
        """Set y to the product of an operator and x."""
        operator.multiply(x, y)

    def loop(
        self,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...] = (),
    ) -> CpuLoop:
        """Prepare a loop; `leaving` makes no difference here."""
        return CpuLoop(starts, iterate, finish, period)

    def program(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return the function, without warnings."""

        def run() -> None:
            with np.errstate(all="ignore"):
                function()

        return run

    def triangular(self, triangle: Triangle) -> Callable[[Vector, Vector], None]:
        """Return a solve with a triangle, in one thread."""
        t = triangle
        arrays = t.rows, t.indptr, t.indices, t.data.astype(self.dtype), t.inverse.astype(self.dtype)
        return lambda b, x: solve_triangle(*arrays, b, x)

    def arnoldi(self, vectors: CpuVectors, names: list[str]) -> CpuArnoldi:
        """Return a Krylov basis."""
        return CpuArnoldi(vectors, names)

    def asarray(self, array: Array) -> Vector:
        """Return an array of the space's type, itself if it is one."""
        return np.asarray(array, self.dtype)

    def download(self, array: Vector) -> Vector:
        """Return a copy."""
        return np.array(array)

    def largest(self, array: Vector) -> float:
        """Return the largest absolute value."""
        return float(abs(array).max(initial=0.0))

    def gram(self, X: Vector, Y: Vector) -> np.ndarray[Any, Any]:
        """Return X.H Y in double precision."""
        return gram(X, Y)

    def set_product(
        self, out: Vector, X: Vector, C: np.ndarray[Any, Any], plus: Vector | None = None
    ) -> None:
        """Set `out` to X C, or to X C + `plus`."""
        set_product(out, X, C, plus)


def make_space(device: str, dtype: np.dtype[Any]) -> CpuSpace:
    """Return the space of the CPU for vectors of this type."""
    return CpuSpace(dtype)
