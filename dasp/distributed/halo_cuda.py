"""The halo of ranks on GPUs: kernels that pack rows and add products, and the exchanges that launch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dasp.distributed.halo import HaloPattern
from dasp.distributed.transport import ExchangeRows, Transport
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.cuda.stream import Branch
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import CupyDevice, DeviceArray, Number
from dasp.solvers.cuda.passes import THREADS

if TYPE_CHECKING:
    from dasp.matrix.matrix import SpMatrix

MOST_BLOCKS = 1024
"""The most blocks of a launch that packs or adds; beyond that each thread takes several elements."""

PACK = Signature(
    "distributed/halo.cu",
    "dasp_pack",
    """
    const long long*  places [count]
    long long         count
    long long         columns
    Scalar*           packed
    const Scalar*     x
    long long         row
    long long         column
    """,
)

ADD = Signature(
    "distributed/halo.cu",
    "dasp_add",
    """
    const long long*  rows [count]
    long long         count
    long long         columns
    const Scalar*     product
    Scalar*           y
    long long         row
    long long         column
    """,
)


ADD_DOT = Signature(
    "distributed/halo.cu",
    "dasp_add_dot",
    """
    const long long*  rows [count]
    long long         count
    const Scalar*     product [count]
    Scalar*           y
    const Scalar*     w
    const double*     left
    int               before
    double*           sums
    """,
)

DOT_BLOCKS = 256
"""Blocks of a launch that leaves dot products, equally many on all ranks: their sums travel together."""


def find_steps(array: DeviceArray) -> tuple[int, int]:
    """Return the elements from one row of an array to the next, and from one column to the next."""
    size = array.dtype.itemsize
    return array.strides[0] // size, array.strides[1] // size if array.ndim == 2 else 1


def count_blocks(elements: int) -> int:
    """Return the number of blocks of a launch over a number of elements."""
    return max(1, min(ceil_div(elements, THREADS), MOST_BLOCKS))


def define_scalar(dtype: np.dtype[np.generic]) -> dict[str, str]:
    """Return the constants that compile the kernels in kernels/distributed for a type."""
    return {"DASP_SCALAR": C_NAMES[dtype], "DASP_THREADS": str(THREADS)}


def prepare_packing(places: DeviceArray, packed: DeviceArray) -> Callable[[int, DeviceArray], None]:
    """Return a function that packs the rows `places` of an array into one of its type, on a stream."""
    columns = packed.size // max(1, len(packed))
    fixed = {"places": places, "count": len(places), "columns": columns, "packed": packed}
    launch = _prepare(PACK, packed.dtype, fixed, ("x", "row", "column"), packed.size)
    return lambda stream, x: launch(stream, x.data.ptr, *find_steps(x))


def prepare_addition(rows: DeviceArray, product: DeviceArray) -> Callable[[int, DeviceArray], None]:
    """Return a function that adds a product, in F order, to rows of an array of its type, on a stream."""
    columns = product.size // max(1, len(product))
    fixed = {"rows": rows, "count": len(rows), "columns": columns, "product": product.T.ravel()}
    launch = _prepare(ADD, product.dtype, fixed, ("y", "row", "column"), product.size)
    return lambda stream, y: launch(stream, y.data.ptr, *find_steps(y))


def _prepare(
    signature: Signature,
    dtype: np.dtype[np.generic],
    fixed: Mapping[str, object],
    varying: tuple[str, ...],
    elements: int,
) -> Callable[..., None]:
    if elements == 0:
        return lambda *_: None
    kernel = signature.load(define_scalar(dtype))
    blocks = count_blocks(elements)
    return Launch(kernel, signature, {"Scalar": dtype}, fixed, varying, blocks=blocks, threads=THREADS)


def find_cupy_device(name: str) -> CupyDevice:
    """Return CuPy's device for a name such as `cuda:1`."""
    import cupy

    return cupy.cuda.Device(gpus.find_number(name))


class CudaHaloExchange:
    """The exchange of a product between GPUs; see `dasp.distributed.halo.HaloExchange`.

    Messages and the halo's product run on a stream beside that of the interior's product.
    """

    def __init__(
        self,
        transport: Transport,
        device: str,
        pattern: HaloPattern,
        shape: tuple[int, ...],
        x: np.dtype[np.generic],
        y: np.dtype[np.generic],
    ) -> None:
        """Prepare for operands of type x, products of type y, and k columns if `shape` is (k,)."""
        import cupy

        self._cupy, self._current = cupy, cupy.cuda.get_current_stream
        self._is_idle, self._device = pattern.is_idle, find_cupy_device(device)
        with self._device:
            self._branch = Branch()
            places, self._rows = cupy.asarray(pattern.places), cupy.asarray(pattern.rows)
            self.received = cupy.zeros((pattern.columns, *shape), x)
            self._product = cupy.zeros((len(pattern.rows), *shape), y, order="F")
            self._send = transport.rows(ExchangeRows(pattern.sends, places, pattern.receives, self.received))
            self._add = prepare_addition(self._rows, self._product)
            self._current().synchronize()

    def arrive(self) -> None:
        """Make the current stream wait for the messages."""
        if not self._is_idle:
            self._branch.end()
            self._branch.join()

    def start(self, x: DeviceArray) -> None:
        """Send elements of x."""
        if self._is_idle:
            return
        with self._device:
            self._branch.begin()
            with self._branch:
                self._send(x)

    def multiply(self, halo: SpMatrix, alpha: Number) -> None:
        """Multiply the halo by the elements that arrive."""
        if self._is_idle:
            return
        with self._device, self._branch:
            if len(self._rows):
                halo.matvec(self.received, out=self._product, alpha=alpha)
            self._branch.end()

    def finish(self, halo: SpMatrix, alpha: Number, y: DeviceArray) -> None:
        """Multiply the halo, and make the current stream wait for the product and add it to y."""
        if not self._is_idle:
            self.multiply(halo, alpha)
            self._branch.join()
            self._add(self._current().ptr, y)

    def prepare_add_with_dot(
        self, y: DeviceArray, w: DeviceArray, left: DeviceArray, *, square: bool
    ) -> tuple[Callable[[], None], DeviceArray]:
        """Prepare an addition to y, after `multiply`, that leaves dot products of the new y.

        Parameters
        ----------
        y, w : array, shape (rows here,), float32 or float64
        left : array of float64
            Add up to w'y before the addition; with `square` the first half does, the second adds up to y'y.

        Returns
        -------
        add, sums : callable, array of float64
            `add()` adds to y as `finish` does, and sets `sums`, which add up to w'y (and y'y).
        """
        scalar, dots = np.dtype(y.dtype), 1 + square
        with self._device:
            sums = self._cupy.zeros(dots * DOT_BLOCKS, np.float64)
            constants = define_scalar(scalar) | {"DASP_DOT": str(dots)}
            kernel = ADD_DOT.load(constants)
            arguments = {"rows": self._rows, "count": len(self._rows), "product": self._product}
            arguments |= {"y": y, "w": w, "left": left, "before": len(left) // dots, "sums": sums}
            types = {"Scalar": scalar}
            launch = Launch(kernel, ADD_DOT, types, arguments, blocks=DOT_BLOCKS, threads=THREADS)

        def add() -> None:
            if not self._is_idle:
                self._branch.join()
            launch(self._current().ptr)

        return add, sums
