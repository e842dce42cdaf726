"""The products of other libraries that a user would call in place of a plan: SciPy's, Numba's, CuPy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasp.cli.timing import Candidate
from dasp.runtime.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Missing:
    """A baseline that cannot be run here, and why."""

    name: str
    reason: str


@dataclass
class Baselines:
    """The baselines of one matrix: those that run, and those that do not."""

    candidates: list[Candidate] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def make_baselines(makers: dict[str, Callable[[Any, Any], Candidate]], csr: csr_array, x: Array) -> Baselines:
    """Make the candidates that can be made; the others are missing, each with its reason."""
    made = Baselines()
    for name, make in makers.items():
        try:
            made.candidates.append(make(csr, x))
        except (RuntimeError, ValueError, MemoryError) as error:
            made.missing.append(Missing(name, str(error)))
    return made


def _refuse_halves(dtype: np.dtype[Any], name: str) -> None:
    if dtype.itemsize < 4:
        raise RuntimeError(f"{name} has no products of {dtype}")


def scipy_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return SciPy's `csr @ x`: one thread, a new y at every product; RuntimeError for halves."""
    _refuse_halves(x.dtype, "SciPy")
    held: list[NDArray[Any]] = []

    def run() -> None:
        held[:] = [csr @ x]

    return Candidate("scipy", run, lambda: held[0], held.clear)


@cache
def _compile_row_loop() -> Callable[..., None]:
    """Return a compiled y = A x that goes row by row; the threads share the rows in equal counts."""
    import numba

    from dasp.runtime.cpu.compile import jit

    @jit(parallel=True, nogil=True)
    def multiply(data: Array, indices: Array, indptr: Array, x: Array, y: Array) -> None:
        for row in numba.prange(len(y)):
            total = y.dtype.type(0)
            for entry in range(indptr[row], indptr[row + 1]):
                total += data[entry] * x[indices[entry]]
            y[row] = total

    return multiply


def numba_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return the plain loop over rows by Numba; RuntimeError for halves."""
    _refuse_halves(x.dtype, "Numba")
    multiply = _compile_row_loop()
    y = np.empty(csr.shape[0], dtype=x.dtype)

    def run() -> None:
        multiply(csr.data, csr.indices, csr.indptr, x, y)

    return Candidate("numba_csr", run, lambda: y, lambda: y.fill(np.nan), cooldown_seconds=0.02)


def cupy_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return CuPy's `A @ x`, called from Python; RuntimeError for halves."""
    from cupyx.scipy.sparse import csr_matrix

    _refuse_halves(x.dtype, "CuPy")
    matrix = csr_matrix(csr)
    held: list[Any] = []

    def run() -> None:
        held[:] = [matrix @ x]

    return Candidate("cupy", run, lambda: held[0], held.clear, capturable=False, owned=matrix)
