"""The parts of a plan of slices: one line, or its slots and bytes by lanes, widths and codings."""

from __future__ import annotations

import numpy as np

from dasp.formats.plan import WARP, Part, Plan, nbytes
from dasp.formats.sell.pattern import Pattern, Values, Width, shape_fields

BITS = {Width.NONE: "none", Width.BITS_8: "8", Width.BITS_16: "16", Width.BITS_32: "32"}


def summary(plan: Plan) -> list[Part]:
    """Return one line: rows, entries, slots and bytes of all slices."""
    pattern, values = plan.pattern, plan.values
    slots = WARP * len(pattern.bases)
    rows = pattern.positions + len(pattern.long_rows)
    return [Part("slices", rows, pattern.entries, slots, nbytes(pattern, values))]


def shares(plan: Plan) -> dict[str, dict[str, int]]:
    """Return slots by lanes to a row and by bits of a column, and bytes by what they hold.

    Parameters
    ----------
    plan : Plan
        With arrays on any device; the headers are copied to the host.

    Returns
    -------
    dict of str to dict of str to int
        What is shared out, then the shares, zeros left out; slots add up to the plan's, bytes to `nbytes`.
    """
    pattern: Pattern = plan.pattern
    values: Values = plan.values
    headers = pattern.headers
    words = np.asarray(headers.get() if hasattr(headers, "get") else headers)[:, 3].astype(np.int64)
    steps, _, shift, width = shape_fields(words)
    cut = np.arange(len(words)) < pattern.segments
    lanes = {"long rows, cut": WARP * int(steps[cut].sum())}
    for log in range(6):
        lanes[f"{1 << log}"] = WARP * int(steps[(shift == log) & ~cut].sum())
    widths = {name: WARP * int(steps[width == kind].sum()) for kind, name in BITS.items()}
    parts = {
        f"values, {values.coding.name.lower()}": nbytes(values),
        "columns": nbytes(pattern.bases, pattern.deltas),
        "headers": nbytes(headers),
        "rows": nbytes(pattern) - nbytes(pattern.bases, pattern.deltas, headers),
    }
    found = {"slots, by lanes to a row": lanes, "slots, by bits of a column": widths, "bytes": parts}
    return {what: {name: n for name, n in each.items() if n} for what, each in found.items()}
