"""Time each call that a user makes, through the public names alone; a row of CSV a figure.

    python -m benchmarks.front_door --device cuda --csv benchmarks/results/front_door_h200.csv
    python -m benchmarks.front_door --device cpu --csv benchmarks/results/front_door_cpu.csv rmat:16

Nothing but `dasp.SpMatrix`, `dasp.models` and `dasp.solvers` is used, so that the same file measures older
and newer trees: run it with `PYTHONPATH` at each and compare the rows. A matrix is a model or an `.npz`
file; by default every file in the folder that `DASP_MATRICES` names and some models. Every product is held to
its rounding bound. Times of products on a GPU are the median of replays of a CUDA graph; all others are the
least of several calls, waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import dasp

MODELS = (
    *("poisson2d:100", "poisson3d:60", "poisson3d:128", "stencil27:60", "fem3:30", "fem3:48"),
    *("rmat:16", "powerlaw:1000000", "circuit:200000", "triangles:200000", "random:300000:300000:0.00005"),
)
SYSTEMS = "poisson2d:100", "poisson3d:60", "fem3:30", "poisson3d:128", "poisson3d:200"
COLUMNS = 4, 8, 16, 32
PRODUCTS, REPLAYS = 20, 7
Row = dict[str, str]


class Cpu:
    """NumPy's arrays, and calls that are done as they return."""

    name, library = "cpu", np

    def wait(self) -> None:
        """Return at once."""

    def csr(self, matrix: Any) -> Any:
        """Return the matrix as SciPy has it."""
        return matrix

    def product_us(self, run: Callable[[], Any]) -> float:
        """Return the least of several times, each of as many products as take a millisecond or more."""
        run()
        start = time.perf_counter()
        run()
        count = max(1, int(1e-3 / max(time.perf_counter() - start, 1e-7)))
        best = float("inf")
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(count):
                run()
            best = min(best, (time.perf_counter() - start) / count)
        return 1e6 * best


class Gpu:
    """CuPy's arrays, and calls that are waited for."""

    name = "cuda"

    def __init__(self) -> None:
        import cupy

        self.library = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def wait(self) -> None:
        """Wait for the GPU."""
        self.library.cuda.Device().synchronize()

    def csr(self, matrix: Any) -> Any:
        """Return the matrix as CuPy has it."""
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(sp.csr_matrix(matrix))

    def product_us(self, run: Callable[[], Any]) -> float:
        """Return the median over replays of a graph of some products."""
        cuda = self.library.cuda
        with self.stream:
            run()
            self.wait()
            self.stream.begin_capture()
            for _ in range(PRODUCTS):
                run()
            graph = self.stream.end_capture()
        graph.launch(self.stream)
        begin, end, taken = cuda.Event(), cuda.Event(), []
        for _ in range(REPLAYS):
            begin.record(self.stream)
            graph.launch(self.stream)
            end.record(self.stream)
            end.synchronize()
            taken.append(1e3 * cuda.get_elapsed_time(begin, end) / PRODUCTS)
        return statistics.median(taken)


def least_us(call: Callable[[], Any], device: Any, repeats: int = 7) -> float:
    """Return the least time of a call and of what it leaves to do, after one that is not timed."""
    call()
    best = float("inf")
    for _ in range(repeats):
        device.wait()
        start = time.perf_counter()
        result = call()
        device.wait()
        best = min(best, time.perf_counter() - start)
        del result
    return 1e6 * best


def read(name: str) -> Any:
    """Return a model or a file as CSR of float64."""
    matrix = sp.load_npz(name) if name.endswith(".npz") else dasp.models.generate(name)
    return sp.csr_array(matrix).astype(np.float64)


def is_right(Y: Any, matrix: Any, X: Any) -> bool:
    """Return True if a product lies within its rounding bound in every row."""
    unit = np.finfo(matrix.dtype).eps
    want = matrix.astype(np.float64) @ X.astype(np.float64)
    lengths = np.diff(matrix.indptr).reshape((-1,) + (1,) * (X.ndim - 1)) + 2
    bound = lengths * unit * (abs(matrix).astype(np.float64) @ abs(X).astype(np.float64)) + 1e-30
    return bool((abs(Y - want) <= bound).all())


def products(matrix: Any, device: Any) -> Iterator[Row]:
    """Time products by one vector and by several, and what makes a plan and gives it new values."""
    lib, rng = device.library, np.random.default_rng(0)
    there = device.csr(matrix)
    make = dasp.SpMatrix.from_cupy if device.name == "cuda" else dasp.SpMatrix.from_scipy
    yield {"subject": "plan", "us": f"{least_us(lambda: make(there), device, 5):.1f}"}
    if device.name == "cuda":
        yield {"subject": "upload", "us": f"{least_us(lambda: device.csr(matrix), device, 5):.1f}"}
        planned = least_us(lambda: dasp.SpMatrix.from_scipy(matrix, device="cuda"), device, 5)
        yield {"subject": "from_scipy", "us": f"{planned:.1f}"}
    A = make(there)
    values = lib.asarray(matrix.data)
    yield {"subject": "with_values", "us": f"{least_us(lambda: A.with_values(values, out=A), device):.1f}"}
    x = rng.standard_normal(matrix.shape[1]).astype(matrix.dtype)
    there_x, y = lib.asarray(x), lib.full(matrix.shape[0], np.nan, matrix.dtype)
    A.matvec(there_x, out=y)
    right = is_right(np.asarray(y.get() if device.name == "cuda" else y), matrix, x)
    run = device.product_us(lambda: A.matvec(there_x, out=y))
    yield {"subject": "product", "us": f"{run:.2f}", "right": str(right)}
    yield {"subject": "call", "us": f"{least_us(lambda: A @ there_x, device, 20):.2f}"}
    for k in COLUMNS:
        X = rng.standard_normal((matrix.shape[1], k)).astype(matrix.dtype)
        for order in "CF":
            right_side = lib.asarray(X, order=order)
            Y = lib.full((matrix.shape[0], k), np.nan, matrix.dtype, order=order)
            A.matvec(right_side, out=Y)
            right = is_right(np.asarray(Y.get() if device.name == "cuda" else Y), matrix, X)
            run = device.product_us(lambda right_side=right_side, Y=Y: A.matvec(right_side, out=Y))
            yield {"subject": f"columns {k} {order}", "us": f"{run:.2f}", "right": str(right)}


def host(device: Any) -> Iterator[Row]:
    """Time what a call takes of the host where the product itself is next to nothing."""
    A = dasp.SpMatrix.from_scipy(dasp.models.generate("poisson2d:30").astype(float), device=device.name)
    x, y = device.library.ones(A.shape[1]), device.library.ones(A.shape[0])
    for name, call in {"A @ x": lambda: A @ x, "matvec(out=)": lambda: A.matvec(x, out=y)}.items():
        best = float("inf")
        for _ in range(9):
            device.wait()
            start = time.perf_counter()
            for _ in range(300):
                call()
            best = min(best, (time.perf_counter() - start) / 300)
        yield {
            "matrix": "poisson2d:30",
            "dtype": "float64",
            "subject": f"host {name}",
            "us": f"{1e6 * best:.2f}",
        }


def iterations(names: tuple[str, ...], device: Any) -> Iterator[Row]:
    """Time an iteration of cg: the difference of a long and a short solve that never converge."""
    for name in names:
        matrix = read(name)
        A = dasp.SpMatrix.from_scipy(matrix, device=device.name)
        b = device.library.asarray(np.random.default_rng(1).standard_normal(A.shape[0]))
        few, many = (20, 60) if device.name == "cpu" else (40, 200)

        def solve(count: int, A: Any = A, b: Any = b) -> None:
            dasp.solvers.cg(A, b, rtol=0.0, maxiter=count, check_every=count)

        taken = [least_us(lambda count=count, solve=solve: solve(count), device, 5) for count in (few, many)]
        row = {"matrix": name, "dtype": "float64", "subject": "cg iteration"}
        yield row | {"us": f"{(taken[1] - taken[0]) / (many - few):.2f}"}


def find_name(device: Any) -> str:
    """Return the GPU's name, or how many cores there are."""
    if device.name == "cpu":
        return f"{os.cpu_count()} CPU cores"
    return str(device.library.cuda.runtime.getDeviceProperties(0)["name"].decode())


def append_rows(rows: Iterable[Row], columns: list[str], path: Path | None) -> None:
    """Print rows as they come, and append them to a file if there is one."""
    with contextlib.ExitStack() as stack:
        writer = None
        if path:
            new = not path.exists()
            file = stack.enter_context(open(path, "a", newline="", buffering=1))
            writer = csv.DictWriter(file, columns, restval="")
            if new:
                writer.writeheader()
        for row in rows:
            print(*row.values(), sep="\t", flush=True)
            if writer:
                writer.writerow(row)


def main() -> None:
    """Measure, print, and append the rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("matrices", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--tree", default="", help="what the rows call the tree that is measured")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    device = Gpu() if options.device == "cuda" else Cpu()
    folder = os.environ.get("DASP_MATRICES")
    files = sorted(map(str, Path(folder).glob("*.npz"))) if folder else []
    known = {"tree": options.tree, "on": find_name(device)}

    def measure() -> Iterator[Row]:
        yield from host(device)
        yield from iterations(tuple(options.systems), device)
        for name in options.matrices or (*MODELS, *files):
            for dtype in options.dtypes.split(","):
                matrix = read(name).astype(dtype)
                for row in products(matrix, device):
                    yield {"matrix": Path(name).stem if name.endswith(".npz") else name, "dtype": dtype} | row

    columns = ["tree", "on", "matrix", "dtype", "subject", "us", "right"]
    append_rows((known | row for row in measure()), columns, options.csv)


if __name__ == "__main__":
    main()
