"""The numbers of a cost model measured again on the machine at hand: `dasp tune machine`.

Costs come from products of matrices that are made so that their counts are known and differ: slots, slices,
pads, rows out of order, distinct sectors of x. Their times are fitted by costs that are not negative, each
time weighing the same. Other numbers are found by searches of their own. `measure` asks a clock and nothing
else of the machine, so that its tests ask a toy machine whose answers are known.

The shipped costs of gathers are means over real matrices, whose columns lie closer than the random ones here:
sectors that are far, and pads among them, come out dearer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.optimize import nnls

from dasp import models
from dasp.cli.table import Table
from dasp.formats.cost import FEW_WARPS, MANY_WARPS, CostModel
from dasp.matrix.matrix import SpMatrix
from dasp.matrix.policy import Policy
from dasp.runtime.cpu.timing import Candidate, time_host
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.cuda.timing import replays
from dasp.runtime.integers import ceil_div

Columns = np.ndarray[Any, Any]
Clock = Callable[..., float]
"""Microseconds of the product of a SciPy matrix that is packed in slices with the given choices."""

LANES = 32
SECTOR = 4
"""Elements of a float64 x in a sector of 32 bytes."""
ENTRIES = {"cpu": 1 << 20, "gpu": 1 << 24}
"""Entries of a matrix that is timed: enough to fill the device for some 100 microseconds."""
FAR_BYTES = 1 << 25
"""Bytes of an x that no core's own cache holds."""
LEAST_SHARE = 0.01
"""The least share of the longest time that a unit for each entry must explain: costs are ratios to it."""
STEPS = (16, 32, 64, 128, 256)
MODELS = {
    "cpu": ("fem3:16", "poisson3d:40", "triangles:30000", "rmat:13", "circuit:30000", "kkt:30000"),
    "gpu": ("fem3:28", "poisson3d:90", "triangles:700000", "rmat:19", "circuit:900000", "kkt:500000"),
}
"""The matrices over which the most steps are searched: on a GPU 4 million entries or more, below which
`CostModel.steps` says them."""
COSTS = ("call", "slot", "byte", "slice", "row", "pad", "by_slice", "by_few", "by_many")


class Experiment(NamedTuple):
    """A matrix, the choices that it is packed with, and how often it pays each of COSTS."""

    matrix: Any
    choices: dict[str, Any]
    counts: tuple[float, ...]


# ---- matrices of known counts ----------------------------------------------------------------------------


def experiment(
    columns: Columns,
    model: CostModel,
    *,
    delta_bytes: int,
    shortened: int = 0,
    steps: int = LANES,
    window: int = 0,
    whole_bytes: bool = False,
) -> Experiment:
    """Make a matrix with the given columns in each row, and count what its product costs.

    Parameters
    ----------
    columns : numpy.ndarray, shape (rows, length), each row rising
        Rows and length are multiples of 32 and of `steps`.
    model : CostModel
        Of the machine.
    delta_bytes : int
        In which the packing stores a column.
    shortened : int
        Entries that every other row lacks at its end.
    steps, window : int
        As in `Policy`. A window moves every second row, if some are shortened.
    whole_bytes : bool
        True if values are integers that one byte holds, in place of any.
    """
    rows, length = columns.shape
    lengths = np.full(rows, length)
    lengths[1::2] -= shortened
    kept = np.arange(length) < lengths[:, None]
    rng = np.random.default_rng(rows)
    count = int(lengths.sum())
    data = rng.integers(2, 100, count).astype(float) if whole_bytes else rng.standard_normal(count)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    shape = rows, int(columns.max()) + 1
    matrix = scipy.sparse.csr_array((data, columns[kept].astype(np.int32), indptr), shape=shape)
    slots = columns.size - (shortened * rows // 2 if window else 0)
    pads = 0 if window or not shortened else rows * shortened
    read = np.where(kept, columns, columns[:, :1])
    if window:
        read = np.concatenate([read[::2], read[1::2]])
    sectors = [_sectors(read, steps * warps) for warps in (1, FEW_WARPS, MANY_WARPS)]
    stored = slots * ((1 if whole_bytes else 8) + delta_bytes - 1)
    moved = rows if window else 0
    slices = columns.size // (LANES * steps)
    choices = {"steps": steps, "window": window, "warps": FEW_WARPS}
    return Experiment(matrix, choices, (1, slots, stored, slices, moved, pads, *sectors))


def _sectors(columns: Columns, steps: int) -> int:
    """Count the distinct sectors in each run of so many steps of 32 slots, all together."""
    flat, run = columns.reshape(-1) // SECTOR, LANES * steps
    whole, rest = np.split(flat, [flat.size // run * run])
    ordered = np.sort(whole.reshape(-1, run), axis=1)
    return int((np.diff(ordered, axis=1) > 0).sum()) + len(ordered) + len(np.unique(rest))


def band(rows: int, length: int, width: int) -> Columns:
    """Return neighbouring columns in each row, three further on in the next: deltas fill a byte, not less."""
    starts = 3 * np.arange(rows) % max(width - length, 1)
    return starts[:, None] + np.arange(length)


def scattered(rows: int, length: int, width: int, shared: int = 1) -> Columns:
    """Return random columns; so many slices of 32 rows after each other have the same ones."""
    rng = np.random.default_rng(shared)
    groups = ceil_div(rows, LANES * shared)
    some = np.sort(rng.integers(0, width, (groups, 1, LANES, length)), axis=3)
    return np.broadcast_to(some, (groups, shared, LANES, length)).reshape(-1, length)[:rows]


def near_experiments(model: CostModel, entries: int) -> list[Experiment]:
    """Make matrices whose x is near: they tell slots, bytes, slices, rows, pads and near sectors."""
    width = max(model.near_bytes, 1 << 18) // 16
    rows = entries // LANES
    make = functools.partial(experiment, model=model)
    plain, long = band(rows, 32, width), band(rows // 2, 64, width)
    return [
        make(plain, delta_bytes=1),
        make(plain[: rows // 8], delta_bytes=1),
        make(long, delta_bytes=1, steps=64),
        make(long, delta_bytes=1, steps=8),
        make(plain, delta_bytes=1, whole_bytes=True),
        make(plain, delta_bytes=1, shortened=16),
        make(plain, delta_bytes=1, shortened=2),
        make(plain, delta_bytes=1, shortened=2, window=rows),
        make(scattered(rows, 32, width), delta_bytes=2),
    ]


def far_experiments(model: CostModel, entries: int) -> list[Experiment]:
    """Make matrices whose x is far: they tell sectors of one slice, and those that blocks of slices share."""
    width, rows = FAR_BYTES // 8, entries // LANES
    make = functools.partial(experiment, model=model, delta_bytes=4)
    alone = scattered(rows, 32, width)
    return [
        make(alone),
        make(alone, shortened=16),
        make(scattered(rows, 32, width, FEW_WARPS)),
        make(scattered(rows, 32, width, MANY_WARPS)),
    ]


# ---- costs -----------------------------------------------------------------------------------------------


def fit(
    experiments: Sequence[Experiment], times: Sequence[float], known: dict[str, float]
) -> dict[str, float]:
    """Return the costs in microseconds that explain the times best, none below 0; some may be known."""
    counts, taken = np.array([each.counts for each in experiments]), np.array(times)
    for name, cost in known.items():
        taken = taken - cost * counts[:, COSTS.index(name)]
    wanted = [i for i, name in enumerate(COSTS) if name not in known]
    weights = 1 / np.array(times)
    scales = np.maximum(counts[:, wanted].max(axis=0), 1)
    found, _ = nnls(weights[:, None] * counts[:, wanted] / scales, np.maximum(weights * taken, 0))
    return known | {COSTS[i]: float(cost) for i, cost in zip(wanted, found / scales, strict=True)}


def measure_costs(model: CostModel, clock: Clock, entries: int) -> dict[str, Any]:
    """Measure `slot`, `value_byte`, `slice`, `row`, `near` and `far`, in the model's unit.

    There are none where the times hardly grow with the unit, as on a machine that others keep busy.
    """
    near, far = near_experiments(model, entries), far_experiments(model, entries)
    times = [clock(each.matrix, **each.choices) for each in near]
    blocks = {name: 0.0 for name in ("by_few", "by_many") if not getattr(model.near, name)}
    if not model.near.by_slice:
        blocks["by_slice"] = 0.0
    costs = fit(near, times, blocks)
    same = {name: costs[name] for name in ("call", "slot", "byte", "slice", "row")}
    absent = {name: 0.0 for name in COSTS[6:] if not getattr(model.far, name)}
    away = fit(far, [clock(each.matrix, **each.choices) for each in far], same | absent)
    # A CPU counts in slots of float64, a GPU in bytes of values.
    unit = costs["slot"] + 8 * costs["byte"] if model.kind == "cpu" else costs["byte"]
    named = {"slot": "slot", "value_byte": "byte", "slice": "slice", "row": "row"}
    if unit * entries < LEAST_SHARE * max(times):
        return {}

    def gathers(found: dict[str, float]) -> Any:
        return type(model.near)(*(round(found[name] / unit, 3) for name in COSTS[5:]))

    simple = {field: round(costs[name] / unit, 3) for field, name in named.items()}
    return {**simple, "near": gathers(costs), "far": gathers(away)}


# ---- searches --------------------------------------------------------------------------------------------


def measure_near_bytes(model: CostModel, clock: Clock, entries: int) -> int:
    """Measure up to how large an x random columns are near: half-way, in ratio, from the least time to the
    longest."""
    sizes = [1 << power for power in range(16, 27)]
    times = []
    for size in sizes:
        columns = scattered(entries // LANES, LANES, size // 8)
        each = experiment(columns, model, delta_bytes=2 if size <= 1 << 19 else 4)
        times.append(clock(each.matrix, **each.choices))
    middle = (min(times) * max(times)) ** 0.5
    return max((size for size, time in zip(sizes, times, strict=True) if time <= middle), default=0)


def fastest(clock: Clock, matrices: Iterable[Any], choice: str, values: Sequence[int]) -> int:
    """Return the value of a choice with the best geometric mean of times over the matrices."""
    logs = [[np.log(clock(matrix, **{choice: value})) for value in values] for matrix in matrices]
    return values[int(np.argmin(np.mean(logs, axis=0)))]


def measure_large_block(model: CostModel, clock: Clock, entries: int) -> float:
    """Measure how much longer blocks of `MANY_WARPS` slices take where their slices share nothing."""
    each = experiment(band(entries // LANES, LANES, entries // LANES), model, delta_bytes=1)
    many, few = (clock(each.matrix, **each.choices | {"warps": warps}) for warps in (MANY_WARPS, FEW_WARPS))
    return round(many / few, 3)


def measure_slot_bytes(model: CostModel, clock: Clock, entries: int, costs: dict[str, Any]) -> float:
    """Measure what a slot takes that stores nothing but a column: all values equal."""
    plain = experiment(band(entries // LANES, LANES, entries // LANES), model, delta_bytes=1)
    equal = plain.matrix.copy()
    equal.data[:] = 1.5
    ratio = clock(equal, **plain.choices) / clock(plain.matrix, **plain.choices)
    return round(float(ratio * (costs["slot"] + 8 * costs["value_byte"])), 2)


def measure(model: CostModel, clock: Clock, *, entries: int | None = None) -> dict[str, Any]:
    """Measure a machine's numbers again.

    Parameters
    ----------
    model : CostModel
        Of the machine, until now.
    clock : callable
        Microseconds of the product of a matrix with the given choices of `Policy`.
    entries : int, optional
        Of the matrices that are timed.

    Returns
    -------
    dict of str to number or tuple
        Some fields of `CostModel`, and what was measured; no costs where the times are too noisy for them.
    """
    entries = entries or ENTRIES[model.kind]
    found = measure_costs(model, clock, entries)
    collection = [models.generate(name).tocsr() for name in MODELS[model.kind]]
    if model.kind == "gpu":
        if found:
            found["slot_bytes"] = measure_slot_bytes(model, clock, entries, found)
        found["large_block"] = measure_large_block(model, clock, entries)
    found["near_bytes"] = measure_near_bytes(model, clock, entries)
    found["most_steps"] = fastest(clock, collection, "steps", STEPS)
    return found


# ---- clocks ----------------------------------------------------------------------------------------------


def host_clock(seconds: float) -> Clock:
    """Return the clock of this CPU, which spends so many seconds on a matrix."""

    def clock(matrix: Any, **choices: Any) -> float:
        A, x = _planned(matrix, "cpu", choices)
        y = np.empty(A.shape[0])
        candidate = Candidate("product", lambda: A.matvec(x, out=y), result=lambda: y)
        return time_host([candidate], seconds=seconds)["product"].best_us

    return clock


def gpu_clock() -> Clock:
    """Return the clock of the current GPU: the least of seven replays of a graph of twenty products."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)

    def clock(matrix: Any, **choices: Any) -> float:
        A, x = _planned(matrix, f"cuda:{cupy.cuda.Device().id}", choices)
        there, y = cupy.asarray(x), cupy.empty(A.shape[0])
        cupy.cuda.Device().synchronize()
        with on_stream(stream):
            return min(replays(lambda: A.matvec(there, out=y), stream)[0])

    return clock


def _planned(matrix: Any, device: str, choices: dict[str, Any]) -> tuple[SpMatrix, Columns]:
    A = SpMatrix.from_scipy(matrix, policy=Policy(format="sell", **choices), device=device)
    return A, np.random.default_rng(0).standard_normal(A.shape[1])


# ---- the table -------------------------------------------------------------------------------------------


def table(model: CostModel, measured: Mapping[str, Any]) -> str:
    """Return the measured numbers as text, beside those until now."""
    units = {field.name: field.metadata["unit"] for field in fields(model)}
    lines: list[tuple[str, ...]] = [
        (name, _text(getattr(model, name)), _text(value), units[name]) for name, value in measured.items()
    ]
    text = Table("", ("field", "until now", "measured", "unit"), lines, frozenset({"unit"})).text()
    if "slot" not in measured:
        text += "\nThe times were too noisy for costs: measure again while nothing else runs."
    return text


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
