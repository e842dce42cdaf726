"""A sparse matrix whose rows lie on several ranks."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Self

import numpy as np
import scipy.sparse

from dasp.distributed import partition
from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.halo import HaloExchange, HostHalo, HostTransposedHalo, find_pattern
from dasp.distributed.launch import find_communicator, find_rank_device
from dasp.distributed.split import Csr, Parts, Split, find_parts, read_rows, split
from dasp.distributed.transport import find_transport
from dasp.distributed.transpose import Adjoint, Transposed
from dasp.formats import devices
from dasp.formats.csr.matrix import Csr as WholeCsr
from dasp.matrix.matrix import SpMatrix as LocalMatrix
from dasp.matrix.planning import Request, pack
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes

SPACES = {"cpu": "dasp.distributed.space", "cuda": "dasp.distributed.space_cuda"}
"""The module that makes the space of a kind of device."""

SMALL_ROWS = 500_000
"""Rows of a GPU below which an iteration of cg on two takes longer than on one. Measured on two H200s:
poisson3d:64 takes 17 us on two and 8 us on one, poisson3d:128 42 and 62, poisson3d:200 127 and 227."""

RUN = 4
"""Slices that a warp of the interior's product takes one after the other where it leaves dot products.
Measured on two H200s: an iteration of cg on poisson3d:160 takes 84, 84 and 92 us with 1, 4 and 8."""

HIDDEN_SUMS_ROWS = {"cpu": 0, "cuda": 500_000}
"""Rows of a rank up to which a sum that travels beside a product is worth three vectors more, without a
preconditioner. Measured on H200s: so, and with a sum that is waited for, on two poisson3d:64 takes 17 and
22 us, poisson3d:128 49 and 42, on four poisson3d:128 27 and 28. A sum on CPUs is always waited for."""


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
        """Plan what a rank has; `from_local_rows` is the usual way."""
        self.comm, self.device = comm, device
        if device != "cpu":
            devices.find(device).use(device)
        self.rows, self.columns = parts
        needed = pieces.columns
        self._pattern = find_pattern(comm, self.columns, needed)
        self._own, self._halo_rows, self.halo_columns = pieces.own, pieces.rows, needed

        def plan() -> tuple[LocalMatrix, LocalMatrix]:
            halo_shape = len(pieces.rows), len(needed)
            return (
                _plan(pieces.interior, self.local_shape, policy, device),
                _plan(pieces.halo, halo_shape, policy, device),
            )

        self.interior, self.halo = agree(comm, plan, lambda two: {"dtype": two[0].dtype.name})
        self.nnz = sum(comm.gather(self.interior.nnz + self.halo.nnz))
        self._warn_if_small()
        self._backend = devices.find(device)
        self._exchanges: dict[tuple[object, ...], HaloExchange] = {}
        self._transposed: Transposed | None = None
        self._array: type | None = None
        self._hidden_sums: bool | None = None

    def _warn_if_small(self) -> None:
        """Say once, on rank 0, that one GPU would be faster."""
        small = self.shape[0] < SMALL_ROWS * self.comm.size and self.device != "cpu"
        if small and self.comm.size > 1 and self.comm.rank == 0:
            warnings.warn(
                f"A has {self.shape[0]:,} rows on {self.comm.size} GPUs; below about {SMALL_ROWS:,} rows "
                "a GPU one alone is faster",
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
            See `find_communicator`.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError, RankError
            On all ranks the same: if one is given something that is no matrix, or they do not fit together.
        """
        comm = find_communicator(comm, timeout=timeout)
        with comm.call:
            return cls._from_rows(local, comm, columns, policy, device)

    @classmethod
    def _from_rows(
        cls, local: Any, comm: Communicator, columns: int | None, policy: Policy | None, device: str
    ) -> Self:
        place = agree(
            comm, lambda: find_rank_device(comm, device, local), lambda name: {"kind of device": name[:3]}
        )

        def read() -> tuple[Csr, int]:
            if columns is not None and (
                isinstance(columns, bool) or not isinstance(columns, (int, np.integer))
            ):
                raise TypeError(f"columns is {columns!r}; an int is needed")
            return read_rows(local, place), int(local.shape[1])

        arrays, n = agree(comm, read, lambda result: {"columns of A": result[1]})
        counts = comm.gather((len(arrays.indptr) - 1, columns))
        parts = agree(comm, lambda: find_parts(counts, n, comm.rank))
        pieces = agree(comm, lambda: split(arrays, parts[1]))
        return cls(comm, parts, pieces, policy, place)

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
        comm = find_communicator(comm, timeout=timeout)
        with comm.call:
            local = partition.scatter(comm, A, root, rows)

            def count_columns() -> int | None:
                if columns is None:
                    return None
                starts = partition.starts_from("columns", columns, comm.size, local.shape[1])
                return int(starts[comm.rank + 1] - starts[comm.rank])

            return cls._from_rows(local, comm, agree(comm, count_columns), policy, device)

    @classmethod
    def from_files(
        cls,
        folder: Any,
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
        comm = find_communicator(comm, timeout=timeout)
        with comm.call:
            local = agree(
                comm,
                lambda: partition.read_part(folder, comm.rank, comm.size),
                lambda part: {"partition": part.mark},
            )
            return cls._from_rows(local.rows, comm, None, policy, device)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), of the whole matrix."""
        return self.rows.total, self.columns.total

    @property
    def local_shape(self) -> tuple[int, int]:
        """The rows that this rank has, and the elements of x."""
        return self.rows.count, self.columns.count

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the entries."""
        dtype: np.dtype[Any] = self.interior.dtype
        return dtype

    @property
    def hidden_sums(self) -> bool:
        """True if `cg` makes one sum an iteration, beside the product, where there is no preconditioner.

        By itself it does on GPUs for up to so many rows a rank (`HIDDEN_SUMS_ROWS`): that form (Ghysels and
        Vanroose) carries three vectors more. Set it, on all ranks alike, to have it so or not.
        """
        if self._hidden_sums is not None:
            return self._hidden_sums
        return self.shape[0] <= HIDDEN_SUMS_ROWS[self.device.partition(":")[0]] * self.comm.size

    @hidden_sums.setter
    def hidden_sums(self, wanted: bool | None) -> None:
        self._hidden_sums = wanted

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's plans."""
        return int(self.interior.nbytes + self.halo.nbytes)

    @property
    def neighbours(self) -> dict[int, tuple[int, int]]:
        """For each rank that this one exchanges values with: the numbers sent, and received, in a product."""
        sent = {rank: end - first for rank, first, end in self._pattern.sends}
        received = {rank: end - first for rank, first, end in self._pattern.receives}
        return {rank: (sent.get(rank, 0), received.get(rank, 0)) for rank in sorted({*sent, *received})}

    def matvec(self, x: Any, *, out: Any = None, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
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
        return self.multiply(x, out, alpha, beta)

    def multiply(self, x: Any, out: Any, alpha: Any, beta: Any, way: str = "") -> Any:
        """Return this rank's part of alpha A x + beta out, or of its transpose (way `T` or `H`).

        `matvec` of A, A.T and A.H is the usual way.
        """
        with self.comm.call:
            return self._multiply(x, out, alpha, beta, way)

    def _multiply(self, x: Any, out: Any, alpha: Any, beta: Any, way: str) -> Any:
        exchange = self._exchanges.get((way, *_key(x)))
        if exchange is None:
            exchange, x, out = self._prepare_exchange(x, out, beta, way)
        elif way or x.shape[0] != self.columns.count or type(x) is not self._array or type(beta) is not float:
            # The interior's product holds everything else to what it must be.
            x, out = self._check_vectors(x, out, beta, way)
            if not way:
                self._array = type(x)
        interior, halo = self._find_matrices(way)
        exchange.start(x, halo, alpha)
        y = interior.matvec(x, out=out, alpha=alpha, beta=beta)
        exchange.multiply(halo, alpha)
        exchange.add(y)
        return y

    def _find_matrices(self, way: str) -> tuple[LocalMatrix, LocalMatrix]:
        """Return the interior and the halo, or their transposes, which the first call plans."""
        if not way:
            return self.interior, self.halo
        return getattr(self.interior, way), getattr(self.halo, way)

    def prepare_with_dot(
        self, x: Any, out: Any, w: Any, *, square: bool = False
    ) -> tuple[Callable[[], None], Any] | None:
        """Prepare a product that leaves dot products of its result; all ranks call it.

        Return a function that sets `out` to A x and writes sums, and the array of the sums: their total over
        the ranks is w'out, with `square` that of the first half, and out'out that of the other. Return None,
        on all ranks, where the interior's product leaves no sums on one of them.
        """
        if self.device == "cpu":
            return None
        from dasp.distributed.halo_cuda import DeviceHalo

        exchange = self._exchanges.get(("", *_key(x))) or self._prepare_exchange(x, out, 0.0, "")[0]
        assert isinstance(exchange, DeviceHalo)
        prepare = getattr(self.interior.__dasp_product__, "prepare_with_dot", None)
        own = None if prepare is None else prepare(x, out, w, square=square, run=RUN)
        if not all(self.comm.gather(own is not None)) or own is None:
            return None
        multiply, left = own
        add, sums = exchange.prepare_add_with_dot(out, w, left, square=square)

        def call() -> None:
            exchange.start(x, self.halo, 1.0)
            multiply()
            exchange.multiply(self.halo, 1.0)
            add()

        return call, sums

    @property
    def T(self) -> Transposed:
        """The transpose, whose products send the same messages the other way round.

        The first product on a rank plans the transposes of its two pieces.
        """
        if self._transposed is None:
            self._transposed = Transposed(self)
        return self._transposed

    @property
    def H(self) -> Transposed:
        """The conjugate transpose; of a real matrix its transpose."""
        return Adjoint(self) if self.dtype.kind == "c" else self.T

    def halo_values(self, x: Any) -> Any:
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
        with self.comm.call:
            exchange = self._exchanges.get(("", *_key(x)))
            if exchange is None:
                exchange, x, _ = self._prepare_exchange(x, None, 0.0, "")
            else:
                x = self._as_operand(x, self.local_shape)
            exchange.start(x, self.halo, 1.0)
            exchange.arrive()
            return exchange.received

    def _prepare_exchange(self, x: Any, out: Any, beta: Any, way: str) -> tuple[HaloExchange, Any, Any]:
        """Agree with the other ranks on the vectors, and prepare the exchange of their kind."""
        x, out = agree(self.comm, lambda: self._check_vectors(x, out, beta, way), _compare)
        key = (way, *_key(x))
        if way:
            agree(self.comm, lambda: self._find_matrices(way))
        else:
            self._array = type(x)
        if key not in self._exchanges:
            arguments = self._pattern, self._halo_rows, x.shape[1:], x.dtype, out.dtype
            if self.device == "cpu":
                host = HostTransposedHalo if way else HostHalo
                self._exchanges[key] = host(self.comm, *arguments)
            else:
                from dasp.distributed.halo_cuda import DeviceHalo, DeviceTransposedHalo

                on_gpu = DeviceTransposedHalo if way else DeviceHalo
                transport = find_transport(self.comm, self.device)
                self._exchanges[key] = on_gpu(transport, *arguments, device=self.device)
        return self._exchanges[key], x, out

    def _check_vectors(self, x: Any, out: Any, beta: Any, way: str) -> tuple[Any, Any]:
        """Return x, and the array for its product, or raise an error that says what is wrong with them."""
        local = self.local_shape[::-1] if way else self.local_shape
        x = self._as_operand(x, local)
        dtype = _dtypes.arithmetic(self.dtype, x.dtype).y
        _check.scale("beta", beta, dtype)
        shape = (local[0], *x.shape[1:])
        if out is not None:
            self._backend.check_out(out, x, shape, dtype, self.device)
        elif beta != 0:
            raise ValueError(f"beta is {beta} and out is None; pass the array that beta multiplies as out")
        else:
            out = self._backend.empty(shape, dtype, self.device, _arrays.order(x))
        return x, out

    def _as_operand(self, x: Any, local: tuple[int, int]) -> Any:
        x = self._backend.as_operand(x, self.device)
        _check.operand(local, x)
        return x

    def dot(self, x: Any, out: Any = None) -> Any:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x, out=out)

    def __matmul__(self, x: Any) -> Any:
        """Return this rank's part of A x; see `matvec`."""
        return self.matvec(x)

    def __rmatmul__(self, x: Any) -> Any:
        """Return this rank's part of x A, whose x is cut as the rows are; all ranks call it."""
        return (self.T @ x.T).T if hasattr(x, "T") else self.T @ x

    def __getattr__(self, name: str) -> NoReturn:
        """Say what to take in place of what SciPy's matrices have and one over ranks has not."""
        remedy = ""
        if not name.startswith("_") and hasattr(scipy.sparse.csr_array, name):
            remedy = f"; D.local_rows().{name} is that of this rank's rows"
        told = f"a matrix over ranks has no attribute {name!r}{remedy}"
        raise AttributeError(told, name=name, obj=self)

    def with_values(self, data: Any) -> SpMatrix:
        """Return the matrix with the same pattern and other values; all ranks call it.

        Parameters
        ----------
        data : array_like, shape (entries of this rank,)
            A value for each entry of this rank's rows, in the order in which they came.

        Returns
        -------
        SpMatrix

        Raises
        ------
        TypeError, ValueError
            On all ranks the same.
        """

        def work() -> tuple[LocalMatrix, LocalMatrix]:
            values = self._backend.as_values(data, self.device)
            if values.shape != self._own.shape:
                raise ValueError(
                    f"data has {len(values)} values; this rank has {len(self._own)} entries; "
                    "as many are needed"
                )
            return self.interior.with_values(values[self._own]), self.halo.with_values(values[~self._own])

        with self.comm.call:
            made = agree(self.comm, work, lambda two: {"dtype of data": two[0].dtype.name})
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.interior, other.halo = made
        other._transposed = None
        if other.dtype != self.dtype:
            other._exchanges = {}
        return other

    def local_rows(self) -> scipy.sparse.csr_array:
        """Return this rank's rows as a new CSR array on the host, columns numbered globally.

        The order inside a row may differ from that in which entries came.
        """
        own, halo = self.interior.to_scipy().tocoo(), self.halo.to_scipy().tocoo()
        rows = np.concatenate([own.coords[0], _arrays.to_host(self._halo_rows)[halo.coords[0]]])
        columns = np.concatenate(
            [own.coords[1].astype(np.int64) + self.columns.first, self.halo_columns[halo.coords[1]]]
        )
        data = np.concatenate([own.data, halo.data])
        order = np.argsort(rows, kind="stable")
        indptr = np.searchsorted(rows[order], np.arange(self.rows.count + 1))
        shape = (self.rows.count, self.shape[1])
        return scipy.sparse.csr_array((data[order], columns[order], indptr), shape=shape)

    def diagonal_block(self) -> scipy.sparse.csr_array:
        """Return this rank's rows and columns, the block on the diagonal, as a new CSR array on the host."""
        return self.interior.to_scipy()

    def solver_space(self, dtype: np.dtype[Any]) -> Any:
        """Return the space in which solvers add and measure vectors: dot products are summed over ranks."""
        name = SPACES[self.device.partition(":")[0]]
        return importlib.import_module(name).make_space(self.comm, self.device, dtype)

    @property
    def call(self) -> AbstractContextManager[None]:
        """A context for work that all ranks do together, as one call: see `Communicator.call`."""
        return self.comm.call

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

    def agree(self, work: Any, alike: Any = None) -> Any:
        """Do some work on every rank; return its result, or raise the error of one rank on all."""
        return agree(self.comm, work, alike)

    def __repr__(self) -> str:
        """Return the whole's size, and what this rank has."""
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


def _compare(two: tuple[Any, Any]) -> dict[str, Any]:
    """Return the properties of x and y that must be equal on all ranks."""
    columns = two[0].shape[1] if two[0].ndim == 2 else "none"
    return {"dtype of x": two[0].dtype.name, "columns of x": columns, "dtype of y": two[1].dtype.name}


def _key(x: Any) -> tuple[object, ...]:
    """Return the type and the columns of x, by which exchanges are kept; nothing of what is no array."""
    return (x.dtype, x.shape[1:]) if hasattr(x, "dtype") and hasattr(x, "shape") else ()


def _plan(arrays: Csr, shape: tuple[int, int], policy: Policy | None, device: str) -> LocalMatrix:
    """Plan a piece where its arrays lie, if it can be packed there."""
    request = Request.make(device, policy)
    if _arrays.is_cupy(arrays.data) and len(arrays.data) and request.packing_device(shape) == device:
        return LocalMatrix(pack(WholeCsr(shape, *arrays), None, request), device=device)
    matrix = scipy.sparse.csr_array(
        (_arrays.to_host(arrays.data), *map(_arrays.to_host, (arrays.indices, arrays.indptr))), shape=shape
    )
    return LocalMatrix.from_scipy(matrix, policy=policy, device=device)
