"""Dense products: of floating-point matrices (`gemm`), and over GF(2^8) for Reed-Solomon codes (`gf256`).

Neither Numba nor CuPy is imported before a product needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dasp.dense.gemm.product import explain, gemm, kernels

if TYPE_CHECKING:
    from dasp.dense import gf256

__all__ = ["explain", "gemm", "gf256", "kernels"]


def __getattr__(name: str) -> Any:
    if name == "gf256":
        return importlib.import_module("dasp.dense.gf256")
    raise AttributeError(f"module 'dasp.dense' has no attribute {name!r}")
