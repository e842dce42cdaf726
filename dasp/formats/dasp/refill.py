"""Other values for a pattern of the format of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.formats.dasp.pattern import Values
from dasp.formats.plan import PAD, Array, Plan, applied, of_pad
from dasp.runtime import arrays as _arrays
from dasp.runtime.dtypes import bits_type


def values_from(plan: Plan, data: Array, slots: Array, on: Any) -> Values:
    """Return the values of a plan with the same pattern; see `dasp.formats.sell.refill`."""
    sizes = [len(part) for part in _parts(plan.values)]
    stored = on.zeros(sum(sizes), data.dtype)
    on.scatter(data, slots, stored)
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return Values(*(stored[end - size : end] for end, size in zip(ends, sizes, strict=True)))


def mapped(plan: Plan, function: Callable[[Array], Array], merges: bool, on: Any) -> Plan | None:
    """Return the plan with a function of each value in its place; see `dasp.formats.sell.mapping`."""
    pattern = plan.pattern
    zero, same_bits = of_pad(function, plan.dtype)
    if not zero:
        return None
    kind = applied(function, np.zeros(0, plan.dtype)).dtype
    parts = pattern.long, pattern.medium.regular, pattern.medium.irregular, pattern.short
    made = []
    for part, numbers in zip(parts, _parts(plan.values), strict=True):
        found = applied(function, numbers) if len(numbers) else on.zeros(0, kind)
        if not same_bits and len(numbers):
            bits = bits_type(kind)
            kept = _arrays.namespace(found).where(part.columns == PAD, bits.type(0), found.view(bits))
            found = kept.view(kind)
        made.append(found)
    return plan.of(Values(*made), kind)


def values_into(plan: Plan, data: Array, slots: Array, on: Any) -> None:
    """Write values into the arrays of a plan; they fit, whatever they are."""
    new = values_from(plan, data, slots, on)
    for part, numbers in zip(_parts(plan.values), _parts(new), strict=True):
        on.overwrite(part, numbers)


def _parts(values: Values) -> tuple[Array, ...]:
    return values.long, values.regular, values.irregular, values.short
