"""The way back from slices, and what their plans are made of."""

from __future__ import annotations

from typing import Any

from dasp.formats.plan import WARP, Array, Part, Plan, nbytes
from dasp.formats.sell.protocols import Primitives


def unpack(plan: Plan, on: Primitives) -> tuple[Array, Array, Array]:
    """Return the matrix of a plan as CSR; see `dasp.formats.sell.protocols.Primitives.unpack`."""
    return on.unpack(plan)


def slots(plan: Plan, on: Primitives) -> Any:
    """Return where every entry goes; see `dasp.formats.sell.protocols.Primitives.slots`."""
    return on.slots(plan)


def summary(plan: Plan) -> list[Part]:
    """Return one line: rows, entries, slots and bytes of all slices."""
    pattern, values = plan.pattern, plan.values
    slots = WARP * len(pattern.bases)
    rows = pattern.positions + len(pattern.long_rows)
    return [Part("slices", rows, pattern.entries, slots, nbytes(pattern, values))]
