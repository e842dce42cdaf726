"""Time the first answer of a process: from `import dasp` to x by cg, of trees by turns.

    python -m benchmarks.first_answer --device cuda --turns 3
    python -m benchmarks.first_answer --device cuda --turns 3 . ../other

Each answer is a process of its own, which finds no compiled code (caches empty) or all of it (full); Python's
bytecode is there, as an installer writes it. The time to generate the matrix is left out. Printed are
seconds: the median of the turns, then all.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ANSWER = """
import json, sys, time
device, name = sys.argv[1:]
ticks, seconds = [time.perf_counter()], {}
def tick(step):
    ticks.append(time.perf_counter())
    seconds[step] = ticks[-1] - ticks[-2]
import dasp
import numpy as np
import scipy.sparse
tick("import")
S = dasp.models.generate(name).astype(float)
b = np.ones(S.shape[0])
ticks[-1] = time.perf_counter()
if device == "cuda":
    from dasp.runtime.cuda import gpus
    gpus.try_gpu()
    tick("CuPy and context")
A = dasp.SpMatrix.from_scipy(S, device=device)
tick("plan")
x, stats = dasp.solvers.cg(A, b)
tick("cg")
assert stats.converged, stats
seconds["all"] = sum(seconds.values())
print(json.dumps(seconds))
"""


def time_answer(tree: Path, device: str, system: str, caches: Path) -> dict[str, float]:
    """Return the seconds of each step, in a process of a tree with its caches in a folder."""
    places = dict.fromkeys(("CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "DASP_CACHE"), str(caches))
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, device, system],
        env={**os.environ, **places, "PYTHONPATH": ""},  # its modules are those of the folder
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--system", default="poisson3d:60")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    for tree in options.trees:
        compileall.compile_dir(tree / "dasp", quiet=1)
    taken: dict[tuple[Path, str], list[dict[str, float]]] = {}
    for _ in range(options.turns):
        for tree in options.trees:
            with tempfile.TemporaryDirectory() as caches:
                for state in ("empty", "full"):
                    seconds = time_answer(tree, options.device, options.system, Path(caches))
                    taken.setdefault((tree, state), []).append(seconds)
    for (tree, state), turns in taken.items():
        for step in turns[0]:
            every = [one[step] for one in turns]
            numbers = (f"{one:.2f}" for one in (statistics.median(every), *every))
            print(tree, state, step, *numbers, sep=",")


if __name__ == "__main__":
    main()
