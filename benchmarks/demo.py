"""The main job on an embedded default, by the commands that a user would type: `make demo`.

Model matrices stand for real classes. Each is planned, every row of its product is verified, and it is timed
against the baselines that are installed; then one system is solved, with multigrid, without, and by others.
Tables are printed; the picture of a plan is left in demo/.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import dasp
from dasp.cli import main as cli

ROOT = Path(__file__).resolve().parents[1]
PLAN = "demo/plan.html"

MATRICES = {
    "fem3:28": "structural mechanics, 3 unknowns a node",
    "stencil27:60": "27-point stencil",
    "poisson2d:1000": "5-point stencil",
    "powerlaw:400000": "web graph, row lengths by a power law",
    "circuit:800000": "circuit with nearly dense rows",
    "kkt:500000": "KKT system of an optimisation, indefinite",
}
STEPS = {
    "One matrix and its plan": ["info", "circuit:800000", "--html", PLAN],
    "Six classes, planned, verified and timed": ["bench", *MATRICES],
    "One system solved": ["solve", "poisson3d:80", "--precond", "multigrid", "--compare"],
}


def main() -> int:
    """Run every step; stop at the first that fails and return its exit status."""
    started = time.perf_counter()
    os.chdir(ROOT)
    Path(PLAN).parent.mkdir(exist_ok=True)
    dasp.show_config()
    for title, arguments in STEPS.items():
        print(f"\n== {title}\n\n$ dasp {' '.join(arguments)}", flush=True)
        if arguments[0] == "bench":
            print(*(f"  {matrix:<16} {stands_for}" for matrix, stands_for in MATRICES.items()), sep="\n")
        status = cli.main(arguments)
        if status != 0:
            return status
    print(f"\n{PLAN} is written; {time.perf_counter() - started:.0f} seconds in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
