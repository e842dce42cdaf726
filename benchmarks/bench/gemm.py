"""Dense products: every rung of a ladder, verified, then timed against cuBLAS or OpenBLAS.

Each product is C = A B of square matrices of random numbers. A row is one kernel at one size.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from benchmarks.bench.device import BenchDevice
from benchmarks.bench.gemm_report import VENDOR, report
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row
from dasp.cli.timing import WALL_CLOCK, Timing, summarize
from dasp.dense import kernels
from dasp.dense.gemm.ladder import HALF, error_bound, error_factor
from dasp.dense.gemm.product import gemm
from dasp.runtime.cuda.stream import on_stream

DTYPES = ("float32", "float64", "float16", "bfloat16")
SAMPLES = 7
COOLDOWN_SECONDS = 0.15
"""Wait before timing on the CPU: OpenBLAS's idle threads keep their cores busy for some 30 ms."""

CHECKED = 32
"""Rows of a large product that are compared with the reference on the CPU; on the GPU all are."""


class Gemm:
    """Dense products, a row for each kernel of each dtype and size, the vendor's library first.

    `args` are the options of `python -m benchmarks.bench gemm`.

    Raises
    ------
    ValueError
        If a dtype or a kernel cannot be measured on this device.
    RuntimeError
        If threadpoolctl, which gives every library the same threads, is not installed.
    """

    def __init__(self, args: argparse.Namespace, device: BenchDevice) -> None:
        on: Literal["cpu", "cuda"] = "cuda" if device.kind == "cuda" else "cpu"
        if on == "cpu" and importlib.util.find_spec("threadpoolctl") is None:
            raise RuntimeError(
                "threadpoolctl is not installed; it gives NumPy's BLAS the threads that dasp has; "
                "pip install threadpoolctl"
            )
        possible = [name for name in DTYPES if on == "cuda" or name not in HALF]
        if unknown := [name for name in args.dtype if name not in possible]:
            raise ValueError(f"--dtype names {', '.join(unknown)}; some of {', '.join(possible)} are needed")
        self._ladder = kernels(on)
        known = [kernel.name for kernel in self._ladder]
        if unknown := [name for name in args.kernels or () if name not in (*known, "auto", VENDOR)]:
            raise ValueError(
                f"--kernels names {', '.join(unknown)}; some of auto, {', '.join(known)} are needed"
            )
        self.device = device
        self.cases = [f"{dtype}:{size}" for dtype in args.dtype for size in args.sizes]
        self._names = [name for name in args.kernels or (*known, "auto") if name != VENDOR]
        self._seconds = args.seconds
        self._peaks: dict[str, float] = {}

    def _rungs(self, dtype: str) -> list[str]:
        """Return the kernels to measure for a dtype, first the vendor's library, their measure."""
        fit = {kernel.name for kernel in self._ladder if dtype in kernel.dtypes} | {"auto"}
        return [VENDOR, *(name for name in self._names if name in fit)]

    def wanted(self, case: str) -> list[Row]:
        """Return a row for each rung of the case's dtype."""
        dtype, _, size = case.partition(":")
        named = {"matrix": f"gemm:{size}", "dtype": dtype, "device": self.device.kind}
        return [{**named, "kernel": name, "size": size} for name in self._rungs(dtype)]

    def measure(self, case: str) -> Iterator[Row]:
        """Verify and time every rung at one dtype and size."""
        dtype, size = case.partition(":")[0], int(case.partition(":")[2])
        operands = (_Cuda if self.device.kind == "cuda" else _Host)(dtype, size)
        top, vendor = self._peak(dtype), math.nan
        for row in self.wanted(case):
            correct = operands.verify(row["kernel"])
            timing = operands.time(row["kernel"], self._seconds) if correct else None
            speed = 2e-3 * size**3 / timing.median_us if timing else math.nan
            vendor = speed if row["kernel"] == VENDOR else vendor
            yield {
                **row,
                "correct": "yes" if correct else "no",
                "median_us": f"{timing.median_us:.5g}" if timing else "",
                "spread": f"{timing.spread:.3g}" if timing else "",
                "method": timing.method if timing else "",
                "gflops": f"{speed:.5g}",
                "of_vendor": f"{speed / vendor:.4g}",
                "of_peak": f"{speed / top:.4g}",
            }

    def _peak(self, dtype: str) -> float:
        if dtype not in self._peaks:
            self._peaks[dtype] = self.device.peak_gigaflops(dtype)
        return self._peaks[dtype]

    def report(self, rows: Sequence[Row]) -> Report:
        """Return the share that "auto" reaches, then every kernel's."""
        return report(rows)


class _Host:
    """Random matrices on the CPU, a reference for some rows, and the clock."""

    def __init__(self, dtype: str, size: int) -> None:
        rng = np.random.default_rng(size)
        self._a = rng.standard_normal((size, size)).astype(dtype)
        self._b = rng.standard_normal((size, size)).astype(dtype)
        self._out = np.empty_like(self._a)
        self._rows = np.unique(np.linspace(0, size - 1, CHECKED).astype(int))
        some, b = self._a[self._rows].astype(np.longdouble), self._b.astype(np.longdouble)
        self._want, self._scale = some @ b, np.abs(some) @ np.abs(b)
        self._gamma = error_factor(dtype, size)

    def verify(self, kernel: str) -> bool:
        """Return True if nothing is NaN and some rows are within gamma(k) |A| |B| of long double's."""
        self._out[...] = np.nan
        gemm(self._a, self._b, out=self._out, kernel=kernel)
        error = np.abs(self._out[self._rows] - self._want)
        return bool((error <= self._gamma * self._scale).all() and np.isfinite(self._out).all())

    def time(self, kernel: str, seconds: float) -> Timing:
        """Wall-clock samples for about `seconds`, 3 at least."""
        time.sleep(COOLDOWN_SECONDS)
        samples: list[float] = []
        begin = time.perf_counter()
        while len(samples) < 3 or (time.perf_counter() - begin < seconds and len(samples) < 300):
            start = time.perf_counter()
            gemm(self._a, self._b, out=self._out, kernel=kernel)
            samples.append(1e6 * (time.perf_counter() - start))
            if samples[-1] > 3e7:
                break
        return summarize(samples, WALL_CLOCK)


class _Cuda:
    """Random matrices on the GPU, a float64 reference, and events around captured graphs."""

    def __init__(self, dtype: str, size: int) -> None:
        import cupy

        self._cupy = cupy
        if dtype == "bfloat16":
            importlib.import_module("ml_dtypes")  # teaches NumPy the name
        random = cupy.random.default_rng(size)
        self._a, self._b = (
            random.standard_normal((size, size), dtype=np.float32).astype(dtype) for _ in range(2)
        )
        self._out = cupy.empty_like(self._a)
        a, b = self._a.astype("float64"), self._b.astype("float64")
        self._want = a @ b
        scale = cupy.abs(a) @ cupy.abs(b)
        self._bound = error_bound(dtype, size, self._want, scale)

    def verify(self, kernel: str) -> bool:
        """Return True if every result is within gamma(k) |A| |B| of the float64 product."""
        self._out[...] = self._cupy.nan
        gemm(self._a, self._b, out=self._out, kernel=kernel)
        error = self._cupy.abs(self._out.astype("float64") - self._want)
        return bool((error <= self._bound).all())

    def time(self, kernel: str, seconds: float) -> Timing:
        """Replay a graph of several products, SAMPLES times, together about `seconds` long."""
        from dasp.cli.timing import products_in, replays

        def run() -> None:
            gemm(self._a, self._b, out=self._out, kernel=kernel)

        stream = self._cupy.cuda.Stream(non_blocking=True)
        with on_stream(stream):
            products = products_in(1e6 * seconds / SAMPLES, run, stream, most=50)
            samples, method = replays(run, stream, SAMPLES, products)
        return summarize(samples, method)
