"""The column blocks into which a product on a GPU cuts X: the rules, the choice, and what it asks of a plan.

A column block is as many columns as a warp has registers for, so that the plan is read once for all of them.
The blocks were measured on an H200, among rows of 16 to 256 bytes (benchmarks/lab_book.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.pattern import shape_fields
from dasp.runtime.dtypes import Arithmetic
from dasp.runtime.sizes import ceil_div, round_up
from dasp.runtime.types import DeviceArray, Vector

SAMPLE = 32
"""Slices in which `read_sectors` looks."""

SECTOR = 4
"""Numbers of float64 in the 32 bytes that a GPU reads at least."""

FAR = 1.0
"""Sectors for each entry where every entry reads its own; 1 / SECTOR where a step reads a run of columns."""

WIDEST_LOAD = 16
"""Bytes of the widest load of one lane."""

MOST_STRIDE = 2**31 - 1
"""Bytes from one row to the next that the kernels can count."""

NUMBER_BYTES, SECTOR_BYTES = 8, 8 * SECTOR
"""Of float64, in which gathers are compared."""

MOST_ROW = 256
"""Bytes of a row of a column block, at most."""

MOST_OWN = 16
"""Columns of a block, at most, where each lane multiplies all of them."""

SHARED_STEPS = 6
"""Steps that slices have on average, at least, where several warps share one: more loads in flight, against
what each warp begins and ends with."""

SHARED_SEGMENTS = 0.125
"""Share of the slices that are segments of long rows, or are not, at most, there: warps of a segment wait for
each other."""

FAR_SECTORS = 0.5
"""Sectors for each entry that slices read of a vector, from which on columns lie far apart."""

COLUMN_BYTES = 10.0
"""Least cost of gathering a number of a column of X, where one of a row costs 8."""

COPY_PASSES = 2.8
"""Passes over X and Y that it takes to transpose both to rows, and Y back."""


class Strides(NamedTuple):
    """The place of a matrix of several columns in memory.

    Attributes
    ----------
    row, column : int
        Elements from one row, and from one column, to the next.
    pack : int
        Neighbouring columns that one load may read: 1 if columns do not lie beside each other.
    """

    row: int
    column: int
    pack: int


class Rule(NamedTuple):
    """A way to multiply by a column block, and where it is taken; see kernels/spmv/slices_columns.cu.

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
        Words that `describe` must say of the product, or `whole` if each block has all its columns and
        `ragged` if the last one has not.
    warps : int
        Slices of a block of threads: neighbouring ones meet the same rows of X.
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
        Where the columns of X lie beside each other.
    f_order : tuple of Rule
        Where each column of X lies in one run.
    row_blocks : tuple of Rule
        Where rows are multiplied by eights, on tensor cores; steps are tiles.
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
    """Facts about how the slices of a plan read X, by which column blocks are chosen.

    Attributes
    ----------
    slices : int
    steps : int
        Of most slices.
    alike : bool
        True if few slices are segments of long rows, or nearly all.
    sectors : float
        As `read_sectors` counts them.
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

    def defines(self) -> dict[str, str]:
        """Return the compile-time constants."""
        return {f"DASP_{name.upper()}": str(number) for name, number in self._asdict().items()}


class Pass(NamedTuple):
    """One launch: columns `first` to `first + columns`, in blocks."""

    first: int
    columns: int
    block: ColumnBlock


def find_strides(shape: tuple[int, ...], strides: tuple[int, ...], item: int, address: int) -> Strides | None:
    """Return the strides by which kernels read and write an array; None if they cannot.

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


def describe(kinds: Arithmetic, x: Strides, by: Gathering, model: CostModel) -> frozenset[str]:
    """Return the words that hold of a product, for `Rule.where`.

    `wide` or `narrow`: numbers of X have 8 bytes and more, or fewer. `near`: entries that a warp reads
    together have columns that lie near each other. `far`: they do not, and rows of X are aligned. `shared`:
    warps may share slices. `few`: slices are not so many that sharing costs more.
    """
    wide, near = kinds.x.itemsize >= NUMBER_BYTES, by.sectors < FAR_SECTORS
    aligned = x.pack * kinds.x.itemsize == WIDEST_LOAD
    crowded = 2 * by.slices >= model.wave_slices
    words = {
        "wide": wide,
        "narrow": not wide,
        "near": near,
        "far": aligned and not near,
        "shared": by.alike and by.steps >= SHARED_STEPS and kinds.x == kinds.sum,
        "few": near or not (aligned and crowded),
    }
    return frozenset(word for word, holds in words.items() if holds)


def choose_column_blocks(
    table: BlockTable,
    columns: int,
    kinds: Arithmetic,
    x: Strides,
    y: Strides,
    by: Gathering,
    model: CostModel,
) -> tuple[Pass, ...]:
    """Return the launches for any number of columns: in large blocks, and of the rest in smaller ones.

    Parameters
    ----------
    table : BlockTable
    columns : int
    kinds : Arithmetic
    x, y : Strides
        Of X and Y.
    by : Gathering
    model : CostModel
        Of the machine that the plan was made for.
    """
    rules, most = (table.c_order, WARP) if x.column == 1 else (table.f_order, MOST_OWN)
    words, number = describe(kinds, x, by, model), max(kinds.x.itemsize, kinds.sum.itemsize)
    passes, first = [], 0
    while first < columns:
        rule, width, count = choose_rule(rules, columns - first, number, most, words)
        passes.append(Pass(first, count, _make_block(rule, width, count, kinds, x, y, by.steps)))
        first += count
    return tuple(passes)


def choose_rule(
    rules: tuple[Rule, ...], columns: int, number: int, most: int, words: frozenset[str]
) -> tuple[Rule, int, int]:
    """Return the rule of the next launch, the columns of a block, and those of the launch.

    It is the first rule that holds and whose block would be more than half full, or the last that holds.

    Parameters
    ----------
    rules : tuple of Rule
    columns : int
        That are left.
    number : int
        Bytes of a number of X, or of its sums if those take more.
    most : int
        Columns of a block, at most.
    words : frozenset of str
        That hold, but `whole` and `ragged`.
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
    rule: Rule, width: int, columns: int, kinds: Arithmetic, x: Strides, y: Strides, steps: int
) -> ColumnBlock:
    """Return the block of a width for columns that fill it, or for fewer.

    A lane multiplies at most the columns of two loads where warps share slices. One that multiplies all
    columns need not have more than there are.
    """
    item, held = kinds.x.itemsize, 2 if kinds.sum.kind == "c" else 1  # registers of a complex number
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
    """Return the number of warps that share a slice's column blocks: one, unless the machine would idle."""
    return max(1, min(blocks, model.wave_slices // (2 * max(slices, 1))))


def gathering_of(plan: Plan, sectors: float) -> Gathering:
    """Return the facts about how the slices of a plan read X; `read_sectors` counts `sectors`."""
    segments, slices = int(plan.pattern.segments), len(plan.pattern.headers)
    return Gathering(
        slices=slices,
        steps=ceil_div(len(plan.pattern.bases), max(slices, 1)),
        alike=min(segments, slices - segments) <= SHARED_SEGMENTS * slices,
        sectors=sectors,
    )


def pays_to_transpose(plan: Plan, sectors: float, row_bytes: int) -> bool:
    """Return True if X and Y, each of whose columns lies in one run, are better transposed to rows first.

    A row of X is read in whole sectors then: fewer bytes for each entry, the fewer the farther apart their
    columns lie. That costs passes over X and Y and two more launches.

    Parameters
    ----------
    plan : Plan
    sectors : float
        As `read_sectors` counts them.
    row_bytes : int
        Of a row of X.
    """
    saved = plan.nnz * (max(SECTOR_BYTES * sectors, COLUMN_BYTES) / NUMBER_BYTES - 1)
    return bool(row_bytes * (saved - COPY_PASSES * sum(plan.shape)) >= plan.pattern.choice.model.launch_bytes)


def read_sectors(plan: Plan, on_host: Callable[[DeviceArray], Vector] = np.asarray) -> float:
    """Return the sectors of a vector of float64 that a step reads for each of its entries, 1 / 32 to 1.

    Parameters
    ----------
    plan : Plan
        In slices; segments of long rows are not looked at.
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
        for columns in _columns(plan, header, on_host)
    ]
    entries = sum(map(len, steps))
    return sum(len(np.unique(columns // SECTOR)) for columns in steps) / entries if entries else FAR


def _columns(plan: Plan, header: Vector, on_host: Callable[[DeviceArray], Vector]) -> Vector:
    """Return the columns of a slice, of shape (steps, 32); those of pads are negative."""
    first, _, block, word = (int(number) for number in header)
    steps, _, _, width = shape_fields(word)
    bases = on_host(plan.pattern.bases[first : first + steps]).astype(np.int64)
    if not width:
        return bases[:, None] + np.arange(WARP)
    stored, start = np.dtype(f"u{1 << width >> 1}"), WARP * block
    there = on_host(plan.pattern.deltas[start : start + steps * WARP * stored.itemsize])
    deltas = there.view(stored).reshape(steps, WARP).astype(np.int64)
    return np.where(deltas == np.iinfo(stored).max, -1, bases[:, None] + deltas)
