"""Prepare dasp and CuPy so that compute-sanitizer can follow their work on a GPU."""

from __future__ import annotations

import importlib
import math

FLAG = "--for-sanitizer"
HELP = (
    "as compute-sanitizer can follow it: no while nodes in graphs, no two arrays of a GPU in one allocation"
)


def prepare() -> None:
    """Use no while nodes, as with an old driver, and let CUDA, not a pool, allocate each of CuPy's arrays."""
    vars(importlib.import_module("dasp.runtime.cuda.device"))["WHILE_NODES"] = math.inf
    importlib.import_module("cupy").cuda.set_allocator(None)
