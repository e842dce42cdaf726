"""`dasp bench gemm`: every rung of a dense ladder, verified, then timed against cuBLAS or OpenBLAS.

Each product is C = A B of square matrices of random numbers. A row of the result file is one kernel at one
size.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dasp import _threads
from dasp.bench import machine, results
from dasp.dense import gemm, kernels
from dasp.dense.ladder import HALF
from dasp.tuning.timing_cpu import Timing, summarize

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
DTYPES = ("float32", "float64", "float16", "bfloat16")
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SAMPLES = 7
SETTLE_SECONDS = 0.15
"""Wait before timing on the CPU: OpenBLAS's idle threads keep their cores busy for some 30 ms."""

CHECKED = 32
"""Rows of a large product that are compared with the reference on the CPU; on the GPU all are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run")
    parser.add_argument("--dtype", metavar="NAMES", default="float32,float64", help="comma-separated dtypes")
    parser.add_argument(
        "--sizes", metavar="N,...", default=",".join(map(str, SIZES)), help="sizes of the matrices"
    )
    parser.add_argument("--kernels", metavar="NAMES", help="comma-separated; every rung by default")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, metavar="S", help="time for each kernel and size"
    )
    parser.add_argument("--limit", type=float, metavar="S", help="stop measuring after so many seconds")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows into this picture")
    results.add_report_arguments(parser, "STEM")


def run(args: argparse.Namespace) -> int:
    """Verify, time, print the tables; 0 if every product was right, else 1."""
    rows = results.kept(args.csv) if args.report_only else _measure_all(args)
    print("\n\n".join(table(part, dtype) for _, dtype, part in _groups(rows)))
    if args.plot:
        draw(rows, args.plot)
    if args.readme:
        from dasp.bench.readme import replace_between

        text = readme_text(results.kept(args.csv))
        replace_between(args.readme, args.csv.stem, text)
    return 0 if all(row["correct"] != "no" for row in rows) else 1


def _measure_all(args: argparse.Namespace) -> list[dict[str, str]]:
    """Every row that was asked for; each is added to the file as soon as it is measured."""
    device = _device(args.device)
    sizes, dtypes = _sizes(args.sizes), _dtypes(args.dtype, device)
    _kernel_names(args.kernels, device, dtypes[0])
    if device == "cpu":
        _threads.set_num_threads(args.threads)
    named = _named(device, args.threads)
    deadline = time.monotonic() + (args.limit or math.inf)
    rows: list[dict[str, str]] = []
    for dtype in dtypes:
        top = _peak(device, dtype, args.threads)
        for size in sizes:
            for row in _measure(device, dtype, size, args, top, deadline):
                rows.append({**named, **row})
                if args.csv:
                    results.append(args.csv, rows[-1])
                _say(rows[-1])
    return rows


def _groups(rows: Sequence[dict[str, str]]) -> list[tuple[str, str, list[dict[str, str]]]]:
    """The rows of each machine and dtype, with the machine's name and threads in words."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        threads = row.get("threads", "")
        where = (
            f"{row['machine']}, {threads} thread{'' if threads == '1' else 's'}"
            if threads
            else row["machine"]
        )
        found.setdefault((where, row["dtype"]), []).append(row)
    return [(where, dtype, part) for (where, dtype), part in found.items()]


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    from dasp.backends.cuda.product import available

    return "cuda" if available()[0] else "cpu"


def _sizes(text: str) -> list[int]:
    values = [int(word) for word in text.split(",")]
    if min(values) < 1:
        raise ValueError(f"--sizes is {text}; whole numbers from 1 are needed")
    return values


def _dtypes(text: str, device: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    known = [name for name in DTYPES if device == "cuda" or name not in HALF]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--dtype names {', '.join(unknown)}; some of {', '.join(known)} are needed")
    return names


def _kernel_names(text: str | None, device: Any, dtype: str) -> list[str]:
    """The rungs to measure for a dtype, the vendor's library first, which all are compared with."""
    known = [kernel.name for kernel in kernels(device)]
    names = known if text is None else [name.strip() for name in text.split(",") if name.strip() != "vendor"]
    unknown = [name for name in names if name not in known and name != "auto"]
    if unknown:
        raise ValueError(f"--kernels names {', '.join(unknown)}; some of auto, {', '.join(known)} are needed")
    fits = {kernel.name for kernel in kernels(device) if dtype in kernel.dtypes} | {"auto"}
    extra = ["auto"] if text is None else []
    return ["vendor", *(name for name in [*names, *extra] if name in fits)]


def _named(device: str, threads: int) -> dict[str, str]:
    if device == "cuda":
        return {"device": device, **machine.cuda_columns("")}
    return {"device": device, **machine.host_columns(threads)}


def _peak(device: str, dtype: str, threads: int) -> float:
    if device == "cuda":
        from dasp.bench.peak import cuda_peak

        return cuda_peak(dtype)
    from dasp.bench.peak_cpu import cpu_gigaflops

    return cpu_gigaflops(dtype, threads)


def _measure(
    device: str, dtype: str, size: int, args: argparse.Namespace, top: float, deadline: float
) -> Iterator[dict[str, str]]:
    """One row per kernel at this size; a kernel that would take too long, or past the deadline, has none."""
    session = (_Cuda if device == "cuda" else _Host)(dtype, size)
    vendor = math.nan
    for name in _kernel_names(args.kernels, device, dtype):
        if time.monotonic() > deadline:
            print(f"{dtype} {size} {name}: left out, --limit is reached", file=sys.stderr)
            continue
        correct = session.verify(name)
        timing = session.time(name, args.seconds) if correct else None
        speed = 2e-3 * size**3 / timing.median_us if timing else math.nan
        vendor = speed if name == "vendor" else vendor
        yield {
            "matrix": f"gemm:{size}",
            "dtype": dtype,
            "kernel": name,
            "size": str(size),
            "correct": "yes" if correct else "no",
            "median_us": f"{timing.median_us:.5g}" if timing else "",
            "spread": f"{timing.spread:.3g}" if timing else "",
            "method": timing.method if timing else "",
            "gflops": f"{speed:.5g}",
            "of_vendor": f"{speed / vendor:.4g}",
            "of_peak": f"{speed / top:.4g}",
        }


def _say(row: dict[str, str]) -> None:
    speed = f"{float(row['gflops']):,.1f} GFLOP/s, {100 * float(row['of_vendor']):.1f}% of the vendor's"
    verdict = speed if row["correct"] == "yes" else "WRONG"
    print(f"{row['dtype']} {row['size']} {row['kernel']}: {verdict}", file=sys.stderr, flush=True)


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
        terms = (size + 3) * UNIT[dtype]
        self._gamma = terms / (1 - terms)

    def verify(self, kernel: str) -> bool:
        """Whether nothing is NaN and some rows are within gamma(k) |A| |B| of the long-double product."""
        self._out[...] = np.nan
        gemm(self._a, self._b, out=self._out, kernel=kernel)
        error = np.abs(self._out[self._rows] - self._want)
        return bool((error <= self._gamma * self._scale).all() and np.isfinite(self._out).all())

    def time(self, kernel: str, seconds: float) -> Timing:
        """Wall-clock samples for about `seconds`, 3 at least."""
        time.sleep(SETTLE_SECONDS)
        samples: list[float] = []
        begin = time.perf_counter()
        while len(samples) < 3 or (time.perf_counter() - begin < seconds and len(samples) < 300):
            start = time.perf_counter()
            gemm(self._a, self._b, out=self._out, kernel=kernel)
            samples.append(1e6 * (time.perf_counter() - start))
            if samples[-1] > 3e7:
                break
        return summarize(samples, 1, "wall clock")


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
        terms = (size + 3) * UNIT["float32" if dtype in HALF else dtype]
        # The reference has rounded as often itself where it is no more precise.
        bound = (2 if dtype == "float64" else 1) * terms / (1 - terms) * scale
        self._bound = bound + UNIT[dtype] * (cupy.abs(self._want) + bound) if dtype in HALF else bound

    def verify(self, kernel: str) -> bool:
        """Whether every result is within gamma(k) |A| |B| of the float64 product."""
        self._out[...] = self._cupy.nan
        gemm(self._a, self._b, out=self._out, kernel=kernel)
        error = self._cupy.abs(self._out.astype("float64") - self._want)
        return bool((error <= self._bound).all())

    def time(self, kernel: str, seconds: float) -> Timing:
        """Replays of a graph of several products; SAMPLES of them, together about `seconds` long."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            once = 1e-6 * max(min(self._replay(self._run(kernel), stream) for _ in range(3)), 1.0)
            products = int(min(max(seconds / SAMPLES / once, 1), 50))
            graph = self._capture(kernel, products, stream)
            enqueue: Callable[[], None] = (
                self._run(kernel, products) if graph is None else lambda: graph.launch(stream)
            )
            self._replay(enqueue, stream)
            samples = [self._replay(enqueue, stream) / products for _ in range(SAMPLES)]
        return summarize(samples, products, "events" if graph is None else "graph")

    def _run(self, kernel: str, products: int = 1) -> Callable[[], None]:
        def enqueue() -> None:
            for _ in range(products):
                gemm(self._a, self._b, out=self._out, kernel=kernel)

        return enqueue

    def _capture(self, kernel: str, products: int, stream: Any) -> Any:
        from dasp.tuning.timing_cuda import capture

        return capture(self._run(kernel), stream, products)

    def _replay(self, enqueue: Callable[[], None], stream: Any) -> float:
        """Microseconds between an event before and an event after what is enqueued."""
        start, stop = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record(stream)
        enqueue()
        stop.record(stream)
        stop.synchronize()
        return 1e3 * float(self._cupy.cuda.get_elapsed_time(start, stop))


def _cells(
    rows: Sequence[dict[str, str]], dtype: str
) -> tuple[list[str], list[int], dict[tuple[str, int], Any]]:
    mine = [row for row in rows if row["dtype"] == dtype]
    names = list(dict.fromkeys(row["kernel"] for row in mine))
    sizes = sorted({int(row["size"]) for row in mine})
    return names, sizes, {(row["kernel"], int(row["size"])): row for row in mine}


def _means(names: list[str], sizes: list[int], cells: dict[tuple[str, int], Any]) -> dict[str, float]:
    """Each kernel's geometric mean over the sizes of its ratio to the vendor's library."""
    means = {}
    for name in names:
        ratios = [float(cells[name, s]["of_vendor"]) for s in sizes if (name, s) in cells]
        good = [ratio for ratio in ratios if ratio > 0]
        means[name] = math.exp(sum(map(math.log, good)) / len(good)) if good else math.nan
    return means


def table(rows: Sequence[dict[str, str]], dtype: str) -> str:
    """GFLOP/s and % of the vendor's library for each kernel and size, % of peak at the largest."""
    names, sizes, cells = _cells(rows, dtype)
    means = _means(names, sizes, cells)
    lines = [f"{dtype}: GFLOP/s (% of the vendor's library)"]
    lines.append(
        f"{'kernel':<14}" + "".join(f"{size:>16}" for size in sizes) + f"{'mean %':>9}{'% of peak':>11}"
    )
    for name in names:
        texts, share = [], math.nan
        for size in sizes:
            row = cells.get((name, size))
            if row is None:
                texts.append("-")
            elif row["correct"] != "yes":
                texts.append("WRONG")
            else:
                texts.append(f"{float(row['gflops']):,.0f} ({100 * float(row['of_vendor']):.0f})")
                share = float(row["of_peak"])
        line = f"{name:<14}" + "".join(f"{text:>16}" for text in texts)
        lines.append(line + f"{100 * means[name]:>9.1f}{100 * share:>11.1f}")
    return "\n".join(lines)


def readme_text(rows: Sequence[dict[str, str]]) -> str:
    """The README's tables: what `kernel="auto"` reaches, then every kernel, folded."""
    lines = [
        "| machine | dtype | size | GFLOP/s | % of the vendor's library | % of peak | % over all sizes |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    folded = []
    for where, dtype, part in _groups(rows):
        names, sizes, cells = _cells(part, dtype)
        best = "auto" if "auto" in names else names[-1]
        size = max(size for name, size in cells if name == best)
        row = cells[best, size]
        shares = [_percent(float(row[name])) for name in ("of_vendor", "of_peak")]
        mean = _percent(_means(names, sizes, cells)[best])
        speed = f"{float(row['gflops']):,.0f}"
        lines.append(f"| {where} | {dtype} | {size} | {speed} | {' | '.join(shares)} | {mean} |")
        commits = ", ".join(sorted({row["commit"] for row in part}))
        title = f"Every kernel: {dtype} on {where}, commit {commits}"
        folded.append(f"<details><summary>{title}</summary>\n\n{markdown(part, dtype)}\n\n</details>")
    return "\n\n".join(["\n".join(lines), *folded])


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def markdown(rows: Sequence[dict[str, str]], dtype: str) -> str:
    """A table of GFLOP/s and % of the vendor's library for each kernel and size."""
    names, sizes, cells = _cells(rows, dtype)
    means = _means(names, sizes, cells)
    lines = ["GFLOP/s (% of the vendor's library)", ""]
    lines.append("| kernel | " + " | ".join(map(str, sizes)) + " | geometric mean % |")
    lines.append("|---|" + "---:|" * (len(sizes) + 1))
    for name in names:
        texts = []
        for size in sizes:
            row = cells.get((name, size))
            if row is None or row["correct"] != "yes":
                texts.append("-")
            else:
                texts.append(f"{float(row['gflops']):,.0f} ({100 * float(row['of_vendor']):.0f})")
        lines.append(f"| {name} | " + " | ".join(texts) + f" | {_percent(means[name])} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Draw GFLOP/s against size, a panel per machine and dtype, a line per kernel.

    Raises
    ------
    RuntimeError
        If matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError("matplotlib is not installed; pip install 'dasp-spmv[bench]' is needed") from error
    groups = _groups(rows)
    figure = Figure(figsize=(7.5 * len(groups), 5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(groups)))
    for axes, (where, dtype, part) in zip(panels, groups, strict=True):
        names, sizes, cells = _cells(part, dtype)
        # One colour map from the first rung to the last, since neighbours are what one compares.
        colours = colormaps["plasma"](np.linspace(0, 0.95, len(names)))
        for name, colour in zip(names, colours, strict=True):
            known = [s for s in sizes if (name, s) in cells and cells[name, s]["correct"] == "yes"]
            style = {"color": "black", "linewidth": 2} if name == "vendor" else {"color": colour}
            axes.plot(known, [float(cells[name, s]["gflops"]) for s in known], "o-", label=name, **style)
        axes.set(xscale="log", yscale="log", xlabel="size", ylabel="GFLOP/s", title=f"{dtype}, {where}")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    print(f"figure: {path}", file=sys.stderr)
