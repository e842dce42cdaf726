"""Multigrid cycles of a PyAMG hierarchy, each of whose matrices is planned for the device.

PyAMG makes the hierarchy on the host (Bell, Olson, Schroder, Southworth, doi:10.21105/joss.05495); a cycle
is a fixed sequence of products and passes, so that a GPU's graph holds it whole. The last levels, with few
rows, are one dense matrix: a cycle is linear, and a launch for each of its steps would cost more than that
product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dasp.matrix.matrix import SpMatrix
from dasp.preconditioners.base import (
    MOST_STEPS,
    TYPES,
    Preconditioner,
    canonical,
    inverse_diagonal,
    place,
    spectral_radius,
    wide_type,
)
from dasp.preconditioners.chebyshev import UPPER, coefficients
from dasp.runtime import check as _check
from dasp.runtime.cpu.compile import jit
from dasp.runtime.dtypes import real_type
from dasp.solvers.operator import Operator, as_operator
from dasp.solvers.space import Space, Vectors

SMOOTHERS, CYCLES = ("chebyshev", "jacobi", "gauss-seidel"), ("V", "W", "F")

DENSE_ROWS = 320
"""Rows of a level up to which a V-cycle from it down is kept as one dense matrix."""

MOST_INVERSE_ROWS = 1500
"""Rows of the last level up to which it is inverted; the pseudo-inverse of more takes seconds and memory."""

COARSE_SWEEPS = 8
"""Times that the last level is smoothed, forwards and backwards, where it has more rows."""

RATIO = 8.0
"""Of the ends of the interval that a Chebyshev smoother damps: on Poisson matrices 4 to 10 need the fewest
cycles."""

OMEGA = 4.0 / 3.0
"""Weight of a Jacobi smoother, over the largest eigenvalue of D^-1 A."""


@dataclass
class Options:
    """How a cycle goes."""

    smoother: str
    cycle: str
    sweeps: int
    degree: int


def check_options(smoother: str, cycle: str, sweeps: int, degree: int) -> Options:
    """Return how a cycle goes.

    Raises
    ------
    TypeError, ValueError
        If it cannot go so.
    """
    for name, value, known in (("smoother", smoother, SMOOTHERS), ("cycle", cycle, CYCLES)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(known)} is needed")
    for name, number in (("sweeps", sweeps), ("degree", degree)):
        _check.count(name, number, most=MOST_STEPS)
    return Options(smoother, cycle, sweeps, degree)


class Level:
    """One level: its vectors, its matrices, and its smoother."""

    def __init__(
        self,
        A: Operator,
        inverse: np.ndarray[Any, Any],
        radius: float,
        space: Space,
        options: Options,
        vectors: Vectors | None,
        csr: Any = None,
    ) -> None:
        """Take A, 1 / a_ii, and the largest eigenvalue of their product; `csr` is for sweeps."""
        self.space, self.A, self._options = space, A, options
        names = ("d", "step", "q", "r")
        self.vectors = space.vectors(len(inverse), "b", "x", *names) if vectors is None else vectors
        self.vectors["d"][...] = space.asarray(inverse)
        fuse = self.vectors.fuse
        self._residual = fuse("r = b - q")
        self._correct = fuse("x = x + q")
        self._smooth = getattr(self, f"_smooth_by_{options.smoother.replace('-', '_')}")
        if options.smoother == "gauss-seidel":
            self._csr = csr.indptr, csr.indices, csr.data.astype(space.dtype)
            self._clear = fuse("x = 0")
            return
        if options.smoother == "jacobi":
            self._omega = OMEGA / radius
            self._jacobi = fuse("x = omega d*b"), fuse("r = b - q", "x = x + omega d*r")
        else:
            high = UPPER * radius
            self._first, self._further = coefficients(high / RATIO, high, options.degree)
            self._begin = fuse("step = first d*b", "x = step", "r = b")
            self._begin_again = fuse("r = b - q", "step = first d*r", "x = x + step")
            self._extend = fuse("r = r - q", "step = last step + rest d*r", "x = x + step")

    def multiply(self, x: str, y: str) -> None:
        """Set vector y to A times vector x."""
        self.space.apply(self.A, self.vectors[x], self.vectors[y])

    def smooth(self, *, from_zero: bool, forward: bool) -> None:
        """Make x a better solution; it counts as 0 before if `from_zero`."""
        for sweep in range(self._options.sweeps):
            self._smooth(from_zero and sweep == 0, forward)

    def _smooth_by_jacobi(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._jacobi[0](omega=self._omega)
        else:
            self.multiply("x", "q")
            self._jacobi[1](omega=self._omega)

    def _smooth_by_chebyshev(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._begin(first=self._first)
        else:
            self.multiply("x", "q")
            self._begin_again(first=self._first)
        for last, rest in self._further:
            self.multiply("step", "q")
            self._extend(last=last, rest=rest)

    def _smooth_by_gauss_seidel(self, from_zero: bool, forward: bool) -> None:
        if from_zero:
            self._clear()
        _sweep(*self._csr, self.vectors["b"], self.vectors["x"], self.vectors["d"], forward)

    def restrict(self, R: Operator, coarse: Array) -> None:
        """Set the coarse right-hand side to R (b - A x)."""
        self.multiply("x", "q")
        self._residual()
        self.space.apply(R, self.vectors["r"], coarse)

    def prolong(self, P: Operator, coarse: Array) -> None:
        """Add P times the coarse solution."""
        self.space.apply(P, coarse, self.vectors["q"])
        self._correct()


Array = Any


@jit(nogil=True, error_model="numpy")
def _sweep(indptr, indices, data, b, x, inverse, forward):  # type: ignore[no-untyped-def]
    """Gauss-Seidel over all rows, in their order or the other way."""
    n = len(b)
    for k in range(n):
        row = k if forward else n - 1 - k
        total = b[row]
        for entry in range(indptr[row], indptr[row + 1]):
            if indices[entry] != row:
                total -= data[entry] * x[indices[entry]]
        x[row] = total * inverse[row]


def planned(matrix: Any, space: Space, device: str) -> Operator:
    """Plan a matrix of the hierarchy for the device."""
    from scipy.sparse import csr_array

    typed = csr_array(matrix.astype(entry_type(matrix, space.dtype)))
    return as_operator(SpMatrix.from_scipy(typed, device=device), device)


def entry_type(matrix: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a matrix is kept that multiplies vectors of another: a real one stays real."""
    return dtype if matrix.dtype.kind == "c" else real_type(dtype)


def levels_of(ml: Any) -> list[Any]:
    """Return the levels of a hierarchy.

    Raises
    ------
    TypeError
        If it is none.
    """
    levels = getattr(ml, "levels", None)
    if not levels or not hasattr(levels[0], "A"):
        raise TypeError(f"ml is {_check.kind_of(ml)}; a hierarchy of PyAMG is needed, which has levels")
    return list(levels)


def _is_complex(levels: list[Any]) -> bool:
    """Return True if any matrix of a hierarchy is complex."""
    matrices = (getattr(level, name, None) for level in levels for name in "APR")
    return any(np.dtype(matrix.dtype).kind == "c" for matrix in matrices if matrix is not None)


def cycle_type(levels: list[Any], dtype: Any) -> np.dtype[Any]:
    """Return the type in which a cycle computes: the one given, else double precision.

    Raises
    ------
    ValueError
        If that is none for such matrices.
    """
    known = TYPES["c" if _is_complex(levels) else "f"]
    wanted = np.dtype(known[1] if dtype is None else dtype)
    if wanted.name not in known:
        raise ValueError(
            f"dtype is {wanted}; {' or '.join(known)} is needed for the matrices of this hierarchy"
        )
    return wanted


class LevelMatrices(NamedTuple):
    """What a cycle needs of a level, on the host.

    Attributes
    ----------
    A, P, R : scipy.sparse.csr_array
        The matrix, and what prolongs from the level below and restricts to it; None on the last level.
    inverse : numpy.ndarray, shape (n,)
        Of the diagonal of A; 0 for a row of zeros.
    radius : float
        The largest eigenvalue of their product.
    """

    A: Any
    P: Any
    R: Any
    inverse: np.ndarray[Any, Any]
    radius: float


class Setup(NamedTuple):
    """A hierarchy as a cycle uses it.

    Attributes
    ----------
    levels : list of LevelMatrices
        Those that are smoothed, the last level among them if it is too large to be inverted.
    dense : scipy.sparse.csr_array or None
        The cycle from the level behind them down, as one matrix; None if there is none.
    """

    levels: list[LevelMatrices]
    dense: Any


def set_up(hierarchy: list[Any], options: Options) -> Setup:
    """Return a hierarchy as a cycle uses it.

    Raises
    ------
    ValueError
        If a row has no usable diagonal entry; of a coarse level, if it is no row of zeros.
    """
    matrices = [as_csr(level.A) for level in hierarchy]
    last = first_dense(matrices, options)
    levels = []
    for k, level in enumerate(hierarchy[:last]):
        levels.append(_describe(matrices[k], as_csr(level.P), as_csr(level.R), options, coarse=k > 0))
    if matrices[last].shape[0] > MOST_INVERSE_ROWS:
        return Setup([*levels, _describe(matrices[last], None, None, options, coarse=last > 0)], None)
    return Setup(levels, as_csr(dense_cycle(hierarchy, last, options)))


def _describe(A: Any, P: Any, R: Any, options: Options, *, coarse: bool) -> LevelMatrices:
    inverse = coarse_inverse_diagonal(A) if coarse else inverse_diagonal(A)
    return LevelMatrices(
        A, P, R, inverse, 0.0 if options.smoother == "gauss-seidel" else spectral_radius(A, inverse)
    )


class Multigrid(Preconditioner):
    """A cycle; see `multigrid`."""

    def __init__(self, hierarchy: list[Any], options: Options, dtype: np.dtype[Any], device: str) -> None:
        def again(other: np.dtype[Any]) -> Multigrid:
            return Multigrid(hierarchy, options, other, device)

        super().__init__(hierarchy[0].A.shape[0], dtype, device, ("d", "step", "q", "r"), again)
        setup = set_up(hierarchy, options)
        levels = []
        for k, one in enumerate(setup.levels):
            vectors = None if k else self.vectors
            A = planned(one.A, self.space, device)
            levels.append(Level(A, one.inverse, one.radius, self.space, options, vectors, one.A))
        between = [one for one in setup.levels if one.P is not None]
        P = [planned(one.P, self.space, device) for one in between]
        R = [planned(one.R, self.space, device) for one in between]
        dense = None if setup.dense is None else planned(setup.dense, self.space, device)
        self._assemble(options, levels, P, R, dense)

    def _assemble(
        self,
        options: Options,
        levels: list[Level],
        P: list[Operator],
        R: list[Operator],
        dense: Operator | None,
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


def coarse_inverse_diagonal(A: Any) -> np.ndarray[Any, Any]:
    """Return 1 / a_ii of a coarse matrix, and 0 for a row of zeros, which smoothers pass by.

    Aggregates with fewer unknowns than modes leave such rows.

    Raises
    ------
    ValueError
        If a_ii of another row is zero, not finite, or so small that its inverse is not.
    """
    from scipy.sparse import diags_array

    empty = abs(A).sum(axis=1) == 0
    inverse = inverse_diagonal(A + diags_array(empty.astype(A.dtype)) if empty.any() else A)
    inverse[empty] = 0
    return inverse


def check_finite(hierarchy: list[Any]) -> None:
    """Check that no matrix of a hierarchy holds NaN or infinity.

    Raises
    ------
    ValueError
    """
    for k, level in enumerate(hierarchy):
        for name in "APR":
            matrix = getattr(level, name, None)
            if matrix is not None and not np.isfinite(matrix.data).all():
                raise ValueError(
                    f"{name} of level {k} of ml holds NaN or infinity; finite numbers are needed; "
                    "scale the matrix if its products overflow"
                )


def as_csr(matrix: Any) -> Any:
    """Return a matrix of a hierarchy as CSR with sorted indices and no duplicates."""
    from scipy.sparse import csr_array

    return canonical(csr_array(matrix))


def first_dense(matrices: list[Any], options: Options) -> int:
    """Return the level from which on a cycle is one dense matrix; the last one always is."""
    if options.cycle != "V":
        return len(matrices) - 1
    small = [k for k, matrix in enumerate(matrices) if matrix.shape[0] <= DENSE_ROWS]
    return min([*small, len(matrices) - 1])


def dense_cycle(hierarchy: list[Any], first: int, options: Options) -> np.ndarray[Any, Any]:
    """Return what a V-cycle from a level down does, as a matrix; of the last level its pseudo-inverse."""
    A = as_csr(hierarchy[first].A)
    if first == len(hierarchy) - 1:
        return np.asarray(np.linalg.pinv(A.toarray().astype(wide_type(A))))
    n = A.shape[0]
    inner = dense_cycle(hierarchy, first + 1, options)
    S = _dense_smoother(A, options, coarse=first > 0)
    A, P, R = A.toarray(), as_csr(hierarchy[first].P).toarray(), as_csr(hierarchy[first].R).toarray()
    before = S(np.zeros((n, n)), np.eye(n), True)
    corrected = before + P @ (inner @ (R @ (np.eye(n) - A @ before)))
    return np.asarray(S(corrected, np.eye(n), False))


def _dense_smoother(matrix: Any, options: Options, *, coarse: bool) -> Callable[[Any, Any, bool], Any]:
    """Return a function of X, B and the direction that smooths all columns of X."""
    A = matrix.toarray().astype(wide_type(matrix))
    inverse = (coarse_inverse_diagonal(matrix) if coarse else inverse_diagonal(matrix))[:, None]
    if options.smoother == "gauss-seidel":
        used = inverse != 0
        unit = np.diag((~used[:, 0]).astype(A.dtype))  # else a row of zeros could not be solved for
        lower, upper = np.tril(A) + unit, np.triu(A) + unit

        def sweep(X: Any, B: Any, forward: bool) -> Any:
            T = lower if forward else upper
            return X + used * np.linalg.solve(T, B - A @ X)

    elif options.smoother == "jacobi":
        omega = OMEGA / spectral_radius(matrix, inverse[:, 0])

        def sweep(X: Any, B: Any, forward: bool) -> Any:
            return X + omega * inverse * (B - A @ X)

    else:
        high = UPPER * spectral_radius(matrix, inverse[:, 0])
        first, further = coefficients(high / RATIO, high, options.degree)

        def sweep(X: Any, B: Any, forward: bool) -> Any:
            step = first * inverse * (B - A @ X)
            X = X + step
            for last, rest in further:
                step = last * step + rest * inverse * (B - A @ X)
                X = X + step
            return X

    def smooth(X: Any, B: Any, forward: bool) -> Any:
        for _ in range(options.sweeps):
            X = sweep(X, B, forward)
        return X

    return smooth


def multigrid(
    ml: Any,
    *,
    smoother: str = "chebyshev",
    cycle: str = "V",
    sweeps: int = 1,
    degree: int = 2,
    device: str = "auto",
    dtype: Any = None,
) -> Preconditioner:
    """Return a multigrid cycle over a PyAMG hierarchy.

    Parameters
    ----------
    ml : pyamg.MultilevelSolver
        From `pyamg.ruge_stuben_solver(A)`, `pyamg.smoothed_aggregation_solver(A)` or another; its own
        smoothers are not used. Not modified.
    smoother : {"chebyshev", "jacobi", "gauss-seidel"}
        Gauss-Seidel, forward before and backward after the coarse correction, on the CPU alone.
    cycle : {"V", "W", "F"}
    sweeps : int
        Of the smoother, before and after.
    degree : int
        Of a Chebyshev polynomial.
    device : {"auto", "cpu", "cuda", "cuda:N"}
        `auto` takes the GPU if one works, and else the CPU.
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
    >>> x, stats = dasp.solvers.cg(A, np.ones(90000), M=M)                   # doctest: +SKIP
    """
    hierarchy = levels_of(ml)
    computed = cycle_type(hierarchy, dtype)
    check_finite(hierarchy)
    options = check_options(smoother, cycle, sweeps, degree)
    where = place(None, device)
    if smoother == "gauss-seidel" and where != "cpu":
        raise ValueError(
            "smoother is 'gauss-seidel', which goes row by row, on a GPU; 'chebyshev' is needed there"
        )
    return Multigrid(hierarchy, options, computed, where)
