"""The cost model: numbers that differ from machine to machine, by which matrices are packed.

A field stands here if it trades one way to store or multiply a matrix for another, and so differs between
machines. It was measured, follows from what a device says of itself, or is searched by `dasp tune machine`. A
plan carries the model that it was chosen by. Beside the code that reads them stand sizes of a format, limits,
and the registers and loads in flight that a kernel is compiled for, which GPUs from sm_80 on have alike.

The user's own numbers are in a file that `dasp tune machine` writes and planning reads. It is JSON:
{machine: {field of `CostModel`: number}}. A machine is a GPU by its name or a processor by its design: one
file serves several machines that share a home. Fields that are not there stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

FEW_WARPS, SOME_WARPS, MANY_WARPS = 4, 8, 16
"""Slices of a block: as a rule, where larger blocks pay, and where neighbouring slices read the same x."""


class Gathers(NamedTuple):
    """The cost of reading x beside reading the plan, in the model's unit of cost.

    Attributes
    ----------
    pad : float
        More for a slot in a step that may hold pads.
    by_slice, by_few, by_many : float
        For each sector of x that a slice, a block of `FEW_WARPS` slices, or one of `MANY_WARPS` slices reads,
        counted once for each.
    """

    pad: float
    by_slice: float
    by_few: float
    by_many: float


class Gpu(NamedTuple):
    """The properties that a GPU reports.

    Attributes
    ----------
    name : str
    multiprocessors : int
    warps : int
        Warps that a multiprocessor holds at once.
    l2_bytes : int
    clock : float
        Cycles of a multiprocessor in a second; 0 if the driver does not say.
    bandwidth : float
        Bytes of memory traffic in a second, from the memory's clock and the width of its bus; 0 likewise.
    """

    name: str
    multiprocessors: int
    warps: int
    l2_bytes: int
    clock: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """The measured numbers of one machine, by which plans for it are chosen.

    Costs are compared with each other alone, so each kind of device counts in a unit of its own: bytes of
    memory traffic on a GPU, slots on a CPU. `dasp tune machine` searches some of the numbers
    (`dasp.cli.tune.SEARCHED`); the others were measured by the experiments of benchmarks/lab_book.md, unless
    they say more.

    Raises
    ------
    ValueError
        For a number outside its range.
    """

    name: str
    kind: str
    """`cpu` or `gpu`."""

    # ---- how many steps a slice has: few keep a machine busy, many take fewer bytes
    steps: tuple[tuple[int, int], ...]
    """(entries, steps): most steps of a slice in matrices of fewer entries. Short slices are many."""
    most_steps: int
    """The same for larger matrices."""
    long_slices: tuple[tuple[int, int, int, float], ...]
    """(steps, lanes, slices, share): most steps where so many lanes hold every row, rows are mostly longer
    than the steps otherwise, on average at least as long as such a share of the longest, and at least so many
    slices are left. Columns take fewer bytes, and there are fewer warps."""

    # ---- in which order rows come: sorted rows save pads, and cost gathers and numbers of rows
    slot: float
    """Cost of a slot, with a pad or not."""
    value_byte: float
    """Cost of a byte of a stored value; 0 where slots are not bound by memory."""
    slice: float
    """Cost of a slice: few long ones against many short ones."""
    row: float
    """Cost of storing a row of y out of order, against the pads that it saves."""
    near_bytes: int
    """Bytes of x up to which it lies in a core's own cache."""
    near: Gathers
    """Cost of gathers where x is near."""
    far: Gathers
    """Cost of gathers where x is far."""
    scattered_bytes: int
    """Bytes of y up to which rows sorted over all rows cost no more than others: benchmarks/structures.py."""
    scattered_row: float
    """Cost of a row beyond, where parts of y's sectors leave the cache before the others come; likewise."""
    most_growth: float
    """Plans are not taken, whatever they gather, if they are larger than the smallest one by this ratio."""
    least_saving: float
    """Share of a plan that sorted rows must be able to save for windows to be tried."""
    sampled_rows: int
    """Rows from which on sort windows are tried on a sample: plans come sooner, and windows may cost more."""

    # ---- how many slices a block has: many read the same x once, and wait for the slowest
    large_block: float
    """Ratio by which a block of `MANY_WARPS` slices costs more, as it waits for its slowest warp."""
    slot_bytes: float
    """A slot takes at least as long as so many bytes, however few it has."""
    block_slots: tuple[float, float]
    """Slots of a slice from which on blocks of `SOME_WARPS` pay where all slices run at once, and blocks of
    `MANY_WARPS` may: a block waits for its slowest warp, the longer the shorter its slices are."""
    tiny_bytes: float
    """Bytes of the plan and of y for a slice up to which blocks of `SOME_WARPS` pay where all slices have one
    row a lane, and launching a block takes as long as it runs: benchmarks/structures.py."""

    # ---- several columns on a GPU: in slices, in tiles for tensor cores, or transposed first
    tile_entries: tuple[tuple[int, int, float], ...]
    """(bytes of a number of X, columns, entries of a tile): from so many bytes and columns on, how full the
    32 slots of a tile must be for tensor cores to multiply. They read a row of X once for several of A, and
    multiply slots without an entry: benchmarks/bench/columns.py."""

    # ---- what a GPU has room and time for, by what it says of itself
    wave_slices: int
    """Slices that run at the same time; more take turns."""
    multiprocessors: int
    kept_plans: tuple[int, int]
    """Bytes of a plan from and up to which a share of it is told to stay in the L2 until the next product:
    smaller ones stay by themselves, and too little would of larger ones."""
    kept_bytes: int
    """Bytes of a plan, x and y that have room there together."""
    launch_bytes: float
    """Bytes of memory traffic in the time of a few launches, or of a message between GPUs, against what
    passes over vectors save: X transposed to rows for a product by several columns, and sums over ranks that
    no rank waits for."""

    def __post_init__(self) -> None:
        """Check every number."""
        if self.kind not in ("cpu", "gpu"):
            raise ValueError(f"kind is {self.kind!r:.40}; it must be cpu or gpu")
        for field in dataclasses.fields(self):
            least = LEAST.get(field.name, 0.0)
            for value in _numbers(getattr(self, field.name)):
                if not least <= value < MOST:
                    raise ValueError(
                        f"{field.name} has {value!r:.40}; numbers from {least:g} to 2^63 are needed"
                    )
        named = [steps for _, steps in self.steps] + [steps for steps, *_ in self.long_slices]
        for steps in (self.most_steps, *named):
            if not 1 <= steps <= MOST_STEPS:
                raise ValueError(f"most steps of a slice are {steps}; they must be from 1 to {MOST_STEPS}")

    @classmethod
    def for_cpu(cls) -> CostModel:
        """Return the model of CPUs."""
        return ZEN4

    @classmethod
    def for_gpu(cls, gpu: Gpu) -> CostModel:
        """Return the model of a GPU: measured if it is known, else derived from what it says of itself.

        Slices that keep a GPU busy grow with its multiprocessors, and what stays in the L2 with the L2. Bytes
        that stand for cycles grow with the memory traffic of a multiprocessor in a cycle: sectors of x are
        such bytes, since most come from the L2, which is as fast as the clock. Launches take the same time
        everywhere, so their bytes grow with the bandwidth.
        """
        if gpu.name == H200.name:
            return H200
        known, base = H200_GPU, H200
        busy = gpu.multiprocessors / known.multiprocessors
        room = gpu.l2_bytes / known.l2_bytes
        is_known = gpu.clock > 0 and gpu.bandwidth > 0
        speed = _bytes_a_cycle(gpu) / _bytes_a_cycle(known) if is_known else 1.0
        bandwidth = gpu.bandwidth / known.bandwidth if gpu.bandwidth > 0 else 1.0
        smallest, largest = base.kept_plans
        near, far = (Gathers(*(speed * cost for cost in gathers)) for gathers in (base.near, base.far))
        return dataclasses.replace(
            base,
            name=gpu.name,
            steps=tuple((round(busy * entries), steps) for entries, steps in base.steps),
            long_slices=tuple(
                (steps, lanes, round(busy * slices), share)
                for steps, lanes, slices, share in base.long_slices
            ),
            scattered_bytes=round(room * base.scattered_bytes),
            near=near,
            far=far,
            slot_bytes=speed * base.slot_bytes,
            tiny_bytes=speed * base.tiny_bytes,
            wave_slices=max(1, round(busy * gpu.warps / known.warps * base.wave_slices)),
            multiprocessors=gpu.multiprocessors,
            kept_plans=(round(room * smallest), round(room * largest)),
            kept_bytes=round(room * base.kept_bytes),
            launch_bytes=bandwidth * base.launch_bytes,
        )

    @classmethod
    def from_dict(cls, given: object) -> Self:
        """Return the model whose fields came from JSON.

        Raises
        ------
        ValueError
            If a field is missing, unknown or of the wrong kind.
        """
        read = _read_fields(given)
        missing = [field.name for field in dataclasses.fields(cls) if field.name not in read]
        if missing:
            raise ValueError(f"its cost model lacks {missing[0]}")
        return cls(**read)


MOST_STEPS = (1 << 12) - 1
"""Steps of a slice that its header can count."""

MOST = 2.0**63
"""Every number is less than this."""

LEAST = {
    "least_saving": -MOST,
    "most_growth": 1.0,
    "wave_slices": 1.0,
    "multiprocessors": 1.0,
    "tile_entries": 1e-9,
}
"""The least number that a field may hold, if that is not 0."""


def _numbers(value: object) -> list[float]:
    """Return the numbers of a field, those inside of tuples too."""
    if isinstance(value, tuple):
        return [one for part in value for one in _numbers(part)]
    return [] if isinstance(value, str) else [value]  # type: ignore[list-item]  # all others are numbers


def _bytes_a_cycle(gpu: Gpu) -> float:
    """Return the bytes of memory traffic that a multiprocessor gets in a cycle."""
    return gpu.bandwidth / (gpu.multiprocessors * gpu.clock)


H200_GPU = Gpu("NVIDIA H200", 132, 64, 62_914_560, 1.98e9, 4.917e12)
"""The properties that an H200 reports: bytes a second are twice 3.201 GHz times 6144 bits."""

H200 = CostModel(
    name=H200_GPU.name,
    kind="gpu",
    sampled_rows=1_900_000,
    steps=((1_000_000, 8), (4_000_000, 16)),
    most_steps=32,
    long_slices=((16, 1, 1200, 0.0), (48, 1, 2500, 0.0), (96, 1, 6000, 0.0), (48, 2, 3500, 0.75)),
    slot=1.5,
    value_byte=1.0,
    slice=16.0,
    row=4.0,
    near_bytes=0,
    near=Gathers(0.0, 0.0, 19.2, 0.0),
    far=Gathers(0.0, 0.0, 19.2, 0.0),
    scattered_bytes=12_000_000,
    scattered_row=16.0,
    most_growth=1.15,
    least_saving=0.01,
    large_block=1.1,
    slot_bytes=7.0,
    block_slots=(168.0, 224.0),
    tiny_bytes=1175.0,
    wave_slices=8192,
    multiprocessors=H200_GPU.multiprocessors,
    kept_plans=(4_000_000, 115_000_000),
    kept_bytes=26_500_000,
    tile_entries=((8, 16, 6.0), (8, 8, 8.5), (4, 32, 10.0), (4, 16, 8.5)),
    launch_bytes=25e6,
)
"""An H200, driver 580. A sector costs 0.6 of its 32 bytes: from 0.3 (Markov chains) to 0.8 (power laws)."""

NO_BOUND = 1e9
"""In the place of a bound that nothing comes to."""

ZEN4 = dataclasses.replace(
    H200,
    name="two cores of a Zen 4",
    kind="cpu",
    sampled_rows=1 << 19,
    steps=(),
    most_steps=128,
    long_slices=(),
    slot=1.0,
    value_byte=0.0,
    slice=50.0,
    row=0.5,
    near_bytes=1 << 20,
    near=Gathers(0.6, 0.0, 0.0, 0.0),
    far=Gathers(0.3, 0.6, 0.0, 1.0),
    scattered_bytes=0,
    scattered_row=NO_BOUND,
    most_growth=NO_BOUND,
    least_saving=-NO_BOUND,
)
"""Two cores of a Zen 4 with AVX-512. What a GPU alone reads stays, for plans that go from a CPU to one."""


def _read_fields(given: object) -> dict[str, Any]:
    """Return fields of `CostModel`, of which some may be missing, from JSON.

    Raises
    ------
    ValueError
        If a field is unknown or of the wrong kind.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"its cost model is {given!r:.40}; an object of fields is needed")
    hints = _hints()
    unknown = [name for name in given if name not in hints]
    if unknown:
        raise ValueError(f"its cost model has the unknown field {unknown[0]!r:.40}")
    return {name: _read(hints[name], value, name) for name, value in given.items()}


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(CostModel)


def _read(hint: Any, value: object, name: str) -> Any:
    """Return a value of JSON as what a field's type says."""
    if hint is float and isinstance(value, (int, float)) and type(value) is not bool and abs(value) < MOST:
        return float(value)
    if hint in (int, str) and type(value) is hint:
        return value
    if isinstance(value, (list, tuple)):
        if hint is Gathers and len(value) == len(Gathers._fields):
            return Gathers(*(_read(float, part, name) for part in value))
        if get_origin(hint) is tuple:
            kinds = get_args(hint)
            kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
            if len(kinds) == len(value):
                return tuple(_read(kind, part, name) for kind, part in zip(kinds, value, strict=True))
    wanted = getattr(hint, "__name__", "") if isinstance(hint, type) else hint
    raise ValueError(f"its cost model has {value!r:.40} in {name}; {wanted} is needed")


VARIABLE = "DASP_COST_MODEL"
"""The environment variable that names the file."""


def find_file() -> Path:
    """Return where the file is: DASP_COST_MODEL, or cost_models.json in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "dasp" / "cost_models.json"


def apply_own_numbers(model: CostModel, machine: str) -> CostModel:
    """Return the model of a machine with the user's own numbers.

    Raises
    ------
    ValueError
        If the file cannot be read, or is no file of cost models.
    """
    try:
        path = find_file()
    except RuntimeError:  # no home
        return model
    fields = _read_file(path).get(machine)
    if not fields:
        return model
    try:
        return dataclasses.replace(model, name=f"{machine}, measured by its user", **fields)
    except ValueError as error:
        raise _refusal(path, error) from None


def write_own_numbers(path: Path, machine: str, fields: dict[str, Any]) -> None:
    """Keep the numbers of a machine in a file, beside those of others.

    Raises
    ------
    ValueError
        If there is such a file that cannot be read, or is no file of cost models.
    """
    kept = {**_read_file(path), machine: _read_fields(fields)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of each machine in a file; none if there is no file."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(given, dict):
            raise ValueError(f"it holds {given!r:.40}; an object of machines is needed")
        found = {machine: _read_fields(fields) for machine, fields in given.items()}
        for machine, fields in found.items():
            if fields.keys() & {"name", "kind"}:
                raise ValueError(f"it says a name or a kind of {machine}; numbers alone are needed")
    except (OSError, ValueError, RecursionError) as error:
        named = os.environ.get(VARIABLE)
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and not named):
            return {}  # a home that cannot be read holds no numbers
        raise _refusal(path, error) from None
    return found


def _refusal(path: Path, error: Exception) -> ValueError:
    """Return the error that says why a file is of no use, in one line."""
    why = " ".join(str(error).split())
    return ValueError(f"{path} is no file of cost models: {why}; `dasp tune machine` writes one")
