"""The machine a product is timed on: its arrays, its cache, its copy bandwidth, its baselines and its clock.

`HostDevice` and `CudaDevice` answer the same questions, so that `sparse.measure` is one story for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dasp.bench import machine
from dasp.bench.memory import CudaMemory, HostMemory, PeakMemory
from dasp.runtime.candidate import Baselines, Candidate
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.timing import Timing


class BenchDevice(Protocol):
    """What `sparse.measure` asks of a machine."""

    kind: str
    """`cpu` or `cuda`, as SpMatrix takes it."""
    statistic: str
    """Which of a timing's figures is compared: `median` or `best`."""
    baseline_names: tuple[str, ...]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the last cache before memory."""

    @property
    def bandwidth(self) -> float:
        """Measured copy bandwidth, bytes read and written per second."""

    def columns(self) -> dict[str, str]:
        """What the result file says about the machine."""

    def peak_gigaflops(self, dtype: str) -> float:
        """The arithmetic peak, 10^9 operations per second; NaN where it is not known."""

    def alone(self) -> AbstractContextManager[Any]:
        """Within it every library of this process has the device's number of threads."""

    def resident(self, csr: Any) -> Any:
        """The matrix as a program on this device holds it; None where that is the host's matrix itself."""

    def memory(self) -> PeakMemory:
        """A watch over the memory that planning takes."""

    def vector(self, values: NDArray[Any]) -> Any:
        """A copy of a host vector on the device."""

    def fetch(self, values: Any) -> NDArray[Any]:
        """A copy of a device vector on the host."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def baselines(self, csr: Any, x: Any, names: Collection[str], *, transpose: bool = False) -> Baselines:
        """The baselines of one matrix, or of the product with its transpose."""

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time candidates."""


class HostDevice:
    """The host's cores.

    Parameters
    ----------
    threads : int, optional
        Threads for us and for every baseline that can use them; every core by default.
    bandwidth : float, optional
        Bytes per second, instead of measuring it.
    seconds : float
        Time for the samples of each candidate.
    """

    kind = "cpu"
    statistic = "median"

    def __init__(
        self, threads: int | None = None, *, bandwidth: float | None = None, seconds: float = 0.6
    ) -> None:
        """Set the number of threads."""
        import numba

        from dasp.bench.baselines_cpu import NAMES

        limit = int(numba.config.NUMBA_NUM_THREADS)
        if threads is not None and not 1 <= threads <= limit:
            raise ValueError(f"{threads} threads were asked for; 1 to {limit} are available")
        self.threads = threads or limit
        numba.set_num_threads(self.threads)
        _threads.set_num_threads(self.threads)
        self.baseline_names: tuple[str, ...] = NAMES
        self._bandwidth = bandwidth
        self._seconds = seconds

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of the last-level cache."""
        return machine.last_level_cache_bytes()

    @cached_property
    def bandwidth(self) -> float:
        """Measured copy bandwidth of all threads."""
        from dasp.bench.roofline import host_copy_bandwidth

        return self._bandwidth or host_copy_bandwidth(self.threads)

    def columns(self) -> dict[str, str]:
        """Processor, threads, libraries, commit."""
        return machine.host_columns(self.threads)

    def peak_gigaflops(self, dtype: str) -> float:
        """Multiply-adds in registers, measured."""
        from dasp.bench.peak_cpu import cpu_gigaflops

        return cpu_gigaflops(dtype, self.threads)

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

    def resident(self, csr: Any) -> None:
        """Nothing: the host's matrix is where it is."""

    def memory(self) -> PeakMemory:
        """Peak of this process's memory, which Linux counts."""
        return HostMemory()

    def vector(self, values: NDArray[Any]) -> NDArray[Any]:
        """The vector itself."""
        return np.ascontiguousarray(values)

    def fetch(self, values: Any) -> NDArray[Any]:
        """The vector itself."""
        return np.asarray(values)

    def synchronize(self) -> None:
        """Nothing to wait for: host products return when they are done."""

    def baselines(self, csr: Any, x: Any, names: Collection[str], *, transpose: bool = False) -> Baselines:
        """SciPy, numba and MKL."""
        from dasp.bench.baselines_cpu import build

        return build(csr, x, names=names, threads=self.threads, transpose=transpose)

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Wall clock, in rounds."""
        from dasp.runtime.cpu.timing import time_host

        return time_host(candidates, seconds=self._seconds, samples=samples)


class CudaDevice:
    """The current GPU.

    Parameters
    ----------
    bandwidth : float, optional
        Bytes per second, instead of measuring it.

    Raises
    ------
    RuntimeError
        If CuPy is not installed, or there is no GPU that works.
    """

    kind = "cuda"
    statistic = "best"

    def __init__(self, *, bandwidth: float | None = None) -> None:
        """Look for a GPU."""
        try:
            import cupy

            count = int(cupy.cuda.runtime.getDeviceCount())
        except (ImportError, RuntimeError) as error:
            raise RuntimeError(f"no GPU can be used ({error}); pass --device cpu") from error
        if count == 0:
            raise RuntimeError("no GPU was found; pass --device cpu")
        from dasp.bench.baselines_cuda import NAMES

        self.baseline_names: tuple[str, ...] = NAMES
        self._bandwidth = bandwidth

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of the L2."""
        import cupy

        return int(cupy.cuda.Device().attributes["L2CacheSize"])

    @cached_property
    def bandwidth(self) -> float:
        """Measured device-to-device copy bandwidth."""
        from dasp.bench.roofline import cuda_copy_bandwidth

        return self._bandwidth or cuda_copy_bandwidth()

    def columns(self) -> dict[str, str]:
        """GPU, driver, CUDA, libraries, commit."""
        from dasp.bench import cusparse

        try:
            version = cusparse.load().version_text
        except RuntimeError:
            version = ""
        return machine.cuda_columns(version)

    def peak_gigaflops(self, dtype: str) -> float:
        """By the data sheet's rates, at the highest clock."""
        from dasp.bench.peak import cuda_peak

        return cuda_peak(dtype)

    def alone(self) -> AbstractContextManager[Any]:
        """Nothing to share."""
        return nullcontext()

    def resident(self, csr: Any) -> Any:
        """A `cupyx.scipy.sparse.csr_matrix`, copied to the GPU; None of halves, which CuPy's cannot hold."""
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(csr) if csr.dtype.itemsize > 2 else None

    def memory(self) -> PeakMemory:
        """Peak of what CuPy allocates on the GPU."""
        return CudaMemory()

    def vector(self, values: NDArray[Any]) -> Any:
        """A copy on the GPU."""
        import cupy

        return cupy.asarray(values)

    def fetch(self, values: Any) -> NDArray[Any]:
        """A copy on the host, after the device has finished."""
        import cupy

        self.synchronize()
        return np.asarray(cupy.asnumpy(values))

    def synchronize(self) -> None:
        """Wait for every stream."""
        import cupy

        cupy.cuda.Device().synchronize()

    def baselines(self, csr: Any, x: Any, names: Collection[str], *, transpose: bool = False) -> Baselines:
        """CuSPARSE's settings, and CuPy."""
        from dasp.bench.baselines_cuda import build

        return build(csr, x, names=names, transpose=transpose)

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """CUDA graphs hot, single products cold."""
        from dasp.runtime.cuda.timing import time_cuda

        return time_cuda(candidates, samples=samples)


def open_device(
    name: str, *, threads: int | None = None, seconds: float = 0.6, bandwidth: float | None = None
) -> BenchDevice:
    """The device of `--device auto|cpu|cuda`; `auto` takes the GPU where one works.

    Raises
    ------
    RuntimeError
        If `cuda` is asked for and no GPU works.
    ValueError
        If the name is none of the three.
    """
    if name == "cpu":
        return HostDevice(threads, bandwidth=bandwidth, seconds=seconds)
    if name == "cuda":
        return CudaDevice(bandwidth=bandwidth)
    if name != "auto":
        raise ValueError(f"the device is {name!r}; auto, cpu or cuda is needed")
    try:
        return CudaDevice(bandwidth=bandwidth)
    except RuntimeError:
        return HostDevice(threads, bandwidth=bandwidth, seconds=seconds)
