"""Vectors on a GPU as rows of one block, and passes over them."""

from __future__ import annotations

from dasp.runtime.sizes import round_up
from dasp.runtime.types import Array
from dasp.solvers.cuda.passes import PACK_BYTES, PassSpace
from dasp.solvers.cuda.trace import PartOfDot, TracedPass
from dasp.solvers.scalars import Scalar, TracedComplex
from dasp.solvers.space import Dot, Update, parse_dot, parse_update

ROW_BYTES = 256
"""Bytes to which rows are rounded up."""


class CudaPass:
    """A pass over vectors on a GPU; see `dasp.solvers.space.Pass`."""

    def __init__(self, vectors: CudaVectors, updates: tuple[Update, ...], dots: tuple[Dot, ...]) -> None:
        self._vectors, self._updates, self._dots = vectors, updates, dots
        complex = vectors.space.dtype.kind == "c"
        self._whole = [complex and dot.whole for dot in dots]
        # The imaginary part of a whole dot product is a sum of its own.
        parts = [(False, True) if whole else (False,) for whole in self._whole]
        self._sums = tuple(
            PartOfDot(dot.first, dot.second, imaginary)
            for dot, each in zip(dots, parts, strict=True)
            for imaginary in each
        )

    def __call__(self, **coefficients: Scalar) -> tuple[Scalar, ...]:
        """Record the pass and return its dot products, traced."""
        one = TracedPass(self._vectors, self._updates, self._sums, coefficients)
        sums = iter(self._vectors.space.trace.add_pass(one))
        return tuple(TracedComplex(next(sums), next(sums)) if whole else next(sums) for whole in self._whole)

    def trace_alone(self) -> TracedPass:
        """Return the pass as a trace would record it, but in no trace; its coefficients are 0."""
        names = [term.coefficient for update in self._updates for term in update.terms if term.coefficient]
        return TracedPass(self._vectors, self._updates, self._sums, dict.fromkeys(names, 0.0))


class CudaVectors:
    """Vectors on a GPU, the rows of one block; see `dasp.solvers.space.Vectors`."""

    def __init__(self, space: PassSpace, n: int, names: tuple[str, ...]) -> None:
        pack = ROW_BYTES // space.dtype.itemsize
        self.stride = stride = round_up(max(1, n), pack)
        self.block: Array = space.on.zeros(max(1, len(names)) * stride, space.dtype)
        self.space, self.n, self.nbytes = space, n, int(self.block.nbytes)
        self.names = names
        self._views: dict[str, Array] = {
            name: self.block[k * stride : k * stride + n] for k, name in enumerate(names)
        }

    def rows_from(self, name: str) -> Array:
        """Return the memory from a vector to the end of the block, pads included."""
        return self.block[self.names.index(name) * self.stride :]

    def __getitem__(self, name: str) -> Array:
        """Return a vector itself, not a copy."""
        return self._views[name]

    def bind(self, name: str, array: Array) -> bool:
        """Let an array stand for a vector in all programs prepared from now on.

        Do nothing and return False unless it is contiguous, of the vectors' type and length, and aligned to
        16 bytes.
        """
        fits = array.dtype == self.space.dtype and array.shape == (self.n,) and array.flags.c_contiguous
        if not fits or self.space.on.address(array) % PACK_BYTES:
            return False
        self._views[name] = array
        return True

    def fuse(self, *updates: str, dots: tuple[str, ...] = ()) -> CudaPass:
        """Prepare a pass."""
        return CudaPass(self, tuple(map(parse_update, updates)), tuple(map(parse_dot, dots)))
