"""The exchanges that a matrix over ranks keeps for its products, prepared when they are first needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.distributed.communicator import Communicator, agree
from dasp.distributed.halo import HaloExchange, HaloPattern, HostHaloExchange
from dasp.distributed.launch import find_transport
from dasp.formats import backends
from dasp.runtime import check as _check
from dasp.runtime import dtypes as _dtypes
from dasp.runtime.types import Array, ArrayLike, Number


class HaloExchanges:
    """The exchanges of a matrix's products, one for each type and number of columns of x.

    Parameters
    ----------
    comm : Communicator
    device : str
    pattern : HaloPattern
    shape : tuple of int
        The number of elements of y that this rank has, and that of x.
    dtype : numpy.dtype
        That of the matrix.
    """

    def __init__(
        self,
        comm: Communicator,
        device: str,
        pattern: HaloPattern,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> None:
        self._comm, self._device, self._backend = comm, device, backends.find(device)
        self._pattern, self._shape, self._dtype = pattern, shape, dtype
        self._exchanges: dict[tuple[Any, tuple[int, ...]], HaloExchange] = {}

    def find(self, x: ArrayLike, out: Array | None, beta: Number) -> tuple[HaloExchange, Array]:
        """Return the exchange of a product, and x as an array.

        The first x with a type and number of columns must have these on all ranks, which then prepare an
        exchange together. Later calls check x here, and leave all else to the interior's product. A list
        becomes an array, and integers the numbers that are multiplied, before their exchange is looked up.
        """
        key = _key(x)
        if key not in self._exchanges:
            x = self._as_multiplied(x)
            key = _key(x)
        if key in self._exchanges:
            return self._exchanges[key], self._check_operand(x)
        name = "first product by an x of a new type or shape"
        x, y_type = agree(self._comm, lambda: self._check_vectors(x, out, beta), _compare, name)
        if key not in self._exchanges:
            kind = self._pattern, x.shape[1:], x.dtype, y_type
            if self._device == "cpu":
                self._exchanges[key] = HostHaloExchange(self._comm, *kind)
            else:
                from dasp.distributed.halo_cuda import CudaHaloExchange

                transport = find_transport(self._comm, self._device)
                self._exchanges[key] = CudaHaloExchange(transport, self._device, *kind)
        return self._exchanges[key], x

    def _as_multiplied(self, x: ArrayLike) -> Array:
        """Return x as an array; integers and bools in the type in which they are multiplied."""
        operand: Array = self._backend.as_operand(x)
        if operand.dtype.kind not in "biu":
            return operand
        return operand.astype(_dtypes.find_arithmetic(self._dtype, operand.dtype).x)

    def _check_operand(self, x: ArrayLike) -> Array:
        """Return x, or raise an error that says what is wrong with it."""
        operand: Array = self._backend.as_operand(x)
        _check.operand(self._shape, operand)
        return operand

    def _check_vectors(
        self, x: ArrayLike, out: Array | None, beta: Number
    ) -> tuple[Array, np.dtype[np.generic]]:
        """Return x and the type of its product, or raise an error that says what is wrong."""
        operand = self._check_operand(x)
        dtype = _dtypes.find_arithmetic(self._dtype, operand.dtype).y
        _check.scale("beta", beta, dtype)
        if out is not None:
            shape = (self._shape[0], *operand.shape[1:])
            self._backend.check_out(out, operand, shape, dtype)
        elif beta != 0:
            raise ValueError(f"beta is {beta} and out is None; pass the array that beta multiplies as out")
        return operand, dtype


def _compare(checked: tuple[Array, np.dtype[np.generic]]) -> dict[str, Any]:
    """Return the properties of x and y that must be equal on all ranks."""
    x, dtype = checked
    columns = x.shape[1] if x.ndim == 2 else "none"
    return {"dtype of x": x.dtype.name, "columns of x": columns, "dtype of y": dtype.name}


def _key(x: ArrayLike) -> tuple[Any, tuple[int, ...]]:
    """Return the key of an exchange: the type of x, None if it is no array, and its columns."""
    return getattr(x, "dtype", None), getattr(x, "shape", ())[1:]
