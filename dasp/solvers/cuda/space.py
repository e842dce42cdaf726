"""The space of vectors on a GPU, and its solve with a triangle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from dasp.runtime.cuda.device import device_of_number, in_turn
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import Array, Vector
from dasp.solvers.cuda.arnoldi import CudaArnoldi
from dasp.solvers.cuda.loop import CudaLoop
from dasp.solvers.cuda.passes import (
    SOURCE,
    THREADS,
    UNGUARDED,
    PassSpace,
    PassText,
    begin_compiling,
    prepare_pass,
    scalar_defines,
)
from dasp.solvers.cuda.trace import Multiplication, Slots, Trace, TracedPass
from dasp.solvers.cuda.vectors import CudaVectors
from dasp.solvers.operator import DeviceOperator
from dasp.solvers.scalars import Scalar
from dasp.solvers.space import Iterate, Pass, Start, State, Triangle

TRIANGULAR = Signature(
    "solve/triangular.cu",
    "dasp_triangular",
    """
    const int*     rows
    int            count
    const int*     indptr
    const int*     indices
    const Scalar*  data
    const Scalar*  inverse
    const Scalar*  b
    Scalar*        x
    """,
)


class CudaSpace(PassSpace):
    """Vectors on a GPU; see `dasp.solvers.space.Space`."""

    def wait(self) -> None:
        """Wait for all launches on the current stream."""
        self.on.wait()

    def vectors(self, n: int, *names: str) -> CudaVectors:
        """Return vectors of n zeros."""
        return CudaVectors(self, n, names)

    def apply(self, operator: DeviceOperator, x: Array, y: Array) -> None:
        """Record that y is set to the product of an operator and x."""
        self.captures = self.captures and operator.captures
        self.trace.call(Multiplication(operator, x, y))

    def loop(
        self,
        starts: Mapping[str, Start],
        iterate: Iterate,
        finish: Callable[[], State],
        period: int,
        leaving: tuple[str, ...] = (),
    ) -> CudaLoop:
        """Prepare a loop: trace it, compile its kernels, capture it."""
        return CudaLoop(self, starts, iterate, finish, period, leaving)

    def program(self, function: Callable[[], None]) -> Callable[[], None]:
        """Trace a function; return one that launches its passes and makes its products."""
        trace = self.trace = Trace(Slots())
        function()
        texts = [self._write(one) for one in trace.passes]
        begin_compiling(self.on, texts)
        passes = map(partial(self._constant_pass, self.on.zeros(1, np.float64)), trace.passes, texts)
        steps = [next(passes) if isinstance(entry, TracedPass) else entry for entry in trace.entries]
        self.trace = Trace(Slots())  # else the space would keep the trace and its vectors
        return in_turn(steps)

    def _write(self, given: TracedPass) -> PassText:
        """Return the text of a pass without dot products, which reads its coefficients from an array.

        So passes that differ only in their coefficients share one kernel.
        """
        for slot, name in enumerate(given.coefficients, 1):
            given.inputs.append(f"const double t{slot} = in[{slot}];")
            given.scalars.append(f"const Real c_{name} = Real(t{slot});")
        return PassText(given, self.dtype, guard=UNGUARDED, carried=0)

    def _constant_pass(self, none: Array, given: TracedPass, text: PassText) -> Callable[[], None]:
        """Return the launch of a pass with its coefficients in an array of its own."""
        values = np.array([0.0, *map(float, given.coefficients.values())])
        scalars = self.on.zeros(len(values), np.float64)
        self.on.upload(scalars, values)
        return prepare_pass(self, given, text, (scalars, none), (none, 0, none), none)

    def eager(self, vectors: CudaVectors, *updates: str, dots: tuple[str, ...] = ()) -> Pass:
        """Prepare a pass that is launched when it is called; the host adds up its dot products."""
        one = vectors.fuse(*updates, dots=dots).trace_alone()
        names, text, blocks = list(one.coefficients), self._write(one), self.blocks(vectors.n)
        self.on.begin_loading([(SOURCE, text.defines)])
        none, scalars = self.on.zeros(1, np.float64), self.on.zeros(1 + len(names), np.float64)
        sums = self.on.zeros(max(1, len(one.dots)) * blocks, np.float64)

        @cache
        def prepare() -> Callable[[], None]:
            launch = prepare_pass(self, one, text, (scalars, none), (none, 0, sums), none)
            return in_turn([launch, *self.combine(sums, sums)])

        def run(**coefficients: Scalar) -> tuple[Scalar, ...]:
            if names:
                self.on.upload(scalars, np.array([0.0, *(coefficients[name] for name in names)]))
            prepare()()
            return tuple(self.on.download(sums).reshape(-1, blocks).sum(axis=1)) if one.dots else ()

        return run

    def triangular(self, triangle: Triangle) -> CudaTriangle:
        """Return a solve with a triangle: a launch for each level."""
        return CudaTriangle(self, triangle)

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> CudaArnoldi:
        """Return a Krylov basis that lies in consecutive vectors."""
        return CudaArnoldi(self, vectors, names)

    def asarray(self, array: Array) -> Array:
        """Return the array in the space's type on the GPU; the array itself if it is that already."""
        there: Array = self.on.asarray(array, self.dtype)
        return there

    def download(self, array: Array) -> Vector:
        """Return a copy on the host."""
        return self.on.download(array)

    def largest(self, array: Array) -> float:
        """Return the largest absolute value."""
        # A vector's largest value is seldom needed, and CuPy takes a second to compile a reduction.
        numbers = self.download(array) if array.ndim == 1 else array
        return float(abs(numbers).max()) if array.size else 0.0

    def set_product(self, out: Array, X: Array, C: np.ndarray[Any, Any], plus: Array | None = None) -> None:
        """Set `out` to X C, or to X C + `plus`."""
        product = X @ self.asarray(C)
        out[...] = product if plus is None else product + plus


class CudaTriangle:
    """A solve with a triangle on a GPU; see `dasp.solvers.space.TriangularSolve`."""

    def __init__(self, space: CudaSpace, triangle: Triangle) -> None:
        self._space, self._rows = space, self._upload(space, triangle.rows)
        self._cuts: list[int] = triangle.cuts.tolist()
        self._arrays = {
            name: self._upload(space, array if len(array) else np.zeros(1, array.dtype))
            for name, array in (
                ("indptr", triangle.indptr),
                ("indices", triangle.indices),
                ("data", triangle.data.astype(space.dtype)),
                ("inverse", triangle.inverse.astype(space.dtype)),
            )
        }

    @staticmethod
    def _upload(space: CudaSpace, array: Vector) -> Array:
        there: Array = space.on.zeros(len(array), array.dtype)
        space.on.upload(there, array)
        return there

    def __call__(self, b: Array, x: Array) -> None:
        """Record the launches."""
        space = self._space
        defines, types = scalar_defines(space.dtype, THREADS), {"Scalar": space.dtype}
        for first, last in pairwise(self._cuts):
            count, rows = last - first, self._rows[first:last]
            arguments = {**self._arrays, "rows": rows, "count": count, "b": b, "x": x}
            blocks = ceil_div(count, THREADS)
            space.trace.call(space.on.prepare_launch(TRIANGULAR, defines, arguments, blocks, THREADS, types))

    def load(self, data: Vector, inverse: Vector) -> None:
        """Load other values of the same pattern, in place."""
        for name, array in (("data", data), ("inverse", inverse)):
            if len(array):
                self._space.on.upload(self._arrays[name], array.astype(self._space.dtype))


def make_space(device: str, dtype: np.dtype[Any]) -> CudaSpace:
    """Return the space of a GPU, `cuda:N`, for vectors of this type."""
    return CudaSpace(device, dtype, device_of_number(int(device.partition(":")[2] or 0)))
