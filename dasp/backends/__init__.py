"""The modules that execute a plan: `cpu` with Numba, `cuda` with CuPy. Neither imports the other.

`protocols.py` says what each of them owes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dasp.runtime.loading import load


@cache
def find(device: str) -> Any:
    """Return the backend of a device, `cpu` or `cuda:N`: a module as `protocols.Backend` says."""
    return load(f"dasp.backends.{device.partition(':')[0]}.backend")
