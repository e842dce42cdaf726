"""A diagonal of a plan of slices on a GPU, in one launch: kernels/spmv/diagonal.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.kernel_cuda import DIAGONAL_PARAMETERS, DIAGONAL_THREADS
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import vector
from dasp.runtime.cuda.launch import Signature
from dasp.runtime.dtypes import C_NAMES
from dasp.runtime.integers import ceil_div

VARYING = "claims", "further", "first_row", "length", "y"
"""Arguments that come with each diagonal."""

SIGNATURE = Signature(
    "spmv/diagonal.cu",
    "dasp_diagonal",
    f"""{vector.ARRAYS.rstrip()}
    const Index*          long_rows     [cut]
    const Index*          segment_rows  [segments]
    long long             count
    long long             segments
    long long             positions
    long long             cut
    int                   identity
    unsigned long long*   claims{DIAGONAL_PARAMETERS}""",
)


def blocks(plan: Plan) -> int:
    """Return the blocks of the launch."""
    return ceil_div(len(plan.pattern.headers), DIAGONAL_THREADS // WARP)


def defines(plan: Plan) -> dict[str, str]:
    """Return the compile-time constants that the format adds."""
    index = C_NAMES[plan.pattern.index_dtype]
    return {"DASP_INDEX": index, "DASP_OFFSET": "int", "DASP_CODING": str(int(plan.values.coding))}


def types(plan: Plan) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return vector.types(plan)


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each diagonal."""
    given = vector.plan_arguments(plan)
    del given["segment_offsets"]
    return given | {"cut": len(plan.pattern.long_rows)}
