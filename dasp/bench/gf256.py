"""`dasp bench gf256`: every kernel over GF(2^8), verified, then timed against ISA-L and the copy bandwidth.

The product is a Reed-Solomon encoding: a Cauchy matrix (parity x data) times random bytes (data x columns).
Speeds count bytes of data, as encoders are compared; a product moves (data + parity) / data times as many.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dasp._threads import get_num_threads
from dasp.bench import machine, results
from dasp.bench.readme import replace_between
from dasp.commands.bench import positive
from dasp.dense import gf256
from dasp.dense.gf256.field import Bytes, cauchy, multiply
from dasp.tuning.candidate import Candidate

COLUMNS = {"cpu": 4 << 20, "cuda": 64 << 20}
VERIFIED = 1 << 16
"""Columns at the beginning and at the end that are compared with the table; the rest with a kernel."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run")
    parser.add_argument("--data", type=positive, default=10, metavar="K", help="data shards (10)")
    parser.add_argument("--parity", type=positive, default=4, metavar="M", help="parity shards (4)")
    parser.add_argument(
        "--columns", type=positive, metavar="N", help="bytes of a shard (CPU: 4 Mi, GPU: 64 Mi)"
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument("--seconds", type=float, default=0.6, metavar="S", help="CPU time a kernel (0.6)")
    parser.add_argument("--repeat", type=positive, metavar="N", help="timed samples of each kernel")
    parser.add_argument("--kernels", metavar="NAMES", help="comma-separated; every kernel by default")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="append the rows to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows into this picture")
    results.add_report_arguments(parser, "STEM")


class IsaL:
    """Intel's ISA-L, `ec_encode_data` through ctypes.

    Raises
    ------
    OSError
        If the library is not installed.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(ctypes.util.find_library("isal") or "libisal.so.2")

    def encoder(self, a: Bytes, b: Bytes, out: Bytes) -> Candidate:
        """Return the encoding `out = a b` by one thread, ready to run."""
        (m, k), n = a.shape, b.shape[1]
        tables = np.zeros(32 * m * k, np.uint8)
        self._library.ec_init_tables(k, m, _pointer(np.ascontiguousarray(a)), _pointer(tables))
        sources = (ctypes.c_void_p * k)(*[row.ctypes.data for row in b])
        targets = (ctypes.c_void_p * m)(*[row.ctypes.data for row in out])

        def run() -> None:
            self._library.ec_encode_data(n, k, m, _pointer(tables), sources, targets)

        return Candidate("isa-l", run, lambda: out, owned=(tables, b, out))


def _pointer(array: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@dataclass(frozen=True)
class Row:
    """What was measured of one kernel.

    Attributes
    ----------
    kernel : str
    gigabytes : float
        10^9 bytes of data per second, from the median time; NaN if the product was wrong.
    spread : float
        Distance between the quartiles of the time over its median.
    of_isal : float
        Ratio to ISA-L on one thread; NaN where it was not measured.
    of_limit : float
        Ratio to what the copy bandwidth allows.
    correct : bool
    """

    kernel: str
    gigabytes: float
    spread: float
    of_isal: float
    of_limit: float
    correct: bool


def run(args: argparse.Namespace) -> int:
    """Verify, time, print the table; 0 if every product was right, else 1."""
    status = 0 if args.report_only else _measure_all(args)
    if args.report_only or args.readme:
        text = readme_text(results.kept(args.csv))
        if args.report_only:
            print(text)
        if args.readme:
            replace_between(args.readme, args.csv.stem, text)
    return status


def _measure_all(args: argparse.Namespace) -> int:
    device = _device(args.device)
    columns = args.columns or COLUMNS[device]
    if args.data + args.parity > 256:
        raise ValueError(
            f"--data and --parity make {args.data + args.parity} shards; at most 256 are possible"
        )
    measure = _measure_cuda if device == "cuda" else _measure_cpu
    rows, limit = measure(args, columns)
    print(report(rows, f"{args.parity} x {args.data} times {args.data} x {columns:,} bytes", limit))
    named = {
        "matrix": f"gf256:{args.parity}x{args.data}x{columns}",
        "device": device,
        "copy_limit_gbs": f"{limit:.4g}",
        **(machine.cuda_columns("") if device == "cuda" else machine.host_columns(args.threads)),
    }
    if args.csv:
        for row in rows:
            results.append(args.csv, {**named, **_cells(row)})
    if args.plot:
        draw(rows, limit, f"{named['machine']}, {named['matrix']}, commit {named['commit']}", args.plot)
        print(f"figure: {args.plot}", file=sys.stderr)
    return 0 if all(row.correct for row in rows) else 1


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    from dasp.backends.cuda.product import available

    return "cuda" if available()[0] else "cpu"


def _chosen(args: argparse.Namespace, device: str) -> list[str]:
    """The kernels to measure: those named, else every one that this machine can run."""
    ladder = gf256.kernels(device)
    if args.kernels is None:
        return [kernel.name for kernel in ladder if getattr(kernel, "available", True)]
    known = [kernel.name for kernel in ladder]
    names = [name.strip() for name in args.kernels.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--kernels names {', '.join(unknown)}; some of {', '.join(known)} are needed")
    return names


def _operands(args: argparse.Namespace, columns: int) -> tuple[Bytes, Bytes]:
    rng = np.random.default_rng(0)
    return cauchy(args.parity, args.data), rng.integers(0, 256, (args.data, columns), dtype=np.uint8)


def _reference(a: Bytes, b: Bytes) -> Bytes:
    """The product by the CPU's best kernel, both ends of which are compared with the table."""
    want: Bytes = gf256.matmul(a, b, threads=get_num_threads())
    for part in (slice(0, VERIFIED), slice(max(0, b.shape[1] - VERIFIED), None)):
        if not np.array_equal(want[:, part], multiply(a, b[:, part])):
            raise RuntimeError("the CPU's best kernel is wrong; run the tests")
    return want


def _measure_cpu(args: argparse.Namespace, columns: int) -> tuple[list[Row], float]:
    from dasp.bench.roofline import host_copy_bandwidth
    from dasp.tuning.timing_cpu import time_host

    a, b = _operands(args, columns)
    want, out = _reference(a, b), np.zeros((args.parity, columns), np.uint8)

    def candidate(name: str) -> Candidate:
        def product() -> None:
            gf256.matmul(a, b, out=out, kernel=name, threads=args.threads)

        return Candidate(name, product, lambda: out)

    candidates = [candidate(name) for name in _chosen(args, "cpu")]
    try:
        candidates.append(IsaL().encoder(a, b, out))
    except OSError:
        print("ISA-L is not installed (Debian, Ubuntu: apt-get install libisal2)", file=sys.stderr)
    correct = {}
    for each in candidates:
        out[...] = ~want
        each.run()
        correct[each.name] = bool(np.array_equal(out, want))
    times = time_host([c for c in candidates if correct[c.name]], seconds=args.seconds, samples=args.repeat)
    limit = _limit(args, host_copy_bandwidth(args.threads))
    return _rows(b.nbytes, correct, times, limit), limit


def _measure_cuda(args: argparse.Namespace, columns: int) -> tuple[list[Row], float]:
    import cupy

    from dasp.bench.roofline import cuda_copy_bandwidth
    from dasp.tuning.timing_cuda import time_cuda

    a, host = _operands(args, columns)
    b, want = cupy.asarray(host), cupy.asarray(_reference(a, host))
    on_device, out = cupy.asarray(a), cupy.zeros((args.parity, columns), np.uint8)
    reads = {kernel.name for kernel in gf256.kernels("cuda") if getattr(kernel, "reads_coefficients", False)}

    def candidate(name: str) -> Candidate:
        left = a if name in reads else on_device

        def product() -> None:
            gf256.matmul(left, b, out=out, kernel=name)

        return Candidate(name, product, lambda: out)

    candidates = [candidate(name) for name in _chosen(args, "cuda")]
    correct = {}
    for each in candidates:
        out[...] = ~want
        each.run()
        correct[each.name] = bool((out == want).all())
    times = time_cuda([c for c in candidates if correct[c.name]], samples=args.repeat)
    limit = _limit(args, cuda_copy_bandwidth())
    return _rows(host.nbytes, correct, times, limit), limit


def _limit(args: argparse.Namespace, bandwidth: float) -> float:
    """10^9 bytes of data per second if all bytes moved as fast as a copy moves them."""
    share: float = args.data / (args.data + args.parity)
    return bandwidth * share / 1e9


def _rows(data_bytes: int, correct: dict[str, bool], times: dict[str, Any], limit: float) -> list[Row]:
    speeds = {name: data_bytes / (1e3 * time.median_us) for name, time in times.items()}
    isal = speeds.get("isa-l", float("nan"))
    rows = []
    for name, right in correct.items():
        speed = speeds.get(name, float("nan"))
        spread = times[name].spread if name in times else float("nan")
        rows.append(Row(name, speed, spread, speed / isal, speed / limit, right))
    return rows


def _cells(row: Row) -> dict[str, str]:
    return {
        "kernel": row.kernel,
        "data_gbs": f"{row.gigabytes:.4g}",
        "spread": f"{row.spread:.3g}",
        "of_isal": f"{row.of_isal:.4g}",
        "of_limit": f"{row.of_limit:.4g}",
        "correct": "yes" if row.correct else "no",
    }


def report(rows: Sequence[Row], title: str, limit: float) -> str:
    """Return the table as text."""
    lines = [f"{title}; copy bandwidth allows {limit:.4g} GB/s of data", ""]
    lines.append(f"{'kernel':<16}{'GB/s of data':>14}{'spread':>9}{'% of ISA-L':>12}{'% of copy limit':>17}")
    for row in rows:
        if not row.correct:
            lines.append(f"{row.kernel:<16}{'WRONG':>14}")
            continue
        isal = "-" if np.isnan(row.of_isal) else f"{100 * row.of_isal:.0f}"
        speed = f"{row.gigabytes:>14.4g}{100 * row.spread:>8.0f}%"
        lines.append(f"{row.kernel:<16}{speed}{isal:>12}{100 * row.of_limit:>17.1f}")
    return "\n".join(lines)


def readme_text(rows: Sequence[dict[str, str]]) -> str:
    """The README's tables, one for each machine and shape, from rows of the result file."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["machine"], row.get("threads", ""), row["matrix"]), []).append(row)
    parts = []
    for (where, threads, matrix), group in groups.items():
        rows_of_a, depth, columns = (int(word) for word in matrix.removeprefix("gf256:").split("x"))
        on = f"{where}, {threads} thread{'' if threads == '1' else 's'}" if threads else where
        commits = ", ".join(sorted({row["commit"] for row in group}))
        lines = [
            f"{rows_of_a} x {depth} times {depth} x {columns:,} bytes on {on}, commit {commits}:",
            "",
            "| kernel | GB/s of data | % of ISA-L, one thread | % of what copying allows |",
            "|---|---:|---:|---:|",
        ]
        for row in group:
            speed = row["data_gbs"] if row["correct"] == "yes" else "WRONG"
            shares = [float(row[name]) for name in ("of_isal", "of_limit")]
            cells = ["-" if np.isnan(share) else f"{100 * share:.0f}" for share in shares]
            lines.append(f"| {row['kernel']} | {speed} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def draw(rows: Sequence[Row], limit: float, title: str, path: Path) -> None:
    """Draw a bar per kernel on a logarithmic axis, and the copy limit as a line.

    Raises
    ------
    RuntimeError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError("matplotlib is not installed; pip install 'dasp-spmv[bench]' is needed") from error
    drawn = [row for row in rows if row.correct]
    figure = Figure(figsize=(8, 1.2 + 0.35 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    colours = ["#e0a030" if row.kernel == "isa-l" else "#1f6f8b" for row in drawn]
    axes.barh([row.kernel for row in drawn], [row.gigabytes for row in drawn], color=colours)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(limit, color="black", linewidth=0.8, linestyle="--", label="copy limit")
    axes.set_xlabel("10^9 bytes of data per second")
    axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
