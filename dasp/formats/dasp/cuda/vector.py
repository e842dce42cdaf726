"""The format of the paper on a GPU: constants and arguments of kernels/spmv/product.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.kernel_cuda import Scratch
from dasp.formats.plan import WARP, Plan
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.sizes import ceil_div

THREADS, SHORT_THREADS = 128, 256
"""Threads of a block, and where most rows are short: those warps end soon."""

MEDIUM = """
    const Index*   medium_rows      [8 * blocks]
    const Offset*  tile_offsets     [blocks + 1]
    const Index*   tile_columns     [tile_slots]
    const Value*   tile_values      [tile_slots]
    const Offset*  tail_offsets     [8 * blocks + 1]
    const Index*   tail_columns     [tail]
    const Value*   tail_values      [tail]
    long long      blocks
    """
"""Parameters of kernels for the rows in tiles and the entries that no tile holds."""

SHORT = """
    const Index*   short_rows
    const Index*   short_columns    [short_slots]
    const Value*   short_values     [short_slots]
    long long      pairs_13
    long long      pairs_22
    long long      fours
    long long      singles
    const Index*   empty_rows       [empties]
    long long      empties
    """
"""Parameters of kernels for short and empty rows."""

SIGNATURE = Signature(
    "spmv/product.cu",
    "dasp_spmv",
    f"""
    const Index*   long_rows        [r]
    const Offset*  long_offsets     [r + 1]
    const Offset*  segment_offsets  [r + 1]
    const Index*   segment_rows     [segments]
    const Index*   long_columns     [slots]
    const Value*   long_values      [slots]
    Bits*          partials         [messages]
    unsigned*      tickets          [1]
    int            segment
    long long      segments
    {MEDIUM.strip()}
    int            blocks_per_warp
    {SHORT.strip()}
    const X*       x
    Y*             y
    Sum            alpha
    Sum            beta
    """,
)


def defines(plan: Plan, kinds: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants that the format adds; tensor cores are for sums in float64."""
    pattern = plan.pattern
    return {
        "DASP_INDEX": C_NAMES[pattern.index_dtype],
        "DASP_OFFSET": C_NAMES[pattern.offset_dtype],
        "DASP_MMA": str(int(pattern.mma and kinds.sum == np.float64)),
    }


def types(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return {"Index": plan.pattern.index_dtype, "Offset": plan.pattern.offset_dtype}


def warps(plan: Plan) -> int:
    """Return the number of warps that a product needs."""
    pattern = plan.pattern
    medium, short = pattern.medium, pattern.short
    return int(
        len(pattern.long.segment_rows)
        + ceil_div(len(medium.regular.offsets) - 1, medium.blocks_per_warp)
        + ceil_div(short.pairs_13 + short.pairs_22, WARP)
        + ceil_div(short.fours, 2 * WARP)
        + ceil_div(short.singles, 2 * WARP)
        + ceil_div(len(pattern.empty_rows), WARP)
    )


def threads(plan: Plan) -> int:
    """Return the threads of a block."""
    return SHORT_THREADS if 2 * len(plan.pattern.short.rows) > plan.shape[0] else THREADS


def partials(plan: Plan) -> int:
    """Return the number of partial sums that a product needs."""
    return len(plan.pattern.long.segment_rows)


def arguments(plan: Plan, scratch: Scratch) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each product."""
    return plan_arguments(plan) | {"partials": scratch.partials, "tickets": scratch.tickets}


def plan_arguments(plan: Plan) -> dict[str, Any]:
    """Return those of them that belong to the plan."""
    pattern, values = plan.pattern, plan.values
    long, medium, short = pattern.long, pattern.medium, pattern.short
    regular, irregular = medium.regular, medium.irregular
    return {
        "long_rows": long.rows,
        "long_offsets": long.offsets,
        "segment_offsets": long.segment_offsets,
        "segment_rows": long.segment_rows,
        "long_columns": long.columns,
        "long_values": values.long,
        "segment": long.segment,
        "segments": len(long.segment_rows),
        "medium_rows": medium.rows,
        "tile_offsets": regular.offsets,
        "tile_columns": regular.columns,
        "tile_values": values.regular,
        "tail_offsets": irregular.offsets,
        "tail_columns": irregular.columns,
        "tail_values": values.irregular,
        "blocks": len(regular.offsets) - 1,
        "blocks_per_warp": medium.blocks_per_warp,
        "short_rows": short.rows,
        "short_columns": short.columns,
        "short_values": values.short,
        "pairs_13": short.pairs_13,
        "pairs_22": short.pairs_22,
        "fours": short.fours,
        "singles": short.singles,
        "empty_rows": pattern.empty_rows,
        "empties": len(pattern.empty_rows),
    }
