"""A diagonal of a plan on a GPU, in one launch: kernels/spmv/diagonal.cu and diagonal_published.cu."""

from __future__ import annotations

from typing import Any

from dasp.formats.dasp.cuda import product as published
from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.cuda import sliced
from dasp.formats.sell.pattern import NAME as SLICES
from dasp.runtime.cuda import source as _source
from dasp.runtime.cuda.launch import Launch, Signature
from dasp.runtime.dtypes import C_NAMES, Arithmetic
from dasp.runtime.integers import ceil_div

VARYING = "further", "first_row", "length", "y"
"""Arguments that come with each diagonal; before them, of slices, `claims`."""

_GIVEN = """
    long long             further
    long long             first_row
    long long             length
    Sum*                  y
    """

OF_SLICES = Signature(
    "spmv/diagonal.cu",
    "dasp_diagonal",
    f"""{sliced.ARRAYS.rstrip()}
    const Index*          long_rows     [cut]
    const Index*          segment_rows  [segments]
    long long             count
    long long             segments
    long long             positions
    long long             cut
    int                   identity
    unsigned long long*   claims{_GIVEN}""",
)

OF_PUBLISHED = Signature(
    "spmv/diagonal_published.cu",
    "dasp_diagonal_published",
    f"""
    const Index*   long_rows        [cut]
    const Offset*  long_offsets     [cut + 1]
    const Index*   long_columns     [slots]
    const Value*   long_values      [slots]
    long long      cut
    {published.MEDIUM.strip()}
    {published.SHORT.strip()}{_GIVEN}""",
)

THREADS = 256
"""Of a block."""


def prepare(plan: Plan, kinds: Arithmetic) -> Launch:
    """Return the launch that finds a diagonal; `kinds` are the types of a product by the plan's own."""
    signature, of_plan = of_format(plan)
    taken = {parameter.name for parameter in signature.parameters}
    arguments = {name: given for name, given in of_plan.plan_arguments(plan).items() if name in taken}
    rows = plan.pattern.long_rows if plan.format == SLICES else plan.pattern.long.rows
    return Launch(
        compiled(plan, kinds),
        signature,
        types(plan, kinds),
        arguments | {"cut": len(rows)},
        ("claims", *VARYING) if plan.format == SLICES else VARYING,
        blocks=blocks(plan),
        threads=THREADS,
    )


def blocks(plan: Plan) -> int:
    """Return the blocks of the launch."""
    pattern, warps = plan.pattern, THREADS // WARP
    if plan.format == SLICES:
        return ceil_div(len(pattern.headers), warps)
    single = len(pattern.short.rows) + len(pattern.empty_rows)
    medium = ceil_div(len(pattern.medium.regular.offsets) - 1, warps)
    return len(pattern.long.rows) + medium + ceil_div(single, THREADS)


def defines(plan: Plan, kinds: Arithmetic) -> dict[str, str]:
    """Return the compile-time constants of the kernel."""
    own = kinds.defines | {"DASP_INDEX": C_NAMES[plan.pattern.index_dtype], "DASP_MMA": "0"}
    own["DASP_THREADS"] = str(THREADS)
    if plan.format == SLICES:
        return own | {"DASP_OFFSET": "int", "DASP_CODING": str(int(plan.values.coding))}
    return own | {"DASP_OFFSET": C_NAMES[plan.pattern.offset_dtype]}


def compiled(plan: Plan, kinds: Arithmetic) -> Any:
    """Return the kernel, for the current GPU."""
    signature = of_format(plan)[0]
    return _source.load(signature.source, defines(plan, kinds)).get_function(signature.entry)


def types(plan: Plan, kinds: Arithmetic) -> dict[str, Any]:
    """Return what the kernel's own names of types stand for."""
    known: dict[str, Any] = of_format(plan)[1].types(plan)
    return known | kinds.types


def of_format(plan: Plan) -> tuple[Signature, Any]:
    """Return what the kernel of the plan's format takes, and the module that tells its arguments."""
    return (OF_SLICES, sliced) if plan.format == SLICES else (OF_PUBLISHED, published)
