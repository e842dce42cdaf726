"""Choose the column blocks into which a product on a GPU cuts X.

A column block has as many columns as a warp has registers for, so that the plan is read once for all of them.
The rules were measured on an H200 with rows of 16 to 256 bytes (benchmarks/lab_book.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.pattern import unpack_shape
from dasp.runtime.dtypes import Arithmetic
from dasp.runtime.sizes import ceil_div, round_up
from dasp.runtime.types import DeviceArray, Vector

SAMPLE = 32
"""Slices that `read_sectors` samples."""

SECTOR = 4
"""Numbers of float64 in a sector, the 32 bytes that a GPU reads at least."""

FAR = 1.0
"""Sectors for an entry if every entry reads its own; 1 / SECTOR if a step reads a run of columns."""

WIDEST_LOAD = 16
"""Bytes of the widest load of one lane."""

MOST_STRIDE = 2**31 - 1
"""Most bytes from one row to the next that the kernels can count."""

NUMBER_BYTES, SECTOR_BYTES = 8, 8 * SECTOR
"""Bytes of a float64 and of a sector; gathers are compared in float64."""

MOST_ROW = 256
"""Most bytes of a row of a column block."""

MOST_OWN = 16
"""Most columns of a block if each lane multiplies all of them."""

SHARED_STEPS = 6
"""Least average of steps with which several warps share a slice: more loads are in flight, but each warp
has a start and an end."""

SHARED_SEGMENTS = 0.125
"""Warps share slices if at most so many of these are segments of long rows, or at most so many are not: warps
of a segment wait for each other."""

FAR_SECTORS = 0.5
"""Sectors that slices read of a vector for an entry, from which on columns lie far apart."""

COLUMN_BYTES = 10.0
"""Least cost of gathering a number of X in F order; one in C order costs 8."""

COPY_PASSES = 2.8
"""Passes over X and Y that transposing both to rows, and Y back, takes."""


class Strides(NamedTuple):
    """The place of a matrix of several columns in memory.

    Attributes
    ----------
    row, column : int
        Elements from one row, and from one column, to the next.
    pack : int
        Neighbouring columns that one load may read; 1 in F order.
    """

    row: int
    column: int
    pack: int


class Rule(NamedTuple):
    """A way to multiply by a column block, and the products it is for; see kernels/spmv/slices_columns.cu.

    Attributes
    ----------
    row : int
        Bytes of a row of the block in X, or of its sums if those take more.
    lane : int
        Bytes of it that one lane reads.
    steps : int
        Steps, at most, that are loaded before the first is multiplied.
    loads : int
        Loads of X that a lane has in flight.
    registers : int
        Of a thread.
    share : int
        Warps that share a slice, at most as many as lanes share an entry; if more than 1, a block of threads
        has one slice.
    where : str
        Words that must hold of the product (`describe`); `whole` if each block has all its columns,
        `ragged` if the last one has not.
    warps : int
        Slices of a block of threads; neighbouring slices read the same rows of X.
    """

    row: int
    lane: int
    steps: int
    loads: int
    registers: int
    share: int = 1
    where: str = ""
    warps: int = 4


@dataclass(frozen=True, kw_only=True)
class BlockTable:
    """The rules of each order of X, the longest rows first.

    Attributes
    ----------
    c_order : tuple of Rule
        For X in C order.
    f_order : tuple of Rule
        For X in F order.
    row_blocks : tuple of Rule
        For row blocks on tensor cores; steps are tiles.
    """

    c_order: tuple[Rule, ...]
    f_order: tuple[Rule, ...]
    row_blocks: tuple[Rule, ...]


BLOCKS = BlockTable(
    c_order=(
        Rule(256, 32, 8, 8, 128, 2, "shared whole"),
        Rule(256, 32, 4, 8, 168),
        Rule(128, 16, 8, 8, 64, 4, "narrow shared few whole"),
        Rule(128, 16, 8, 8, 72, 4, "narrow shared few"),
        Rule(128, 16, 2, 8, 96, 1, "narrow"),
        Rule(128, 32, 4, 8, 128),
        Rule(64, 16, 8, 8, 72, 2, "shared whole"),
        Rule(64, 16, 8, 8, 72, 2, "shared narrow"),
        Rule(64, 64, 4, 8, 96, 1, "wide near ragged"),
        Rule(64, 16, 4, 4, 72),
        Rule(32, 16, 4, 8, 64, 1, "far"),
        Rule(32, 32, 4, 8, 64),
        Rule(16, 16, 8, 8, 64),
    ),
    f_order=(Rule(128, 128, 4, 16, 128), Rule(64, 64, 4, 16, 96), Rule(32, 32, 8, 16, 96)),
    row_blocks=(
        Rule(256, 32, 2, 2, 64, where="wide", warps=8),
        Rule(128, 16, 4, 4, 72, where="wide"),
        Rule(128, 16, 3, 3, 72, where="narrow"),
        Rule(64, 8, 4, 4, 56, where="wide"),
        Rule(64, 8, 4, 4, 64, where="narrow"),
    ),
)


class Gathering(NamedTuple):
    """Numbers about the slices of a plan and their reads of X, by which column blocks are chosen.

    Attributes
    ----------
    slices : int
    steps : int
        Of a slice, on average.
    alike : bool
        True if few slices are segments of long rows, or nearly all.
    sectors : float
        From `read_sectors`.
    """

    slices: int = 1
    steps: int = 8
    alike: bool = True
    sectors: float = FAR


class ColumnBlock(NamedTuple):
    """The way in which a kernel multiplies some columns at a time; see kernels/spmv/slices_columns.cu.

    Attributes
    ----------
    columns, lanes, pack, y_pack, whole, steps, loads, registers, threads, share : int
        Values of DASP_COLUMNS and the other constants of these names.
    """

    columns: int
    lanes: int
    pack: int
    y_pack: int
    whole: int
    steps: int
    loads: int
    registers: int
    threads: int
    share: int = 1

    def define_constants(self) -> dict[str, str]:
        """Return the compile-time constants."""
        return {f"DASP_{name.upper()}": str(number) for name, number in self._asdict().items()}


class ColumnLaunch(NamedTuple):
    """One launch: columns `first` to `first + columns`, in blocks."""

    first: int
    columns: int
    block: ColumnBlock


def find_strides(shape: tuple[int, ...], strides: tuple[int, ...], item: int, address: int) -> Strides | None:
    """Return the strides by which kernels read and write an array, or None if they cannot.

    Parameters
    ----------
    shape, strides : tuple of two int
        As NumPy counts them, strides in bytes.
    item : int
        Bytes of an element.
    address : int
        Of the first one.
    """
    (m, k), (row, column) = shape, (stride // item for stride in strides)
    if m == 1:
        row = k
    if min(row, column) < 0 or row * item > MOST_STRIDE or any(at % item for at in (*strides, address)):
        return None
    pack = 1
    if column == 1:
        while (
            2 * pack * item <= WIDEST_LOAD
            and k % (2 * pack) == row % (2 * pack) == address % (2 * pack * item) == 0
        ):
            pack *= 2
    return Strides(row, column, pack)


def describe(arithmetic: Arithmetic, x: Strides, by: Gathering, model: CostModel) -> frozenset[str]:
    """Return the words that hold of a product, for `Rule.where`.

    `wide`, `narrow`: numbers of X have at least 8 bytes, or fewer. `near`: entries that a warp reads together
    have columns near each other. `far`: they have not, and rows of X are aligned. `shared`: warps may share
    slices. `few`: there are not so many slices that sharing costs more.
    """
    wide, near = arithmetic.x.itemsize >= NUMBER_BYTES, by.sectors < FAR_SECTORS
    aligned = x.pack * arithmetic.x.itemsize == WIDEST_LOAD
    crowded = 2 * by.slices >= model.wave_slices
    words = {
        "wide": wide,
        "narrow": not wide,
        "near": near,
        "far": aligned and not near,
        "shared": by.alike and by.steps >= SHARED_STEPS and arithmetic.x == arithmetic.sum,
        "few": near or not (aligned and crowded),
    }
    return frozenset(word for word, holds in words.items() if holds)


def choose_column_blocks(
    table: BlockTable,
    columns: int,
    arithmetic: Arithmetic,
    x: Strides,
    y: Strides,
    by: Gathering,
    model: CostModel,
) -> tuple[ColumnLaunch, ...]:
    """Return the launches for `columns` columns: large blocks first, smaller ones for the rest.

    Parameters
    ----------
    table : BlockTable
    columns : int
    arithmetic : Arithmetic
    x, y : Strides
        Of X and Y.
    by : Gathering
    model : CostModel
        Of the machine that the plan was made for.
    """
    rules, most = (table.c_order, WARP) if x.column == 1 else (table.f_order, MOST_OWN)
    words, number = describe(arithmetic, x, by, model), max(arithmetic.x.itemsize, arithmetic.sum.itemsize)
    launches, first = [], 0
    while first < columns:
        rule, width, count = choose_rule(rules, columns - first, number, most, words)
        launches.append(
            ColumnLaunch(first, count, _make_block(rule, width, count, arithmetic, x, y, by.steps))
        )
        first += count
    return tuple(launches)


def choose_rule(
    rules: tuple[Rule, ...], columns: int, number: int, most: int, words: frozenset[str]
) -> tuple[Rule, int, int]:
    """Return the rule of the next launch, the columns of a block, and those of the launch.

    It is the first rule that holds and whose block would be more than half full, or the last that holds.

    Parameters
    ----------
    rules : tuple of Rule
    columns : int
        Columns that are left.
    number : int
        Bytes of a number of X, or of its sums if those take more.
    most : int
        Most columns of a block.
    words : frozenset of str
        Words that hold; `whole` and `ragged` are added here.
    """
    found = rules[-1], max(rules[-1].row // number, 1), columns
    for rule in rules:
        width = max(rule.row // number, 1)
        rest = columns % width
        count = columns if columns < width or 2 * rest > width else columns - rest
        here = words | {"ragged" if count % width else "whole"}
        if width <= most and here.issuperset(rule.where.split()):
            found = rule, width, count
            if 2 * columns > width:
                break
    return found


def _make_block(
    rule: Rule, width: int, columns: int, arithmetic: Arithmetic, x: Strides, y: Strides, steps: int
) -> ColumnBlock:
    """Return the block of a width for columns that fill it or not.

    If warps share slices, a lane multiplies the columns of at most two loads. If a lane multiplies all
    columns of a block, the block has no more than there are.
    """
    item, held = (
        arithmetic.x.itemsize,
        2 if arithmetic.sum.kind == "c" else 1,
    )  # registers of a complex number
    if x.column != 1 or rule.lane >= rule.row:
        width = own = min(width, round_up(columns, x.pack))
        pack = min(x.pack, width)
    else:
        pack = min(x.pack, width)
        own = min(width, max(rule.lane // item, pack))
        own = min(own, 2 * pack) if rule.share > 1 else own
    lanes = width // own
    share = min(rule.share, lanes)
    at_once = max(1, min(steps, rule.steps // held))
    if share > 1:
        at_once = max(1 << (at_once - 1).bit_length(), share)
    narrower = WIDEST_LOAD // (pack * item) if x.column == 1 else 1
    return ColumnBlock(
        columns=width,
        lanes=lanes,
        pack=pack,
        y_pack=pack if y.column == 1 and y.pack >= pack else 1,
        whole=int(columns % width == 0),
        steps=at_once,
        loads=rule.loads // held * narrower,
        registers=rule.registers,
        threads=WARP * (share if share > 1 else rule.warps),
        share=share,
    )


def choose_parts(model: CostModel, slices: int, blocks: int) -> int:
    """Return the warps that share a slice's column blocks: one, unless multiprocessors would idle."""
    return max(1, min(blocks, model.wave_slices // (2 * max(slices, 1))))


def find_gathering(plan: Plan, sectors: float) -> Gathering:
    """Return the numbers by which column blocks are chosen; `sectors` comes from `read_sectors`."""
    segments, slices = int(plan.pattern.segments), len(plan.pattern.headers)
    return Gathering(
        slices=slices,
        steps=ceil_div(len(plan.pattern.bases), max(slices, 1)),
        alike=min(segments, slices - segments) <= SHARED_SEGMENTS * slices,
        sectors=sectors,
    )


def pays_to_transpose(plan: Plan, sectors: float, row_bytes: int) -> bool:
    """Return True if X and Y in F order should be transposed to C order first.

    A row of X is then read in whole sectors, which saves bytes for each entry, the more the farther apart
    their columns lie. It costs passes over X and Y and two more launches.

    Parameters
    ----------
    plan : Plan
    sectors : float
        From `read_sectors`.
    row_bytes : int
        Of a row of X.
    """
    saved = plan.nnz * (max(SECTOR_BYTES * sectors, COLUMN_BYTES) / NUMBER_BYTES - 1)
    return bool(row_bytes * (saved - COPY_PASSES * sum(plan.shape)) >= plan.pattern.choice.model.launch_bytes)


def read_sectors(plan: Plan, on_host: Callable[[DeviceArray], Vector] = np.asarray) -> float:
    """Count the sectors of a float64 vector that a step reads, divided by its entries: 1 / 32 to 1.

    Parameters
    ----------
    plan : Plan
        In slices; segments of long rows are left out.
    on_host : callable
        Copies an array of the plan to the host.
    """
    first, count = int(plan.pattern.segments), len(plan.pattern.headers)
    if first == count:
        return FAR
    headers = on_host(plan.pattern.headers[first :: -(-(count - first) // SAMPLE)])
    steps = [
        columns[columns >= 0]
        for header in headers.astype(np.int64)
        for columns in _list_columns(plan, header, on_host)
    ]
    entries = sum(map(len, steps))
    return sum(len(np.unique(columns // SECTOR)) for columns in steps) / entries if entries else FAR


def _list_columns(plan: Plan, header: Vector, on_host: Callable[[DeviceArray], Vector]) -> Vector:
    """Return the columns of a slice, shape (steps, 32), -1 or less for pads."""
    first, _, block, word = (int(number) for number in header)
    steps, _, _, width = unpack_shape(word)
    bases = on_host(plan.pattern.bases[first : first + steps]).astype(np.int64)
    if not width:
        return bases[:, None] + np.arange(WARP)
    stored, start = np.dtype(f"u{1 << width >> 1}"), WARP * block
    there = on_host(plan.pattern.deltas[start : start + steps * WARP * stored.itemsize])
    deltas = there.view(stored).reshape(steps, WARP).astype(np.int64)
    return np.where(deltas == np.iinfo(stored).max, -1, bases[:, None] + deltas)
