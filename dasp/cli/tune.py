"""`dasp tune gemm` and `dasp tune machine`: measure, on this machine, the numbers that choices depend on.

`dasp.cli.tune_gemm` searches tile sizes. This module searches the numbers of a cost model, one after the
other, each at other values. It plans the matrices of a collection with each value, and times the products of
plans that change. It takes a value if products are faster in the geometric mean and none is much slower, in
two measurements.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_array

from dasp import models
from dasp.cli.options import Subparsers, add_device_option, add_parser, check_file, duration
from dasp.cli.report import Table
from dasp.cli.timing import Candidate, replays, time_host
from dasp.dense.gemm.rungs_cuda import user_table
from dasp.formats import backend_cuda, cost
from dasp.formats.cost import CostModel, Gathers
from dasp.matrix import convert, planning
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.planning import find_device
from dasp.matrix.policy import Policy
from dasp.runtime.cpu.compile import name_processor
from dasp.runtime.cuda import gpus
from dasp.runtime.cuda.stream import on_stream

# ---- the commands ----------------------------------------------------------------------------------------

GEMM_DTYPES = ("float32", "float64", "float16", "bfloat16")


def add_tune(subparsers: Subparsers) -> None:
    """Add `tune` to the sub-commands of `dasp`."""
    parser = add_parser(subparsers, "tune")
    commands = parser.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    _add_gemm(commands)
    _add_machine(commands)


def _add_gemm(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "gemm",
        help="find the tile sizes with which dense products run fastest on this GPU",
        description="Compile every valid set of tile sizes, check each, time it against cuBLAS, and keep the "
        "winner of each size class in the file that DASP_TUNED names. dasp.dense.gemm reads it.",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        choices=GEMM_DTYPES,
        help="may be given several times (default: all but bfloat16, which float16's findings serve too)",
    )
    parser.add_argument(
        "--seconds", type=duration, metavar="S", default=300, help="for each kernel and dtype (300)"
    )
    parser.set_defaults(run=_tune_gemm)


def _tune_gemm(arguments: argparse.Namespace) -> int:
    """Search tile sizes, print those that are found, and write the table."""
    from dasp.cli import tune_gemm

    gpus.use(find_device("cuda"))
    path = user_table()
    _check_path(path)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    tune_gemm.tune(arguments.dtype or GEMM_DTYPES[:3], path, seconds=arguments.seconds, say=say)
    print(f"table: {path}")
    return 0


def _add_machine(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "machine",
        help="search the numbers by which sparse matrices are packed",
        description="Plan some matrices with other numbers of the cost model, time their products, and keep "
        "the numbers with which products are faster here and none is much slower: a minute or two on a "
        "machine that does nothing else. They are kept in the file that DASP_COST_MODEL names, by default in "
        "the user's cache folder, and planning reads them from then on.",
    )
    add_device_option(parser)
    parser.add_argument(
        "--seconds", type=duration, default=0.2, metavar="S", help="CPU time for each product (0.2)"
    )
    parser.set_defaults(run=_tune_machine)


def _tune_machine(arguments: argparse.Namespace) -> int:
    """Search the numbers of this machine, write them to a file and print them."""
    device, path = find_device(arguments.device), cost.find_file()
    _check_path(path)
    if device == "cpu":
        name, model = name_processor(), CostModel.for_cpu()
        planner = host_planner(arguments.seconds)
    else:
        gpu = backend_cuda.describe_gpu(device)
        name, model, planner = gpu.name, CostModel.for_gpu(gpu), gpu_planner(device)
    measured = measure(model, [models.generate(name) for name in COLLECTION[model.kind]], planner)
    cost.write_own_numbers(path, name, measured)
    print(table(model, measured))
    print(f"numbers of {name}: {path}")
    return 0


def _check_path(path: Path) -> None:
    """Make the folder of a file; ValueError or OSError if the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_file("the file to write", str(path))


# ---- the search ------------------------------------------------------------------------------------------

Matrix = TypeVar("Matrix")
Clock = Callable[[], float]
"""Times a product; returns microseconds."""
Planned = tuple[Hashable, Clock]
"""The choice for a matrix, and the clock of its product."""
Planner = Callable[[Matrix, CostModel], Planned]
"""Plans a matrix by a cost model; returns the choice and the clock."""

COLLECTION = {
    "cpu": (
        *("poisson2d:300", "poisson3d:40", "fem3:16", "fem3:24", "triangles:30000", "triangles:200000"),
        *("rmat:13", "rmat:15", "powerlaw:60000", "circuit:30000", "circuit:200000", "kkt:30000"),
    ),
    "gpu": (
        *("poisson2d:300", "poisson3d:90", "fem3:16", "fem3:30", "triangles:30000", "triangles:200000"),
        *("rmat:13", "rmat:17", "powerlaw:60000", "powerlaw:1000000", "circuit:60000", "circuit:900000"),
        *("kkt:60000", "random:60000:60000:0.00005"),
    ),
}
"""Matrices of many structures, small and large."""

SEARCHED = (
    *("most_steps", "slot", "slice", "row", "near_bytes", "near", "far", "large_block", "slot_bytes"),
)
"""The fields that are searched, in this order."""

FACTORS = 0.5, 2.0
"""Each number is tried at its value times these factors."""

LEAST_GAIN = 0.99
"""A value is taken if new times over old ones are at most this in the geometric mean,"""

MOST_LOSS = 1.03
"""and at most this for each product."""


def variants(model: CostModel, field: str) -> Iterator[CostModel]:
    """Yield the model with each number of a field, unless it is 0, at its value times each of `FACTORS`."""
    value = getattr(model, field)
    for factor in FACTORS:
        if isinstance(value, Gathers):
            parts = {part: factor * number for part, number in value._asdict().items() if number}
            others = [value._replace(**{part: number}) for part, number in parts.items()]
        else:
            others = [type(value)(factor * value)] if value else []
        for other in others:
            changed: dict[str, Any] = {field: other}
            yield dataclasses.replace(model, **changed)


Times = dict[tuple[int, Hashable], float]
"""Microseconds of a product, measured once, by the index of its matrix and the choice for it."""


def is_faster(new: Sequence[Planned], old: Sequence[Planned], times: Times) -> bool:
    """Return True if the new plans of some matrices are faster than the old, in two measurements."""
    unlike = [(i, pair) for i, pair in enumerate(zip(new, old, strict=True)) if pair[0][0] != pair[1][0]]
    for i, pair in unlike:
        for choice, clock in pair:
            if (i, choice) not in times:
                times[i, choice] = clock()
    known = [[times[i, choice] for choice, _ in pair] for i, pair in unlike]
    if not _pays(known, len(new)):
        return False
    again = [[clock() for _, clock in pair] for _, pair in unlike]
    return _pays(again, len(new))


def _pays(times: list[list[float]], matrices: int) -> bool:
    """Return True if the new of each (new, old) times pay; the plans of all other matrices are equal."""
    ratios = [new / old for new, old in times]
    mean = math.exp(sum(map(math.log, ratios)) / matrices)
    return mean <= LEAST_GAIN and max(ratios) <= MOST_LOSS


def measure(model: CostModel, matrices: Sequence[Matrix], planner: Planner[Matrix]) -> dict[str, Any]:
    """Search the numbers of a machine.

    Parameters
    ----------
    model : CostModel
        The machine's model until now.
    matrices : sequence
    planner : callable
        Plans a matrix by a model; see `Planner`.

    Returns
    -------
    dict
        The fields of `SEARCHED` with which products are faster, and their values.
    """
    best = model
    times: Times = {}
    plans = [planner(matrix, best) for matrix in matrices]
    for field in SEARCHED:
        for other in variants(best, field):
            others = [planner(matrix, other) for matrix in matrices]
            if is_faster(others, plans, times):
                best, plans = other, others
    return {name: getattr(best, name) for name in SEARCHED if getattr(best, name) != getattr(model, name)}


# ---- this machine ----------------------------------------------------------------------------------------


def plan(matrix: csr_array, model: CostModel, device: str) -> tuple[SpMatrix, Hashable]:
    """Return a SciPy matrix planned by a cost model, and the choice made for it."""
    request = planning.Request(device, Policy(format="sell"), model)
    A = SpMatrix(planning.pack(*convert.from_scipy(matrix, request), request), device)
    choice = A.plan.pattern.choice
    warps = choice.warps if model.kind == "gpu" else 0  # a CPU has no use for it
    return A, (choice.steps, choice.segment_steps, choice.window, warps)


def host_planner(seconds: float) -> Planner[csr_array]:
    """Return the planner of this CPU; each of its clocks takes `seconds`."""

    def make(matrix: csr_array, model: CostModel) -> Planned:
        A, choice = plan(matrix, model, "cpu")
        x, y = np.random.default_rng(0).standard_normal(A.shape[1]), np.empty(A.shape[0])
        product = Candidate("product", lambda: A.matvec(x, out=y))
        return choice, lambda: time_host([product], seconds=seconds)["product"].best_us

    return make


def gpu_planner(device: str) -> Planner[csr_array]:
    """Make a GPU the current one; return its planner, whose clocks return the least of seven replays."""
    import cupy

    gpus.use(device)
    stream = cupy.cuda.Stream(non_blocking=True)

    def make(matrix: csr_array, model: CostModel) -> Planned:
        A, choice = plan(matrix, model, device)

        def clock() -> float:
            x = cupy.asarray(np.random.default_rng(0).standard_normal(A.shape[1]))
            y = cupy.empty(A.shape[0])
            cupy.cuda.Device().synchronize()
            with on_stream(stream):
                return min(replays(lambda: A.matvec(x, out=y), stream)[0])

        return choice, clock

    return make


# ---- the table -------------------------------------------------------------------------------------------


def table(model: CostModel, measured: Mapping[str, Any]) -> str:
    """Return a table of the measured numbers beside those until now, as text."""
    if not measured:
        return "No other numbers make products faster: those until now stay."
    lines: list[tuple[str, ...]] = [
        (name, _text(getattr(model, name)), _text(value)) for name, value in measured.items()
    ]
    return Table("", ("field", "until now", "measured"), lines).text()


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
