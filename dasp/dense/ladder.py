"""What a rung of a GEMM ladder is, and what one product needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HALF = ("float16", "bfloat16")
REAL = ("float32", "float64")


@dataclass(frozen=True)
class Product:
    """One checked product C = alpha A B + beta C, with the transpositions already folded into the views.

    Attributes
    ----------
    a, b : arrays of shape (m, k) and (k, n), any strides, all of one dtype, on one device
    c : array of shape (m, n) or None; None exactly if beta == 0
    out : array of shape (m, n), any strides, sharing no memory with a or b
    alpha, beta : float
    """

    a: Any
    b: Any
    c: Any
    out: Any
    alpha: float
    beta: float

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(m, n, k)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


@dataclass(frozen=True)
class Kernel:
    """One rung of a ladder: a way to compute a product.

    Attributes
    ----------
    name : the word that ``gemm(..., kernel=name)`` takes
    summary : what this rung changes, in one sentence
    dtypes : names of the dtypes that it multiplies
    run : computes a checked product
    capability : least compute capability of the GPU, or None on the CPU
    """

    name: str
    summary: str
    dtypes: tuple[str, ...]
    run: Callable[[Product], None] = field(repr=False, compare=False)
    capability: tuple[int, int] | None = None

    @property
    def needs(self) -> str:
        """The dtypes and the machine that this rung needs, in words."""
        words = " or ".join(self.dtypes)
        if self.capability is None:
            return f"{words}; any CPU"
        return f"{words}; compute capability {self.capability[0]}.{self.capability[1]}"
