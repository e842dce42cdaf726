"""Other values for a pattern of slices."""

from __future__ import annotations

from typing import Any

from dasp.formats.array import WARP, Array, Plan
from dasp.formats.sliced import choose
from dasp.formats.sliced.pattern import Coding, Values


def values_from(plan: Plan, data: Array, slots: Array, on: Any) -> Values:
    """Return the values of a plan with the same pattern, in the narrowest coding that holds them.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,)
        Of any type that a matrix may have.
    slots : Array, shape (nnz,)
        Where the pattern has the entry of each.
    on : Primitives
    """
    coding = Coding.PLAIN
    if plan.pattern.choice.narrow and len(data):
        coding = choose.choose_coding(on.value_statistics(data), data.dtype)
    codes, table = on.encode(data, coding)
    stored = codes
    if coding != Coding.EQUAL:
        stored = on.zeros(WARP * len(plan.pattern.bases), codes.dtype)
        on.scatter(codes, slots, stored)
    return Values(coding, stored, table)


def values_into(plan: Plan, data: Array, slots: Array, on: Any) -> None:
    """Write values into the arrays of a plan, in its coding.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,), the plan's type
    slots : Array, shape (nnz,)
        Where the pattern has the entry of each.
    on : Primitives

    Raises
    ------
    ValueError
        If the coding cannot hold the values; nothing was written.

    Notes
    -----
    As they are (Coding.PLAIN), values are written without a question: the call can be captured.
    """
    values = plan.values
    if values.coding != Coding.PLAIN and len(data) and not on.holds(data, values.coding, len(values.table)):
        raise ValueError(
            f"out stores its values as {values.coding.name}, which does not hold the new ones; "
            "plan it with Policy(narrow=False), or leave out `out`"
        )
    if len(data):
        codes, table = on.encode(data, values.coding)
        on.overwrite(values.table, table)
        if values.coding != Coding.EQUAL:
            on.scatter(codes, slots, values.codes)
