"""Vectors on the CPU as rows of one block, and passes over them on the threads that make the products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dasp.runtime.arrays import address
from dasp.runtime.cpu.job import CHUNKS, Job
from dasp.runtime.cpu.team import NUMBER_SECONDS, team
from dasp.runtime.dtypes import real_type
from dasp.runtime.sizes import ceil_div, round_up
from dasp.runtime.types import Vector
from dasp.solvers.cpu.passes import ALIGNMENT, BLOCK, COMPLEX_BLOCK, NO_FACTOR, compile_pass
from dasp.solvers.scalars import Scalar
from dasp.solvers.space import Dot, Pass, Update, parse_dot, parse_update


class Rows(NamedTuple):
    """Vectors of n numbers as the rows of one block, by name, and room for the sums of a pass."""

    block: Vector
    n: int
    rows: Mapping[str, int]
    sums: Vector


class CpuPass:
    """A pass over vectors on the CPU; see `dasp.solvers.space.Pass`."""

    def __init__(
        self,
        vectors: Rows,
        updates: tuple[Update, ...],
        dots: tuple[Dot, ...],
        block: int = BLOCK,
        sums_each: int = 1,
    ) -> None:
        self._function = compile_pass(vectors.block.dtype)
        self._names = [(term.sign, term.coefficient) for update in updates for term in update.terms]
        self._factors = np.array([sign for sign, _ in self._names], self._function.x)
        self._varying = [(k, sign, name) for k, (sign, name) in enumerate(self._names) if name is not None]
        rows, program = vectors.rows, []
        for update in updates:
            program += [rows[update.out], len(update.terms)]
            for term in update.terms:
                program += [rows[term.vector], NO_FACTOR if term.times is None else rows[term.times]]
        program += [rows[name] for dot in dots for name in (dot.first, dot.second)]
        blocks = ceil_div(vectors.n, block)
        self._program = np.array(program, np.int64)
        self._sums = vectors.sums[: max(1, sums_each * len(dots))]
        self._flat, self._dots, self._blocks = self._sums.reshape(-1), len(dots), blocks
        self._seconds = NUMBER_SECONDS * vectors.n * (len(self._names) + len(updates) + 2 * len(dots))
        self._jobs: dict[int, Job] = {}
        self._arguments: dict[str, Any] = {
            "vectors": vectors.block,
            "stride": vectors.block.shape[1],
            "n": vectors.n,
            "most": block,
            "program": self._program,
            "updates": len(updates),
            "dots": len(dots),
            "blocks": blocks,
        }
        self._kept = vectors

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""
        for k, sign, name in self._varying:
            self._factors[k] = sign * coefficients[name]
        if self._blocks:
            shared = team()
            parts = shared.parts(self._seconds)
            job = self._jobs.get(parts) or self._prepare(parts)
            shared.multiply(job, self._flat, self._factors, self._flat, 0.0, 0.0)
        if not self._dots:
            return ()
        return tuple(self._sums.sum(axis=1)) if self._blocks != 1 else tuple(self._flat)

    def _prepare(self, parts: int) -> Job:
        """Make the job for this number of parts, and keep it."""
        cuts = (self._blocks * np.arange(CHUNKS * parts + 1) // (CHUNKS * parts)).astype(np.int64)
        job = self._jobs[parts] = Job(self._function, cuts, self._seconds, **self._arguments)
        return job


class ComplexPass:
    """A pass over complex vectors on the CPU; if nothing in it is complex, it is made over their parts."""

    def __init__(self, vectors: CpuVectors, updates: tuple[Update, ...], dots: tuple[Dot, ...]) -> None:
        self._vectors, self._updates, self._dots = vectors, updates, dots
        multiplies = any(term.times is not None for update in updates for term in update.terms)
        wanted = multiplies or any(dot.whole for dot in dots)
        self._parts = None if wanted else CpuPass(vectors.parts, updates, dots)
        self._whole: CpuPass | None = None

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""
        if self._parts is not None and not any(isinstance(one, complex) for one in coefficients.values()):
            return self._parts(**coefficients)
        if self._whole is None:
            rows = self._vectors.as_rows
            self._whole = CpuPass(rows, self._updates, self._dots, COMPLEX_BLOCK, sums_each=2)
        sums = self._whole(**coefficients)
        numbers = zip(self._dots, sums[::2], sums[1::2], strict=True)
        return tuple(np.complex128(complex(real, imag)) if dot.whole else real for dot, real, imag in numbers)


class CpuVectors:
    """Vectors on the CPU, the rows of one block; see `dasp.solvers.space.Vectors`."""

    def __init__(self, n: int, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        pack = ALIGNMENT // dtype.itemsize
        stride = round_up(max(1, n), pack)
        memory = np.zeros((len(names) * stride + pack) * dtype.itemsize, np.uint8)
        start = -address(memory) % ALIGNMENT
        self.block = (
            memory[start : start + len(names) * stride * dtype.itemsize].view(dtype).reshape(-1, stride)
        )
        parts = 2 if dtype.kind == "c" else 1
        # Passes leave the sums of their blocks here, one pass after the other.
        sums = np.zeros((parts * (len(names) + 2), max(1, ceil_div(parts * n, BLOCK))), np.float64)
        self.n, self.nbytes = n, memory.nbytes + sums.nbytes
        rows = {name: row for row, name in enumerate(names)}
        self._views = {name: self.block[row, :n] for name, row in rows.items()}
        self.as_rows = Rows(self.block, n, rows, sums)
        self.parts = Rows(self.block.view(real_type(dtype)), parts * n, rows, sums)

    def __getitem__(self, name: str) -> Vector:
        """Return a vector itself, not a copy."""
        return self._views[name]

    def bind(self, name: str, array: Vector) -> bool:
        """Return False: vectors are rows of one block."""
        return False

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass."""
        given = tuple(map(parse_update, updates)), tuple(map(parse_dot, dots))
        if self.block.dtype.kind == "c":
            return ComplexPass(self, *given)
        return CpuPass(self.as_rows, *given)
