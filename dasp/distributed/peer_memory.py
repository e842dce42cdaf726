"""Memory of every rank's GPU that the GPUs of all ranks on the machine write in.

Source: CUDA Runtime API, cudaIpcGetMemHandle and cudaIpcOpenMemHandle.
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial

import numpy as np

from dasp.distributed.communicator import Communicator, agree
from dasp.runtime.sizes import round_up
from dasp.runtime.types import CupyDevice

ALIGNMENT = 256
"""Bytes to a multiple of which every array in that memory begins."""


def align(nbytes: int) -> int:
    """Return bytes rounded up to the alignment."""
    return round_up(nbytes, ALIGNMENT)


def count_left_bytes(ranks: int) -> int:
    """Return the bytes behind a rank's memory in which others say that they have left it."""
    return align(4 * ranks)


class Block:
    """Memory of every rank, as much on each, that all ranks write in.

    Behind it each rank has a word for every rank, 1 once that one has left.

    Attributes
    ----------
    nbytes : int
        Of each rank.
    places : list of int
        Where the part of each rank begins, in bytes from `memory`.
    memory : cupy.ndarray of uint8
        At the lowest address.
    """

    def __init__(self, comm: Communicator, device: CupyDevice, nbytes: int) -> None:
        import cupy

        self.nbytes, self._rank, self._device, self._runtime = nbytes, comm.rank, device, cupy.cuda.runtime
        address, handle = agree(comm, partial(self._own, comm.size))
        handles = comm.gather(handle)

        def reach() -> list[int]:
            lazy = self._runtime.cudaIpcMemLazyEnablePeerAccess
            return [
                address if rank == comm.rank else int(self._runtime.ipcOpenMemHandle(one, lazy))
                for rank, one in enumerate(handles)
            ]

        self._addresses = agree(comm, reach)
        base = min(self._addresses)
        self.places = [one - base for one in self._addresses]
        held = cupy.cuda.UnownedMemory(base, 1, self, device.id)
        self.memory = cupy.ndarray((1,), np.uint8, cupy.cuda.MemoryPointer(held, 0))

    def _own(self, ranks: int) -> tuple[int, bytes]:
        """Return this rank's part, and the handle that opens it for others."""
        address = self._runtime.malloc(self.nbytes + count_left_bytes(ranks))
        self._runtime.memset(address, 0, self.nbytes + count_left_bytes(ranks))
        return address, bytes(self._runtime.ipcGetMemHandle(address))

    def clear(self) -> None:
        """Set this rank's part to 0."""
        self._runtime.memset(self._addresses[self._rank], 0, self.nbytes)

    def leave(self) -> None:
        """Tell others that this rank writes here no more, and close their parts; keep its own for them."""
        one, to_device = np.ones(1, np.uint32), self._runtime.memcpyHostToDevice
        for rank, address in enumerate(self._addresses):
            if rank != self._rank:
                mine = address + self.nbytes + one.nbytes * self._rank
                self._runtime.memcpy(mine, one.ctypes.data, one.nbytes, to_device)
                self._runtime.ipcCloseMemHandle(address)
        LEFT.append(self)

    def give_back(self) -> bool:
        """Give this rank's part back if all others have left it; return True if it is given back."""
        left, address = np.zeros(len(self._addresses), np.uint32), self._addresses[self._rank]
        with self._device:
            to_host = self._runtime.memcpyDeviceToHost
            self._runtime.memcpy(left.ctypes.data, address + self.nbytes, left.nbytes, to_host)
            left[self._rank] = 1
            if left.all():
                self._runtime.free(address)
        return bool(left.all())


LEFT: deque[Block] = deque()
"""Memory that this rank has left, and others may not have."""


def give_back_all() -> None:
    """Give back the blocks that all ranks have left."""
    for _ in range(len(LEFT)):
        with contextlib.suppress(IndexError):  # ranks that are threads share this
            block = LEFT.popleft()
            if not block.give_back():
                LEFT.append(block)
