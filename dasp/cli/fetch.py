"""`dasp fetch`: matrices of the SuiteSparse collection by name."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dasp.cli.options import Subparsers, add_parser

if TYPE_CHECKING:
    from dasp.io.suitesparse import KnownMatrix


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp fetch` to the command line."""
    from dasp.io.suitesparse import SOURCE

    parser = add_parser(
        subparsers,
        "fetch",
        ", into the folder that DASP_MATRICES names, where every command finds them. Each archive is "
        "verified before anything of it is used.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="matrices of the list")
    parser.add_argument("--all", action="store_true", help="every matrix of the list")
    parser.add_argument("--max-entries", type=int, metavar="N", help="leave out larger ones")
    parser.add_argument("--list", action="store_true", help="print the list, and fetch nothing")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to (default: the environment's DASP_MATRICES)"
    )
    parser.add_argument(
        "--url", default=SOURCE, metavar="URL", help=f"where GROUP/NAME.tar.gz lies ({SOURCE})"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetch what the command line names; 2 if anything failed."""
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
    folder.mkdir(parents=True, exist_ok=True)
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
