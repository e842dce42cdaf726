"""The main job on an embedded default, by the commands that a user would type: `make demo`.

Model matrices stand for real classes. Each is planned, every row of its product is verified, and it is timed
against the baselines that are installed; then one system is solved. Tables are printed; they and the figures
are left in demo/.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import dasp
from dasp import cli

FOLDER = Path(__file__).resolve().parents[1] / "demo"

MATRICES = {
    "fem3:28": "structural mechanics, 3 unknowns a node",
    "stencil27:60": "27-point stencil",
    "poisson2d:1000": "5-point stencil",
    "powerlaw:400000": "web graph, row lengths by a power law",
    "circuit:800000": "circuit with nearly dense rows",
    "kkt:500000": "KKT system of an optimisation, indefinite",
}
SYSTEM = "poisson3d:80"


def main() -> int:
    """Run every step; stop at the first that fails and return its exit status."""
    FOLDER.mkdir(exist_ok=True)
    started = time.perf_counter()
    csv, figure, plan = (str(FOLDER / name) for name in ("bench.csv", "bench.png", "plan.png"))
    steps = [
        ("One matrix and its plan", ["info", next(iter(MATRICES)), "--plot", plan]),
        (
            "Six classes: planned, verified row by row, timed",
            ["bench", *MATRICES, "--csv", csv, "--plot", figure],
        ),
        ("One system solved", ["solve", SYSTEM]),
    ]
    dasp.show_config()
    for title, arguments in steps:
        print(f"\n== {title}\n$ dasp {' '.join(arguments)}", flush=True)
        if arguments[0] == "bench":
            print(*(f"  {matrix:<16} {stands_for}" for matrix, stands_for in MATRICES.items()), sep="\n")
        status = cli.main(arguments)
        if status:
            return status
    print(f"\nTables and figures are in {FOLDER}. {time.perf_counter() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
