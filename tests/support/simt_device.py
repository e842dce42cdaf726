"""A device for `dasp.solvers.cuda` whose kernels run in the emulator, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dasp.solvers.cpu import space as cpu_space
from dasp.solvers.cuda.space import CudaSpace
from tests.simt import compile_kernels


class EmulatedDevice:
    """A device that launches kernels in the emulator, and keeps their names."""

    def __init__(self, processors: int = 2) -> None:
        self.processors = processors
        self.launches: list[str] = []

    def zeros(self, count: int, dtype: Any) -> np.ndarray:
        return np.zeros(count, dtype)

    def empty(self, count: int, dtype: Any) -> np.ndarray:
        return np.full(count, np.nan, dtype)

    def shared_with_host(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        array = np.full(count, np.nan)
        return array, array

    def wait(self) -> None:
        """Return at once: every launch has ended when it returns."""

    def upload(self, target: np.ndarray, source: np.ndarray) -> None:
        target[...] = source

    def download(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def asarray(self, array: Any, dtype: Any) -> np.ndarray:
        return np.asarray(array, dtype)

    def address(self, array: np.ndarray) -> int:
        return 0 if array.base is None else array.ctypes.data - array.base.ctypes.data

    def begin_loading(self, wanted: Any) -> None:
        """Leave it to each launch to compile its source."""

    def prepare_launch(
        self,
        signature: Any,
        defines: Mapping[str, str],
        arguments: Mapping[str, Any],
        blocks: int,
        threads: int,
        types: Mapping[str, Any] | None = None,
        varying: Sequence[str] = (),
        *,
        shared_bytes: int = 0,
        together: bool = False,
    ) -> Callable[..., None]:
        module = compile_kernels(signature.source, defines)
        signature.ordered(types or {}, arguments, varying)

        def launch(*values: Any) -> None:
            self.launches.append(signature.entry)
            every = {**arguments, **dict(zip(varying, values, strict=True))}
            given = signature.ordered(types or {}, every)
            module.launch(signature.entry, blocks, threads, given, shared_bytes, cooperative=together)

        return launch

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        return function

    def repeat(
        self, function: Callable[[], None], numbers: np.ndarray, *, captured: bool
    ) -> Callable[[], None]:
        def run() -> None:
            turns = 0
            while numbers[0] == 0 or not turns:
                function()
                turns += 1

        return run


def emulate(monkeypatch: pytest.MonkeyPatch, device: EmulatedDevice | None = None) -> EmulatedDevice:
    """Let all solvers and preconditioners that are prepared from now on work as on a GPU, in the emulator."""
    device = device or EmulatedDevice()
    monkeypatch.setattr(cpu_space, "make_space", lambda name, dtype: CudaSpace(name, dtype, device))
    return device


def hold_emulated(monkeypatch: Any, made: Callable[[], Sequence[Any]], r: Any, dtype: Any) -> None:
    """Hold that preconditioners give the same M r in the emulator as on the CPU, but for rounding."""
    want = [M @ r for M in made()]
    device = emulate(monkeypatch)
    got = [M @ r for M in made()]
    assert device.launches.count("dasp_fused") > 10
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=50 * np.finfo(dtype).eps * abs(other).max())
