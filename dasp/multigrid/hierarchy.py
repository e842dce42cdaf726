"""Read and check a PyAMG hierarchy on the host, and invert its last level."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import bsr_array, csr_array, csr_matrix

from dasp.multigrid.smoothers import CycleOptions
from dasp.preconditioners.base import (
    TYPES,
    computing_type,
    host_matrix,
    inverse_diagonal,
    is_finite,
    wide_type,
)
from dasp.preconditioners.spectrum import NAMES, spectral_radius
from dasp.runtime import check as _check
from dasp.runtime.types import Array, DTypeLike
from dasp.solvers.arguments import make_space
from dasp.solvers.operator import as_operator

DENSE_ROWS = 200
"""The first level with at most this many rows is inverted, and no level below it is used."""

MOST_INVERSE_ROWS = 500
"""Most rows with which the last level is inverted; the inverse of more takes seconds."""

INVERSE = "the inverse"
"""The name of the inverse among the matrices of the levels."""

DIAGONAL = 0.9
"""A pivot of a Hermitian matrix is on the diagonal if the largest number there is at least this times the
largest of all."""

ASYMMETRY = 100
"""Most by which a Hermitian matrix may differ from its adjoint, in eps times the largest entry; products
R A P differ by rounding."""


def levels_of(ml: object) -> list[Any]:
    """Return the levels of a hierarchy, or of the one that PyAMG makes of a matrix.

    Raises
    ------
    TypeError
        If `ml` is neither a hierarchy nor a matrix.
    RuntimeError
        If `ml` is a matrix and PyAMG is not installed.
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
    ValueError
        If the matrix holds NaN or infinity, or numbers too small for PyAMG.
    """
    if not np.isfinite(csr.data).all():
        raise ValueError("A holds NaN or infinity; finite numbers are needed")
    try:
        import pyamg
    except ImportError as error:
        raise RuntimeError("multigrid was asked for and PyAMG is not installed; pip install pyamg") from error
    # PyAMG draws vectors from NumPy's global generator; the seed gives equal matrices equal hierarchies.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        with np.errstate(all="ignore"):
            return pyamg.smoothed_aggregation_solver(csr_matrix(csr))
    except ValueError as error:
        raise ValueError(
            f"PyAMG makes no hierarchy of A: {error}; numbers whose inverses are finite are needed; scale A"
        ) from error
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
        If a cycle over these matrices cannot compute in that type.
    """
    known = TYPES["c" if _is_complex(levels) else "f"]
    wanted = np.dtype(known[1] if dtype is None else dtype)
    if wanted.name not in known:
        raise ValueError(
            f"dtype is {wanted}; {' or '.join(known)} is needed for the matrices of this hierarchy"
        )
    return wanted


class HostLevel(NamedTuple):
    """A level on the host: its matrix, and P and R to the level below, which are None on the last level."""

    A: csr_array
    P: csr_array | None = None
    R: csr_array | None = None


Transfers = list[tuple[csr_array, csr_array]]
"""P and R of every level but the last."""


def coarsen(A: csr_array, transfers: Transfers) -> list[HostLevel]:
    """Return the levels that P and R make of a matrix: below a level with A is one with R A P."""
    levels = []
    for P, R in transfers:
        levels.append(HostLevel(A, P, R))
        A = R @ A @ P
    return [*levels, HostLevel(A)]


class Setup(NamedTuple):
    """A hierarchy as a cycle uses it.

    Attributes
    ----------
    levels : list of HostLevel
        The levels, down to the one that is inverted.
    inverse : scipy.sparse.csr_array or None
        The inverse of the last level; None if that level is too large, and smoothed as the others are.
    """

    levels: list[HostLevel]
    inverse: csr_array | None

    @property
    def smoothed(self) -> list[HostLevel]:
        """The levels that are smoothed."""
        return self.levels if self.inverse is None else self.levels[:-1]

    @property
    def transfers(self) -> Transfers:
        """P and R of every level but the last."""
        return [(one.P, one.R) for one in self.levels[:-1]]

    @property
    def rows(self) -> list[int]:
        """The rows of each level."""
        return [int(one.A.shape[0]) for one in self.levels]

    @property
    def matrices(self) -> dict[tuple[str, int], csr_array]:
        """The matrices that a cycle multiplies by, each with its name and its level."""
        matrices = {("A", k): one.A for k, one in enumerate(self.smoothed)}
        matrices |= {("P", k): P for k, (P, _) in enumerate(self.transfers)}
        matrices |= {("R", k): R for k, (_, R) in enumerate(self.transfers)}
        if self.inverse is not None:
            matrices[INVERSE, len(self.levels) - 1] = self.inverse
        return matrices


@np.errstate(all="ignore")
def set_up(hierarchy: list[Any]) -> Setup:
    """Return the levels of a hierarchy that a cycle uses, and the inverse of the last one.

    Raises
    ------
    ValueError
        If a matrix or the inverse holds NaN or infinity.
    """
    small = (k for k, one in enumerate(hierarchy) if one.A.shape[0] <= DENSE_ROWS)
    last = next(small, len(hierarchy) - 1)
    levels = [HostLevel(as_csr(one.A), as_csr(one.P), as_csr(one.R)) for one in hierarchy[:last]]
    A = as_csr(hierarchy[last].A)
    levels.append(HostLevel(A))
    given = Setup(levels[:], None)
    for (name, k), matrix in given.matrices.items():
        _check_finite(name, k, matrix)
    terms = A.diagonal()
    for k, (P, R) in enumerate(given.transfers):
        # No product of three matrices: it would take as long as one that made the level.
        terms = (abs(R) @ abs(levels[k].A).sum(axis=1)) * abs(P).max(axis=0).toarray().ravel()
        levels[k + 1] = levels[k + 1]._replace(A=_drop_rounding(levels[k + 1].A, terms))
    A = levels[-1].A
    if A.shape[0] > MOST_INVERSE_ROWS:
        return Setup(levels, None)
    inverse = csr_array(_invert(A, terms))
    _check_finite(INVERSE, last, inverse)
    return Setup(levels, inverse)


def _drop_rounding(A: csr_array, terms: Array) -> csr_array:
    """Return a matrix with zeros in the rows and columns that are rounding, given `terms` as for `_invert`.

    The row of an aggregate that is a whole block of a singular matrix cancels.
    """
    sizes, eps = abs(A).sum(axis=1), np.finfo(computing_type(A.dtype)).eps
    rounding = (sizes > 0) & (sizes <= eps ** (2 / 3) * terms)
    if not rounding.any():
        return A
    rows = np.repeat(rounding, np.diff(A.indptr))
    return csr_array((np.where(rows | rounding[A.indices], 0, A.data), A.indices, A.indptr), A.shape)


def _invert(A: csr_array, terms: Array) -> np.ndarray[Any, Any]:
    """Return the inverse of a small matrix; for a singular one a generalized inverse G, with A G A = A.

    Neumann problems and rows of zeros make levels singular. The method is Gauss-Jordan elimination with
    complete pivoting, without BLAS, whose rounding depends on its threads.

    `terms`, shape (n,), bounds for each diagonal entry the sum of the sizes of the numbers that were added to
    make it. Rows and columns are scaled by it or by the largest entry of the row, and a pivot below
    eps^(2/3) then counts as zero: it is the rounding of a sum that cancels, and its inverse would exceed
    all other entries.
    """
    work = A.toarray().astype(wide_type(A.dtype))
    n, eps, sizes = len(work), np.finfo(computing_type(A.dtype)).eps, abs(work).max(axis=1, initial=0)
    hermitian = bool((abs(work - work.conj().T) <= ASYMMETRY * eps * sizes.max(initial=0)).all())
    sizes = np.maximum(sizes, abs(terms))
    scale = 1 / np.sqrt(np.where(sizes > 0, sizes, 1))
    work *= scale[:, None] * scale
    rows, columns, rank, product = np.arange(n), np.arange(n), n, np.empty_like(work)
    for k in range(n):
        i, j = (k + place for place in divmod(int(abs(work[k:, k:]).argmax()), n - k))
        best = k + int(abs(work.diagonal()[k:]).argmax())
        if hermitian and abs(work[best, best]) >= DIAGONAL * abs(work[i, j]):
            i = j = best  # else rounding might choose a row and another column, and G be indefinite
        if abs(work[i, j]) <= eps ** (2 / 3):
            rank = k
            break
        for order, lines, other in ((rows, work, i), (columns, work.T, j)):
            order[[k, other]], lines[[k, other]] = order[[other, k]], lines[[other, k]]
        pivot, column = work[k, k], work[:, k].copy()
        work[:, k], work[k, k], column[k] = 0, 1, 0
        work[k] /= pivot
        work -= np.multiply(column[:, None], work[k], out=product)
    inverse: np.ndarray[Any, Any] = np.zeros_like(work)
    inverse[np.ix_(columns[:rank], rows[:rank])] = work[:rank, :rank]
    inverse *= scale[:, None] * scale
    if hermitian:
        inverse = (inverse + inverse.conj().T) / 2
    return inverse


def host_radius(A: csr_array, options: CycleOptions, *, coarse: bool) -> float:
    """Estimate the largest eigenvalue of D^-1 A by products on the host; 0 if no smoother needs it."""
    if options.smoother == "gauss-seidel":
        return 0.0
    inverse = invert_diagonal(A, A.diagonal(), coarse=coarse)
    space = make_space("cpu", np.dtype(wide_type(A.dtype)))
    vectors = space.vectors(len(inverse), *NAMES)
    return spectral_radius(A, as_operator(A, "cpu"), inverse, space, vectors)


def invert_diagonal(A: csr_array, diagonal: Array, *, coarse: bool) -> Array:
    """Return 1 / a_ii, given the diagonal of A; on a coarse level 0 for a row of zeros.

    Aggregates with fewer unknowns than modes leave such rows; smoothers leave their unknowns alone.

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


def _check_finite(name: str, k: int, matrix: csr_array) -> None:
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


def as_csr(matrix: csr_array | bsr_array) -> csr_array:
    """Return a matrix of a hierarchy as CSR; it shares its arrays if it is CSR, or BSR of single entries."""
    if matrix.format == "bsr" and matrix.blocksize == (1, 1):
        return csr_array((matrix.data.reshape(-1), matrix.indices, matrix.indptr), matrix.shape)
    return csr_array(matrix)
