"""Ranks on GPUs: the halo travels on a stream of its own, and dot products are summed inside the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from dasp.distributed.engine import Engine, largest
from dasp.distributed.exchange import Route, Span
from dasp.distributed.packing import adds, defines, packs
from dasp.distributed.transpose import turned
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.graph import PriorityGraph, in_turn
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.cuda.stream import Branch, on_stream
from dasp.solvers.cuda.arnoldi import CudaArnoldi
from dasp.solvers.cuda.passes import THREADS
from dasp.solvers.cuda.space import BLOCKS_PER_PROCESSOR, CudaSpace
from dasp.solvers.cuda.vectors import CudaVectors

Array = Any

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


class Rows(Protocol):
    """Messages of rows, prepared."""

    def start(self, x: Array) -> None:
        """Send rows of an array, and have what comes in its place, on the current stream."""


class DeviceLinks(Protocol):
    """What moves arrays between GPUs, on CuPy's current stream; all ranks prepare alike.

    Attributes
    ----------
    name : str
        For benchmarks.
    on : RanksDevice or None
        What solvers use of the GPU, once they do.
    count : int
        Messages, sums and graphs of them that were begun: the same on all ranks that are at the same place.
    """

    name: str
    on: Any
    count: int

    def give_up(self) -> None:
        """Wait for no other rank any more; what is asked for after this raises `RankError`."""

    def sum(self, numbers: Array, totals: Array) -> Callable[[], None]:
        """Prepare to set `totals` to the sum of `numbers`, float64, over all ranks; all get the same bits.

        They may be one array.
        """

    def rows(
        self, sends: Sequence[Span], places: Array | None, receives: Sequence[Span], received: Array
    ) -> Rows:
        """Prepare to send rows of arrays that come later.

        Parameters
        ----------
        sends : sequence of Span
            Of `places`, or of the rows themselves; neighbour by neighbour.
        places : array of int64, optional
            The rows that are sent.
        receives : sequence of Span
            Of `received`.
        received : array, shape (rows,) or (rows, k)
            Contiguous; of the type and number of columns of what is sent.
        """

    def check(self) -> None:
        """Raise RankError if this rank has given up waiting for another."""

    def wait(self, event: Any = None) -> None:
        """Wait on the host for an event, no longer than the timeout."""


def device_of(name: str) -> Any:
    """Return CuPy's device of a name such as `cuda:1`."""
    import cupy

    return cupy.cuda.Device(int(name.partition(":")[2] or 0))


class DeviceMover:
    """Brings halo values of x to a rank on a GPU; see `dasp.distributed.exchange.Mover`.

    Messages and the halo's product are on a stream of their own, beside the interior's product.
    """

    def __init__(
        self,
        links: DeviceLinks,
        route: Route,
        rows: Array,
        shape: tuple[int, ...],
        x: Any,
        y: Any,
        *,
        device: str,
    ) -> None:
        import cupy

        self._cupy, self._idle, self._current = cupy, route.is_idle, cupy.cuda.get_current_stream
        self._device = device_of(device)
        with self._device:
            self._branch = Branch()
            places, self._rows = cupy.asarray(route.places), cupy.asarray(rows)
            self.received = cupy.zeros((route.columns, *shape), x)
            self.product = cupy.zeros((len(rows), *shape), y, order="F")
            self._messages = links.rows(route.sends, places, route.receives, self.received)
            self._add = adds(y, self._rows, self.product)
            self._current().synchronize()

    def start(self, x: Array) -> None:
        """Send, on the mover's stream."""
        if self._idle:
            return
        with self._device:
            self._branch.begin()
            with self._branch:
                self._messages.start(x)

    def arrive(self) -> None:
        """Have the current stream wait for the mover's."""
        if not self._idle:
            self._branch.end()
            self._branch.join()

    def multiply(self, halo: Any, alpha: Any) -> None:
        """Multiply what arrives, on the mover's stream."""
        if self._idle:
            return
        with self._device, self._branch:
            if len(self._rows):
                halo.matvec(self.received, out=self.product, alpha=alpha)
            self._branch.end()

    def add(self, y: Array) -> None:
        """Wait for the mover's stream, and add."""
        if not self._idle:
            self._branch.join()
            self._add(self._current().ptr, y)

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
                self._branch.join()
            launch(self._current().ptr)

        return add, sums


class DeviceBackMover:
    """Brings products of the transposed halo to their owners; see `dasp.distributed.transpose.BackMover`."""

    def __init__(
        self,
        links: DeviceLinks,
        route: Route,
        rows: Array,
        shape: tuple[int, ...],
        x: Any,
        y: Any,
        *,
        device: str,
    ) -> None:
        import cupy

        self._cupy, self._idle, self._current = cupy, route.is_idle, cupy.cuda.get_current_stream
        self._device = device_of(device)
        with self._device:
            self._branch = Branch()
            places, rows = cupy.asarray(route.places), cupy.asarray(rows)
            self._taken = cupy.zeros((len(rows), *shape), x)
            self._product, came = (cupy.zeros((k, *shape), y) for k in (route.columns, len(places)))
            sends, receives = turned(route)
            self._messages = links.rows(sends, None, receives, came)
            self._pack = packs(x, rows, self._taken)
            self._adds_each = [adds(y, places[first:end], came[first:end]) for _, first, end in route.sends]
            self._current().synchronize()

    def start(self, x: Array, halo: Any, alpha: Any) -> None:
        """Multiply and send, on the mover's stream."""
        if self._idle:
            return
        with self._device:
            self._branch.begin()
            with self._branch as stream:
                self._pack(stream.ptr, x)
                if len(self._product):
                    halo.matvec(self._taken, out=self._product, alpha=alpha)
                self._messages.start(self._product)
                self._branch.end()

    def add(self, y: Array) -> None:
        """Wait for the mover's stream, and add, neighbour by neighbour: inside one no place comes twice."""
        if not self._idle:
            self._branch.join()
            for add in self._adds_each:
                add(self._current().ptr, y)


class _Sums:
    """Sums over the ranks, beside whatever needs none of them."""

    def __init__(self, device: str) -> None:
        self._device, self._travelling = device_of(device), False
        with self._device:
            self._branch = Branch()

    def start(self, add: Callable[[], None]) -> None:
        """Make a sum of what the current stream leaves."""
        with self._device:
            self._branch.begin()
            with self._branch:
                add()
                self._branch.end()
        self._travelling = True

    def arrive(self) -> None:
        """Have the current stream wait for it."""
        if self._travelling:
            self._travelling = False
            self._branch.join()


class RanksDevice(CudaDevice):
    """A GPU whose work may wait for other ranks: the host waits for it no longer than the timeout.

    Loops are graphs that the host launches again: a while node's body may not hold all that NCCL captures.
    """

    def __init__(self, number: int, links: DeviceLinks) -> None:
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
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            graph = PriorityGraph(stream.ptr, whole)
        current = self._cupy.cuda.get_current_stream

        def launch(kept: Any = function) -> None:
            self._links.check()
            self._links.count += 1
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
        numbers = some.view(np.float64)  # of complex numbers both parts
        add = space.links.sum(numbers, numbers)
        taken = {**step, "parts": parts, "blocks": blocks, "small": self._small}
        return in_turn([leave, add, self._prepare("take", taken, blocks=1)])


class RanksCudaSpace(CudaSpace):
    """Vectors on the GPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(
        self, engine: Engine, device: str, dtype: np.dtype[Any], on: Any, links: DeviceLinks
    ) -> None:
        super().__init__(device, dtype, on)
        self.links, self._engine, self._beside = links, engine, on.beside
        self.processors = min(map(int, engine.gather(on.processors)))

    def threads(self, n: int) -> int:
        """Return the threads of a block of a pass, on all ranks alike."""
        return THREADS

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass, as many on all ranks: their sums travel together."""
        return BLOCKS_PER_PROCESSOR * self.processors

    def turn(self, rows: int, products: int) -> int:
        """Return the iterations of a turn, on all ranks alike.

        Fewer of those that make more products, since two turns are ahead and may be in vain. On two H200s
        turns of 4 iterations in place of 8 cost 6 us an iteration.
        """
        length = super().turn(max(self._engine.gather(rows)), products)
        return max(2, length // max(1, products) // 2 * 2)

    def totals(self, sums: Array) -> Array:
        """Return an array for the totals: the sums of a rank stay, so that they can be added up again."""
        return self.on.zeros(len(sums), np.float64)

    def combine(self, sums: Array, totals: Array, *, beside: bool = False) -> list[Callable[[], None]]:
        """Return what sums over the ranks.

        So many numbers take hardly longer than one, so no kernel adds them up before.
        """
        add = self.links.sum(sums, totals)
        return [partial(self._beside, add) if beside else add]

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> RanksCudaArnoldi:
        """Return a Krylov basis that lies in consecutive vectors; its dot products are summed over ranks."""
        return RanksCudaArnoldi(self, vectors, names)

    def largest(self, array: Array) -> float:
        """Return the largest absolute value on any rank."""
        return largest(self._engine, super().largest(array))


def make_space(engine: Engine, device: str, dtype: np.dtype[Any]) -> RanksCudaSpace:
    """Return the space of a rank's GPU for vectors of this type."""
    links: Any = engine.links(device)
    if links.on is None:
        links.on = RanksDevice(int(device.partition(":")[2] or 0), links)
    return RanksCudaSpace(engine, device, dtype, links.on, links)
