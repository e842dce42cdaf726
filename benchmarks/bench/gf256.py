"""Products over GF(2^8): every kernel, verified, then timed against ISA-L and the copy bandwidth.

The product is a Reed-Solomon encoding: a Cauchy matrix (parity x data) times random bytes (data x columns).
Speeds count bytes of data, as encoders are compared; a product moves (data + parity) / data times as many.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from benchmarks.bench import results
from benchmarks.bench.device import BenchDevice
from benchmarks.bench.report import Report, where
from benchmarks.bench.rows import Row, number, percent
from dasp.cli.report import Table
from dasp.cli.timing import Candidate
from dasp.dense import gf256
from dasp.dense.gf256.field import Bytes, cauchy, multiply

COLUMNS = {"cpu": 4 << 20, "cuda": 64 << 20}
VERIFIED = 1 << 16
"""Columns at the beginning and at the end that are compared with the table; the rest with a kernel."""

ISA_L = "isa-l"


class IsaL:
    """Intel's ISA-L, `ec_encode_data` through ctypes.

    Raises
    ------
    OSError
        If the library is not installed.
    """

    def __init__(self) -> None:
        """Load it."""
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

        return Candidate(ISA_L, run, out, owned=(tables, b))


def _pointer(array: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Gf256:
    """Products over GF(2^8): one shape, a row for each kernel.

    `args` are the options of `python -m benchmarks.bench gf256`.

    Raises
    ------
    ValueError
        If there are more shards than the field has elements, or a kernel is unknown.
    """

    def __init__(self, args: argparse.Namespace, device: BenchDevice) -> None:
        self._data, self._parity, self._samples = args.data, args.parity, args.repeat
        shards = args.data + args.parity
        if shards > 256:
            raise ValueError(f"--data and --parity make {shards} shards; at most 256 are possible")
        on: Literal["cpu", "cuda"] = "cuda" if device.kind == "cuda" else "cpu"
        self._ladder = gf256.kernels(on)
        known = [kernel.name for kernel in self._ladder]
        if unknown := [name for name in args.kernels or () if name not in known]:
            raise ValueError(f"--kernels names {', '.join(unknown)}; some of {', '.join(known)} are needed")
        able = [kernel.name for kernel in self._ladder if kernel.available]
        self.device = device
        self._names = list(args.kernels or able)
        self._columns = args.columns or COLUMNS[device.kind]
        self.cases = [f"gf256:{args.parity}x{args.data}x{self._columns}"]
        self._isal = _load_isal() if on == "cpu" else None

    def wanted(self, case: str) -> list[Row]:
        """Return a row for each kernel, and one for ISA-L where it is installed."""
        names = [*self._names, *([ISA_L] if self._isal else [])]
        return [{"matrix": case, "device": self.device.kind, "kernel": name} for name in names]

    def measure(self, case: str) -> Iterator[Row]:
        """Verify every kernel against the field's table, and time those that are right."""
        a = cauchy(self._parity, self._data)
        b = np.random.default_rng(0).integers(0, 256, (self._data, self._columns), dtype=np.uint8)
        want = self.device.vector(_reference(a, b))
        out = self.device.vector(np.zeros((self._parity, self._columns), np.uint8))
        correct, right = {}, []
        for candidate in self._candidates(a, b, out):
            out[...] = ~want
            candidate.run()
            correct[candidate.name] = bool((out == want).all())
            right += [candidate] if correct[candidate.name] else []
        times = self.device.time(right, self._samples)
        speeds = {name: b.nbytes / (1e3 * time.median_us) for name, time in times.items()}
        limit = self.device.bandwidth * self._data / (self._data + self._parity) / 1e9
        for name, verdict in correct.items():
            speed = speeds.get(name, math.nan)
            spread = times[name].spread if name in times else math.nan
            yield {
                "matrix": case,
                "device": self.device.kind,
                "copy_limit_gbs": f"{limit:.4g}",
                "kernel": name,
                "data_gbs": f"{speed:.4g}",
                "spread": f"{spread:.3g}",
                "of_isal": f"{speed / speeds.get(ISA_L, math.nan):.4g}",
                "of_limit": f"{speed / limit:.4g}",
                "correct": "yes" if verdict else "no",
            }

    def _candidates(self, a: Bytes, b: Bytes, out: Any) -> list[Candidate]:
        """Return our kernels on the device's own copies, and ISA-L on a CPU."""
        reads = {kernel.name for kernel in self._ladder if getattr(kernel, "reads_coefficients", False)}
        there, right = self.device.vector(a), self.device.vector(b)

        def candidate(name: str) -> Candidate:
            left = a if name in reads else there

            return Candidate(name, lambda: gf256.matmul(left, right, out=out, kernel=name), out)

        made = [candidate(name) for name in self._names]
        return made + ([self._isal.encoder(a, b, out)] if self._isal else [])

    def report(self, rows: Sequence[Row]) -> Report:
        """Return a table for each machine and shape."""
        return report(rows)


def _load_isal() -> IsaL | None:
    try:
        return IsaL()
    except OSError:
        print("ISA-L is not installed (Debian, Ubuntu: apt-get install libisal2)", file=sys.stderr)
        return None


def _reference(a: Bytes, b: Bytes) -> Bytes:
    """Return the product by the CPU's best kernel, both ends of which are compared with the table."""
    want: Bytes = gf256.matmul(a, b)
    for part in (slice(0, VERIFIED), slice(max(0, b.shape[1] - VERIFIED), None)):
        if not np.array_equal(want[:, part], multiply(a, b[:, part])):
            raise RuntimeError("the CPU's best kernel is wrong; run the tests")
    return want


def shapes(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each machine and shape, with both in words."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((where(row), row["matrix"]), []).append(row)
    found = []
    for (machine, matrix), group in groups.items():
        parity, data, columns = (int(word) for word in matrix.removeprefix("gf256:").split("x"))
        commits = ", ".join(sorted({row.get("commit", "") for row in group}))
        size = f"{parity} x {data} times {data} x {columns:,} bytes"
        found.append((f"{size} on {machine}, commit {commits}", group))
    return found


def report(rows: Sequence[Row]) -> Report:
    """Return a table for each machine and shape: speed, and shares of ISA-L's and of what copying allows."""
    columns = [
        ("kernel", lambda row: row["kernel"]),
        ("GB/s of data", lambda row: row["data_gbs"] if results.right(row) else "WRONG"),
        ("+-%", lambda row: percent(number(row, "spread"))),
        ("% of ISA-L, one thread", lambda row: percent(number(row, "of_isal"))),
        ("% of what copying allows", lambda row: percent(number(row, "of_limit"))),
    ]
    return Report([Table.of(title, columns, group) for title, group in shapes(rows)])
