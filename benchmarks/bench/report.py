"""The report of a benchmark, drawn from its rows alone: for a terminal, and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import machine
from benchmarks.bench.rows import Row
from dasp.cli.report import WIDTH, Table


@dataclass(frozen=True)
class Report:
    """The tables of some rows.

    Attributes
    ----------
    summary : list of Table
        What to read first.
    notes : list of str
        A sentence each: what the figures mean, losses by name, what did not run.
    details : list of Table
        Every row, for a terminal alone.
    """

    summary: list[Table]
    notes: list[str] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)

    def text(self) -> str:
        """For a terminal: the rows, then what they sum up to."""
        tables = [table.text() for table in (*self.details, *self.summary)]
        notes = [textwrap.fill(note, WIDTH, break_long_words=False) for note in self.notes]
        return "\n\n".join([*tables, "\n".join(notes)]).rstrip()

    def markdown(self) -> str:
        """For a document: the summary and the notes."""
        return "\n\n".join([*(table.markdown() for table in self.summary), *self.notes])


def provenance(rows: Sequence[Row], source: Path) -> str:
    """Return the origin of rows: machines, versions, commits and the file."""
    columns = {
        name: " / ".join(sorted({row[name] for row in rows if row.get(name)})) for name in machine.PROVENANCE
    }
    return f"{machine.provenance(columns)}. Rows: `{source.name}`."


def where(row: Row) -> str:
    """Return the machine of a row in words, with its threads on a CPU.

    Examples
    --------
    >>> where({"machine": "AMD EPYC", "threads": "2"}), where({"machine": "NVIDIA H200"})
    ('AMD EPYC, 2 threads', 'NVIDIA H200')
    """
    threads = row.get("threads", "")
    if not threads:
        return row["machine"]
    return f"{row['machine']}, {threads} thread{'' if threads == '1' else 's'}"
