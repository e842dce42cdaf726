"""The cost model: numbers that differ from machine to machine, by which matrices are packed.

A number belongs in the model if it weighs one way to store or multiply a matrix against another, and so
differs between machines. It was measured, follows from what a device reports, or is searched by
`dasp tune machine`. A plan of `sell` carries the model by which it was chosen. Other constants stand beside
the code that reads them: sizes of a format, limits, and the registers and loads in flight that a kernel is
compiled for, which are the same for all GPUs from sm_80 on.

The user's own numbers are in a JSON file that `dasp tune machine` writes and planning reads:
{machine: {field of `CostModel`: number}}. A machine is named by its GPU or by its processor's design, so one
file serves several machines that share a home folder. Fields that the file lacks keep their values.
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

from dasp.runtime.process import find_user_file

FEW_WARPS, SOME_WARPS, MANY_WARPS = 4, 8, 16
"""Slices of a block: usually, where larger blocks pay, and where neighbouring slices read the same x."""


class Gathers(NamedTuple):
    """The cost of reading x in addition to the plan, in the model's unit of cost.

    Attributes
    ----------
    pad : float
        Extra cost of a slot in a step that may hold pads.
    by_slice, by_few, by_many : float
        Cost of a sector of x that a slice, a block of `FEW_WARPS` slices or a block of `MANY_WARPS` slices
        reads; a sector counts once for each of them.
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
        Cycles of a multiprocessor in a second; 0 if the driver does not report it.
    bandwidth : float
        Bytes of memory traffic in a second, by the memory's clock and its bus's width; 0 if not reported.
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

    Costs are compared only with each other, so each kind of device counts in a unit of its own: bytes of
    memory traffic on a GPU, slots on a CPU. `dasp tune machine` searches some of the numbers
    (`dasp.cli.tune.SEARCHED`); the others were measured by the experiments of benchmarks/lab_book.md, unless
    they name another source.

    Raises
    ------
    ValueError
        For a number outside its range.
    """

    name: str
    kind: str
    """`cpu` or `gpu`."""

    # ---- how many steps a slice has: short slices keep a machine busy, long ones take fewer bytes
    steps: tuple[tuple[int, int], ...]
    """(entries, steps): most steps of a slice in a matrix with fewer entries, to have enough slices."""
    most_steps: int
    """Most steps of a slice in larger matrices."""
    long_slices: tuple[tuple[int, int, int, float], ...]
    """(steps, lanes, slices, share): most steps if the longest row needs this number of lanes, the average
    row is longer than the steps otherwise and, for values of 8 bytes and more, at least this share of the
    longest row, and at least this number of slices is left. Columns then take fewer bytes, and there are
    fewer warps."""

    # ---- the order of rows: sorted rows save pads, but cost gathers and row numbers
    slot: float
    """Cost of a slot, whether or not it is a pad."""
    value_byte: float
    """Cost of a byte of a stored value; 0 where memory does not bound the speed."""
    slice: float
    """Cost of a slice: weighs few long slices against many short ones."""
    row: float
    """Cost of storing a row of y out of order, against the pads that it saves."""
    near_bytes: int
    """Most bytes of an x that is near: it stays in a core's own cache."""
    near: Gathers
    """Cost of gathers where x is near."""
    far: Gathers
    """Cost of gathers where x is far."""
    scattered_bytes: int
    """Most bytes of y for which a sort of all rows costs no more than windows: benchmarks/structures.py."""
    scattered_row: float
    """Cost of a row of a larger y, whose sectors leave the cache before all their rows are written."""
    most_growth: float
    """A plan larger than the smallest one by this ratio is not taken, whatever its gathers cost."""
    least_saving: float
    """Windows are tried only if sorted rows can save more than this share of a plan."""
    sampled_rows: int
    """Fewest rows for which windows are tried on a sample: planning is faster, the window may be worse."""

    # ---- how many slices a block has: many share their reads of x, but wait for the slowest
    large_block: float
    """Ratio by which a block of `MANY_WARPS` slices costs more, because it waits for its slowest warp."""
    slot_bytes: float
    """A slot takes at least as long as this number of bytes, even if it has fewer."""
    block_slots: tuple[float, float]
    """Fewest slots of a slice for which blocks of `SOME_WARPS` pay if all slices run at once, and for which
    blocks of `MANY_WARPS` may pay: short slices wait relatively long for the block's slowest warp."""
    tiny_bytes: float
    """Most bytes of the plan and y per slice for which blocks of `SOME_WARPS` pay if every slice has one row
    to a lane and slices take turns: launching a block then takes as long as running it
    (benchmarks/structures.py)."""

    # ---- several columns on a GPU: in slices, in tiles for tensor cores, or transposed first
    tile_entries: tuple[tuple[int, int, float], ...]
    """(bytes of a number of X, columns, entries of a tile): from these bytes and columns on, tensor cores
    multiply if tiles of 32 slots have at least this number of entries on average. They read a row of X once
    for several rows of A, but also multiply slots without an entry: benchmarks/bench/columns.py."""

    # ---- the room and the time of a GPU, by what it reports
    wave_slices: int
    """Slices that run at the same time; more take turns."""
    multiprocessors: int
    kept_plans: tuple[int, int]
    """Fewest and most bytes of a plan of which a share is marked to stay in the L2 until the next product:
    smaller plans stay anyway, and of larger ones too little would stay."""
    kept_bytes: int
    """Bytes of a plan, x and y that fit in the L2 together."""
    launch_bytes: float
    """Bytes of memory traffic in the time of a few launches, or of a message between GPUs. X is transposed
    for a product by several columns if that saves as many; sums over ranks are hidden behind other work if
    the passes over vectors that this adds move no more."""

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
        """Return the model of a GPU: the measured one if there is one, else one derived from what it reports.

        The number of slices that keep a GPU busy grows with its multiprocessors, and the bytes that stay in
        the L2 with the size of the L2. Bytes that stand for cycles grow with the memory traffic of a
        multiprocessor in a cycle. Sectors of x are such bytes, because most come from the L2, whose speed
        grows with the clock. Launches take the same time everywhere, so their bytes grow with the bandwidth.
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
        """Return the model with fields read from JSON.

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
"""The least number that a field may hold; 0 for fields that are not listed."""


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
"""An H200, driver 580. A sector costs 0.6 of its 32 bytes, 0.3 in Markov chains, 0.8 in power laws."""

NO_BOUND = 1e9
"""A bound that no number reaches."""

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
"""Two cores of a Zen 4 with AVX-512. Numbers that only GPUs read are an H200's, for plans that move there."""


def _read_fields(given: object) -> dict[str, Any]:
    """Return the fields of `CostModel` that JSON holds; some may be missing.

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


def _read(hint: object, value: object, name: str) -> Any:
    """Return a JSON value in the type of its field."""
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
    """Return the path of the file: DASP_COST_MODEL, or cost_models.json in the user's cache folder."""
    return find_user_file(VARIABLE, "cost_models.json")


def apply_own_numbers(model: CostModel, machine: str) -> CostModel:
    """Return the model of a machine with the user's own numbers.

    Raises
    ------
    ValueError
        If the file cannot be read, or is not a file of cost models.
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
    """Write the numbers of a machine into a file, beside those of other machines.

    Raises
    ------
    ValueError
        If the file exists but cannot be read, or is not a file of cost models.
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
    """Return an error that says in one line why a file cannot be used."""
    why = " ".join(str(error).split())
    return ValueError(f"{path} is no file of cost models: {why}; `dasp tune machine` writes one")
