"""The rows of a rank as two plans, and their products, whose halo travels meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
import scipy.sparse

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.halo import ExchangeKind, HaloExchange, HostHalo, find_pattern
from dasp.distributed.partition import Parts, Split
from dasp.distributed.transport import find_transport
from dasp.formats import devices
from dasp.formats.csr.matrix import Csr
from dasp.matrix.matrix import SpMatrix as LocalMatrix
from dasp.matrix.planning import Request, pack
from dasp.matrix.policy import Policy
from dasp.runtime import arrays as _arrays
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.cuda import gpus
from dasp.runtime.process import load
from dasp.runtime.types import Array, ArrayLike, Number
from dasp.solvers.arguments import leave_together
from dasp.solvers.space import Space

T = TypeVar("T")

SPACES = {"cpu": "dasp.distributed.space", "cuda": "dasp.distributed.space_cuda"}
"""The module that makes the space of a kind of device."""

RUN = 4
"""Slices that a warp of the interior's product takes one after the other where it leaves dot products.
Measured on two H200s: an iteration of cg on poisson3d:160 takes 84, 84 and 92 us with 1, 4 and 8."""


class RankMatrix:
    """A matrix over ranks that multiplies by the plans of this rank's rows, for `SpMatrix`."""

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
        """Plan the pieces of this rank; all ranks call it."""
        self.comm, self.device, self._policy = comm, device, policy
        if device != "cpu":
            gpus.use(device)
        self.rows, self.columns = parts
        self._own, self._halo_rows, self.halo_columns = pieces.own, pieces.rows, pieces.columns
        self._pattern = find_pattern(comm, self.columns, self.halo_columns)

        def plan() -> tuple[LocalMatrix, LocalMatrix]:
            return _plan(pieces.interior, policy, device), _plan(pieces.halo, policy, device)

        self.interior, self.halo = agree(comm, plan, lambda two: {"dtype": two[0].dtype.name})
        self._backend = devices.find(device)
        mine = self.interior.nnz + self.halo.nnz, self._backend.find_cost_model(device).launch_bytes
        counts, launch_bytes = zip(*comm.gather(mine), strict=True)
        self.nnz, self._launch_bytes = sum(counts), min(launch_bytes)  # which all ranks know alike
        self._exchanges: dict[tuple[object, ...], HaloExchange] = {}

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
        exchange, x, out = self._find_exchange(x, out, beta)
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

        exchange = self._find_exchange(x, out, 0.0)[0]
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

    @property
    def call(self) -> AbstractContextManager[None]:
        """A context for work that all ranks do together, as one call: see `Communicator.call`."""
        return self.comm.call

    def agree(self, work: Callable[[], T], alike: Callable[[T], dict[str, Any]] | None = None) -> T:
        """Do some work on every rank; return its result, or raise the error of one rank on all."""
        return agree(self.comm, work, alike)

    def solver_space(self, dtype: np.dtype[Any]) -> Space:
        """Return the space in which solvers add and measure vectors: dot products are summed over ranks."""
        module = load(SPACES[self.device.partition(":")[0]])
        space: Space = module.make_space(self.comm, self.device, dtype)
        return space

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
        exchange, x, _ = self._find_exchange(x, None, 0.0)
        exchange.start(x)
        exchange.arrive()
        return exchange.received

    def _find_exchange(
        self, x: ArrayLike, out: Array | None, beta: Number
    ) -> tuple[HaloExchange, Array, Array | None]:
        """Return the exchange of a product, x, and the array for the product if there is one.

        The first vector of a type and number of columns must be the same on all ranks, which prepare an
        exchange for it. Later x alone is checked here, and all else by the interior's product.
        """
        key = _key(x)
        if key in self._exchanges:
            return self._exchanges[key], self._check_operand(x), out
        x, y = agree(self.comm, lambda: self._check_vectors(x, out, beta), _compare)
        key = _key(x)
        if key not in self._exchanges:
            kind = ExchangeKind(self._pattern, self._halo_rows, x.shape[1:], x.dtype, y.dtype)
            if self.device == "cpu":
                self._exchanges[key] = HostHalo(self.comm, kind)
            else:
                from dasp.distributed.halo_cuda import DeviceHalo

                transport = find_transport(self.comm, self.device)
                self._exchanges[key] = DeviceHalo(transport, kind, self.device)
        return self._exchanges[key], x, y

    def _check_operand(self, x: ArrayLike) -> Array:
        """Return x, or raise an error that says what is wrong with it."""
        operand: Array = self._backend.as_operand(x, self.device)
        _check.operand(self.local_shape, operand)
        return operand

    def _check_vectors(self, x: ArrayLike, out: Array | None, beta: Number) -> tuple[Array, Array]:
        """Return x, and the array for its product, or raise an error that says what is wrong with them."""
        operand = self._check_operand(x)
        dtype = _dtypes.arithmetic(self.dtype, operand.dtype).y
        _check.scale("beta", beta, dtype)
        shape = (self.local_shape[0], *operand.shape[1:])
        if out is not None:
            self._backend.check_out(out, operand, shape, dtype, self.device)
            return operand, out
        if beta != 0:
            raise ValueError(f"beta is {beta} and out is None; pass the array that beta multiplies as out")
        return operand, self._backend.empty(shape, dtype, self.device, _arrays.order(operand))


def _compare(two: tuple[Array, Array]) -> dict[str, Any]:
    """Return the properties of x and y that must be equal on all ranks."""
    columns = two[0].shape[1] if two[0].ndim == 2 else "none"
    return {"dtype of x": two[0].dtype.name, "columns of x": columns, "dtype of y": two[1].dtype.name}


def _key(x: ArrayLike) -> tuple[object, ...]:
    """Return the type and the columns of x, by which exchanges are kept; nothing if x is no array."""
    return (x.dtype, x.shape[1:]) if hasattr(x, "dtype") and hasattr(x, "shape") else ()


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
