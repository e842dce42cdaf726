"""Launches on the same arrays: what one kernel is told, all that follow know."""

from __future__ import annotations

from typing import Any

from dasp.formats.plan import Array
from dasp.formats.sell.cuda.pack.resources import Kernels
from dasp.runtime.cuda.device import CudaDevice
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.integers import ceil_div


class Work:
    """Launches on the same arrays: what one kernel is told, all that follow know. It keeps no array alive.

    Parameters
    ----------
    device : CudaDevice
    kernels : Kernels
    words : Array
        0 before.
    **known : Array, int or None
        Arguments of kernels by name.

    Attributes
    ----------
    known : dict
        The same as launches take them. What every plan needs is put there at once: `tell` asks what each is.
    """

    def __init__(self, device: CudaDevice, kernels: Kernels, words: Array = None, **known: Any) -> None:
        self._on, self._word, self._part, self._kernels = device, device.word, device.part, kernels
        self._pools = [] if words is None else [(0, words)]  # places where they begin, and words
        self._taken, self._end = 0, 0 if words is None else words.size
        self.known: dict[str, Any] = {}
        if known:
            self.tell(**known)

    def tell(self, **more: Any) -> None:
        """Have the kernels that follow know arguments, in the place of others of the same names."""
        known, word = self.known, self._word
        for name, value in more.items():
            known[name] = value if type(value) is int else word(value)

    def launch(
        self,
        signature: Signature,
        blocks: int | tuple[int, int],
        threads: int = 256,
        kernels: Any = None,
        **more: Any,
    ) -> None:
        """Launch a kernel, perhaps one of other `Kernels`, told more than is known."""
        if more:
            self.tell(**more)
        (self._kernels if kernels is None else kernels)[signature](blocks, threads, self.known)

    def take(self, count: int) -> int:
        """Return where words begin that are 0 and that nobody else has; the place stays theirs."""
        if self._taken + count > self._end:
            self._taken = self._end
            self._pools.append((self._end, self._on.zeroed(count)))
            self._end += count
        self._taken += count
        return self._taken - count

    def words(self, first: int, count: int) -> Any:
        """Return what launches take for some of the words."""
        words, first = self._find(first)
        return self._part(words, first, count)

    def zeros(self, count: int) -> Any:
        """Return what launches take for zeroed words that nobody else has."""
        return self.words(self.take(count), count)

    def read(self, first: int, count: int) -> list[int]:
        """Wait for all that was launched, and return some of the words."""
        words, first = self._find(first)
        return self._on.read(words, first, count)

    def _find(self, first: int) -> tuple[Array, int]:
        """Return the words among which a place lies, and its place among them."""
        begin, words = next(pool for pool in reversed(self._pools) if pool[0] <= first)
        return words, first - begin


def share(count: int, each: int, most: int) -> int:
    """Return the blocks of a launch whose threads go through an array a grid apart."""
    return max(min(ceil_div(count, each), most), 1)
