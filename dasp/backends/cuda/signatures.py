"""What the kernels of the product take; sizes are those that dasp/plan.py names."""

from __future__ import annotations

from dasp.backends.cuda.launch import Signature

SLICED = Signature(
    "spmv/slices.cu",
    "dasp_slices",
    """
    const uint4*          headers          [count]
    const Index*          bases            [steps]
    const unsigned char*  deltas
    const Code*           values
    const Value*          table
    const Index*          rows
    const Index*          long_rows        [r]
    const Index*          segment_offsets  [r + 1]
    const Index*          segment_rows     [segments]
    Bits*                 partials         [segments]
    long long             count
    long long             segments
    long long             positions
    int                   identity
    const Scalar*         x
    Scalar*               y
    Scalar                alpha
    Scalar                beta
    """,
)

PUBLISHED = Signature(
    "spmv/product.cu",
    "dasp_spmv",
    """
    const Index*   long_rows        [r]
    const Offset*  long_offsets     [r + 1]
    const Offset*  segment_offsets  [r + 1]
    const Index*   segment_rows     [segments]
    const Index*   long_columns     [slots]
    const Value*   long_values      [slots]
    Bits*          partials         [segments]
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
    const Scalar*  x
    Scalar*        y
    Scalar         alpha
    Scalar         beta
    """,
)
