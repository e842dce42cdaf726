"""`dasp partition`: a matrix cut into files for ranks."""

from __future__ import annotations

import argparse
import json
import signal
import sys

from dasp import distributed
from dasp.cli.options import Subparsers, add_json_option, add_matrix_option, add_parser, positive, seed_from
from dasp.io.matrices import load_matrix


def add_command(subparsers: Subparsers) -> None:
    """Add `dasp partition` to the command line."""
    parser = add_parser(subparsers, "partition")
    add_matrix_option(parser)
    parser.add_argument(
        "--ranks", type=positive, required=True, metavar="N", help="how many ranks there will be"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a new folder for the parts")
    add_json_option(parser)
    parser.set_defaults(run=_partition)


def _partition(arguments: argparse.Namespace) -> int:
    matrix = load_matrix(arguments.matrix, seed=seed_from(arguments))
    # Ended by a signal, this process removes what it has written.
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found = distributed.write_parts(matrix, arguments.ranks, arguments.out)
    finally:
        signal.signal(signal.SIGTERM, before)
    if arguments.json:
        names = "rows", "entries", "columns_of_others"
        ranks = [dict(zip(names, one, strict=True)) for one in found]
        print(json.dumps({"matrix": arguments.matrix, "folder": arguments.out, "ranks": ranks}))
        return 0
    print(f"{arguments.matrix} in {arguments.out}")
    print(f"{'rank':>6}{'rows':>14}{'entries':>16}{'columns of others':>20}")
    for rank, (rows, entries, others) in enumerate(found):
        print(f"{rank:>6}{rows:>14,}{entries:>16,}{others:>20,}")
    return 0
