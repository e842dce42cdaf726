"""A device for the CUDA primitives without a GPU: NumPy arrays, and kernels that the emulator runs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from dasp.runtime.dtypes import bits_type
from tests.simt import compile_kernels, poisoned


class PackingDevice:
    """A stand-in for `dasp.runtime.cuda.device.CudaDevice`; no kernel may read what none has written.

    Parameters
    ----------
    seed : int, optional
        Run blocks, warps and lanes in a random order.

    Attributes
    ----------
    launches : list of str
        Names of the kernels, in the order of their launches.
    sources : dict
        The number of requests for each source with its constants.
    reads : int
        Copies to the host.
    bytes, peak : int
        Bytes of the arrays that are alive now, and the most at any time.
    """

    shared_words = 8192
    processors = 3

    def __init__(self, seed: int | None = None) -> None:
        self.launches: list[str] = []
        self.sources: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self.reads = self.bytes = self.peak = 0
        self._seed = seed
        self._written: dict[int, np.ndarray] = {}  # a flag for each byte, by the identity of its array

    def is_capturing(self) -> bool:
        return False

    def empty(self, shape: Any, dtype: Any) -> Any:
        array = self.zeros(shape, dtype)
        array.view(np.uint8)[...] = 0xA5
        self._written[id(array)] = np.zeros(array.nbytes, np.uint8)
        return array

    def zeros(self, shape: Any, dtype: Any) -> Any:
        # A view has the counted array as its base, so the array lives as long as any view.
        array = np.zeros(shape, dtype)
        self.bytes += array.nbytes
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(array, self._free, id(array), array.nbytes)
        return array

    def _free(self, number: int, size: int) -> None:
        self.bytes -= size
        self._written.pop(number, None)

    def asarray(self, array: Any, dtype: Any) -> Any:
        return np.asarray(array, dtype)

    def copy(self, target: Any, source: Any) -> None:
        target[:] = source[: len(target)]
        owner = _owner(target)
        written = self._written.get(id(owner))
        if written is not None:
            offset = target.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            written[offset : offset + target.nbytes] = 1

    def read(self, numbers: Any) -> list[int]:
        self.reads += 1
        return list(numbers.tolist())

    def prepare_kernel(self, signature: Any, constants: Any, types: Any) -> Any:
        self.begin_loading([(signature.source, constants)])
        module = compile_kernels(signature.source, constants)

        def launch(blocks: int | tuple[int, int], threads: int, arguments: Mapping[str, Any]) -> None:
            self.launches.append(signature.entry)
            declared = {p.name: arguments[p.name] for p in signature.parameters}
            ordered = [self._marked(value) for value in signature.ordered(types, declared)]
            how = {"seed": self._seed}
            if signature.shared_words:
                how["shared_bytes"] = 4 * arguments[signature.shared_words]
            module.launch(signature.entry, grid=blocks, block=threads, args=ordered, **how)

        return launch

    def begin_loading(self, wanted: Any) -> None:
        for name, constants in wanted:
            key = name, frozenset(constants.items())
            self.sources[key] = self.sources.get(key, 0) + 1

    def _marked(self, value: Any) -> Any:
        """Return an array with its written bytes marked; after a view of it, all count as written."""
        if not isinstance(value, np.ndarray):
            return value
        owner, as_it_is = _owner(value), value
        if value.dtype.kind not in "iu" or value.dtype == np.int8:  # values and codes: kernels move bits
            value = value.view(bits_type(value.dtype))
        written = self._written.get(id(owner))
        if written is None:
            return value
        if owner is not as_it_is:
            del self._written[id(owner)]
            return value
        marker = poisoned(value)
        marker._bytes = written
        return marker


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory a view shows, or the array itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
