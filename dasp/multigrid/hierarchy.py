"""A PyAMG hierarchy as a cycle uses it, on the host: checked, and the last levels as one dense matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, csr_matrix

from dasp.multigrid.smoothers import CycleOptions, dense_smoother
from dasp.preconditioners.base import TYPES, PlannedPart, host_matrix, inverse_diagonal, is_finite, wide_type
from dasp.preconditioners.spectrum import NAMES, dense_spectral_radius, spectral_radius
from dasp.runtime import check as _check
from dasp.runtime.types import Array, DTypeLike
from dasp.solvers.arguments import space_for
from dasp.solvers.operator import as_operator

DENSE_ROWS = 320
"""Rows of a level up to which a V-cycle from it down is kept as one dense matrix."""

MOST_INVERSE_ROWS = 1500
"""Rows of the last level up to which it is inverted; the pseudo-inverse of more takes seconds and memory."""


def levels_of(ml: Any) -> list[Any]:
    """Return the levels of a hierarchy, or of the one that PyAMG makes of a matrix.

    Raises
    ------
    TypeError
        If it is neither.
    RuntimeError
        If it is a matrix and PyAMG is not installed.
    """
    if hasattr(ml, "shape") and not hasattr(ml, "levels"):
        ml = make_hierarchy(host_matrix(ml))
    levels = getattr(ml, "levels", None)
    if not levels or not hasattr(levels[0], "A"):
        raise TypeError(f"ml is {_check.kind_of(ml)}; a hierarchy of PyAMG is needed, or a matrix")
    return list(levels)


def make_hierarchy(csr: csr_array) -> Any:
    """Return the hierarchy that PyAMG makes of a SciPy matrix by smoothed aggregation.

    Raises
    ------
    RuntimeError
        If PyAMG is not installed.
    """
    try:
        import pyamg
    except ImportError as error:
        raise RuntimeError("multigrid was asked for and PyAMG is not installed; pip install pyamg") from error
    # PyAMG draws vectors by the old generator; equal matrices shall have equal hierarchies.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        return pyamg.smoothed_aggregation_solver(csr_matrix(csr))
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _is_complex(levels: list[Any]) -> bool:
    """Return True if any matrix of a hierarchy is complex."""
    matrices = (getattr(level, name, None) for level in levels for name in "APR")
    return any(np.dtype(matrix.dtype).kind == "c" for matrix in matrices if matrix is not None)


def cycle_type(levels: list[Any], dtype: DTypeLike | None) -> np.dtype[Any]:
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
    """A level as a cycle needs it, on the host.

    Attributes
    ----------
    A, P, R : scipy.sparse.csr_array
        The matrix, and what prolongs from the level below and restricts to it; None on the last level.
    coarse : bool
        False for the finest level.
    """

    A: csr_array
    P: csr_array | None
    R: csr_array | None
    coarse: bool

    def inverse(self, planned: PlannedPart | None = None) -> Array:
        """Return the inverse of the diagonal of A, which a GPU finds sooner where A is planned there."""
        diagonal = self.A.diagonal() if planned is None else planned.diagonal()
        return invert_diagonal(self.A, diagonal, coarse=self.coarse)

    def radius(self, options: CycleOptions) -> float:
        """Return the largest eigenvalue of D^-1 A, about, by products on the host; 0 if none is needed."""
        if options.smoother == "gauss-seidel":
            return 0.0
        inverse, space = self.inverse(), space_for("cpu", np.dtype(wide_type(self.A)))
        operator, vectors = as_operator(self.A, "cpu"), space.vectors(len(inverse), *NAMES)
        return spectral_radius(self.A, operator, inverse, space, vectors)


class HostLevel(NamedTuple):
    """A level as a hierarchy of PyAMG has it."""

    A: csr_array
    P: csr_array | None
    R: csr_array | None


def coarsen(A: csr_array, transfers: list[tuple[csr_array, csr_array]]) -> list[HostLevel]:
    """Return the levels of a matrix: between two of them P and R, and on the coarser one R A P."""
    levels = []
    for P, R in transfers:
        levels.append(HostLevel(A, P, R))
        A = R @ A @ P
    return [*levels, HostLevel(A, None, None)]


class Setup(NamedTuple):
    """A hierarchy as a cycle uses it.

    Attributes
    ----------
    levels : list of LevelMatrices
        Those that are smoothed, the last level among them if it is too large to be inverted.
    dense : scipy.sparse.csr_array or None
        The cycle from the level behind them down, as one matrix; None if there is none.
    transfers : list of pair
        P and R of every level but the last.
    """

    levels: list[LevelMatrices]
    dense: csr_array | None
    transfers: list[tuple[csr_array, csr_array]]

    @property
    def rows(self) -> list[int]:
        """The rows of each level, the dense one too."""
        dense = [] if self.dense is None else [self.dense]
        return [int(A.shape[0]) for A in (*(one.A for one in self.levels), *dense)]


def set_up(hierarchy: list[Any], options: CycleOptions) -> Setup:
    """Return a hierarchy as a cycle uses it.

    Raises
    ------
    ValueError
        If a level that becomes part of the dense matrix holds NaN or infinity, or has no usable diagonal.
    """
    levels = [
        LevelMatrices(as_csr(one.A), as_csr(one.P), as_csr(one.R), k > 0)
        for k, one in enumerate(hierarchy[:-1])
    ]
    last, inner = as_csr(hierarchy[-1].A), len(levels)
    transfers = [(level.P, level.R) for level in levels]
    if last.shape[0] > MOST_INVERSE_ROWS:
        return Setup([*levels, LevelMatrices(last, None, None, inner > 0)], None, transfers)
    small = [k for k, level in enumerate(levels) if level.A.shape[0] <= DENSE_ROWS and options.cycle == "V"]
    first = min([*small, inner])
    check_levels(hierarchy, first)
    return Setup(levels[:first], csr_array(_dense_cycle(levels[first:], last, options)), transfers)


def _dense_cycle(levels: list[LevelMatrices], last: csr_array, options: CycleOptions) -> np.ndarray[Any, Any]:
    """Return the matrix of a V-cycle over some levels and the last one, of which it takes the
    pseudo-inverse."""
    inner = np.linalg.pinv(last.toarray().astype(wide_type(last)))
    for level in reversed(levels):
        A, P, R = level.A.toarray().astype(wide_type(level.A)), level.P.toarray(), level.R.toarray()
        inverse, unit = level.inverse(), np.eye(len(A))
        radius = 0.0 if options.smoother == "gauss-seidel" else dense_spectral_radius(A, inverse)
        smooth = dense_smoother(A, inverse, radius, options)
        before = smooth(np.zeros_like(unit), unit, True)
        inner = smooth(before + P @ (inner @ (R @ (unit - A @ before))), unit, False)
    return np.asarray(inner)


def invert_diagonal(A: csr_array, diagonal: Array, *, coarse: bool) -> Array:
    """Return 1 / a_ii, given the diagonal of A; on a coarse level 0 for a row of zeros.

    Aggregates with fewer unknowns than modes leave such rows; smoothers pass them by.

    Raises
    ------
    ValueError
        If a_ii of another row is zero, not finite, or so small that its inverse is not.
    """
    if not coarse or diagonal.all():
        return inverse_diagonal(diagonal)
    rows = np.flatnonzero(diagonal == 0)
    empty = rows[abs(A[rows]).sum(axis=1) == 0]
    diagonal[empty] = 1
    inverse = inverse_diagonal(diagonal)
    inverse[empty] = 0
    return inverse


def check_levels(hierarchy: list[Any], first: int = 0) -> None:
    """Check that no matrix of a hierarchy, from a level on, holds NaN or infinity.

    Raises
    ------
    ValueError
    """
    for k, level in enumerate(hierarchy[first:], first):
        for name in "APR":
            if getattr(level, name, None) is not None:
                check_finite(name, k, getattr(level, name))


def check_finite(name: str, k: int, matrix: Any) -> None:
    """Check that a matrix of level k does not hold NaN or infinity.

    Raises
    ------
    ValueError
    """
    if not is_finite(matrix.data):
        raise ValueError(
            f"{name} of level {k} of ml holds NaN or infinity; finite numbers are needed; "
            "scale the matrix if its products overflow"
        )


def as_csr(matrix: Any) -> csr_array:
    """Return a matrix of a hierarchy as CSR; it shares its arrays if it is CSR, or BSR of single entries."""
    if matrix.format == "bsr" and matrix.blocksize == (1, 1):
        return csr_array((matrix.data.reshape(-1), matrix.indices, matrix.indptr), matrix.shape)
    return csr_array(matrix)
