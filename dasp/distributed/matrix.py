"""A sparse matrix whose rows lie on several ranks: each plans its own, as interior and halo."""

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
from dasp.distributed.launch import find_communicator, find_rank_device, set_timeout
from dasp.distributed.partition import Parts, Split, find_parts, read_rows, split
from dasp.formats import devices
from dasp.formats.csr.matrix import Csr
from dasp.matrix.matrix import SpMatrix as LocalMatrix
from dasp.matrix.planning import Request, pack
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime.cuda import gpus
from dasp.runtime.process import load
from dasp.runtime.types import Array, ArrayLike, Number, Vector
from dasp.solvers.arguments import leave_together
from dasp.solvers.space import Space

T = TypeVar("T")

SPACES = {"cpu": "dasp.distributed.space", "cuda": "dasp.distributed.space_cuda"}
"""The module that makes the space of a kind of device."""

RUN = 4
"""Slices that a warp of the interior's product takes one after the other where it leaves dot products.
Measured on two H200s: an iteration of cg on poisson3d:160 takes 84, 84 and 92 us with 1, 4 and 8."""

HIDDEN_SUM_BYTES = 48
"""Bytes of a row of the three vectors, each read and written, that conjugate gradients need more where their
sums travel beside a product. An iteration on H200s, with sums that travel and with sums that are waited for:
poisson3d:64 on two takes 17 and 22 us, poisson3d:128 on two 49 and 42, poisson3d:128 on four 27 and 28.
Systems that small are faster on one GPU, where poisson3d:64 takes 8 us and poisson3d:128 62."""


class SpMatrix:
    """A sparse matrix whose rows lie on several ranks, planned for fast products.

    Make one with `from_local_rows`, `from_scipy` or `from_files`, on all ranks at the same time. A vector is
    each rank's own part of it: `x` of `local_shape[1]` numbers, `y` of `local_shape[0]`. Every method that
    multiplies or makes a matrix is called on all ranks at the same time, by one thread of each. Equal inputs
    on equally many ranks give equal bits.

    Attributes
    ----------
    shape : tuple of int
        (m, n), of the whole matrix.
    local_shape : tuple of int
        The rows that this rank has, and the elements of x.
    rows, columns : Parts
        Which rank has which rows of y, and which elements of x.
    dtype : numpy.dtype
    nnz : int
        Stored entries of the whole matrix.
    ndim : int
        2.
    halo_columns : numpy.ndarray of int64
        The columns, rising, in which this rank's rows have entries and whose x other ranks hold.
    device : str
        `cpu` or `cuda:N`, of this rank.
    comm : Communicator
    call : context manager
        For work that all ranks do together, as one call: see `Communicator`.
    hidden_sums : bool
        True if `cg` takes the form whose sums travel beside its products, as it does by default on GPUs that
        have few rows each, where a sum takes longer than the three vectors more; see docs/distributed.md.

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
        """Plan the pieces of a rank; `from_local_rows` is the usual way, and all ranks call it."""
        self.comm, self.call, self.device, self._policy = comm, comm.call, device, policy
        if device != "cpu":
            gpus.use(device)
        self.rows, self.columns = parts
        self._own, self.halo_columns = pieces.own, pieces.columns
        self._pattern = find_pattern(comm, self.columns, pieces.rows, self.halo_columns)

        def plan() -> tuple[LocalMatrix, LocalMatrix]:
            return _plan(pieces.interior, policy, device), _plan(pieces.halo, policy, device)

        self.interior, self.halo = agree(comm, plan, lambda two: {"dtype": two[0].dtype.name})
        self._backend = devices.find(device)
        mine = self.interior.nnz + self.halo.nnz, self._backend.find_cost_model(device).launch_bytes
        counts, launch_bytes = zip(*comm.gather(mine), strict=True)
        self.nnz = sum(counts)
        vector_bytes = HIDDEN_SUM_BYTES * self.shape[0] / comm.size
        self.hidden_sums = device != "cpu" and vector_bytes <= min(launch_bytes)
        self._exchanges = self._make_exchanges()
        self._transposes: dict[str, Self] = {}

    def _make_exchanges(self) -> HaloExchanges:
        return HaloExchanges(self.comm, self.device, self._pattern, self.local_shape, self.dtype)

    def _warn_if_small(self) -> None:
        """Say on rank 0 that one GPU would be faster, as for all systems so small that sums are hidden."""
        if self.hidden_sums and self.comm.size > 1 and self.comm.rank == 0:
            warnings.warn(
                f"A has {self.shape[0]:,} rows on {self.comm.size} GPUs; one alone is faster for so few",
                stacklevel=4,
            )

    @classmethod
    def from_local_rows(
        cls,
        local: Any,
        comm: Any,
        *,
        columns: int | None = None,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Plan a matrix of which each rank brings its rows.

        Parameters
        ----------
        local : scipy.sparse or cupyx.scipy.sparse matrix, shape (rows of this rank, n)
            Consecutive rows: rank 0 has the first ones, a rank may have none. Columns are numbered globally.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        columns : int, optional
            The elements of x that this rank holds; by default as many as rows where the matrix is square,
            else nearly the same number on all ranks.
        policy : Policy, optional
        device : {"auto", "cpu", "cuda", "cuda:N"}
            `auto` and `cuda` take the GPU that holds `local`, else that of the rank's number among those of
            its machine. A rank's GPU becomes CuPy's current device.
        timeout : float, optional
            Seconds that a rank waits for another from now on: at first 600, or the value of the environment
            variable DASP_RANK_TIMEOUT. A group of torch.distributed waits as long as it was made to.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RankError
            On all ranks the same: if one is given something that is no matrix, or they do not fit together.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            return cls._from_rows(local, comm, columns, policy, device)

    @classmethod
    def _from_rows(
        cls, local: Any, comm: Communicator, columns: int | None, policy: Policy | None, device: str
    ) -> Self:
        def read() -> tuple[str, Csr]:
            if columns is not None and (
                isinstance(columns, bool) or not isinstance(columns, (int, np.integer))
            ):
                raise TypeError(f"columns is {columns!r}; an int is needed")
            place = find_rank_device(comm, device, local)
            return place, read_rows(local, place)

        place, mine = agree(
            comm, read, lambda two: {"kind of device": two[0][:3], "columns of A": two[1].shape[1]}
        )
        counts = comm.gather((mine.shape[0], columns))

        def cut() -> tuple[tuple[Parts, Parts], Split]:
            parts = find_parts(counts, mine.shape[1], comm.rank)
            return parts, split(mine, parts[1])

        parts, pieces = agree(comm, cut)
        D = cls(comm, parts, pieces, policy, place)
        D._warn_if_small()
        return D

    @classmethod
    def from_scipy(
        cls,
        A: Any,
        comm: Any,
        *,
        root: int = 0,
        rows: Any = None,
        columns: Any = None,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Plan a matrix that one rank holds: rows are cut so that entries are balanced, and sent.

        Parameters
        ----------
        A : scipy.sparse matrix, shape (m, n)
            On rank `root`; on the others it is not looked at, and may be None.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        root : int
        rows, columns : array_like of int, shape (ranks + 1,), optional
            Where each rank's rows, and elements of x, begin; the same on all ranks. By default entries are
            balanced, and elements of x as `from_local_rows` has them.
        policy, device, timeout
            As for `from_local_rows`.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RankError
            On all ranks the same.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            local = partition.scatter(comm, A, root, rows)

            def count_columns() -> int | None:
                if columns is None:
                    return None
                starts = partition.check_starts("columns", columns, comm.size, local.shape[1])
                return int(starts[comm.rank + 1] - starts[comm.rank])

            return cls._from_rows(local, comm, agree(comm, count_columns), policy, device)

    @classmethod
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        comm: Any,
        *,
        policy: Policy | None = None,
        device: str = "auto",
        timeout: float | None = None,
    ) -> Self:
        """Plan a matrix that `dasp partition` cut for as many ranks.

        Parameters
        ----------
        folder : path
            With a file for each rank; see `dasp.distributed.write_parts`.
        comm : mpi4py.MPI.Comm, torch.distributed.ProcessGroup
        policy, device, timeout
            As for `from_local_rows`.

        Returns
        -------
        SpMatrix

        Raises
        ------
        MatrixFileError
            On all ranks the same: if a file is missing, damaged, or the partition is for other ranks.
        """
        comm = find_communicator(comm)
        with comm.call:
            set_timeout(comm, timeout)
            local = agree(comm, lambda: partition.read_part(folder, comm.rank, comm.size))
            return cls._from_rows(local, comm, None, policy, device)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), of the whole."""
        return self.rows.total, self.columns.total

    @property
    def local_shape(self) -> tuple[int, int]:
        """The elements of y that this rank has, and those of x."""
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
        """For each rank that this one exchanges values with: the numbers sent, and received, in a product."""
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
            Of this rank's product's shape and type, not overlapping `x`. Not read if `beta` is 0.
        alpha, beta : float

        Returns
        -------
        array, shape (m of this rank,), (m of this rank, 1) or (m of this rank, k)

        Raises
        ------
        TypeError, ValueError
            For a wrong argument, on this rank and on those that wait for it; in the first product of a type
            and number of columns on all ranks. The next product is right again.
        RankError
            If another rank does not answer, or failed otherwise.

        Notes
        -----
        For each row of n entries |error| <= gamma(n + 3) sum_j |alpha a_ij x_j| + 3 u |beta out_i| up to
        order u^2: the sums over interior and halo columns are rounded apart, and added.
        """
        exchange, x = self._exchanges.find(x, out, beta)
        exchange.start(x)
        y = self.interior.matvec(x, out=out, alpha=alpha, beta=beta)
        exchange.multiply(self.halo, alpha)
        exchange.add(y)
        return y

    def prepare_with_dot(
        self, x: Array, out: Array, w: Array, *, square: bool = False
    ) -> tuple[Callable[[], None], Array] | None:
        """Prepare a product that leaves dot products of its result; all ranks call it.

        Return a function that sets `out` to A x and writes sums, and the array of the sums: their total over
        the ranks is w'out, with `square` that of the first half, and out'out that of the other. Return None,
        on all ranks, where the interior's product leaves no sums on one of them.
        """
        if self.device == "cpu":
            return None
        from dasp.distributed.halo_cuda import DeviceHalo

        exchange = self._exchanges.find(x, out, 0.0)[0]
        assert isinstance(exchange, DeviceHalo)
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
        """Return the elements of x, of other ranks, that this rank's rows need; all ranks call it.

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
        module = load(SPACES[self.device.partition(":")[0]])
        space: Space = module.make_space(self.comm, self.device, dtype)
        return space

    @leave_together
    def with_values(self, data: ArrayLike) -> Self:
        """Return the matrix with the same pattern and other values; all ranks call it.

        Parameters
        ----------
        data : array_like, shape (entries of this rank,)
            A value for each entry of this rank's rows, row by row, and in a row in the order in which they
            came.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError
            On all ranks the same.
        """

        def work() -> tuple[LocalMatrix, LocalMatrix]:
            if self._own is None:
                raise TypeError("a transpose over ranks takes no values; take D.with_values(data).T")
            values = self._backend.as_values(data, self.device)
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

        Planned on first use and kept. Each rank then sends the entries of its halo to the ranks that have
        their columns. It takes no other values: `D.with_values(data).T` is the transpose with these.

        Raises
        ------
        RankError
            On all ranks, if there is not enough memory for another plan on one of them.
        """
        return self._find_transpose("T")

    @property
    def H(self) -> Self:
        """The conjugate transpose, made as `T` is; of a real matrix its transpose."""
        return self._find_transpose("H" if self.dtype.kind == "c" else "T")

    def __rmatmul__(self, x: ArrayLike) -> Array:
        """Return this rank's part of x A, whose x is cut as the rows are; all ranks call it."""
        rows: Any = x
        return (self.T @ rows.T).T if hasattr(x, "T") else self.T @ x

    def _find_transpose(self, way: str) -> Self:
        if way not in self._transposes:
            with self.call:
                self._transposes[way] = self._make_transpose(way)
        return self._transposes[way]

    def _make_transpose(self, way: str) -> Self:
        """Exchange the entries of halos, and plan those that come; the interior has its own transpose."""

        def read() -> tuple[LocalMatrix, tuple[Vector, Vector, Vector]]:
            halo = self.halo.to_scipy().tocoo()  # halves as float32
            rows = _arrays.to_host(self._pattern.rows)[halo.coords[0]] + self.rows.first
            data = halo.data.astype(self.dtype)
            values = data.conj() if way == "H" else data
            return getattr(self.interior, way), (self.halo_columns[halo.coords[1]], rows, values)

        interior, entries = self.agree(read)
        (columns, rows, data), _, _ = partition.send_to_owners(self.comm, self.columns, entries[0], entries)

        def sort() -> Split:
            numbers, row = np.unique(columns - self.columns.first, return_inverse=True)
            needed, column = np.unique(rows, return_inverse=True)
            halo = partition.sort_by_rows((len(numbers), len(needed)), row, column, data)
            return Split(interior, halo, numbers, needed, None)

        parts = self.columns, self.rows
        return type(self)(self.comm, parts, self.agree(sort), self._policy, self.device)

    def has_new_values(self, other: SpMatrix) -> bool:
        """Return True if this is another matrix by its values alone: `with_values` made one of the other."""
        return self is not other and self._pattern is other._pattern

    def local_rows(self) -> scipy.sparse.csr_array:
        """Return this rank's rows as a new CSR array on the host, columns numbered globally.

        Columns are sorted in each row. That is the order of `with_values` too, if they came so.
        """
        own, halo = self.interior.to_scipy().tocoo(), self.halo.to_scipy().tocoo()
        rows = np.concatenate([own.coords[0], _arrays.to_host(self._pattern.rows)[halo.coords[0]]])
        columns = np.concatenate(
            [own.coords[1].astype(np.int64) + self.columns.first, self.halo_columns[halo.coords[1]]]
        )
        data = np.concatenate([own.data, halo.data])
        order = np.lexsort((columns, rows))
        indptr = np.searchsorted(rows[order], np.arange(self.rows.count + 1))
        shape = (self.rows.count, self.shape[1])
        return scipy.sparse.csr_array((data[order], columns[order], indptr), shape=shape)

    def diagonal_block(self) -> scipy.sparse.csr_array:
        """Return this rank's rows and columns, the block on the diagonal, as a new CSR array on the host."""
        return self.interior.to_scipy()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError, which says where an attribute of SciPy's matrices is found instead."""
        remedy = ""
        if not name.startswith("_") and hasattr(scipy.sparse.csr_array, name):
            remedy = f"; D.local_rows().{name} is that of this rank's rows"
        message = f"a matrix over ranks has no attribute {name!r}{remedy}"
        raise AttributeError(message, name=name, obj=self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(
            "a matrix over ranks cannot be pickled: it holds a communicator; pickle D.local_rows() on each "
            "rank, and make the matrix again with from_local_rows"
        )

    def __repr__(self) -> str:
        """Return the whole's size, and this rank's share."""
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


def _plan(piece: Csr | LocalMatrix, policy: Policy | None, device: str) -> LocalMatrix:
    """Plan a piece where its arrays lie, if it can be packed there; one that is planned stays."""
    if isinstance(piece, LocalMatrix):
        return piece
    request = Request.make(device, policy)
    if _arrays.is_cupy(piece.data) and len(piece.data) and request.packing_device(piece.shape) == device:
        return LocalMatrix(pack(piece, None, request), device=device)
    arrays = tuple(map(_arrays.to_host, (piece.data, piece.indices, piece.indptr)))
    matrix = scipy.sparse.csr_array(arrays, shape=piece.shape)
    return LocalMatrix.from_scipy(matrix, policy=policy, device=device)


def collect_rows(D: SpMatrix, root: int = 0) -> scipy.sparse.csr_array | None:
    """Return on one rank the whole of a matrix over ranks, elsewhere None; all ranks call this."""
    comm, rows = D.comm, D.local_rows()
    entries = Parts(np.cumsum([0, *comm.gather(rows.nnz)]), comm.rank)
    lengths = partition.collect(comm, np.diff(rows.indptr).astype(np.int64), D.rows, root)
    indices = partition.collect(comm, rows.indices.astype(np.int64), entries, root)
    data = partition.collect(comm, rows.data, entries, root)
    if lengths is None or indices is None or data is None:
        return None
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return scipy.sparse.csr_array((data, indices, indptr), shape=D.shape)
