"""Multigrid cycles of a PyAMG hierarchy, each of whose matrices is planned for the device.

PyAMG makes the hierarchy on the host (Bell, Olson, Schroder, Southworth, doi:10.21105/joss.05495); a cycle
is a fixed sequence of products and passes, so that a GPU's graph holds it whole. The last levels, with few
rows, are one dense matrix: a cycle is linear, and a launch for each of its steps would cost more than that
product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dasp.matrix.matrix import SpMatrix
from dasp.multigrid.hierarchy import Setup, check_finite, coarsen, cycle_type, levels_of, set_up
from dasp.multigrid.smoothers import CycleOptions, Level, check_options
from dasp.preconditioners.base import PlannedPart, Preconditioner, host_matrix, place
from dasp.runtime.dtypes import real_type
from dasp.runtime.types import DTypeLike
from dasp.solvers.operator import DeviceOperator

COARSE_SWEEPS = 8
"""Times that the last level is smoothed, forwards and backwards, where it has more rows."""


def entry_type(matrix: csr_array, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a matrix is kept that multiplies vectors of another: a real one stays real."""
    return dtype if matrix.dtype.kind == "c" else real_type(dtype)


class Multigrid(Preconditioner):
    """A cycle; see `multigrid`."""

    _levels: list[Level]
    _last: Level
    _P: list[DeviceOperator]
    _R: list[DeviceOperator]
    _dense: DeviceOperator | None

    def __init__(self, setup: Setup, options: CycleOptions, dtype: np.dtype[Any], device: str) -> None:
        super().__init__(setup.rows[0], dtype, device, ("d", "step", "q", "r"))
        self._build(setup, options)

    def _build(self, setup: Setup, options: CycleOptions) -> None:
        """Plan the matrices of the levels."""
        self._setup, self._parts = setup, [self._plan(matrix) for matrix in _matrices(setup)]
        operators = iter(part.operator for part in self._parts)
        levels = []
        for k, (one, part) in enumerate(zip(setup.levels, self._parts, strict=False)):
            vectors, radius = None if k else self.vectors, one.radius(options, part.matrix)
            levels.append(Level(next(operators), one.inverse, radius, self.space, options, vectors, one.A))
        between = [one for one in setup.levels if one.P is not None]
        P, R = ([next(operators) for _ in between] for _ in range(2))
        self._assemble(options, levels, P, R, next(operators, None))

    def _plan(self, matrix: csr_array) -> PlannedPart:
        return PlannedPart(matrix, entry_type(matrix, self.dtype), self.device)

    def _read(self, A: Any) -> Setup:
        """Return the hierarchy of a matrix, by P and R of this one; or that of PyAMG that is given."""
        if hasattr(A, "levels"):
            hierarchy = levels_of(A)
            cycle_type(hierarchy, self.dtype)
        else:
            hierarchy = coarsen(host_matrix(A), self._setup.transfers)
        if hierarchy[0].A.shape != self.shape:
            raise ValueError(
                f"the hierarchy is of a matrix of shape {hierarchy[0].A.shape}; M has {self.shape}"
            )
        check_finite(hierarchy)
        return set_up(hierarchy, self._options)

    def _load(self, numbers: Setup) -> bool:
        """Take a hierarchy; one of other sizes is planned anew."""
        if numbers.rows != self._setup.rows or (numbers.dense is None) != (self._setup.dense is None):
            self._build(numbers, self._options)
            return False
        same = [part.load(matrix) for part, matrix in zip(self._parts, _matrices(numbers), strict=True)]
        self._setup, operators = numbers, iter(part.operator for part in self._parts)
        smoothed = self._levels if self._dense is not None else [*self._levels, self._last]
        for level, one, part in zip(smoothed, numbers.levels, self._parts, strict=False):
            level.load(one.inverse, one.radius(self._options, part.matrix), one.A)
            level.A = next(operators)
        self._P, self._R = ([next(operators) for _ in self._P] for _ in range(2))
        self._dense = next(operators, None)
        return all(same)

    def _in_type(self, dtype: np.dtype[Any]) -> Multigrid:
        """Return another one that computes in a type."""
        return Multigrid(self._setup, self._options, dtype, self.device)

    def _assemble(
        self,
        options: CycleOptions,
        levels: list[Level],
        P: list[DeviceOperator],
        R: list[DeviceOperator],
        dense: DeviceOperator | None,
    ) -> None:
        """Take the levels that are smoothed, and the dense one below them if there is one."""
        self._options, self._levels, self._P, self._R, self._dense = options, levels, P, R, dense
        if dense is None:
            self._last = self._levels.pop()
            self._coarsest = self._last.vectors
        else:
            self._coarsest = self.space.vectors(dense.shape[0], "b", "x") if levels else self.vectors

    def apply(self) -> None:
        """Make a cycle."""
        self._cycle(0, self._options.cycle, from_zero=True)

    def _cycle(self, k: int, kind: str, *, from_zero: bool) -> None:
        if k == len(self._levels):
            if self._dense is not None:
                self.space.apply(self._dense, self._coarsest["b"], self._coarsest["x"])
                return
            for sweep in range(COARSE_SWEEPS):
                self._last.smooth(from_zero=from_zero and sweep == 0, forward=True)
                self._last.smooth(from_zero=False, forward=False)
            return
        level = self._levels[k]
        below = self._levels[k + 1].vectors if k + 1 < len(self._levels) else self._coarsest
        level.smooth(from_zero=from_zero, forward=True)
        level.restrict(self._R[k], below["b"])
        self._cycle(k + 1, kind, from_zero=True)
        if k + 1 < len(self._levels) and kind in "WF":
            self._cycle(k + 1, "W" if kind == "W" else "V", from_zero=False)
        level.prolong(self._P[k], below["x"])
        level.smooth(from_zero=False, forward=False)


def _matrices(setup: Setup) -> list[csr_array]:
    """Return the matrices of all levels, then all P, all R, and the dense one if there is one."""
    between = [one for one in setup.levels if one.P is not None]
    dense = [] if setup.dense is None else [setup.dense]
    return [
        *(one.A for one in setup.levels),
        *(one.P for one in between),
        *(one.R for one in between),
        *dense,
    ]


def multigrid(
    ml: Any,
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
        smoothers are not used. Not modified. Of a matrix (an SpMatrix, or one of SciPy or CuPy) PyAMG makes
        the hierarchy by smoothed aggregation; systems of several unknowns a node need a call of your own,
        with `B=`.
    smoother : {"chebyshev", "jacobi", "gauss-seidel"}
        Gauss-Seidel, forward before and backward after the coarse correction, on the CPU alone.
    cycle : {"V", "W", "F"}
    sweeps : int
        Of the smoother, before and after.
    degree : int
        Of a Chebyshev polynomial.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` is the device of an SpMatrix that is given for `ml`; else the GPU if one works, or the CPU.
    dtype : {numpy.float64, numpy.float32, numpy.complex128, numpy.complex64}, optional
        In which it computes, of complex levels a complex type; double precision by default. Single precision
        does for a preconditioner inside a solver in double precision.

    Returns
    -------
    Preconditioner
        For A symmetric or Hermitian, and positive definite, a V- or W-cycle is so too, if R is P' in the
        hierarchy, and can be used in `cg`. Memory: 6 vectors of the length of each level.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of those above.
    RuntimeError
        If a hierarchy is to be made and PyAMG is not installed.

    Notes
    -----
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
    check_finite(hierarchy)
    options = check_options(smoother, cycle, sweeps, degree)
    where = ml.device if isinstance(ml, SpMatrix) and device == "auto" else place(None, device)
    if smoother == "gauss-seidel" and where != "cpu":
        raise ValueError(
            "smoother is 'gauss-seidel', which goes row by row, on a GPU; 'chebyshev' is needed there"
        )
    return Multigrid(set_up(hierarchy, options), options, computed, where)._follow(ml)
