"""Products and conjugate gradients over ranks: how time changes with their number; and the links between.

Every row is about so many ranks, and its time is that of the slowest. The matrix is Poisson's on an n x n x n
grid; each rank makes its own rows, where they are planned. Every product is verified first, row by row
against its bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import machine, results
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row, number
from dasp import solvers
from dasp.cli.report import Table, significant
from dasp.distributed.communicator import Communicator, Exchange, agree
from dasp.distributed.launch import find_communicator, find_rank_device, find_transport, find_world, leave
from dasp.distributed.matrix import SpMatrix
from dasp.distributed.nccl import NcclTransport
from dasp.distributed.transport import ExchangeRows
from dasp.runtime.cpu.threads import get_num_threads
from dasp.runtime.cuda.device import in_turn
from dasp.runtime.cuda.driver import PriorityGraph
from dasp.runtime.cuda.stream import on_stream
from dasp.solvers.cuda.passes import BLOCKS_PER_PROCESSOR

Array = Any

TIMES, REPEATS = 50, 7
"""Runs between two looks at the clock, and how often that is done; the best counts."""

WARM, MEASURED = 32, 160
"""Iterations of the shorter of two solves, and those that the longer one makes more: these count."""

CHUNK = 1 << 20
"""Rows that are made, or verified, at once."""

MESSAGE_BYTES = tuple(8 << k for k in range(0, 25, 3))
"""Sizes of the messages whose times are measured."""

UNIT = 2.0**-53

FORMS = "cg", "cg pipelined"
"""Forms of cg over ranks: the second hides its sums behind products, on GPUs."""


def weak_edge(edge: int, ranks: int) -> int:
    """Return the edge of the grid that has as many rows a rank as a grid of `edge` on one."""
    edges: float = edge * ranks ** (1 / 3)
    return round(edges)


def neighbours(n: int, rows: Array, xp: Any) -> tuple[Array, Array]:
    """Return the columns of some rows, shape (rows, 7), and whether each exists; rising."""
    steps = (-n * n, -n, -1, 0, 1, n, n * n)
    places = (rows // (n * n), rows // n % n, rows % n)
    columns = rows[:, None] + xp.asarray(steps, dtype=np.int64)
    stored = xp.ones(columns.shape, bool)
    for axis, (low, high) in enumerate(((0, 6), (1, 5), (2, 4))):
        stored[:, low] = places[axis] > 0
        stored[:, high] = places[axis] < n - 1
    return columns, stored


def chunks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a run of rows."""
    for low in range(first, end, CHUNK):
        yield low, min(low + CHUNK, end)


def local_rows(n: int, first: int, end: int, device: str) -> Any:
    """Return rows of the matrix of a grid as CSR: SciPy's for the CPU, CuPy's on a GPU."""
    xp, sparse = libraries(device)
    values = xp.where(xp.arange(7) == 3, 6.0, -1.0)
    indices, data, lengths = [], [], []
    for low, high in chunks(first, end):
        columns, stored = neighbours(n, xp.arange(low, high, dtype=np.int64), xp)
        indices.append(columns[stored].astype(np.int32 if n**3 < 2**31 else np.int64))
        data.append(xp.broadcast_to(values, columns.shape)[stored])
        lengths.append(stored.sum(axis=1))
    indptr = xp.zeros(end - first + 1, np.int64)
    if end > first:
        indptr[1:] = xp.cumsum(xp.concatenate(lengths))
        arrays = xp.concatenate(data), xp.concatenate(indices), indptr
    else:
        arrays = xp.zeros(0), xp.zeros(0, np.int32), indptr
    return sparse(arrays, shape=(end - first, n**3))


def libraries(device: str) -> tuple[Any, Any]:
    """Return the array library of a device, and its class of CSR matrices."""
    if device == "cpu":
        from scipy.sparse import csr_array

        return np, csr_array
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    return cupy, csr_matrix


def wave(places: Array, xp: Any) -> Array:
    """Return x at some places: the same wherever it is computed."""
    return xp.sin(0.7 * places.astype(np.float64)) + 0.1


def wrong_rows(y: Array, n: int, first: int, xp: Any) -> int:
    """Return how many rows of y = A x are outside of their bounds."""
    wrong = 0
    gamma = 10 * UNIT / (1 - 10 * UNIT)
    values = xp.where(xp.arange(7) == 3, 6.0, -1.0)
    for low, high in chunks(first, first + len(y)):
        columns, stored = neighbours(n, xp.arange(low, high, dtype=np.int64), xp)
        terms = xp.where(stored, values * wave(columns, xp), 0.0)
        # The reference is a sum of seven, as rounded as the product: twice the bound, and NaN fails.
        good = abs(y[low - first : high - first] - terms.sum(axis=1)) <= 2 * gamma * abs(terms).sum(axis=1)
        wrong += int((~good).sum())
    return wrong


class Clock:
    """Times what a rank does on its device."""

    def __init__(self, comm: Communicator, device: str) -> None:
        self._comm, self._device = comm, device

    def best(self, run: Callable[[], None], times: int = TIMES) -> float:
        """Return microseconds a run, of the slowest rank: on a GPU of a graph of many, replayed."""
        if self._device == "cpu":
            return self._slowest(self._host(run, times))
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        with on_stream(stream):
            run()  # what it does once
            stream.synchronize()
            graph = PriorityGraph(stream.ptr, in_turn([run], times))
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            zero = cupy.zeros(1)
            meet = find_transport(self._comm, self._device).sum(zero, zero)
            best = math.inf
            for _ in range(REPEATS):
                self._comm.gather(None)
                meet()  # hosts come later and earlier than that matters to GPUs
                begin.record(stream)
                graph.launch(stream.ptr)
                end.record(stream)
                end.synchronize()
                best = min(best, cupy.cuda.get_elapsed_time(begin, end))
        return self._slowest(1e3 * best / times)

    def _host(self, run: Callable[[], None], times: int) -> float:
        best = math.inf
        for _ in range(REPEATS):
            self._comm.gather(None)
            began = time.perf_counter()
            for _ in range(times):
                run()
            self.settle()
            best = min(best, time.perf_counter() - began)
        return 1e6 * best / times

    def settle(self) -> None:
        """Wait for the device."""
        if self._device != "cpu":
            import cupy

            cupy.cuda.Device().synchronize()

    def _slowest(self, value: float) -> float:
        return float(max(self._comm.gather(value)))


class Scaling:
    """Measures what some ranks do; rank 0 has the rows.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that take part.
    device : str
        `auto`, `cpu` or `cuda`.
    path : pathlib.Path, optional
        Where rank 0 appends rows.
    """

    def __init__(self, comm: Communicator, device: str, path: Path | None = None) -> None:
        self.comm, self.device, self._path = comm, find_rank_device(comm, device), path
        self.clock = Clock(comm, self.device)
        self.xp = libraries(self.device)[0]
        if self.device != "cpu":
            self.xp.cuda.Device(int(self.device.partition(":")[2])).use()
        self.rows: list[Row] = []

    def keep(self, kernel: str, name: str, **figures: Any) -> None:
        """Keep a row."""
        if self.comm.rank != 0:
            return
        kind = "mpi4py" if hasattr(self.comm, "mpi") else "torch"
        row = {"matrix": name, "dtype": "float64", "device": self.device.partition(":")[0], "kernel": kernel}
        study = "".join(f", {figures[name]}" for name in ("study", "links") if name in figures)
        row["policy"] = f"{self.comm.size} ranks{study}"
        row |= {"engine": kind, "ranks": str(self.comm.size)}
        row |= {
            key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in figures.items()
        }
        row |= machine_columns(self.device)
        self.rows.append(row)
        if self._path is not None:
            results.append(self._path, row)

    def measure_links(self, sizes: Sequence[int] = MESSAGE_BYTES) -> None:
        """Measure sums of one number and of those that solvers add, and messages around a ring.

        Where GPUs write in each other's memory, of NCCL too, which would join them to other machines.
        """
        kinds: dict[str, Any] = {"": self.comm}
        if self.device != "cpu":
            transport = find_transport(self.comm, self.device)
            kinds = {transport.name: transport}
        if "peers" in kinds:
            kinds["nccl"] = NcclTransport(self.comm, self.device)
        for name, each in kinds.items():
            self._measure_links(name, each, sizes)

    def _measure_links(self, name: str, links: Any, sizes: Sequence[int]) -> None:
        xp, known = self.xp, {"links": name} if name else {}
        for count in (1, 4 if self.device == "cpu" else BLOCKS_PER_PROCESSOR * self._processors()):
            numbers = xp.zeros(count)
            add = links.sum(numbers, numbers)
            self.keep(
                "sum",
                f"sum of {count}",
                **known,
                bytes=8 * count,
                us=self.clock.best(add),
            )
        if self.comm.size == 1:
            return
        after, before = (self.comm.rank + 1) % self.comm.size, (self.comm.rank - 1) % self.comm.size
        for size in sizes:
            count, source, target = size // 8, xp.zeros(size // 8), xp.zeros(size // 8)
            if self.device == "cpu":
                exchange = Exchange(links, [(after, source)], [(before, target)], "ring")
                run = in_turn([exchange.start, exchange.finish])
            else:
                rows = links.rows(ExchangeRows([(after, 0, count)], None, [(before, 0, count)], target))
                run = partial(rows, source)
            self.keep(
                "message",
                f"ring of {size}",
                **known,
                bytes=size,
                us=self.clock.best(run),
            )

    def _processors(self) -> int:
        return int(self.xp.cuda.Device().attributes["MultiProcessorCount"])

    def build(self, n: int) -> tuple[SpMatrix, Array, float]:
        """Return the matrix of a grid, this rank's part of x, and the seconds that planning took."""
        total, size, rank = n**3, self.comm.size, self.comm.rank
        first, end = total * rank // size, total * (rank + 1) // size
        local = local_rows(n, first, end, self.device)
        self.clock.settle()
        self.comm.gather(None)
        began = time.perf_counter()
        D = SpMatrix.from_local_rows(local, self.comm, device=self.device)
        self.clock.settle()
        seconds = max(self.comm.gather(time.perf_counter() - began))
        return D, wave(self.xp.arange(first, end, dtype=np.int64), self.xp), float(seconds)

    def measure(self, n: int, study: str) -> bool:
        """Verify and time a grid of `n` points along an edge; return whether its product is right.

        `study` is "weak" if the grid grows with the ranks, "strong" if it does not.
        """
        D, x, plan = self.build(n)
        system = f"poisson3d:{n}"
        out = self.xp.full(D.local_shape[0], np.nan)
        D.matvec(x, out=out)
        wrong = sum(self.comm.gather(wrong_rows(out, n, D.rows.first, self.xp)))
        sent = max(self.comm.gather(sum(rows for rows, _ in D.neighbours.values())))
        shared = {
            "study": study, "n": n, "rows": n**3, "halo": sent,
            "neighbours": max(self.comm.gather(len(D.neighbours))), "verified": "no" if wrong else "yes",
        }  # fmt: skip
        if wrong:
            self.keep("product", system, **shared)
            return False
        inside = self.clock.best(lambda: D.interior.matvec(x, out=out))
        whole = self.clock.best(lambda: D.matvec(x, out=out))
        halo = self.clock.best(lambda: D.halo_values(x))
        self.keep(
            "product", system, **shared, us=whole, interior_us=inside, halo_us=halo, plan_s=plan,
        )  # fmt: skip
        forms: dict[str, tuple[Any, bool]] = {FORMS[0]: (D, False)}
        if self.device != "cpu":
            forms[FORMS[1]] = (D, True)
        if self.comm.size == 1:
            forms["cg alone"] = (D.interior, False)  # the same as a matrix that knows of no ranks
        for name, (A, hidden) in forms.items():
            D.hidden_sums = hidden
            us, residual = self._iteration(A, D.local_shape[0])
            self.keep(name, system, **shared, us=us, residual=residual)
        return True

    def _iteration(self, A: Any, rows: int) -> tuple[float, float]:
        """Return microseconds an iteration of cg, and the residual that so many iterations leave."""
        workspace, b = solvers.Workspace(), self.xp.ones(rows)
        seconds: dict[int, float] = {}
        residual = math.nan
        for _ in range(3):
            for most in (WARM, WARM + MEASURED):
                self.comm.gather(None)
                _, stats = solvers.cg(A, b, rtol=0.0, maxiter=most, workspace=workspace)
                slowest = max(self.comm.gather(stats.seconds))
                seconds[most] = min(seconds.get(most, math.inf), slowest)
                residual = stats.residual
        return 1e6 * (seconds[WARM + MEASURED] - seconds[WARM]) / MEASURED, residual / math.sqrt(A.shape[0])


@cache
def machine_columns(device: str) -> Row:
    """Return the columns of the machine."""
    return machine.host_columns(get_num_threads()) if device == "cpu" else machine.cuda_columns("")


def first_ranks(comm: Communicator, size: int) -> Any:
    """Make a communicator of the first ranks; all ranks call this, and those left out must not use it."""
    mpi = getattr(comm, "mpi", None)
    if mpi is not None:
        return mpi.Split(int(comm.rank >= size), comm.rank)
    import torch.distributed as dist

    return dist.new_group(list(range(size)))


def run(
    comm: Any,
    counts: Sequence[int],
    *,
    weak: Sequence[int],
    strong: Sequence[int],
    device: str = "auto",
    path: Path | None = None,
) -> list[Row]:
    """Measure links, then each case, on the first ranks of a communicator; all ranks call it.

    Parameters
    ----------
    comm : communicator
    counts : sequence of int
        Of ranks.
    weak : sequence of int
        Edges of grids on one rank; on more the grid has as many rows a rank.
    strong : sequence of int
        Edges of grids, whatever the number of ranks.
    device : str
    path : pathlib.Path, optional
        Where rows are appended.

    Returns
    -------
    list of Row
        On rank 0; elsewhere none.
    """
    whole, rows = find_communicator(comm), []
    for count in counts:
        part = first_ranks(whole, count)
        if whole.rank < count:
            bench = Scaling(find_communicator(part), device, path)
            bench.measure_links()
            for edge in weak:
                bench.measure(weak_edge(edge, count), "weak")
            for edge in strong:
                bench.measure(edge, "strong")
            rows += bench.rows
        whole.gather(None)
    return rows


def main(
    ranks: Sequence[int], weak: Sequence[int], strong: Sequence[int], device: str, path: Path | None
) -> int:
    """Measure on the ranks that a launcher started; rank 0 prints. Return 1 if a product was wrong.

    Raises
    ------
    RuntimeError
        If no launcher started this process, or fewer ranks than are asked for.
    ValueError
        If the rows cannot be kept there.
    """
    comm = find_world()
    if comm is None:
        raise RuntimeError(
            "this process was started alone; ranks are needed, as in "
            "mpirun -n 2 python -m benchmarks.bench scaling"
        )

    def check() -> None:
        if max(ranks) > comm.size:
            raise RuntimeError(f"--ranks asks for {max(ranks)} and {comm.size} were started; start as many")
        if path is not None:
            results.check(path)

    agree(comm, check)
    rows = run(comm, ranks, weak=weak, strong=strong, device=device, path=path)
    if comm.rank == 0:
        print(report(rows).text(), flush=True)
    wrong = any(comm.gather(any(row.get("verified") == "no" for row in rows)))
    leave()
    return int(wrong)


def report(rows: Sequence[Row]) -> Report:
    """Return a line for each system on so many ranks, and one for each message."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row["matrix"]),
        ("study", lambda row: row["study"]),
        ("what", lambda row: row["kernel"]),
        ("ranks", lambda row: row["ranks"]),
        ("us", lambda row: significant(number(row, "us")) if results.right(row) else "WRONG"),
        ("interior us", lambda row: significant(number(row, "interior_us"))),
        ("halo us", lambda row: significant(number(row, "halo_us"))),
        ("efficiency", lambda row: significant(share(rows, row), 2)),
    ]
    links: list[tuple[str, Callable[[Row], str]]] = [
        ("what", lambda row: row["matrix"]),
        ("by", lambda row: row.get("links", "")),
        ("ranks", lambda row: row["ranks"]),
        ("us", lambda row: significant(number(row, "us"))),
    ]
    systems = [row for row in rows if row.get("study")]
    others = [row for row in rows if not row.get("study")]
    return Report(
        [
            Table.of("over ranks", columns, systems, words=["study", "what"]),
            Table.of("links", links, others, words=["by"]),
        ],
        ["Times are those of the slowest rank; an iteration for cg. Efficiency is against one rank."],
    )


def share(rows: Sequence[Row], row: Row) -> float:
    """Return the efficiency of a row against one rank, of cg the fastest form there; or NaN."""
    forms = [row["kernel"]]
    if row["kernel"].startswith("cg"):
        forms = [*FORMS, "cg alone"]
    ranks, weak = int(number(row, "ranks")), row["study"] == "weak"
    alone = [
        number(other, "us")
        for other in rows
        if other["kernel"] in forms and other["ranks"] == "1" and other.get("study") == row["study"]
        and number(row, "n") == (weak_edge(int(number(other, "n")), ranks) if weak else number(other, "n"))
    ]  # fmt: skip
    return min(alone, default=math.nan) / number(row, "us") / (1 if weak else ranks)
