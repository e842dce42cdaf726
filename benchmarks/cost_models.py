"""Compare the plans of several cost models on this GPU: the H200's, the derived one, and one measured here.

    dasp tune machine --device cuda --out own.json
    python -m benchmarks.cost_models --own own.json --csv benchmarks/results/cost_models_h100.csv MATRIX ...

A cost model is given as a user gives it, by a file that DASP_COST_MODEL names. A matrix is a model or an
`.npz` file. The products of one matrix are timed in turns, and each has the least of its medians.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import dasp
from benchmarks.front_door import MODELS, Gpu, is_right, read
from dasp.formats import device_cuda
from dasp.formats.cost import H200, VARIABLE, write_own_numbers

ROUNDS = 3
FIELDS = ["on", "matrix", "dtype", "columns", "model", "us", "of_h200", "right"]


def plan(matrix: Any, path: Path) -> Any:
    """Return a matrix planned by the numbers of a file, which need not exist."""
    os.environ[VARIABLE] = str(path)
    device_cuda.find_cost_model.cache_clear()
    return dasp.SpMatrix.from_scipy(matrix, device="cuda")


def compare(matrix: Any, files: dict[str, Path], device: Gpu, columns: int) -> list[dict[str, str]]:
    """Time A @ X in C order with the plan of each cost model."""
    rng = np.random.default_rng(0)
    shape = (matrix.shape[1], columns) if columns > 1 else (matrix.shape[1],)
    X = rng.standard_normal(shape).astype(matrix.dtype)
    there = device.library.asarray(X)
    planned = {name: plan(matrix, path) for name, path in files.items()}
    taken = dict.fromkeys(files, math.inf)
    right = {}
    for turn in range(ROUNDS):
        for name, A in planned.items():
            Y = device.library.full((matrix.shape[0], *shape[1:]), np.nan, matrix.dtype)
            us = device.product_us(lambda A=A, Y=Y: A.matvec(there, out=Y))
            taken[name] = min(taken[name], us)
            if turn == 0:
                right[name] = is_right(Y.get(), matrix, X)
    return [
        {"model": name, "us": f"{us:.2f}", "of_h200": f"{us / taken['h200']:.3f}", "right": str(right[name])}
        for name, us in taken.items()
    ]


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="*")
    parser.add_argument("--own", type=Path, required=True, help="the file that `dasp tune machine` wrote")
    parser.add_argument("--columns", default="1,16")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    device, name = Gpu(), device_cuda.describe_gpu("cuda:0").name
    folder = Path(tempfile.mkdtemp())
    files = {"h200": folder / "h200.json", "derived": folder / "none.json", "own": options.own}
    numbers = {field: value for field, value in H200.as_dict().items() if field not in ("name", "kind")}
    write_own_numbers(files["h200"], name, numbers)
    rows = []
    for matrix_name in options.matrices or MODELS:
        matrix = read(matrix_name)
        for columns in map(int, options.columns.split(",")):
            for row in compare(matrix, files, device, columns):
                known = {"on": name, "matrix": Path(matrix_name).stem, "dtype": "float64"}
                rows.append(known | {"columns": str(columns)} | row)
                print(*rows[-1].values(), sep="\t", flush=True)
    for model in ("derived", "own"):
        ratios = [float(row["of_h200"]) for row in rows if row["model"] == model]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{model}: {mean:.3f} x the time of the H200's model in the mean, {max(ratios):.3f} at most")
    if options.csv:
        new = not options.csv.exists()
        with open(options.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
