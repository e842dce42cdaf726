"""The product by a matrix of several columns on a GPU: what is launched for which columns of which plan.

Columns are multiplied in panels: as many as a warp has registers for, so that the plan is read once for all
of a panel. Where a row of X lies in one run of memory, lanes that share an entry read it together; where a
column does, each lane reads for its own entry, column by column, as in the product by a vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

from dasp.formats.cost import CostModel
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import vector
from dasp.formats.sell.cuda.panels import PANELS, Panels, PanelTable
from dasp.formats.sell.cuda.sectors import FAR, SECTOR, read_sectors
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import Launch, Launches, Signature, launcher
from dasp.runtime.cuda.scratch import captured_in, in_pool, keep
from dasp.runtime.cuda.stream import on_stream
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.integers import ceil_div

_HERE = nullcontext()

WIDEST_LOAD = 16
"""Bytes of the widest load of one lane."""

MOST_STRIDE = 2**31 - 1
"""Bytes from one row to the next that the kernels can count."""

NUMBER_BYTES, SECTOR_BYTES = 8, 8 * SECTOR
"""Of float64, in which gathers are compared."""

STRIDES = "x_column", "y_column", "x_row", "y_row"
MOST_SHARED = 48 << 10
"""Bytes of shared memory that a block has without asking for more."""

MOST_OWN = 16
"""Columns of a panel, at most, where each lane multiplies all of them."""

LONE = 6
"""Columns that a lane reads alone, or one more where columns lie nearer."""

PARTIAL_REGISTERS = 72
"""Of a thread, at least, where lanes have no column in the last panel: they keep zeros."""

MOST_PANEL = 1024
"""Bytes of a row of a panel, at most."""

VARYING = ("x", "y", "partials", *STRIDES, "first", "last", "columns", "alpha", "beta")
FINISH_VARYING = "y", "partials", "y_column", "y_row", "columns", "alpha", "beta"
"""Arguments that come with each product, and with each end of one."""

OF_PANEL = """
    int                   parts
    const X*              x
    Y*                    y
    Sum*                  partials
    long long             x_column
    long long             y_column
    int                   x_row
    int                   y_row
    int                   first
    int                   last
    int                   columns
    Sum                   alpha
    Sum                   beta
    """
"""What every product by a panel of columns takes last."""

SIGNATURE = Signature(
    "spmv/slices_columns.cu",
    "dasp_slices_columns",
    f"""{vector.ARRAYS.rstrip()}
    const X*              zeros
    long long             count
    long long             segments
    long long             positions
    int                   identity
    {OF_PANEL.strip()}
    """,
)

FINISH = Signature(
    SIGNATURE.source,
    "dasp_segments_columns",
    """
    const Index*          long_rows        [count]
    const SegmentOffset*  segment_offsets  [count + 1]
    long long             count
    Y*                    y
    const Sum*            partials
    long long             y_column
    int                   y_row
    int                   columns
    Sum                   alpha
    Sum                   beta
    """,
)
"""Adds the segments of long rows."""

TRANSPOSE = Signature(
    "spmv/transpose.cu",
    "dasp_transpose",
    """
    Word*      columns_of
    Word*      rows_of
    long long  count
    long long  row
    long long  column
    int        columns
    int        wide
    int        pieces
    """,
)
TRANSPOSE_THREADS, TILE_BYTES, TILE_COLUMNS = 256, 8 << 10, 32
"""Threads of a block of that kernel, and the bytes and, at most, the columns of its tile."""

SHORT_ROW = 64
"""Bytes of a row up to which a copy has a power of two of them."""

MOST_WRITTEN = 8, 4
"""Columns of Y, at most, that products of slices write as they lie where those of X are turned into rows:
where slices have the matrix's rows in their order, and where not."""


class Layout(NamedTuple):
    """Where a matrix of several columns lies in memory.

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


class Gathering(NamedTuple):
    """How the slices of a plan read X, by which panels are chosen.

    Attributes
    ----------
    steps : int
        Of most slices.
    alike : bool
        What `mostly_alike` says.
    sectors : float
        As `read_sectors` counts them.
    reads : float
        How often a row of X is read.
    often : bool
        What `evens` says.
    crowded : bool
        Whether slices are so many that no warps need to share one to read rows of X of 128 bytes.
    """

    steps: int = 8
    alike: bool = True
    sectors: float = FAR
    reads: float = 64.0
    often: bool = True
    crowded: bool = False


USUAL = Gathering()


class Panel(NamedTuple):
    """How a kernel multiplies some columns at a time; see kernels/spmv/slices_columns.cu.

    Attributes
    ----------
    columns, lanes, pack, y_pack, whole, steps, loads, registers, threads, share : int
        What DASP_COLUMNS and the others of these names are defined as.
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
    """One launch: columns `first` to `first + columns`, in panels."""

    first: int
    columns: int
    panel: Panel


class Kernels(NamedTuple):
    """How plans of one format are multiplied by several columns.

    Attributes
    ----------
    signature, finish : Signature
        Of the product, and of what adds the segments of long rows.
    defines, types : callable
        Constants and types of the source: (plan, kinds, panel), and (plan, kinds).
    passes : callable
        (table, plan, columns, kinds, x, y, sectors) -> the launches, of type `Pass`; sectors() is what
        `pays_to_transpose` asks for.
    warps, partials : callable
        How many warps a plan needs, and how many segments it has.
    arguments, finish_arguments : callable
        (plan, zeros, parts), and (plan): arguments but those that come with each product.
    long_rows : callable
        How many rows come in segments.
    sectors : callable
        (plan, on_host) -> what `pays_to_transpose` asks for, as `read_sectors` counts it.
    """

    signature: Signature
    finish: Signature
    defines: Callable[[Plan, Arithmetic, Panel], dict[str, str]]
    types: Callable[[Plan, Arithmetic], dict[str, np.dtype[Any]]]
    passes: Callable[
        [PanelTable, Plan, int, Arithmetic, Layout, Layout, Callable[[], float]], tuple[Pass, ...]
    ]
    warps: Callable[[Plan, Panel], int]
    partials: Callable[[Plan], int]
    arguments: Callable[[Plan, Any, int], dict[str, Any]]
    finish_arguments: Callable[[Plan], dict[str, Any]]
    long_rows: Callable[[Plan], int]
    sectors: Callable[[Plan, Callable[[Any], Any]], float]

    def blocks(self, plan: Plan, panel: Panel, parts: int) -> int:
        """Return the blocks of a launch."""
        return int(ceil_div(self.warps(plan, panel) * WARP, panel.threads) * parts)

    def finish_blocks(self, plan: Plan, panel: Panel, columns: int) -> int:
        """Return the blocks of the launch that ends a product with segments."""
        return int(ceil_div(self.long_rows(plan) * columns * WARP, panel.threads))


def even_row(columns: int, item: int) -> int:
    """Return the numbers of a row of a copy of so many columns, in which loads of a row are aligned."""
    size = columns * item
    whole = SECTOR_BYTES if size > SHORT_ROW else 1 << (size - 1).bit_length()
    return ceil_div(size, whole) * whole // item


def layout_of(shape: tuple[int, ...], strides: tuple[int, ...], item: int, address: int) -> Layout | None:
    """Return how the kernels can read and write an array of two dimensions, None if they cannot.

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
    return Layout(row, column, pack)


def in_panels(columns: int, width: int) -> int:
    """Return how many columns come in panels of a width: all, if more than half of the last panel is full."""
    rest = columns % width
    return columns if 2 * rest > width else columns - rest


def choose_passes(
    table: PanelTable,
    columns: int,
    kinds: Arithmetic,
    x: Layout,
    y: Layout,
    by: Gathering = USUAL,
) -> tuple[Pass, ...]:
    """Return the launches for so many columns: in the largest panels, in smaller ones, and of the rest.

    Parameters
    ----------
    table : PanelTable
    columns : int
    kinds : Arithmetic
    x, y : Layout
        Of X and Y.
    by : Gathering
    """
    passes, first, steps = [], 0, by.steps
    each = max(kinds.x.itemsize, kinds.sum.itemsize)
    sizes, most, crowded = table.columns_of_x, MOST_OWN, by.crowded
    if x.column == 1:
        wide = kinds.x.itemsize >= NUMBER_BYTES
        sizes, most = table.rows_of_x if wide else table.narrow_rows_of_x, WARP
        aligned = x.pack * kinds.x.itemsize == WIDEST_LOAD
        chosen, width = lone_row(table, columns, kinds, by.sectors), ceil_div(columns, x.pack) * x.pack
        far = by.sectors >= table.far_sectors and (wide or by.often)
        if aligned and far and WIDEST_LOAD < columns * each <= 2 * WIDEST_LOAD:
            chosen, width = table.far_row_of_x, 2 * WIDEST_LOAD // each
        if chosen:
            return (Pass(0, columns, _panel(chosen, width, columns, kinds, x, y, steps)),)
        long = long_row(table, columns, kinds, steps if by.alike else 0, by.reads) if aligned else None
        if long:
            return (Pass(0, columns, _panel(long, long.panel // each, columns, kinds, x, y, steps)),)
        crowded = by.crowded and aligned and not wide
    for chosen in sizes:
        width = chosen.panel // each
        if width > most:
            continue  # of narrow numbers, a smaller panel has as many columns as there may be
        rest = columns - first
        count = rest // width * width if chosen is sizes[-1] else in_panels(rest, width)
        shares = by.alike and steps >= table.shared_steps and _shares(chosen, width, count, kinds, x)
        if chosen.share > 1 and (not shares or (crowded and width == WARP)):
            continue
        if count:
            passes.append(Pass(first, count, _panel(chosen, width, count, kinds, x, y, steps)))
            first += count
    rest = columns - first
    if rest:
        alone = rest * each <= sizes[-1].lane and rest % x.pack == 0
        width = rest if alone else max(1 << (rest - 1).bit_length(), x.pack)
        passes.append(Pass(first, rest, _panel(sizes[-1], width, rest, kinds, x, y, steps)))
    return tuple(passes)


def _own(chosen: Panels, width: int, kinds: Arithmetic, x: Layout) -> int:
    """Return how many columns a lane multiplies: at most those of two loads where warps share slices."""
    if x.column != 1:
        return width
    own = max(chosen.lane // kinds.x.itemsize, x.pack)
    return min(width, own if chosen.share == 1 else min(own, 2 * x.pack))


def _shares(chosen: Panels, width: int, columns: int, kinds: Arithmetic, x: Layout) -> bool:
    """Whether warps may share slices: where a lane has two loads of a step, or two slots, and registers.

    These are short of wide numbers if lanes of several columns have none of the last panel.
    """
    own = _own(chosen, width, kinds, x)
    at_once = own // min(x.pack, own) * (width // own // chosen.share)
    spills = columns % width > 0 and own > x.pack and kinds.x.itemsize >= NUMBER_BYTES
    return at_once > 1 and not spills


def _panel(
    chosen: Panels,
    width: int,
    columns: int,
    kinds: Arithmetic,
    x: Layout,
    y: Layout,
    steps: int,
) -> Panel:
    """Return the panel of a width for columns that fill it, or for fewer."""
    pack, whole = min(x.pack, width), columns % width == 0
    own = _own(chosen, width, kinds, x)
    held = 2 if kinds.sum.kind == "c" else 1  # registers of a complex number
    wider = 1 if 2 * width * max(kinds.x.itemsize, kinds.sum.itemsize) > chosen.panel else 2
    at_once = max(1, min(steps, wider * chosen.steps // held))
    lanes = width // own
    share = min(chosen.share, lanes)
    if share > 1:
        at_once = max(1 << (at_once - 1).bit_length(), share)
    narrower = WIDEST_LOAD // (pack * kinds.x.itemsize) if x.column == 1 else 1
    shared = at_once * WARP * (8 + kinds.sum.itemsize)  # bytes of a slice, at most
    warps = share if share > 1 else min(chosen.warps, MOST_SHARED // shared)
    return Panel(
        columns=width,
        lanes=lanes,
        pack=pack,
        y_pack=pack if y.column == 1 and y.pack >= pack else 1,
        whole=int(whole),
        steps=at_once,
        loads=chosen.loads // held * narrower,
        registers=chosen.registers
        if whole or own > pack or share == 1
        else max(chosen.registers, PARTIAL_REGISTERS),
        threads=WARP * (1 << warps.bit_length() - 1),
        share=share,
    )


def choose_parts(model: CostModel, slices: int, panels: int) -> int:
    """Return among how many warps the panels of a slice are shared: one, unless the machine would idle."""
    return max(1, min(panels, model.wave_slices // (2 * max(slices, 1))))


def pays_to_transpose(table: PanelTable, plan: Plan, sectors: float, row_bytes: int) -> bool:
    """Whether X and Y, each of whose columns lies in one run, are better copied to rows first, and Y back.

    A row of X is read in whole sectors then: fewer bytes for each entry, the fewer the farther apart their
    columns lie. That costs passes over X and Y and two more launches.

    Parameters
    ----------
    table : PanelTable
    plan : Plan
    sectors : float
        As `read_sectors` counts them.
    row_bytes : int
        Of a row of X.
    """
    saved = plan.nnz * (max(SECTOR_BYTES * sectors, table.column_bytes) / NUMBER_BYTES - 1)
    return bool(row_bytes * (saved - table.copy_passes * sum(plan.shape)) >= table.copy_bytes)


def evens(table: PanelTable, plan: Plan, sectors: float) -> bool:
    """Whether short rows of X that begin anywhere are better copied first to where loads are aligned.

    That costs as much for every row of X, and of Y, which lanes then write number by number; it saves the
    more the more entries there are, and the farther apart their columns lie: `sectors` as `read_sectors`
    counts them.
    """
    saved = plan.nnz * (SECTOR_BYTES * sectors - NUMBER_BYTES)
    return bool(saved >= table.evening_bytes * max(plan.shape))


def lone_row(table: PanelTable, columns: int, kinds: Arithmetic, sectors: float) -> Panels | None:
    """Return how a lane reads a row of X of a few columns, 3, 5, 6 or 7, alone; None if lanes share it."""
    row, most = columns * max(kinds.x.itemsize, kinds.sum.itemsize), table.lone_sectors[columns > LONE]
    sizes = (panels for panels in table.lone_rows_of_x if sectors < most and row <= panels.lane)
    return next(sizes, None) if columns <= LONE + 1 and columns & columns - 1 else None


def long_row(table: PanelTable, columns: int, kinds: Arithmetic, steps: int, reads: float) -> Panels | None:
    """Return how a long row of X is read in one launch; None if it comes in panels.

    `steps` are those of most slices, 0 if these are not alike; `reads` says how often a row is read.
    """
    if kinds.sum.kind == "c" or kinds.sum != kinds.x:
        return None
    for long in table.long_rows_of_x:
        fits = long.item == kinds.x.itemsize and long.least <= columns <= long.most
        if fits and reads <= long.reads and steps >= long.steps:
            return long.panels
    return None


def defines(plan: Plan, kinds: Arithmetic, panel: Panel) -> dict[str, str]:
    """Return the compile-time constants of the kernels for a plan, the types of a product and a panel."""
    return panel.defines() | {
        "DASP_INDEX": C_NAMES[plan.pattern.index_dtype],
        "DASP_OFFSET": "int",
        "DASP_MMA": "0",
        "DASP_CODING": str(int(plan.values.coding)),
        **kinds.defines,
    }


def types(plan: Plan, kinds: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return what the source's own names of types stand for."""
    known = vector.types(plan) | {"SegmentOffset": plan.pattern.index_dtype}
    return known | kinds.types


def usual_steps(plan: Plan) -> int:
    """Return the steps that the slices of a plan have on average, rounded up."""
    return int(ceil_div(len(plan.pattern.bases), max(len(plan.pattern.headers), 1)))


def mostly_alike(table: PanelTable, plan: Plan) -> bool:
    """Whether few slices are segments of long rows, or nearly all."""
    segments, slices = int(plan.pattern.segments), len(plan.pattern.headers)
    return min(segments, slices - segments) <= table.shared_segments * slices


def arguments(plan: Plan, zeros: Any, parts: int) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each product."""
    taken = vector.plan_arguments(plan)
    others = "long_rows", "segment_offsets", "segment_rows"
    own = {"zeros": zeros, "parts": parts}
    return {name: taken[name] for name in taken if name not in others} | own


def finish_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the end of a product but those that come with each."""
    pattern = plan.pattern
    return {
        "long_rows": pattern.long_rows,
        "segment_offsets": pattern.segment_offsets,
        "count": len(pattern.long_rows),
    }


def passes_of(
    table: PanelTable,
    plan: Plan,
    columns: int,
    kinds: Arithmetic,
    x: Layout,
    y: Layout,
    sectors: Callable[[], float],
) -> tuple[Pass, ...]:
    """Return the launches for so many columns of a plan."""
    found, reads = sectors(), plan.nnz / max(plan.shape[1], 1)
    crowded = len(plan.pattern.headers) >= table.crowded_slices
    by = Gathering(
        steps=usual_steps(plan),
        alike=mostly_alike(table, plan),
        sectors=found,
        reads=reads,
        often=evens(table, plan, found),
        crowded=crowded and found >= table.far_sectors and reads >= table.crowded_reads,
    )
    return choose_passes(table, columns, kinds, x, y, by)


Others = Callable[[Arithmetic, int, Layout], Kernels | None]

SLICES = Kernels(
    signature=SIGNATURE,
    finish=FINISH,
    defines=defines,
    types=types,
    passes=passes_of,
    warps=lambda plan, panel: vector.warps(plan) * panel.share,
    partials=vector.partials,
    arguments=arguments,
    finish_arguments=finish_arguments,
    long_rows=lambda plan: len(plan.pattern.long_rows),
    sectors=read_sectors,
)


class Columns:
    """A plan on a GPU, ready to be multiplied by matrices of several columns.

    Parameters
    ----------
    plan : Plan
        With CuPy's arrays on the current device.
    kernels : Kernels
        Of the plan's format.
    overlaps : bool
        Whether a launch may begin before the one before it has ended.
    others : callable, optional
        (kinds, columns, x) -> kernels that are faster for such a product, if any.
    """

    def __init__(self, plan: Plan, kernels: Kernels, overlaps: bool, others: Others | None = None) -> None:
        import cupy

        self._cupy, self._plan, self._kernels, self._overlaps = cupy, plan, kernels, overlaps
        self._others, self._segments = others, kernels.partials(plan)
        self._read: float | None = None
        self._most_written = MOST_WRITTEN[len(plan.pattern.rows) > 0]
        self._lock = threading.Lock()
        self._prepared: dict[Any, tuple[list[tuple[Pass, Launch]], Launch | None]] = {}
        self._transposing: dict[tuple[int, int, bool], Launches] = {}

    def multiply(self, x: Any, y: Any, kinds: Arithmetic, scale: tuple[Any, ...], adds: bool) -> None:
        """Set Y = alpha A X + beta Y on CuPy's current stream; Y is not read if beta is 0.

        Parameters
        ----------
        x : cupy.ndarray, shape (n, k)
            Any type that Y's type holds, any strides.
        y : cupy.ndarray, shape (m, k), any strides
            Not overlapping X; on the matrix's device, which must be the current one.
        kinds : Arithmetic
            Of a product of this plan, of X's type and into Y's.
        scale : tuple
            alpha and beta as the kernels take them.
        adds : bool
            Whether beta is not 0.

        Notes
        -----
        X and Y in columns are worked on in rows where that is faster, in memory as large as they are.
        """
        stream = self._cupy.cuda.get_current_stream().ptr
        captured = self._cupy.cuda.runtime.streamIsCapturing(stream)
        with in_pool(self._cupy) if captured else _HERE:
            taken, x_layout = self._placed(x, kinds.x)
            if self._is_transposed(taken, x_layout) or self._evened(x_layout, kinds, x.shape[1]):
                columns, column_layout = taken, x_layout
                taken, x_layout = self._new_rows(columns)
                self._transpose(columns, column_layout, taken, True)
            result, y_layout = self._placed(y, kinds.y)
            written, written_layout = result, y_layout
            if not adds and y.shape[1] > self._most_written and self._is_transposed(taken, y_layout):
                written, written_layout = self._new_rows(result)
            k = min(taken.shape[1], written.shape[1])  # those of even rows too, where both have them
            partials = self._cupy.empty((self._segments, k), kinds.sum) if self._segments else None
            self._launch(stream, taken, x_layout, written, written_layout, partials, k, kinds, scale)
            if written is not result:
                self._transpose(result, y_layout, written, False)
            if result is not y:
                self._cupy.copyto(y, result)
        made = [array for array in (taken, result, written, partials) if array is not x and array is not y]
        if captured and any(array is not None for array in made):
            keep(made, captured_in(stream)[1])

    def _is_transposed(self, x: Any, layout: Layout) -> bool:
        """Whether an array that lies so, X or Y, is worked on in rows."""
        return layout.column != 1 and pays_to_transpose(
            PANELS, self._plan, self._sectors(), x.shape[1] * x.itemsize
        )

    def _evened(self, layout: Layout, kinds: Arithmetic, k: int) -> bool:
        """Whether an X of k columns whose rows are too close together is worked on in rows farther apart."""
        item = kinds.x.itemsize
        wide = even_row(k, item)
        uneven = (
            layout.column == 1 and layout.pack < min(wide, WIDEST_LOAD // item) and wide * item <= SHORT_ROW
        )
        uneven &= k != 3 or item < NUMBER_BYTES  # lanes share such a row as fast
        if not uneven or self._kernels is not SLICES or lone_row(PANELS, k, kinds, self._sectors()):
            return False
        return evens(PANELS, self._plan, self._sectors())

    def _sectors(self) -> float:
        """Return what `pays_to_transpose` and `evens` ask for."""
        if self._read is None:
            with on_stream(self._cupy.cuda.Stream(non_blocking=True)):  # the caller's may be captured
                self._read = self._kernels.sectors(self._plan, on_host)
        return self._read

    def _placed(self, array: Any, dtype: np.dtype[Any]) -> tuple[Any, Layout]:
        """Return an array as the kernels take it, itself or a copy in C order, and where it lies."""
        layout = _layout(array)
        if layout is None or array.dtype != dtype:
            plain = self._cupy.ascontiguousarray(array, dtype)
            array = plain.copy() if plain.data.ptr % dtype.itemsize else plain
            layout = cast(Layout, _layout(array))
        return array, layout

    def _new_rows(self, like: Any) -> tuple[Any, Layout]:
        """Return a new array in even rows for the numbers of another one, and where it lies."""
        count, k = like.shape
        array = self._cupy.empty((count, even_row(k, like.itemsize)), like.dtype)
        return array, cast(Layout, _layout(array))

    def _transpose(self, columns: Any, layout: Layout, rows: Any, to_rows: bool) -> None:
        """Copy an array in columns to one in rows, or back."""
        item, (count, wide), k = rows.itemsize, rows.shape, columns.shape[1]
        width = min(TILE_COLUMNS, 1 << (wide - 1).bit_length())
        launch = self._transposing.get((item, width, to_rows))
        if launch is None:
            kernel, current = transposing(item, width, to_rows), self._cupy.cuda.get_current_stream
            launch = launcher(kernel, TRANSPOSE, {"Word": word(item)}, current)
            self._transposing[item, width, to_rows] = launch
        arguments = {"columns_of": columns.data.ptr, "rows_of": rows.data.ptr, "count": count}
        pieces = ceil_div(wide, width)
        arguments |= {
            "row": layout.row,
            "column": layout.column,
            "columns": k,
            "wide": wide,
            "pieces": pieces,
        }
        blocks = ceil_div(count, TILE_BYTES // (item * width)) * pieces
        if blocks:
            launch((blocks, 1), TRANSPOSE_THREADS, arguments)

    def _launch(
        self,
        stream: int,
        x: Any,
        x_layout: Layout,
        y: Any,
        y_layout: Layout,
        partials: Any,
        k: int,
        kinds: Arithmetic,
        scale: tuple[Any, ...],
    ) -> None:
        key = kinds, k, x_layout.column == 1, x_layout.pack, y_layout.column == 1, y_layout.pack
        passes, finish = self._prepared.get(key) or self._prepare(key, kinds, k, x_layout, y_layout)
        room = 0 if partials is None else partials.data.ptr
        strides = x_layout.column, y_layout.column, x_layout.row * x.itemsize, y_layout.row
        for (first, columns, _), launch in passes:
            end = first + columns
            launch(stream, x.data.ptr, y.data.ptr, room, *strides, first, end, k, *scale)
        if finish is not None:
            finish(stream, y.data.ptr, room, y_layout.column, y_layout.row, k, *scale)

    def _prepare(self, key: Any, kinds: Arithmetic, k: int, x: Layout, y: Layout) -> Any:
        """Compile and keep the launches for so many columns in such layouts."""
        plan = self._plan
        with self._lock:
            if key in self._prepared:
                return self._prepared[key]
            kernels = (self._others and self._others(kinds, k, x)) or self._kernels
            known = kernels.types(plan, kinds)
            passes, finish = [], None
            row = zero_row(self._cupy.cuda.Device().id)
            zeros = self._cupy.ndarray(MOST_PANEL // kinds.x.itemsize, kinds.x, row.data)
            for one in kernels.passes(PANELS, plan, k, kinds, x, y, self._sectors):
                panels = ceil_div(one.columns, one.panel.columns)
                parts = choose_parts(plan.pattern.choice.model, kernels.warps(plan, one.panel), panels)
                kernel = compiled(kernels, kernels.signature, plan, kinds, one.panel)
                launch = Launch(
                    kernel,
                    kernels.signature,
                    known,
                    kernels.arguments(plan, zeros, parts),
                    VARYING,
                    blocks=kernels.blocks(plan, one.panel, parts),
                    threads=one.panel.threads,
                    overlaps=self._overlaps,
                )
                passes.append((one, launch))
            if self._segments:
                panel = passes[0][0].panel
                finish = Launch(
                    compiled(kernels, kernels.finish, plan, kinds, panel),
                    kernels.finish,
                    known,
                    kernels.finish_arguments(plan),
                    FINISH_VARYING,
                    blocks=kernels.finish_blocks(plan, panel, k),
                    threads=panel.threads,
                    overlaps=self._overlaps,
                )
            self._prepared[key] = passes, finish
            return passes, finish


@cache
def zero_row(number: int) -> Any:
    """Return the bytes of a row of zeros on a GPU, the current one.

    It is never given back: who comes on a stream like the one that it was taken on would not wait for the
    products that read it.
    """
    import cupy

    with on_stream(cupy.cuda.Stream(non_blocking=True)) as stream:  # the caller's may be captured
        row = cupy.zeros(MOST_PANEL, np.uint8)
        stream.synchronize()
    return row


def compiled(kernels: Kernels, signature: Signature, plan: Plan, kinds: Arithmetic, panel: Panel) -> Any:
    """Return a kernel, compiled for the current device."""
    constants = kernels.defines(plan, kinds, panel)
    return _source.load(signature.source, constants).get_function(signature.entry)


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of an array of CuPy."""
    return cast("np.ndarray[Any, Any]", array.get())


def word(item: int) -> np.dtype[Any]:
    """Return a type of so many bytes, 2, 4, 8 or 16, whatever they mean."""
    return np.dtype(f"u{item}" if item <= 8 else f"V{item}")


def transposing(item: int, width: int, to_rows: bool) -> Any:
    """Return the kernel that transposes numbers of so many bytes, compiled for the current device."""
    constants = {"DASP_BYTES": str(item), "DASP_COLUMNS": str(width), "DASP_TO_ROWS": str(int(to_rows))}
    return _source.load(TRANSPOSE.source, constants).get_function(TRANSPOSE.entry)


def _layout(array: Any) -> Layout | None:
    return layout_of(array.shape, array.strides, array.itemsize, array.data.ptr)
