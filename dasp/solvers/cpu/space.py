"""The space of vectors on the CPU, and its loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dasp.runtime.types import Array, Vector
from dasp.solvers.cpu.arnoldi import CpuArnoldi
from dasp.solvers.cpu.passes import solve_triangle
from dasp.solvers.cpu.vectors import CpuVectors
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.scalars import LIMIT, RUNNING, first_verdict, verdict
from dasp.solvers.space import Iterate, Pass, Report, Start, State, Triangle

TILE_BYTES = 1 << 18
"""Bytes of the rows of a block that are multiplied at a time, so that their product is in the second cache
when it is added and written."""


class CpuLoop:
    """An iteration on the CPU; see `dasp.solvers.space.Loop`."""

    def __init__(
        self, starts: Mapping[str, Start], iterate: Iterate, finish: Callable[[], State], period: int
    ) -> None:
        self._starts, self._iterate, self._finish, self._period = starts, iterate, finish, period
        self._state: State = {}
        self._phase = 0

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew with the start of this name, which takes the scalars in `given`."""
        self._phase = 0
        with np.errstate(all="ignore"):
            state = self._starts[name]({key: np.float64(value) for key, value in given.items()})
            state["code"] = first_verdict(state["rr"], state["goal"], state.get("code", float(RUNNING)))
        self._state = state

    def advance(self, most: int, *, finish: bool) -> Report:
        """Iterate until there is a verdict, `most` times at most."""
        state, residuals, count = self._state, [], 0.0
        if state["code"] == LIMIT:
            state["code"] = float(RUNNING)
        with np.errstate(all="ignore"):
            while state["code"] == RUNNING and count < most:
                state |= {"code": float(RUNNING), **self._iterate(self._phase, state)}
                self._phase = (self._phase + 1) % self._period
                squared = float(state["rr"])
                code = float(state["code"])
                state["code"], count = verdict(squared, float(state["goal"]), count, float(most), code)
                residuals.append(math.sqrt(abs(squared)))
            last = self._finish() if finish else {}
        return Report({key: float(value.real) for key, value in (state | last).items()}, residuals)


class CpuTriangle:
    """A solve with a triangle on the CPU; see `dasp.solvers.space.TriangularSolve`."""

    def __init__(self, triangle: Triangle, dtype: np.dtype[Any]) -> None:
        self._pattern, self._dtype = (triangle.rows, triangle.indptr, triangle.indices), dtype
        self.load(triangle.data, triangle.inverse)

    def __call__(self, b: Vector, x: Vector) -> None:
        """Set x to the solution for b."""
        solve_triangle(*self._pattern, *self._values, b, x)

    def load(self, data: Vector, inverse: Vector) -> None:
        """Load other values of the same pattern."""
        self._values = data.astype(self._dtype), inverse.astype(self._dtype)


class CpuSpace:
    """Vectors in the memory of the CPU; see `dasp.solvers.space.Space`."""

    device = "cpu"

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def wait(self) -> None:
        """Do nothing: every pass is complete when it returns."""

    def vectors(self, n: int, *names: str) -> CpuVectors:
        """Return vectors of n zeros."""
        return CpuVectors(n, names, self.dtype)

    def apply(self, operator: DeviceOperator, x: Vector, y: Vector) -> None:
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
        """Return a function that calls another without NumPy's warnings."""

        def run() -> None:
            with np.errstate(all="ignore"):
                function()

        return run

    def eager(self, vectors: CpuVectors, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass: on the CPU each is made when it is called."""
        return vectors.fuse(*updates, dots=dots)

    def triangular(self, triangle: Triangle) -> CpuTriangle:
        """Return a solve with a triangle, in one thread."""
        return CpuTriangle(triangle, self.dtype)

    def arnoldi(self, vectors: CpuVectors, names: list[str]) -> CpuArnoldi:
        """Return a Krylov basis."""
        return CpuArnoldi(vectors, names)

    def asarray(self, array: Array) -> Vector:
        """Return the array in the space's type; the array itself if it is that already."""
        return np.asarray(array, self.dtype)

    def download(self, array: Vector) -> Vector:
        """Return a copy."""
        return np.array(array)

    def largest(self, array: Vector) -> float:
        """Return the largest absolute value."""
        return float(abs(array).max(initial=0.0))

    def set_product(
        self, out: Vector, X: Vector, C: np.ndarray[Any, Any], plus: Vector | None = None
    ) -> None:
        """Set `out` to X C, or to X C + `plus`; `out` may share columns with either."""
        n, k = X.shape
        C = np.ascontiguousarray(C, out.dtype)
        rows = max(1, TILE_BYTES // (out.itemsize * max(1, k)))
        for first in range(0, n, rows):
            tile = slice(first, first + rows)
            product = X[tile] @ C
            if plus is not None:
                product += plus[tile]
            out[tile] = product


def make_space(device: str, dtype: np.dtype[Any]) -> CpuSpace:
    """Return the space of the CPU for vectors of this type."""
    return CpuSpace(dtype)
