"""One run of a benchmark: its cases one after another, what the file already has left out, rows kept.

A subject (`sparse`, `columns`, `gemm`, `gf256`, `solvers`) says which cases there are and measures one; all
the rest is here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.bench import results
from benchmarks.bench.device import BenchDevice
from benchmarks.bench.report import Report
from benchmarks.bench.rows import Row


class Subject(Protocol):
    """What a benchmark measures."""

    @property
    def device(self) -> BenchDevice:
        """Where it runs."""

    @property
    def cases(self) -> Sequence[str]:
        """Names of what is measured, in order."""

    def wanted(self, case: str) -> list[Row]:
        """Return the rows that a case makes, by the columns that name them, without the machine's."""

    def measure(self, case: str) -> Iterator[Row]:
        """Verify and time a case: its rows, each as soon as it is known."""

    def report(self, rows: Sequence[Row]) -> Report:
        """Return the tables of some rows."""


def run(subject: Subject, csv: Path | None = None, *, resume: bool = False) -> list[Row]:
    """Measure every case and return the rows, in order.

    Parameters
    ----------
    subject : Subject
    csv : pathlib.Path, optional
        Where rows are kept.
    resume : bool
        Take a case from the file where the same commit measured it on the same machine.
    """
    columns = subject.device.columns()
    kept = results.read(csv) if resume and csv else []
    known = {results.key(row): row for row in kept}
    rows: list[Row] = []
    with subject.device.alone():
        for case in subject.cases:
            keys = [results.key({**row, **columns}) for row in subject.wanted(case)]
            if keys and all(key in known for key in keys):
                rows += [known[key] for key in keys]
                continue
            print(f"measuring {case}", file=sys.stderr)
            for row in subject.measure(case):
                rows.append({**row, **columns, "date": time.strftime("%Y-%m-%d")})
                if csv:
                    results.append(csv, rows[-1])
    return rows
