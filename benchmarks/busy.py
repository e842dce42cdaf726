"""What products on the CPU cost others, and what others cost them: idle threads, too many threads.

    python -m benchmarks.busy --csv benchmarks/results/busy_cpu.csv

`idle`: the processor time of a process in a second, from a millisecond after its products on; two
threads that went on waiting would take two seconds of it. `processes`: so many processes multiply at the
same time, each with as many threads as it takes by default, all by dasp and all by SciPy in turn, in
short slots of the same clock, so that whatever else the machine does falls on both. `threads`: one
process that was told to run so many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dasp
from benchmarks.bench import machine, results
from benchmarks.bench.rows import median
from dasp import models
from dasp.runtime.cpu import team

MODELS = "poisson2d:60", "poisson3d:40", "rmat:14"
"""In the first cache, in the last, and one whose rows have very different lengths."""

PROCESSES = 1, 2, 4, 8
THREADS = 4, 8
SLOT_SECONDS, SLOTS = 0.4, 12
SETTLING_SECONDS, IDLE_SECONDS, IDLE_REPEATS = 1e-3, 1.0, 7

Row = dict[str, str]


def operands(spec: str) -> tuple[Any, Any, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a matrix of SciPy, the planned one, x and room for y."""
    csr = models.generate(spec).astype(float)
    A = dasp.SpMatrix.from_scipy(csr, device="cpu")
    return csr, A, np.random.default_rng(0).standard_normal(A.shape[1]), np.empty(A.shape[0])


def idle(spec: str) -> Row:
    """Processor time after a stream of products, in microseconds: the median and the most of some tries."""
    _, A, x, y = operands(spec)
    taken = []
    for _ in range(IDLE_REPEATS):
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            A.matvec(x, out=y)
        # What a thread has run is counted for certain once it sleeps, or at the system's next tick.
        time.sleep(SETTLING_SECONDS)
        start = time.process_time_ns()
        time.sleep(IDLE_SECONDS)
        taken.append((time.process_time_ns() - start) / 1e3)
    return {"case": "idle", "idle_us": f"{median(taken):.4g}", "idle_most_us": f"{max(taken):.4g}"}


def count(product: Callable[[], Any], until: float) -> int:
    """Return how many products are made before a time."""
    made = 0
    while time.time() < until:
        product()
        made += 1
    return made


def meet(barrier: Any, start: Any) -> None:
    """Keep what the processes of a pool begin together by."""
    global _barrier, _start
    _barrier, _start = barrier, start


def begun() -> float:
    """Wait until every process is ready; return the time at which the first slot begins for all."""
    if _barrier.wait() == 0:
        _start.value = time.time() + 0.1
    _barrier.wait()
    return float(_start.value)


def take_turns(spec: str, threads: int | None) -> list[int]:
    """Make products in slots, in each way in turn; return how many in each."""
    csr, A, x, y = operands(spec)
    dasp.set_num_threads(threads)
    ways: tuple[Callable[[], Any], ...] = (lambda: A.matvec(x, out=y), lambda: csr @ x)
    for product in ways:
        product()
    made, start = [], begun()
    for slot in range(SLOTS):
        time.sleep(max(0.0, start + slot * SLOT_SECONDS - time.time()))
        team.team()._alone_until = 0.0  # a slot begins with its team
        made.append(count(ways[slot % 2], start + (slot + 0.9) * SLOT_SECONDS))
    return made


def shared(spec: str, processes: int, threads: int | None) -> Row:
    """Time products of all processes together, each slot by one library; compare neighbours."""
    context = multiprocessing.get_context("spawn")
    meeting = context.Barrier(processes), context.Value("d", 0.0)
    with context.Pool(processes, meet, meeting) as pool:
        made = np.array(pool.starmap(take_turns, [(spec, threads)] * processes, chunksize=1)).sum(axis=0)
    ours, theirs = made[0::2], made[1::2]
    ratios, seconds = ours / np.maximum(theirs, 1), 0.9 * SLOT_SECONDS
    return {
        "case": "threads" if threads else "processes",
        "processes": str(processes),
        "threads": str(threads or dasp.get_num_threads()),
        "dasp_per_s": f"{median(ours) / seconds:.4g}",
        "scipy_per_s": f"{median(theirs) / seconds:.4g}",
        "ratio": f"{median(ratios):.3f}",
        "ratio_least": f"{min(ratios):.3f}",
    }


def cases(spec: str) -> Iterator[Row]:
    """Yield every case of a matrix."""
    yield idle(spec)
    for processes in PROCESSES:
        yield shared(spec, processes, None)
    for threads in THREADS:
        yield shared(spec, 1, threads)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    args = parser.parse_args()
    columns = machine.host_columns(dasp.get_num_threads())
    for spec in MODELS:
        for row in cases(spec):
            print(spec, *(f"{key} {value}" for key, value in row.items()), flush=True)
            if args.csv:
                results.append(args.csv, columns | {"matrix": spec} | row)


if __name__ == "__main__":
    main()
