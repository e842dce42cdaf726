"""Vectors on the CPU: passes made block by block on the threads that make the products.

The sums of the blocks are kept and added in one order afterwards: equal bits for any number of threads.

Complex vectors are rows of twice as many real numbers, too: a pass with real coefficients, and with real
parts of dot products, is one over those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dasp import _threads
from dasp._dtypes import real_type
from dasp._integers import ceil_div, round_up
from dasp.backends.cpu.team import CHUNKS, Job, multiply_alone, team
from dasp.solvers.hessenberg import SmallProblem
from dasp.solvers.operator import Operator
from dasp.solvers.passes import BLOCK, COMPLEX_BLOCK, NO_FACTOR, compile_pass, solve_triangle
from dasp.solvers.scalars import LIMIT, RUNNING, Scalar, first_verdict, verdict
from dasp.solvers.space import (
    Dot,
    Fused,
    Iterate,
    Parts,
    Report,
    Start,
    State,
    Triangle,
    Update,
    parse_dot,
    parse_update,
)

Vector = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes to which rows are rounded up, so that each starts with a cache line."""

ELEMENT_SECONDS = 2e-10
"""What an element of a vector costs one thread, about, in seconds."""

LEAST_SECONDS = 6e-6
"""A pass that takes less is left to one thread."""

ENOUGH = 0.5
"""Of the square of a vector's norm: less left of it, and it is made orthogonal once more."""


class Rows(NamedTuple):
    """Vectors of n numbers as the rows of one block, by name, and room for the sums of a pass."""

    block: np.ndarray[Any, Any]
    n: int
    rows: Mapping[str, int]
    sums: np.ndarray[Any, Any]


class CpuFused:
    """A pass over vectors on the CPU; see `dasp.solvers.space.Fused`."""

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
        self._readable = self._factors.view()
        self._readable.flags.writeable = False
        rows, program = vectors.rows, []
        for update in updates:
            program += [rows[update.out], len(update.terms)]
            for term in update.terms:
                program += [rows[term.vector], NO_FACTOR if term.times is None else rows[term.times]]
        program += [rows[name] for dot in dots for name in (dot.first, dot.second)]
        blocks = ceil_div(vectors.n, block)
        self._program = np.array([*program, len(rows) - 1], np.int64)
        self._sums = vectors.sums[: max(1, sums_each * len(dots))]
        self._flat, self._dots, self._blocks = self._sums.reshape(-1), len(dots), blocks
        self._seconds = ELEMENT_SECONDS * vectors.n * (len(self._names) + len(updates) + 2 * len(dots))
        self._jobs: dict[int, Job] = {}
        self._arguments: dict[str, Any] = {
            "vectors": vectors.block,
            "stride": vectors.block.shape[1],
            "n": vectors.n,
            "words": len(self._program),
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
            parts = min(_threads.get_num_threads(), shared.most) if self._seconds > LEAST_SECONDS else 1
            job = self._jobs.get(parts) or self._prepare(parts)
            operands = self._flat, self._readable, self._flat, 0.0, 0.0
            if parts == 1:
                multiply_alone(job, *operands)
            else:
                shared.multiply(parts, job, self._seconds, *operands)
        if not self._dots:
            return ()
        return tuple(self._sums.sum(axis=1)) if self._blocks != 1 else tuple(self._flat)

    def _prepare(self, parts: int) -> Job:
        """Keep the job of so many parts."""
        cuts = (self._blocks * np.arange(CHUNKS * parts + 1) // (CHUNKS * parts)).astype(np.int64)
        sizes = len(self._flat), len(self._readable), len(self._flat)
        job = self._jobs[parts] = Job(self._function, cuts, sizes, **self._arguments)
        return job


class ComplexFused:
    """A pass over complex vectors on the CPU; one over their parts where nothing complex comes into it."""

    def __init__(self, vectors: CpuVectors, updates: tuple[Update, ...], dots: tuple[Dot, ...]) -> None:
        self._vectors, self._updates, self._dots = vectors, updates, dots
        multiplies = any(term.times is not None for update in updates for term in update.terms)
        wanted = multiplies or any(dot.whole for dot in dots)
        self._parts = None if wanted else CpuFused(vectors.parts, updates, dots)

    @cached_property
    def _whole(self) -> CpuFused:
        rows = self._vectors.as_rows
        return CpuFused(rows, self._updates, self._dots, COMPLEX_BLOCK, sums_each=2)

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Make the pass and return its dot products."""
        if self._parts is not None and not any(isinstance(one, complex) for one in coefficients.values()):
            return self._parts(**coefficients)
        sums = self._whole(**coefficients)
        numbers = zip(self._dots, sums[::2], sums[1::2], strict=True)
        return tuple(np.complex128(complex(real, imag)) if dot.whole else real for dot, real, imag in numbers)


class CpuVectors:
    """Vectors on the CPU, the rows of one block; see `dasp.solvers.space.Vectors`."""

    def __init__(self, n: int, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        pack = ALIGNMENT // dtype.itemsize
        stride = round_up(max(1, n), pack)
        memory = np.zeros((len(names) * stride + pack) * dtype.itemsize, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
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
        """Return a vector; what is written to it is seen."""
        return self._views[name]

    def bind(self, name: str, array: Vector) -> bool:
        """Return that this is not possible: vectors are rows of one block."""
        return False

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> Fused:
        """Prepare a pass."""
        given = tuple(map(parse_update, updates)), tuple(map(parse_dot, dots))
        if self.block.dtype.kind == "c":
            return ComplexFused(self, *given)
        return CpuFused(self.as_rows, *given)


class CpuLoop:
    """An iteration on the CPU; see `dasp.solvers.space.Loop`."""

    def __init__(
        self, starts: Mapping[str, Start], iterate: Iterate, finish: Callable[[], State], period: int
    ) -> None:
        self._starts, self._iterate, self._finish, self._period = starts, iterate, finish, period
        self._state: State = {}
        self._phase = 0

    def start(self, name: str, given: Mapping[str, float]) -> None:
        """Begin anew, as one of the starts does."""
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
            *found, before = measure()
            self._columns[k][:-1] = found
            (square,) = subtract(**dict(zip(names, found, strict=True)))
            if not square > ENOUGH * before:
                *found, _ = measure()
                self._columns[k][:-1] += found
                (square,) = subtract(**dict(zip(names, found, strict=True)))
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
        """Return what makes steps `first` to `last`; the correction after them only if that is asked for."""

        def run(first: int, last: int, corrected: str | None = None) -> None:
            for k in range(first, last):
                steps[k]()
            if corrected is not None:
                self.found(first, last)
                self.correct(last, corrected)

        return run

    def found(self, first: int, last: int) -> list[tuple[float, bool]]:
        """Return the norm of the residual after each of these steps, and whether it left nothing."""
        told = []
        for column in self._columns[first:last]:
            self._problem.add(column)
            told.append((self._problem.residuals[-1], self._problem.broken))
        return told

    def correct(self, count: int, target: str) -> None:
        """Add the correction of the first `count` steps to another vector, x or q."""
        key = count, target
        if key not in self._add:
            terms = "".join(f" + y{k} {name}" for k, name in enumerate(self._names[:count]))
            self._add[key] = self._vectors.fuse(f"{target} = {target}{terms}")
        self._add[key](**{f"y{k}": value for k, value in enumerate(self._problem.solve(count))})


class CpuSpace:
    """Vectors in the memory of the CPU; see `dasp.solvers.space.Space`."""

    device = "cpu"
    traced = False
    mark = None

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

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
        parts: Parts | None = None,
    ) -> CpuLoop:
        """Prepare a loop; `leaving` and `parts` make no difference here."""
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

    def asarray(self, array: Any) -> Vector:
        """Return an array of the space's type, itself if it is one."""
        return np.asarray(array, self.dtype)

    def download(self, array: Vector) -> Vector:
        """Return a copy."""
        return np.array(array)

    def largest(self, array: Vector) -> float:
        """Return the largest absolute value."""
        return float(abs(array).max(initial=0.0))


def make_space(device: str, dtype: np.dtype[Any]) -> CpuSpace:
    """Return the space of the CPU for vectors of this type."""
    return CpuSpace(dtype)
