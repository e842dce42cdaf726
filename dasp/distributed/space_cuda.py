"""The space of ranks on GPUs: dot products are summed over the ranks inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dasp.distributed.communicator import Communicator, find_largest
from dasp.distributed.launch import find_transport
from dasp.distributed.transport import Transport
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.driver import PriorityGraph
from dasp.runtime.cuda.stream import Branch, on_stream
from dasp.runtime.types import DeviceArray
from dasp.solvers.cuda.arnoldi import CudaArnoldi
from dasp.solvers.cuda.passes import BLOCKS_PER_PROCESSOR, TURN
from dasp.solvers.cuda.space import CudaSpace
from dasp.solvers.cuda.vectors import CudaVectors


class RanksDevice(CudaDevice):
    """A GPU whose work may wait for other ranks: the host waits for it no longer than the timeout.

    Loops are graphs that the host launches again: a while node's body may not hold all calls of NCCL.
    """

    def __init__(self, number: int, transport: Transport) -> None:
        super().__init__(number)
        self._transport, self._sum_travels = transport, False
        cupy = self._cupy
        with self._device:
            self._branch = Branch()
            self._event = cupy.cuda.Event(disable_timing=True)
            self._looked = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
            self._seen = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.float64, 2)

    def prepare_launch(self, *given: Any, **more: Any) -> Callable[..., None]:
        """Return a launch that first waits for a sum over the ranks, if one is on its way."""
        ready = super().prepare_launch(*given, **more)

        def launch(*values: object) -> None:
            self._await_sum()
            ready(*values)

        return launch

    def beside(self, add: Callable[[], None]) -> None:
        """Start a sum over the ranks on the branch; the next launch of this device waits for it."""
        with self._device:
            self._branch.begin()
            with self._branch:
                add()
                self._branch.end()
        self._sum_travels = True

    def _await_sum(self) -> None:
        """Make the current stream wait for the sum that travels, if one does."""
        if self._sum_travels:
            self._sum_travels = False
            self._branch.join()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a launch of all that a function launches, as a graph; messages go before other kernels."""

        def whole() -> None:
            function()
            self._await_sum()

        self._await_sum()  # one that began before is no part of the graph
        with self._device, on_stream(self._cupy.cuda.Stream(non_blocking=True)) as stream:
            graph = PriorityGraph(stream.ptr, whole)
        current = self._cupy.cuda.get_current_stream

        def launch(kept: object = function) -> None:
            self._transport.check()
            self._transport.count += 1
            graph.launch(current().ptr)

        return launch

    def wait(self) -> None:
        """Wait for all that was launched before."""
        self._await_sum()
        with self._device:
            self._event.record(self._cupy.cuda.get_current_stream())
        self._transport.wait(self._event)

    def download(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        """Return a copy on the host, after all that was launched before is done."""
        self.wait()
        return super().download(array)

    def repeat(
        self, function: Callable[[], None], numbers: DeviceArray, *, captured: bool
    ) -> Callable[[], None]:
        """Return a loop that makes turns until the first of some numbers is not 0, and one turn more.

        The host launches the next turn before it looks at the number that the last one left, so the GPU never
        waits for the host. A turn must have no effect once the number is not 0.
        """
        turn = self.record(function) if captured else function
        number = numbers[:1]

        def launch(k: int) -> None:
            turn()
            self._await_sum()
            number.get(out=self._seen[k : k + 1], blocking=False)
            self._looked[k].record(self._cupy.cuda.get_current_stream())

        def run() -> None:
            with self._device:
                k = 0
                launch(k)
                while True:
                    launch(1 - k)
                    self._transport.wait(self._looked[k])
                    if self._seen[k] != 0.0:
                        return
                    k = 1 - k

        return run


class RanksCudaArnoldi(CudaArnoldi):
    """A Krylov basis on the GPUs of several ranks; see `dasp.solvers.space.Arnoldi`.

    The partial dot products of blocks are summed over the ranks; all then compute the same small numbers.
    """

    def _count_blocks(self, space: Any, n: int) -> int:
        return int(space.processors)

    def _add_over_ranks(self, space: Any, k: int, *, closing: bool) -> list[Callable[[], None]]:
        first = 2 * k if closing else 0
        parts = self._parts[first * self._blocks : 2 * (k + 1) * self._blocks]
        numbers = parts.view(np.float64)  # both parts of complex numbers
        return [space.transport.sum(numbers, numbers)]


class RanksCudaSpace(CudaSpace):
    """Vectors on the GPUs of several ranks; see `dasp.solvers.space.Space`."""

    def __init__(
        self, comm: Communicator, device: str, dtype: np.dtype[Any], on: RanksDevice, transport: Transport
    ) -> None:
        super().__init__(device, dtype, on)
        self.transport, self._comm, self._beside = transport, comm, on.beside
        self.processors = min(map(int, comm.gather(on.processors)))

    def blocks(self, n: int) -> int:
        """Return the blocks of a pass, equally many on all ranks: their sums travel together."""
        return BLOCKS_PER_PROCESSOR * self.processors

    def turn(self, products: int, *, costly: bool) -> int:
        """Return the iterations of a turn.

        Iterations with more products get shorter turns, since turns are launched ahead and may be in vain. On
        two H200s turns of 4 iterations in place of 8 cost 6 us an iteration.
        """
        return max(2, TURN // max(1, products) // 2 * 2)

    def totals(self, sums: DeviceArray) -> DeviceArray:
        """Return an array for the totals: the rank's own sums stay, so that they can be added up again."""
        return self.on.zeros(len(sums), np.float64)

    def combine(
        self, sums: DeviceArray, totals: DeviceArray, *, beside: bool = False
    ) -> list[Callable[[], None]]:
        """Return the launches that sum over the ranks.

        The sums of all blocks take hardly longer than one number, so no kernel adds them up before.
        """
        add = self.transport.sum(sums, totals)
        return [partial(self._beside, add) if beside else add]

    def arnoldi(self, vectors: CudaVectors, names: list[str]) -> RanksCudaArnoldi:
        """Return a Krylov basis that lies in consecutive vectors; its dot products are summed over ranks."""
        return RanksCudaArnoldi(self, vectors, names)

    def largest(self, array: DeviceArray) -> float:
        """Return the largest absolute value on any rank."""
        return find_largest(self._comm, super().largest(array))


def make_space(comm: Communicator, device: str, dtype: np.dtype[Any]) -> RanksCudaSpace:
    """Return the space of a rank's GPU for vectors of this type."""
    transport = find_transport(comm, device)
    on = transport.solver_device
    if not isinstance(on, RanksDevice):
        on = transport.solver_device = RanksDevice(gpus.find_number(device), transport)
    return RanksCudaSpace(comm, device, dtype, on, transport)
