"""The way back from slices, and what their plans are made of."""

from __future__ import annotations

from typing import Any

from dasp import _arrays
from dasp._dtypes import bits_type, sum_type
from dasp.formats.array import WARP, Array, Part, Plan, nbytes
from dasp.formats.sliced.pattern import Values


def unpack(plan: Plan, on: Any) -> tuple[Array, Array, Array]:
    """Return the matrix of a plan as CSR; see `dasp.backends.protocols.Primitives.unpack`."""
    found: tuple[Array, Array, Array] = on.unpack(plan)
    return found


def slots(plan: Plan, on: Any) -> Any:
    """Return where every entry goes; see `dasp.backends.protocols.Primitives.slots`."""
    return on.slots(plan)


def diagonal(plan: Plan, k: int, on: Any) -> Array | None:
    """Return the k-th diagonal in the type of sums; None if an entry of it occurs twice.

    Parameters
    ----------
    plan : Plan
    k : int
    on : Primitives
    """
    m, n = plan.shape
    first, count = max(-k, 0), max(min(m + min(k, 0), n - max(k, 0)), 0)
    values: Values = plan.values
    total = sum_type(plan.dtype)
    found = on.find_diagonal(plan, k, first, count)
    if found is None:
        return None
    if not plan.nnz:
        return on.zeros(count, total)
    codes, bits = values.codes, bits_type(values.codes.dtype)
    # A place without an entry reads some code, and then takes 0. No boolean indices, for which a GPU waits.
    codes = codes.view(bits)[found.clip(0)].view(codes.dtype) if len(codes) else codes
    numbers = on.decode(values, codes, count, plan.dtype).astype(total, copy=False)
    numbers = _arrays.namespace(numbers).where(found >= 0, numbers, total.type(0))
    numbers += total.type(0)  # as SciPy does: none is -0
    return numbers


def summary(plan: Plan) -> list[Part]:
    """Return one line: rows, entries, slots and bytes of all slices."""
    pattern, values = plan.pattern, plan.values
    slots = WARP * len(pattern.bases)
    rows = pattern.positions + len(pattern.long_rows)
    return [Part("slices", rows, pattern.entries, slots, nbytes(pattern, values))]
