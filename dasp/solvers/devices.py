"""The space of each device, found by the device's name."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from dasp.solvers.space import Space

MODULES = {"cpu": "dasp.solvers.cpu", "cuda": "dasp.solvers.cuda"}
"""The module that makes the space of a device."""


def space_for(device: str, dtype: np.dtype[Any]) -> Space:
    """Return the space of a device, `cpu` or `cuda:N`, for vectors of float32 or float64."""
    made: Space = importlib.import_module(MODULES[device.partition(":")[0]]).make_space(device, dtype)
    return made
