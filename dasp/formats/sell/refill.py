"""Other values for a pattern of slices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dasp.formats.plan import WARP, Array, Plan
from dasp.formats.sell import choose
from dasp.formats.sell.layout import Slots
from dasp.formats.sell.pattern import Coding, Values
from dasp.formats.sell.protocols import Primitives
from dasp.runtime.dtypes import stored


def values_from(plan: Plan, data: Array, slots: Slots, on: Primitives) -> Values:
    """Return the values of a plan with the same pattern, in the narrowest coding that holds them.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,)
        Of any type that a matrix may have.
    slots : Slots
        Where the pattern has the entry of each, as the primitives said it.
    on : Primitives
    """
    coding, counted = Coding.PLAIN, None
    if plan.pattern.choice.narrow and len(data):
        counted = on.count_values(data)
        coding = choose.choose_coding(counted[0], data.dtype)
    return on.code_values(data, slots, WARP * len(plan.pattern.bases), coding, counted)


def values_into(plan: Plan, data: Array, slots: Slots, on: Primitives) -> None:
    """Write values into the arrays of a plan, in its coding.

    Parameters
    ----------
    plan : Plan
    data : Array, shape (nnz,), the plan's type
    slots : Slots
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


def mapped(plan: Plan, function: Callable[[Array], Array], on: Primitives) -> Plan | None:
    """Return the plan with a function of each value in its place; None if values must be coded anew.

    In a table of few values each of these is mapped; values that are stored as they are, slot by slot.
    """
    values, pattern = plan.values, plan.pattern
    if values.coding in (Coding.EQUAL, Coding.DICTIONARY):
        table = _stored(function(values.table))
        return plan.of(Values(values.coding, values.codes.copy(), table), table.dtype)
    with np.errstate(all="ignore"):
        of_pad = function(np.zeros(1, plan.dtype))
    if values.coding != Coding.PLAIN or of_pad[0] != 0:  # as a product with infinity, which is NaN
        return None
    numbers = _stored(function(values.codes))
    on.clear_pads(pattern, numbers)
    # A pad's 0 may hide that numbers fit a narrower coding, and never that they do not.
    if pattern.choice.narrow and len(numbers) and _coding_of(numbers, on) != Coding.PLAIN:
        return None
    return plan.of(Values(Coding.PLAIN, numbers, on.zeros(0, numbers.dtype)), numbers.dtype)


def _coding_of(numbers: Array, on: Primitives) -> Coding:
    return choose.choose_coding(on.count_values(numbers)[0], numbers.dtype)


def _stored(numbers: Array) -> Array:
    """Return numbers in a type that matrices have."""
    return numbers.astype(stored(numbers.dtype), copy=False)
