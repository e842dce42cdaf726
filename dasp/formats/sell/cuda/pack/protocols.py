"""What packing asks of a device: arrays, launches, and words that the host reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dasp.formats.plan import Array
from dasp.runtime.cuda.launch import Launches, Signature


class Device(Protocol):
    """Arrays and launches; everything that is launched runs in order."""

    @property
    def together(self) -> int:
        """Blocks that can be told to run at the same time, four to a multiprocessor; 0 if none can."""

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

    def question(self) -> Question:
        """Return words for a question that one kernel asks and the next acts on."""

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

    def prepared(
        self,
        signature: Signature,
        constants: Mapping[str, str],
        types: Mapping[str, np.dtype[Any]],
        arguments: Mapping[str, Any],
        varying: Sequence[str],
        blocks: int,
        threads: int,
        *,
        overlaps: bool,
        together: bool,
    ) -> Callable[..., None]:
        """Return a launch of a compiled kernel, to be given what varies in its order; it keeps the arrays.

        One that `overlaps` may start before the kernel in front of it has ended, and waits for it by itself.
        All blocks of one that runs `together` do so at the same time.
        """

    def load_all(self, wanted: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Have sources compiled beside each other, each for some constants."""


class Question(Protocol):
    """Words for a question that is asked of many numbers and acted on; nobody else has them.

    Attributes
    ----------
    misfit, votes, told : object
        What launches take for a word on the device by which one kernel says to the next that some number does
        not fit, for two by which blocks agree (0 each, before and after), and for one that the host reads.
    turn : int
        What `misfit` becomes if some number does not fit; it holds less before.
    """

    misfit: Any
    votes: Any
    told: Any
    turn: int

    def fits(self) -> bool:
        """Wait for what is told, and return whether that is 2, and not 1; the words are free then."""
