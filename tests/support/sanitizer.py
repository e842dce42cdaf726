"""What compute-sanitizer needs to follow what runs on a GPU."""

from __future__ import annotations

import importlib
import math

FLAG = "--for-sanitizer"
HELP = (
    "as compute-sanitizer can follow it: no while nodes in graphs, no two arrays of a GPU in one allocation"
)


def prepare() -> None:
    """Let no driver be new enough for while nodes, and have CUDA, not a pool, give CuPy each array."""
    vars(importlib.import_module("dasp.runtime.cuda.device"))["WHILE_NODES"] = math.inf
    importlib.import_module("cupy").cuda.set_allocator(None)
