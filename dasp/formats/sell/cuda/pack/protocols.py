"""What packing asks of a device: arrays, launches, and words that the host reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dasp.formats.plan import Array
from dasp.runtime.cuda.launch import Launches, Signature


class Device(Protocol):
    """Arrays and launches; everything that is launched runs in order."""

    @property
    def shared_words(self) -> int:
        """Words of 4 bytes of dynamic shared memory that a block may have."""

    def is_capturing(self) -> bool:
        """Whether what is launched is captured in a graph, or was until an error."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of any contents."""

    def zeros(self, size: int, dtype: Any) -> Array:
        """Return a new array of zeros."""

    def scratch(self, *arrays: tuple[int, np.dtype[Any]]) -> list[Array]:
        """Return arrays of any contents, each of a size and a type, that kernels alone see.

        They live as long as each other.
        """

    def shown(self, array: Array, shape: tuple[int, ...] | None = None) -> Array:
        """Return such an array as all others are; that takes so long that kernels are launched first."""

    def zeroed(self, count: int) -> Array:
        """Return words, 0 each, that kernels alone see."""

    def constant(self, numbers: tuple[int, ...]) -> Array:
        """Return an int64 array of these numbers that nobody writes to."""

    def word(self, value: Any) -> Any:
        """Return what launches take for an array, an int or None, the null pointer."""

    def first(self, numbers: Array) -> Array:
        """Return a new array with the first of some numbers."""

    def bits(self, numbers: Array, kind: np.dtype[Any]) -> Any:
        """Return what launches take for an array of numbers that kernels see as bits, of a type as wide."""

    def part(self, array: Array, first: int, count: int) -> Any:
        """Return what launches take for some of the numbers of an array, which it does not keep."""

    def read(self, words: Array, first: int, count: int) -> list[int]:
        """Wait for all that was launched, and return some of the words."""

    def kernel(
        self, signature: Signature, constants: Mapping[str, str], types: Mapping[str, np.dtype[Any]]
    ) -> Launches:
        """Return a compiled kernel."""

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other, each for some constants."""
