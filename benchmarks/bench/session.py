"""One run of a benchmark: its cases one after another, what the file already has left out, rows kept.

A subject (`sparse`, `gemm`, `gf256`, `solvers`) says which cases there are and measures one; all the
rest is here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Session:
    """How the cases of a subject are run.

    Attributes
    ----------
    csv : pathlib.Path or None
        Where rows are kept, and looked up.
    resume : bool
        Take a case from the file where the same commit measured it on the same machine.
    """

    csv: Path | None = None
    resume: bool = False

    def check(self) -> None:
        """Check that rows can be kept; ValueError if the file cannot be written or is another program's."""
        if self.csv:
            results.check(self.csv)

    def run(self, subject: Subject) -> list[Row]:
        """Measure every case and return the rows, in order."""
        self.check()
        columns = subject.device.columns()
        kept = results.read(self.csv) if self.resume and self.csv else []
        known = {results.key(row): row for row in kept}
        rows: list[Row] = []
        with subject.device.alone():
            for case in _progress(subject.cases):
                keys = [results.key({**row, **columns}) for row in subject.wanted(case)]
                if keys and all(key in known for key in keys):
                    rows += [known[key] for key in keys]
                    continue
                for row in subject.measure(case):
                    rows.append({**row, **columns, "date": time.strftime("%Y-%m-%d")})
                    if self.csv:
                        results.append(self.csv, rows[-1])
        return rows


def _progress(cases: Sequence[str]) -> Iterator[str]:
    """Yield the same names, with a progress bar on a terminal's standard error where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from cases
        return
    with tqdm(cases, unit="case", file=sys.stderr, disable=None) as bar:
        for case in bar:
            bar.set_description(case)
            yield case
