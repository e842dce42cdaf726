"""A diagonal of a plan of slices on a GPU, in one launch: kernels/spmv/diagonal.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import vector
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.sizes import ceil_div
from dasp.runtime.types import KernelFunction

THREADS = 256
"""Threads of a block."""

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
    unsigned long long*   claims
    long long             further
    long long             first_row
    long long             length
    Sum*                  y
    """,
)


def blocks(plan: Plan) -> int:
    """Return the blocks of the launch."""
    return ceil_div(len(plan.pattern.headers), THREADS // WARP)


def defines(plan: Plan, kinds: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants; `kinds` are the types of a product by the plan's own."""
    return kinds.defines | {
        "DASP_INDEX": C_NAMES[plan.pattern.index_dtype],
        "DASP_OFFSET": "int",
        "DASP_CODING": str(int(plan.values.coding)),
        "DASP_THREADS": str(THREADS),
    }


def types(plan: Plan, kinds: Arithmetic) -> dict[str, np.dtype[Any]]:
    """Return the types that the source names."""
    return vector.types(plan) | kinds.types


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the kernel's arguments but those that come with each diagonal."""
    given = vector.plan_arguments(plan)
    del given["segment_offsets"]
    return given | {"cut": len(plan.pattern.long_rows)}


def compile_diagonal(plan: Plan, kinds: Arithmetic) -> KernelFunction:
    """Return the kernel for the current GPU."""
    return SIGNATURE.load(defines(plan, kinds))


def prepare(plan: Plan, kinds: Arithmetic) -> Launch:
    """Return the launch that finds a diagonal."""
    kernel = compile_diagonal(plan, kinds)
    known, given = types(plan, kinds), arguments(plan)
    return Launch(kernel, SIGNATURE, known, given, VARYING, blocks=blocks(plan), threads=THREADS)
