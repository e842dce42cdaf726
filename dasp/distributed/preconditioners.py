"""Preconditioners of a distributed matrix.

A preconditioner of the block on the diagonal that a rank holds needs no other rank; Jacobi's is the same as
for the whole matrix, and one by blocks too where no block is cut. Chebyshev's polynomials multiply by the
whole matrix, and so need the neighbours, but no sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import dasp.preconditioners as local
from dasp.distributed.matrix import SpMatrix
from dasp.distributed.split import Numbers
from dasp.multigrid.cycle import Multigrid, entry_type
from dasp.multigrid.hierarchy import (
    Setup,
    check_finite,
    cycle_type,
    level_inverse_diagonal,
    levels_of,
    set_up,
)
from dasp.multigrid.smoothers import CycleOptions, Level, check_options
from dasp.preconditioners.base import MOST_STEPS, Preconditioner, computing_type, inverse_diagonal
from dasp.preconditioners.chebyshev import Polynomial
from dasp.preconditioners.spectrum import UPPER
from dasp.runtime import check as _check
from dasp.runtime.types import Array
from dasp.solvers.chebyshev import estimate_spectrum
from dasp.solvers.operator import as_operator

__all__ = ["RankPreconditioner", "block_jacobi", "chebyshev", "jacobi", "multigrid", "of_blocks"]

LEAST_ROWS = 2000
"""Rows of a coarse level for each rank that has some: fewer cost more to exchange than to work on."""


class RankPreconditioner:
    """A preconditioner of all ranks, made of one on each that works on its parts of r and z.

    Attributes
    ----------
    shape : tuple of int
        (n, n), of the whole.
    local_shape : tuple of int
        Of this rank's part.
    dtype : numpy.dtype
    device : str
    generation : int
        Grows on all ranks when `update` replaces arrays on one of them: all must then prepare their programs
        anew, and together.
    """

    def __init__(self, matrix: SpMatrix, own: Preconditioner) -> None:
        self.shape, self.local_shape, self.device = matrix.shape, matrix.local_shape, matrix.device
        self.dtype, self._matrix, self._own, self.generation = own.dtype, matrix, own, 0
        diagonal = getattr(own, "diagonal_of_inverse", None)
        if diagonal is not None:
            self.diagonal_of_inverse = diagonal

    def matvec(self, r: Array, out: Array | None = None) -> Array:
        """Return this rank's part of M r; see `dasp.preconditioners.base.Preconditioner.matvec`."""
        z: Array = self._own.matvec(r, out=out)
        return z

    def prepare(self, x: Array, y: Array) -> Callable[[], None]:
        """Return a function that sets y to M x again and again."""
        return self._own.prepare(x, y)

    def __matmul__(self, r: Array) -> Array:
        """Return this rank's part of M r."""
        z: Array = self._own @ r
        return z

    def update(self, D: SpMatrix) -> None:
        """Take the values of a matrix of the same pattern, cut alike; all ranks call it.

        Raises
        ------
        TypeError, ValueError, RankError
            On all ranks the same. A polynomial in D and multigrid take no new values: make them anew.
        """
        _check_ranks(D)
        with D.call:
            D.agree(lambda: self._own.update(D.diagonal_block()))
            self.generation = sum(D.comm.gather(self._own.generation))

    def astype(self, dtype: Any) -> RankPreconditioner:
        """Return the same preconditioner that computes in another type: float32 or float64, or a complex one.

        Raises
        ------
        ValueError
            For another type, and for a polynomial in D, which computes in D's.
        """
        with self._matrix.call:
            return RankPreconditioner(self._matrix, self._own.astype(dtype))


def of_blocks(D: SpMatrix, make: Callable[..., Preconditioner], **options: Any) -> RankPreconditioner:
    """Return the preconditioner that each rank makes of its block on the diagonal (block Jacobi over ranks).

    Parameters
    ----------
    D : SpMatrix
        Distributed, square, its rows and columns cut alike.
    make : callable
        Takes the block, a SciPy CSR array, and `device`, such as `dasp.preconditioners.ilu0`.
    **options
        For `make`.

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    TypeError, ValueError, RankError
        On all ranks the same: the error of `make` on one of them.
    """

    def work() -> Preconditioner:
        if D.local_shape[0] != D.local_shape[1]:
            raise ValueError(f"this rank's block is {D.local_shape}; rows and columns must be cut alike")
        return make(D.diagonal_block(), device=D.device, **options)

    _check_ranks(D)
    with D.call:
        return RankPreconditioner(D, D.agree(work))


def _check_ranks(D: object) -> None:
    """Raise TypeError if D is no matrix over ranks."""
    if not isinstance(D, SpMatrix):
        raise TypeError(
            f"D is {_check.kind_of(D, library=True)}; a dasp.distributed.SpMatrix "
            "is needed; of a matrix that one process has, use dasp.preconditioners"
        )


def jacobi(D: SpMatrix) -> RankPreconditioner:
    """Return the preconditioner that divides by the diagonal of D; see `dasp.preconditioners.jacobi`."""
    return of_blocks(D, local.jacobi)


def block_jacobi(D: SpMatrix, *, block: int) -> RankPreconditioner:
    """Return the preconditioner that solves with dense blocks of rows, counted from each rank's first.

    Parameters
    ----------
    D : SpMatrix
        A matrix over ranks.
    block : int
        As of `dasp.preconditioners.block_jacobi`.
    """
    return of_blocks(D, local.block_jacobi, block=block)


def chebyshev(
    D: SpMatrix, *, degree: int = 3, ratio: float = 30.0, bounds: tuple[float, float] | None = None
) -> RankPreconditioner:
    """Return a Chebyshev polynomial in the inverse of the diagonal times D; all ranks call it.

    Parameters
    ----------
    D : SpMatrix
        Distributed, symmetric or Hermitian, and positive definite.
    degree : int
    ratio : float
        Of the interval's ends, if `bounds` are not given: the upper one is found by some iterations of
        conjugate gradients with Jacobi's preconditioner, and raised by a tenth.
    bounds : tuple of float, optional

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    ValueError, RankError
        On all ranks the same: if the degree or the bounds make no polynomial, or D has no such diagonal.
    """
    _check_ranks(D)
    dtype = computing_type(D)

    def check() -> tuple[int, tuple[float, float] | None, Numbers]:
        if bounds is None and not ratio > 1:
            raise ValueError(f"ratio is {ratio}; a number above 1 is needed")
        interval = None if bounds is None else _check.interval(bounds)
        inverse = inverse_diagonal(D.diagonal_block().diagonal())
        return _check.count("degree", degree, most=MOST_STEPS), interval, inverse

    with D.call:
        steps, interval, inverse = D.agree(
            check, lambda found: {"degree": found[0], "bounds": found[1], "ratio": ratio}
        )
        if interval is None:
            high = UPPER * estimate_spectrum(D, jacobi(D), dtype, D.device)[1]
            interval = _check.interval((high / ratio, high))

    operator, n = as_operator(D, D.device), len(inverse)
    own = Polynomial(operator, n, interval[1] / interval[0], steps, dtype, D.device)
    own.load_diagonal(inverse, interval[1])
    return RankPreconditioner(D, own)


class RankMultigrid(Multigrid):
    """A cycle whose levels are distributed; those of few rows lie on few ranks.

    Parameters
    ----------
    matrix : SpMatrix
        The finest level, which is used as it is if it has the type.
    setup : Setup or None
        The hierarchy, on rank `root`; None on the others.
    """

    def __init__(
        self, matrix: SpMatrix, setup: Setup | None, options: CycleOptions, dtype: np.dtype[Any], root: int
    ) -> None:
        names = ("d", "step", "q", "r")
        Preconditioner.__init__(self, matrix.local_shape[0], dtype, matrix.device, names)
        self._made_of = matrix, setup, options, root
        comm = matrix.comm
        facts = None if setup is None else (setup.rows, [one.radius(options) for one in setup.levels])
        told = comm.gather(facts)[root]
        assert told is not None
        sizes, radii = told  # the rows of all levels, the dense one too; the radii of those that are smoothed
        starts = [matrix.rows.starts, *(_cut_level(rows, comm.size) for rows in sizes[1:])]

        def scatter(piece: Any, rows: int, columns: int) -> SpMatrix:
            """Return a matrix of the root, cut as the levels of its rows and columns are."""
            A = None if piece is None else piece.astype(entry_type(piece, self.dtype))
            return SpMatrix.from_scipy(
                A, comm, root=root, rows=starts[rows], columns=starts[columns], device=self.device
            )

        levels, P, R = [], [], []
        for k, radius in enumerate(radii):
            mine = setup and setup.levels[k]
            same = k == 0 and matrix.dtype == entry_type(matrix, self.dtype)
            A = matrix if same else scatter(mine and mine.A, k, k)
            inverse = matrix.agree(partial(level_inverse_diagonal, A.diagonal_block(), coarse=k > 0))
            operator, vectors = as_operator(A, self.device), None if k else self.vectors
            levels.append(Level(operator, inverse, radius, self.space, options, vectors))
            if k + 1 < len(sizes):
                P.append(as_operator(scatter(mine and mine.P, k, k + 1), self.device))
                R.append(as_operator(scatter(mine and mine.R, k + 1, k), self.device))
        last, dense = len(sizes) - 1, None
        if last == len(radii):
            dense = as_operator(scatter(setup and setup.dense, last, last), self.device)
        self._assemble(options, levels, P, R, dense)

    def _in_type(self, dtype: np.dtype[Any]) -> Multigrid:
        """Return another one that computes in a type."""
        matrix, setup, options, root = self._made_of
        return RankMultigrid(matrix, setup, options, dtype, root)

    def _read(self, A: object) -> Setup:
        """Raise TypeError: the hierarchy is on one rank."""
        raise TypeError("multigrid over ranks takes no new values; make it anew of a new hierarchy")


def _cut_level(rows: int, ranks: int) -> np.ndarray[Any, Any]:
    """Return where each rank's rows of a coarse level begin: on so few ranks that each has enough."""
    used = max(1, min(ranks, rows // LEAST_ROWS))
    inner = [rows * k // used for k in range(used)]
    return np.array([*inner, *[rows] * (ranks + 1 - used)], np.int64)


def multigrid(
    D: SpMatrix,
    ml: Any,
    *,
    smoother: str = "chebyshev",
    cycle: str = "V",
    sweeps: int = 1,
    degree: int = 2,
    dtype: Any = None,
    root: int = 0,
) -> RankPreconditioner:
    """Return a multigrid cycle whose levels are cut by rows; all ranks call it.

    Parameters
    ----------
    D : SpMatrix
        Distributed, square: the matrix of the finest level.
    ml : pyamg.MultilevelSolver or matrix
        As for `dasp.preconditioners.multigrid`, on rank `root`; it is not read on others, and may be None.
    smoother : {"chebyshev", "jacobi"}
    cycle, sweeps, degree, dtype
        As for `dasp.preconditioners.multigrid`.
    root : int

    Returns
    -------
    RankPreconditioner
        The same cycle as on one rank, up to rounding.

    Raises
    ------
    TypeError, ValueError, RankError
        On all ranks the same.
    """

    def check() -> tuple[list[Any], CycleOptions, np.dtype[Any] | None]:
        options = check_options(smoother, cycle, sweeps, degree)
        if smoother == "gauss-seidel":
            raise ValueError(f"smoother is {smoother!r}; chebyshev or jacobi is needed on several ranks")
        if not 0 <= root < D.comm.size:
            raise ValueError(f"root is {root}; there are {D.comm.size} ranks, numbered from 0")
        if D.comm.rank != root:
            return [], options, None
        levels = levels_of(ml)
        computed = cycle_type(levels, dtype)
        check_finite(levels)
        if levels[0].A.shape != D.shape:
            raise ValueError(
                f"the hierarchy is of a matrix of shape {levels[0].A.shape}; D has shape {D.shape}"
            )
        return levels, options, computed

    _check_ranks(D)
    asked = {"smoother": smoother, "cycle": cycle, "sweeps": sweeps, "degree": degree, "root": root}
    with D.call:
        levels, options, mine = D.agree(check, lambda _: {**asked, "dtype": dtype and np.dtype(dtype).name})
        computed = D.comm.gather(mine)[root]
        assert computed is not None
        setup = D.agree(lambda: set_up(levels, options) if D.comm.rank == root else None)
        return RankPreconditioner(D, RankMultigrid(D, setup, options, computed, root))
