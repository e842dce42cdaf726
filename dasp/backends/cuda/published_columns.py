"""Several columns and the published format on a GPU: what product_columns.cu is compiled with, and takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.formats.cost import Machine, Panels
from dasp.formats.dasp.cuda import product as published
from dasp.formats.dasp.pattern import TILE, TILE_COLUMNS, TILE_ROWS
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda.columns import OF_PANEL, Kernels, Layout, Panel, Pass, finish_signature
from dasp.formats.sell.cuda.sectors import FAR, SAMPLE, SECTOR
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import Arithmetic
from dasp.runtime.integers import ceil_div

MORE_REGISTERS = 16
"""Registers more where columns of X lie apart, since each has an address of its own; and for complex sums."""

SIGNATURE = Signature(
    "spmv/product_columns.cu",
    "dasp_spmv_columns",
    f"""
    const Offset*  long_offsets
    const Offset*  segment_offsets
    const Index*   segment_rows     [segments]
    const Index*   long_columns     [slots]
    const Value*   long_values      [slots]
    int            segment
    long long      segments
    {published.MEDIUM.strip()}
    {published.SHORT.strip()}
    const X*       zeros
    {OF_PANEL.strip()}
    """,
)


def defines(plan: Plan, kinds: Arithmetic, panel: Panel) -> dict[str, str]:
    """Return the compile-time constants of the kernels for a plan, the types of a product and a panel."""
    constants = panel.defines() | published.defines(plan)
    if kinds.sum != np.float64:
        constants["DASP_MMA"] = "0"
    return constants | {
        "DASP_TAIL_LANES": str(TILE_COLUMNS // plan.pattern.medium.blocks_per_warp),
        **kinds.defines,
    }


def types(plan: Plan, kinds: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return what the source's own names of types stand for."""
    known = published.types(plan) | {"SegmentOffset": plan.pattern.offset_dtype}
    return known | kinds.types


def choose_passes(
    machine: Machine, columns: int, kinds: Arithmetic, x: Layout, y: Layout
) -> tuple[Pass, ...]:
    """Return the launches for so many columns: in whole panels of the widest kind, and of the rest."""
    each = max(kinds.x.itemsize, kinds.sum.itemsize)
    sizes = {chosen.panel // each: chosen for chosen in machine.published_panels}
    most = max(sizes)
    whole = columns // most * most
    passes = [Pass(0, whole, _panel(sizes[most], most, whole, kinds, x, y))] if whole else []
    rest = columns - whole
    if rest:
        width = min(width for width in sizes if width >= max(rest, TILE_COLUMNS))
        passes.append(Pass(whole, rest, _panel(sizes[width], width, rest, kinds, x, y)))
    return tuple(passes)


def _panel(chosen: Panels, width: int, columns: int, kinds: Arithmetic, x: Layout, y: Layout) -> Panel:
    """Return the panel of a width for columns that fill it, or for fewer."""
    pack = min(x.pack, width // TILE_COLUMNS)
    return Panel(
        columns=width,
        lanes=TILE_COLUMNS,
        pack=pack,
        y_pack=pack if y.column == 1 and y.pack >= pack else 1,
        whole=int(columns % width == 0),
        steps=chosen.steps,
        loads=chosen.loads,
        registers=chosen.registers + MORE_REGISTERS * ((x.column != 1) + (kinds.sum.kind == "c")),
        threads=WARP * chosen.warps,
    )


def at_once(panel: Panel) -> int:
    """Return the tiles whose rows of X a warp reads at once, and the tiles of short rows that it takes."""
    loads = panel.columns // panel.pack  # of a tile
    return max(1, min(panel.steps, panel.loads // loads))


def warps(plan: Plan, panel: Panel) -> int:
    """Return how many warps a product by one panel needs."""
    pattern = plan.pattern
    short, tiles = pattern.short, at_once(panel)
    return int(
        len(pattern.long.segment_rows)
        + len(pattern.medium.regular.offsets)
        - 1
        + sum(ceil_div(rows, TILE_ROWS * tiles) for rows in (short.pairs_13, short.pairs_22, short.fours))
        + ceil_div(short.singles, WARP * tiles)
        + ceil_div(len(pattern.empty_rows), WARP)
    )


def arguments(plan: Plan, zeros: Any, parts: int) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each product."""
    taken = published.plan_arguments(plan)
    others = "long_rows", "blocks_per_warp"
    own = {"zeros": zeros, "parts": parts}
    return {name: taken[name] for name in taken if name not in others} | own


def finish_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the end of a product but those that come with each."""
    long = plan.pattern.long
    return {"long_rows": long.rows, "segment_offsets": long.segment_offsets, "count": len(long.rows)}


def read_sectors(plan: Plan, on_host: Callable[[Any], np.ndarray[Any, Any]] = np.asarray) -> float:
    """Return how many sectors of a vector of float64 the rows of a tile read for each of their entries.

    Counted in a sample of the tiles of medium rows, or of short ones where there are none; 1 / 8 to 1.
    """
    tiles = plan.pattern.medium.regular.columns
    if not len(tiles):
        short = plan.pattern.short
        tiles = short.columns[: TILE_COLUMNS * (short.pairs_13 + short.pairs_22 + short.fours)]
    count = len(tiles) // TILE
    if not count:
        return FAR
    sample = on_host(tiles[: TILE * count].reshape(count, TILE)[:: ceil_div(count, SAMPLE)])
    slots = sample.reshape(-1, TILE_ROWS, TILE_COLUMNS).transpose(0, 2, 1).reshape(-1, TILE_ROWS)
    entries = int(np.count_nonzero(slots >= 0))
    return sum(len(np.unique(one[one >= 0] // SECTOR)) for one in slots) / entries if entries else FAR


PUBLISHED = Kernels(
    signature=SIGNATURE,
    finish=finish_signature(SIGNATURE.source),
    defines=defines,
    types=types,
    passes=lambda machine, plan, columns, kinds, x, y, sectors: choose_passes(machine, columns, kinds, x, y),
    warps=warps,
    partials=published.partials,
    arguments=arguments,
    finish_arguments=finish_arguments,
    long_rows=lambda plan: len(plan.pattern.long.rows),
    sectors=read_sectors,
)
