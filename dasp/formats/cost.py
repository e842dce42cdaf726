"""Every number that was measured on a machine and that a choice depends on, in one record a machine.

`tuned` gives each field its unit, what it trades, and where it was measured; `dasp tune machine` measures the
fields again on the machine that it runs on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple


class Gathers(NamedTuple):
    """What reading x costs beside reading the plan, in the machine's unit of cost.

    Attributes
    ----------
    pad : float
        More for a slot in a step that may hold pads.
    by_slice, by_few, by_many : float
        For each sector of x that a slice, a block of `few_warps` slices, or one of `many_warps` slices reads,
        counted once for each.
    """

    pad: float
    by_slice: float
    by_few: float
    by_many: float


class Panels(NamedTuple):
    """How several columns are multiplied at a time; kernels/spmv/slices_columns.cu.

    Attributes
    ----------
    panel : int
        Bytes of a row of X, or of its sums if those take more, that a warp multiplies.
    lane : int
        Bytes of it that one lane reads.
    steps : int
        Steps, at most, that are loaded before the first is multiplied.
    loads : int
        Loads of X that a lane has in flight.
    registers : int
        Of a thread.
    warps : int
        Slices of a block: neighbouring ones meet the same rows of X.
    share : int
        Warps that share a slice, at most as many as lanes share an entry; if more than 1, a block has one
        slice.
    """

    panel: int
    lane: int
    steps: int
    loads: int
    registers: int
    warps: int
    share: int = 1


class LongRows(NamedTuple):
    """Which rows of X a warp reads in one launch, a panel as long as a row or nearly so.

    Attributes
    ----------
    item : int
        Bytes of a number.
    least, most : int
        Columns.
    reads : float
        Times that a row of X is read, at most.
    steps : int
        Of most slices, at least; 0 if these need not be alike.
    panels : Panels
    """

    item: int
    least: int
    most: int
    reads: float
    steps: int
    panels: Panels


def tuned(unit: str, trades: str, measured: str) -> Any:
    """Describe a field of `Machine`: its unit, what it trades against what, and how it was found."""
    return dataclasses.field(metadata={"unit": unit, "trades": trades, "measured": measured})


_FOUND = "on the machine, with the experiments of benchmarks/lab_book.md; single steps were not recorded"
_SURVEY = "on the machine, with benchmarks/structures.py: benchmarks/lab_book.md"
_COLUMNS = "on the machine, among panels of 32 to 256 bytes: benchmarks/lab_book.md"
_PANEL = "bytes, bytes, steps, loads, registers, slices, warps a slice"
_COST = "units of cost"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a choice must know of the machine that a plan is made for.

    Costs are compared with each other alone, so each machine counts in a unit of its own: bytes of memory
    traffic on a GPU, slots on a CPU.
    """

    name: str = tuned("", "nothing", "given")
    unit: str = tuned("", "nothing", "given")

    windows: tuple[int, ...] = tuned(
        "rows", "sort windows that are tried: more find better plans, and each costs planning", _FOUND
    )
    sampled_rows: int = tuned(
        "rows",
        "from which on windows are tried on a sample of them: less planning, against windows that cost more",
        "benchmarks/lab_book.md",
    )
    sorts_all: bool = tuned("", "whether a sort over all rows is tried: fewer pads against far x", _FOUND)
    steps: tuple[tuple[int, int], ...] = tuned(
        "(entries, steps)",
        "most steps of a slice in matrices of fewer entries: short slices are many and keep a machine busy, "
        "long ones take fewer bytes",
        _FOUND,
    )
    most_steps: int = tuned("steps", "the same for larger matrices", _FOUND)

    long_slices: tuple[tuple[int, int, int, float], ...] = tuned(
        "(steps, lanes, slices, share)",
        "most steps where so many lanes hold every row, rows are mostly longer than the steps otherwise, on "
        "average at least as long as such a share of the longest, and at least so many slices are left: "
        "columns of fewer bytes, against fewer warps",
        "benchmarks/lab_book.md",
    )
    alike_bytes: int = tuned("bytes of a number", "from which on that share matters", _SURVEY)

    slot: float = tuned(f"{_COST} a slot", "pads against far x and numbers of rows", _FOUND)
    value_byte: float = tuned(
        f"{_COST} a byte of a stored value", "the same; 0 where slots are not bound by memory", _FOUND
    )
    slice: float = tuned(f"{_COST} a slice", "few long slices against many short ones", _FOUND)
    row: float = tuned(
        f"{_COST} a row", "what storing y out of order costs, against the pads it saves", _FOUND
    )
    near_bytes: int = tuned("bytes of x", "up to which x lies in a core's own cache", _FOUND)
    near: Gathers = tuned(_COST, "pads against gathers where x is near", _FOUND)
    far: Gathers = tuned(_COST, "the same where x is far", _FOUND)
    scattered_bytes: int = tuned(
        "bytes of y", "up to which rows sorted over all rows cost no more than others", _SURVEY
    )
    scattered_row: float = tuned(
        f"{_COST} a row",
        "the same beyond: parts of y's sectors leave the cache before the others come",
        _SURVEY,
    )
    most_growth: float = tuned(
        "ratio", "plans larger than the smallest one by more are not taken, whatever they gather", _FOUND
    )
    least_saving: float = tuned(
        "share of a plan",
        "that sorted rows must be able to save for windows to be tried: a product, against a plan",
        "benchmarks/lab_book.md",
    )

    few_warps: int = tuned("slices", "slices of a block of threads, as a rule", _FOUND)
    some_warps: int = tuned("slices", "the same where larger blocks pay", _FOUND)
    many_warps: int = tuned("slices", "the same where neighbouring slices read the same x", _FOUND)
    blocks_matter: bool = tuned("", "whether slices are multiplied in blocks at all", "given")
    large_block: float = tuned(
        "ratio", "what a block of `many_warps` costs more: it waits for its slowest warp", _FOUND
    )
    least_slots: int = tuned(
        "slots a slice", "from which `many_warps` may pay: shorter slices wait longer", _FOUND
    )
    wave_slices: int = tuned("slices", "that run at the same time: more take turns", _FOUND)
    wave_slots: int = tuned(
        "slots a slice", "from which `some_warps` pays where all slices run at once", _FOUND
    )
    tiny_slots: int = tuned(
        "slots a slice",
        "up to which `some_warps` pays where slices take turns: so many blocks fit a multiprocessor",
        _FOUND,
    )
    tiny_bytes: float = tuned(
        "bytes of the plan and of y for a slice",
        "the same where all slices have one row a lane: launching a block takes as long as it runs",
        _SURVEY,
    )
    tiny_slot: float = tuned("bytes", "what a slot counts there at least", _SURVEY)
    slot_bytes: float = tuned(
        "bytes a slot", "a slot takes at least as long as so many bytes, however few it has", _FOUND
    )
    most_segments: int = tuned(
        "segments", "of a row, from which on they get longer and not more: one warp sums them", _FOUND
    )
    few_in_flight: tuple[tuple[float, int, int], ...] = tuned(
        "(steps a slice, slices, steps)",
        "loads in flight where slices take turns, have no more steps on average and are at least so many: "
        "registers, and no turn for a single step",
        _SURVEY,
    )
    in_flight: int = tuned("steps", "loads in flight as a rule: latency", _FOUND)
    fewer_in_flight: tuple[tuple[int, int], ...] = tuned(
        "(bytes of a value, steps)",
        "the same for values of so many bytes, where more slices run at once then, and it ends a wave sooner",
        _FOUND,
    )
    few_steps: float = tuned("steps a slice", "up to which slices take turns", _FOUND)
    multiprocessors: int = tuned("", "slices that run at once against those that wait", "given")
    registers: int = tuned("of a multiprocessor", "the same", "given")
    most_registers: tuple[tuple[int, int, int], ...] = tuned(
        "(words of a number of x and a stored value, steps in flight, of a lane)",
        "of slices by a vector: with as few as the compiler would take it asks for x between products, and "
        "with more fewer slices run at once; what is not named is left to it",
        _FOUND,
    )
    slice_registers: int = tuned(
        "of a lane", "the same: what a slice takes beside its steps in flight", "by the compiler"
    )
    kept_plans: tuple[int, int] = tuned(
        "bytes of a plan",
        "from and up to which a share of it is told to stay in the L2 until the next product: smaller ones "
        "stay by themselves, of larger ones too little would",
        _FOUND,
    )
    kept_bytes: int = tuned("bytes of a plan, x and y", "that have room there together", _FOUND)

    rows_of_x: tuple[Panels, ...] = tuned(
        _PANEL, "reads of the plan against registers, where the columns of X lie beside each other", _COLUMNS
    )
    narrow_rows_of_x: tuple[Panels, ...] = tuned(
        _PANEL,
        "the same for numbers of less than 8 bytes: more of them to a lane take more registers",
        _COLUMNS,
    )
    long_rows_of_x: tuple[LongRows, ...] = tuned(
        "LongRows",
        "registers and lanes without a column, against a second launch and cut lines, where rows of X are "
        "aligned: popular rows stay in the first-level cache however they are cut",
        _COLUMNS,
    )
    lone_rows_of_x: tuple[Panels, ...] = tuned(
        _PANEL,
        "the same for 3, 5, 6 or 7 columns that a lane has alone: no exchange, against lines",
        _COLUMNS,
    )
    lone_sectors: tuple[float, float] = tuned(
        "sectors for each entry",
        "that slices read of a vector, below which lanes do so: with up to 6 columns, and with 7",
        _COLUMNS,
    )
    far_row_of_x: Panels = tuned(
        _PANEL,
        "the same for rows of X of 32 bytes: half as many lines a load, against twice the slots",
        _COLUMNS,
    )
    far_sectors: float = tuned(
        "sectors for each entry", "that slices read of a vector, at least, there", _COLUMNS
    )
    columns_of_x: tuple[Panels, ...] = tuned(
        _PANEL, "the same where each column of X lies in one run", _COLUMNS
    )
    column_bytes: float = tuned(
        "bytes",
        "what a number of a column of X costs to gather, at least, where one of a row costs 8",
        _COLUMNS,
    )
    shared_steps: int = tuned(
        "steps",
        "that slices have on average, at least, where several warps share one: more loads in flight against "
        "what each warp begins and ends with",
        _COLUMNS,
    )
    shared_segments: float = tuned(
        "share of the slices",
        "that are segments of long rows, or are not, at most, there: warps of a segment wait for each other",
        _COLUMNS,
    )
    crowded_slices: int = tuned(
        "slices",
        "from which no warps share one to read rows of X of 128 bytes, if columns lie far and rows of X are "
        "read often: each warp loads fewer steps of more slots",
        _COLUMNS,
    )
    crowded_reads: float = tuned("times a row of X is read", "there, at least", _COLUMNS)
    turning_bytes: float = tuned(
        "bytes gathered less for a row of A, in float64",
        "from which on columns of X are turned into rows, and Y back",
        _COLUMNS,
    )
    evening_bytes: float = tuned(
        "bytes gathered less for a row of X, in float64",
        "from which on rows of X that loads cannot read at once are copied to where they can",
        _COLUMNS,
    )
    octets_of_x: tuple[Panels, ...] = tuned(
        _PANEL, "the same where rows are multiplied by eights, on tensor cores; steps are quads", _COLUMNS
    )
    narrow_octets_of_x: tuple[Panels, ...] = tuned(
        _PANEL, "the same for numbers of less than 8 bytes", _COLUMNS
    )
    octet_entries: tuple[tuple[int, float], ...] = tuned(
        "(columns, entries a quad)",
        "from so many columns on, how full the 32 slots of a quad must be for rows to be multiplied by "
        "eights: rows of X read once for several of A, against slots without an entry",
        _COLUMNS,
    )
    narrow_octet_entries: tuple[tuple[int, float], ...] = tuned(
        "(columns, entries a quad)", "the same for numbers of less than 8 bytes", _COLUMNS
    )


H200 = Machine(
    name="NVIDIA H200",
    unit="bytes of memory traffic",
    windows=(0, 128, 512, 1024, 8192),
    sampled_rows=1_900_000,
    sorts_all=True,
    steps=((1_000_000, 8), (4_000_000, 16)),
    most_steps=32,
    long_slices=((16, 1, 1200, 0.0), (48, 1, 2500, 0.0), (96, 1, 6000, 0.0), (48, 2, 3500, 0.75)),
    alike_bytes=8,
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
    few_warps=4,
    some_warps=8,
    many_warps=16,
    blocks_matter=True,
    large_block=1.1,
    least_slots=224,
    wave_slices=8192,
    wave_slots=168,
    tiny_slots=88,
    tiny_bytes=1175.0,
    tiny_slot=5.5,
    slot_bytes=7.0,
    most_segments=128,
    few_in_flight=((2.75, 32_768, 2), (4.5, 0, 4), (5.2, 0, 3), (8.5, 0, 4), (9.2, 0, 3), (15.0, 0, 4)),
    in_flight=8,
    fewer_in_flight=((16, 4), (0, 6)),
    few_steps=7.5,
    multiprocessors=132,
    registers=65_536,
    most_registers=((1, 8, 48), (2, 8, 56), (8, 8, 80), (8, 4, 64)),
    slice_registers=24,
    kept_plans=(4_000_000, 115_000_000),
    kept_bytes=26_500_000,
    rows_of_x=(
        Panels(256, 32, 8, 8, 128, 4, 2),
        Panels(256, 32, 4, 8, 168, 4),
        Panels(128, 32, 4, 8, 128, 4),
        Panels(64, 16, 8, 8, 72, 4, 2),
        Panels(64, 16, 4, 4, 72, 4),
        Panels(32, 8, 8, 8, 64, 4, 2),
        Panels(32, 32, 4, 8, 64, 4),
    ),
    narrow_rows_of_x=(
        Panels(128, 16, 8, 8, 64, 4, 4),
        Panels(128, 16, 2, 8, 96, 4),
        Panels(64, 16, 8, 8, 72, 4, 2),
        Panels(64, 16, 4, 4, 72, 4),
        Panels(32, 4, 8, 8, 64, 4, 2),
        Panels(16, 4, 8, 8, 64, 4, 2),
        Panels(32, 32, 4, 8, 64, 4),
    ),
    long_rows_of_x=(
        LongRows(4, 97, 112, float("inf"), 0, Panels(512, 16, 8, 8, 96, 4, 4)),
        LongRows(4, 33, 48, 80.0, 6, Panels(256, 32, 8, 8, 80, 4, 4)),
        LongRows(8, 97, 112, 5.0, 0, Panels(1024, 32, 8, 8, 96, 4, 8)),
    ),
    lone_rows_of_x=(Panels(32, 32, 4, 8, 64, 4), Panels(64, 64, 4, 8, 96, 4)),
    lone_sectors=(0.6, 0.4),
    far_row_of_x=Panels(32, 16, 4, 8, 64, 4),
    far_sectors=0.5,
    columns_of_x=(Panels(128, 128, 4, 16, 128, 4), Panels(64, 64, 4, 16, 96, 4)),
    shared_steps=6,
    shared_segments=0.125,
    crowded_slices=4500,
    crowded_reads=5.0,
    column_bytes=10.0,
    turning_bytes=150.0,
    evening_bytes=400.0,
    octets_of_x=(Panels(256, 32, 2, 2, 64, 8), Panels(128, 16, 4, 4, 72, 4), Panels(64, 8, 4, 4, 56, 4)),
    narrow_octets_of_x=(Panels(128, 16, 3, 3, 72, 4), Panels(64, 8, 4, 4, 64, 4)),
    octet_entries=((16, 6.0), (8, 8.5)),
    narrow_octet_entries=((32, 10.0), (16, 8.5)),
)
"""An H200, driver 580. A sector costs 0.6 of its 32 bytes: from 0.3 (Markov chains) to 0.8 (power laws)."""

ZEN4 = dataclasses.replace(
    H200,
    name="two cores of a Zen 4",
    unit="slots",
    sampled_rows=1 << 19,
    sorts_all=False,
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
    scattered_row=0.0,
    most_growth=float("inf"),
    least_saving=float("-inf"),
    blocks_matter=False,
)
"""Two cores of a Zen 4 with AVX-512. What blocks of threads cost is the GPU's affair and stays as it is."""

MACHINES = {"gpu": H200, "cpu": ZEN4}
"""The machine that stands for each kind of device."""
