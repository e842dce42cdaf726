"""Bridges to other libraries: PyTorch.

PyTorch is imported only where `dasp.interop.torch` is used.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "torch":
        return importlib.import_module("dasp.interop.torch")
    raise AttributeError(f"module 'dasp.interop' has no attribute {name!r}")
