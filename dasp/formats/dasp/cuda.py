"""The format of the paper on a GPU: compile kernels/spmv/dasp.cu, and launch it for a plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.kernel_cuda import Scratch
from dasp.formats.plan import WARP, Plan
from dasp.formats.product_cuda import CudaProduct
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.sizes import ceil_div

PRODUCT = Signature(
    "spmv/dasp.cu",
    "dasp_spmv",
    """
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
    const Index*   medium_rows      [8 * blocks]
    const Offset*  tile_offsets     [blocks + 1]
    const Index*   tile_columns     [tile_slots]
    const Value*   tile_values      [tile_slots]
    const Offset*  tail_offsets     [8 * blocks + 1]
    const Index*   tail_columns     [tail]
    const Value*   tail_values      [tail]
    long long      blocks
    int            blocks_per_warp
    const Index*   short_rows
    const Index*   short_columns    [short_slots]
    const Value*   short_values     [short_slots]
    long long      pairs_13
    long long      pairs_22
    long long      fours
    long long      singles
    const Index*   empty_rows       [empties]
    long long      empties
    const X*       x
    Y*             y
    Sum            alpha
    Sum            beta
    """,
)


class _Kernel:
    """The description of the kernel: see `dasp.formats.kernel_cuda.VectorKernel`."""

    SIGNATURE = PRODUCT

    def define_constants(self, plan: Plan, arithmetic: Arithmetic) -> dict[str, str]:
        """Return the compile-time constants that the format adds; tensor cores are for sums in float64."""
        pattern = plan.pattern
        return {
            "DASP_INDEX": C_NAMES[pattern.index_dtype],
            "DASP_OFFSET": C_NAMES[pattern.offset_dtype],
            "DASP_MMA": str(int(pattern.mma and arithmetic.sum == np.float64)),
        }

    def find_types(self, plan: Plan) -> dict[str, np.dtype[Any]]:
        """Return the types that the source names."""
        return {"Index": plan.pattern.index_dtype, "Offset": plan.pattern.offset_dtype}

    def count_warps(self, plan: Plan) -> int:
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

    def count_threads(self, plan: Plan) -> int:
        """Return the threads of a block: more if most rows are short, because their warps end soon."""
        most_are_short = 2 * len(plan.pattern.short.rows) > plan.shape[0]
        return 256 if most_are_short else 128

    def count_partials(self, plan: Plan) -> int:
        """Return the number of partial sums that a product needs."""
        return len(plan.pattern.long.segment_rows)

    def list_arguments(self, plan: Plan, scratch: Scratch) -> dict[str, Any]:
        """Return the kernel's arguments but those that come with each product."""
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
            "partials": scratch.partials,
            "tickets": scratch.tickets,
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


class DaspCudaProduct(CudaProduct):
    """A plan in the format of the paper, ready to be multiplied on one GPU."""

    kernel = _Kernel()
