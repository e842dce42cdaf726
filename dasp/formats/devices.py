"""The devices on which formats are packed and multiplied: one module for each kind of device.

`protocols.py` says what each of them owes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dasp.runtime.loading import load

MODULES = {"cpu": "dasp.formats.device_cpu", "cuda": "dasp.formats.device_cuda"}


@cache
def find(device: str) -> Any:
    """Return the module of a device, `cpu` or `cuda:N`, as `protocols.Device` says."""
    return load(MODULES[device.partition(":")[0]])
