"""The distance of the columns that a step of a plan of slices reads, counted in a sample of its slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dasp.formats.plan import WARP, Plan
from dasp.formats.sell.pattern import shape_fields
from dasp.runtime.types import DeviceArray

HostArray = np.ndarray[Any, Any]

SAMPLE = 32
"""Slices that are looked at."""

SECTOR = 4
"""Numbers of float64 in the 32 bytes that a GPU reads at least."""

FAR = 1.0
"""Sectors for each entry where every entry reads its own; 1 / SECTOR where a step reads a run of columns."""


def read_sectors(plan: Plan, on_host: Callable[[DeviceArray], HostArray] = np.asarray) -> float:
    """Return the sectors of a vector of float64 that a step reads for each of its entries, 1 / 32 to 1.

    Parameters
    ----------
    plan : Plan
        In slices; segments of long rows are not looked at.
    on_host : callable
        Copies an array of the plan to the host.
    """
    first, count = int(plan.pattern.segments), len(plan.pattern.headers)
    if first == count:
        return FAR
    headers = on_host(plan.pattern.headers[first :: -(-(count - first) // SAMPLE)])
    steps = [
        columns[columns >= 0]
        for header in headers.astype(np.int64)
        for columns in _columns(plan, header, on_host)
    ]
    entries = sum(map(len, steps))
    return sum(len(np.unique(columns // SECTOR)) for columns in steps) / entries if entries else FAR


def _columns(plan: Plan, header: HostArray, on_host: Callable[[DeviceArray], HostArray]) -> HostArray:
    """Return the columns of a slice, of shape (steps, 32); those of pads are negative."""
    first, _, block, word = (int(number) for number in header)
    steps, _, _, width = shape_fields(word)
    bases = on_host(plan.pattern.bases[first : first + steps]).astype(np.int64)
    if not width:
        return bases[:, None] + np.arange(WARP)
    stored, start = np.dtype(f"u{1 << width >> 1}"), WARP * block
    there = on_host(plan.pattern.deltas[start : start + steps * WARP * stored.itemsize])
    deltas = there.view(stored).reshape(steps, WARP).astype(np.int64)
    return np.where(deltas == np.iinfo(stored).max, -1, bases[:, None] + deltas)
