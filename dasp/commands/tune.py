"""The command `dasp tune`: find the best tile sizes of the dense kernels on this GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dasp.dense.settings import SIZES, user_table


def add_command(subparsers: Any) -> None:
    """Add `tune` to the sub-commands of `dasp`."""
    parser = subparsers.add_parser(
        "tune",
        help="find the best tile sizes of the dense kernels on this GPU",
        description="Compile every valid set of tile sizes, check each, time it against cuBLAS, and keep the "
        "winner of each size class in a table that dasp.dense.gemm reads.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the search."""
    parser.add_argument(
        "--dtype", default="float32,float64,float16", metavar="NAMES", help="comma-separated dtypes"
    )
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), metavar="N,...", help="size classes to search for"
    )
    parser.add_argument("--rungs", metavar="NAMES", help="only these rungs, such as split,tensor")
    parser.add_argument(
        "--seconds", type=float, default=300, metavar="S", help="time for each rung of each dtype (300)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the table to write (default: the user's, DASP_TUNED)"
    )


def run(args: argparse.Namespace) -> int:
    """Search and print what is found."""
    from dasp.backends.cuda.product import available

    works, reason = available()
    if not works:
        raise RuntimeError(f"no GPU works here: {reason}; the search needs one")
    from dasp.tuning.gemm import RUNGS, tune

    dtypes = [name.strip() for name in args.dtype.split(",")]
    unknown = [name for name in dtypes if name not in RUNGS]
    if unknown:
        raise ValueError(f"--dtype names {', '.join(unknown)}; some of {', '.join(RUNGS)} are needed")
    path = args.out or user_table()
    sizes = [int(word) for word in args.sizes.split(",")]
    rungs = None if args.rungs is None else [name.strip() for name in args.rungs.split(",")]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    tune(dtypes, sizes, path, seconds=args.seconds, say=say, rungs=rungs)
    print(f"table: {path}")
    return 0
