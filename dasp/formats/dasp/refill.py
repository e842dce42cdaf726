"""Other values for a pattern of the format of the paper."""

from __future__ import annotations

from dasp.formats.dasp.pattern import Values
from dasp.formats.format import BasicPrimitives
from dasp.formats.plan import Array, Plan


def values_from(plan: Plan, data: Array, slots: Array, on: BasicPrimitives) -> Values:
    """Return the values of a plan with the same pattern; see `dasp.formats.sell.pack`."""
    sizes = [len(part) for part in _parts(plan.values)]
    stored = on.zeros(sum(sizes), data.dtype)
    on.scatter(data, slots, stored)
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return Values(*(stored[end - size : end] for end, size in zip(ends, sizes, strict=True)))


def values_into(plan: Plan, data: Array, slots: Array, on: BasicPrimitives) -> None:
    """Write values into the arrays of a plan; they fit, whatever they are."""
    new = values_from(plan, data, slots, on)
    for part, numbers in zip(_parts(plan.values), _parts(new), strict=True):
        on.overwrite(part, numbers)


def _parts(values: Values) -> tuple[Array, ...]:
    return values.long, values.regular, values.irregular, values.short
