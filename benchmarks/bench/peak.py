"""The arithmetic peak of a machine: measured on a CPU, from the data sheet's rates and the clock on a GPU."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from dasp.dense.gemm.goto import TileEmitter, host_tile
from dasp.runtime.cpu import threads as _threads
from dasp.runtime.cpu.compile import jit
from dasp.runtime.cpu.emitter import emit_loop, intrinsic, splat

# Multiply-adds per clock and multiprocessor: float32, float64 (tensor cores), float16 (tensor cores, dense).
# NVIDIA's architecture white papers: A100 (2020), H100 (2022).
MULTIPLY_ADDS = {
    (8, 0): {"float32": 64, "float64": 64, "float16": 1024, "bfloat16": 1024},
    (9, 0): {"float32": 128, "float64": 128, "float16": 2048, "bfloat16": 2048},
}
SECONDS = 0.05  # one sample of the CPU's peak


@intrinsic(prefer_literal=True)
def _multiply_add_chains(
    context: Any, lanes: Any, chains: Any, count: Any, factor: Any, term: Any, target: Any
) -> Any:
    """`count` times sum = sum * factor + term in each of `chains` independent vectors of `lanes` elements."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, count, factor, term, target = arguments
        emitter = TileEmitter(builder, signature.args[3], int(lanes.literal_value))
        x, y = splat(builder, factor, emitter.lanes), splat(builder, term, emitter.lanes)
        start = [y] * int(chains.literal_value)
        sums = emit_loop(
            builder,
            count.type(0),
            count,
            1,
            start,
            lambda _, sums: [builder.call(emitter.fma, [total, x, y]) for total in sums],
        )
        for i, total in enumerate(sums):
            emitter.store(total, emitter.offset(target, i * emitter.lanes * emitter.size))
        return context.get_dummy_value()

    return types.void(lanes, chains, types.intp, factor, factor, types.intp), generate


@functools.cache
def _chains(lanes: int, chains: int) -> Callable[..., None]:
    @jit(cache=False, nogil=True)
    def run(count: int, factor: float, term: float, target: int) -> None:
        _multiply_add_chains(lanes, chains, count, factor, term, target)

    compiled: Callable[..., None] = run
    return compiled


def cpu_gigaflops(dtype: str, threads: int = 1, samples: int = 5) -> float:
    """Measure the CPU's peak: 10^9 operations per second by fused multiply-adds (two each) in registers.

    Parameters
    ----------
    dtype : "float32" or "float64"
    threads : int
        Threads that compute at once.
    samples : int
        The best of so many samples of 50 ms counts.
    """
    kind = np.dtype(dtype)
    tile = host_tile(kind.itemsize)
    chains = 12  # enough to cover the latency of two pipelines, few enough for 16 registers
    run = _chains(tile.lanes, chains)
    targets = np.zeros((threads, chains * tile.lanes), kind)
    factor, term = kind.type(0.5), kind.type(1)

    def once(count: int) -> float:
        def task(row: int) -> None:
            run(count, factor, term, targets[row].ctypes.data)

        start = time.perf_counter()
        _threads.run([functools.partial(task, row) for row in range(threads)])
        return time.perf_counter() - start

    once(1)
    count = 100_000
    while (taken := once(count)) < SECONDS / 4:
        count *= 4
    count = int(count * SECONDS / taken) + 1
    best = min(once(count) for _ in range(samples))
    return 2.0 * count * chains * tile.lanes * threads / best / 1e9


def gpu_gigaflops(dtype: str) -> float:
    """Return the current GPU's peak in GFLOP/s at its highest clock; NaN where its rates are unknown."""
    import cupy

    device = cupy.cuda.Device()
    digits, facts = str(device.compute_capability), device.attributes
    rate = MULTIPLY_ADDS.get((int(digits[:-1]), int(digits[-1])), {}).get(dtype, math.nan)
    return 2e-6 * rate * float(facts["MultiProcessorCount"]) * float(facts["ClockRate"])  # kHz
