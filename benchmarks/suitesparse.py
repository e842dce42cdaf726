"""Run the whole collection: every real matrix under DASP_MATRICES, and generated families at size.

    python -m benchmarks.suitesparse --device cuda --name h200
    python -m benchmarks.suitesparse --device cpu --name squares_cpu --square poisson3d:60 ...

Rows go to `benchmarks/results/NAME.csv` as they are measured; a run that was interrupted goes on where it
stopped (rows of the same commit and machine are not measured again). `benchmarks/report.py` then draws the
figures, and writes the tables of the documents.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench.command import add_sparse_options, measure_and_report, sparse_subject
from benchmarks.bench.sparse import load

HERE = Path(__file__).resolve().parent

FAMILIES = {
    "full": (
        "stencil27:100",
        "stencil27:60",
        "stencil27:24",
        "poisson3d:128",
        "poisson3d:40",
        "poisson2d:1500",
        "poisson2d9:1200",
        "fem3:48",
        "fem3:20",
        "fem1:100",
        "qcd:16",
        "triangles:1000000",
        "geometric:1000000",
        "rmat:19",
        "rmat:16",
        "powerlaw:1000000",
        "circuit:1000000",
        "kkt:1000000",
        "lp:100000:400000",
        "markov:1000000",
        "band:300000",
        "short:2000000",
        "spikes:400000:20:100000",
        "dense:3000",
        "random:300000:300000:0.00005",
    ),
    "small": (
        "stencil27:40",
        "poisson3d:50",
        "poisson2d:500",
        "poisson2d9:300",
        "fem3:20",
        "fem1:40",
        "qcd:6",
        "triangles:60000",
        "geometric:60000",
        "rmat:14",
        "powerlaw:60000",
        "circuit:60000",
        "kkt:60000",
        "lp:10000:40000",
        "markov:60000",
        "band:20000",
        "short:200000",
        "spikes:60000:5:20000",
        "dense:800",
        "random:30000:30000:0.0005",
    ),
}
"""The generated half of the collection, by `--scale`; most of `full` is beyond the cache of a large GPU."""


def real_matrices(folder: str | None) -> list[str]:
    """Return the matrix files of a folder, sorted by name; none where there is no folder."""
    if not folder:
        return []
    found = [path for path in Path(folder).iterdir() if path.name.endswith((".npz", ".mtx", ".mtx.gz"))]
    return [str(path) for path in sorted(found, key=lambda path: path.name.lower())]


SQUARE, SORTED = "^2", "^2 sorted"
"""What stands behind the name of a matrix in that of its square, with columns as they come, and sorted."""


def load_square(spec: str, seed: int) -> Any:
    """Return the product of a matrix with itself, whose columns SciPy leaves unsorted."""
    A = load(spec.removesuffix(SORTED).removesuffix(SQUARE), seed)
    square = A @ A
    if spec.endswith(SORTED):
        square.sort_indices()
    return square


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrix", nargs="*", metavar="MATRIX", help="these instead of the collection")
    add_sparse_options(parser)
    parser.add_argument(
        "--scale", choices=tuple(FAMILIES), default="full", help="size of the generated families"
    )
    parser.add_argument(
        "--square",
        action="store_true",
        help="A @ A in place of A, with its columns unsorted, as SciPy leaves them, and sorted",
    )
    parser.add_argument("--name", default="suitesparse", help="of the CSV file")
    parser.add_argument("--csv", type=Path, help="instead of benchmarks/results/NAME.csv")
    args = parser.parse_args(arguments)
    args.csv = args.csv or HERE / "results" / f"{args.name}.csv"
    args.resume, args.json = True, False
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    specs = args.matrix or [*real_matrices(os.environ.get("DASP_MATRICES")), *FAMILIES[args.scale]]
    loader = None
    if args.square:
        specs, loader = [spec + which for spec in specs for which in (SQUARE, SORTED)], load_square
    try:
        return measure_and_report(args, lambda device: sparse_subject(args, specs, device, loader))
    except (ValueError, RuntimeError, OSError) as error:
        print(f"suitesparse.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
