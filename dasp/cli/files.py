"""`dasp plan`, `dasp fetch` and `dasp partition`: matrices and plans in files."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dasp.cli.options import (
    Subparsers,
    add_device_option,
    add_format_option,
    add_matrix_option,
    add_parser,
    check_file,
    load_and_plan,
    positive,
)
from dasp.cli.report import Table

if TYPE_CHECKING:
    from dasp.io.suitesparse import KnownMatrix


# ---- plan ------------------------------------------------------------------------------------------------


def add_plan(subparsers: Subparsers) -> None:
    """Add `dasp plan` to the command line."""
    more = "; `dasp.SpMatrix(dasp.load_plan(FILE))` multiplies by it without planning again"
    parser = add_parser(subparsers, "plan", more)
    add_matrix_option(parser)
    parser.add_argument("file", metavar="FILE", help="the plan to write, replaced only when whole")
    add_device_option(parser)
    add_format_option(parser)
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    check_file("FILE", arguments.file, reads=[arguments.matrix])
    _, planned, seconds = load_and_plan(arguments)
    planned.save(arguments.file)
    print(planned)
    print(f"planned in {seconds:.3g} s; {arguments.file}: {os.path.getsize(arguments.file):,} bytes")
    return 0


# ---- fetch -----------------------------------------------------------------------------------------------


def add_fetch(subparsers: Subparsers) -> None:
    """Add `dasp fetch` to the command line."""
    from dasp.io.suitesparse import SOURCE

    more = ", into the folder that DASP_MATRICES names, where every command finds them"
    parser = add_parser(subparsers, "fetch", more)
    parser.add_argument("names", nargs="*", metavar="NAME", help="matrices of the list")
    parser.add_argument("--all", action="store_true", help="every matrix of the list")
    parser.add_argument("--max-entries", type=positive, metavar="N", help="leave out larger ones")
    parser.add_argument("--list", action="store_true", help="print the list, and fetch nothing")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to (default: the environment's DASP_MATRICES)"
    )
    parser.add_argument(
        "--url", default=SOURCE, metavar="URL", help=f"where GROUP/NAME.tar.gz lies ({SOURCE})"
    )
    parser.set_defaults(run=_fetch)


def _fetch(arguments: argparse.Namespace) -> int:
    """Fetch the matrices that the command line names; return 2 if one failed, else 0."""
    from dasp.io.suitesparse import FetchError, choose

    chosen = choose(arguments.names, arguments.all or arguments.list, arguments.max_entries)
    if arguments.list:
        for matrix in chosen:
            size = f"{matrix.rows:>10,} x {matrix.cols:<10,}"
            print(f"{matrix.name:30} {size} {matrix.entries:>12,} {matrix.kind}")
        return 0
    if not chosen:
        raise FetchError("no matrix was chosen; name some, or give --all; see --list")
    folder = arguments.folder or Path(os.environ.get("DASP_MATRICES") or "")
    if folder == Path():
        raise FetchError("DASP_MATRICES is not set; it must name the folder for matrices; or give --folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(f"{folder} cannot be made: {error.strerror}; name a folder to write in") from error
    return max(_fetch_one(matrix, folder, arguments.url) for matrix in chosen)


def _fetch_one(matrix: KnownMatrix, folder: Path, source: str) -> int:
    from dasp.io.suitesparse import FetchError, fetch

    target = folder / f"{matrix.name}.mtx"
    if target.exists():
        print(f"{target} is there already")
        return 0
    try:
        print(fetch(matrix, folder, source))
    except (FetchError, OSError, ValueError) as error:
        print(f"dasp: error: {error}", file=sys.stderr)
        return 2
    return 0


# ---- partition -------------------------------------------------------------------------------------------


def add_partition(subparsers: Subparsers) -> None:
    """Add `dasp partition` to the command line."""
    parser = add_parser(subparsers, "partition")
    add_matrix_option(parser)
    parser.add_argument(
        "--ranks", type=positive, required=True, metavar="N", help="how many ranks there will be"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a new folder for the parts")
    parser.set_defaults(run=_partition)


def _partition(arguments: argparse.Namespace) -> int:
    from dasp import distributed
    from dasp.io.matrices import load_matrix

    matrix = load_matrix(arguments.matrix, seed=arguments.seed)
    # Raise at SIGTERM, so that `write_parts` removes what it has written.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        parts = distributed.write_parts(matrix, arguments.ranks, arguments.out)
    finally:
        signal.signal(signal.SIGTERM, before)
    lines = [(str(rank), *(f"{count:,}" for count in part)) for rank, part in enumerate(parts)]
    headings = "rank", "rows", "entries", "columns of others"
    print(Table(f"{arguments.matrix} in {arguments.out}", headings, lines).text())
    return 0
