"""Multigrid cycles over a PyAMG hierarchy, with every matrix planned for the device.

PyAMG makes the hierarchy on the host (Bell, Olson, Schroder, Southworth, doi:10.21105/joss.05495); a cycle
is a fixed sequence of products and passes, so that a GPU's graph holds it whole. The first level with few
rows is the last one used. A cycle multiplies by its inverse there, which costs less than the launches of
further levels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dasp.matrix.matrix import SpMatrix
from dasp.multigrid.hierarchy import (
    INVERSE,
    Setup,
    coarsen,
    cycle_type,
    invert_diagonal,
    levels_of,
    set_up,
)
from dasp.multigrid.smoothers import LEVEL_VECTORS, CycleOptions, Level, check_options
from dasp.preconditioners.base import PlannedPart, Preconditioner, cast, choose_device, host_matrix
from dasp.preconditioners.spectrum import spectral_radius
from dasp.runtime.cpu.threads import run
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import Array, DTypeLike
from dasp.solvers.operator import DeviceOperator, Matrix

COARSE_SWEEPS = 8
"""Times that the last level is smoothed, forwards and backwards, if it is too large for an inverse."""


def entry_type(matrix: csr_array, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a matrix is planned for vectors of a type: a real matrix stays real."""
    return dtype if matrix.dtype.kind == "c" else real_type(dtype)


class Cycle(Preconditioner):
    """A cycle over levels of one process or of several ranks."""

    _options: CycleOptions

    def _assemble(
        self,
        levels: list[Level],
        P: list[DeviceOperator],
        R: list[DeviceOperator],
        inverse: DeviceOperator | None,
    ) -> None:
        """Take the levels that are smoothed, P and R of all levels, and the inverse of the last or None."""
        self._levels, self._P, self._R, self._inverse = levels, P, R, inverse
        self._vectors = [level.vectors for level in levels]
        if inverse is not None:
            self._vectors.append(self.space.vectors(inverse.shape[0], "b", "x") if levels else self.vectors)

    def _invert_diagonal(self, A: csr_array, diagonal: Array, *, coarse: bool) -> Array:
        """Return 1 / a_ii in the computing type; the errors are those of `invert_diagonal` and `cast`."""
        return cast(invert_diagonal(A, diagonal, coarse=coarse), self.dtype, diagonal=True)

    def apply(self) -> None:
        """Run one cycle."""
        self._cycle(0, self._options.cycle, from_zero=True)

    def _cycle(self, k: int, kind: str, *, from_zero: bool) -> None:
        if k == len(self._P):
            self._solve_coarsest(from_zero=from_zero)
            return
        level, below = self._levels[k], self._vectors[k + 1]
        level.smooth(from_zero=from_zero, forward=True)
        level.restrict(self._R[k], below["b"])
        self._cycle(k + 1, kind, from_zero=True)
        if k + 1 < len(self._levels) and kind in "WF":
            self._cycle(k + 1, "W" if kind == "W" else "V", from_zero=False)
        level.prolong(self._P[k], below["x"])
        level.smooth(from_zero=False, forward=False)

    def _solve_coarsest(self, *, from_zero: bool) -> None:
        """Multiply by the inverse; without one smooth the last level many times."""
        vectors = self._vectors[-1]
        if self._inverse is not None:
            self.space.apply(self._inverse, vectors["b"], vectors["x"])
            return
        for sweep in range(COARSE_SWEEPS):
            self._levels[-1].smooth(from_zero=from_zero and sweep == 0, forward=True)
            self._levels[-1].smooth(from_zero=False, forward=False)


class Multigrid(Cycle):
    """A cycle over levels of one process; see `multigrid`."""

    _setup: Setup
    _parts: dict[tuple[str, int], PlannedPart]

    def __init__(
        self,
        setup: Setup,
        options: CycleOptions,
        dtype: np.dtype[Any],
        device: str,
        like: Multigrid | None = None,
    ) -> None:
        """Plan the levels; `like` is the same cycle in another type."""
        super().__init__(setup.rows[0], dtype, device, LEVEL_VECTORS)
        self._options = options
        self._build(setup, like)

    def _build(self, setup: Setup, like: Multigrid | None = None) -> None:
        """Plan the matrices of all levels, and make the levels."""
        self._setup, matrices = setup, setup.matrices
        parts: dict[tuple[str, int], PlannedPart] = {}
        inverses: dict[int, Array] = {}

        def plan(key: tuple[str, int]) -> None:
            (name, k), matrix = key, matrices[key]
            dtype = entry_type(matrix, self.dtype)
            before = None if like is None else like._parts[key]
            parts[key] = PlannedPart(matrix, dtype, self.device, before)
            if name == "A":
                inverses[k] = self._invert_diagonal(matrix, parts[key].diagonal(), coarse=k > 0)

        # In parallel: some steps of a plan on the CPU use one thread, and so does a GPU's compiler.
        run([partial(plan, key) for key in matrices])
        self._parts = {key: parts[key] for key in matrices}  # in the order of `matrices`, not of the threads
        levels = []
        for k, one in enumerate(setup.smoothed):
            part, inverse = self._parts["A", k], inverses[k]
            vectors = None if k else self.vectors
            level = Level(part.operator, self.space, self._options, vectors)
            radius = self._radius(part, inverse, level) if like is None else like._levels[k].radius
            level.load(inverse, radius, one.A)
            levels.append(level)
        self._assemble(levels, *self._operators())

    def _radius(self, part: PlannedPart, inverse: Array, level: Level) -> float:
        """Estimate the largest eigenvalue of D^-1 A by products on the device; 0 if no smoother needs it."""
        if self._options.smoother == "gauss-seidel":
            return 0.0
        return spectral_radius(part.csr, part.operator, inverse, self.space, level.vectors)

    def _operators(self) -> tuple[list[DeviceOperator], list[DeviceOperator], DeviceOperator | None]:
        """Return P and R of all levels, and the inverse of the last one or None."""
        P, R = ([part.operator for (own, _), part in self._parts.items() if own == name] for name in "PR")
        inverse = self._parts.get((INVERSE, len(self._setup.levels) - 1))
        return P, R, None if inverse is None else inverse.operator

    def _read(self, A: Matrix) -> Setup:
        """Return the hierarchy that P and R of this cycle make of a matrix, or the PyAMG hierarchy given."""
        if hasattr(A, "levels"):
            hierarchy = levels_of(A)
            cycle_type(hierarchy, self.dtype)
        else:
            hierarchy = coarsen(host_matrix(A), self._setup.transfers)
        if hierarchy[0].A.shape != self.shape:
            raise ValueError(
                f"the hierarchy is of a matrix of shape {hierarchy[0].A.shape}; M has {self.shape}"
            )
        return set_up(hierarchy)

    def _load(self, numbers: Setup) -> bool:
        """Take a hierarchy; plan it anew if its sizes differ. Return True if all values could be written in
        place."""
        matrices = numbers.matrices
        if numbers.rows != self._setup.rows or matrices.keys() != self._parts.keys():
            self._build(numbers)
            return False
        self._setup = numbers
        same = [self._parts[key].load(matrix) for key, matrix in matrices.items()]
        for k, (level, one) in enumerate(zip(self._levels, numbers.smoothed, strict=True)):
            part = self._parts["A", k]
            inverse = self._invert_diagonal(one.A, part.diagonal(), coarse=k > 0)
            level.A = part.operator
            level.load(inverse, self._radius(part, inverse, level), one.A)
        self._P, self._R, self._inverse = self._operators()
        return all(same)

    def _in_type(self, dtype: np.dtype[Any]) -> Multigrid:
        """Return the same preconditioner, computing in a type."""
        return Multigrid(self._setup, self._options, dtype, self.device, self)


def multigrid(
    ml: object,
    *,
    smoother: str = "chebyshev",
    cycle: str = "V",
    sweeps: int = 1,
    degree: int = 2,
    device: str = "auto",
    dtype: DTypeLike | None = None,
) -> Preconditioner:
    """Return a multigrid cycle over a PyAMG hierarchy.

    Parameters
    ----------
    ml : pyamg.MultilevelSolver, or matrix, shape (n, n)
        From `pyamg.ruge_stuben_solver(A)`, `pyamg.smoothed_aggregation_solver(A)` or another; its own
        smoothers are not used. Not modified. If `ml` is a matrix (an SpMatrix, or one of SciPy or CuPy),
        PyAMG makes the hierarchy by smoothed aggregation; for systems with several unknowns a node call
        PyAMG yourself, with `B=`.
    smoother : {"chebyshev", "jacobi", "gauss-seidel"}
        Gauss-Seidel goes forward before and backward after the coarse correction, on the CPU alone.
    cycle : {"V", "W", "F"}
    sweeps : int
        Sweeps of the smoother before the coarse correction, and as many after it.
    degree : int
        Degree of a Chebyshev smoother.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the device of `ml` if that is an SpMatrix; else the GPU if one works, or the CPU.
    dtype : {numpy.float64, numpy.float32, numpy.complex128, numpy.complex64}, optional
        The type in which the cycle computes, complex for complex levels; double precision by default. Single
        precision suffices for a preconditioner inside a solver in double precision.

    Returns
    -------
    Preconditioner
        If A is symmetric or Hermitian, and positive definite, and R is P' in the hierarchy, so is a V- or
        W-cycle, and can be used in `cg`. Memory: 6 vectors of the length of each level.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of those above.
    RuntimeError
        If a hierarchy is to be made and PyAMG is not installed.

    Notes
    -----
    On each level that is smoothed, unless by Gauss-Seidel, six products estimate the largest eigenvalue of
    D^-1 A; if A is not Hermitian there, the largest sum of absolute values in a row of D^-1 A bounds it.

    The smoothers need positive eigenvalues of D^-1 A. A Helmholtz matrix has others if its waves are shorter
    than coarse levels can show. Then make the hierarchy of a Laplacian with a complex shift, which is far
    from singular, and use the cycle in `gmres` or `bicgstab` for the matrix itself (Erlangga,
    Oosterlee and Vuik, doi:10.1137/040615195).

    Examples
    --------
    >>> import numpy as np, pyamg                                            # doctest: +SKIP
    >>> A = pyamg.gallery.poisson((300, 300), format="csr")                  # doctest: +SKIP
    >>> M = dasp.preconditioners.multigrid(pyamg.ruge_stuben_solver(A))      # doctest: +SKIP
    >>> M = dasp.preconditioners.multigrid(A)  # by smoothed aggregation     # doctest: +SKIP
    >>> x, stats = dasp.solvers.cg(A, np.ones(90000), M=M)                   # doctest: +SKIP
    """
    hierarchy = levels_of(ml)
    computed = cycle_type(hierarchy, dtype)
    options = check_options(smoother, cycle, sweeps, degree)
    where = ml.device if isinstance(ml, SpMatrix) and device == "auto" else choose_device(None, device)
    if smoother == "gauss-seidel" and where != "cpu":
        raise ValueError(
            "smoother is 'gauss-seidel' on a GPU, and goes row by row; 'chebyshev' or 'jacobi' is needed"
        )
    return Multigrid(set_up(hierarchy), options, computed, where)._remember_source(ml)
