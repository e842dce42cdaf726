"""Ranks on GPUs: the halo travels on a stream of its own, and dot products are summed inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dasp import _source
from dasp._dtypes import C_NAMES
from dasp._launch import Launch, Signature
from dasp.distributed.engine import Engine, Links, largest
from dasp.distributed.exchange import Route, prepare
from dasp.solvers.arnoldi import CudaArnoldi
from dasp.solvers.cuda import THREADS, CudaSpace, CudaVectors, CupyDevice, Device

Array = Any

MOST_BLOCKS = 1024
"""Of a launch that packs or adds; each thread then takes several elements."""

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
    long long         from_row
    long long         from_column
    Scalar*           y
    long long         row
    long long         column
    """,
)

SUMS = Signature(
    "distributed/sums.cu",
    "dasp_sums",
    """
    double*  sums
    int      count
    int      blocks
    """,
)


def steps(array: Array) -> tuple[int, int]:
    """Return by how many elements rows of an array are apart, and its columns."""
    size = array.dtype.itemsize
    return array.strides[0] // size, array.strides[1] // size if array.ndim == 2 else 1


def grid(elements: int) -> int:
    """Return the blocks of a launch for so many elements."""
    return max(1, min(-(-elements // THREADS), MOST_BLOCKS))


def defines(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the constants of kernels/distributed/halo.cu for a type."""
    return {"DASP_SCALAR": C_NAMES[dtype], "DASP_THREADS": str(THREADS)}


class DeviceMover:
    """Brings halo values of x to a rank on a GPU; see `dasp.distributed.exchange.Mover`.

    Packing, messages and the halo's product are on a stream of their own, beside the interior's product.
    """

    def __init__(
        self, links: Links, route: Route, rows: Array, shape: tuple[int, ...], x: Any, y: Any, *, device: str
    ) -> None:
        import cupy

        self._cupy, number = cupy, int(device.partition(":")[2])
        self._device, self._current = cupy.cuda.Device(number), cupy.cuda.get_current_stream
        count = route.receives[-1][2] if route.receives else 0
        self._idle = not (route.sends or route.receives)
        columns = int(np.prod(shape))
        with self._device:
            places, self._rows = cupy.asarray(route.places), cupy.asarray(rows)
            packed = cupy.zeros((len(places), *shape), x)
            self.received = cupy.zeros((count, *shape), x)
            self.product = cupy.zeros((len(rows), *shape), y, order="F")
            self._exchange = prepare(links, route, packed, self.received)
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._ready, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
            fixed = {"places": places, "count": len(places), "columns": columns, "packed": packed}
            self._pack = self._launch(PACK, x, fixed, ("x", "row", "column"), len(places) * columns)
            over, beside = steps(self.product)
            fixed = {"rows": self._rows, "count": len(rows), "columns": columns, "product": self.product}
            fixed |= {"from_row": over, "from_column": beside}
            self._add = self._launch(ADD, y, fixed, ("y", "row", "column"), len(rows) * columns)
            cupy.cuda.get_current_stream().synchronize()

    def _launch(
        self, signature: Signature, dtype: Any, fixed: Any, varying: tuple[str, ...], elements: int
    ) -> Launch | None:
        """Return a launch that starts when all before it has ended: what it waits for is on two streams."""
        if elements == 0:
            return None
        kernel = _source.load(signature.source, defines(np.dtype(dtype))).get_function(signature.entry)
        types = {"Scalar": np.dtype(dtype)}
        return Launch(kernel, signature, types, fixed, varying, blocks=grid(elements), threads=THREADS)

    def start(self, x: Array) -> None:
        """Pack and send, on the mover's stream."""
        if self._idle:
            return
        self._ready.record(self._current())
        self._stream.wait_event(self._ready)
        with self._device, self._stream:
            if self._pack is not None:
                self._pack(self._stream.ptr, x.data.ptr, *steps(x))
            self._exchange.start()

    def multiply(self, halo: Any, alpha: Any) -> None:
        """Multiply what arrives, on the mover's stream."""
        if self._idle:
            return
        with self._device, self._stream:
            if len(self._rows):
                halo.matvec(self.received, out=self.product, alpha=alpha)
            self._done.record(self._stream)

    def add(self, y: Array) -> None:
        """Wait for the mover's stream, and add."""
        if self._idle:
            return
        current = self._current()
        current.wait_event(self._done)
        if self._add is not None:
            with self._device:
                self._add(current.ptr, y.data.ptr, *steps(y))


class RanksDevice(CupyDevice):
    """A GPU whose work may wait for other ranks: the host waits for it no longer than the timeout.

    Loops are graphs that the host launches again: a while node's body may not hold all that NCCL captures.
    """

    def __init__(self, number: int, links: Links) -> None:
        super().__init__(number)
        self._links = links
        with self._device:
            self._event = self._cupy.cuda.Event(disable_timing=True)

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""
        with self._device:
            self._event.record(self._cupy.cuda.get_current_stream())
        self._links.wait(self._event)
        return super().download(array)

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0."""
        turn = self.record(function) if captured else function

        def run() -> None:
            going = True
            while going:
                turn()
                going = float(self.download(bank[:1])[0]) == 0.0

        return run


class RanksCudaSpace(CudaSpace):
    """Vectors on the GPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(self, engine: Engine, device: str, dtype: np.dtype[Any], on: Device, links: Links) -> None:
        super().__init__(device, dtype, on)
        self._engine, self._links = engine, links

    def combine(self, sums: Array, dots: int, blocks: int) -> tuple[list[Callable[[], None]], int]:
        """Return what sums over blocks and ranks, and of how many blocks the sums then are."""
        arguments = {"sums": sums, "count": dots, "blocks": blocks}
        here = self.on.launch(SUMS, {"DASP_THREADS": str(THREADS)}, arguments, 1, THREADS)
        return [here, self._links.sum(sums[:dots])], 1

    def blocks_left(self, blocks: int) -> int:
        """Return of how many blocks the sums are that the last pass of an iteration left to the next one."""
        return 1

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> CudaArnoldi:
        """Refuse: the kernels of a Krylov basis sum over one GPU."""
        raise TypeError("gmres works on one GPU; A lies on several; use bicgstab, minres or cg")

    def largest(self, array: Array) -> float:
        """Return the largest absolute value on any rank."""
        return largest(self._engine, super().largest(array))


@cache
def _device(number: int, links: Any) -> RanksDevice:
    return RanksDevice(number, links)


def make_space(engine: Engine, device: str, dtype: np.dtype[Any]) -> RanksCudaSpace:
    """Return the space of a rank's GPU for vectors of this type."""
    links: Any = engine.links(device)
    on = _device(int(device.partition(":")[2] or 0), links)
    return RanksCudaSpace(engine, device, dtype, on, links)
