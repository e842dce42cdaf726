"""Arnoldi's method on the CPU, with the least-squares problem of GMRES."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.runtime.types import Vector
from dasp.solvers.cpu.vectors import CpuVectors
from dasp.solvers.space import Pass

ENOUGH = 0.5
"""A vector is made orthogonal once more if less than this share of the square of its norm is left."""


class CpuArnoldi:
    """A Krylov basis on the CPU; see `dasp.solvers.space.Arnoldi`. Its passes are prepared when first
    needed."""

    ahead = 1

    def __init__(self, vectors: CpuVectors, names: list[str]) -> None:
        self._vectors, self._names = vectors, names
        self._number = np.complex128 if vectors.block.dtype.kind == "c" else np.float64
        self._columns: list[Vector] = [np.zeros(k + 2, self._number) for k in range(len(names) - 1)]
        self._problem = SmallProblem(0.0, 0, self._number)
        self._begin = vectors.fuse(f"{names[0]} = scale r")
        self._add: dict[tuple[int, str], Pass] = {}
        self._passes: dict[int, tuple[Pass, Pass, Pass]] = {}

    def begin(self, norm: float) -> None:
        """Make the first vector from r, which has this norm."""
        self._begin(scale=1.0 / norm)
        self._problem = SmallProblem(norm, len(self._columns), self._number)

    def extend(self, k: int) -> None:
        """Make vector k + 1 orthogonal to those before it, twice if little is left, and normalise it."""
        with np.errstate(all="ignore"):
            measure, subtract, norm = self._passes.get(k) or self._prepare(k)
            names = [f"h{j}" for j in range(k + 1)]
            *products, before = measure()
            self._columns[k][:-1] = products
            (square,) = subtract(**dict(zip(names, products, strict=True)))
            if not square > ENOUGH * before:
                *products, _ = measure()
                self._columns[k][:-1] += products
                (square,) = subtract(**dict(zip(names, products, strict=True)))
            length = math.sqrt(square) if square >= 0 else math.nan
            norm(scale=1.0 / length if length > 0 else 0.0)
            self._columns[k][-1] = length

    def _prepare(self, k: int) -> tuple[Pass, Pass, Pass]:
        fuse, w, before = self._vectors.fuse, self._names[k + 1], self._names[: k + 1]
        update = f"{w} = {w}" + "".join(f" - h{j} {name}" for j, name in enumerate(before))
        measure = fuse(dots=(*(f"{name}'{w}" for name in before), f"{w} {w}"))
        made = measure, fuse(update, dots=(f"{w} {w}",)), fuse(f"{w} = scale {w}")
        self._passes[k] = made
        return made

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[[int, int], None]:
        """Return a function that makes steps `first` to `last` - 1."""

        def run(first: int, last: int) -> None:
            for k in range(first, last):
                steps[k]()

        return run

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return for each of these steps the residual's norm, and whether no new direction was left."""
        residuals = []
        for column in self._columns[first:last]:
            self._problem.add(column)
            residuals.append((self._problem.residuals[-1], self._problem.broken))
        return residuals

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to vector `target`, x or q."""
        key = count, target
        if key not in self._add:
            terms = "".join(f" + y{k} {name}" for k, name in enumerate(self._names[:count]))
            self._add[key] = self._vectors.fuse(f"{target} = {target}{terms}")
        self._add[key](**{f"y{k}": value for k, value in enumerate(self._problem.solve(count))})


class SmallProblem:
    """The least-squares problem of a cycle: a Hessenberg matrix that grows by a column in each iteration.

    Parameters
    ----------
    norm : float
        The norm of the residual at the start.
    steps : int
        The most columns.
    number : numpy.float64 or numpy.complex128
        The type of the columns. Below the diagonal they are real and not negative, so that the sines of the
        rotations and the norms of the residuals are real.
    """

    def __init__(self, norm: float, steps: int, number: type[np.inexact[Any]] = np.float64) -> None:
        self._matrix = np.zeros((steps + 1, steps), number)
        self._rotations: list[tuple[Any, Any, float]] = []
        self.count, self.broken = 0, False
        self.residuals = [norm]
        self._norm = norm

    def add(self, column: Vector) -> None:
        """Append a column of `count` + 2 numbers, and rotate it to find the residual."""
        k = self.count
        self._matrix[: k + 2, k] = column
        turned = np.array(column)
        for j, (c, conjugate, s) in enumerate(self._rotations):
            upper, lower = turned[j], turned[j + 1]
            turned[j], turned[j + 1] = conjugate * upper + s * lower, c * lower - s * upper
        length = math.hypot(abs(turned[k]), turned[k + 1].real)
        c, s = (turned[k] / length, turned[k + 1].real / length) if length > 0 else (1.0, 0.0)
        self._rotations.append((c, c.conjugate(), s))
        # A column of zeros makes no progress and ends the cycle: A maps the basis into itself.
        self.residuals.append(self.residuals[-1] * float(abs(s) if length > 0 else 1.0))
        self.broken = not column[-1].real > 1e-14 * np.linalg.norm(column)
        self.count += 1

    def solve(self, k: int) -> Vector:
        """Return the coefficients of the correction in the basis, from the first k columns."""
        matrix = self._matrix[: k + 1, :k]
        if not np.isfinite(matrix).all():
            return np.full(k, np.nan)
        right = np.zeros(k + 1, matrix.dtype)
        right[0] = self._norm
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=1e-14)[0])
