"""Ranks on GPUs: the halo travels on a stream of its own, and dot products are summed inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dasp import _source
from dasp._dtypes import C_NAMES
from dasp._integers import ceil_div
from dasp._launch import Launch, Signature
from dasp.distributed.engine import Engine, Links, largest
from dasp.distributed.exchange import Route, prepare
from dasp.distributed.transpose import turned
from dasp.solvers.arnoldi import CudaArnoldi
from dasp.solvers.cuda import THREADS, CudaSpace, CudaVectors, CupyDevice, Device

Array = Any

FIRST = -5
"""Priority of a stream whose kernels go before others: lower is earlier; CUDA clamps it."""

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
    return max(1, min(ceil_div(elements, THREADS), MOST_BLOCKS))


def defines(dtype: np.dtype[Any]) -> dict[str, str]:
    """Return the constants of kernels/distributed/halo.cu for a type."""
    return {"DASP_SCALAR": C_NAMES[dtype], "DASP_THREADS": str(THREADS)}


class _OwnStream:
    """A stream beside CuPy's current one, and launches that begin when all before them has ended."""

    def __init__(self, device: str) -> None:
        import cupy

        self._cupy, self._current = cupy, cupy.cuda.get_current_stream
        self._device = cupy.cuda.Device(int(device.partition(":")[2]))
        with self._device:
            # What travels must not wait until the interior's product leaves room: its few blocks go first.
            self._stream = cupy.cuda.Stream(non_blocking=True, priority=FIRST)
            self._ready, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def _branch(self) -> None:
        """Have the stream wait for what the current one has been given."""
        self._ready.record(self._current())
        self._stream.wait_event(self._ready)

    def _join(self) -> None:
        """Have the current stream wait for this one."""
        self._current().wait_event(self._done)

    def _packs(self, x: Any, places: Array, packed: Array) -> Callable[[Array], None]:
        columns = packed.size // max(1, len(packed))
        fixed = {"places": places, "count": len(places), "columns": columns, "packed": packed}
        launch = self._launch(PACK, x, fixed, ("x", "row", "column"), packed.size)
        return lambda source: launch(self._stream.ptr, source.data.ptr, *steps(source))

    def _adds(self, y: Any, rows: Array, product: Array) -> Callable[[Array], None]:
        over, beside = steps(product)
        columns = product.size // max(1, len(product))
        fixed = {"rows": rows, "count": len(rows), "columns": columns, "product": _flat(product)}
        fixed |= {"from_row": over, "from_column": beside}
        launch = self._launch(ADD, y, fixed, ("y", "row", "column"), product.size)
        return lambda target: launch(self._current().ptr, target.data.ptr, *steps(target))

    def _launch(
        self, signature: Signature, dtype: Any, fixed: Any, varying: tuple[str, ...], elements: int
    ) -> Callable[..., None]:
        if elements == 0:
            return lambda *_: None
        kernel = _source.load(signature.source, defines(np.dtype(dtype))).get_function(signature.entry)
        types = {"Scalar": np.dtype(dtype)}
        return Launch(kernel, signature, types, fixed, varying, blocks=grid(elements), threads=THREADS)


def _flat(array: Array) -> Array:
    """Return an array as it lies in memory, whatever its order."""
    return (array if array.flags.c_contiguous else array.T).ravel()


class DeviceMover(_OwnStream):
    """Brings halo values of x to a rank on a GPU; see `dasp.distributed.exchange.Mover`.

    Packing, messages and the halo's product are on a stream of their own, beside the interior's product.
    """

    def __init__(
        self, links: Links, route: Route, rows: Array, shape: tuple[int, ...], x: Any, y: Any, *, device: str
    ) -> None:
        super().__init__(device)
        cupy = self._cupy
        count = route.receives[-1][2] if route.receives else 0
        self._idle = not (route.sends or route.receives)
        with self._device:
            places, self._rows = cupy.asarray(route.places), cupy.asarray(rows)
            packed = cupy.zeros((len(places), *shape), x)
            self.received = cupy.zeros((count, *shape), x)
            self.product = cupy.zeros((len(rows), *shape), y, order="F")
            self._exchange = prepare(links, route, packed, self.received)
            self._pack, self._add = self._packs(x, places, packed), self._adds(y, self._rows, self.product)
            self._current().synchronize()

    def start(self, x: Array) -> None:
        """Pack and send, on the mover's stream."""
        if self._idle:
            return
        with self._device:
            self._branch()
            with self._stream:
                self._pack(x)
                self._exchange.start()

    def arrive(self) -> None:
        """Have the current stream wait for the mover's."""
        if not self._idle:
            self._done.record(self._stream)
            self._join()

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
        if not self._idle:
            self._join()
            self._add(y)


class DeviceBackMover(_OwnStream):
    """Brings products of the transposed halo to their owners; see `dasp.distributed.transpose.BackMover`."""

    def __init__(
        self, links: Links, route: Route, rows: Array, shape: tuple[int, ...], x: Any, y: Any, *, device: str
    ) -> None:
        super().__init__(device)
        cupy = self._cupy
        count = route.receives[-1][2] if route.receives else 0
        self._idle = not (route.sends or route.receives)
        with self._device:
            places, rows = cupy.asarray(route.places), cupy.asarray(rows)
            self._taken = cupy.zeros((len(rows), *shape), x)
            self._product, came = (cupy.zeros((k, *shape), y) for k in (count, len(places)))
            sends, receives = turned(route)
            self._exchange = links.exchange(
                [(rank, self._product[first:end]) for rank, first, end in sends],
                [(rank, came[first:end]) for rank, first, end in receives],
            )
            self._pack = self._packs(x, rows, self._taken)
            self._adds_each = [
                self._adds(y, places[first:end], came[first:end]) for _, first, end in route.sends
            ]
            self._current().synchronize()

    def start(self, x: Array, halo: Any, alpha: Any) -> None:
        """Multiply and send, on the mover's stream."""
        if self._idle:
            return
        with self._device:
            self._branch()
            with self._stream:
                self._pack(x)
                if len(self._product):
                    halo.matvec(self._taken, out=self._product, alpha=alpha)
                self._exchange.start()
                self._done.record(self._stream)

    def add(self, y: Array) -> None:
        """Wait for the mover's stream, and add, neighbour by neighbour: inside one no place comes twice."""
        if not self._idle:
            self._join()
            for add in self._adds_each:
                add(y)


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
