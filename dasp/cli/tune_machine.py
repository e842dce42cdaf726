"""The numbers of a cost model searched on the machine at hand: `dasp tune machine`.

Each number is tried at other values, one number after the other. The matrices of a collection are planned
anew with each value, and where a plan changes its product is timed. A value is taken if products are faster
in the geometric mean and none is much slower, in two measurements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dasp import models
from dasp.cli.table import Table
from dasp.cli.timing import Candidate, time_host
from dasp.cli.timing_cuda import replays
from dasp.formats.cost import CostModel, Gathers
from dasp.matrix import convert, planning
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.runtime.cuda.stream import on_stream

Matrix = TypeVar("Matrix")
Clock = Callable[[], float]
"""Microseconds of a product, measured."""
Planner = Callable[[Matrix, CostModel], tuple[Hashable, Clock]]
"""Plans a matrix by a cost model. Returns what was chosen, and the clock of the product."""

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

SEARCHED = "most_steps", "slot", "slice", "row", "near_bytes", "near", "far", "large_block", "slot_bytes"
"""The fields that are searched, in this order."""

FACTORS = 0.5, 2.0
"""Each number is tried at so many times its value."""

LEAST_GAIN = 0.99
"""A value is taken if the geometric mean of the times falls to this ratio or below,"""

MOST_LOSS = 1.03
"""and if no product takes more than so many times as long."""


# ---- the search ------------------------------------------------------------------------------------------


def variants(model: CostModel, field: str) -> Iterator[CostModel]:
    """Yield the model with each number of a field at other values; nothing for a number that is 0."""
    value: Any = getattr(model, field)
    for factor in FACTORS:
        if isinstance(value, Gathers):
            parts = {part: factor * number for part, number in value._asdict().items() if number}
            others = [value._replace(**{part: number}) for part, number in parts.items()]
        else:
            others = [type(value)(factor * value)] if value else []
        for other in others:
            changed: dict[str, Any] = {field: other}
            yield dataclasses.replace(model, **changed)


class Search:
    """Plans and times of a collection by cost models.

    Parameters
    ----------
    matrices : sequence
    planner : callable
        Plans one of them by a model; see `Planner`.
    """

    def __init__(self, matrices: Sequence[Matrix], planner: Planner[Matrix]) -> None:
        """Measure nothing yet."""
        self._matrices, self._planner = matrices, planner
        self._times: dict[tuple[int, Hashable], float] = {}

    def is_faster(self, new: CostModel, old: CostModel) -> bool:
        """Return True if plans by the new model are faster, in two measurements."""
        plans = [[self._planner(matrix, model) for model in (new, old)] for matrix in self._matrices]
        unlike = [(i, pair) for i, pair in enumerate(plans) if pair[0][0] != pair[1][0]]
        known = [[self._time(i, *plan) for plan in pair] for i, pair in unlike]
        return self._pays(known) and self._pays([[clock() for _, clock in pair] for _, pair in unlike])

    def _time(self, i: int, choice: Hashable, clock: Clock) -> float:
        if (i, choice) not in self._times:
            self._times[i, choice] = clock()
        return self._times[i, choice]

    def _pays(self, times: list[list[float]]) -> bool:
        """Return True if the first of each two times are shorter; plans that are equal count as such."""
        ratios = [new / old for new, old in times]
        mean = math.exp(sum(map(math.log, ratios)) / len(self._matrices))
        return mean <= LEAST_GAIN and max(ratios) <= MOST_LOSS


def measure(model: CostModel, matrices: Sequence[Matrix], planner: Planner[Matrix]) -> dict[str, Any]:
    """Search the numbers of a machine.

    Parameters
    ----------
    model : CostModel
        Of the machine, until now.
    matrices : sequence
    planner : callable
        Plans one of them by a model, and times its product.

    Returns
    -------
    dict
        The fields of `SEARCHED` with which products are faster, and their values.
    """
    best, search = model, Search(matrices, planner)
    for field in SEARCHED:
        for other in variants(best, field):
            if search.is_faster(other, best):
                best = other
    return {name: getattr(best, name) for name in SEARCHED if getattr(best, name) != getattr(model, name)}


# ---- this machine ----------------------------------------------------------------------------------------


def collection(kind: str) -> list[Any]:
    """Return the matrices on which a CPU or a GPU is measured, as SciPy's CSR of float64."""
    return [models.generate(name).tocsr().astype(np.float64) for name in COLLECTION[kind]]


def plan(matrix: Any, model: CostModel, device: str) -> tuple[SpMatrix, Hashable]:
    """Return a SciPy matrix planned by a cost model, and what was chosen."""
    request = planning.Request(device, Policy(format="sell"), model)
    A = SpMatrix(planning.pack(*convert.from_scipy(matrix, request), request), device)
    choice = A.plan.pattern.choice
    warps = choice.warps if model.kind == "gpu" else 0  # a CPU has no use for it
    return A, (choice.steps, choice.segment_steps, choice.window, warps)


def host_planner(seconds: float) -> Planner[Any]:
    """Return the planner of this CPU, whose clocks take so many seconds each."""

    def make(matrix: Any, model: CostModel) -> tuple[Hashable, Clock]:
        A, choice = plan(matrix, model, "cpu")
        x, y = np.random.default_rng(0).standard_normal(A.shape[1]), np.empty(A.shape[0])
        product = Candidate("product", lambda: A.matvec(x, out=y), result=lambda: y)
        return choice, lambda: time_host([product], seconds=seconds)["product"].best_us

    return make


def gpu_planner() -> Planner[Any]:
    """Return the planner of the current GPU, whose clocks take the least of seven replays of a graph."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)

    def make(matrix: Any, model: CostModel) -> tuple[Hashable, Clock]:
        A, choice = plan(matrix, model, f"cuda:{cupy.cuda.Device().id}")

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
    """Return the measured numbers as text, beside those until now."""
    if not measured:
        return "No other numbers make products faster: those until now stay."
    units = {field.name: field.metadata["unit"] for field in dataclasses.fields(model)}
    lines: list[tuple[str, ...]] = [
        (name, _text(getattr(model, name)), _text(value), units[name]) for name, value in measured.items()
    ]
    return Table("", ("field", "until now", "measured", "unit"), lines, frozenset({"unit"})).text()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
