"""The machine a benchmark runs on: that of `dasp bench`, with all baselines, its peaks and its memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

from benchmarks.bench import machine
from benchmarks.bench.cold import add_cold
from dasp.cli import devices
from dasp.cli.devices import Makers
from dasp.cli.timing import Candidate, Timing


class HostDevice(devices.TimedHost):
    """The host's cores, with MKL too."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Give BLAS and OpenMP libraries as many threads as we have, where threadpoolctl is installed."""
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            yield
            return
        with threadpool_limits(limits=self.threads):
            yield

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """Names of all baselines."""
        from benchmarks.bench.baselines_cpu import NAMES

        return NAMES

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of the last-level cache."""
        return machine.last_level_cache_bytes()

    def columns(self) -> dict[str, str]:
        """Processor, threads, libraries, commit."""
        return machine.host_columns(self.threads)

    def peak_gigaflops(self, dtype: str) -> float:
        """Return the multiply-adds in registers, measured."""
        from benchmarks.bench.peak import cpu_gigaflops

        return cpu_gigaflops(dtype, self.threads)

    def resident(self, csr: Any) -> None:
        """Nothing: the host's matrix is where it is."""

    def all_baselines(self, csr: Any, x: Any, names: Collection[str], *, transpose: bool = False) -> Makers:
        """SciPy, numba and MKL."""
        from benchmarks.bench.baselines_cpu import build

        return build(csr, x, names=names, threads=self.threads, transpose=transpose)


class CudaDevice(devices.TimedGpu):
    """The current GPU, with every setting of cuSPARSE."""

    def alone(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """Names of all baselines."""
        from benchmarks.bench.baselines_cuda import NAMES

        return NAMES

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of the L2."""
        import cupy

        return int(cupy.cuda.Device().attributes["L2CacheSize"])

    def columns(self) -> dict[str, str]:
        """GPU, driver, CUDA, libraries, commit."""
        from benchmarks.bench import cusparse

        try:
            version = cusparse.load().version_text
        except RuntimeError:
            version = ""
        return machine.cuda_columns(version)

    def peak_gigaflops(self, dtype: str) -> float:
        """Return the peak by the data sheet's rates, at the highest clock."""
        from benchmarks.bench.peak import gpu_gigaflops

        return gpu_gigaflops(dtype)

    def resident(self, csr: Any) -> Any:
        """Return a CSR matrix of CuPy, copied to the GPU; None of halves, which it cannot hold."""
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(csr) if csr.dtype.itemsize > 2 else None

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time CUDA graphs hot, single products cold."""
        return add_cold(super().time(candidates, samples), candidates)

    def all_baselines(self, csr: Any, x: Any, names: Collection[str], *, transpose: bool = False) -> Makers:
        """Return the settings of cuSPARSE, and CuPy."""
        from benchmarks.bench.baselines_cuda import build

        return build(csr, x, names=names, transpose=transpose)


BenchDevice = HostDevice | CudaDevice


def open_device(name: str, *, threads: int | None = None, seconds: float = 0.6) -> BenchDevice:
    """Return the device of `--device`, a GPU made the current one; raises as `dasp.cli.devices` does."""
    if isinstance(devices.open_device(name, threads=threads), devices.TimedGpu):
        return CudaDevice()
    return HostDevice(threads, seconds=seconds)
