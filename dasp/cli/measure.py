"""Verify every row of a planned matrix's product, then time it beside other libraries'.

The others are what a user would call in its place: SciPy's product and a loop of numba on a CPU, CuPy's
product on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dasp.cli.baselines import (
    Baselines,
    Missing,
    cupy_candidate,
    make_baselines,
    numba_candidate,
    scipy_candidate,
)
from dasp.cli.timing import Candidate, Timing
from dasp.cli.values import fill, random_vector
from dasp.cli.verify import Reference, Verification, check_rows, reference_product
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.types import Array, DTypeLike

if TYPE_CHECKING:
    from scipy.sparse import csr_array

OURS = "dasp"
"""The timing of `A.matvec(x, out=y)`, which is what is compared."""

OURS_NEW = "dasp_new"
"""The timing of `A @ x`, called from Python, which makes a new y, as SciPy's and CuPy's does."""

BY_A_CALL = ("scipy", "cupy")
"""Baselines that are called from Python and make a new y; ours is called in the same way against them."""

PLAN_TRIES = 100
PLAN_SECONDS = 0.5
"""Planning is timed twice, as the first may compile, and then up to so often in so long; the best counts."""


class Operator(Protocol):
    """The part of a planned matrix that is measured; SpMatrix has it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the plan."""

    def matvec(self, x: Array, *, out: Array) -> Array:
        """Write A x to `out`."""

    def __matmul__(self, x: Array) -> Array:
        """Return A x, in a new vector."""


class TimedHost:
    """The host's cores.

    Parameters
    ----------
    threads : int, optional
        Threads for us and for every baseline that can use them; every core by default.
    seconds : float
        Time for the samples of each candidate.
    """

    kind = "cpu"
    statistic = "median"
    """The figure of a timing that is compared."""

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
        from dasp.cli.roofline import host_copy_bandwidth

        return host_copy_bandwidth(self.threads)

    def vector(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the vector itself."""
        return np.ascontiguousarray(values)

    def fetch(self, values: Array) -> NDArray[Any]:
        """Return the vector itself."""
        return np.asarray(values)

    def synchronize(self) -> None:
        """Do nothing: host products return when they are done."""

    def baselines(self, csr: csr_array, x: Array) -> Baselines:
        """Return SciPy's product and numba's loop over rows."""
        return make_baselines({"scipy": scipy_candidate, "numba_csr": numba_candidate}, csr, x)

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time by the wall clock, in rounds."""
        from dasp.cli.timing import time_host

        return time_host(candidates, seconds=self._seconds, samples=samples)


class TimedGpu:
    """The current GPU.

    Raises
    ------
    RuntimeError
        If CuPy is not installed, or there is no GPU that works.
    """

    kind = "cuda"
    statistic = "best"

    def __init__(self) -> None:
        try:
            import cupy

            count = int(cupy.cuda.runtime.getDeviceCount())
        except (ImportError, RuntimeError) as error:
            raise RuntimeError(f"no GPU can be used ({error}); pass --device cpu") from error
        if count == 0:
            raise RuntimeError("no GPU was found; pass --device cpu")

    @cached_property
    def bandwidth(self) -> float:
        """Measured device-to-device copy bandwidth: bytes read and written per second."""
        from dasp.cli.roofline import cuda_copy_bandwidth

        return cuda_copy_bandwidth()

    def vector(self, values: NDArray[Any]) -> Any:
        """Return a copy on the GPU."""
        import cupy

        return cupy.asarray(values)

    def fetch(self, values: Array) -> NDArray[Any]:
        """Return a copy on the host, after the device has finished."""
        import cupy

        self.synchronize()
        return np.asarray(cupy.asnumpy(values))

    def synchronize(self) -> None:
        """Wait for every stream."""
        import cupy

        cupy.cuda.Device().synchronize()

    def baselines(self, csr: csr_array, x: Array) -> Baselines:
        """Return CuPy's product."""
        return make_baselines({"cupy": cupy_candidate}, csr, x)

    def time(self, candidates: Sequence[Candidate], samples: int | None) -> dict[str, Timing]:
        """Time CUDA graphs hot, single products cold."""
        from dasp.cli.timing_cuda import time_cuda

        return time_cuda(candidates, samples=samples)


TimedDevice = TimedHost | TimedGpu
"""A device on which products are timed."""


def open_device(name: str, *, threads: int | None = None, seconds: float = 0.6) -> TimedDevice:
    """Return the device of `--device auto|cpu|cuda`; `auto` takes the GPU where one works.

    Raises
    ------
    RuntimeError
        If `cuda` is asked for and no GPU works.
    """
    if name != "cpu":
        try:
            return TimedGpu()
        except RuntimeError:
            if name == "cuda":
                raise
    return TimedHost(threads, seconds=seconds)


# ---- one matrix ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A product beside others of the same matrix, on one device.

    Attributes
    ----------
    verified : Verification
        The check of our product; where it failed, nothing was timed.
    statistic : str
        `median` or `best`: the figure that is compared.
    timings : dict of str to Timing
        By name: ours, then the baselines.
    setup_ms : dict of str to float
        Milliseconds that each baseline needs once.
    missing : tuple of Missing
        Baselines that did not run, or were wrong.
    """

    verified: Verification
    statistic: str
    timings: dict[str, Timing] = field(default_factory=dict)
    setup_ms: dict[str, float] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()

    def us(self, name: str) -> float:
        """Return the microseconds that are compared for a timing; NaN where it is missing."""
        if name not in self.timings:
            return math.nan
        timing = self.timings[name]
        return timing.median_us if self.statistic == "median" else timing.best_us

    @property
    def baselines(self) -> list[str]:
        """The baselines that were timed."""
        return [name for name in self.timings if name not in (OURS, OURS_NEW)]

    @property
    def best_baseline(self) -> str:
        """The fastest baseline, or an empty string."""
        return min(self.baselines, key=self.us, default="")

    def pays_after(self, plan_ms: float, name: str) -> float:
        """Return after how many products a plan has paid against a baseline that was timed."""
        ours = self.us(OURS_NEW if name in BY_A_CALL else OURS)
        return break_even(plan_ms, ours, self.setup_ms.get(name, 0.0), self.us(name))


def compare(
    operator: Operator,
    csr: csr_array,
    device: TimedDevice,
    make: Callable[[Any], Baselines],
    *,
    seed: int = 0,
    samples: int | None = None,
) -> Comparison:
    """Verify every row of a planned matrix's product, then time it beside baselines.

    Parameters
    ----------
    operator : Operator
    csr : scipy.sparse.csr_array, shape (m, n)
        The same matrix.
    device : TimedDevice
    make : callable
        Makes the baselines of x, shape (n,), on the device.
    seed : int
        Of x, drawn from the standard normal distribution.
    samples : int, optional
        Timed samples of each candidate, instead of as many as the device thinks right.

    Returns
    -------
    Comparison
        With timings only if our product is right in every row. A baseline that is wrong is missing.
    """
    x = random_vector(csr.shape[1], csr.dtype, seed)
    there = device.vector(x)
    reference = reference_product(csr.data, csr.indices, csr.indptr, x)
    ours = _make_candidates(operator, there, csr.shape[0], device, csr.dtype)
    checks = [_verify(candidate, reference, device) for candidate in ours]
    verified = max(checks, key=lambda check: (check.rows_failed, check.worst))
    if not verified.passed:
        return Comparison(verified=verified, statistic=device.statistic)
    others = _keep_right(make(there), reference, device)
    timings = device.time([*ours, *others.candidates], samples)
    for other in others.candidates:
        with suppress(RuntimeError):
            other.close()
    return Comparison(
        verified=verified,
        statistic=device.statistic,
        timings=timings,
        setup_ms={each.name: each.setup_ms for each in others.candidates},
        missing=tuple(others.missing),
    )


def _make_candidates(
    operator: Operator, x: Array, rows: int, device: TimedDevice, dtype: np.dtype[Any]
) -> list[Candidate]:
    """Return our products: into a given y, and into a new one by a call from Python."""
    y = device.vector(np.full(rows, np.nan, dtype=dtype))
    held: list[Any] = []

    def into_given() -> None:
        operator.matvec(x, out=y)

    def into_new() -> None:
        held[:] = [operator @ x]

    given = Candidate(
        OURS, into_given, lambda: y, lambda: fill(y, np.nan), cooldown_seconds=0.02, owned=operator
    )
    new = Candidate(OURS_NEW, into_new, lambda: held[0], held.clear, cooldown_seconds=0.02, capturable=False)
    return [given, new]


def _verify(candidate: Candidate, reference: Reference, device: TimedDevice) -> Verification:
    """Spoil y, run once, check every row."""
    candidate.poison()
    candidate.run()
    return check_rows(device.fetch(candidate.result()), reference)


def _keep_right(made: Baselines, reference: Reference, device: TimedDevice) -> Baselines:
    """Return the baselines whose every row is right; the others are missing."""
    right = Baselines(missing=list(made.missing))
    for candidate in made.candidates:
        try:
            check = _verify(candidate, reference, device)
        except RuntimeError as error:
            right.missing.append(Missing(candidate.name, str(error)))
            continue
        if check.passed:
            right.candidates.append(candidate)
        else:
            right.missing.append(Missing(candidate.name, f"wrong in {check.rows_failed} rows"))
    return right


def best_ms(make: Callable[[], Any], device: TimedDevice, tries: int = PLAN_TRIES) -> tuple[Any, float]:
    """Call `make` several times; return its last result and the best time in ms."""
    best, begun, made = math.inf, 0.0, None
    for nth in range(tries):
        if nth > 1 and time.perf_counter() - begun > PLAN_SECONDS:
            break
        made = None  # the one before is given back first
        started = time.perf_counter()
        made = make()
        device.synchronize()
        best = min(best, time.perf_counter() - started)
        begun = begun or time.perf_counter()
    return made, 1e3 * best


def warm_up(
    plan: Callable[[Any], Operator],
    device: TimedDevice,
    dtype: DTypeLike = np.float64,
    *,
    transpose: bool = False,
) -> None:
    """Plan and multiply a small matrix with rows of every category, so that compiling is timed nowhere."""
    import scipy.sparse

    lengths = np.array([0, 1, 2, 3, 4, 5, 9, 32, 33, 300, 600] * 4)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    values = np.ones(indptr[-1], dtype=dtype)
    csr = scipy.sparse.csr_array((values, indices, indptr), shape=(len(lengths), 640))
    x = device.vector(np.ones(640, dtype=dtype))
    planned: Any = plan(csr)
    planned.matvec(x, out=device.vector(np.zeros(len(lengths), dtype=dtype)))
    if transpose:
        planned.T.matvec(device.vector(np.ones(len(lengths), dtype=dtype)))
    device.synchronize()


def break_even(plan_ms: float, ours_us: float, setup_ms: float, theirs_us: float) -> float:
    """Return after how many products planning has paid, the baseline's own set-up counted.

    Examples
    --------
    >>> break_even(plan_ms=10.0, ours_us=5.0, setup_ms=2.0, theirs_us=25.0)
    400.0
    >>> break_even(1.0, 5.0, 2.0, 25.0), break_even(10.0, 5.0, 0.0, 4.0)
    (0.0, inf)
    """
    if math.isnan(plan_ms + ours_us + setup_ms + theirs_us):
        return math.nan
    if not ours_us < theirs_us:
        return math.inf
    return max(1e3 * (plan_ms - setup_ms) / (theirs_us - ours_us), 0.0)
