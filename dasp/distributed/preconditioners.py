"""Preconditioners of a distributed matrix.

A preconditioner made of a rank's block on the diagonal needs no other rank. Jacobi's is the same as for the
whole matrix, and so is block Jacobi's if no block is cut. Chebyshev's polynomials multiply by the whole
matrix: they need the neighbours, but no sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import dasp.preconditioners as local
from dasp.distributed.matrix import SpMatrix
from dasp.distributed.partition import check_root, collect_rows
from dasp.multigrid.cycle import Cycle, entry_type
from dasp.multigrid.hierarchy import (
    Setup,
    as_csr,
    coarsen,
    cycle_type,
    host_radius,
    levels_of,
    set_up,
)
from dasp.multigrid.smoothers import LEVEL_VECTORS, CycleOptions, Level, check_options
from dasp.preconditioners.base import (
    MOST_STEPS,
    OLD_VALUES,
    Preconditioner,
    cast_matrix,
    computing_type,
    inverse_diagonal,
)
from dasp.preconditioners.chebyshev import Polynomial
from dasp.preconditioners.spectrum import UPPER
from dasp.runtime import check as _check
from dasp.runtime.types import Array, DTypeLike, Vector
from dasp.solvers.arguments import leave_together
from dasp.solvers.chebyshev import estimate_spectrum
from dasp.solvers.operator import DeviceOperator, as_operator

__all__ = ["RankPreconditioner", "block_jacobi", "chebyshev", "jacobi", "multigrid", "of_blocks"]

LEAST_ROWS = 2000
"""The least rows of a coarse level on a rank that has some: fewer take longer to exchange than to compute."""


class RankPreconditioner:
    """A preconditioner over ranks: each rank has its own, which works on the rank's parts of r and z.

    Attributes
    ----------
    shape : tuple of int
        (n, n), of the whole matrix.
    local_shape : tuple of int
        The shape of this rank's block.
    dtype : numpy.dtype
    device : str
    generation : int
        Grows on all ranks when `update` replaces arrays on one of them: all must then prepare their programs
        anew, and together.
    """

    takes_out = True  # solvers then multiply by `matvec(r, out=z)`

    def __init__(self, matrix: SpMatrix, own: Preconditioner) -> None:
        self.shape, self.local_shape, self.device = matrix.shape, matrix.local_shape, matrix.device
        self.dtype, self._matrix, self._own, self.generation = own.dtype, matrix, own, 0
        self._warned = False
        diagonal = getattr(own, "diagonal_of_inverse", None)
        if diagonal is not None:
            self.diagonal_of_inverse = diagonal

    @leave_together
    def matvec(self, r: Array, out: Array | None = None) -> Array:
        """Return this rank's part of M r; see `dasp.preconditioners.base.Preconditioner.matvec`."""
        return self._own.matvec(r, out=out)

    def prepare(self, x: Array, y: Array) -> Callable[[], None]:
        """Return a function that sets y to M x again and again."""
        return self._own.prepare(x, y)

    @leave_together
    def __matmul__(self, r: Array) -> Array:
        """Return this rank's part of M r, for each column where r has several."""
        return self._own @ r

    @property
    def call(self) -> AbstractContextManager[None]:
        """A context for work that all ranks do together, as one call: see `Communicator.call`."""
        return self._matrix.call

    @leave_together
    def update(self, D: SpMatrix) -> None:
        """Take the values of a matrix of the same pattern, cut alike; all ranks call it.

        Multigrid keeps the matrices between its levels, and computes the coarse ones anew on its root, which
        gets the rows of all ranks for that.

        Raises
        ------
        TypeError, ValueError, RankError
            The same on all ranks. M may then be of no use.
        """
        _check_ranks(D)
        D.agree(partial(self._check_cut, D))
        if isinstance(self._own, RANKS_TOGETHER):
            self._own.update(D)
        else:
            D.agree(lambda: self._own.update(D.diagonal_block()))
        self.generation = sum(D.comm.gather(self._own.generation))
        self._matrix, self._warned = D, False

    def _check_cut(self, D: SpMatrix) -> None:
        if D.local_shape != self.local_shape:
            raise ValueError(
                f"this rank's block is {D.local_shape} and that of M is {self.local_shape}; "
                "a matrix that is cut alike is needed"
            )

    def warn_of_old_values(self, A: object) -> None:
        """Warn, once and on rank 0, if A has other values than the matrix that M was made of."""
        if isinstance(A, SpMatrix) and A.has_new_values(self._matrix) and not self._warned:
            self._warned = True
            if A.comm.rank == 0:
                warnings.warn(OLD_VALUES, UserWarning, stacklevel=5)

    @leave_together
    def astype(self, dtype: DTypeLike) -> RankPreconditioner:
        """Return the same preconditioner, computing in another type: float32 or float64, or a complex one.

        Raises
        ------
        TypeError, ValueError
            For another type, and for a polynomial in D, which computes in D's.
        """
        wanted = self._matrix.agree(lambda: np.dtype(dtype), lambda wanted: {"dtype": wanted.name})
        return RankPreconditioner(self._matrix, self._own.astype(wanted))


@leave_together
def of_blocks(D: SpMatrix, make: Callable[..., Preconditioner], **options: object) -> RankPreconditioner:
    """Return the preconditioner that each rank makes of its block on the diagonal (block Jacobi over ranks).

    Parameters
    ----------
    D : SpMatrix
        Distributed, square, its rows and columns cut alike.
    make : callable
        Such as `dasp.preconditioners.ilu0`; takes the block, a SciPy CSR array, and `device`.
    **options
        Passed to `make`.

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    TypeError, ValueError, RankError
        The same on all ranks: the error of `make` on one of them.
    """

    def work() -> Preconditioner:
        if D.local_shape[0] != D.local_shape[1]:
            raise ValueError(f"this rank's block is {D.local_shape}; rows and columns must be cut alike")
        return make(D.diagonal_block(), device=D.device, **options)

    _check_ranks(D)
    return RankPreconditioner(D, D.agree(work))


def _check_ranks(D: object) -> None:
    """Raise TypeError if D is no matrix over ranks."""
    if not isinstance(D, SpMatrix):
        raise TypeError(
            f"D is {_check.kind_of(D, library=True)}; a dasp.distributed.SpMatrix "
            "is needed; of a matrix that one process has, use dasp.preconditioners"
        )


@leave_together
def jacobi(D: SpMatrix) -> RankPreconditioner:
    """Return the preconditioner that divides by the diagonal of D; see `dasp.preconditioners.jacobi`."""
    return of_blocks(D, local.jacobi)


@leave_together
def block_jacobi(D: SpMatrix, *, block: int | None = None) -> RankPreconditioner:
    """Return the preconditioner that solves with dense blocks of rows, counted from each rank's first.

    Parameters
    ----------
    D : SpMatrix
        A matrix over ranks.
    block : int, optional
        As for `dasp.preconditioners.block_jacobi`; by default each rank chooses by its own rows.
    """
    return of_blocks(D, local.block_jacobi, block=block)


@leave_together
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
        The ratio of the interval's ends if `bounds` are not given: the upper end is then found by some
        iterations of conjugate gradients with Jacobi's preconditioner, and raised by 12 percent.
    bounds : tuple of float, optional

    Returns
    -------
    RankPreconditioner

    Raises
    ------
    ValueError, RankError
        The same on all ranks: if the degree or the bounds make no polynomial, or D has no usable diagonal.
    """

    def check() -> tuple[int, tuple[float, float] | None]:
        if bounds is None and not ratio > 1:
            raise ValueError(f"ratio is {ratio}; a number above 1 is needed")
        interval = None if bounds is None else _check.interval(bounds)
        return _check.count("degree", degree, most=MOST_STEPS), interval

    _check_ranks(D)
    steps, interval = D.agree(check, lambda two: {"degree": two[0], "bounds": two[1], "ratio": ratio})
    return RankPreconditioner(D, RankPolynomial(D, steps, ratio, interval))


class RankPolynomial(Polynomial):
    """A polynomial in a matrix over ranks, on an interval that is given or else estimated."""

    def __init__(self, D: SpMatrix, degree: int, ratio: float, bounds: tuple[float, float] | None) -> None:
        self._bounds = bounds
        self._ratio = ratio if bounds is None else bounds[1] / bounds[0]
        super().__init__(as_operator(D, D.device), self._ratio, degree, computing_type(D.dtype))
        self._load(self._read(D))

    def _read(self, D: Any) -> tuple[SpMatrix, Vector, float]:
        """Return a matrix, 1 / a_ii of this rank's rows, and the upper end of the interval."""
        inverse = D.agree(lambda: inverse_diagonal(D.diagonal_block().diagonal()))
        if self._bounds is not None:
            return D, inverse, self._bounds[1]
        high = UPPER * estimate_spectrum(D, jacobi(D), self.dtype, self.device)[1]
        return D, inverse, _check.interval((high / self._ratio, high))[1]

    def _load(self, numbers: tuple[SpMatrix, Vector, float]) -> bool:
        """Take a matrix. Return False: programs that were prepared before must be prepared again."""
        D, inverse, high = numbers
        self.operator = as_operator(D, D.device)
        self._load_diagonal(inverse / high)
        return False


class RankMultigrid(Cycle):
    """A cycle whose levels are distributed; those of few rows lie on few ranks.

    Parameters
    ----------
    matrix : SpMatrix
        The finest level, which is used as it is if it has the computing type.
    setup : Setup or None
        The hierarchy, on rank `root`; None on the others.
    """

    def __init__(
        self, matrix: SpMatrix, setup: Setup | None, options: CycleOptions, dtype: np.dtype[Any], root: int
    ) -> None:
        super().__init__(matrix.local_shape[0], dtype, matrix.device, LEVEL_VECTORS)
        self._options, self._root = options, root
        self._load((matrix, setup))

    def _load(self, numbers: tuple[SpMatrix, Setup | None]) -> bool:
        """Cut and plan the matrices of all levels, but not the finest one if it is used as it is."""
        self._made_of = matrix, setup = numbers
        comm, options, root = matrix.comm, self._options, self._root
        of_root = None
        if setup is not None:
            smoothed = enumerate(setup.smoothed)
            of_root = setup.rows, [host_radius(one.A, options, coarse=k > 0) for k, one in smoothed]
        facts = comm.gather(of_root)[root]
        assert facts is not None
        sizes, radii = facts  # the rows of all levels; the spectral radii of those that are smoothed
        starts = [matrix.rows.starts, *(_cut_level(rows, comm.size) for rows in sizes[1:])]

        def scatter(piece: csr_array | None, rows: int, columns: int) -> DeviceOperator:
            """Return the operator of a matrix of the root, cut as the levels of its rows and columns are."""
            return as_operator(plan(piece, rows, columns), self.device)

        def plan(piece: csr_array | None, rows: int, columns: int) -> SpMatrix:
            A = matrix.agree(
                lambda: None if piece is None else cast_matrix(piece, entry_type(piece, self.dtype))
            )
            return SpMatrix.from_scipy(
                A, comm, root=root, rows=starts[rows], columns=starts[columns], device=self.device
            )

        levels, P, R = [], [], []
        for k, radius in enumerate(radii):
            mine = setup and setup.levels[k]
            same = k == 0 and matrix.dtype == entry_type(matrix, self.dtype)
            A = matrix if same else plan(mine and mine.A, k, k)
            block = A.diagonal_block()
            inverse = matrix.agree(partial(self._invert_diagonal, block, block.diagonal(), coarse=k > 0))
            operator, vectors = as_operator(A, self.device), None if k else self.vectors
            levels.append(Level(operator, self.space, options, vectors))
            levels[k].load(inverse, radius)
            if k + 1 < len(sizes):
                P.append(scatter(mine and mine.P, k, k + 1))
                R.append(scatter(mine and mine.R, k + 1, k))
        last, inverse_of_last = len(sizes) - 1, None
        if last == len(radii):
            inverse_of_last = scatter(setup and setup.inverse, last, last)
        self._assemble(levels, P, R, inverse_of_last)
        return False

    def _in_type(self, dtype: np.dtype[Any]) -> RankMultigrid:
        """Return the same cycle, computing in another type."""
        matrix, setup = self._made_of
        return RankMultigrid(matrix, setup, self._options, dtype, self._root)

    def _read(self, D: Any) -> tuple[SpMatrix, Setup | None]:
        """Return D and, on the root, its hierarchy by the P and R of this cycle."""
        whole = collect_rows(D.comm, D.local_rows(), self._root)

        def set_up_again() -> Setup | None:
            mine = self._made_of[1]
            if whole is None or mine is None:
                return None
            return set_up(coarsen(as_csr(whole), mine.transfers))

        return D, D.agree(set_up_again)


RANKS_TOGETHER = RankPolynomial, RankMultigrid
"""Preconditioners whose products and updates send messages; others work on a rank's block by itself."""


def _cut_level(rows: int, ranks: int) -> np.ndarray[Any, Any]:
    """Return where each rank's rows of a coarse level begin: few ranks have rows, so that each has enough."""
    used = max(1, min(ranks, rows // LEAST_ROWS))
    inner = [rows * k // used for k in range(used)]
    return np.array([*inner, *[rows] * (ranks + 1 - used)], np.int64)


@leave_together
def multigrid(
    D: SpMatrix,
    ml: object,
    *,
    smoother: str = "chebyshev",
    cycle: str = "V",
    sweeps: int = 1,
    degree: int = 2,
    dtype: DTypeLike | None = None,
    root: int = 0,
) -> RankPreconditioner:
    """Return a multigrid cycle whose levels are cut by rows; all ranks call it.

    Parameters
    ----------
    D : SpMatrix
        Distributed, square: the matrix of the finest level.
    ml : pyamg.MultilevelSolver or matrix
        As for `dasp.preconditioners.multigrid`, on rank `root`; others do not read it, and may pass None.
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
        The same on all ranks.
    """

    def check() -> tuple[list[Any], CycleOptions, np.dtype[Any] | None]:
        options = check_options(smoother, cycle, sweeps, degree)
        if smoother == "gauss-seidel":
            raise ValueError(f"smoother is {smoother!r}; chebyshev or jacobi is needed on several ranks")
        check_root(D.comm, root)
        if D.comm.rank != root:
            return [], options, None
        levels = levels_of(ml)
        computed = cycle_type(levels, dtype)
        if levels[0].A.shape != D.shape:
            raise ValueError(
                f"the hierarchy is of a matrix of shape {levels[0].A.shape}; D has shape {D.shape}"
            )
        return levels, options, computed

    _check_ranks(D)
    arguments = {"smoother": smoother, "cycle": cycle, "sweeps": sweeps, "degree": degree, "root": root}
    levels, options, mine = D.agree(check, lambda _: {**arguments, "dtype": dtype and np.dtype(dtype).name})
    computed = D.comm.gather(mine)[root]
    assert computed is not None
    setup = D.agree(lambda: set_up(levels) if D.comm.rank == root else None)
    return RankPreconditioner(D, RankMultigrid(D, setup, options, computed, root))
