"""A sparse matrix whose rows lie on several ranks: each rank plans its own, as interior and halo."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import scipy.sparse

from dasp.distributed import partition
from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.exchanges import HaloExchanges
from dasp.distributed.halo import find_pattern
from dasp.distributed.launch import find_communicator, set_timeout
from dasp.distributed.partition import Parts
from dasp.distributed.pieces import Entries, Split, join, plan_piece, read_halo, read_pieces, transpose
from dasp.distributed.space import RanksSpace
from dasp.formats import backends
from dasp.matrix.matrix import SpMatrix as LocalMatrix
from dasp.matrix.policy import Policy
from dasp.runtime.cuda import gpus
from dasp.runtime.types import Array, ArrayLike, Number
from dasp.solvers.arguments import leave_together
from dasp.solvers.space import Space

T = TypeVar("T")

RUN = 4
"""Slices that a warp of the interior's product multiplies one after the other if it leaves dot products.
Measured on two H200s: an iteration of cg on poisson3d:160 takes 84, 84 and 92 us with 1, 4 and 8."""

HIDDEN_SUM_BYTES = 48
"""Bytes of a row that conjugate gradients read and write more, for three vectors, if sums travel beside a
product. An iteration on H200s, with sums that travel and with sums that are waited for: poisson3d:64 on two
takes 17 and 22 us, poisson3d:128 on two 49 and 42, poisson3d:128 on four 27 and 28. Systems that small are
faster on one GPU, where poisson3d:64 takes 8 us and poisson3d:128 62."""


class SpMatrix:
    """A sparse matrix whose rows lie on several ranks, planned for fast products.

    Make one with `from_local_rows`, `from_scipy` or `from_files`, on all ranks at the same time. Each rank
    passes and gets its own part of a vector: `local_shape[1]` elements of x, `local_shape[0]` of y. Every
    method that multiplies or makes a matrix is called on all ranks at the same time, by one thread of each.
    Equal inputs on equally many ranks give equal bits.

    Attributes
    ----------
    shape : tuple of int
        (m, n), of the whole matrix.
    local_shape : tuple of int
        The number of rows that this rank has, and that of elements of x.
    rows, columns : Parts
        Which rank has which rows, and which elements of x.
    dtype : numpy.dtype
    nnz : int
        Stored entries of the whole matrix.
    ndim : int
        2.
    halo_columns : numpy.ndarray of int64
        The columns in which this rank's rows have entries and whose x other ranks hold, in ascending order.
    device : str
        `cpu` or `cuda:N`, of this rank.
    comm : Communicator
    call : context manager
        For work that all ranks do together, as one call: see `Communicator`.
    hidden_sums : bool
        True if `cg` takes the form whose sums travel beside its products. That is the default on GPUs with
        few rows each, where a sum takes longer than this form's three more vectors; see docs/distributed.md.

    Examples
    --------
    On each of the ranks of `mpirun -n 4 python program.py`:

    >>> import dasp, numpy, scipy.sparse
    >>> from mpi4py import MPI  # doctest: +SKIP
    >>> A = scipy.sparse.eye_array(8, format="csr") if MPI.COMM_WORLD.rank == 0 else None  # doctest: +SKIP
    >>> D = dasp.distributed.SpMatrix.from_scipy(A, MPI.COMM_WORLD)  # doctest: +SKIP
    >>> D @ numpy.ones(D.local_shape[1])  # doctest: +SKIP
    array([1., 1.])
    """

    __array_ufunc__ = None
    __array_priority__ = 110.0
    ndim = 2

    def __init__(
        self,
        comm: Communicator,
        parts: tuple[Parts, Parts],
        pieces: Split,
        policy: Policy | None,
        device: str,
    ) -> None:
        """Plan the pieces of this rank; all ranks call this, by `from_local_rows` as a rule."""
        self.comm, self.call, self.device, self._policy = comm, comm.call, device, policy
        if device != "cpu":
            gpus.use(device)
        self.rows, self.columns = parts
        self._own, self.halo_columns = pieces.own, pieces.columns
        self._pattern = find_pattern(comm, self.columns, pieces.rows, self.halo_columns)

        def plan() -> tuple[LocalMatrix, LocalMatrix]:
            return plan_piece(pieces.interior, policy, device), plan_piece(pieces.halo, policy, device)

        self.interior, self.halo = agree(comm, plan, lambda two: {"dtype": two[0].dtype.name})
        self._backend = backends.find(device)
        mine = self.interior.nnz + self.halo.nnz, self._backend.cost_model.launch_bytes
        counts, launch_bytes = zip(*comm.gather(mine), strict=True)
        self.nnz = sum(counts)
        vector_bytes = HIDDEN_SUM_BYTES * self.shape[0] / comm.size
        self.hidden_sums = device != "cpu" and vector_bytes <= min(launch_bytes)
        self._exchanges = self._make_exchanges()
        self._transposes: dict[str, Self] = {}

    def _make_exchanges(self) -> HaloExchanges:
        return HaloExchanges(self.comm, self.device, self._pattern, self.local_shape, self.dtype)

    def _warn_if_small(self) -> None:
        """Warn on rank 0 if sums are hidden: one GPU alone is faster for systems so small."""
        if self.hidden_sums and self.comm.size > 1 and self.comm.rank == 0:
            warnings.warn(
                f"A has {self.shape[0]:,} rows on {self.comm.size} GPUs; one alone is faster for so few",
                stacklevel=4,
            )

    @classmethod
    def from_local_rows(
        cls,
        local: object,
        comm: object,
        *,
        columns: int | None = None,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Return a planned matrix of the rows that each rank passes.

        Parameters
        ----------
        local : scipy.sparse or cupyx.scipy.sparse matrix, shape (rows of this rank, n)
            Consecutive rows: rank 0 has the first, a rank may have none. Columns are numbered globally.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        columns : int, optional
            The number of elements of x that this rank holds; by default that of its rows if the matrix is
            square, else nearly the same on all ranks.
        policy : Policy, optional
        device : {"auto", "cpu", "cuda", "cuda:N"}
            `auto` and `cuda` take the GPU that holds `local`, else the one whose number is the rank's among
            the ranks of its machine. A rank's GPU becomes CuPy's current device.
        timeout : float, optional
            Seconds that a rank waits for another from now on; by default as before, at first 600 or the value
            of the environment variable DASP_RANK_TIMEOUT. A group of torch.distributed has its own timeout.

        Raises
        ------
        TypeError, ValueError, RankError
            The same on all ranks: if one of them passes a wrong argument, or the rows do not fit together.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            return cls._from_rows(local, comm, columns, policy, device)

    @classmethod
    def _from_rows(
        cls, local: object, comm: Communicator, columns: int | None, policy: Policy | None, device: str
    ) -> Self:
        parts, pieces, place = read_pieces(comm, local, columns, device)
        D = cls(comm, parts, pieces, policy, place)
        D._warn_if_small()
        return D

    @classmethod
    def from_scipy(
        cls,
        A: object,
        comm: object,
        *,
        root: int = 0,
        rows: ArrayLike | None = None,
        columns: ArrayLike | None = None,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Return a planned matrix, whose rows one rank cuts so that entries are balanced, and sends.

        Parameters
        ----------
        A : scipy.sparse or cupyx.scipy.sparse matrix, shape (m, n)
            On rank `root`; the others do not read it, and may pass None.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        root : int
        rows, columns : array_like of int, shape (ranks + 1,), optional
            Where each rank's rows, and elements of x, begin, and where the last ones end; read on `root`. By
            default entries are balanced, and elements of x are cut as by `from_local_rows`.
        policy, device, timeout
            As for `from_local_rows`.

        Raises
        ------
        TypeError, ValueError, RankError
            The same on all ranks.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            local, count = partition.scatter(comm, A, root, rows, columns)
            return cls._from_rows(local, comm, count, policy, device)

    @classmethod
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        comm: object,
        *,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Return a planned matrix, whose rows `dasp partition` cut for this number of ranks.

        Parameters
        ----------
        folder : path
            Holds a file for each rank; see `dasp.distributed.write_parts`.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        policy, device, timeout
            As for `from_local_rows`.

        Raises
        ------
        MatrixFileError
            The same on all ranks: if a file is missing or damaged, or the partition has more or fewer ranks.
        ValueError
            The same on all ranks: if their folders hold parts of different matrices.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            local, _ = agree(
                comm,
                lambda: partition.read_part(folder, comm.rank, comm.size),
                lambda two: {"digests of the parts": two[1]},
            )
            return cls._from_rows(local, comm, None, policy, device)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), of the whole matrix."""
        return self.rows.total, self.columns.total

    @property
    def local_shape(self) -> tuple[int, int]:
        """The number of rows that this rank has, and that of elements of x."""
        return self.rows.count, self.columns.count

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the entries."""
        return self.interior.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's plans."""
        return self.interior.nbytes + self.halo.nbytes

    @property
    def neighbours(self) -> dict[int, tuple[int, int]]:
        """For each neighbour, how many elements of x a product sends to it and receives from it."""
        sent = {rank: end - first for rank, first, end in self._pattern.sends}
        received = {rank: end - first for rank, first, end in self._pattern.receives}
        return {rank: (sent.get(rank, 0), received.get(rank, 0)) for rank in sorted({*sent, *received})}

    @leave_together
    def matvec(
        self, x: ArrayLike, *, out: Array | None = None, alpha: Number = 1.0, beta: Number = 0.0
    ) -> Array:
        """Return this rank's part of alpha A x + beta out; all ranks call it.

        Parameters
        ----------
        x : array, shape (n of this rank,), (n of this rank, 1) or (n of this rank, k)
            This rank's part: NumPy (or a list) on the CPU, CuPy on a GPU.
        out : array, optional
            Has the shape and type of the result, and does not overlap `x`. Not read if `beta` is 0.
        alpha, beta : float

        Returns
        -------
        array, shape (m of this rank,), (m of this rank, 1) or (m of this rank, k)

        Raises
        ------
        TypeError, ValueError
            For a wrong argument, on this rank and on those that wait for it; on all ranks in the first
            product with this type and number of columns. The next product is right again.
        RankError
            If another rank does not answer, or failed otherwise.

        Notes
        -----
        For each row of n entries |error| <= gamma(n + 3) sum_j |alpha a_ij x_j| + 3 u |beta out_i| up to
        order u^2: the sums over interior and halo columns are rounded separately, then added.
        """
        exchange, x = self._exchanges.find(x, out, beta)
        exchange.start(x)
        y = self.interior.matvec(x, out=out, alpha=alpha, beta=beta)
        exchange.finish(self.halo, alpha, y)
        return y

    def prepare_with_dot(
        self, x: Array, out: Array, w: Array, *, square: bool = False
    ) -> tuple[Callable[[], None], Array] | None:
        """Prepare a product that leaves dot products of its result; all ranks call it.

        Return a function that sets `out` to A x and writes partial sums, and the array of these sums. They
        add up, over all ranks, to w'out; with `square` the first half does, and the second adds up to
        out'out. Return None on all ranks if the interior's product leaves no sums on one of them.
        """
        if self.device == "cpu":
            return None
        from dasp.distributed.halo_cuda import CudaHaloExchange

        exchange = self._exchanges.find(x, out, 0.0)[0]
        assert isinstance(exchange, CudaHaloExchange)
        prepare = getattr(self.interior.__dasp_product__, "prepare_with_dot", None)
        own = None if prepare is None else prepare(x, out, w, square=square, run=RUN)
        if not all(self.comm.gather(own is not None)) or own is None:
            return None
        multiply, left = own
        add, sums = exchange.prepare_add_with_dot(out, w, left, square=square)

        def call() -> None:
            exchange.start(x)
            multiply()
            exchange.multiply(self.halo, 1.0)
            add()

        return call, sums

    def dot(self, x: ArrayLike, out: Array | None = None) -> Array:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: ArrayLike) -> Array:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x)

    @leave_together
    def halo_values(self, x: ArrayLike) -> Array:
        """Return the elements of x that this rank's rows need and other ranks hold; all ranks call it.

        Parameters
        ----------
        x : array, shape (n of this rank,) or (n of this rank, k)

        Returns
        -------
        array, shape (len(halo_columns),) or (len(halo_columns), k)
            Element i is that of column `halo_columns[i]`. Overwritten by the next product.

        Raises
        ------
        TypeError, ValueError, RankError
            As `matvec` does.
        """
        exchange, x = self._exchanges.find(x, None, 0.0)
        exchange.start(x)
        exchange.arrive()
        return exchange.received

    def agree(self, work: Callable[[], T], alike: Callable[[T], dict[str, Any]] | None = None) -> T:
        """Do some work on every rank; return its result, or raise the error of one rank on all."""
        return agree(self.comm, work, alike)

    def solver_space(self, dtype: np.dtype[Any]) -> Space:
        """Return the space in which solvers add and measure vectors: dot products are summed over ranks."""
        if self.device == "cpu":
            return RanksSpace(self.comm, dtype)
        from dasp.distributed.space_cuda import make_space

        return make_space(self.comm, self.device, dtype)

    @leave_together
    def with_values(self, data: ArrayLike) -> Self:
        """Return the matrix with the same pattern and other values; all ranks call it.

        Parameters
        ----------
        data : array_like, shape (entries of this rank,)
            A value for each entry of this rank's rows, row by row, and in each row in the order in which its
            entries were passed.

        Raises
        ------
        TypeError, ValueError
            The same on all ranks.
        """

        def work() -> tuple[LocalMatrix, LocalMatrix]:
            if self._own is None:
                raise TypeError("a transpose over ranks takes no values; take D.with_values(data).T")
            values = self._backend.as_values(data)
            if values.shape != self._own.shape:
                raise ValueError(
                    f"data has {len(values)} values; this rank has {len(self._own)} entries; "
                    "as many are needed"
                )
            return self.interior.with_values(values[self._own]), self.halo.with_values(values[~self._own])

        plans = agree(self.comm, work, lambda two: {"dtype of data": two[0].dtype.name})
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        (other.interior, other.halo), other._transposes = plans, {}
        if other.dtype != self.dtype:
            other._exchanges = other._make_exchanges()
        return other

    @property
    def T(self) -> Self:
        """The transpose, a matrix over ranks that is cut as this one's columns are; all ranks ask for it.

        It is planned on first use, for which each rank sends the entries of its halo to the ranks that have
        their columns, and kept. It takes no new values: `D.with_values(data).T` is the transpose with these.

        Raises
        ------
        RankError
            On all ranks, if there is not enough memory for another plan on one of them.
        """
        return self._find_transpose("T")

    @property
    def H(self) -> Self:
        """The conjugate transpose, made as `T` is; for a real matrix, `T` itself."""
        return self._find_transpose("H" if self.dtype.kind == "c" else "T")

    def __rmatmul__(self, x: ArrayLike) -> Array:
        """Return this rank's part of x A, where x is cut as the rows are; all ranks call it."""
        return (self.T @ x.T).T if hasattr(x, "T") else self.T @ x

    def _find_transpose(self, way: str) -> Self:
        if way not in self._transposes:
            with self.call:
                self._transposes[way] = self._make_transpose(way)
        return self._transposes[way]

    def _make_transpose(self, way: str) -> Self:
        """Exchange the entries of halos and plan those that come, beside the transpose of the interior."""

        def read() -> tuple[LocalMatrix, Entries]:
            rows, columns, data = read_halo(self.halo, self._pattern.rows, self.halo_columns)
            values = data.astype(self.dtype)  # halves come as float32
            conjugate = values.conj() if way == "H" else values
            return getattr(self.interior, way), (rows + self.rows.first, columns, conjugate)

        pieces = transpose(self.comm, self.columns, *self.agree(read))
        return type(self)(self.comm, (self.columns, self.rows), pieces, self._policy, self.device)

    def has_new_values(self, other: SpMatrix) -> bool:
        """Return True if the two differ by values alone: `with_values` made one from the other."""
        return self is not other and self._pattern is other._pattern

    def local_rows(self) -> scipy.sparse.csr_array:
        """Return this rank's rows as a new CSR array on the host, columns numbered globally.

        Columns are sorted in each row. That is the order of `with_values` too, if they were passed so.
        """
        halo = read_halo(self.halo, self._pattern.rows, self.halo_columns)
        return join(self.interior, halo, self.columns)

    def diagonal_block(self) -> scipy.sparse.csr_array:
        """Return the block on the diagonal, of this rank's rows and columns, as a new CSR array."""
        return self.interior.to_scipy()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError, which says where an attribute of SciPy's matrices is found instead."""
        remedy = ""
        if not name.startswith("_") and hasattr(scipy.sparse.csr_array, name):
            remedy = f"; D.local_rows().{name} is that of this rank's rows"
        message = f"a matrix over ranks has no attribute {name!r}{remedy}"
        raise AttributeError(message, name=name, obj=self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise a TypeError: a communicator cannot be pickled or copied."""
        raise TypeError(
            "a matrix over ranks cannot be pickled: it holds a communicator; pickle D.local_rows() on each "
            "rank, and make the matrix again with from_local_rows"
        )

    def __repr__(self) -> str:
        """Return the size of the whole matrix, and this rank's share."""
        m, n = self.shape
        sent = sum(one[0] for one in self.neighbours.values())
        received = sum(one[1] for one in self.neighbours.values())
        return (
            f"<distributed SpMatrix {m} x {n}, {self.nnz} entries, {self.dtype}, on {self.comm.size} "
            f"ranks; rank {self.comm.rank}, on {self.device}: rows {self.rows.first} to "
            f"{self.rows.first + self.rows.count}, {self.interior.nnz} entries in its columns and "
            f"{self.halo.nnz} in {received} of others; sends {sent} numbers, "
            f"{len(self.neighbours)} neighbours>"
        )
