"""Arnoldi's method on the CPU, with the least-squares problem of GMRES."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dasp.solvers.cpu.hessenberg import SmallProblem
from dasp.solvers.cpu.vectors import CpuVectors, Vector
from dasp.solvers.space import Fused

ENOUGH = 0.5
"""Of the square of a vector's norm: less left of it, and it is made orthogonal once more."""


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
        self._add: dict[tuple[int, str], Fused] = {}
        self._passes: dict[int, tuple[Fused, Fused, Fused]] = {}

    def begin(self, norm: float) -> None:
        """Begin with r, whose norm this is, for the first vector."""
        self._begin(scale=1.0 / norm)
        self._problem = SmallProblem(norm, len(self._columns), self._number)

    def extend(self, k: int) -> None:
        """Make vector k + 1 orthogonal to those before it, again where little was left of it, and norm it."""
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

    def _prepare(self, k: int) -> tuple[Fused, Fused, Fused]:
        fuse, w, before = self._vectors.fuse, self._names[k + 1], self._names[: k + 1]
        update = f"{w} = {w}" + "".join(f" - h{j} {name}" for j, name in enumerate(before))
        measure = fuse(dots=(*(f"{name}'{w}" for name in before), f"{w} {w}"))
        made = measure, fuse(update, dots=(f"{w} {w}",)), fuse(f"{w} = scale {w}")
        self._passes[k] = made
        return made

    def prepare(self, steps: list[Callable[[], None]], captured: bool) -> Callable[..., None]:
        """Return a function that makes steps `first` to `last`, and corrects a vector if one is named."""

        def run(first: int, last: int, corrected: str | None = None) -> None:
            for k in range(first, last):
                steps[k]()
            if corrected is not None:
                self.residuals(first, last)
                self.correct(last, corrected)

        return run

    def residuals(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return the norm of the residual after each of these steps, and whether it left nothing."""
        residuals = []
        for column in self._columns[first:last]:
            self._problem.add(column)
            residuals.append((self._problem.residuals[-1], self._problem.broken))
        return residuals

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to another vector, x or q."""
        key = count, target
        if key not in self._add:
            terms = "".join(f" + y{k} {name}" for k, name in enumerate(self._names[:count]))
            self._add[key] = self._vectors.fuse(f"{target} = {target}{terms}")
        self._add[key](**{f"y{k}": value for k, value in enumerate(self._problem.solve(count))})
