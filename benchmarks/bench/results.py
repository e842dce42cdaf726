"""Rows of results in a CSV file: append, read, resume.

A file's columns are the union of its rows' columns. A row is appended as one line; when it brings a new
column the file is rewritten under another name and renamed, so that an interruption leaves a whole file.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

KEY = ("matrix", "dtype", "device", "policy", "kernel", "machine", "threads", "commit")
"""Columns that say whether a row has been measured already."""


def read(path: Path) -> list[dict[str, str]]:
    """Return every row of a result file, in order; nothing where there is no file.

    Raises
    ------
    ValueError
        If the file has no `matrix` column.
    """
    if not path.exists() or path.stat().st_size == 0:
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, restval="", restkey=None)
        if "matrix" not in (reader.fieldnames or []):
            raise ValueError(f"{path} has no column `matrix`; a file that benchmarks.bench wrote is needed")
        # A last line cut short by an interruption has no key; it is measured again.
        return [{k: v for k, v in row.items() if k} for row in reader if row["matrix"] and row.get("commit")]


def check(path: Path) -> None:
    """Check that rows can be kept in a file, before the work that they would be lost with.

    Raises
    ------
    ValueError
        If its folder does not exist, or it is a folder or another program's file.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file for the rows is needed")
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written; the folder {path.parent} must exist; make it first")
    read(path)


def append(path: Path, row: dict[str, str]) -> None:
    """Add one row to a result file, which is made where there is none."""
    columns = _columns(path)
    ended = not path.exists() or path.stat().st_size == 0 or path.read_bytes()[-1:] == b"\n"
    if columns and ended and set(row) <= set(columns):
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns, restval="", lineterminator="\n").writerow(row)
        return
    write(path, [*read(path), row])


def write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Replace a result file."""
    kept = list(rows)
    columns = list(dict.fromkeys(name for row in kept for name in row))
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    os.replace(partial, path)


def _columns(path: Path) -> list[str]:
    """Return the header of a result file; nothing where there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def key(row: dict[str, str]) -> tuple[str, ...]:
    """Return the columns by which rows are the same measurement."""
    return tuple(row.get(name, "") for name in KEY)


def latest(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return one row for each matrix, dtype, device, policy, kernel and machine: the last one in the file."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        place = tuple(row.get(name, "") for name in KEY if name != "commit")
        found.pop(place, None)
        found[place] = row
    return list(found.values())


def right(row: dict[str, str]) -> bool:
    """Return True if the product that a row is about was verified and right."""
    return row.get("verified", row.get("correct")) == "yes"
