"""The devices on which `dasp bench` times products, and the baselines on each.

The baselines are SciPy's product and a loop of Numba on a CPU, and CuPy's product on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dasp.cli.timing import Candidate, Timing, cuda_copy_bandwidth, host_copy_bandwidth, time_cuda, time_host
from dasp.matrix.planning import find_device
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cuda import gpus
from dasp.runtime.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# ---- the products of other libraries ---------------------------------------------------------------------


Makers = dict[str, Callable[[], Candidate]]
"""Functions that make baselines, by name; one raises if its baseline does not run."""


def _refuse_halves(dtype: np.dtype[Any], name: str) -> None:
    if dtype.itemsize < 4:
        raise RuntimeError(f"{name} has no products of {dtype}")


def scipy_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return SciPy's `csr @ x`: one thread, a new y at every product; RuntimeError for half precision."""
    _refuse_halves(x.dtype, "SciPy")
    return Candidate("scipy", lambda: csr @ x)


def cupy_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return CuPy's `A @ x`, called from Python; RuntimeError for half precision."""
    from cupyx.scipy.sparse import csr_matrix

    _refuse_halves(x.dtype, "CuPy")
    matrix = csr_matrix(csr)
    return Candidate("cupy", lambda: matrix @ x)


@cache
def _compile_row_loop() -> Callable[..., None]:
    """Return a compiled loop over rows for y = A x; all threads get equally many rows."""
    import numba

    from dasp.runtime.cpu.compile import jit

    @jit(parallel=True, nogil=True)
    def multiply(data: Array, indices: Array, indptr: Array, x: Array, y: Array) -> None:
        for row in numba.prange(len(y)):
            total = y.dtype.type(0)
            for entry in range(indptr[row], indptr[row + 1]):
                total += data[entry] * x[indices[entry]]
            y[row] = total

    return multiply


def numba_candidate(csr: csr_array, x: Array) -> Candidate:
    """Return Numba's plain loop over rows; RuntimeError for half precision."""
    _refuse_halves(x.dtype, "Numba")
    multiply = _compile_row_loop()
    y = np.empty(csr.shape[0], dtype=x.dtype)
    return Candidate(
        "numba_csr", lambda: multiply(csr.data, csr.indices, csr.indptr, x, y), y, cooldown_seconds=0.02
    )


# ---- the devices -----------------------------------------------------------------------------------------


class TimedHost:
    """The cores of the host.

    Parameters
    ----------
    threads : int, optional
        Threads of dasp and of every baseline that can use them; every core by default.
    seconds : float
        Time for the samples of each candidate.
    """

    kind = "cpu"

    def __init__(self, threads: int | None = None, *, seconds: float = 0.6) -> None:
        import numba

        limit = int(numba.config.NUMBA_NUM_THREADS)
        if threads is not None and not 1 <= threads <= limit:
            raise ValueError(f"{threads} threads were asked for; 1 to {limit} are available")
        self.threads = threads or limit
        numba.set_num_threads(self.threads)
        _threads.set_num_threads(self.threads)
        self._seconds = seconds

    @cached_property
    def bandwidth(self) -> float:
        """Measured copy bandwidth of all threads: bytes read and written per second."""
        return host_copy_bandwidth(self.threads)

    def vector(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the vector, contiguous."""
        return np.ascontiguousarray(values)

    def synchronize(self) -> None:
        """Do nothing: host products return when they are done."""

    def baselines(self, csr: csr_array, x: Array) -> Makers:
        """Return SciPy's product and numba's loop over rows."""
        return {"scipy": lambda: scipy_candidate(csr, x), "numba_csr": lambda: numba_candidate(csr, x)}

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time candidates by the wall clock, in rounds."""
        return time_host(candidates, seconds=self._seconds, samples=samples)


class TimedGpu:
    """The current GPU."""

    kind = "cuda"

    @cached_property
    def bandwidth(self) -> float:
        """Measured device-to-device copy bandwidth: bytes read and written per second."""
        return cuda_copy_bandwidth()

    def vector(self, values: NDArray[Any]) -> Any:
        """Return a copy on the GPU."""
        import cupy

        return cupy.asarray(values)

    def synchronize(self) -> None:
        """Wait for every stream."""
        import cupy

        cupy.cuda.Device().synchronize()

    def baselines(self, csr: csr_array, x: Array) -> Makers:
        """Return CuPy's product."""
        return {"cupy": lambda: cupy_candidate(csr, x)}

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time candidates in CUDA graphs."""
        return time_cuda(candidates, samples=samples)


TimedDevice = TimedHost | TimedGpu
"""A device on which products are timed."""


def open_device(name: str, *, threads: int | None = None, seconds: float = 0.6) -> TimedDevice:
    """Return the device that `--device` names; make a GPU the current one.

    Raises
    ------
    ValueError, RuntimeError
        If there is no such device, or it does not work.
    """
    device = find_device(name)
    if device == "cpu":
        return TimedHost(threads, seconds=seconds)
    gpus.use(device)
    return TimedGpu()
