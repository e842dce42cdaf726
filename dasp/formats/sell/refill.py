"""Other values for a pattern of slices."""

from __future__ import annotations

from typing import Any

from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell import choose
from dasp.formats.sell.pattern import Coding, Values
from dasp.formats.sell.protocols import Primitives


def values_from(plan: Plan, data: Array, slots: Any, on: Primitives) -> Values:
    """Return the values of a plan with the same pattern, in the narrowest coding that holds them.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,)
        Of any type that a matrix may have.
    slots : object
        Where the pattern has the entry of each, as the primitives said it.
    on : Primitives
    """
    coding, counted = Coding.PLAIN, None
    if plan.pattern.choice.narrow and len(data):
        counted = on.count_values(data)
        coding = choose.choose_coding(counted[0], data.dtype)
    return on.code_values(data, slots, WARP * len(plan.pattern.bases), coding, counted)


def values_into(plan: Plan, data: Array, slots: Any, on: Primitives) -> None:
    """Write values into the arrays of a plan, in its coding.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,), the plan's type
    slots : object
        Where the pattern has the entry of each, as the primitives said it.
    on : Primitives

    Raises
    ------
    ValueError
        If the coding cannot hold the values; nothing was written.

    Notes
    -----
    As they are (Coding.PLAIN), values are written without a question: the call can be captured.
    """
    if len(data) and not on.recode_values(data, slots, plan.values):
        raise ValueError(
            f"out stores its values as {plan.values.coding.name}, which does not hold the new ones; "
            "plan it with Policy(narrow=False), or leave out `out`"
        )
