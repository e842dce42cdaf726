"""A diagonal in the format of the paper on a GPU, in one launch: kernels/spmv/diagonal_dasp.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.dasp.cuda import vector
from dasp.formats.kernel_cuda import DIAGONAL_PARAMETERS, DIAGONAL_THREADS
from dasp.formats.plan import WARP, Plan
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.integers import ceil_div

VARYING = "further", "first_row", "length", "y"
"""Arguments that come with each diagonal."""

SIGNATURE = Signature(
    "spmv/diagonal_dasp.cu",
    "dasp_diagonal_of_tiles",
    f"""
    const Index*   long_rows        [cut]
    const Offset*  long_offsets     [cut + 1]
    const Index*   long_columns     [slots]
    const Value*   long_values      [slots]
    long long      cut
    {vector.MEDIUM.strip()}
    {vector.SHORT.strip()}{DIAGONAL_PARAMETERS}""",
)


def blocks(plan: Plan) -> int:
    """Return the blocks of the launch: one for a long row, a warp for 8 medium ones, a lane for others."""
    pattern = plan.pattern
    single = len(pattern.short.rows) + len(pattern.empty_rows)
    medium = ceil_div(len(pattern.medium.regular.offsets) - 1, DIAGONAL_THREADS // WARP)
    return len(pattern.long.rows) + medium + ceil_div(single, DIAGONAL_THREADS)


def defines(plan: Plan) -> dict[str, str]:
    """Return the compile-time constants that the format adds."""
    index, offset, _ = vector.traits(plan)
    return {"DASP_INDEX": C_NAMES[index], "DASP_OFFSET": C_NAMES[offset]}


def types(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return vector.types(plan)


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each diagonal."""
    taken = {parameter.name for parameter in SIGNATURE.parameters}
    given = {name: value for name, value in vector.plan_arguments(plan).items() if name in taken}
    return given | {"cut": len(plan.pattern.long.rows)}
