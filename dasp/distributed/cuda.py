"""Ranks on GPUs: the halo travels on a stream of its own, and dot products are summed inside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from dasp import _source
from dasp._dtypes import C_NAMES
from dasp._integers import ceil_div
from dasp._launch import Launch, Signature, driver
from dasp.distributed.engine import Engine, Links, largest
from dasp.distributed.exchange import Route, prepare, runs
from dasp.distributed.transpose import turned
from dasp.solvers.arnoldi import CudaArnoldi, in_turn
from dasp.solvers.cuda import BLOCKS_PER_PROCESSOR, THREADS, CudaSpace, CudaVectors, CupyDevice
from dasp.solvers.graph import PriorityGraph

Array = Any

FIRST = -5
"""Priority of a stream whose kernels go before others: lower is earlier; CUDA clamps it."""

ALIGNMENT = 16
"""Bytes of an address that NCCL reads in its widest loads; elsewhere it moves byte by byte."""

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


ADD_DOT = Signature(
    "distributed/halo_dot.cu",
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
"""Of a launch that leaves dot products, as many on all ranks: their sums travel together."""


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
        self._device = cupy.cuda.Device(int(device.partition(":")[2] or 0))
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
            self._runs = self._exchange_of_runs(links, route, np.dtype(x).itemsize) if shape == () else None
            self._pack, self._add = self._packs(x, places, packed), self._adds(y, self._rows, self.product)
            self._current().synchronize()

    def start(self, x: Array) -> None:
        """Pack and send, on the mover's stream; what lies together in x is sent from there."""
        if self._idle:
            return
        with self._device:
            self._branch()
            with self._stream:
                if self._runs is not None and x.flags.c_contiguous and x.data.ptr % ALIGNMENT == 0:
                    self._runs.start(x.data.ptr)
                else:
                    self._pack(x)
                    self._exchange.start()

    def _exchange_of_runs(self, links: Any, route: Route, size: int) -> Any:
        """Return messages out of x itself, if what each neighbour gets lies together there."""
        found = runs(route)
        if found is None or any(size * first % ALIGNMENT for _, first, _ in found):
            return None
        return links.exchange_of_runs(
            [(rank, size * first, size * count) for rank, first, count in found],
            [(rank, self.received[first:end]) for rank, first, end in route.receives],
        )

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

    def adds_with_dot(
        self, y: Array, w: Array, left: Array, *, square: bool
    ) -> tuple[Callable[[], None], Array]:
        """Return what adds to y as `add` does, and the sums, which make up w'y, that it leaves.

        Parameters
        ----------
        y, w : array, shape (rows here,), float32 or float64
        left : array of float64
            Sums that make up w'y before; with `square` its first half, and y'y the other.
        """
        scalar, dots = np.dtype(y.dtype), 1 + square
        with self._device:
            sums = self._cupy.zeros(dots * DOT_BLOCKS, np.float64)
            constants = defines(scalar) | {"DASP_DOT": str(dots)}
            kernel = _source.load(ADD_DOT.source, constants).get_function(ADD_DOT.entry)
            given = {"rows": self._rows, "count": len(self._rows), "product": self.product}
            given |= {"y": y, "w": w, "left": left, "before": len(left) // dots, "sums": sums}
            types = {"Scalar": scalar}
            launch = Launch(kernel, ADD_DOT, types, given, blocks=DOT_BLOCKS, threads=THREADS)

        def add() -> None:
            if not self._idle:
                self._join()
            launch(self._current().ptr)

        return add, sums


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


class _Sums(_OwnStream):
    """Sums over the ranks, beside whatever needs none of them."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._travelling = False

    def start(self, add: Callable[[], None]) -> None:
        """Make a sum of what the current stream leaves."""
        with self._device:
            self._branch()
            with self._stream:
                add()
                self._done.record(self._stream)
        self._travelling = True

    def arrive(self) -> None:
        """Have the current stream wait for it."""
        if self._travelling:
            self._travelling = False
            self._join()


class RanksDevice(CupyDevice):
    """A GPU whose work may wait for other ranks: the host waits for it no longer than the timeout.

    Loops are graphs that the host launches again: a while node's body may not hold all that NCCL captures.
    """

    def __init__(self, number: int, links: Links) -> None:
        super().__init__(number)
        self._links = links
        self._sums = _Sums(f"cuda:{number}")
        cupy = self._cupy
        with self._device:
            self._event = cupy.cuda.Event(disable_timing=True)
            self._looked = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
            self._seen = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float64, 2)

    def launch(self, *given: Any, **more: Any) -> Callable[..., None]:
        """Return a launch that waits for a sum over the ranks that is on its way."""
        ready = super().launch(*given, **more)

        def launch(*values: Any) -> None:
            self._sums.arrive()
            ready(*values)

        return launch

    def beside(self, add: Callable[[], None]) -> None:
        """Make a sum over the ranks beside what follows: the next launch of this device waits for it."""
        self._sums.start(add)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return what does again what a function launches; what travels goes before other kernels."""

        def whole() -> None:
            function()
            self._sums.arrive()

        self._sums.arrive()  # one that began before is no part of the graph
        with self._device, self._cupy.cuda.Stream(non_blocking=True) as stream:
            graph = PriorityGraph(driver(), stream.ptr, whole)
        current = self._cupy.cuda.get_current_stream

        def launch(kept: Any = function) -> None:
            graph.launch(current().ptr)

        return launch

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Return a copy on the host, when all that was launched before is done."""
        self._sums.arrive()
        with self._device:
            self._event.record(self._cupy.cuda.get_current_stream())
        self._links.wait(self._event)
        return super().download(array)

    def repeat(self, function: Callable[[], None], bank: Array, *, captured: bool) -> Callable[[], None]:
        """Return what does so until the first number of a bank is not 0, and once more.

        The GPU has its next turn before the host looks at the end of the one before: it never waits for the
        host. What turns do once the number is not 0 must not matter.
        """
        turn = self.record(function) if captured else function
        number = bank[:1]

        def launch(k: int) -> None:
            turn()
            self._sums.arrive()
            number.get(out=self._seen[k : k + 1], blocking=False)
            self._looked[k].record(self._cupy.cuda.get_current_stream())

        def run() -> None:
            with self._device:
                k = 0
                launch(k)
                while True:
                    launch(1 - k)
                    self._links.wait(self._looked[k])
                    if self._seen[k] != 0.0:
                        return
                    k = 1 - k

        return run


class RanksCudaArnoldi(CudaArnoldi):
    """A Krylov basis on the GPUs of several ranks; see `dasp.solvers.space.Arnoldi`.

    What blocks leave of dot products is summed over the ranks; all then make the same small numbers of it.
    """

    def _count_blocks(self, space: Any, n: int) -> int:
        return int(space.processors)

    def _prepare_dots(self, space: Any, basis: dict[str, Any], k: int, closing: int) -> Callable[[], None]:
        blocks, parts, step = self._blocks, self._parts, {"k": k, "closing": closing}
        leave = self._prepare("leave", {**basis, **step, "parts": parts})
        some = parts[2 * k * blocks * closing : 2 * (k + 1) * blocks]
        add = space.links.sum(some.view(np.float64))  # of complex numbers both parts
        taken = {**step, "parts": parts, "blocks": blocks, "small": self._small}
        return in_turn([leave, add, self._prepare("take", taken, blocks=1)])


class DeviceLinks(Links, Protocol):
    """What moves arrays between GPUs."""

    def sums(self, pairs: Sequence[tuple[Array, Array]]) -> Callable[[], None]:
        """Prepare to set the second array of each pair to the sum of the first over ranks, all at once."""


class RanksCudaSpace(CudaSpace):
    """Vectors on the GPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(
        self, engine: Engine, device: str, dtype: np.dtype[Any], on: Any, links: DeviceLinks
    ) -> None:
        super().__init__(device, dtype, on)
        self.links, self._engine, self._beside = links, engine, on.beside
        self.processors = min(map(int, engine.gather(on.processors)))

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass, as many on all ranks: their sums travel together."""
        return BLOCKS_PER_PROCESSOR * self.processors

    def turn(self, rows: int, products: int) -> tuple[int, int]:
        """Return the iterations of a turn, on all ranks alike, and early turns.

        Fewer of those that make more products, since two turns are ahead and may be in vain. On two H200s
        turns of 4 iterations in place of 8 cost 6 us an iteration.
        """
        length, early = super().turn(max(self._engine.gather(rows)), products)
        return max(2, length // max(1, products) // 2 * 2), early

    def totals(self, sums: Array) -> Array:
        """Return an array for the totals: the sums of a rank stay, so that they can be added up again."""
        return self.on.zeros(len(sums), np.float64)

    def combine(self, *sums: tuple[Array, Array], beside: bool = False) -> list[Callable[[], None]]:
        """Return what sums over the ranks.

        So many numbers take hardly longer than one, so no kernel adds them up before.
        """
        add = self.links.sums(sums)
        return [partial(self._beside, add) if beside else add]

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> RanksCudaArnoldi:
        """Return a Krylov basis that lies in consecutive vectors; its dot products are summed over ranks."""
        return RanksCudaArnoldi(self, vectors, names)

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
